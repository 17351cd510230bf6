package config

import (
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"
	networking "istio.io/api/networking/v1alpha3"
)

func (c *check) destinationRule(s *networking.DestinationRule) {
	if s.Host == "" {
		c.fail("spec.host", "is missing; set the host of a service")
	} else {
		c.host("spec.host", s.Host)
	}
	c.trafficPolicy("spec.trafficPolicy", s.TrafficPolicy)
	var names []string
	for i, sub := range s.Subsets {
		at := item("spec.subsets", i)
		if !isLabel(sub.GetName()) {
			c.fail(at+".name", "invalid subset name %q: want letters, digits and \"-\"", sub.GetName())
		}
		names = append(names, sub.GetName())
		c.labels(at+".labels", sub.GetLabels())
		c.trafficPolicy(at+".trafficPolicy", sub.GetTrafficPolicy())
		c.subsetIdle(at+".trafficPolicy", sub.GetTrafficPolicy())
	}
	once(names, func(i int, n string) { c.fail(item("spec.subsets", i)+".name", "duplicate %q; rename one", n) })
	c.exportTo("spec.exportTo", s.ExportTo, false)
	c.labels("spec.workloadSelector.matchLabels", s.WorkloadSelector.GetMatchLabels())
}

// subsetIdle reports the idle timeout of TCP connections in subsets: connections are sent to a subset
// by tcp and tls routes only, and these are not supported.
func (c *check) subsetIdle(at string, p *networking.TrafficPolicy) {
	const field = ".connectionPool.tcp.idleTimeout"
	const text = "not applied: only tcp and tls routes, which are not served, send connections to a subset; set it for the whole service"
	if p.GetConnectionPool().GetTcp().GetIdleTimeout() != nil {
		c.warn(at+field, text)
	}
	for i, l := range p.GetPortLevelSettings() {
		if l.GetConnectionPool().GetTcp().GetIdleTimeout() != nil {
			c.warn(item(at+".portLevelSettings", i)+field, text)
		}
	}
}

func (c *check) trafficPolicy(at string, p *networking.TrafficPolicy) {
	if p == nil {
		return
	}
	c.portPolicy(at, p.LoadBalancer, p.ConnectionPool, p.OutlierDetection, p.Tls)
	var ports []uint32
	for i, l := range p.PortLevelSettings {
		port := item(at+".portLevelSettings", i)
		if l == nil {
			c.fail(port, "is empty; set a port, or remove it")
			continue
		}
		c.port(port+".port.number", l.Port.GetNumber(), false)
		ports = append(ports, l.Port.GetNumber())
		c.portPolicy(port, l.LoadBalancer, l.ConnectionPool, l.OutlierDetection, l.Tls)
	}
	once(ports, func(i int, n uint32) {
		c.fail(item(at+".portLevelSettings", i)+".port.number", "duplicate %d; remove one", n)
	})
	if b := p.RetryBudget; b != nil {
		if b.Percent != nil {
			c.number(at+".retryBudget.percent", b.Percent.Value, 0, 100)
		}
		c.duration(at+".retryBudget.budgetInterval", b.BudgetInterval)
	}
	if t := p.Tunnel; t != nil {
		if !slices.Contains([]string{"", "CONNECT", "POST"}, t.Protocol) {
			c.fail(at+".tunnel.protocol", "invalid protocol %q: want CONNECT or POST", t.Protocol)
		}
		if !isDomain(t.TargetHost) && !isIP(t.TargetHost) {
			c.fail(at+".tunnel.targetHost", "invalid host %q: want a DNS name or an IP address", t.TargetHost)
		}
		c.port(at+".tunnel.targetPort", t.TargetPort, false)
	}
}

