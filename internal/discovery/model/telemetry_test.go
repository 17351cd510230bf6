package model_test

import (
	"testing"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// Of each level the oldest object counts, and only what has an effect on a proxy's listeners makes its class.
func TestTelemetryLevels(t *testing.T) {
	telemetry := func(namespace, name, created, spec string) string {
		return "---\napiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: " + name + ", namespace: " + namespace + ", creationTimestamp: 2026-01-0" + created + "T00:00:00Z}\nspec: " + spec + "\n"
	}
	const logs = "accessLogging: [{providers: [{name: envoy}]}]"
	text := telemetry("istio-system", "root", "2", "{"+logs+"}") + telemetry("istio-system", "young", "3", "{"+logs+"}") +
		telemetry("istio-system", "selects", "1", "{selector: {matchLabels: {app: a}}, "+logs+"}") +
		telemetry("a", "server", "2", "{accessLogging: [{match: {mode: SERVER}, disabled: true}]}") +
		telemetry("a", "app", "2", "{selector: {matchLabels: {app: a}}, "+logs+"}") + telemetry("a", "first", "1", "{selector: {matchLabels: {app: a, v: '1'}}, "+logs+"}") +
		telemetry("b", "metrics", "1", "{metrics: [{providers: [{name: prometheus}]}]}") + telemetry("b", "later", "2", "{"+logs+"}") +
		telemetry("c", "client", "1", "{metrics: [{overrides: [{match: {mode: CLIENT}, disabled: true}]}]}") + telemetry("d", "empty", "1", "{metrics: [{}], accessLogging: []}") +
		telemetry("a", "gateway", "3", "{targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: g}], "+logs+"}")
	for name, tt := range map[string]struct {
		key           model.ProxyKey
		scope, inside string
	}{
		"the oldest selector":  {model.ProxyKey{Namespace: "a", Labels: "app=a,v=1"}, "istio-system/root a/first", "istio-system/root a/server a/first"},
		"another selector":     {model.ProxyKey{Namespace: "a", Labels: "app=a"}, "istio-system/root a/app", "istio-system/root a/server a/app"},
		"no selector":          {model.ProxyKey{Namespace: "a", Labels: "app=b"}, "istio-system/root", "istio-system/root a/server"},
		"metrics":              {model.ProxyKey{Namespace: "b", Labels: "app=a"}, "istio-system/root b/metrics", "istio-system/root b/metrics"},
		"metrics of clients":   {model.ProxyKey{Namespace: "c", Labels: "app=a"}, "istio-system/root c/client", "istio-system/root"},
		"no effect":            {model.ProxyKey{Namespace: "d", Labels: "app=a"}, "istio-system/root", "istio-system/root"},
		"root":                 {model.ProxyKey{Namespace: "istio-system", Labels: "app=a"}, "istio-system/root istio-system/selects", "istio-system/root istio-system/selects"},
		"a gateway":            {model.ProxyKey{Role: mesh.Router, Namespace: "a", Labels: "gateway.networking.k8s.io/gateway-name=g"}, "istio-system/root a/gateway", ""},
		"gRPC, which logs not": {model.ProxyKey{Namespace: "a", Labels: "app=a", Caps: mesh.Proxyless}, "", ""},
	} {
		g := incr.New()
		m := model.New(g, "cluster.local")
		decoded := decode.Documents("input.yaml", []byte(text))
		if len(decoded.Problems) > 0 {
			t.Fatal(decoded.Problems)
		}
		for _, o := range decoded.Objects {
			m.Apply([]object.Change{{Key: o.Key, Object: &o}})
		}
		m.Classify().Want(tt.key)
		g.Run()
		if class, _ := m.Classify().Value(tt.key); class.Scope.Telemetry != tt.scope || class.Workload.Telemetry != tt.inside {
			t.Errorf("%s: %q and %q, want %q and %q", name, class.Scope.Telemetry, class.Workload.Telemetry, tt.scope, tt.inside)
		}
	}
}

// An entry for servers ends what clients log by default; where something else has ended it, the object makes no class.
func TestTelemetryEndsDefaultLogs(t *testing.T) {
	const servers = "---\napiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: servers, namespace: a}\nspec: {accessLogging: [{match: {mode: SERVER}}]}\n"
	const root = "---\napiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: root, namespace: istio-system}\nspec: {accessLogging: [{disabled: true}]}\n"
	for _, tt := range []struct {
		text     string
		defaults []string
		scope    string
	}{
		{servers, nil, ""}, {servers, []string{"envoy"}, "a/servers"}, {servers + root, []string{"envoy"}, "istio-system/root"},
	} {
		g := incr.New()
		m := model.New(g, "cluster.local")
		c := mesh.DefaultMeshConfig()
		c.DefaultProviders = &meshv1.MeshConfig_DefaultProviders{AccessLogging: tt.defaults}
		m.SetMesh(c)
		for _, o := range decode.Documents("input.yaml", []byte(tt.text)).Objects {
			m.Apply([]object.Change{{Key: o.Key, Object: &o}})
		}
		k := model.ProxyKey{Namespace: "a"}
		m.Classify().Want(k)
		g.Run()
		if class, _ := m.Classify().Value(k); class.Scope.Telemetry != tt.scope {
			t.Errorf("%v: %q, want %q", tt.defaults, class.Scope.Telemetry, tt.scope)
		}
	}
}
