package route

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// statusInvalid is the response of a route of the Gateway API that has no valid backend, or a filter that is not supported.
const statusInvalid = 500

// KubernetesRule is an HTTPRoute or a GRPCRoute.
type KubernetesRule struct {
	Namespace, Name string
	HTTP            *gatewayv1.HTTPRouteSpec
	GRPC            *gatewayv1.GRPCRouteSpec
}

// KubernetesInput has everything that determines the routes of one host.
type KubernetesInput struct {
	// Rules are those of the host, the oldest first.
	Rules []KubernetesRule
	// Port is the one that clients use; TLS is set if they use TLS.
	Port uint32
	TLS  bool
	// Sessions is set if the listener has SessionFilter for rules with session persistence.
	Sessions bool
	// Backend resolves what a rule refers to. Without a cluster, requests get 500.
	Backend func(rule KubernetesRule, ref gatewayv1.BackendObjectReference) Destination
	Mesh    *meshv1.MeshConfig
	Caps    mesh.Capability
}

// rank orders matches: what the specification of the Gateway API calls more specific comes first.
type rank struct {
	path, length, method, headers, queries int
}

func (a rank) compare(b rank) int {
	return cmp.Or(b.path-a.path, b.length-a.length, b.method-a.method, b.headers-a.headers, b.queries-a.queries)
}

// Kinds of paths, the less specific first: a regular expression comes after prefixes, but for "/".
const (
	pathAny = iota
	pathRegex
	pathPrefix
	pathExact
)

// BuildKubernetes returns the routes of all rules, in the order in which the specification of the Gateway API says that
// matches have precedence, whatever their rules. [control-plane 1.11.7]
func BuildKubernetes(in KubernetesInput) []*routev3.Route {
	type ranked struct {
		rank
		route *routev3.Route
	}
	var all []ranked
	add := func(rule KubernetesRule, i int, k rank, m *routev3.RouteMatch, body gatewayv1.HTTPRouteRule, grpc bool) {
		if r := in.route(rule, i, m, body, grpc); r != nil {
			all = append(all, ranked{k, r})
		}
	}
	for _, rule := range in.Rules {
		for i, one := range httpRules(rule) {
			matches := one.Matches
			if len(matches) == 0 {
				matches = []gatewayv1.HTTPRouteMatch{{}}
			}
			for _, m := range matches {
				if match, k, ok := httpMatch(m); ok {
					add(rule, i, k, match, one, false)
				}
			}
		}
		for i, one := range grpcRules(rule) {
			matches := one.Matches
			if len(matches) == 0 {
				matches = []gatewayv1.GRPCRouteMatch{{}}
			}
			for _, m := range matches {
				if match, k, ok := grpcMatch(m); ok {
					add(rule, i, k, match, grpcBody(one), true)
				}
			}
		}
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return a.compare(b.rank) })
	out := make([]*routev3.Route, len(all))
	for i, r := range all {
		out[i] = r.route
	}
	return out
}

func httpRules(r KubernetesRule) []gatewayv1.HTTPRouteRule {
	if r.HTTP == nil {
		return nil
	}
	return r.HTTP.Rules
}

