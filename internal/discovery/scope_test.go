package discovery

import (
	"slices"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/test/wait"
)

// Selectors of namespaces, and the revision, decide what of the source is used, and may change at any time.
func TestScopeFollowsTheMeshConfiguration(t *testing.T) {
	p := start(t, func(o *Options) { o.Names.Revision = "canary" })
	mesh := func(selectors string) string {
		return "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio-canary, namespace: istio-system}\ndata: {mesh: \"" + selectors + "\"}\n"
	}
	service := func(ns string) string {
		return "---\napiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: " + ns + "}\nspec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80}]}\n"
	}
	route := func(name, revision string) string {
		return "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: " + name + ", namespace: in, labels: {istio.io/rev: " + revision + "}}\n" +
			"spec: {hosts: [" + name + "], http: [{route: [{destination: {host: s}}]}]}\n"
	}
	names := func() string {
		var out []string
		p.server.loop.ask(func() {
			for _, o := range p.server.loop.store.Good() {
				out = append(out, o.Namespace+"/"+o.Name)
			}
		})
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	becomes := func(what, want string) {
		t.Helper()
		wait.Until(t, what+": "+want, func() bool { return names() == want })
	}
	p.emit("apiVersion: v1\nkind: Namespace\nmetadata: {name: in, labels: {mesh: \"on\"}}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: out}\n"+
		service("in")+service("out")+route("own", "canary")+route("other", "default")+mesh(""), true)
	becomes("all namespaces", "/in /out in/own in/s istio-system/istio-canary out/s")
	p.emit(mesh("discoverySelectors: [{matchLabels: {mesh: 'on'}}]"), false)
	becomes("one namespace", "/in /out in/own in/s istio-system/istio-canary")
	p.emit("apiVersion: v1\nkind: Namespace\nmetadata: {name: out, labels: {mesh: \"on\"}}\n", false)
	becomes("another is labelled", "/in /out in/own in/s istio-system/istio-canary out/s")
	p.emit(mesh("discoverySelectors: [{matchExpressions: [{key: mesh, operator: DoesNotExist}]}]"), false)
	becomes("neither", "/in /out istio-system/istio-canary")
	p.emit(mesh("discoverySelectors: [{matchExpressions: [{key: mesh, operator: Near}]}]"), false)
	wait.Until(t, "an invalid operator is rejected", func() bool {
		return slices.ContainsFunc(p.objects(), func(o objectEntry) bool { return strings.Contains(o.Text, `invalid operator "Near"`) })
	})
	becomes("as before", "/in /out istio-system/istio-canary")
	p.emit(mesh(""), false)
	becomes("all namespaces again", "/in /out in/own in/s istio-system/istio-canary out/s")
}
