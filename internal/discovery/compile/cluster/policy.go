package cluster

import (
	"fmt"
	"math"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// MergePolicy returns the policy in force for one port of a service. Each group of settings (load
// balancer, connection pool, outlier detection, TLS, retry budget, PROXY protocol, tunnel) of subset replaces that of top.
// Settings for the port replace the first four groups of their level without inheriting: a missing
// group has its defaults. Both arguments may be nil. The result shares its groups with them, has no
// port settings, and is nil if both are nil.
func MergePolicy(top, subset *networking.TrafficPolicy, port uint32) *networking.TrafficPolicy {
	var out *networking.TrafficPolicy
	for _, p := range []*networking.TrafficPolicy{top, subset} {
		if p != nil {
			out = overlay(out, p, port)
		}
	}
	return out
}

// WithDefaults returns a merged policy with the groups that it lacks from the mesh's
// defaultTrafficPolicy. [control-plane 1.4.13]
func WithDefaults(p *networking.TrafficPolicy, m *meshv1.MeshConfig) *networking.TrafficPolicy {
	d := m.GetDefaultTrafficPolicy()
	if d.GetConnectionPool() == nil && d.GetOutlierDetection() == nil {
		return p
	}
	return &networking.TrafficPolicy{
		LoadBalancer: p.GetLoadBalancer(), Tls: p.GetTls(), RetryBudget: p.GetRetryBudget(), ProxyProtocol: p.GetProxyProtocol(), Tunnel: p.GetTunnel(),
		ConnectionPool:   first(p.GetConnectionPool(), d.GetConnectionPool()),
		OutlierDetection: first(p.GetOutlierDetection(), d.GetOutlierDetection()),
	}
}

func overlay(base, p *networking.TrafficPolicy, port uint32) *networking.TrafficPolicy {
	out := &networking.TrafficPolicy{
		LoadBalancer:     first(p.LoadBalancer, base.GetLoadBalancer()),
		ConnectionPool:   first(p.ConnectionPool, base.GetConnectionPool()),
		OutlierDetection: first(p.OutlierDetection, base.GetOutlierDetection()),
		Tls:              first(p.Tls, base.GetTls()),
		RetryBudget:      first(p.RetryBudget, base.GetRetryBudget()),
		ProxyProtocol:    first(p.ProxyProtocol, base.GetProxyProtocol()),
		Tunnel:           first(p.Tunnel, base.GetTunnel()),
	}
	i := slices.IndexFunc(p.PortLevelSettings, func(s *networking.TrafficPolicy_PortTrafficPolicy) bool {
		return s.GetPort().GetNumber() == port
	})
	if i >= 0 {
		s := p.PortLevelSettings[i]
		out.LoadBalancer, out.ConnectionPool = s.LoadBalancer, s.ConnectionPool
		out.OutlierDetection, out.Tls = s.OutlierDetection, s.Tls
	}
	return out
}

func first[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}

// Balance is what decides, of the settings for localities, how requests are spread over them. At most one is set.
type Balance struct {
	Locality *networking.LocalityLoadBalancerSetting
	Zones    *networking.ZoneAwareLoadBalancerSetting
}

// BalanceOf returns the setting in force: the policy's or else the mesh's, in which zoneAwareLbSetting takes precedence. It is
// empty if there is none; enabled is false if there is one that is disabled. [control-plane 1.8.5, 1.8.6]
func BalanceOf(p *networking.TrafficPolicy, m *meshv1.MeshConfig) (b Balance, enabled bool) {
	b = Balance{Locality: p.GetLoadBalancer().GetLocalityLbSetting(), Zones: p.GetLoadBalancer().GetZoneAwareLbSetting()}
	if b == (Balance{}) {
		b = Balance{Locality: m.GetLocalityLbSetting(), Zones: m.GetZoneAwareLbSetting()}
		if b.Locality != nil && !on(b.Zones.GetEnabled()) {
			b.Zones = nil
		}
	}
	switch {
	case b.Zones != nil:
		b.Locality, enabled = nil, on(b.Zones.GetEnabled())
	default:
		enabled = on(b.Locality.GetEnabled())
	}
	if !enabled {
		return Balance{}, false
	}
	return b, true
}

// on is the default of a switch: set, unless it is set to false.
func on(b *wrapperspb.BoolValue) bool { return b == nil || b.GetValue() }

// Failover reports whether endpoints get priorities by locality. That needs outlier detection, since
// Envoy leaves a priority only if its endpoints are unhealthy. [control-plane 1.8.5]
func Failover(p *networking.TrafficPolicy, m *meshv1.MeshConfig) bool {
	_, enabled := BalanceOf(p, m)
	return p.GetOutlierDetection() != nil && enabled
}

const (
	defaultRingSize = 1024
	// maxRingSize and maxTableSize are Envoy's limits; it rejects clusters that exceed them.
	maxRingSize  = 8388608
	maxTableSize = 5000011
	// Istio's defaults of a warmup.
	defaultAggression = 1
	defaultMinWeight  = 10 // percent
	// aggressionKey is the runtime key that overrides the aggression.
	aggressionKey = "warmup.aggression"
)

func setBalancing(c *clusterv3.Cluster, in Input) {
	if c.GetType() == clusterv3.Cluster_ORIGINAL_DST || c.GetClusterType() != nil {
		c.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
		return
	}
	lb := in.Policy.GetLoadBalancer()
	c.LbPolicy = simple(lb.GetSimple())
	if h := lb.GetConsistentHash(); h != nil {
		setHash(c, h)
	} else {
		setWarmup(c, lb)
	}
	setLocalities(c, in)
}

// setLocalities sets how requests are spread over localities. Envoy prefers its own zone by default once it knows the
// endpoints of its own workload, so that for such a proxy a cluster says when it must not. [control-plane 1.8.6]
func setLocalities(c *clusterv3.Cluster, in Input) {
	b, _ := BalanceOf(in.Policy, in.Mesh)
	if in.Near {
		b = Balance{}
	}
	zones := func(z *clusterv3.Cluster_CommonLbConfig_ZoneAwareLbConfig) {
		c.CommonLbConfig.LocalityConfigSpecifier = &clusterv3.Cluster_CommonLbConfig_ZoneAwareLbConfig_{ZoneAwareLbConfig: z}
	}
	switch {
	case len(b.Locality.GetDistribute()) > 0:
		c.CommonLbConfig.LocalityConfigSpecifier = &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig_{
			LocalityWeightedLbConfig: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig{},
		}
	case b.Zones != nil:
		z := &clusterv3.Cluster_CommonLbConfig_ZoneAwareLbConfig{}
		if n := b.Zones.GetMinClusterSize(); n != nil {
			z.MinClusterSize = wrapperspb.UInt64(uint64(n.GetValue()))
		}
		zones(z)
	case in.Caps.Has(mesh.SelfDiscovery):
		zones(&clusterv3.Cluster_CommonLbConfig_ZoneAwareLbConfig{RoutingEnabled: &typev3.Percent{Value: 0}})
	}
}

func simple(s networking.LoadBalancerSettings_SimpleLB) clusterv3.Cluster_LbPolicy {
	switch s {
	case networking.LoadBalancerSettings_ROUND_ROBIN:
		return clusterv3.Cluster_ROUND_ROBIN
	case networking.LoadBalancerSettings_RANDOM:
		return clusterv3.Cluster_RANDOM
	case networking.LoadBalancerSettings_UNSPECIFIED, networking.LoadBalancerSettings_LEAST_REQUEST,
		networking.LoadBalancerSettings_LEAST_CONN: //nolint:staticcheck // deprecated, but supported
		return clusterv3.Cluster_LEAST_REQUEST
	}
	panic(fmt.Sprintf("cluster: unknown load balancer %d", s)) // package config rejects it
}

// setWarmup sets slow start, which Envoy supports for ROUND_ROBIN and LEAST_REQUEST. [control-plane 1.8.6]
func setWarmup(c *clusterv3.Cluster, lb *networking.LoadBalancerSettings) {
	// warmupDurationSecs is the older form of warmup.duration.
	s := &clusterv3.Cluster_SlowStartConfig{
		SlowStartWindow:  lb.GetWarmupDurationSecs(),
		Aggression:       &corev3.RuntimeDouble{DefaultValue: defaultAggression, RuntimeKey: aggressionKey},
		MinWeightPercent: &typev3.Percent{Value: defaultMinWeight},
	}
	if w := lb.GetWarmup(); w != nil {
		s.SlowStartWindow = w.GetDuration()
		if a := w.GetAggression(); a != nil {
			s.Aggression.DefaultValue = max(a.GetValue(), 1)
		}
		if p := w.GetMinimumPercent(); p != nil {
			s.MinWeightPercent.Value = min(max(p.GetValue(), 0), 100)
		}
	}
	if s.SlowStartWindow.AsDuration() <= 0 {
		return
	}
	switch c.LbPolicy {
	case clusterv3.Cluster_ROUND_ROBIN:
		c.LbConfig = &clusterv3.Cluster_RoundRobinLbConfig_{RoundRobinLbConfig: &clusterv3.Cluster_RoundRobinLbConfig{SlowStartConfig: s}}
	case clusterv3.Cluster_LEAST_REQUEST:
		c.LbConfig = &clusterv3.Cluster_LeastRequestLbConfig_{LeastRequestLbConfig: &clusterv3.Cluster_LeastRequestLbConfig{SlowStartConfig: s}}
	}
}

func setHash(c *clusterv3.Cluster, h *networking.LoadBalancerSettings_ConsistentHashLB) {
	if m := h.GetMaglev(); m != nil {
		c.LbPolicy = clusterv3.Cluster_MAGLEV
		if prime(m.GetTableSize()) {
			c.LbConfig = &clusterv3.Cluster_MaglevLbConfig_{MaglevLbConfig: &clusterv3.Cluster_MaglevLbConfig{
				TableSize: wrapperspb.UInt64(m.GetTableSize()),
			}}
		}
		return
	}
	size := h.GetRingHash().GetMinimumRingSize()
	if size == 0 {
		size = h.GetMinimumRingSize() //nolint:staticcheck // deprecated, but supported
	}
	if size == 0 {
		size = defaultRingSize
	}
	c.LbPolicy = clusterv3.Cluster_RING_HASH
	c.LbConfig = &clusterv3.Cluster_RingHashLbConfig_{RingHashLbConfig: &clusterv3.Cluster_RingHashLbConfig{
		MinimumRingSize: wrapperspb.UInt64(min(size, maxRingSize)),
	}}
}

// prime reports whether n can be the size of a Maglev table, which Envoy requires to be prime.
func prime(n uint64) bool {
	if n < 2 || n > maxTableSize {
		return false
	}
	for d := uint64(2); d*d <= n; d++ {
		if n%d == 0 {
			return false
		}
	}
	return true
}

// setPool sets the circuit breakers, which are unlimited (MaxUint32) by default, the connect timeout
// and TCP keepalive.
func setPool(c *clusterv3.Cluster, in Input) {
	tcp, http := in.Policy.GetConnectionPool().GetTcp(), in.Policy.GetConnectionPool().GetHttp()
	if t := tcp.GetConnectTimeout(); t.AsDuration() > 0 {
		c.ConnectTimeout = t
	}
	c.CircuitBreakers = breakers(tcp.GetMaxConnections(), http.GetHttp1MaxPendingRequests(), http.GetHttp2MaxRequests(), http.GetMaxRetries())
	if b := in.Policy.GetRetryBudget(); b != nil {
		c.CircuitBreakers.Thresholds[0].RetryBudget = retryBudget(b)
	}
	if k := tcp.GetTcpKeepalive(); k != nil {
		setKeepalive(c, k.GetProbes(), k.GetTime().GetSeconds(), k.GetInterval().GetSeconds())
	} else if k := in.Mesh.GetTcpKeepalive(); k != nil {
		setKeepalive(c, k.GetProbes(), k.GetTime().GetSeconds(), k.GetInterval().GetSeconds())
	}
}

// breakers returns circuit breakers; 0 or less means no limit.
func breakers(connections, pending, requests, retries int32) *clusterv3.CircuitBreakers {
	limit := func(n int32) *wrapperspb.UInt32Value {
		if n > 0 {
			return wrapperspb.UInt32(uint32(n))
		}
		return wrapperspb.UInt32(math.MaxUint32)
	}
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
		MaxConnections:     limit(connections),
		MaxPendingRequests: limit(pending),
		MaxRequests:        limit(requests),
		MaxRetries:         limit(retries),
	}}}
}

