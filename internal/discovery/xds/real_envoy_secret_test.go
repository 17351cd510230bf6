package xds

import (
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pilothouse/pilothouse/test/wait"
)

// secretCluster is a cluster with endpoints by EDS and a secret that is never served, without a bound on the wait.
func secretCluster(t testing.TB, name string) *Resource {
	c := &clusterv3.Cluster{
		Name: name, ConnectTimeout: &durationpb.Duration{Seconds: 1},
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads(), ServiceName: name},
	}
	c.TransportSocket = &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{
		TypedConfig: pack(t, &tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
			TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: "missing", SdsConfig: &corev3.ConfigSource{
				ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
					ApiType: corev3.ApiConfigSource_GRPC, TransportApiVersion: corev3.ApiVersion_V3,
					GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: "xds"}}}},
				}},
				InitialFetchTimeout: &durationpb.Duration{}, ResourceApiVersion: corev3.ApiVersion_V3,
			}}},
		}}),
	}}
	return NewCluster(name, encode(t, c), name)
}

// A cluster waits for a secret that is missing. Routes that do not name it, to clusters old and new, change meanwhile.
func TestRealEnvoyClusterWithoutItsSecretDelaysNoOtherRoute(t *testing.T) {
	eachFlavour(t, func(t *testing.T, api string) {
		a, b := backend(t, "a"), backend(t, "b")
		r := newRig(t, api, firstView(t, a))
		url := r.url("in")
		wait.Until(t, "an answer of a", func() bool { return fetch(url) == "a" })
		stop := storm(url, "a", "b")
		warming := func() bool { return r.stat("cluster_manager.warming_clusters") > 0 }
		r.show(r.view.put(secretCluster(t, "secret"), endpoints(t, "secret", a)))
		wait.Until(t, "the cluster that warms", warming)
		for i := range 6 {
			name, port, answer := "next", b, "b"
			if i%2 == 1 {
				name, port, answer = "web", a, "a"
			}
			r.show(r.view.put(edsCluster(t, name, int64(i+2)), endpoints(t, name, port), routes(t, "r", "/", name)))
			wait.Until(t, "an answer of "+answer, func() bool { return fetch(url) == answer })
			if !warming() {
				t.Fatal("the cluster has warmed: the test does not show what it should")
			}
		}
		if sent, wrong := stop(); wrong != "" || sent < 20 {
			t.Errorf("of %d requests one got %q", sent, wrong)
		}
	})
}