func grpcRules(r KubernetesRule) []gatewayv1.GRPCRouteRule {
	if r.GRPC == nil {
		return nil
	}
	return r.GRPC.Rules
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// route translates one match of a rule.
func (in KubernetesInput) route(rule KubernetesRule, i int, m *routev3.RouteMatch, body gatewayv1.HTTPRouteRule, grpc bool) *routev3.Route {
	kind := "httproutes"
	if grpc {
		kind = "grpcroutes"
	}
	x := Route{
		Name:   rule.Namespace + "." + rule.Name + "." + strconv.Itoa(i),
		Config: "/apis/gateway.networking.k8s.io/v1/namespaces/" + rule.Namespace + "/" + kind + "/" + rule.Name,
		Rule:   rule.Name + "." + rule.Namespace, Port: in.Port, Match: m, Invalid: statusInvalid,
	}
	f := &Forward{Rewrite: &routev3.RouteAction{
		ClusterNotFoundResponseCode: routev3.RouteAction_INTERNAL_SERVER_ERROR,
	}}
	if in.filters(&x, f, rule, body.Filters) && x.Redirect == nil {
		in.times(f, body)
		if s := body.SessionPersistence; s != nil && in.Sessions {
			x.setFilter(SessionFilter, session(rule, grpc, i, s))
		}
		for _, b := range body.BackendRefs {
			f.To = append(f.To, in.target(rule, b))
		}
		if f.Single = len(f.To) == 1; !f.Single || f.To[0].Weight > 0 {
			x.Forward = f
		}
	}
	return x.envoy(in.Caps)
}

// times sets timeouts and retries.
func (in KubernetesInput) times(f *Forward, body gatewayv1.HTTPRouteRule) {
	f.Retry = in.Mesh.GetDefaultHttpRetryPolicy()
	if r := body.Retry; r != nil {
		f.Retry = &networking.HTTPRetry{Attempts: defaultAttempts, Backoff: duration(r.Backoff)}
		if r.Attempts != nil {
			f.Retry.Attempts = int32(min(max(*r.Attempts, 0), 1<<16))
		}
		// reset is for connections that break and for backends that do not answer in time: what the field is for besides the codes.
		f.Retry.RetryOn = "connect-failure,refused-stream,reset,unavailable,cancelled"
		if len(r.Codes) == 0 {
			f.Retry.RetryOn += ",503"
		} else {
			for _, c := range r.Codes {
				f.Retry.RetryOn += "," + strconv.Itoa(int(c))
			}
		}
	}
	if t := body.Timeouts; t != nil {
		f.Timeout = duration(t.Request)
		if each := duration(t.BackendRequest); each.AsDuration() > 0 {
			if f.Retry != nil && f.Retry.Attempts <= 0 {
				if d := f.Timeout.AsDuration(); d == 0 || each.AsDuration() < d { // without retries there is one request to a backend
					f.Timeout = each
				}
				return
			}
			retry := &networking.HTTPRetry{Attempts: defaultAttempts}
			if f.Retry != nil {
				retry = f.Retry.DeepCopy()
			}
			retry.PerTryTimeout = each
			f.Retry = retry
		}
	}
}

// duration parses a duration of the Gateway API, nil if there is none; package config rejects invalid ones.
func duration(d *gatewayv1.Duration) *durationpb.Duration {
	if d == nil {
		return nil
	}
	t, err := time.ParseDuration(string(*d))
	if err != nil || t < 0 {
		return nil
	}
	return durationpb.New(t)
}

// target translates a backend. One with filters other than changes of headers gets no requests: they get 500.
func (in KubernetesInput) target(rule KubernetesRule, b gatewayv1.HTTPBackendRef) Target {
	t := Target{Destination: in.Backend(rule, b.BackendObjectReference), Weight: 1}
	if b.Weight != nil {
		t.Weight = *b.Weight
	}
	var x Route
	rest := slices.ContainsFunc(b.Filters, func(f gatewayv1.HTTPRouteFilter) bool {
		return f.Type != gatewayv1.HTTPRouteFilterRequestHeaderModifier && f.Type != gatewayv1.HTTPRouteFilterResponseHeaderModifier
	})
	if rest || !in.filters(&x, nil, rule, b.Filters) || t.Cluster == "" {
		t.Destination = Destination{Cluster: mesh.InvalidBackend}
	}
	t.Request, t.Response = x.Request, x.Response
	return t
}

// filters sets what filters say. It returns false if one of them is not supported, which must not be left out.
func (in KubernetesInput) filters(x *Route, f *Forward, rule KubernetesRule, list []gatewayv1.HTTPRouteFilter) bool {
	for _, one := range list {
		switch {
		case one.Type == gatewayv1.HTTPRouteFilterRequestHeaderModifier && one.RequestHeaderModifier != nil:
			x.Request = headerChanges(x.Request, one.RequestHeaderModifier)
		case one.Type == gatewayv1.HTTPRouteFilterResponseHeaderModifier && one.ResponseHeaderModifier != nil:
			x.Response = headerChanges(x.Response, one.ResponseHeaderModifier)
		case one.Type == gatewayv1.HTTPRouteFilterRequestRedirect && one.RequestRedirect != nil:
			x.Redirect = in.redirect(x.Match, one.RequestRedirect)
		case one.Type == gatewayv1.HTTPRouteFilterURLRewrite && one.URLRewrite != nil:
			rewriteURL(f.Rewrite, x.Match, one.URLRewrite)
		case one.Type == gatewayv1.HTTPRouteFilterRequestMirror && one.RequestMirror != nil:
			if m := in.mirror(rule, one.RequestMirror); m != nil {
				f.Mirrors = append(f.Mirrors, m)
			}
		case one.Type == gatewayv1.HTTPRouteFilterCORS && one.CORS != nil && in.Caps.Has(mesh.CORS):
			setCORS(x, one.CORS)
		default:
			return false
		}
	}
	return true
}

// grpcBody returns what a rule of a GRPCRoute has besides matches as that of an HTTPRoute.
func grpcBody(r gatewayv1.GRPCRouteRule) (out gatewayv1.HTTPRouteRule) {
	filters := func(list []gatewayv1.GRPCRouteFilter) (out []gatewayv1.HTTPRouteFilter) {
		for _, f := range list {
			out = append(out, gatewayv1.HTTPRouteFilter{
				Type: gatewayv1.HTTPRouteFilterType(f.Type), RequestHeaderModifier: f.RequestHeaderModifier,
				ResponseHeaderModifier: f.ResponseHeaderModifier, RequestMirror: f.RequestMirror, ExtensionRef: f.ExtensionRef,
			})
		}
		return out
	}
	out.Filters, out.SessionPersistence = filters(r.Filters), r.SessionPersistence
	for _, b := range r.BackendRefs {
		out.BackendRefs = append(out.BackendRefs, gatewayv1.HTTPBackendRef{BackendRef: b.BackendRef, Filters: filters(b.Filters)})
	}
	return out
}

// httpMatch translates a match; false if it would be wider than what it says. [control-plane 1.11.7]
func httpMatch(m gatewayv1.HTTPRouteMatch) (*routev3.RouteMatch, rank, bool) {
	out := &routev3.RouteMatch{CaseSensitive: wrapperspb.Bool(true)}
	k := rank{headers: len(m.Headers), queries: len(m.QueryParams)}
	kind, path := gatewayv1.PathMatchPathPrefix, "/"
	if m.Path != nil {
		kind, path = cmp.Or(value(m.Path.Type), kind), cmp.Or(value(m.Path.Value), path)
	}
	switch kind {
	case gatewayv1.PathMatchExact:
		k.path, k.length = pathExact, len(path)
		out.PathSpecifier = &routev3.RouteMatch_Path{Path: path}
	case gatewayv1.PathMatchPathPrefix:
		setPrefix(out, &k, path)
	case gatewayv1.PathMatchRegularExpression:
		re, ok := regex(path)
		if !ok {
			return nil, k, false
		}
		k.path, k.length = pathRegex, len(path)
		out.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: re}
	default:
		return nil, k, false
	}
	names := map[string]bool{}
	for _, h := range m.Headers {
		one, ok := matchHeader(string(h.Name), h.Value, value(h.Type) == gatewayv1.HeaderMatchRegularExpression)
		if lower := strings.ToLower(string(h.Name)); !ok {
			return nil, k, false
		} else if !names[lower] { // of several for one name, the first counts
			names[lower] = true
			out.Headers = append(out.Headers, one)
		}
	}
	if m.Method != nil {
		k.method = 1
		one, _ := matchHeader(":method", string(*m.Method), false)
		out.Headers = append(out.Headers, one)
	}
	queries := map[string]bool{}
	for _, q := range m.QueryParams {
		s, ok := exactOrRegex(q.Value, value(q.Type) == gatewayv1.QueryParamMatchRegularExpression)
		if !ok {
			return nil, k, false
		}
		if name := string(q.Name); !queries[name] {
			queries[name] = true
			out.QueryParameters = append(out.QueryParameters, &routev3.QueryParameterMatcher{
				Name: name, QueryParameterMatchSpecifier: &routev3.QueryParameterMatcher_StringMatch{StringMatch: s},
			})
		}
	}
	return out, k, true
}

