package compile_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

// unrelated is what the resources of the shop's reviews were not made from, though lists that
// these are chosen from have read it.
const unrelated = `
---
apiVersion: v1
kind: Service
metadata: {name: other, namespace: shop}
spec: {clusterIP: 10.96.0.3, selector: {app: other}, ports: [{name: http, port: 9081}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: other, namespace: shop}
spec: {hosts: [other], http: [{route: [{destination: {host: other}}]}]}
`

func TestWhy(t *testing.T) {
	w := newWorld()
	w.apply(t, bookshop+unrelated)
	w.join(proxy(t, "sidecar~10.99.0.9~client.shop~shop.svc.cluster.local", "app=client"))
	var keys []compile.Key
	for k := range w.held {
		keys = append(keys, k)
	}
	why := func(kind compile.Kind, name string, limit int) []string {
		i := slices.IndexFunc(keys, func(k compile.Key) bool { return k.Kind == kind && k.Name == name })
		if i < 0 {
			t.Fatalf("there is no resource %q of kind %d", name, kind)
		}
		var out []string
		for _, o := range w.compiler.Why(keys[i], limit) {
			out = append(out, o.String())
		}
		return out
	}
	for _, c := range []struct {
		kind compile.Kind
		name string
		want []string
	}{
		{compile.Route, "9080", []string{"DestinationRule shop/reviews", "Service shop/reviews", "VirtualService shop/reviews"}},
		{compile.Cluster, "outbound|9080|v1|reviews.shop.svc.cluster.local", []string{"DestinationRule shop/reviews", "Pod shop/reviews-1", "Service shop/reviews"}},
		{compile.Endpoints, "outbound|9080|v1|reviews.shop.svc.cluster.local", []string{"DestinationRule shop/reviews", "Pod shop/reviews-1", "Service shop/reviews"}},
		{compile.Listener, "0.0.0.0_9080", []string{"Service shop/reviews"}},
		{compile.Listener, "10.96.0.2_5432", []string{"Service shop/db"}},
		{compile.ListenerInbound, "virtualInbound", nil},
	} {
		if got := why(c.kind, c.name, 100); !slices.Equal(got, c.want) {
			t.Errorf("%s was made from %q, want %q", c.name, got, c.want)
		}
		if got := why(c.kind, c.name, 1); len(got) > 1 {
			t.Errorf("%s: Why returns %q, want at most 1 object", c.name, got)
		}
	}
	if got := w.compiler.Why(compile.Key{Kind: compile.Route, Name: "9080"}, 100); got != nil {
		t.Errorf("a resource that is not wanted was made from %v", got)
	}
}

// TestWhyAndDependentsAgree checks over random meshes that an object has a resource among its
// dependents exactly if the resource was made from it.
func TestWhyAndDependentsAgree(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, wait.Seed(t, 13)))
			data := make([]byte, 2000)
			for i := range data {
				data[i] = byte(r.Uint32())
			}
			w, h, d := newWorld(), newHistory(t), &dice{data: data}
			for range 60 {
				c := d.change()
				h.note(c)
				w.model.Apply([]object.Change{c})
			}
			w.graph.Run()
			for _, n := range h.proxies {
				w.join(n)
			}
			type pair struct {
				o object.Key
				k compile.Key
			}
			forward, back := map[pair]bool{}, map[pair]bool{}
			for k := range w.held {
				for _, o := range w.compiler.Why(k, 1000) {
					if h.standing[o] == nil {
						t.Errorf("%s was made from %s, which does not exist", k.Name, o)
					}
					forward[pair{o, k}] = true
				}
			}
			for o := range h.standing {
				for k := range w.compiler.Dependents(o) {
					back[pair{o, k}] = true
				}
			}
			for p := range forward {
				if !back[p] {
					t.Errorf("%s was made from %s, but is not one of its dependents", p.k.Name, p.o)
				}
			}
			if len(forward) == 0 || len(back) != len(forward) {
				t.Errorf("%d dependents, want %d", len(back), len(forward))
			}
		})
	}
}

// A service of several ServiceEntries is made from each of them.
func TestWhyOfJoinedEntries(t *testing.T) {
	w := newWorld()
	entry := func(name, ip string, port int) string {
		return fmt.Sprintf("---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: %s, namespace: shop}\n"+
			"spec: {hosts: [a.example.com], resolution: STATIC, endpoints: [{address: %s}], ports: [{number: %d, name: http, protocol: HTTP}]}\n", name, ip, port)
	}
	w.apply(t, entry("one", "10.98.0.1", 80)+entry("two", "10.98.0.2", 81))
	w.join(proxy(t, "sidecar~10.99.0.9~client.shop~shop.svc.cluster.local", "app=client"))
	for k := range w.held {
		if k.Kind != compile.Endpoints || k.Name != "outbound|81||a.example.com" {
			continue
		}
		var got []string
		for _, o := range w.compiler.Why(k, 100) {
			got = append(got, o.String())
		}
		if want := []string{"ServiceEntry shop/one", "ServiceEntry shop/two"}; !slices.Equal(got, want) {
			t.Errorf("the endpoints are made from %v, want %v", got, want)
		}
		return
	}
	t.Error("there are no endpoints of the second entry's port")
}
