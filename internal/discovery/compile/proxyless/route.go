package proxyless

import (
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Routes returns the route configuration of one port of a service, with routes as Envoy has them. It changes these. The only
// virtual host is for all names: a client asks for that of the name that it dials, whatever authority its requests have.
func Routes(name string, routes []*routev3.Route) *routev3.RouteConfiguration {
	out := make([]*routev3.Route, 0, len(routes))
	for _, r := range routes {
		if translated := translate(r); translated != nil {
			out = append(out, translated)
		}
	}
	return &routev3.RouteConfiguration{
		Name:         name,
		VirtualHosts: []*routev3.VirtualHost{{Name: name, Domains: []string{"*"}, Routes: out}},
	}
}

// translate returns a route as libraries take it; nil for one that no request of gRPC can match. A request whose route leads to no
// cluster fails with status UNAVAILABLE, as libraries do it.
func translate(in *routev3.Route) *routev3.Route {
	if neverMatches(in.GetMatch()) {
		return nil
	}
	match := in.GetMatch()
	match.Headers = slices.DeleteFunc(match.Headers, alwaysMatches)
	r := &routev3.Route{Name: in.GetName(), Match: match, Metadata: in.GetMetadata(), TypedPerFilterConfig: in.GetTypedPerFilterConfig()}
	a := in.GetRoute()
	if a == nil {
		// Requests fail whichever action without a cluster it is, and the reason is the same in every library.
		r.Action = &routev3.Route_NonForwardingAction{NonForwardingAction: &routev3.NonForwardingAction{}}
		return r
	}
	out := &routev3.RouteAction{ClusterSpecifier: a.GetClusterSpecifier(), RetryPolicy: retries(a.GetRetryPolicy())}
	for _, c := range a.GetWeightedClusters().GetClusters() {
		c.RequestHeadersToAdd, c.RequestHeadersToRemove, c.ResponseHeadersToAdd, c.ResponseHeadersToRemove, c.HostRewriteSpecifier = nil, nil, nil, nil, nil
	}
	for _, h := range a.GetHashPolicy() {
		if h.GetHeader() != nil {
			out.HashPolicy = append(out.HashPolicy, h)
		}
	}
	if t := a.GetTimeout(); t.AsDuration() > 0 {
		out.MaxStreamDuration = &routev3.RouteAction_MaxStreamDuration{MaxStreamDuration: t}
	}
	r.Action = &routev3.Route_Route{Route: out}
	return r
}

// The pseudo-headers of a request of gRPC that libraries do not match: its method and its scheme are always the same.
const (
	method = ":method"
	scheme = ":scheme"
)

// neverMatches reports whether no request of gRPC matches: it has no query, is a POST, and of the names in ":authority" nothing is
// known when routes are chosen.
func neverMatches(m *routev3.RouteMatch) bool {
	return len(m.GetQueryParameters()) > 0 || slices.ContainsFunc(m.GetHeaders(), func(h *routev3.HeaderMatcher) bool {
		return strings.HasPrefix(h.GetName(), ":") && !alwaysMatches(h)
	})
}

// alwaysMatches reports whether all requests of gRPC match a pseudo-header.
func alwaysMatches(h *routev3.HeaderMatcher) bool {
	if h.GetInvertMatch() {
		return false
	}
	exact := strings.ToUpper(h.GetStringMatch().GetExact())
	return h.GetName() == method && exact == "POST" || h.GetName() == scheme && exact == "HTTP"
}

// retryable are the conditions of Istio that libraries have, each with theirs. A library retries by the status of gRPC only: what a
// failed connection or a response without one is, is UNAVAILABLE there.
var retryable = map[string]string{
	"cancelled": "cancelled", "deadline-exceeded": "deadline-exceeded", "internal": "internal",
	"resource-exhausted": "resource-exhausted", "unavailable": "unavailable",
	"5xx": "unavailable", "gateway-error": "unavailable", "connect-failure": "unavailable", "refused-stream": "unavailable", "reset": "unavailable",
}

// retries returns the policy with the conditions that libraries have, nil if it has none of them.
func retries(p *routev3.RetryPolicy) *routev3.RetryPolicy {
	var on []string
	for _, condition := range strings.Split(p.GetRetryOn(), ",") {
		if c := retryable[strings.TrimSpace(condition)]; c != "" && !slices.Contains(on, c) {
			on = append(on, c)
		}
	}
	n := p.GetNumRetries().GetValue()
	if len(on) == 0 || n == 0 {
		return nil
	}
	return &routev3.RetryPolicy{RetryOn: strings.Join(on, ","), NumRetries: wrapperspb.UInt32(n), RetryBackOff: p.GetRetryBackOff()}
}
