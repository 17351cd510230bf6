package xds

import (
	"slices"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	limitconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/ratelimit/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	authzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	procv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	limitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	tcpauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ext_authz/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcplimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ratelimit/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// someRoutes is a route configuration with every way in which a route names clusters.
func someRoutes(prefix string) *routev3.RouteConfiguration {
	to := func(a *routev3.RouteAction) *routev3.Route {
		return &routev3.Route{Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}, Action: &routev3.Route_Route{Route: a}}
	}
	mirror := func(name string) []*routev3.RouteAction_RequestMirrorPolicy {
		return []*routev3.RouteAction_RequestMirrorPolicy{{Cluster: prefix + name}}
	}
	return &routev3.RouteConfiguration{Name: "r", RequestMirrorPolicies: mirror("mirror-config"), VirtualHosts: []*routev3.VirtualHost{{
		Name: "h", Domains: []string{"h"}, RequestMirrorPolicies: mirror("mirror-host"),
		Routes: []*routev3.Route{
			to(&routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: prefix + "plain"}, RequestMirrorPolicies: mirror("mirror")}),
			to(&routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: prefix + "plain"}}),
			to(&routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_WeightedClusters{WeightedClusters: &routev3.WeightedCluster{
				Clusters: []*routev3.WeightedCluster_ClusterWeight{
					{Name: prefix + "weighted-1", Weight: wrapperspb.UInt32(1)}, {Name: prefix + "weighted-2", Weight: wrapperspb.UInt32(1)}}}}}),
			{Match: &routev3.RouteMatch{}, Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 404}}},
		}}}}
}

func routeNames(prefix string) (out []string) {
	for _, n := range []string{"mirror", "mirror-config", "mirror-host", "plain", "weighted-1", "weighted-2"} {
		out = append(out, prefix+n)
	}
	return out
}

func TestReferencesAreReadFromTheBytes(t *testing.T) {
	chain := func(m proto.Message) *listenerv3.FilterChain {
		return &listenerv3.FilterChain{Filters: []*listenerv3.Filter{{Name: "f", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(t, m)}}}}
	}
	http := func(prefix string) proto.Message {
		return &hcmv3.HttpConnectionManager{RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: someRoutes(prefix)}}
	}
	l := &listenerv3.Listener{
		Name: "l", DefaultFilterChain: chain(&tcpv3.TcpProxy{ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: "tcp"}}),
		FilterChains: []*listenerv3.FilterChain{chain(http("inline-")), chain(&tcpv3.TcpProxy{ClusterSpecifier: &tcpv3.TcpProxy_WeightedClusters{
			WeightedClusters: &tcpv3.TcpProxy_WeightedCluster{Clusters: []*tcpv3.TcpProxy_WeightedCluster_ClusterWeight{{Name: "tcp-weighted", Weight: 1}}}}})},
		ApiListener: &listenerv3.ApiListener{ApiListener: pack(t, http("api-"))},
	}
	extension := func(m proto.Message) []byte {
		return encode(t, &corev3.TypedExtensionConfig{Name: "e", TypedConfig: pack(t, m)})
	}
	grpc := &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: "grpc"}}}
	for _, c := range []struct {
		typ   Type
		value []byte
		want  []string
	}{
		{RDS, encode(t, someRoutes("")), routeNames("")},
		{LDS, encode(t, l), slices.Sorted(slices.Values(slices.Concat(routeNames("inline-"), routeNames("api-"), []string{"tcp", "tcp-weighted"})))},
		{LDS, encode(t, &listenerv3.Listener{Name: "none"}), nil},
		{LDS, encode(t, &listenerv3.Listener{Name: "l", DefaultFilterChain: chain(&tcpv3.TcpProxy{ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: mesh.InvalidBackend}})}), nil},
		{CDS, encode(t, &clusterv3.Cluster{Name: "c"}), nil},
		{ECDS, extension(&tcpv3.TcpProxy{ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: "tcp"}}), []string{"tcp"}},
		{ECDS, extension(&tcpauthzv3.ExtAuthz{GrpcService: grpc}), []string{"grpc"}},
		{ECDS, extension(&authzv3.ExtAuthz{Services: &authzv3.ExtAuthz_GrpcService{GrpcService: grpc}}), []string{"grpc"}},
		{ECDS, extension(&authzv3.ExtAuthz{Services: &authzv3.ExtAuthz_HttpService{HttpService: &authzv3.HttpService{ServerUri: &corev3.HttpUri{
			Uri: "http://x", HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: "http"}}}}}), []string{"http"}},
		{ECDS, extension(&procv3.ExternalProcessor{GrpcService: grpc}), []string{"grpc"}},
		{ECDS, extension(&limitv3.RateLimit{RateLimitService: &limitconfigv3.RateLimitServiceConfig{GrpcService: grpc}}), []string{"grpc"}},
		{ECDS, extension(&tcplimitv3.RateLimit{RateLimitService: &limitconfigv3.RateLimitServiceConfig{GrpcService: grpc}}), []string{"grpc"}},
		{ECDS, extension(&corev3.Pipe{Path: "of a type that names none"}), nil},
	} {
		got := NewResource(c.typ, "n", c.value).refers
		if !slices.Equal(got.names, c.want) || got.unknown {
			t.Errorf("%s refers to %q, want %q", c.typ, got.names, c.want)
		}
		for _, n := range c.want {
			if !got.has(n) || got.has(n+"x") {
				t.Errorf("%s: has(%q), has(%q) = %v, %v, want true, false", c.typ, n, n+"x", got.has(n), got.has(n+"x"))
			}
		}
	}
}

