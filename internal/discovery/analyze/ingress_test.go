package analyze_test

import (
	"slices"
	"testing"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/analyze"
)

const ingressMesh = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{port: 80, name: http}]}
---
apiVersion: v1
kind: Pod
metadata: {name: gw-1, namespace: istio-system, labels: {istio: ingressgateway}}
spec: {containers: []}
---
apiVersion: v1
kind: Secret
metadata: {name: cert, namespace: istio-system}
---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: istio}
spec: {controller: istio.io/ingress-controller}
---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: other}
spec: {controller: example.com/other, parameters: {kind: A, name: b}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: good, namespace: shop}
spec:
  ingressClassName: istio
  tls: [{hosts: [a.example.com], secretName: cert}]
  defaultBackend: {service: {name: web, port: {name: http}}}
  rules: [{host: a.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: of-other, namespace: shop}
spec: {ingressClassName: other, defaultBackend: {resource: {kind: A, name: b}}}
`

// gateways is the namespace of the gateways' Service in tests that have one.
func gateways(m *meshv1.MeshConfig) string {
	if m.GetIngressService() == "" {
		return ""
	}
	return "istio-system"
}

func TestIngresses(t *testing.T) {
	const ingress = "\n---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: x, namespace: shop}\nspec: "
	off := &meshv1.MeshConfig{IngressControllerMode: meshv1.MeshConfig_OFF, IngressClass: "istio"}
	for i, tt := range []struct {
		text string
		mesh *meshv1.MeshConfig
		want []string
	}{
		{"", nil, nil},
		{ingress + "{ingressClassName: istio, tls: [{hosts: [b.example.com]}, {hosts: [a.example.com], secretName: none}, {hosts: [c.example.com, c.example.com], secretName: cert}], rules: [{host: b.example.com}, {http: {paths: [{path: '/a?b', backend: {service: {name: none, port: {number: 80}}}}, {path: /b, backend: {service: {name: web, port: {number: 81}}}}, {path: /c, backend: {service: {name: web, port: {name: grpc}}}}, {path: /d, backend: {resource: {kind: A, name: b}}}]}}]}", nil, []string{
			"x: spec.tls[0].secretName: not applied: it is missing, and the hosts are not served with TLS",
			"x: spec.tls[1]: not applied: the older Ingress shop/good has a certificate for the host \"a.example.com\"",
			"x: spec.tls[1].secretName: there is no Secret istio-system/none: Secrets are those of the gateway's namespace, and without it the hosts are not served with TLS there",
			"x: spec.tls[2]: not applied: the host \"c.example.com\" is in an entry before",
			"x: spec.rules[0]: not applied: it has no paths, and there is no defaultBackend",
			"x: spec.rules[1].http.paths[0].path: no request has a path with ? or #",
			"x: spec.rules[1].http.paths[0].backend.service.name: no Service or ServiceEntry has the host \"none.shop.svc.cluster.local\"",
			"x: spec.rules[1].http.paths[1].backend.service.port.number: web has no port 81: want 80",
			"x: spec.rules[1].http.paths[2].backend.service.port.name: web has no port \"grpc\": requests get 503",
			"x: spec.rules[1].http.paths[3].backend.resource: backends that are no Services are not supported: requests get 503",
		}},
		{ingress + "{ingressClassName: istio, defaultBackend: {service: {name: web, port: {number: 80}}}}", nil, []string{
			"x: spec.defaultBackend: not applied to hosts without a rule: the older Ingress shop/good has a default backend",
		}},
		{ingress + "{ingressClassName: none, rules: [{}]}", nil, []string{"x: spec.ingressClassName: not served: there is no IngressClass none; add one with spec.controller istio.io/ingress-controller"}},
		{"", off, []string{"good: spec: not served: ingressControllerMode of the mesh configuration is OFF"}},
		{"", &meshv1.MeshConfig{IngressControllerMode: meshv1.MeshConfig_STRICT, IngressSelector: "door"}, []string{
			"good: spec: not served: no workload has the labels istio=door; run a gateway with them, or set ingressSelector or ingressService of the mesh configuration",
		}},
		{"", &meshv1.MeshConfig{IngressControllerMode: meshv1.MeshConfig_STRICT, IngressService: "edge", IngressSelector: "ingressgateway"}, []string{
			"good: status.loadBalancer: not written: there is no Service istio-system/edge, whose addresses it has; run the gateways there, or name their Service of that namespace in ingressService of the mesh configuration, and their label in ingressSelector",
		}},
		{"\n---\napiVersion: v1\nkind: Service\nmetadata: {name: edge, namespace: istio-system}\nspec: {ports: [{port: 80}]}\n", &meshv1.MeshConfig{IngressControllerMode: meshv1.MeshConfig_STRICT, IngressService: "edge", IngressSelector: "ingressgateway"}, nil},
		{"\n---\napiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: a}\nspec: {controller: istio.io/ingress-controller, parameters: {kind: A, name: b}}\n", nil, []string{"a: spec.parameters: not applied: there are none"}},
	} {
		if got := findings(t, ingressMesh+tt.text, analyze.Options{Workloads: true, Mesh: tt.mesh, Gateways: gateways(tt.mesh)}); !slices.Equal(got, tt.want) {
			t.Errorf("%d:\ngot  %q\nwant %q", i, got, tt.want)
		}
	}
}
