// Package proxyless makes the resources that gRPC libraries take, which are proxies of their own.
//
// It consists of pure functions of values: equal values give equal messages. A library refuses a resource with a field that it
// does not know in some places and passes over it in others, so that messages have only what all libraries apply. What they do
// not apply is left out, and told by NotApplied. There are no errors: where something left out would make a connection less
// secure, there is no cluster. Names and shapes are those of [control-plane 1.6.12].
package proxyless

import (
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

const tlsSocket = "envoy.transport_sockets.tls"

// ClientListener returns what a client dials by name, with the route configuration of that name.
func ClientListener(name, routes string) *listenerv3.Listener {
	return &listenerv3.Listener{Name: name, ApiListener: &listenerv3.ApiListener{ApiListener: marshal.MustAny(&hcmv3.HttpConnectionManager{
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: ads(), RouteConfigName: routes}},
		HttpFilters: []*hcmv3.HttpFilter{
			filter("envoy.filters.http.fault", &faultv3.HTTPFault{}),
			filter("envoy.filters.http.router", &routerv3.Router{}),
		},
	})}}
}

func ads() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}, ResourceApiVersion: corev3.ApiVersion_V3,
	}
}

func filter(name string, m proto.Message) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: marshal.MustAny(m)}}
}

// Server is the plan of a server's listener.
type Server struct {
	// Name is that of the listener, Address and Port where the server listens.
	Name, Address string
	Port          uint32
	// Mutual requires the mesh's mutual TLS. Otherwise the server uses the credentials that the application chose for that.
	Mutual bool
	// Closed has every request fail.
	Closed bool
}

// ServerListener returns the listener of a server.
func ServerListener(s Server) *listenerv3.Listener {
	host := &routev3.VirtualHost{Name: "inbound", Domains: []string{"*"}}
	if !s.Closed {
		host.Routes = []*routev3.Route{{
			Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action: &routev3.Route_NonForwardingAction{NonForwardingAction: &routev3.NonForwardingAction{}},
		}}
	}
	chain := &listenerv3.FilterChain{Name: "inbound", Filters: []*listenerv3.Filter{{
		Name: "inbound-hcm",
		ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: marshal.MustAny(&hcmv3.HttpConnectionManager{
			RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
				Name: "inbound", VirtualHosts: []*routev3.VirtualHost{host},
			}},
			HttpFilters: []*hcmv3.HttpFilter{filter("envoy.filters.http.router", &routerv3.Router{})},
		})},
	}}}
	if s.Mutual {
		chain.TransportSocket = socket(&tlsv3.DownstreamTlsContext{CommonTlsContext: commonTLS(nil), RequireClientCertificate: wrapperspb.Bool(true)})
	}
	return &listenerv3.Listener{
		Name: s.Name,
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: s.Address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: s.Port},
		}}},
		FilterChains: []*listenerv3.FilterChain{chain},
	}
}

func socket(m proto.Message) *corev3.TransportSocket {
	return &corev3.TransportSocket{Name: tlsSocket, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: marshal.MustAny(m)}}
}

// commonTLS returns the mesh's mutual TLS with the certificates of the provider in the bootstrap, in the fields of old and new
// libraries. TLS parameters and ALPN are the library's. A server takes no names.
func commonTLS(sans []string) *tlsv3.CommonTlsContext {
	v := &tlsv3.CertificateValidationContext{CaCertificateProviderInstance: plugin(mesh.SecretRoot)}
	for _, s := range sans {
		//nolint:staticcheck // the only field that libraries read
		v.MatchSubjectAltNames = append(v.MatchSubjectAltNames, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: s}})
	}
	//nolint:staticcheck // the deprecated fields are those of old libraries
	return &tlsv3.CommonTlsContext{
		TlsCertificateProviderInstance:            plugin(mesh.SecretDefault),
		TlsCertificateCertificateProviderInstance: deprecatedPlugin(mesh.SecretDefault),
		ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext:                     v,
				ValidationContextCertificateProviderInstance: deprecatedPlugin(mesh.SecretRoot),
			},
		},
	}
}

func plugin(certificate string) *tlsv3.CertificateProviderPluginInstance {
	return &tlsv3.CertificateProviderPluginInstance{InstanceName: mesh.ProxylessProvider, CertificateName: certificate}
}

