package status

import (
	"mime"
	"slices"
	"strconv"
	"strings"
)

// The formats of metrics.
const (
	textType            = "text/plain"
	openMetricsType     = "application/openmetrics-text"
	textContentType     = textType + "; version=0.0.4; charset=utf-8"
	textOnly            = textType + ";version=0.0.4"
	maxAcceptedFormats  = 16
	openMetricsVersions = "1.0.0 0.0.1"
)

// accepted returns the Accept header for the application: that of the client without formats that cannot be joined with
// Envoy's page, such as protobuf. [agent M6]
func accepted(values []string) string {
	var out []string
	for part := range strings.SplitSeq(strings.Join(values, ","), ",") {
		kind, params, err := mime.ParseMediaType(part)
		if err != nil || len(out) == maxAcceptedFormats {
			continue
		}
		version := params["version"]
		switch kind {
		case "*/*", "*", "text/*":
			kind, version = textType, "0.0.4"
		case "application/*":
			kind, version = openMetricsType, "0.0.1"
		case textType:
			if version != "" && version != "0.0.4" {
				continue
			}
			version = "0.0.4"
		case openMetricsType:
			if version == "" {
				version = "0.0.1"
			}
			if !slices.Contains(strings.Fields(openMetricsVersions), version) {
				continue
			}
		default:
			continue
		}
		text := kind + ";version=" + version
		if e := params["escaping"]; kind == openMetricsType && isEscaping(e) {
			text += ";escaping=" + e
		}
		if q, err := strconv.ParseFloat(params["q"], 64); err == nil && q >= 0 && q < 1 {
			text += ";q=" + strconv.FormatFloat(q, 'f', -1, 64)
		}
		if !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	if len(out) == 0 {
		return textOnly
	}
	return strings.Join(out, ",")
}

// isEscaping reports whether a text is a scheme for names that older readers do not know.
func isEscaping(s string) bool {
	return slices.Contains([]string{"allow-utf-8", "underscores", "dots", "values"}, s)
}

// contentType returns the Content-Type of the whole for that of an application's page, and whether it is OpenMetrics. All other
// types are taken as text: many applications give none.
func contentType(app string) (whole string, openMetrics bool) {
	kind, params, err := mime.ParseMediaType(app)
	if err != nil || kind != openMetricsType {
		return textContentType, false
	}
	version := params["version"]
	if !slices.Contains(strings.Fields(openMetricsVersions), version) {
		version = "1.0.0"
	}
	whole = openMetricsType + "; version=" + version + "; charset=utf-8"
	if e := params["escaping"]; isEscaping(e) {
		whole += "; escaping=" + e
	}
	return whole, true
}

// acceptsGzip reports whether a client takes a response in gzip.
func acceptsGzip(values []string) bool {
	for part := range strings.SplitSeq(strings.Join(values, ","), ",") {
		name, q, _ := strings.Cut(part, ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") {
			weight, given := strings.CutPrefix(strings.TrimSpace(q), "q=")
			n, err := strconv.ParseFloat(weight, 64)
			return !given || err == nil && n > 0
		}
	}
	return false
}
