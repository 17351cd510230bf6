package compile_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// farShop is the Service shop/api of a cluster in a network, with Pods at addresses; those with plain do not accept mutual TLS.
func farShop(cluster, network string, plain bool, region string, ips ...string) (out []object.Change) {
	put := func(kind object.Kind, ns, name string, labels map[string]string, spec any) {
		k := object.Key{Kind: kind, Namespace: ns, Name: name, Cluster: cluster}
		out = append(out, object.Change{Key: k, Object: &object.Object{Key: k, Meta: object.Meta{Labels: labels}, Spec: spec}})
	}
	put(object.Namespace, "", "istio-system", map[string]string{"topology.istio.io/network": network}, nil)
	put(object.Service, "shop", "api", nil, &object.ServiceSpec{
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.7")}, Selector: map[string]string{"app": "api"}, Ports: []object.ServicePort{{Name: "http", Port: 80}},
	})
	slice := &object.EndpointSliceSpec{Service: "api", Ports: []object.SlicePort{{Name: "http", Port: 8080}}}
	put(object.Node, "", "n", nil, &object.NodeSpec{Region: region})
	for i, ip := range ips {
		labels, name := map[string]string{"app": "api"}, fmt.Sprintf("api-%d", i)
		if !plain {
			labels[mesh.TLSModeLabel] = "istio"
		}
		a := netip.MustParseAddr(ip)
		put(object.Pod, "shop", name, labels, &object.PodSpec{IPs: []netip.Addr{a}, Ready: true, NodeName: "n"})
		slice.Endpoints = append(slice.Endpoints, object.SliceEndpoint{Addresses: []netip.Addr{a}, Ready: true, Pod: name})
	}
	put(object.EndpointSlice, "shop", "api", nil, slice)
	return out
}

// assignmentFor returns "address:port weight region tls" for each endpoint of the Service that a proxy gets, sorted.
func assignmentFor(t *testing.T, w *world, cluster, network string) (out []string) {
	t.Helper()
	class := w.join(inCluster(proxy(t, "sidecar~10.8.0.1~client.shop~shop.svc.cluster.local", "app=client"), cluster, network))
	for k, body := range w.bytes(class) {
		if k.Kind != compile.Endpoints || k.Name != "outbound|80||api.shop.svc.cluster.local" {
			continue
		}
		var la endpointv3.ClusterLoadAssignment
		if err := proto.Unmarshal(body, &la); err != nil {
			t.Fatal(err)
		}
		for _, l := range la.Endpoints {
			for _, e := range l.LbEndpoints {
				at, tls := e.GetEndpoint().GetAddress().GetSocketAddress(), "plain"
				if e.GetMetadata().GetFilterMetadata()["envoy.transport_socket_match"] != nil {
					tls = "tls"
				}
				out = append(out, fmt.Sprintf("%s:%d %d %s %s", at.GetAddress(), at.GetPortValue(), e.GetLoadBalancingWeight().GetValue(), l.GetLocality().GetRegion(), tls))
			}
		}
	}
	slices.Sort(out)
	return out
}

