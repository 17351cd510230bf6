package config

import (
	"math/big"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Envoy's maximum sizes of the tables for consistent hashing.
const (
	maxRing   = 8 << 20
	maxMaglev = 5_000_011
)

func (c *check) loadBalancer(at string, lb *networking.LoadBalancerSettings) {
	if h := lb.GetConsistentHash(); h != nil {
		c.consistentHash(at+".consistentHash", h)
	}
	if l := lb.LocalityLbSetting; l != nil {
		c.locality(at+".localityLbSetting", l)
	}
	if z := lb.ZoneAwareLbSetting; z != nil {
		c.zones(at+".zoneAwareLbSetting", z)
		if lb.LocalityLbSetting != nil {
			c.fail(at+".zoneAwareLbSetting", "localityLbSetting is set too; remove one of the two")
		}
		if lb.GetConsistentHash() != nil || lb.GetSimple() == networking.LoadBalancerSettings_PASSTHROUGH {
			c.warn(at+".zoneAwareLbSetting", "zones are not applied: only ROUND_ROBIN, LEAST_REQUEST and RANDOM prefer the client's zone; use one of them or remove it")
		}
	}
	for _, f := range []struct {
		name string
		set  bool
	}{{"warmup", lb.Warmup != nil}, {"warmupDurationSecs", lb.WarmupDurationSecs != nil}} { //nolint:staticcheck // deprecated, but supported
		if f.set && !canWarmUp(lb) {
			c.warn(at+"."+f.name, "not applied: only ROUND_ROBIN and LEAST_REQUEST support warmup; use one of them or remove it")
		}
	}
	c.duration(at+".warmupDurationSecs", lb.WarmupDurationSecs) //nolint:staticcheck // deprecated, but supported
	if w := lb.Warmup; w != nil {
		if lb.WarmupDurationSecs != nil { //nolint:staticcheck // deprecated, but supported
			c.fail(at+".warmup", "warmupDurationSecs is set too; remove one of the two")
		}
		if w.Duration == nil {
			c.fail(at+".warmup.duration", "is missing; set a duration")
		}
		c.duration(at+".warmup.duration", w.Duration)
		if w.MinimumPercent != nil {
			c.number(at+".warmup.minimumPercent", w.MinimumPercent.Value, 0, 100)
		}
		if w.Aggression != nil && !(w.Aggression.Value >= 1) {
			c.fail(at+".warmup.aggression", "invalid aggression %v: want 1 or more", w.Aggression.Value)
		}
	}
}

// canWarmUp reports whether Envoy's load balancer of that kind supports slow start.
func canWarmUp(lb *networking.LoadBalancerSettings) bool {
	s := lb.GetSimple()
	return lb.GetConsistentHash() == nil && s != networking.LoadBalancerSettings_RANDOM && s != networking.LoadBalancerSettings_PASSTHROUGH
}

func (c *check) consistentHash(at string, h *networking.LoadBalancerSettings_ConsistentHashLB) {
	switch k := h.HashKey.(type) {
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName:
		if !isToken(strings.TrimPrefix(k.HttpHeaderName, ":")) {
			c.fail(at+".httpHeaderName", "invalid header name %q", k.HttpHeaderName)
		}
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpQueryParameterName:
		if k.HttpQueryParameterName == "" {
			c.fail(at+".httpQueryParameterName", "is empty; set the parameter's name")
		}
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpCookie:
		if !isToken(k.HttpCookie.GetName()) {
			c.fail(at+".httpCookie.name", "invalid cookie name %q", k.HttpCookie.GetName())
		}
		for i, a := range k.HttpCookie.GetAttributes() {
			if !isToken(a.GetName()) {
				c.fail(item(at+".httpCookie.attributes", i)+".name", "invalid attribute name %q: want a token such as SameSite", a.GetName())
			}
		}
		if d := k.HttpCookie.GetTtl(); d != nil && (!d.IsValid() || d.AsDuration() < 0) {
			c.fail(at+".httpCookie.ttl", "invalid duration %s: want 0s (a session cookie) or more", d.AsDuration())
		}
	case *networking.LoadBalancerSettings_ConsistentHashLB_UseSourceIp:
	default:
		c.fail(at, "has no hash key; set httpHeaderName, httpCookie, httpQueryParameterName or useSourceIp")
	}
	ring := max(h.MinimumRingSize, h.GetRingHash().GetMinimumRingSize()) //nolint:staticcheck // deprecated, but supported
	if ring > maxRing {
		c.fail(at+".ringHash.minimumRingSize", "invalid size %d: want at most %d", ring, maxRing)
	}
	if m := h.GetMaglev(); m.GetTableSize() != 0 {
		n := m.GetTableSize()
		if n > maxMaglev || !new(big.Int).SetUint64(n).ProbablyPrime(0) {
			c.fail(at+".maglev.tableSize", "invalid size %d: want a prime number up to %d", n, maxMaglev)
		}
	}
}

func (c *check) locality(at string, l *networking.LocalityLoadBalancerSetting) {
	if len(l.Distribute) > 0 && len(l.Failover)+len(l.FailoverPriority) > 0 {
		c.fail(at, "distribute and failover are mutually exclusive; remove one of the two")
	}
	var froms []string
	for i, d := range l.Distribute {
		path := item(at+".distribute", i)
		froms = append(froms, d.GetFrom())
		c.localityName(path+".from", d.GetFrom())
		total := uint64(0)
		for _, to := range sorted(d.GetTo()) {
			c.localityName(entry(path+".to", to), to)
			if d.To[to] == 0 {
				c.fail(entry(path+".to", to), "invalid weight 0: want 1–100; remove it if it gets no requests")
			}
			total += uint64(d.To[to])
		}
		if total != 100 {
			c.fail(path+".to", "invalid sum of weights %d: want 100", total)
		}
	}
	once(froms, func(i int, s string) { c.fail(item(at+".distribute", i)+".from", "duplicate %q; merge the two", s) })
	for i, f := range l.Failover {
		c.failover(item(at+".failover", i), f)
	}
	for i, p := range l.FailoverPriority {
		key, value, _ := strings.Cut(p, "=")
		c.labels(item(at+".failoverPriority", i), map[string]string{key: value})
	}
}

// zones checks a zoneAwareLbSetting.
func (c *check) zones(at string, z *networking.ZoneAwareLoadBalancerSetting) {
	for i, f := range z.Failover {
		c.failover(item(at+".failover", i), f)
	}
	for i, p := range z.FailoverPriority {
		key, value, _ := strings.Cut(p, "=")
		path := item(at+".failoverPriority", i)
		c.labels(path, map[string]string{key: value})
		switch key {
		case mesh.LabelRegion, mesh.LabelZone, mesh.LabelSubzone:
			c.fail(path, "invalid label %q: regions and zones are always ranked; remove it", key)
		}
	}
	if n := z.MinClusterSize; n != nil && n.Value == 0 {
		c.fail(at+".minClusterSize", "invalid size 0: want 1 or more")
	}
}

// failover checks the regions of a failover rule.
func (c *check) failover(at string, f interface {
	GetFrom() string
	GetTo() string
}) {
	if f.GetFrom() == f.GetTo() {
		c.fail(at+".to", "is the same as from; use another region")
	}
	for _, r := range []struct{ name, region string }{{"from", f.GetFrom()}, {"to", f.GetTo()}} {
		if r.region == "" || strings.ContainsAny(r.region, "/*") {
			c.fail(at+"."+r.name, "invalid region %q: want a region without a zone", r.region)
		}
	}
}

// localityName checks a locality, region/zone/subzone, whose last part may be "*".
func (c *check) localityName(field, s string) {
	parts := strings.Split(s, "/")
	for i, p := range parts {
		if p == "" || strings.Contains(p, "*") && (p != "*" || i != len(parts)-1) {
			c.fail(field, "invalid locality %q: want region/zone/subzone, with \"*\" only as the last part", s)
			return
		}
	}
	if len(parts) > 3 {
		c.fail(field, "invalid locality %q: want at most region/zone/subzone", s)
	}
}
