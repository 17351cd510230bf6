package mesh_test

import (
	"testing"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

func TestWhichIngressesAreServed(t *testing.T) {
	ours := mesh.IngressClass{Exists: true, Controller: "istio.io/ingress-controller"}
	other := mesh.IngressClass{Exists: true, Controller: "example.com/other"}
	none := mesh.IngressClass{}
	annotated := func(class string, c mesh.IngressClass) mesh.IngressClass {
		c.Annotation, c.Annotated = class, true
		return c
	}
	const (
		off, byDefault = meshv1.MeshConfig_OFF, meshv1.MeshConfig_DEFAULT
		strict, unset  = meshv1.MeshConfig_STRICT, meshv1.MeshConfig_UNSPECIFIED
	)
	for i, tt := range []struct {
		mode  meshv1.MeshConfig_IngressControllerMode
		class mesh.IngressClass
		want  bool
	}{
		{strict, ours, true}, {strict, other, false}, {strict, none, false},
		{byDefault, ours, true}, {byDefault, other, false}, {byDefault, none, true},
		{off, ours, false}, {off, none, false}, {off, annotated("istio", ours), false}, {unset, ours, false}, {unset, annotated("istio", none), false},
		{strict, annotated("istio", none), true}, {strict, annotated("istio", other), true}, {strict, annotated("nginx", ours), false},
		{byDefault, annotated("nginx", none), false}, {byDefault, annotated("", none), false}, {byDefault, annotated("istio", none), true},
	} {
		m := mesh.DefaultMeshConfig()
		m.IngressControllerMode = tt.mode
		if got := mesh.ServesIngress(m, tt.class); got != tt.want {
			t.Errorf("%d: mode %s, class %+v: served %v", i, tt.mode, tt.class, got)
		}
	}
	if m := (&meshv1.MeshConfig{IngressControllerMode: strict, IngressClass: "a"}); !mesh.ServesIngress(m, annotated("a", none)) || mesh.ServesIngress(m, annotated("istio", none)) {
		t.Error("ingressClass is not used")
	}
}

func TestRoutersOfIngresses(t *testing.T) {
	for _, tt := range []struct{ service, selector, want string }{
		{"istio-ingressgateway", "", "ingressgateway"}, {"", "", "ingressgateway"}, {"edge", "", "edge"}, {"edge", "door", "door"}, {"istio-ingressgateway", "door", "door"},
	} {
		got := mesh.IngressSelector(&meshv1.MeshConfig{IngressService: tt.service, IngressSelector: tt.selector})
		if len(got) != 1 || got["istio"] != tt.want {
			t.Errorf("service %q, selector %q: %v, want istio=%s", tt.service, tt.selector, got, tt.want)
		}
	}
}
