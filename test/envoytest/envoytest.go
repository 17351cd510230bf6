// Package envoytest checks configuration with a real Envoy.
//
// The binary is that of [require.EnvoyPath]. Packages whose tests use it call [require.Envoy] in TestMain.
package envoytest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/require"
)

const (
	// XDSCluster is the cluster of Bootstrap's ADS; nothing listens at its address.
	XDSCluster = mesh.XDSCluster
	// SDSCluster is the cluster of secrets.
	SDSCluster = mesh.SDSCluster
	// bound is how long one validation may take on a busy machine.
	bound = 60 * time.Second
)

// Binary is the path of the Envoy to test with.
func Binary(t testing.TB) string {
	t.Helper()
	p, err := require.EnvoyPath()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Bootstrap is a bootstrap with the clusters that resources of a mesh refer to: ADS and SDS.
func Bootstrap() *bootstrapv3.Bootstrap {
	return &bootstrapv3.Bootstrap{
		Node: &corev3.Node{Id: "sidecar~10.0.0.1~a.b~b.svc.cluster.local", Cluster: "a.b"},
		DynamicResources: &bootstrapv3.Bootstrap_DynamicResources{AdsConfig: &corev3.ApiConfigSource{
			ApiType: corev3.ApiConfigSource_DELTA_GRPC, TransportApiVersion: corev3.ApiVersion_V3,
			GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: XDSCluster},
			}}},
		}},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{Clusters: []*clusterv3.Cluster{static(XDSCluster), static(SDSCluster)}},
	}
}

func static(name string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		ConnectTimeout:       durationpb.New(time.Second),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
					Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 1},
				}}},
			}}}},
		}}},
	}
}

// Check runs Envoy with --mode validate and returns its output; err is nil if it accepts the bootstrap.
func Check(t testing.TB, b *bootstrapv3.Bootstrap) (string, error) {
	t.Helper()
	config, err := protojson.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "bootstrap.json")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	out, err := exec.CommandContext(ctx, Binary(t), "--mode", "validate", "-c", file, "-l", "warning").CombinedOutput()
	return string(out), err
}

// Validate fails the test if Envoy rejects the bootstrap.
func Validate(t testing.TB, b *bootstrapv3.Bootstrap) {
	t.Helper()
	if out, err := Check(t, b); err != nil {
		t.Fatalf("envoy --mode validate: %v\n%s", err, out)
	}
}
