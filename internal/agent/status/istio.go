package status

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

const (
	// envoyPrefix is what Envoy puts before the names of all metrics, also of Istio's.
	envoyPrefix = "envoy_"
	istioPrefix = envoyPrefix + "istio_"
	// maxSeries is how many series of Istio's metrics are remembered, so that none is on a page twice.
	maxSeries = 1 << 17
)

// label is a label of a metric, with its value as it is on a page: escaped.
type label struct{ name, value string }

// istioMetrics gives Istio's metrics on Envoy's page their names and labels: the prefix of Envoy is removed, the labels in which
// Envoy has several facts at once are split (mesh.SourceTag and the others), and those that a Telemetry removes are left out.
type istioMetrics struct {
	seed   maphash.Seed
	seen   map[uint64]struct{}
	labels []label
	out    bytes.Buffer
	// sums are the series of the current family that have labels left out, in the order of the page, by their place in it.
	sums  []series
	place map[string]int
	// summed is the number of series that were added, on the whole page.
	summed int
}

// series is a sample with its name and labels.
type series struct {
	text  string
	value float64
}

// name returns the name of a family, without Envoy's prefix if it is one of Istio's.
func (*istioMetrics) name(n string) string {
	if strings.HasPrefix(n, istioPrefix) {
		return n[len(envoyPrefix):]
	}
	return n
}

// line returns a line with a sample as it is on the page; nil for one that the page has already, since what peers say of themselves may
// have made two of Envoy's series one, and for one that is added to others, which sum returns. The result is valid until the next call.
func (m *istioMetrics) line(line []byte) []byte {
	if !bytes.HasPrefix(line, []byte(istioPrefix)) {
		return line
	}
	line = line[len(envoyPrefix):]
	name, rest, ok := strings.Cut(string(line), "{")
	if !ok {
		return line
	}
	labels, value, ok := cutLabels(rest, m.labels[:0])
	if !ok {
		return line
	}
	m.labels = labels
	m.out.Reset()
	m.out.WriteString(name)
	m.out.WriteByte('{')
	metric := strings.TrimPrefix(name, "istio_")
	labels, each, ofMessages := messages(metric, labels)
	if each < 0 {
		return nil
	}
	list, summed := istioLabels(metric, labels)
	for i, l := range list {
		if i > 0 {
			m.out.WriteByte(',')
		}
		m.out.WriteString(l.name)
		m.out.WriteString(`="`)
		m.out.WriteString(l.value)
		m.out.WriteByte('"')
	}
	m.out.WriteByte('}')
	if v, err := strconv.ParseFloat(strings.TrimSpace(value), 64); (summed || ofMessages) && err == nil {
		m.add(v * each)
		return nil
	}
	if !m.isNew(m.out.Bytes()) {
		return nil
	}
	m.out.WriteString(value)
	return m.out.Bytes()
}

// isNew reports whether the page has not yet had a series.
func (m *istioMetrics) isNew(text []byte) bool {
	key := maphash.Bytes(m.seed, text)
	if _, twice := m.seen[key]; twice {
		return false
	}
	if len(m.seen) < maxSeries {
		m.seen[key] = struct{}{}
	}
	return true
}

// add adds a value to the series in m.out. Those beyond maxSeries are left out.
func (m *istioMetrics) add(value float64) {
	if i, ok := m.place[string(m.out.Bytes())]; ok {
		m.sums[i].value += value
		return
	}
	if m.summed >= maxSeries {
		return
	}
	m.summed++
	text := m.out.String()
	m.place[text] = len(m.sums)
	m.sums = append(m.sums, series{text, value})
}

// sum returns the lines of the series that were added, when their family has ended.
func (m *istioMetrics) sum() []byte {
	m.out.Reset()
	for _, s := range m.sums {
		if m.isNew([]byte(s.text)) {
			fmt.Fprintf(&m.out, "%s %s\n", s.text, strconv.FormatFloat(s.value, 'f', -1, 64))
		}
	}
	m.sums = m.sums[:0]
	clear(m.place)
	return m.out.Bytes()
}