// Endpoints of another network are replaced by its gateways, with the sum of their weights and only with mutual TLS;
// those of the same network, of an unknown one and of one without gateways stay.
func TestEndpointsOfAnotherNetwork(t *testing.T) {
	w := newWorld()
	w.model.Apply(farShop("", "net-1", false, "r1", "10.1.0.1"))
	w.model.Apply(farShop("two", "net-2", false, "r2", "10.2.0.1", "10.2.0.2", "10.2.0.3"))
	w.model.Apply(farShop("three", "net-3", false, "r3", "10.3.0.1"))
	w.model.Apply(farShop("four", "net-4", true, "r4", "10.4.0.1"))
	direct := []string{"10.1.0.1:8080 1 r1 tls", "10.2.0.1:8080 1 r2 tls", "10.2.0.2:8080 1 r2 tls", "10.2.0.3:8080 1 r2 tls", "10.3.0.1:8080 1 r3 tls", "10.4.0.1:8080 1 r4 plain"}
	if got := assignmentFor(t, w, "", "net-1"); !slices.Equal(got, direct) {
		t.Errorf("without gateways: %q, want %q", got, direct)
	}
	address := func(a string) *meshv1.Network_IstioNetworkGateway {
		return &meshv1.Network_IstioNetworkGateway{Gw: &meshv1.Network_IstioNetworkGateway_Address{Address: a}}
	}
	w.model.SetNetworks(&meshv1.MeshNetworks{Networks: map[string]*meshv1.Network{
		"net-1": {Gateways: []*meshv1.Network_IstioNetworkGateway{address("192.0.2.1")}},
		"net-2": {Gateways: []*meshv1.Network_IstioNetworkGateway{address("192.0.2.2"), address("192.0.2.3")}},
		"net-4": {Gateways: []*meshv1.Network_IstioNetworkGateway{address("192.0.2.4")}},
	}})
	w.run()
	for _, tt := range []struct {
		cluster, network string
		want             []string
	}{
		{"", "net-1", []string{"10.1.0.1:8080 2 r1 tls", "10.3.0.1:8080 2 r3 tls", "192.0.2.2:15443 3 r2 tls", "192.0.2.3:15443 3 r2 tls"}},
		{"", "", []string{"10.1.0.1:8080 2 r1 tls", "10.3.0.1:8080 2 r3 tls", "192.0.2.2:15443 3 r2 tls", "192.0.2.3:15443 3 r2 tls"}}, // that of its cluster
		{"two", "", []string{"10.2.0.1:8080 1 r2 tls", "10.2.0.2:8080 1 r2 tls", "10.2.0.3:8080 1 r2 tls", "10.3.0.1:8080 1 r3 tls", "192.0.2.1:15443 1 r1 tls"}},
		{"four", "", []string{"10.3.0.1:8080 2 r3 tls", "10.4.0.1:8080 2 r4 plain", "192.0.2.1:15443 2 r1 tls", "192.0.2.2:15443 3 r2 tls", "192.0.2.3:15443 3 r2 tls"}},
	} {
		if got := assignmentFor(t, w, tt.cluster, tt.network); !slices.Equal(got, tt.want) {
			t.Errorf("in cluster %q and network %q: %q, want %q", tt.cluster, tt.network, got, tt.want)
		}
	}
	w.apply(t, "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: api, namespace: shop}\nspec: {host: api, trafficPolicy: {tls: {mode: DISABLE}}}\n")
	w.run()
	if got, want := assignmentFor(t, w, "", "net-1"), []string{"10.1.0.1:8080 1 r1 tls", "10.3.0.1:8080 1 r3 tls"}; !slices.Equal(got, want) {
		t.Errorf("with a rule that turns mutual TLS off: %q, want %q", got, want)
	}
}

// A router sends what it forwards to endpoints of its own network only, which it reaches, and to those of an unknown one.
func TestPassthroughStaysInTheNetwork(t *testing.T) {
	w := newWorld()
	w.model.Apply(farShop("", "net-1", false, "r1", "10.1.0.1"))
	w.model.Apply(farShop("two", "net-2", false, "r2", "10.2.0.1", "10.2.0.2"))
	w.model.Apply(farShop("three", "", false, "r3", "10.3.0.1"))
	w.model.Apply(farShop("four", "net-2", true, "r4", "10.4.0.1"))
	w.model.SetNetworks(&meshv1.MeshNetworks{Networks: map[string]*meshv1.Network{
		"net-1": {Gateways: []*meshv1.Network_IstioNetworkGateway{{Gw: &meshv1.Network_IstioNetworkGateway_Address{Address: "192.0.2.1"}}}},
	}})
	w.apply(t, `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: cross-network, namespace: istio-system}
spec: {selector: {istio: eastwest}, servers: [{port: {number: 15443, protocol: TLS}, tls: {mode: AUTO_PASSTHROUGH}, hosts: ["*.local"]}]}
`)
	for _, tt := range []struct {
		cluster, network string
		want             []string
	}{
		{"", "", []string{"10.1.0.1", "10.3.0.1"}}, // that of its cluster
		{"two", "", []string{"10.2.0.1", "10.2.0.2", "10.3.0.1"}},
		{"", "net-2", []string{"10.2.0.1", "10.2.0.2", "10.3.0.1"}},
		{"three", "", []string{"10.1.0.1", "10.2.0.1", "10.2.0.2", "10.3.0.1"}},
	} {
		class := w.join(inCluster(proxy(t, "router~10.8.0.1~gw.istio-system~istio-system.svc.cluster.local", "istio=eastwest"), tt.cluster, tt.network))
		var got []string
		for k, body := range w.bytes(class) {
			if k.Kind != compile.Endpoints || k.Name != "outbound_.80_._.api.shop.svc.cluster.local" {
				continue
			}
			var la endpointv3.ClusterLoadAssignment
			if err := proto.Unmarshal(body, &la); err != nil {
				t.Fatal(err)
			}
			for _, l := range la.Endpoints {
				for _, e := range l.LbEndpoints {
					got = append(got, e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress())
				}
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, tt.want) {
			t.Errorf("in cluster %q and network %q: %q, want %q", tt.cluster, tt.network, got, tt.want)
		}
	}
}