// Whatever cannot be read may refer to anything.
func TestReferencesOfMalformedBytesAreUnknown(t *testing.T) {
	whole := encode(t, someRoutes(""))
	if f := NewResource(RDS, "r", whole[:len(whole)-1]).refers; !f.unknown || !f.has("any") || f.none() {
		t.Errorf("got %+v, want unknown", f)
	}
}

func TestReferencesOfEqualSetsAreShared(t *testing.T) {
	a, b := NewResource(RDS, "a", encode(t, someRoutes(""))).refers, NewResource(RDS, "b", encode(t, someRoutes(""))).refers
	if a.joined != b.joined || len(a.added(b)) != 0 {
		t.Error("two handles for one set")
	}
	more := newReferences(append(slices.Clone(a.names), "x"))
	if got := more.added(a); !slices.Equal(got, []string{"x"}) || len(a.added(more)) != 0 {
		t.Errorf("added %q and %q, want x and nothing", got, a.added(more))
	}
	if got := a.added(references{}); !slices.Equal(got, routeNames("")) {
		t.Errorf("added to nothing: %q", got)
	}
	if a.added(references{unknown: true}) != nil || (references{unknown: true}).added(a) != nil {
		t.Error("what is unknown has names added")
	}
}

func TestClustersThatWarmSlowlyAreKnown(t *testing.T) {
	for typ, want := range map[clusterv3.Cluster_DiscoveryType]bool{
		clusterv3.Cluster_STATIC: false, clusterv3.Cluster_EDS: false, clusterv3.Cluster_ORIGINAL_DST: false,
		clusterv3.Cluster_STRICT_DNS: true, clusterv3.Cluster_LOGICAL_DNS: true,
	} {
		r := NewCluster("c", encode(t, &clusterv3.Cluster{Name: "c", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: typ}}), "")
		if r.slow != want {
			t.Errorf("%s warms slowly: %v, want %v", typ, r.slow, want)
		}
	}
	for secret, want := range map[string]bool{mesh.SecretDefault: false, mesh.SecretRoot: false, mesh.SecretFileCert + "a~b": true} {
		tls := &tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
			TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: secret}},
			ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				ValidationContextSdsSecretConfig: &tlsv3.SdsSecretConfig{Name: mesh.SecretRoot}}}}}
		socket := &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(t, tls)}}
		for _, c := range []*clusterv3.Cluster{{TransportSocket: socket},
			{TransportSocketMatches: []*clusterv3.Cluster_TransportSocketMatch{{Name: "m", TransportSocket: socket}}}} {
			if r := NewCluster("c", encode(t, c), ""); r.slow != want {
				t.Errorf("cluster with secret %s warms slowly: %v, want %v", secret, r.slow, want)
			}
		}
	}
}
