package discovery

import (
	"fmt"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
)

// Namespaces that see the same have the very same layers, and a change that concerns one of them changes
// its layer only.
func TestDerivedLayersShareTheirBase(t *testing.T) {
	p := newPublished()
	p.apply(t, twoWorkloads)
	var views []*xds.LatestView
	for i := range 3 {
		views = append(views, p.connect(fmt.Sprint(i), fmt.Sprint("n", i), fmt.Sprintf("10.1.1.%d", i)))
	}
	layersOf := func(i int) [xds.NumLayers]*xds.Layer {
		v, _ := views[i].Load()
		return v.Layers
	}
	shared := func(i int, kind compile.LayerKind) bool { return layersOf(i)[kind] == layersOf(0)[kind] }
	check := func(what string, scope, location [2]bool) {
		t.Helper()
		for i := range scope {
			if got := shared(i+1, compile.ScopeLayer); got != scope[i] {
				t.Errorf("%s: namespace n%d shares its scope's layer: %v, want %v", what, i+1, got, scope[i])
			}
			if got := shared(i+1, compile.LocationLayer); got != location[i] {
				t.Errorf("%s: namespace n%d shares its endpoints: %v, want %v", what, i+1, got, location[i])
			}
		}
	}
	both, first := [2]bool{true, true}, [2]bool{false, true}
	check("start", both, both)
	before := layersOf(0)
	p.apply(t, "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: own, namespace: n1}\nspec: {host: a.shop.svc.cluster.local, trafficPolicy: {connectionPool: {tcp: {maxConnections: 3}}}}\n")
	check("a DestinationRule of n1", first, both)
	if layersOf(0) != before {
		t.Error("a DestinationRule of n1 changes the layers of n0")
	}
	one := layersOf(1)[compile.ScopeLayer]
	for _, typ := range []xds.Type{xds.LDS, xds.RDS} {
		if one.WithSetOf(typ, before[compile.ScopeLayer]) != one {
			t.Errorf("a DestinationRule of n1 gives it resources of type %s of its own", typ)
		}
	}
	p.apply(t, "apiVersion: v1\nkind: Service\nmetadata: {name: c, namespace: shop}\nspec: {clusterIP: 10.96.0.3, ports: [{name: http, port: 8080}]}\n")
	check("a service for all", first, both)
	if now := layersOf(1)[compile.ScopeLayer]; now.Get(xds.CDS, "outbound|8080||c.shop.svc.cluster.local") == nil || now.Get(xds.CDS, "outbound|8080||a.shop.svc.cluster.local") != one.Get(xds.CDS, "outbound|8080||a.shop.svc.cluster.local") {
		t.Error("a service for all: n1 lacks it, or has lost its own cluster")
	}
	rule := changesOf(t, "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: own, namespace: n1}\nspec: {host: a.shop.svc.cluster.local}\n")
	rule[0].Object = nil
	p.commit(rule)
	check("the DestinationRule of n1 is gone", both, both)
	p.apply(t, "apiVersion: v1\nkind: Service\nmetadata: {name: d, namespace: n1, annotations: {networking.istio.io/exportTo: .}}\nspec: {clusterIP: 10.96.0.4, ports: [{name: http, port: 8080}]}\n")
	check("a service of n1 for itself", first, first)
	const filter = "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: f, namespace: n1}\nspec: {configPatches: [{applyTo: CLUSTER, match: {context: SIDECAR_OUTBOUND, cluster: {service: a.shop.svc.cluster.local}}, patch: {operation: MERGE, value: {connect_timeout: 3s}}}]}\n"
	p.apply(t, filter)
	check("an EnvoyFilter of n1", first, first)
	patched := layersOf(1)[compile.ScopeLayer].Get(xds.CDS, "outbound|8080||a.shop.svc.cluster.local")
	p.apply(t, "apiVersion: v1\nkind: Service\nmetadata: {name: e, namespace: n1, annotations: {networking.istio.io/exportTo: .}}\nspec: {clusterIP: 10.96.0.5, ports: [{name: http, port: 8080}]}\n")
	now := layersOf(1)[compile.ScopeLayer]
	if now.Get(xds.CDS, "outbound|8080||e.n1.svc.cluster.local") == nil || now.Get(xds.CDS, "outbound|8080||a.shop.svc.cluster.local") != patched {
		t.Error("a service of n1 for itself: n1, which is patched, lacks it, or has lost its patched cluster")
	}
	p.apply(t, "apiVersion: v1\nkind: Service\nmetadata: {name: f, namespace: shop}\nspec: {clusterIP: 10.96.0.6, ports: [{name: http, port: 8080}]}\n")
	if layersOf(1)[compile.ScopeLayer].Get(xds.CDS, "outbound|8080||f.shop.svc.cluster.local") == nil {
		t.Error("a service for all: n1, whose layer is derived twice, lacks it")
	}
	gone := changesOf(t, filter)
	gone[0].Object = nil
	p.commit(gone)
	if c := layersOf(1)[compile.ScopeLayer].Get(xds.CDS, "outbound|8080||a.shop.svc.cluster.local"); c == nil || c == patched {
		t.Error("n1 has its patched cluster without the EnvoyFilter")
	}
	for i := range views {
		p.leave(fmt.Sprint(i))
	}
	if n := len(p.layers.byKey); n != 0 {
		t.Errorf("%d layers are kept for nobody", n)
	}
	for rule, stats := range p.graph.Stats() {
		if stats.Live != 0 {
			t.Errorf("%d values of rule %q are kept for nobody", stats.Live, rule)
		}
	}
}
