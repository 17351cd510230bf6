package agent

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

const clusterType = "type.googleapis.com/envoy.config.cluster.v3.Cluster"

func host(i int) string { return fmt.Sprintf("s%d.shop.svc.cluster.local", i) }

// staticClusters are clusters with two endpoints each, about as long as those of a mesh.
func staticClusters() map[string]proto.Message {
	m := map[string]proto.Message{}
	for i := range clusters {
		name := "outbound|80||" + host(i)
		c := &clusterv3.Cluster{
			Name: name, ConnectTimeout: durationpb.New(10e9),
			ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
			LoadAssignment:       &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{}}},
		}
		for j := range 2 {
			c.LoadAssignment.Endpoints[0].LbEndpoints = append(c.LoadAssignment.Endpoints[0].LbEndpoints, &endpointv3.LbEndpoint{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: &corev3.Address{
					Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
						Address: fmt.Sprintf("10.%d.%d.%d", j, i>>8, i&255), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 8080},
					}},
				}}},
			})
		}
		m[name] = c
	}
	return m
}

// nameTable is an encoded table of names, each with one address.
func nameTable() []byte {
	var table []byte
	for i := range names {
		table = mesh.AppendNameInfo(table, mesh.NameInfo{
			Host: host(i), IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
			Registry: mesh.KubernetesRegistry, Short: fmt.Sprintf("s%d", i), Namespace: "shop",
		})
	}
	return table
}

// application serves a page of metrics of 60 kB, and returns its port.
func application(b *testing.B) string {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var page strings.Builder
	page.WriteString("# TYPE app_requests_total counter\n")
	for i := range 1000 {
		_, _ = fmt.Fprintf(&page, "app_requests_total{path=\"/products/%04d\",code=\"200\"} %d\n", i, i)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = w.Write([]byte(page.String()))
	})}
	go func() { _ = s.Serve(l) }()
	b.Cleanup(func() { _ = s.Close() })
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	return port
}
