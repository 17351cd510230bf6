// Package cluster translates one port of a service, or of one of its subsets, to one Envoy cluster.
//
// It consists of pure functions of values: equal values give equal messages (encode them
// deterministically: metadata is a map). There are no errors. An invalid part of a policy, which
// validation rejects, is left out if that is harmless; if it is about TLS, the cluster gets no
// endpoints, so that nothing is sent in plaintext that should be encrypted. Names, shapes and defaults
// are those of [control-plane 1.8, 1.12]; for differences of stock Envoy see [envoy A1–A3, C1–C4].
package cluster

import (
	"fmt"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	caresv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/network/dns_resolver/cares/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Resolution is where a cluster's endpoints come from.
type Resolution uint8

// The resolutions.
const (
	// EDS endpoints come over the aggregated stream under the cluster's own name.
	EDS Resolution = iota
	// StrictDNS resolves every inline endpoint and uses all addresses.
	StrictDNS
	// LogicalDNS resolves the first inline endpoint and uses one of its addresses.
	LogicalDNS
	// OriginalDst uses the original destination of the client's connection (headless services,
	// ServiceEntries with resolution NONE).
	OriginalDst
	// Dynamic resolves the name that the client requests.
	Dynamic
)

// Service is the service that a cluster belongs to.
type Service struct {
	// Host is the fully qualified name, Name the short one (for a ServiceEntry both are the host).
	Host, Name, Namespace string
	// External is set for ServiceEntries with location MESH_EXTERNAL.
	External bool
}

// Input has everything that determines one outbound cluster.
type Input struct {
	Service  Service
	Port     uint32
	Protocol mesh.Protocol
	// Target is the port that Dynamic connects to.
	Target uint32
	// Subset is empty for the whole service.
	Subset string
	// Resolution is the result of Resolve.
	Resolution Resolution
	// Endpoints are those of StrictDNS and LogicalDNS; ignored otherwise.
	Endpoints []Endpoint
	// Policy is the traffic policy in force for this port and subset (MergePolicy); nil for none.
	Policy *networking.TrafficPolicy
	// ConfigPath is the path of the DestinationRule behind Policy (ConfigPath function); empty for none.
	ConfigPath string
	// AutoMTLS uses mutual TLS to the endpoints that accept it, if Policy has no TLS settings. The
	// caller unsets it for external services and without enableAutoMtls.
	AutoMTLS bool
	// SANs are the identities (SPIFFE URIs) of the service's workloads, sorted. If there are none, any
	// identity of the mesh is accepted.
	SANs []string
	// TLS is how gateways connect by a BackendTLSPolicy, instead of the TLS settings in Policy and AutoMTLS; nil for none.
	TLS *BackendTLS
	// Declared are the subjectAltNames of a ServiceEntry: names that a server outside the mesh must have one of, if Policy names none.
	// [control-plane 1.9.15]
	Declared []string
	// Mesh has the defaults; never nil.
	Mesh *meshv1.MeshConfig
	// Credentials is set if the proxy may use Secrets that a rule names: routers, and sidecars that the rule selects.
	Credentials bool
	// Router is set for gateways.
	Router bool
	// Near is set if the service prefers endpoints near the client, so that the mesh's locality setting does not apply.
	Near bool
	// Sessions is set if requests return to the endpoint of their session, also while it is draining.
	Sessions bool
	// Caps are the capabilities of the proxy; what it does not support is left out.
	Caps mesh.Capability
	// Passthrough is set for a router that forwards the mutual TLS between clients and endpoints, by the clients' server
	// name. The cluster has that name, the endpoints of EDS, and no TLS of its own; of Policy, what concerns requests and
	// TLS does not count.
	Passthrough bool
}

// forPassthrough returns an input with Passthrough as what the cluster is built of.
func (in Input) forPassthrough() Input {
	p := &networking.TrafficPolicy{OutlierDetection: in.Policy.GetOutlierDetection()}
	if l := in.Policy.GetLoadBalancer(); l.GetConsistentHash() == nil && l.GetSimple() != networking.LoadBalancerSettings_PASSTHROUGH {
		p.LoadBalancer = l
	}
	if t := in.Policy.GetConnectionPool().GetTcp(); t != nil {
		p.ConnectionPool = &networking.ConnectionPoolSettings{Tcp: t}
	}
	in.Protocol, in.Resolution, in.Policy, in.AutoMTLS, in.TLS = mesh.TCP, EDS, p, false, nil
	return in
}

// forUDP returns an input for a port of UDP as what the cluster is built of: of Policy, what concerns connections and TLS does not count.
func (in Input) forUDP() Input {
	p := &networking.TrafficPolicy{OutlierDetection: in.Policy.GetOutlierDetection()}
	if l := in.Policy.GetLoadBalancer(); l.GetConsistentHash() == nil && l.GetSimple() != networking.LoadBalancerSettings_PASSTHROUGH {
		p.LoadBalancer = l
	}
	in.Policy, in.AutoMTLS, in.TLS = p, false, nil
	return in
}

// BackendTLS is TLS to a server whose certificate must have one of some names.
type BackendTLS struct {
	// Closed is set if no connection may be made.
	Closed bool
	// ServerName is that of the handshake; DNS and URIs are the names, at least one.
	ServerName string
	DNS, URIs  []string
	// CA are the certificates that it is verified with, in PEM; empty for those of the system.
	CA string
	// Certificate is the name of the secret with the certificate of the client; empty for none.
	Certificate string
}

const (
	// defaultConnectTimeout applies if mesh configuration has none. [control-plane 1.4.2]
	defaultConnectTimeout = 10 * time.Second
	// defaultDNSRefresh applies if mesh configuration has none. [control-plane 1.4.17]
	defaultDNSRefresh = 60 * time.Second
	dnsJitter         = 100 * time.Millisecond
	dnsMaxQueries     = 100
	// metadataKey is the namespace of Istio's filter metadata.
	metadataKey = "istio"
)

// Build returns the outbound cluster of in.
func Build(in Input) *clusterv3.Cluster {
	name := Name(Outbound, in.Port, in.Subset, in.Service.Host)
	switch {
	case in.Protocol == mesh.UDP:
		name, in = Name(OutboundUDP, in.Port, in.Subset, in.Service.Host), in.forUDP()
	case in.Passthrough:
		name, in = SNI(in.Port, in.Subset, in.Service.Host), in.forPassthrough()
	}
	c := &clusterv3.Cluster{
		Name:           name,
		AltStatName:    statName(name),
		ConnectTimeout: connectTimeout(in.Mesh),
		// Panic mode is disabled, since it would send requests to ejected endpoints.
		CommonLbConfig: &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{}},
		Metadata:       metadata(in),
	}
	setDiscovery(c, in)
	setBalancing(c, in)
	if in.Sessions && in.resolution() == EDS {
		c.CommonLbConfig.OverrideHostStatus = &corev3.HealthStatusSet{Statuses: []corev3.HealthStatus{
			corev3.HealthStatus_HEALTHY, corev3.HealthStatus_DRAINING, corev3.HealthStatus_UNKNOWN, corev3.HealthStatus_DEGRADED,
		}}
	}
	setPool(c, in)
	setOutlier(c, in.Policy.GetOutlierDetection())
	opts := protocolOptions(in)
	if !setTLS(c, in, opts) || !setProxyProtocol(c, in) || in.resolution() == Dynamic && !finishDynamic(c, in, opts) {
		closeCluster(c)
	}
	opts.attach(c)
	return c
}

