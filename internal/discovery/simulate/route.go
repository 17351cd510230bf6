package simulate

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	headermutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
)

// Target is a cluster that a request, or a connection, may be sent to.
type Target struct {
	Cluster string
	// Weight is 0 for the only one.
	Weight uint32
	// Request is what the cluster gets, rewritten; nil for a connection.
	Request *Request
}

// Route is where a listener for outgoing connections sends a connection, or a request on it.
type Route struct {
	// Chain is the name of the filter chain.
	Chain string
	// Routes, VirtualHost and Name are those of the route of a request, and Config the path of the object that a route or a chain was
	// made from, in its metadata; each is empty if there is none.
	Routes, VirtualHost, Name, Config string
	// Targets are the clusters. Without any the proxy answers itself: with Status, which is 404 where no route matches, or by
	// closing the connection, with 0.
	Targets []Target
	Status  uint32
	// Missing is the status where the cluster of a request does not exist.
	Missing uint32
	// Mirrors are the clusters that get a copy.
	Mirrors []string
	// Faults says what else may become of the request, by a fault that is injected into some.
	Faults []string
}

// Outbound returns where a listener of a client's proxy sends a connection, or the first request on it, which is nil for one that is
// not HTTP. routes returns the route configuration of a name, with its virtual hosts; nil if there is none. The error names a part
// that may decide and is not known here. What a request passes on the way, such as timeouts and retries, is not evaluated.
func Outbound(l *listenerv3.Listener, c Connection, r *Request, routes func(name string) (*routev3.RouteConfiguration, error)) (Route, error) {
	out, err := outbound(l, c, r, routes)
	if err != nil {
		return Route{}, fmt.Errorf("simulate listener %q: %w", l.GetName(), err)
	}
	return out, nil
}

func outbound(l *listenerv3.Listener, c Connection, r *Request, routes func(name string) (*routev3.RouteConfiguration, error)) (out Route, err error) {
	chain, err := filterChain(l, c)
	if err != nil || chain == nil {
		return out, err
	}
	out.Chain, out.Config = chain.GetName(), configOf(chain.GetMetadata())
	for _, f := range chain.GetFilters() {
		message, err := f.GetTypedConfig().UnmarshalNew()
		if err != nil {
			return out, fmt.Errorf("filter %q: %w", f.GetName(), err)
		}
		switch m := message.(type) {
		case *tcpproxyv3.TcpProxy:
			if one := m.GetCluster(); one != "" {
				out.Targets = []Target{{Cluster: one}}
			}
			for _, w := range m.GetWeightedClusters().GetClusters() {
				out.Targets = append(out.Targets, Target{Cluster: w.GetName(), Weight: w.GetWeight()})
			}
			return out, nil
		case *hcmv3.HttpConnectionManager:
			if r == nil {
				return out, unknown("a connection that is not HTTP at a filter chain for HTTP")
			}
			return out, out.manager(m, c, *r, routes)
		default:
			if name := message.ProtoReflect().Descriptor().FullName(); !passiveNetwork[name] {
				return out, unknown(fmt.Sprintf("filter %q (%s)", f.GetName(), name))
			}
		}
	}
	return out, unknown("a chain without a last filter")
}

// manager passes a request through a connection manager of a client.
func (out *Route) manager(m *hcmv3.HttpConnectionManager, c Connection, r Request, routes func(name string) (*routev3.RouteConfiguration, error)) error {
	if m.GetPathNormalizationOptions() != nil || m.GetTypedHeaderValidationConfig() != nil || m.GetScopedRoutes() != nil {
		return unknown("extensions of the connection manager")
	}
	path, ok := normalize(m, r.Path)
	if !ok {
		out.Status = 400
		return nil
	}
	r.Path, r.Authority = path, withoutPort(m, r.Authority, c.Destination.Port())
	r.Headers = maps.Clone(r.Headers)
	for _, f := range m.GetHttpFilters() {
		if f.GetDisabled() {
			continue
		}
		message, err := f.GetTypedConfig().UnmarshalNew()
		if err != nil {
			return fmt.Errorf("filter %q: %w", f.GetName(), err)
		}
		if mutation, is := message.(*headermutationv3.HeaderMutation); is && removes(r.Headers, mutation) {
			continue
		}
		if name := message.ProtoReflect().Descriptor().FullName(); !passiveHTTP[name] {
			return unknown(fmt.Sprintf("filter %q (%s)", f.GetName(), name))
		}
	}
	config := m.GetRouteConfig()
	if name := m.GetRds().GetRouteConfigName(); config == nil {
		var err error
		if config, err = routes(name); err != nil {
			return err
		}
		out.Routes = name
	}
	return out.find(config, c, r)
}

