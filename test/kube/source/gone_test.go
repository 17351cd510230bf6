package source_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/object"
	kubetest "github.com/pilothouse/pilothouse/test/kube"
)

// While the source cannot reach the API server, objects are added, changed and removed, and the API server is restarted, so that it
// has forgotten the versions that the source knows. Its answer to the watches is 410 Gone. Then everything is read anew: what was
// added and changed is there, what was removed is removed, and nothing else is emitted.
func TestAVersionThatTheAPIServerHasForgotten(t *testing.T) {
	c := kubetest.Start(t, kubetest.Options{Controllers: []string{}})
	install(t, c, permissive)
	apply := func(text string) {
		t.Helper()
		if _, err := c.ApplyYAML(t.Context(), "", text); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(path string) {
		t.Helper()
		if err := c.Client.CoreV1().RESTClient().Delete().AbsPath(path).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	const ns = "gone"
	route := func(name, host string) string {
		return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: %s, namespace: %s}\nspec: {hosts: [%s], http: [{route: [{destination: {host: a}}]}]}\n---\n", name, ns, host)
	}
	apply(namespace(ns) + service(ns, "kept", 80) + service(ns, "changed", 80) + service(ns, "removed", 80) + route("kept", "one") + route("removed", "two"))
	l := &link{}
	o := options(c)
	o.Config, o.Patience, o.Backoff = l.through(c.Config), time.Millisecond, [2]time.Duration{time.Millisecond, 10 * time.Millisecond}
	r := start(t, o)
	key := func(kind object.Kind, name string) object.Key {
		return object.Key{Kind: kind, Namespace: ns, Name: name}
	}
	has := func(kind object.Kind, name string) bool { _, ok := r.state[key(kind, name)]; return ok }
	r.until(t, "the sync", func() bool {
		return r.synced && has(object.Service, "removed") && has(object.VirtualService, "removed") && len(r.problems) == 0
	})
	// A watch without an event that ends soon is an error for client-go, and it lists anew.
	apply(service(ns, "changed", 79) + route("kept", "four"))
	r.until(t, "an event of both watches", func() bool {
		return r.port(ns, "changed") == 79 && slices.Equal(r.state[key(object.VirtualService, "kept")].Spec.(*networking.VirtualService).GetHosts(), []string{"four"})
	})
	r.mu.Lock()
	before := slices.Collect(maps.Keys(r.state))
	r.mu.Unlock()

	l.cut(true)
	r.until(t, "a problem", func() bool { return len(r.problems) == 1 })
	for i := range 200 { // so that each kind's versions are far behind
		apply(service(ns, "changed", 1000+i))
	}
	remove("/api/v1/namespaces/" + ns + "/services/removed")
	remove("/apis/networking.istio.io/v1/namespaces/" + ns + "/virtualservices/removed")
	apply(service(ns, "added", 81) + route("added", "three"))
	if err := c.RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	if len(r.removed) > 0 || r.port(ns, "changed") != 79 {
		t.Errorf("while the API server is away: removed %v, port %d", r.removed, r.port(ns, "changed"))
	}
	r.mu.Unlock()
	if n := l.expired.Load(); n > 0 {
		t.Fatalf("%d answers while the link is down", n)
	}
	r.mu.Lock()
	r.emitted = nil
	r.mu.Unlock()

	l.cut(false)
	r.until(t, "what was changed", func() bool {
		return r.port(ns, "changed") == 1199 && r.port(ns, "added") == 81 && has(object.VirtualService, "added") &&
			!has(object.Service, "removed") && !has(object.VirtualService, "removed") && len(r.problems) == 0
	})
	if n := l.expired.Load(); n == 0 {
		t.Error("the API server has forgotten nothing, so that the test shows nothing")
	}
	r.until(t, "no delay", func() bool { _, behind := r.source.Behind(); return !behind })
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range before {
		if _, ok := r.state[k]; !ok && k.Name != "removed" {
			t.Errorf("%s is lost", k)
		}
	}
	for _, k := range r.emitted { // a list of everything is no change of everything
		if slices.Contains(before, k) && k.Name != "changed" && k.Name != "removed" {
			t.Errorf("%s is emitted again, and has not changed", k)
		}
	}
	if len(r.removed) != 2 {
		t.Errorf("removed %v, want the two that were", r.removed)
	}
}