func deprecatedPlugin(certificate string) *tlsv3.CommonTlsContext_CertificateProviderInstance {
	return &tlsv3.CommonTlsContext_CertificateProviderInstance{InstanceName: mesh.ProxylessProvider, CertificateName: certificate}
}

// Cluster is the plan of a client's cluster.
type Cluster struct {
	Name   string
	Policy *networking.TrafficPolicy // nil for none
	// AutoMTLS uses the mesh's mutual TLS if Policy has no TLS settings. SANs are the identities that a server may have; none for
	// any of the mesh. SNI is the server name, which most libraries do not send.
	AutoMTLS bool
	SANs     []string
	SNI      string
	// EDS takes endpoints from EDS, under the cluster's name. Otherwise the first of Endpoints has a name that is resolved.
	EDS       bool
	Endpoints []cluster.Endpoint
}

// BuildCluster returns a client's cluster; nil if there can be none: because of TLS settings other than those of the mesh, or
// without any name to resolve.
func BuildCluster(in Cluster) *clusterv3.Cluster {
	out := &clusterv3.Cluster{Name: in.Name}
	switch {
	case in.EDS:
		out.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
		out.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{ServiceName: in.Name, EdsConfig: ads()}
	case len(in.Endpoints) == 0 || !dialable(in.Endpoints[0]):
		return nil
	default:
		out.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_LOGICAL_DNS}
		out.LoadAssignment = cluster.Assignment(in.Name, in.Endpoints[:1])
		out.LoadAssignment.Endpoints[0].LbEndpoints[0].Metadata = nil
	}
	if in.Policy.GetLoadBalancer().GetConsistentHash() != nil {
		out.LbPolicy = clusterv3.Cluster_RING_HASH
		ring := &clusterv3.Cluster_RingHashLbConfig{}
		if n := ringSize(in.Policy.GetLoadBalancer().GetConsistentHash()); n > 0 {
			ring.MinimumRingSize = wrapperspb.UInt64(n)
		}
		out.LbConfig = &clusterv3.Cluster_RingHashLbConfig_{RingHashLbConfig: ring}
	}
	if n := in.Policy.GetConnectionPool().GetHttp().GetHttp2MaxRequests(); n > 0 {
		out.CircuitBreakers = &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{MaxRequests: wrapperspb.UInt32(uint32(n))}}}
	}
	t := in.Policy.GetTls()
	switch {
	case t == nil && !in.AutoMTLS, t != nil && t.Mode == networking.ClientTLSSettings_DISABLE:
		return out
	case t != nil && t.Mode != networking.ClientTLSSettings_ISTIO_MUTUAL:
		return nil
	}
	sans, sni := in.SANs, in.SNI
	if len(t.GetSubjectAltNames()) > 0 {
		sans = t.GetSubjectAltNames()
	}
	if t.GetSni() != "" {
		sni = t.GetSni()
	}
	out.TransportSocket = socket(&tlsv3.UpstreamTlsContext{Sni: sni, CommonTlsContext: commonTLS(sans)})
	return out
}

// maxRing is the largest ring that libraries take.
const maxRing = 8 << 20

func ringSize(h *networking.LoadBalancerSettings_ConsistentHashLB) uint64 {
	n := h.GetRingHash().GetMinimumRingSize()
	if n == 0 {
		n = h.GetMinimumRingSize() //nolint:staticcheck // deprecated, but supported
	}
	return min(n, maxRing)
}

// dialable reports whether a library can connect to an endpoint: it has no sockets of files.
func dialable(e cluster.Endpoint) bool { return !strings.HasPrefix(e.Address, mesh.UnixSocket) }

// Endpoints returns the endpoints that a library takes: each address once, since it refuses an assignment in which one is twice.
func Endpoints(list []cluster.Endpoint) []cluster.Endpoint {
	type at struct {
		address string
		port    uint32
	}
	seen := map[at]bool{}
	fresh := func(address string, port uint32) bool {
		k := at{address, port}
		defer func() { seen[k] = true }()
		return !seen[k]
	}
	var out []cluster.Endpoint
	for _, e := range list {
		if !dialable(e) || !fresh(e.Address, e.Port) {
			continue
		}
		e.Others = slices.DeleteFunc(slices.Clone(e.Others), func(a string) bool { return !fresh(a, e.Port) })
		out = append(out, e)
	}
	return out
}