// find chooses the route of a request.
func (out *Route) find(config *routev3.RouteConfiguration, c Connection, r Request) error {
	host := hostOf(config, r.Authority)
	if host == nil {
		out.Status = 404
		return nil
	}
	out.VirtualHost = host.GetName()
	if host.GetMatcher() != nil || host.GetRequireTls() != 0 {
		return unknown("matcher of virtual host " + host.GetName())
	}
	s := subject{connection: c, request: &r, written: r.Unknown}
	for _, one := range host.GetRoutes() {
		ok, err := s.routed(one.GetMatch())
		if err != nil {
			return fmt.Errorf("virtual host %q: route %q: %w", host.GetName(), one.GetName(), err)
		}
		if !ok {
			continue
		}
		out.Name, out.Config = one.GetName(), configOf(one.GetMetadata())
		if err := out.act(one, r, []changes{host, config}); err != nil {
			return fmt.Errorf("virtual host %q: route %q: %w", host.GetName(), one.GetName(), err)
		}
		return nil
	}
	out.Status = 404
	return nil
}

// hostOf chooses the virtual host of an authority: by its exact name, then the longest pattern with a wildcard in front, then the longest
// with one behind, then "*"; nil if there is none
// (https://www.envoyproxy.io/docs/envoy/latest/api-v3/config/route/v3/route_components.proto, VirtualHost.domains).
func hostOf(config *routev3.RouteConfiguration, authority string) *routev3.VirtualHost {
	name := strings.ToLower(authority)
	if i := strings.LastIndexByte(name, ':'); config.GetIgnorePortInHostMatching() && i > strings.LastIndexByte(name, ']') {
		name = name[:i]
	}
	var best *routev3.VirtualHost
	rank := 0
	for _, h := range config.GetVirtualHosts() {
		for _, d := range h.GetDomains() {
			d = strings.ToLower(d)
			of := 0
			switch suffix, inFront := strings.CutPrefix(d, "*"); {
			case d == "*":
				of = 1
			case d == name:
				of = 3 << 20
			case inFront && len(name) > len(suffix) && strings.HasSuffix(name, suffix):
				of = 2<<20 + len(d)
			case strings.HasSuffix(d, "*") && len(name) >= len(d) && strings.HasPrefix(name, d[:len(d)-1]):
				of = 1<<20 + len(d)
			}
			if of > rank {
				best, rank = h, of
			}
		}
	}
	return best
}