// ConfigMetadata returns the metadata of what is made from the object at a path (ConfigPath function).
func ConfigMetadata(path string) *corev3.Metadata {
	return istioMetadata(map[string]*structpb.Value{"config": structpb.NewStringValue(path)})
}

// ConfigPath returns the path of an object in metadata,
// /apis/networking.istio.io/v1/namespaces/NS/KIND/NAME, with the kind in kebab case
// ("destination-rule").
func ConfigPath(kind, namespace, name string) string {
	return "/apis/networking.istio.io/v1/namespaces/" + namespace + "/" + kind + "/" + name
}

// metadata returns the names of the cluster's service and rule. It has only names, because Envoy closes
// the cluster's connections when metadata changes.
func metadata(in Input) *corev3.Metadata {
	f := map[string]*structpb.Value{"services": services([]Service{in.Service})}
	if in.ConfigPath != "" {
		f["config"] = structpb.NewStringValue(in.ConfigPath)
	}
	if in.Subset != "" {
		f["subset"] = structpb.NewStringValue(in.Subset)
	}
	if in.Service.External {
		f["external"] = structpb.NewBoolValue(true)
	}
	return istioMetadata(f)
}

func services(list []Service) *structpb.Value {
	l := &structpb.ListValue{}
	for _, s := range list {
		l.Values = append(l.Values, structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			"host":      structpb.NewStringValue(s.Host),
			"name":      structpb.NewStringValue(s.Name),
			"namespace": structpb.NewStringValue(s.Namespace),
		}}))
	}
	return structpb.NewListValue(l)
}

func istioMetadata(fields map[string]*structpb.Value) *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{metadataKey: {Fields: fields}}}
}

func connectTimeout(m *meshv1.MeshConfig) *durationpb.Duration {
	if t := m.GetConnectTimeout(); t.AsDuration() > 0 {
		return t
	}
	return durationpb.New(defaultConnectTimeout)
}