// setPrefix matches whole elements of a path. A slash at its end means nothing.
func setPrefix(out *routev3.RouteMatch, k *rank, path string) {
	if path = strings.TrimRight(path, "/"); path == "" {
		out.PathSpecifier = &routev3.RouteMatch_Prefix{Prefix: "/"}
		return
	}
	k.path, k.length = pathPrefix, len(path)
	out.PathSpecifier = &routev3.RouteMatch_PathSeparatedPrefix{PathSeparatedPrefix: path}
}

// grpcMatch translates a match of a GRPCRoute.
func grpcMatch(m gatewayv1.GRPCRouteMatch) (*routev3.RouteMatch, rank, bool) {
	out := &routev3.RouteMatch{CaseSensitive: wrapperspb.Bool(true)}
	k := rank{headers: len(m.Headers)}
	var service, method string
	exact := true
	if m.Method != nil {
		service, method = value(m.Method.Service), value(m.Method.Method)
		exact = cmp.Or(value(m.Method.Type), gatewayv1.GRPCMethodMatchExact) == gatewayv1.GRPCMethodMatchExact
	}
	switch {
	case service == "" && method == "":
		out.PathSpecifier = &routev3.RouteMatch_Prefix{Prefix: "/"}
	case exact && service != "" && method != "":
		k.path, k.length, k.method = pathExact, len(service), len(method)
		out.PathSpecifier = &routev3.RouteMatch_Path{Path: "/" + service + "/" + method}
	case exact && service != "":
		k.path, k.length = pathPrefix, len(service)
		out.PathSpecifier = &routev3.RouteMatch_PathSeparatedPrefix{PathSeparatedPrefix: "/" + service}
	default:
		k.path, k.length, k.method = pathRegex, len(service), len(method)
		if exact {
			service, method = regexp.QuoteMeta(service), regexp.QuoteMeta(method)
		}
		re, ok := regex("/" + group(service) + "/" + group(method))
		if !ok {
			return nil, k, false
		}
		out.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: re}
	}
	for _, h := range m.Headers {
		one, ok := matchHeader(string(h.Name), h.Value, value(h.Type) == gatewayv1.GRPCHeaderMatchRegularExpression)
		if !ok {
			return nil, k, false
		}
		out.Headers = append(out.Headers, one)
	}
	return out, k, true
}

// group returns an expression for one element of a path; "" is any.
func group(re string) string {
	if re == "" {
		return "[^/]+"
	}
	return "(?:" + re + ")"
}

func exactOrRegex(text string, isRegex bool) (*matcherv3.StringMatcher, bool) {
	if !isRegex {
		return exactOrigin(text), true
	}
	re, ok := regex(text)
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: re}}, ok
}

func matchHeader(name, text string, isRegex bool) (*routev3.HeaderMatcher, bool) {
	s, ok := exactOrRegex(text, isRegex)
	return &routev3.HeaderMatcher{Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: s}}, ok && name != ""
}