// retryBudget leaves unset fields to Envoy's defaults: 20 % of the active requests, at least three.
// [control-plane 1.8.14]
func retryBudget(b *networking.TrafficPolicy_RetryBudget) *clusterv3.CircuitBreakers_Thresholds_RetryBudget {
	out := &clusterv3.CircuitBreakers_Thresholds_RetryBudget{}
	if p := b.GetPercent(); p != nil && p.GetValue() >= 0 && p.GetValue() <= 100 {
		out.BudgetPercent = &typev3.Percent{Value: p.GetValue()}
	}
	if n := b.GetMinRetryConcurrency(); n > 0 {
		out.MinRetryConcurrency = wrapperspb.UInt32(n)
	}
	if d := b.GetBudgetInterval(); d.AsDuration() > 0 {
		out.BudgetInterval = d
	}
	return out
}

// setKeepalive enables TCP keepalive. The times are in seconds; 0 means the kernel's default.
func setKeepalive(c *clusterv3.Cluster, probes uint32, after, interval int64) {
	k := &corev3.TcpKeepalive{}
	if probes > 0 {
		k.KeepaliveProbes = wrapperspb.UInt32(probes)
	}
	if after > 0 {
		k.KeepaliveTime = wrapperspb.UInt32(uint32(min(after, math.MaxUint32)))
	}
	if interval > 0 {
		k.KeepaliveInterval = wrapperspb.UInt32(uint32(min(interval, math.MaxUint32)))
	}
	c.UpstreamConnectionOptions = &clusterv3.UpstreamConnectionOptions{TcpKeepalive: k}
}

