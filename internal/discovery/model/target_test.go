package model_test

import (
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// Policies and denials of namespaces a and istio-system, and which of them are for which proxy.
func TestTargets(t *testing.T) {
	const gw = "group: gateway.networking.k8s.io, kind: Gateway, name: "
	policy := func(namespace, name, spec string) string {
		return "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: " + name + ", namespace: " + namespace + "}\nspec: " + spec + "\n"
	}
	text := policy("a", "one", "{targetRefs: [{"+gw+"g}]}") + policy("a", "old", "{targetRef: {"+gw+"g}}") + policy("a", "both", "{targetRefs: [{"+gw+"h}, {"+gw+"g}]}") +
		policy("a", "other", "{targetRefs: [{"+gw+"h}]}") + policy("istio-system", "root", "{targetRefs: [{"+gw+"g}]}") + policy("a", "istio", "{targetRefs: [{group: networking.istio.io, kind: Gateway, name: g}]}") +
		policy("a", "away", "{targetRefs: [{"+gw+"g, namespace: b}]}") + policy("a", "service", "{targetRefs: [{kind: Service, name: g}]}") +
		policy("istio-system", "class", "{targetRefs: [{group: gateway.networking.k8s.io, kind: GatewayClass, name: istio}]}") +
		policy("a", "label", "{selector: {matchLabels: {gateway.networking.k8s.io/gateway-name: g}}}") +
		`---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: manual, namespace: a}
spec: {gatewayClassName: istio, addresses: [{type: Hostname, value: svc.a.svc.cluster.local}], listeners: [{name: http, port: 80, protocol: HTTP}]}
---
apiVersion: v1
kind: Service
metadata: {name: svc, namespace: a}
spec: {clusterIP: 10.0.0.1, selector: {app: manual}, ports: [{port: 80, name: http}]}
` + policy("a", "by-address", "{targetRefs: [{"+gw+"manual}]}")
	for name, c := range map[string]struct {
		key    model.ProxyKey
		want   string
		closed string // by which denials
	}{
		"a gateway":                   {model.ProxyKey{Role: mesh.Router, Namespace: "a", Labels: "gateway.networking.k8s.io/gateway-name=g"}, "a/both a/label a/old a/one", "all g"},
		"a gateway by its address":    {model.ProxyKey{Role: mesh.Router, Namespace: "a", Labels: "app=manual"}, "a/by-address", "all"},
		"one of another name":         {model.ProxyKey{Role: mesh.Router, Namespace: "a", Labels: "gateway.networking.k8s.io/gateway-name=h"}, "a/both a/other", "all"},
		"one of another namespace":    {model.ProxyKey{Role: mesh.Router, Namespace: "b", Labels: "gateway.networking.k8s.io/gateway-name=g"}, "", ""},
		"one of the root namespace":   {model.ProxyKey{Role: mesh.Router, Namespace: "istio-system", Labels: "gateway.networking.k8s.io/gateway-name=g"}, "istio-system/root", "root"},
		"a router of no Gateway":      {model.ProxyKey{Role: mesh.Router, Namespace: "a", Labels: "app=g"}, "", ""},
		"a sidecar":                   {model.ProxyKey{Namespace: "a", Labels: "app=g"}, "", ""},
		"a sidecar with the label":    {model.ProxyKey{Namespace: "a", Labels: "gateway.networking.k8s.io/gateway-name=g"}, "a/both a/label a/old a/one", "all g"},
		"a workload of a denial, too": {model.ProxyKey{Namespace: "a", Labels: "app=w"}, "", "g"},
	} {
		t.Run(name, func(t *testing.T) {
			g := incr.New()
			m := model.New(g, "cluster.local")
			for _, o := range decode.Documents("input.yaml", []byte(text)).Objects {
				m.Apply([]object.Change{{Key: o.Key, Object: &o}})
			}
			closed := incr.Derive(g, model.LevelCompile, "question", func(r *incr.Reader, k model.ProxyKey) bool {
				return m.ModesOf(r, k.Namespace, strings.Fields(m.Classify().Of(r, k).Workload.Policies)).Closed
			})
			m.Classify().Want(c.key)
			closed.Want(c.key)
			g.Run()
			if class, _ := m.Classify().Value(c.key); class.Workload.Authorization != c.want {
				t.Errorf("policies %q, want %q", class.Workload.Authorization, c.want)
			}
			for by, d := range map[string]model.Denial{
				"all": {Name: "x", Namespace: "a", Gateways: "*", Everything: true}, "g": {Name: "x", Namespace: "a", Gateways: "f,g", Labels: "app=w", Everything: true},
				"root": {Name: "x", Namespace: "istio-system", Gateways: "g", Everything: true},
			} {
				want := strings.Contains(c.closed, by)
				m.Deny([]model.Denial{d})
				g.Run()
				if got, _ := closed.Value(c.key); got != want {
					t.Errorf("closed by denial %s: %v, want %v", by, got, want)
				}
				m.Deny(nil)
				g.Run()
				if got, _ := closed.Value(c.key); got {
					t.Errorf("closed without denial %s", by)
				}
			}
		})
	}
}
