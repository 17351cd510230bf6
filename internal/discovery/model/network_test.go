package model_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// inCluster returns an object of a cluster, the control plane's own if that is empty.
func inCluster(cluster string, kind object.Kind, namespace, name string, labels map[string]string, spec any) object.Change {
	k := object.Key{Kind: kind, Namespace: namespace, Name: name, Cluster: cluster}
	return object.Change{Key: k, Object: &object.Object{Key: k, Meta: object.Meta{Labels: labels}, Spec: spec}}
}

// shop is the Service shop/api in a cluster, with one Pod on one Node; the Pod's address is the same in all clusters.
func shop(cluster, vip, region string, podLabels map[string]string) []object.Change {
	ip := netip.MustParseAddr("10.0.0.1")
	return []object.Change{
		inCluster(cluster, object.Namespace, "", "istio-system", nil, nil),
		inCluster(cluster, object.Node, "", "n1", nil, &object.NodeSpec{Region: region}),
		inCluster(cluster, object.Service, "shop", "api", nil, &object.ServiceSpec{
			ClusterIPs: []netip.Addr{netip.MustParseAddr(vip)}, Selector: map[string]string{"app": "api"}, Ports: []object.ServicePort{{Name: "http", Port: 80}},
		}),
		inCluster(cluster, object.Pod, "shop", "api-0", podLabels, &object.PodSpec{IPs: []netip.Addr{ip}, NodeName: "n1", Ready: true, ServiceAccount: "api"}),
		inCluster(cluster, object.EndpointSlice, "shop", "api-x", nil, &object.EndpointSliceSpec{
			Service: "api", Ports: []object.SlicePort{{Name: "http", Port: 8080}},
			Endpoints: []object.SliceEndpoint{{Addresses: []netip.Addr{ip}, Ready: true, Pod: "api-0", NodeName: "n1"}},
		}),
	}
}

// evaluate returns what a rule with f returns, of a model that the control plane of cluster one in istio-system has.
func evaluate[T any](build func(*model.Model), f func(*incr.Reader, *model.Model) T) T {
	g := incr.New()
	m := model.New(g, "cluster.local")
	m.SetOwn(model.Own{Cluster: "one", Namespace: "istio-system"})
	build(m)
	return incr.Derive(g, model.LevelCompile, "question", func(r *incr.Reader, _ int) T { return f(r, m) }).Want(0)
}

func labels(pairs ...string) map[string]string {
	out := map[string]string{"app": "api"}
	for _, p := range pairs {
		k, v, _ := strings.Cut(p, "=")
		out[k] = v
	}
	return out
}

// The endpoints of a Service in several clusters are joined, each with the cluster, the Node and the network that it is
// on, also if they have the same address.
func TestEndpointsOfAllClustersAreJoined(t *testing.T) {
	build := func(m *model.Model) {
		m.Apply(shop("", "10.96.0.1", "r1", labels()))
		m.Apply(shop("two", "10.96.0.2", "r2", labels()))
		m.Apply(shop("three", "10.96.0.3", "r3", labels("topology.istio.io/network=net-x")))
		m.Apply([]object.Change{inCluster("two", object.Namespace, "", "istio-system", map[string]string{"topology.istio.io/network": "net-2"}, nil)})
		m.SetNetworks(&meshv1.MeshNetworks{Networks: map[string]*meshv1.Network{
			"net-1": {Endpoints: []*meshv1.Network_NetworkEndpoints{{Ne: &meshv1.Network_NetworkEndpoints_FromCidr{FromCidr: "10.0.0.0/24"}}}},
			"net-0": {Endpoints: []*meshv1.Network_NetworkEndpoints{{Ne: &meshv1.Network_NetworkEndpoints_FromRegistry{FromRegistry: "two"}}}},
		}})
	}
	for _, key := range []string{"Service/shop/api", "Service/shop/api/two"} {
		got := evaluate(build, func(r *incr.Reader, m *model.Model) (out []string) {
			for _, i := range m.Instances(r, key) {
				out = append(out, fmt.Sprintf("%s:%d %s %s %s", i.Address, i.Ports[80], i.ClusterID, i.Locality.Region, i.Network))
			}
			return out
		})
		want := []string{"10.0.0.1:8080 one r1 net-1", "10.0.0.1:8080 three r3 net-x", "10.0.0.1:8080 two r2 net-2"}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("endpoints of %s: %q, want %q", key, got, want)
		}
	}
	subset := evaluate(build, func(r *incr.Reader, m *model.Model) (n int) {
		for _, i := range m.Instances(r, "Service/shop/api") {
			if i.Subset(map[string]string{"topology.istio.io/cluster": "two", "app": "api"}) {
				n++
			}
		}
		return n
	})
	if subset != 1 {
		t.Errorf("%d endpoints have the label of cluster two, want 1", subset)
	}
}