// setOutlier enables outlier detection. The configured thresholds are always enforced; ejection by
// success rate, Envoy's default, is disabled. [control-plane 1.8.9]
func setOutlier(c *clusterv3.Cluster, o *networking.OutlierDetection) {
	if o == nil {
		return
	}
	out := &clusterv3.OutlierDetection{EnforcingSuccessRate: wrapperspb.UInt32(0)}
	if n := o.GetConsecutive_5XxErrors(); n != nil {
		out.Consecutive_5Xx, out.EnforcingConsecutive_5Xx = enforced(n.GetValue())
	}
	if n := o.GetConsecutiveGatewayErrors(); n != nil {
		out.ConsecutiveGatewayFailure, out.EnforcingConsecutiveGatewayFailure = enforced(n.GetValue())
	}
	if o.GetInterval().AsDuration() > 0 {
		out.Interval = o.GetInterval()
	}
	if o.GetBaseEjectionTime().AsDuration() > 0 {
		out.BaseEjectionTime = o.GetBaseEjectionTime()
	}
	if p := o.GetMaxEjectionPercent(); p > 0 {
		out.MaxEjectionPercent = wrapperspb.UInt32(uint32(min(p, 100)))
	}
	if o.GetSplitExternalLocalOriginErrors() {
		out.SplitExternalLocalOriginErrors = true
		out.EnforcingLocalOriginSuccessRate = wrapperspb.UInt32(0)
		if n := o.GetConsecutiveLocalOriginFailures().GetValue(); n > 0 {
			out.ConsecutiveLocalOriginFailure, out.EnforcingConsecutiveLocalOriginFailure = enforced(n)
		}
	}
	c.OutlierDetection = out
	if p := o.GetMinHealthPercent(); p > 0 {
		c.CommonLbConfig.HealthyPanicThreshold = &typev3.Percent{Value: float64(min(p, 100))}
	}
}

// enforced returns a threshold and its probability of ejection in percent: 100, or 0 if the threshold is 0.
func enforced(n uint32) (threshold, percent *wrapperspb.UInt32Value) {
	if n == 0 {
		return wrapperspb.UInt32(0), wrapperspb.UInt32(0)
	}
	return wrapperspb.UInt32(n), wrapperspb.UInt32(100)
}
