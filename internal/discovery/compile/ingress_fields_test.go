package compile_test

import (
	"fmt"
	"maps"
	"reflect"
	"testing"

	"github.com/pilothouse/pilothouse/internal/object"
)

const ingressFieldMesh = `
apiVersion: v1
kind: Service
metadata: {name: a, namespace: shop}
spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80}, {name: other, port: 90}]}
---
apiVersion: v1
kind: Service
metadata: {name: b, namespace: shop}
spec: {clusterIP: 10.96.0.2, ports: [{name: http, port: 80}]}
---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: istio}
spec: {controller: istio.io/ingress-controller}
---
`

// Each field of an Ingress and of an IngressClass is applied: what a router gets depends on it.
func TestEveryFieldOfIngressIsApplied(t *testing.T) {
	base := func() *object.IngressSpec {
		return &object.IngressSpec{
			ClassName: "istio", Default: &object.IngressBackend{Service: "a", Port: 80},
			TLS:   []object.IngressTLS{{Hosts: []string{"a.example.com"}, Secret: "one"}},
			Rules: []object.IngressRule{{Host: "a.example.com", Paths: []object.IngressPath{{Path: "/a", Type: "Prefix", Backend: object.IngressBackend{Service: "a", Port: 80}}}}},
		}
	}
	path := func(s *object.IngressSpec) *object.IngressPath { return &s.Rules[0].Paths[0] }
	cases := map[string]func(*object.IngressSpec){
		"IngressSpec.ClassName": func(s *object.IngressSpec) { s.ClassName = "other" },
		"IngressSpec.Default":   func(s *object.IngressSpec) { s.Default = nil },
		"IngressSpec.Rules":     func(s *object.IngressSpec) { s.Rules = nil },
		"IngressSpec.TLS":       func(s *object.IngressSpec) { s.TLS = nil },
		"IngressTLS.Hosts":      func(s *object.IngressSpec) { s.TLS[0].Hosts = nil },
		"IngressTLS.Secret":     func(s *object.IngressSpec) { s.TLS[0].Secret = "two" },
		"IngressRule.Host":      func(s *object.IngressSpec) { s.Rules[0].Host = "b.example.com" },
		"IngressRule.Paths":     func(s *object.IngressSpec) { s.Rules[0].Paths = nil },
		"IngressPath.Path":      func(s *object.IngressSpec) { path(s).Path = "/b" },
		"IngressPath.Type":      func(s *object.IngressSpec) { path(s).Type = "Exact" },
		"IngressPath.Backend":   func(s *object.IngressSpec) { path(s).Backend.Service = "b" },

		"IngressBackend.Service":  func(s *object.IngressSpec) { s.Default.Service = "b" },
		"IngressBackend.Port":     func(s *object.IngressSpec) { s.Default.Port = 90 },
		"IngressBackend.PortName": func(s *object.IngressSpec) { s.Default.Port, s.Default.PortName = 0, "other" },
		"IngressBackend.Resource": func(s *object.IngressSpec) { *s.Default = object.IngressBackend{Resource: "A b"} },
	}
	reported := map[string]string{"IngressRule.NoHTTP": "package analyze: a rule without http has no paths"}
	for _, typ := range []reflect.Type{
		reflect.TypeFor[object.IngressSpec](), reflect.TypeFor[object.IngressTLS](), reflect.TypeFor[object.IngressRule](), reflect.TypeFor[object.IngressPath](), reflect.TypeFor[object.IngressBackend](),
	} {
		for i := range typ.NumField() {
			if name := typ.Name() + "." + typ.Field(i).Name; cases[name] == nil && reported[name] == "" {
				t.Errorf("%s has no case", name)
			}
		}
	}
	compiled := func(edit func(*object.IngressSpec)) map[string]string {
		w := newWorld()
		w.apply(t, ingressFieldMesh)
		spec := base()
		edit(spec)
		k := object.Key{Kind: object.Ingress, Namespace: "shop", Name: "i"}
		w.model.Apply([]object.Change{{Key: k, Object: &object.Object{Key: k, Spec: spec}}})
		out := map[string]string{}
		for k, v := range w.bytes(w.join(proxy(t, "router~10.9.0.4~gw.istio-system~istio-system.svc.cluster.local", "istio=ingressgateway"))) {
			out[fmt.Sprint(k)] = string(v)
		}
		return out
	}
	before := compiled(func(*object.IngressSpec) {})
	for name, edit := range cases {
		if maps.Equal(before, compiled(edit)) {
			t.Errorf("%s is not applied", name)
		}
	}
}