// setDiscovery sets the type and where the endpoints are.
func setDiscovery(c *clusterv3.Cluster, in Input) {
	switch in.resolution() {
	case OriginalDst:
		setType(c, clusterv3.Cluster_ORIGINAL_DST)
	case Dynamic:
		setDynamic(c, in.Service.Host, in.Caps)
	case StrictDNS:
		setType(c, clusterv3.Cluster_STRICT_DNS)
		c.LoadAssignment = Assignment(c.Name, in.Endpoints)
		setDNS(c, in)
	case LogicalDNS:
		setType(c, clusterv3.Cluster_LOGICAL_DNS)
		// Envoy rejects a logical DNS cluster with more than one endpoint.
		c.LoadAssignment = Assignment(c.Name, in.Endpoints[:1])
		setDNS(c, in)
	case EDS:
		setType(c, clusterv3.Cluster_EDS)
		c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{ServiceName: c.Name, EdsConfig: adsSource()}
	default:
		panic(fmt.Sprintf("cluster: unknown resolution %d", in.Resolution))
	}
}

// Resolve returns the resolution of a service's cluster with a policy: OriginalDst for load balancer
// PASSTHROUGH, otherwise own. The
// names of requests always are resolved: the client's address may be one that says nothing.
func Resolve(own Resolution, p *networking.TrafficPolicy) Resolution {
	if own != Dynamic && p.GetLoadBalancer().GetSimple() == networking.LoadBalancerSettings_PASSTHROUGH {
		return OriginalDst
	}
	return own
}

// resolution returns Resolution, except for a logical DNS cluster without endpoints, which Envoy would
// reject: it becomes an empty STRICT_DNS cluster.
func (in Input) resolution() Resolution {
	if in.Resolution == LogicalDNS && len(in.Endpoints) == 0 {
		return StrictDNS
	}
	return in.Resolution
}

func setType(c *clusterv3.Cluster, t clusterv3.Cluster_DiscoveryType) {
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: t}
}

// adsSource has no fetch timeout. The server sends the endpoints right after each cluster, so that a
// cluster waits only if its stream has broken; with a timeout, Envoy would then replace a working
// cluster by an empty one.
func adsSource() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		InitialFetchTimeout:   &durationpb.Duration{},
		ResourceApiVersion:    corev3.ApiVersion_V3,
	}
}

//nolint:staticcheck // deprecated, but the only fields that Istio's proxies and stock Envoy both read
func setDNS(c *clusterv3.Cluster, in Input) {
	c.DnsRefreshRate = durationpb.New(defaultDNSRefresh)
	if r := in.Mesh.GetDnsRefreshRate(); r.AsDuration() > 0 {
		c.DnsRefreshRate = r
	}
	c.RespectDnsTtl = true
	c.DnsJitter = durationpb.New(dnsJitter)
	c.DnsLookupFamily = lookupFamily(in.Caps)
	// A resolver that does not respond must not delay the start of a proxy. [envoy C2]
	c.WaitForWarmOnInit = wrapperspb.Bool(false)
	if in.Caps.Has(mesh.CaresDNS) {
		c.TypedDnsResolverConfig = &corev3.TypedExtensionConfig{
			Name:        "envoy.network.dns_resolver.cares",
			TypedConfig: marshal.MustAny(&caresv3.CaresDnsResolverConfig{UdpMaxQueries: wrapperspb.UInt32(dnsMaxQueries)}),
		}
	}
}

// lookupFamily returns the families that the proxy has. With both, IPv4 is preferred, since external
// hosts with both are more likely to be reachable by it.
func lookupFamily(caps mesh.Capability) clusterv3.Cluster_DnsLookupFamily {
	switch {
	case caps.Has(mesh.IPv4 | mesh.IPv6):
		return clusterv3.Cluster_V4_PREFERRED
	case caps.Has(mesh.IPv6):
		return clusterv3.Cluster_V6_ONLY
	}
	return clusterv3.Cluster_V4_ONLY
}

// closeCluster removes the endpoints of a cluster, so that requests get 503.
//
//nolint:staticcheck // the fields that setDNS sets
func closeCluster(c *clusterv3.Cluster) {
	setType(c, clusterv3.Cluster_STATIC)
	c.EdsClusterConfig = nil
	c.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
	c.LbConfig = nil
	c.LoadAssignment = Assignment(c.Name, nil)
	c.TransportSocket, c.TransportSocketMatches = nil, nil
	c.DnsRefreshRate, c.DnsJitter, c.TypedDnsResolverConfig = nil, nil, nil
	c.RespectDnsTtl, c.WaitForWarmOnInit = false, nil
	c.DnsLookupFamily = clusterv3.Cluster_AUTO
}
