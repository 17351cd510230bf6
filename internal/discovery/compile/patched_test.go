package compile_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

const clusterPatch = `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: a, namespace: NS}
spec:
  SELECTOR
  configPatches:
  - applyTo: CLUSTER
    match: {context: SIDECAR_OUTBOUND, cluster: {service: reviews.shop.svc.cluster.local, subset: v1}}
    patch: {operation: MERGE, value: {connect_timeout: TIMEOUT}}
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_INBOUND}
    patch: {operation: ADD, value: {name: buffer, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, max_request_bytes: 9}}}
`

// TestPatchRerunsWhatItMatches: a changed patch is applied to the resources that it matches, of the proxies that its
// EnvoyFilter selects. Nothing else runs, and proxies that it does not select share everything with those that it does, but for
// these resources.
func TestPatchRerunsWhatItMatches(t *testing.T) {
	const selector = "workloadSelector: {labels: {app: client}}"
	for _, tt := range []struct{ name, ns, selector string }{
		{"a namespace", "shop", ""}, {"a selector", "shop", selector}, {"a selector of the root namespace", "istio-system", selector},
	} {
		t.Run(tt.name, func(t *testing.T) {
			with := func(timeout string) string {
				return strings.NewReplacer("NS", tt.ns, "TIMEOUT", timeout, "SELECTOR", tt.selector).Replace(clusterPatch)
			}
			w := newWorld()
			w.apply(t, bookshop)
			one := w.join(proxy(t, "sidecar~10.99.0.9~client.shop~shop.svc.cluster.local", "app=client"))
			other := w.join(proxy(t, "sidecar~10.99.0.8~other.x~x.svc.cluster.local", "app=other"))
			w.run()
			before := w.runs()
			w.apply(t, with("3s"))
			w.graph.Run()
			if class, _ := w.model.Classify().Value(model.KeyOf(proxy(t, "sidecar~10.99.0.8~other.x~x.svc.cluster.local", "app=other"), "")); class != other {
				t.Error("an EnvoyFilter that does not select a proxy changes its class")
			}
			patched := w.join(proxy(t, "sidecar~10.99.0.9~client.shop~shop.svc.cluster.local", "app=client"))
			if ran := w.runsSince(before); ran["cluster"]+ran["listener"]+ran["endpoints"]+ran["route"]+ran["virtual host"] > 0 || ran["patched cluster"] != 1 {
				t.Errorf("to patch one cluster ran %v", ran)
			}
			const name = "outbound|9080|v1|reviews.shop.svc.cluster.local"
			own := 0
			for _, k := range w.contents(compile.Layers(patched)[compile.ScopeLayer]) {
				if slices.Contains([]compile.Kind{compile.ClusterPatched, compile.ListenerPatched, compile.RoutePatched}, k.Kind) {
					own++
					if k.Name != name {
						t.Errorf("%s has a key of its own", k.Name)
					}
				}
			}
			if own != 1 {
				t.Errorf("%d patched resources, want 1", own)
			}
			delete(w.classes, one)
			w.sync()
			before = w.runs()
			w.apply(t, with("4s"))
			if moved := w.run(); !slices.Equal(moved, []string{"patched cluster " + name}) {
				t.Errorf("moved %q", moved)
			}
			if ran := w.runsSince(before); ran["cluster"]+ran["inbound listener"] > 0 || ran["patched cluster"] != 1 {
				t.Errorf("a change of one patch ran %v", ran)
			}
			k := compile.Key{Kind: compile.ClusterPatched, EDS: true, Scope: patched.Scope.ID(), Name: name}
			if why := w.compiler.Why(k, 10); len(why) == 0 || why[0].Kind != "DestinationRule" || !slices.ContainsFunc(why, func(o object.Key) bool { return o.Kind == "EnvoyFilter" && o.Name == "a" }) {
				t.Errorf("made from %v", why)
			}
		})
	}
}

// A patch is for the proxies whose metadata have all of the values in its match.
func TestPatchesByMetadata(t *testing.T) {
	node := proxy(t, "sidecar~10.99.0.9~client.shop~shop.svc.cluster.local", "app=client")
	node.Metadata.ClusterID, node.Metadata.Network, node.Metadata.IstioVersion = "one", "net", "1.28.0"
	node.Metadata.Texts = mesh.NewTexts(map[string]any{"RACK": "r 7", "EMPTY": "", "NUMBER": 7.0})
	for key, said := range map[string]string{
		"NAME": "client", "NAMESPACE": "shop", "CLUSTER_ID": "one", "NETWORK": "net", "ISTIO_VERSION": "1.28.0", "INSTANCE_IPS": "10.99.0.9", "RACK": "r 7", "EMPTY": "",
	} {
		for match, want := range map[string]bool{
			key + ": \"" + said + "\"":                true,
			key + ": other":                           false,
			key + ": \"" + said + "\", NAME: other":   false,
			key + ": \"" + said + "\", ABSENT: x":     false,
			key + ": \"" + said + "\", NUMBER: \"7\"": false, // no text
		} {
			if key == "NAME" && strings.Contains(match, ",") {
				continue
			}
			w := newWorld()
			w.apply(t, bookshop)
			w.apply(t, strings.NewReplacer("NS", "shop", "TIMEOUT", "3s", "SELECTOR", "", "{context: SIDECAR_OUTBOUND, ", "{context: SIDECAR_OUTBOUND, proxy: {metadata: {"+match+"}}, ").Replace(clusterPatch))
			class := w.join(node)
			patched := slices.ContainsFunc(w.contents(compile.Layers(class)[compile.ScopeLayer]), func(k compile.Key) bool { return k.Kind == compile.ClusterPatched })
			if patched != want {
				t.Errorf("%s: patched %v, want %v", match, patched, want)
			}
		}
	}
}