// A proxy's Services and Pod are those of its cluster; one that is not known counts as the control plane's own.
func TestProxyIsOfItsCluster(t *testing.T) {
	build := func(m *model.Model) {
		m.Apply(shop("", "10.96.0.1", "r1", labels()))
		m.Apply(shop("two", "10.96.0.2", "r2", labels("topology.istio.io/network=net-2")))
	}
	for id, want := range map[string]string{
		"": " 10.96.0.1 Service/shop/api@80>80 r1 ", "one": " 10.96.0.1 Service/shop/api@80>80 r1 ",
		"two": "two 10.96.0.2 Service/shop/api/two@80>80 r2 net-2", "nobody": " 10.96.0.1 Service/shop/api@80>80 r1 ",
	} {
		var vip string
		c := evaluate(build, func(r *incr.Reader, m *model.Model) mesh.Class {
			c := m.Classify().Of(r, model.ProxyKey{Role: mesh.Sidecar, Namespace: "shop", Name: "api-0", IPs: "10.0.0.1", Location: mesh.Location{Cluster: id}})
			vip = m.Service(r, c.Scope.ID(), "api.shop.svc.cluster.local").Addresses.VIPs[0].String()
			return c
		})
		got := strings.Join([]string{c.Scope.Cluster, vip, c.Workload.Services, c.Location.Locality.Region, c.Location.Network}, " ")
		if got != want {
			t.Errorf("cluster %q: %q, want %q", id, got, want)
		}
	}
	claim := evaluate(build, func(r *incr.Reader, m *model.Model) string {
		return m.Claims().Of(r, model.ProxyKey{Role: mesh.Sidecar, Namespace: "shop", Name: "api-0", Account: "other", IPs: "10.0.0.9", Location: mesh.Location{Cluster: "nobody"}})
	})
	if claim == "" {
		t.Error("a proxy of an unknown cluster may have the name of another account's Pod")
	}
}

// Gateways are found by address, by the name of a Service in the network's clusters, and by label.
func TestNetworkGateways(t *testing.T) {
	gateway := func(cluster, name, ip string, labels map[string]string) object.Change {
		return inCluster(cluster, object.Service, "istio-system", name, labels, &object.ServiceSpec{ExternalAddresses: []netip.Addr{netip.MustParseAddr(ip)}})
	}
	build := func(m *model.Model) {
		m.Apply([]object.Change{
			gateway("", "eastwest", "192.0.2.1", map[string]string{"topology.istio.io/network": "net-1"}),
			gateway("two", "eastwest", "192.0.2.2", map[string]string{"topology.istio.io/network": "net-2", "networking.istio.io/gatewayPort": "443"}),
			gateway("three", "ingress", "192.0.2.3", nil), gateway("", "ingress", "192.0.2.4", nil),
		})
		m.SetNetworks(&meshv1.MeshNetworks{Networks: map[string]*meshv1.Network{
			"net-3": {
				Endpoints: []*meshv1.Network_NetworkEndpoints{{Ne: &meshv1.Network_NetworkEndpoints_FromRegistry{FromRegistry: "three"}}},
				Gateways: []*meshv1.Network_IstioNetworkGateway{
					{Gw: &meshv1.Network_IstioNetworkGateway_RegistryServiceName{RegistryServiceName: "ingress.istio-system.svc.cluster.local"}, Port: 15444},
					{Gw: &meshv1.Network_IstioNetworkGateway_Address{Address: "192.0.2.5"}},
				},
			},
		}})
	}
	all := evaluate(build, func(r *incr.Reader, m *model.Model) []model.NetworkGateway { return m.NetworkGateways(r) })
	want := []model.NetworkGateway{
		{Network: "net-1", Address: "192.0.2.1", Port: 15443, Cluster: "one"}, {Network: "net-2", Address: "192.0.2.2", Port: 443, Cluster: "two"},
		{Network: "net-3", Address: "192.0.2.3", Port: 15444, Cluster: "three"}, {Network: "net-3", Address: "192.0.2.5", Port: 15443},
	}
	if !slices.Equal(all, want) {
		t.Errorf("gateways %+v, want %+v", all, want)
	}
	if near := model.GatewaysOf(all, "net-3", "three"); len(near) != 1 || near[0].Address != "192.0.2.3" {
		t.Errorf("gateways of cluster three: %+v, want that in it", near)
	}
	if far := model.GatewaysOf(all, "net-3", "four"); len(far) != 2 {
		t.Errorf("gateways of cluster four: %+v, want both", far)
	}
}
