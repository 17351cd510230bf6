package simulate

import (
	"fmt"
	"maps"
	"net/netip"
	"strconv"
	"strings"
	"time"

	httpextv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	headermutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	headertometadatav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_to_metadata/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// passiveHTTP are the HTTP filters that refuse no request by themselves. What they do by route is not about access.
var passiveHTTP = map[protoreflect.FullName]bool{
	"envoy.extensions.filters.http.grpc_stats.v3.FilterConfig":          true,
	"envoy.extensions.filters.http.set_filter_state.v3.Config":          true,
	"envoy.extensions.filters.http.fault.v3.HTTPFault":                  true,
	"envoy.extensions.filters.http.cors.v3.Cors":                        true,
	"envoy.extensions.filters.http.grpc_web.v3.GrpcWeb":                 true,
	"io.istio.http.peer_metadata.Config":                                true,
	"envoy.extensions.filters.http.router.v3.Router":                    true,
	"envoy.extensions.filters.http.stateful_session.v3.StatefulSession": true,
}

const router protoreflect.FullName = "envoy.extensions.filters.http.router.v3.Router"

// removes removes the header of peers if the filter does that and nothing else; else false.
func removes(headers map[string][]string, c *headermutationv3.HeaderMutation) bool {
	list := c.GetMutations().GetRequestMutations()
	if len(list) != 1 || list[0].GetRemove() != mesh.PeerHeader {
		return false
	}
	delete(headers, mesh.PeerHeader)
	return true
}

// takes removes the header of peers if the filter takes it and nothing else, for metadata that no policy reads; else false.
func takes(headers map[string][]string, c *headertometadatav3.Config) bool {
	list := c.GetRequestRules()
	if len(list) != 1 || len(c.GetResponseRules()) > 0 || list[0].GetHeader() != mesh.PeerHeader || !list[0].GetRemove() {
		return false
	}
	delete(headers, mesh.PeerHeader)
	return true
}

// request passes a request through the filters of a connection manager.
func (v *Verdict) request(m *hcmv3.HttpConnectionManager, s subject, r Request, now time.Time) error {
	if len(m.GetOriginalIpDetectionExtensions()) > 0 || m.GetPathNormalizationOptions() != nil || m.GetTypedHeaderValidationConfig() != nil {
		return unknown("extensions of the connection manager")
	}
	path, ok := normalize(m, r.Path)
	if !ok {
		v.Status, v.By = 400, "path normalization"
		return nil
	}
	r.Path, v.Path = path, path
	r.Authority = withoutPort(m, r.Authority, s.connection.Destination.Port())
	s.request, s.remote = &r, remote(m, s.connection.Source.Addr().Unmap(), r.Headers["x-forwarded-for"])
	headers := map[string][]string{} // a copy: filters change them
	for name, values := range r.Headers {
		for _, value := range values {
			headers[name] = append(headers[name], strings.Trim(value, " \t")) // RFC 9110 section 5.5
		}
	}
	r.Headers = headers
	s.written = map[string]bool{}
	maps.Copy(s.written, r.Unknown)
	if err := s.present(m); err != nil {
		return err
	}
	for _, f := range m.GetHttpFilters() {
		if f.GetDisabled() {
			continue
		}
		if f.GetConfigDiscovery() != nil {
			return unknown(fmt.Sprintf("the extension %q", f.GetName()))
		}
		message, err := f.GetTypedConfig().UnmarshalNew()
		if err != nil {
			return fmt.Errorf("filter %q: %w", f.GetName(), err)
		}
		switch c := message.(type) {
		case *headermutationv3.HeaderMutation:
			if !removes(headers, c) {
				return unknown("mutations of filter " + f.GetName())
			}
		case *headertometadatav3.Config:
			if !takes(headers, c) {
				return unknown("rules of filter " + f.GetName())
			}
		case *httprbacv3.RBAC:
			if c.GetMatcher() != nil || c.GetShadowMatcher() != nil {
				return unknown("matchers of filter " + f.GetName())
			}
			ok, err := v.authorize(s, httpRBAC, c.GetRules(), c.GetShadowRules(), c.GetShadowRulesStatPrefix())
			if err != nil {
				return fmt.Errorf("filter %q: %w", f.GetName(), err)
			}
			if !ok {
				v.Status = 403
				return nil
			}
		case *httpextv3.ExtAuthz:
			if c.GetFilterEnabled() != nil || c.GetDenyAtDisable() != nil {
				return unknown("conditions of filter " + f.GetName())
			}
			if err := v.ask(s, f.GetName(), c.GetFilterEnabledMetadata()); err != nil {
				return fmt.Errorf("filter %q: %w", f.GetName(), err)
			}
		case *jwtv3.JwtAuthentication:
			status, err := authenticate(c, s, f.GetName(), now)
			if err != nil {
				return fmt.Errorf("filter %q: %w", f.GetName(), err)
			}
			if status != 0 {
				v.Status, v.By = status, f.GetName()
				return nil
			}
		default:
			name := message.ProtoReflect().Descriptor().FullName()
			if !passiveHTTP[name] {
				return unknown(fmt.Sprintf("filter %q (%s)", f.GetName(), name))
			}
			if name == router {
				v.Allowed = true
				return nil
			}
		}
	}
	return unknown("a connection manager without a router")
}

// remote returns the client's address that filters see (https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_conn_man/headers#x-forwarded-for).
func remote(m *hcmv3.HttpConnectionManager, peer netip.Addr, forwarded []string) netip.Addr {
	hops := int(m.GetXffNumTrustedHops())
	if m.GetUseRemoteAddress().GetValue() {
		if hops == 0 {
			return peer
		}
		hops--
	}
	all := strings.Split(strings.Join(forwarded, ","), ",")
	if hops >= len(all) {
		return peer
	}
	a, err := netip.ParseAddr(strings.TrimSpace(all[len(all)-1-hops]))
	if err != nil {
		return peer
	}
	return a.Unmap()
}

// withoutPort removes the port of a host where the connection manager does.
func withoutPort(m *hcmv3.HttpConnectionManager, host string, port uint16) string {
	i := strings.LastIndexByte(host, ':')
	if i < 0 || i < strings.LastIndexByte(host, ']') || strings.Count(host, ":") > 1 && !strings.HasPrefix(host, "[") {
		return host
	}
	n, err := strconv.ParseUint(host[i+1:], 10, 16)
	if err == nil && (m.GetStripAnyHostPort() || m.GetStripMatchingHostPort() && uint16(n) == port) {
		return host[:i]
	}
	return host
}

// normalize returns the path that filters and routes see; false if the request is refused
// (https://www.envoyproxy.io/docs/envoy/latest/api-v3/extensions/filters/network/http_connection_manager/v3/http_connection_manager.proto,
// normalize_path, merge_slashes and path_with_escaped_slashes_action).
func normalize(m *hcmv3.HttpConnectionManager, full string) (string, bool) {
	if strings.ContainsRune(full, '#') || !strings.HasPrefix(full, "/") {
		return "", false // Envoy refuses a fragment by default
	}
	path, query, hasQuery := strings.Cut(full, "?")
	switch m.GetPathWithEscapedSlashesAction() {
	case hcmv3.HttpConnectionManager_KEEP_UNCHANGED, hcmv3.HttpConnectionManager_IMPLEMENTATION_SPECIFIC_DEFAULT:
	case hcmv3.HttpConnectionManager_UNESCAPE_AND_FORWARD:
		path = escapedSlashes.Replace(path)
	case hcmv3.HttpConnectionManager_REJECT_REQUEST, hcmv3.HttpConnectionManager_UNESCAPE_AND_REDIRECT:
		if escapedSlashes.Replace(path) != path {
			return "", false
		}
	}
	if m.GetNormalizePath().GetValue() {
		path = canonical(path)
	}
	if m.GetMergeSlashes() {
		path = merged(path)
	}
	if hasQuery {
		path += "?" + query
	}
	return path, true
}

// merged merges slashes. A path of nothing else becomes two of them, one for its start and one for its end.
func merged(path string) string {
	if !strings.Contains(path, "//") {
		return path
	}
	out := "/" + strings.Join(strings.FieldsFunc(path, func(r rune) bool { return r == '/' }), "/")
	if strings.HasSuffix(path, "/") {
		out += "/"
	}
	return out
}

var escapedSlashes = strings.NewReplacer("%2f", "/", "%2F", "/", "%5c", "\\", "%5C", "\\")

// canonical decodes what needs no escape, and removes the segments "." and "..", as browsers do with URLs; "\" is "/". Slashes are not
// merged.
func canonical(path string) string {
	var out []string
	path = decode(strings.ReplaceAll(path, `\`, "/"))
	segments := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for i, s := range segments {
		last := i == len(segments)-1
		switch s {
		case ".", "..":
			if s == ".." && len(out) > 0 {
				out = out[:len(out)-1]
			}
			if last {
				out = append(out, "")
			}
		default:
			out = append(out, s)
		}
	}
	return "/" + strings.Join(out, "/")
}

// decode decodes the escapes of characters that are not reserved (RFC 3986 section 2.3), and leaves all others.
func decode(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil && unreserved(byte(n)) {
				b.WriteByte(byte(n))
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0
}
