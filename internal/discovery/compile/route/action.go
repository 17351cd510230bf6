package route

import (
	"regexp"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// forward returns how requests are forwarded to the rule's destinations, nil if that cannot be translated.
func (in Input) forward(h *networking.HTTPRoute, match *routev3.RouteMatch) *Forward {
	f := &Forward{Timeout: h.GetTimeout(), Retry: h.GetRetries(), Mirrors: in.mirrors(h)}
	if f.Retry == nil {
		f.Retry = in.Mesh.GetDefaultHttpRetryPolicy()
	}
	a := &routev3.RouteAction{}
	if !rewrite(a, h.GetRewrite(), match) {
		return nil
	}
	f.Rewrite = a
	for _, d := range h.GetRoute() {
		to, ok := in.resolve(d.GetDestination())
		if !ok {
			if len(h.GetRoute()) == 1 {
				return nil
			}
			continue
		}
		f.To = append(f.To, Target{
			Destination: to, Weight: d.GetWeight(),
			Request: operations(d.GetHeaders().GetRequest()), Response: operations(d.GetHeaders().GetResponse()),
		})
	}
	f.Single = len(h.GetRoute()) == 1
	return f
}

// appendHash adds the policies that are not in the list, since subsets often have the same one.
func appendHash(list, more []*routev3.RouteAction_HashPolicy) []*routev3.RouteAction_HashPolicy {
	out := slices.Clone(list)
	for _, p := range more {
		if !slices.ContainsFunc(out, func(q *routev3.RouteAction_HashPolicy) bool { return proto.Equal(p, q) }) {
			out = append(out, p)
		}
	}
	return out
}

// resolve returns the cluster of a destination. If the caller does not know it, it has the name that the
// cluster would have, so that Envoy responds with 503 until it exists. [control-plane 1.7.14]
func (in Input) resolve(d *networking.Destination) (Destination, bool) {
	if d.GetHost() == "" {
		return Destination{}, false
	}
	host := mesh.FullHost(d.Host, in.Rule.Namespace, in.Domain)
	port := d.GetPort().GetNumber()
	to := in.Destination(host, port, d.Subset)
	if to.Cluster == "" {
		if port == 0 {
			port = in.Port
		}
		to.Cluster = cluster.Name(cluster.Outbound, port, d.Subset, host)
	}
	return to, true
}

// rewrite sets the rewrite; it returns false for an invalid regular expression. With a prefix match only the prefix is replaced, as
// Istio documents. Where that would leave two slashes, as of /team/x with the prefix /team and the rewrite /, one is left: a path
// with two is another one, or the name of a host where it is taken for a reference. [control-plane 1.7.20]
func rewrite(a *routev3.RouteAction, w *networking.HTTPRewrite, match *routev3.RouteMatch) bool {
	if w == nil {
		return true
	}
	if x := w.GetUriRegexRewrite(); x != nil {
		re, ok := regex(x.GetMatch())
		if !ok {
			return false
		}
		a.RegexRewrite = &matcherv3.RegexMatchAndSubstitute{Pattern: re, Substitution: x.GetRewrite()}
	} else if prefix := match.GetPrefix(); prefix != "" && !strings.HasSuffix(prefix, "/") && strings.HasSuffix(w.GetUri(), "/") {
		pattern := "^" + regexp.QuoteMeta(prefix) + "/*"
		if match.GetCaseSensitive() != nil && !match.GetCaseSensitive().GetValue() {
			pattern = "(?i)" + pattern
		}
		a.RegexRewrite = substitute(pattern, w.GetUri())
	} else {
		a.PrefixRewrite = w.GetUri()
	}
	if w.GetAuthority() != "" {
		a.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: w.Authority}
	}
	return true
}

// mirrors returns the mirror policies of a route, without those of 0 %.
func (in Input) mirrors(h *networking.HTTPRoute) []*routev3.RouteAction_RequestMirrorPolicy {
	var out []*routev3.RouteAction_RequestMirrorPolicy
	add := func(d *networking.Destination, percent float64) {
		to, ok := in.resolve(d)
		// The copy of a request has no name that would be resolved but its Host header, whose port is the client's choice.
		if !ok || percent <= 0 || to.Dynamic != nil {
			return
		}
		out = append(out, &routev3.RouteAction_RequestMirrorPolicy{
			Cluster:         to.Cluster,
			RuntimeFraction: &corev3.RuntimeFractionalPercent{DefaultValue: fraction(percent)},
			TraceSampled:    wrapperspb.Bool(false),
			// The Host is that of the request: a server that chooses by it must answer the copy as the original. [control-plane 1.7.24]
			DisableShadowHostSuffixAppend: true,
		})
	}
	if h.GetMirror() != nil {
		percent := 100.0
		if p := h.GetMirrorPercentage(); p != nil {
			percent = p.GetValue()
		} else if p := h.GetMirrorPercent(); p != nil { //nolint:staticcheck // deprecated, but supported
			percent = float64(p.GetValue())
		}
		add(h.Mirror, percent)
	}
	for _, m := range h.GetMirrors() {
		percent := 100.0
		if p := m.GetPercentage(); p != nil {
			percent = p.GetValue()
		}
		add(m.GetDestination(), percent)
	}
	return out
}

// HashPolicies returns the hash policies of routes to a cluster with consistent hashing; nil for other
// load balancers. [control-plane 1.8.4]
func HashPolicies(lb *networking.LoadBalancerSettings) []*routev3.RouteAction_HashPolicy {
	p := &routev3.RouteAction_HashPolicy{}
	switch k := lb.GetConsistentHash().GetHashKey().(type) {
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName:
		p.PolicySpecifier = &routev3.RouteAction_HashPolicy_Header_{Header: &routev3.RouteAction_HashPolicy_Header{HeaderName: k.HttpHeaderName}}
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpCookie:
		p.PolicySpecifier = &routev3.RouteAction_HashPolicy_Cookie_{Cookie: cookie(k.HttpCookie)}
	case *networking.LoadBalancerSettings_ConsistentHashLB_UseSourceIp:
		if !k.UseSourceIp {
			return nil
		}
		p.PolicySpecifier = &routev3.RouteAction_HashPolicy_ConnectionProperties_{
			ConnectionProperties: &routev3.RouteAction_HashPolicy_ConnectionProperties{SourceIp: true},
		}
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpQueryParameterName:
		p.PolicySpecifier = &routev3.RouteAction_HashPolicy_QueryParameter_{
			QueryParameter: &routev3.RouteAction_HashPolicy_QueryParameter{Name: k.HttpQueryParameterName},
		}
	default:
		return nil
	}
	return []*routev3.RouteAction_HashPolicy{p}
}

func cookie(c *networking.LoadBalancerSettings_ConsistentHashLB_HTTPCookie) *routev3.RouteAction_HashPolicy_Cookie {
	out := &routev3.RouteAction_HashPolicy_Cookie{Name: c.GetName(), Path: c.GetPath(), Ttl: c.GetTtl()}
	for _, a := range c.GetAttributes() {
		out.Attributes = append(out.Attributes, &routev3.RouteAction_HashPolicy_CookieAttribute{Name: a.GetName(), Value: a.GetValue()})
	}
	return out
}