// routed evaluates the match of a route.
func (s subject) routed(m *routev3.RouteMatch) (bool, error) {
	if m.GetRuntimeFraction() != nil || m.GetGrpc() != nil || m.GetTlsContext() != nil || len(m.GetDynamicMetadata()) > 0 || len(m.GetFilterState()) > 0 || len(m.GetCookies()) > 0 {
		return false, unknown("a condition that is not about path, headers and query")
	}
	path, query, _ := strings.Cut(s.request.Path, "?")
	fold := func(text string) string {
		if c := m.GetCaseSensitive(); c != nil && !c.GetValue() {
			return strings.ToLower(text)
		}
		return text
	}
	ok := false
	switch p := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		ok = strings.HasPrefix(fold(path), fold(p.Prefix))
	case *routev3.RouteMatch_Path:
		ok = fold(path) == fold(p.Path)
	case *routev3.RouteMatch_PathSeparatedPrefix:
		ok = fold(path) == fold(p.PathSeparatedPrefix) || strings.HasPrefix(fold(path), fold(p.PathSeparatedPrefix)+"/")
	case *routev3.RouteMatch_SafeRegex:
		re, err := whole(p.SafeRegex)
		if err != nil {
			return false, err
		}
		ok = re.MatchString(path)
	default:
		return false, unknown(fmt.Sprintf("match of a path, %T", p))
	}
	if !ok {
		return false, nil
	}
	for _, h := range m.GetHeaders() {
		if ok, err := s.header(h); err != nil || !ok {
			return false, err
		}
	}
	for _, q := range m.GetQueryParameters() {
		if ok, err := parameter(q, query); err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

func whole(m *matcherv3.RegexMatcher) (*regexp.Regexp, error) {
	re, err := regexp.Compile("^(?:" + m.GetRegex() + ")$") // the whole text; RE2, as in Envoy
	if err != nil {
		return nil, fmt.Errorf("regular expression %q: %w", m.GetRegex(), err)
	}
	return re, nil
}

// parameter evaluates a matcher of a query parameter, of which the first value counts, as it is written, with its escapes.
func parameter(m *routev3.QueryParameterMatcher, query string) (bool, error) {
	value, present := "", false
	for pair := range strings.SplitSeq(query, "&") {
		name, v, _ := strings.Cut(pair, "=")
		if name == m.GetName() && !present {
			value, present = v, true
		}
	}
	switch p := m.GetQueryParameterMatchSpecifier().(type) {
	case nil:
		return present, nil
	case *routev3.QueryParameterMatcher_PresentMatch:
		return present == p.PresentMatch, nil
	case *routev3.QueryParameterMatcher_StringMatch:
		if !present {
			return false, nil
		}
		return text(p.StringMatch, value)
	}
	return false, unknown("matcher of query parameter " + m.GetName())
}

// changes is what changes the headers of requests: a route, a virtual host, a route configuration, a target.
type changes interface {
	GetRequestHeadersToAdd() []*corev3.HeaderValueOption
	GetRequestHeadersToRemove() []string
}

// act applies a route to a request.
func (out *Route) act(route *routev3.Route, r Request, outer []changes) error {
	if done, err := out.filters(route, r); done || err != nil {
		return err
	}
	switch a := route.GetAction().(type) {
	case *routev3.Route_DirectResponse:
		out.Status = a.DirectResponse.GetStatus()
		return nil
	case *routev3.Route_Redirect:
		out.Status = redirects[a.Redirect.GetResponseCode()]
		return nil
	case *routev3.Route_Route:
		out.Missing = 503
		if a.Route.GetClusterNotFoundResponseCode() == routev3.RouteAction_INTERNAL_SERVER_ERROR {
			out.Missing = 500
		} else if a.Route.GetClusterNotFoundResponseCode() == routev3.RouteAction_NOT_FOUND {
			out.Missing = 404
		}
		for _, p := range a.Route.GetRequestMirrorPolicies() {
			out.Mirrors = append(out.Mirrors, p.GetCluster())
		}
		forwarded, err := rewritten(route.GetMatch(), a.Route, r)
		if err != nil {
			return err
		}
		all := append([]changes{route}, outer...)
		switch to := a.Route.GetClusterSpecifier().(type) {
		case *routev3.RouteAction_Cluster:
			out.Targets = []Target{{Cluster: to.Cluster, Request: changed(forwarded, all)}}
			return nil
		case *routev3.RouteAction_WeightedClusters:
			for _, w := range to.WeightedClusters.GetClusters() {
				one := forwarded
				if w.GetHostRewriteLiteral() != "" {
					one.Authority = w.GetHostRewriteLiteral()
				}
				if w.GetWeight().GetValue() > 0 {
					out.Targets = append(out.Targets, Target{Cluster: w.GetName(), Weight: w.GetWeight().GetValue(), Request: changed(one, append([]changes{w}, all...))})
				}
			}
			return nil
		}
		return unknown(fmt.Sprintf("choice of the cluster, %T", a.Route.GetClusterSpecifier()))
	}
	return unknown(fmt.Sprintf("action, %T", route.GetAction()))
}

var redirects = map[routev3.RedirectAction_RedirectResponseCode]uint32{
	routev3.RedirectAction_MOVED_PERMANENTLY: 301, routev3.RedirectAction_FOUND: 302, routev3.RedirectAction_SEE_OTHER: 303,
	routev3.RedirectAction_TEMPORARY_REDIRECT: 307, routev3.RedirectAction_PERMANENT_REDIRECT: 308,
}

// filters applies what HTTP filters do by route; done is set if one answers.
func (out *Route) filters(route *routev3.Route, r Request) (done bool, err error) {
	for _, name := range slices.Sorted(maps.Keys(route.GetTypedPerFilterConfig())) {
		message, err := route.GetTypedPerFilterConfig()[name].UnmarshalNew()
		if err != nil {
			return false, fmt.Errorf("filter %q: %w", name, err)
		}
		switch c := message.(type) {
		case *routev3.FilterConfig:
			if !c.GetDisabled() {
				return false, unknown("filter " + name + " of the route")
			}
		case *corsv3.CorsPolicy:
			if r.Method == "OPTIONS" && len(r.Headers["origin"]) > 0 {
				return false, unknown("preflight requests of CORS")
			}
		case *faultv3.HTTPFault:
			if len(c.GetHeaders()) > 0 || c.GetUpstreamCluster() != "" {
				return false, unknown("conditions of a fault")
			}
			if c.GetDelay() != nil {
				out.Faults = append(out.Faults, fmt.Sprintf("%s of requests are delayed", percent(c.GetDelay().GetPercentage())))
			}
			a := c.GetAbort()
			switch status := a.GetHttpStatus(); {
			case a == nil:
			case a.GetHttpStatus() != 0 && percent(a.GetPercentage()) == "100 %":
				out.Status = status
				return true, nil
			case a.GetHttpStatus() != 0:
				out.Faults = append(out.Faults, fmt.Sprintf("%s of requests are aborted with %d", percent(a.GetPercentage()), status))
			default:
				out.Faults = append(out.Faults, fmt.Sprintf("%s of requests are aborted with a status of gRPC", percent(a.GetPercentage())))
			}
		default:
			return false, unknown(fmt.Sprintf("filter %q of the route (%s)", name, message.ProtoReflect().Descriptor().FullName()))
		}
	}
	return false, nil
}

func percent(p *typev3.FractionalPercent) string {
	of := map[typev3.FractionalPercent_DenominatorType]float64{typev3.FractionalPercent_HUNDRED: 1, typev3.FractionalPercent_TEN_THOUSAND: 100, typev3.FractionalPercent_MILLION: 10_000}
	return fmt.Sprintf("%g %%", float64(p.GetNumerator())/of[p.GetDenominator()])
}

// rewritten applies the rewrites of path and host.
func rewritten(m *routev3.RouteMatch, a *routev3.RouteAction, r Request) (Request, error) {
	if a.GetPathRewritePolicy() != nil || a.GetPathRewrite() != "" {
		return r, unknown("a rewrite of the path")
	}
	switch h := a.GetHostRewriteSpecifier().(type) {
	case nil:
	case *routev3.RouteAction_HostRewriteLiteral:
		r.Authority = h.HostRewriteLiteral
	default:
		return r, unknown(fmt.Sprintf("a rewrite of the host, %T", h))
	}
	path, query, hasQuery := strings.Cut(r.Path, "?")
	if to := a.GetPrefixRewrite(); to != "" {
		matched := len(path) // all of it, but for prefixes
		switch p := m.GetPathSpecifier().(type) {
		case *routev3.RouteMatch_Prefix:
			matched = len(p.Prefix)
		case *routev3.RouteMatch_PathSeparatedPrefix:
			matched = len(p.PathSeparatedPrefix)
		}
		path = to + path[matched:]
	}
	if re := a.GetRegexRewrite(); re != nil {
		compiled, err := regexp.Compile(re.GetPattern().GetRegex())
		if err != nil {
			return r, fmt.Errorf("regular expression %q: %w", re.GetPattern().GetRegex(), err)
		}
		path = compiled.ReplaceAllString(path, substitution(re.GetSubstitution()))
	}
	if r.Path = path; hasQuery {
		r.Path += "?" + query
	}
	return r, nil
}

// substitution translates one of RE2, with \1, and \\ for a backslash, to Go's.
func substitution(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '$':
			b.WriteString("$$")
		case s[i] == '\\' && i+1 < len(s):
			if i++; s[i] == '\\' {
				b.WriteByte(s[i])
			} else {
				b.WriteString("${" + s[i:i+1] + "}")
			}
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

// changed applies changes of headers, the innermost first. Values that have a variable are not known.
func changed(r Request, all []changes) *Request {
	r.Headers, r.Unknown = maps.Clone(r.Headers), maps.Clone(r.Unknown)
	if r.Headers == nil {
		r.Headers = map[string][]string{}
	}
	if r.Unknown == nil {
		r.Unknown = map[string]bool{}
	}
	for _, c := range all {
		for _, name := range c.GetRequestHeadersToRemove() {
			delete(r.Headers, strings.ToLower(name))
			delete(r.Unknown, strings.ToLower(name))
		}
		for _, o := range c.GetRequestHeadersToAdd() {
			name, value := strings.ToLower(o.GetHeader().GetKey()), strings.ReplaceAll(o.GetHeader().GetValue(), "%%", "\x00")
			have := len(r.Headers[name]) > 0 || r.Unknown[name]
			switch o.GetAppendAction() {
			case corev3.HeaderValueOption_ADD_IF_ABSENT:
				if have {
					continue
				}
			case corev3.HeaderValueOption_OVERWRITE_IF_EXISTS:
				if !have {
					continue
				}
				fallthrough
			case corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD:
				delete(r.Headers, name)
				delete(r.Unknown, name)
			case corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD:
			}
			switch {
			case strings.Contains(value, "%"):
				r.Unknown[name] = true
			case value != "" || o.GetKeepEmptyValue():
				r.Headers[name] = append(slices.Clone(r.Headers[name]), strings.ReplaceAll(value, "\x00", "%"))
			}
		}
	}
	return &r
}

// configOf is the path of the object that is in metadata; empty if there is none.
func configOf(m *corev3.Metadata) string {
	return m.GetFilterMetadata()["istio"].GetFields()["config"].GetStringValue()
}

// Destined reports which of a client's listeners takes a connection to an address: the first of these names that it has.
func Destined(to netip.AddrPort) []string {
	port := fmt.Sprintf("_%d", to.Port())
	return []string{to.Addr().String() + port, "0.0.0.0" + port, "::" + port}
}