// portPolicy checks what a policy and its port-level settings have in common.
func (c *check) portPolicy(at string, lb *networking.LoadBalancerSettings, pool *networking.ConnectionPoolSettings, o *networking.OutlierDetection, tls *networking.ClientTLSSettings) {
	if lb != nil {
		c.loadBalancer(at+".loadBalancer", lb)
	}
	if pool != nil {
		c.pool(at+".connectionPool", pool)
	}
	if o != nil {
		c.outliers(at+".outlierDetection", o)
	}
	if tls != nil {
		c.clientTLS(at+".tls", tls)
	}
	l, z := lb.GetLocalityLbSetting(), lb.GetZoneAwareLbSetting()
	for _, f := range []struct {
		name string
		set  bool
	}{{"localityLbSetting", len(l.GetFailover())+len(l.GetFailoverPriority()) > 0}, {"zoneAwareLbSetting", len(z.GetFailover())+len(z.GetFailoverPriority()) > 0}} {
		if f.set && o == nil {
			c.warn(at+".loadBalancer."+f.name, "failover needs outlierDetection: without it, Envoy does not detect failed endpoints")
		}
	}
}

func (c *check) pool(at string, p *networking.ConnectionPoolSettings) {
	if t := p.Tcp; t != nil {
		c.notNegative(at+".tcp.maxConnections", t.MaxConnections)
		c.durations(at+".tcp", map[string]*durationpb.Duration{
			"connectTimeout": t.ConnectTimeout, "maxConnectionDuration": t.MaxConnectionDuration, "idleTimeout": t.IdleTimeout,
			"tcpKeepalive.time": t.TcpKeepalive.GetTime(), "tcpKeepalive.interval": t.TcpKeepalive.GetInterval(),
		})
	}
	h := p.Http
	if h == nil {
		return
	}
	for _, f := range []struct {
		name string
		n    int32
	}{
		{"http1MaxPendingRequests", h.Http1MaxPendingRequests}, {"http2MaxRequests", h.Http2MaxRequests},
		{"maxRequestsPerConnection", h.MaxRequestsPerConnection}, {"maxRetries", h.MaxRetries}, {"maxConcurrentStreams", h.MaxConcurrentStreams},
	} {
		c.notNegative(at+".http."+f.name, f.n)
	}
	c.durations(at+".http", map[string]*durationpb.Duration{
		"idleTimeout": h.IdleTimeout, "http2KeepAlive.interval": h.Http2KeepAlive.GetInterval(), "http2KeepAlive.timeout": h.Http2KeepAlive.GetTimeout(),
	})
	if k := h.Http2KeepAlive; k != nil && (k.Interval == nil) != (k.Timeout == nil) {
		c.fail(at+".http.http2KeepAlive", "needs interval and timeout; set both")
	}
	if h.UseClientProtocol && h.H2UpgradePolicy == networking.ConnectionPoolSettings_HTTPSettings_UPGRADE {
		c.fail(at+".http.useClientProtocol", "conflicts with h2UpgradePolicy UPGRADE; remove one of the two")
	}
}

func (c *check) durations(at string, list map[string]*durationpb.Duration) {
	for _, name := range sorted(list) {
		c.duration(at+"."+name, list[name])
	}
}

func (c *check) outliers(at string, o *networking.OutlierDetection) {
	c.duration(at+".interval", o.Interval)
	c.duration(at+".baseEjectionTime", o.BaseEjectionTime)
	c.number(at+".maxEjectionPercent", float64(o.MaxEjectionPercent), 0, 100)
	c.number(at+".minHealthPercent", float64(o.MinHealthPercent), 0, 100)
	if o.ConsecutiveLocalOriginFailures.GetValue() > 0 && !o.SplitExternalLocalOriginErrors {
		c.fail(at+".consecutiveLocalOriginFailures", "needs splitExternalLocalOriginErrors: true")
	}
	for i, code := range o.OutlierDetectionHttpErrorCodes {
		c.number(item(at+".outlierDetectionHttpErrorCodes", i), float64(code), 100, 599)
	}
}