// cutLabels appends the labels of a sample, which begin after the brace, and returns what follows them.
func cutLabels(s string, labels []label) (out []label, rest string, ok bool) {
	for {
		if strings.HasPrefix(s, "}") {
			return labels, s[1:], true
		}
		name, after, found := strings.Cut(s, `="`)
		if !found {
			return nil, "", false
		}
		end := 0
		for end < len(after) && after[end] != '"' {
			if after[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(after) {
			return nil, "", false
		}
		labels = append(labels, label{strings.TrimPrefix(name, ","), after[:end]})
		s = after[end+1:]
		if !strings.HasPrefix(s, ",") && !strings.HasPrefix(s, "}") {
			return nil, "", false
		}
	}
}

// messages returns how many messages each request of a series has, for the two metrics of messages, and the labels without the tag that
// says so; a request without any has -1. For other metrics ok is false.
func messages(metric string, labels []label) (rest []label, each float64, ok bool) {
	i := slices.IndexFunc(labels, func(l label) bool { return l.name == mesh.MessagesTag })
	if metric != mesh.RequestMessages && metric != mesh.ResponseMessages || i < 0 {
		return labels, 1, false
	}
	number, response, _ := strings.Cut(labels[i].value, ",")
	if metric == mesh.ResponseMessages {
		number = response
	}
	rest = slices.Delete(labels, i, i+1)
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return rest, -1, true
	}
	return rest, float64(n), true
}

// istioLabels returns the labels of one of Istio's metrics: those that Envoy has joined first, then the others in their order. A
// fact that is not known is "unknown", and a revision "latest". summed is set if labels are left out, so that several series may be one.
func istioLabels(metric string, labels []label) (out []label, summed bool) {
	joined := map[string]string{}
	var others []label
	var removed []string
	for _, l := range labels {
		if name, ok := strings.CutPrefix(l.name, mesh.AddedTagPrefix); ok {
			// It may be what a client has sent, in any encoding.
			others = append(others, label{name, orUnknown("", strings.ToValidUTF8(l.value, "\uFFFD"))})
			continue
		}
		switch l.name {
		case mesh.RemovedTag:
			removed = strings.Split(l.value, ",")
		case mesh.ReporterTag, mesh.SourceTag, mesh.DestinationTag, mesh.ServiceTag, mesh.SourcePrincipalTag, mesh.DestinationPrincipalTag:
			joined[l.name] = l.value
		default:
			others = append(others, l)
		}
	}
	reporter := joined[mesh.ReporterTag]
	if reporter == "" {
		return labels, false // not of the metrics of requests and connections
	}
	out = []label{{mesh.ReporterTag, reporter}}
	for _, side := range []string{mesh.SourceTag, mesh.DestinationTag} {
		principal := joined[side+"_principal"]
		fields := strings.Split(joined[side], ";")
		for i, name := range mesh.WorkloadFields {
			value := ""
			if i < len(fields) {
				value = fields[i]
			}
			if name == "workload_namespace" {
				if ns := namespaceOf(principal); ns != "" {
					value = ns // what a certificate says is true, whatever the peer says
				}
			}
			out = append(out, label{side + "_" + name, orUnknown(name, value)})
		}
		out = append(out, label{side + "_principal", orUnknown("", principal)})
	}
	host, namespace, _ := strings.Cut(joined[mesh.ServiceTag], ";")
	short := host
	if namespace == "" {
		host = "" // a cluster that is of no service, whose name stands for that of the service
	} else if first, rest, _ := strings.Cut(host, "."); strings.HasPrefix(rest, namespace+".svc.") {
		short = first
	}
	out = append(out, label{"destination_service", orUnknown("", host)}, label{"destination_service_name", orUnknown("", short)},
		label{"destination_service_namespace", orUnknown("", namespace)})
	if strings.HasPrefix(metric, "tcp_") {
		out = append(out, label{mesh.RequestProtocol, "tcp"})
	}
	out = append(out, label{"connection_security_policy", securityPolicy(reporter, joined)})
	out = slices.DeleteFunc(out, func(l label) bool { return slices.Contains(removed, l.name) })
	return append(out, others...), len(removed) > 0
}

func orUnknown(field, value string) string {
	switch {
	case value != "":
		return value
	case field == "canonical_revision":
		return "latest"
	}
	return "unknown"
}

// namespaceOf returns the namespace in a principal, spiffe://DOMAIN/ns/NAMESPACE/sa/ACCOUNT; empty if it has none.
func namespaceOf(principal string) string {
	_, rest, ok := strings.Cut(principal, "/ns/")
	ns, _, end := strings.Cut(rest, "/")
	if !ok || !end {
		return ""
	}
	return ns
}

// securityPolicy is the label connection_security_policy: only a server knows it.
func securityPolicy(reporter string, joined map[string]string) string {
	switch {
	case reporter == "source":
		return "unknown"
	case joined[mesh.SourcePrincipalTag] != "" && joined[mesh.DestinationPrincipalTag] != "":
		return "mutual_tls"
	}
	return "none"
}
