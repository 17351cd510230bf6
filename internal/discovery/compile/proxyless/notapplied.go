package proxyless

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// NotApplied returns the fields of a VirtualService or DestinationRule that libraries do not apply, by their paths, sorted and
// without repetition; nil for other objects.
func NotApplied(spec any) []string {
	f := fields{}
	switch s := spec.(type) {
	case *networking.VirtualService:
		if len(s.Gateways) > 0 && !slices.Contains(s.Gateways, "mesh") {
			return nil
		}
		for _, h := range s.Http {
			f.route(h)
		}
	case *networking.DestinationRule:
		f.policy("trafficPolicy", s.TrafficPolicy)
		for _, sub := range s.Subsets {
			f.policy("subsets.trafficPolicy", sub.TrafficPolicy)
		}
	}
	slices.Sort(f.names)
	return slices.Compact(f.names)
}

type fields struct{ names []string }

func (f *fields) add(name string, set bool) {
	if set {
		f.names = append(f.names, name)
	}
}

func (f *fields) route(h *networking.HTTPRoute) {
	f.add("http.redirect", h.Redirect != nil)
	f.add("http.directResponse", h.DirectResponse != nil)
	f.add("http.rewrite", h.Rewrite != nil)
	f.add("http.mirror", h.Mirror != nil)
	f.add("http.mirrors", len(h.Mirrors) > 0)
	f.add("http.corsPolicy", h.CorsPolicy != nil)
	f.add("http.headers", h.Headers != nil)
	f.add("http.retries.perTryTimeout", h.Retries.GetPerTryTimeout() != nil)
	f.add("http.retries.retryRemoteLocalities", h.Retries.GetRetryRemoteLocalities().GetValue())
	f.add("http.retries.retryOn", unknownCondition(h.Retries.GetRetryOn()))
	for _, m := range h.Match {
		f.add("http.match.queryParams", len(m.QueryParams) > 0)
		f.add("http.match.authority", m.Authority != nil)
		f.add("http.match.method", m.Method != nil && !strings.EqualFold(m.Method.GetExact(), "POST"))
		f.add("http.match.scheme", m.Scheme != nil && !strings.EqualFold(m.Scheme.GetExact(), "http"))
	}
	for _, d := range h.Route {
		f.add("http.route.headers", d.Headers != nil)
	}
}

// unknownCondition reports whether a list has a condition that libraries have nothing for.
func unknownCondition(retryOn string) bool {
	for _, c := range strings.Split(retryOn, ",") {
		if c = strings.TrimSpace(c); c != "" && retryable[c] == "" {
			return true
		}
	}
	return false
}

func (f *fields) policy(at string, p *networking.TrafficPolicy) {
	f.add(at+".proxyProtocol", p.GetProxyProtocol() != nil)
	f.add(at+".tunnel", p.GetTunnel() != nil)
	f.groups(at, p.GetLoadBalancer(), p.GetConnectionPool(), p.GetOutlierDetection(), p.GetTls())
	for _, s := range p.GetPortLevelSettings() {
		f.groups(at+".portLevelSettings", s.LoadBalancer, s.ConnectionPool, s.OutlierDetection, s.Tls)
	}
}

func (f *fields) groups(at string, lb *networking.LoadBalancerSettings, pool *networking.ConnectionPoolSettings, outlier *networking.OutlierDetection, tls *networking.ClientTLSSettings) {
	f.add(at+".outlierDetection", outlier != nil)
	f.add(at+".connectionPool.tcp", pool.GetTcp() != nil)
	if http := pool.GetHttp(); http != nil {
		other := proto.CloneOf(http)
		other.Http2MaxRequests = 0
		f.add(at+".connectionPool.http", proto.Size(other) > 0)
	}
	f.add(at+".tls.mode", tls != nil && tls.Mode != networking.ClientTLSSettings_DISABLE && tls.Mode != networking.ClientTLSSettings_ISTIO_MUTUAL)
	f.add(at+".loadBalancer.warmup", lb.GetWarmup() != nil)
	switch lb.GetSimple() {
	case networking.LoadBalancerSettings_UNSPECIFIED, networking.LoadBalancerSettings_ROUND_ROBIN:
	default:
		f.add(at+".loadBalancer.simple", true)
	}
	if h := lb.GetConsistentHash(); h != nil {
		f.add(at+".loadBalancer.consistentHash", h.GetHttpHeaderName() == "")
	}
}
