package model_test

import (
	"fmt"
	"net/netip"
	"testing"

	"google.golang.org/protobuf/proto"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// What the status of an Ingress says follows its class, the mesh configuration and the Service of the gateways, which is one of the control
// plane's own cluster and namespace.
func TestAddressesOfIngresses(t *testing.T) {
	g := incr.New()
	m := model.New(g, "cluster.local")
	m.SetOwn(model.Own{Cluster: "one", Namespace: "istio-system"})
	config := mesh.DefaultMeshConfig()
	m.SetMesh(config)
	key := object.Key{Kind: object.Ingress, Namespace: "shop", Name: "web"}
	status := func(r *incr.Reader, _ int) string {
		s := m.GatewayStatus(r, key)
		if s == nil {
			return "none"
		}
		if s.Foreign {
			return fmt.Sprint("foreign ", len(s.Addresses))
		}
		return fmt.Sprint(s.Addresses)
	}
	kept := incr.Derive(g, model.LevelCompile, "kept", status)
	kept.Want(0)
	fresh := incr.Derive(g, model.LevelCompile, "fresh", status)
	gateway := func(cluster, namespace string, ips []string, names ...string) object.Change {
		spec := &object.ServiceSpec{ExternalHostnames: names}
		for _, ip := range ips {
			spec.ExternalAddresses = append(spec.ExternalAddresses, netip.MustParseAddr(ip))
		}
		return inCluster(cluster, object.Service, namespace, "istio-ingressgateway", nil, spec)
	}
	named := gateway("", "istio-system", nil)
	named.Object.Spec = &object.ServiceSpec{Type: "ExternalName", ExternalName: "edge.example.com"}
	other := inCluster("", object.Service, "istio-system", "edge", nil, &object.ServiceSpec{ExternalAddresses: []netip.Addr{netip.MustParseAddr("203.0.113.20")}})
	ingress := func(class string) object.Change {
		return inCluster("", object.Ingress, "shop", "web", nil, &object.IngressSpec{ClassName: class})
	}
	gone := func(c object.Change) object.Change { return object.Change{Key: c.Key} }
	class := inCluster("", object.IngressClass, "", "istio", nil, &object.IngressClassSpec{Controller: mesh.IngressController})
	for i, step := range []struct {
		change object.Change
		mesh   func(*meshv1.MeshConfig)
		want   string
	}{
		{change: ingress("istio"), want: "foreign 0"},
		{change: class, want: "[]"},
		{change: gateway("two", "istio-system", []string{"203.0.113.1"}), want: "[]"},
		{change: gateway("", "shop", []string{"203.0.113.2"}), want: "[]"},
		{change: gateway("", "istio-system", []string{"203.0.113.4", "203.0.113.3"}, "lb.example.com"), want: "[{IPAddress 203.0.113.3} {IPAddress 203.0.113.4} {Hostname lb.example.com}]"},
		{change: gateway("", "istio-system", nil, "lb.example.com"), want: "[{Hostname lb.example.com}]"},
		{change: named, want: "[{Hostname edge.example.com}]"},
		{change: other, want: "[{Hostname edge.example.com}]"},
		{mesh: func(c *meshv1.MeshConfig) { c.IngressService = "edge" }, want: "[{IPAddress 203.0.113.20}]"},
		{mesh: func(c *meshv1.MeshConfig) { c.IngressService = "" }, want: "[]"},
		{mesh: func(c *meshv1.MeshConfig) { c.IngressControllerMode = meshv1.MeshConfig_OFF }, want: "foreign 0"},
		{mesh: func(c *meshv1.MeshConfig) {
			c.IngressControllerMode, c.IngressService = meshv1.MeshConfig_STRICT, "edge"
		}, want: "[{IPAddress 203.0.113.20}]"},
		{change: ingress("nginx"), want: "foreign 0"},
		{change: ingress("istio"), want: "[{IPAddress 203.0.113.20}]"},
		{change: gone(other), want: "[]"},
		{change: gone(class), want: "foreign 0"},
		{change: gone(ingress("istio")), want: "none"},
	} {
		if step.mesh != nil {
			config = proto.CloneOf(config)
			step.mesh(config)
			m.SetMesh(config)
		} else {
			m.Apply([]object.Change{step.change})
		}
		g.Run()
		got := kept.Want(0)
		kept.Unwant(0)
		if again := fresh.Want(0); got != step.want || again != got {
			t.Errorf("step %d: %s, from scratch %s, want %s", i, got, again, step.want)
		}
		fresh.Unwant(0)
	}
}
