package compile_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/jwks"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

// history plays changes into a world and remembers what stands, so that another world
// can be made from scratch.
type history struct {
	standing map[object.Key]*object.Object
	order    []object.Key
	mesh     *meshv1.MeshConfig
	networks *meshv1.MeshNetworks
	denials  []model.Denial
	keys     map[jwks.Source]string
	proxies  []mesh.Node
}

func newHistory(t testing.TB) *history {
	return &history{standing: map[object.Key]*object.Object{}, keys: map[jwks.Source]string{}, proxies: []mesh.Node{
		proxy(t, "sidecar~10.9.0.1~p1.x~x.svc.cluster.local", ""),
		withVirtualHosts(proxy(t, "sidecar~10.9.0.2~p2.x~x.svc.cluster.local", "app=a,version=v1")),
		transparent(proxy(t, "sidecar~10.9.0.3~p3.y~y.svc.cluster.local", "app=b")),
		inCluster(proxy(t, "sidecar~10.9.0.2~p5.x~x.svc.cluster.local", "app=a"), "two", ""),
		inCluster(proxy(t, "sidecar~10.9.0.1~p6.y~y.svc.cluster.local", ""), "", "net-1"),
		withSelfDiscovery(proxy(t, "sidecar~10.9.0.2~p9.x~x.svc.cluster.local", "")),
		proxy(t, "router~10.9.0.4~gw.istio-system~istio-system.svc.cluster.local", "app=c,istio=ingressgateway"),
		proxylessClient(proxy(t, "sidecar~10.9.0.5~p7.x~x.svc.cluster.local", "app=a")),
		proxylessClient(proxy(t, "sidecar~10.9.0.6~p8.y~y.svc.cluster.local", "app=b,security.istio.io/tlsMode=istio")),
	}}
}

// transparent is a proxy whose connections are captured by TPROXY.
func transparent(n mesh.Node) mesh.Node {
	n.Metadata.Interception = mesh.InterceptionTPROXY
	return n
}

// withSelfDiscovery is a proxy that asks for the endpoints of its own workload.
func withSelfDiscovery(n mesh.Node) mesh.Node {
	n.Metadata.SelfDiscovery = true
	return n
}

// inCluster is a proxy with the cluster and the network that it says to be in.
func inCluster(n mesh.Node, cluster, network string) mesh.Node {
	n.Metadata.ClusterID, n.Metadata.Network = cluster, network
	return n
}

func (h *history) note(c object.Change) {
	h.order = slices.DeleteFunc(h.order, func(k object.Key) bool { return k == c.Key })
	delete(h.standing, c.Key)
	if c.Object != nil {
		h.standing[c.Key] = c.Object
		h.order = append(h.order, c.Key)
	}
}

// fresh is a world made from what stands, in another order than it came about.
func (h *history) fresh() *world {
	w := newWorld()
	h.fill(w)
	return w
}

// fill gives a new world what stands.
func (h *history) fill(w *world) {
	if h.mesh != nil {
		w.model.SetMesh(h.mesh)
	}
	for _, k := range slices.Backward(h.order) {
		w.model.Apply([]object.Change{{Key: k, Object: h.standing[k]}})
	}
	w.model.SetNetworks(h.networks)
	w.model.Deny(h.denials)
	for s, keys := range h.keys {
		w.model.SetKeys(s, keys)
	}
	w.graph.Run()
}

// same fails the test where any byte that any proxy would get differs from a fresh compile.
func (h *history) same(t *testing.T, w *world, step int) {
	t.Helper()
	fresh := h.fresh()
	for _, n := range h.proxies {
		got, _ := w.model.Classify().Value(model.KeyOf(n, ""))
		want := fresh.join(n)
		if got != want {
			t.Fatalf("step %d: %s is of class\n%+v, from scratch\n%+v", step, n.ID, got, want)
		}
		a, b := w.bytes(got), fresh.bytes(want)
		for k := range b {
			if !bytes.Equal(a[k], b[k]) {
				t.Fatalf("step %d: %s: resource %d %s differs from a fresh compile:\n%q\n%q", step, n.ID, k.Kind, k.Name, a[k], b[k])
			}
		}
		if got, want := w.sums(t, got), fresh.sums(t, want); !maps.Equal(got, want) {
			t.Fatalf("step %d: %s: joined resources are identified by\n%v, from scratch by\n%v", step, n.ID, got, want)
		}
		if len(a) != len(b) {
			t.Fatalf("step %d: %s has %d resources, from scratch %d", step, n.ID, len(a), len(b))
		}
		if a, b := w.bootstrap(n), fresh.bootstrap(n); !reflect.DeepEqual(a, b) {
			t.Fatalf("step %d: %s has the bootstrap\n%+v\nfrom scratch\n%+v", step, n.ID, a, b)
		}
	}
}

// reclass follows proxies whose class has moved.
func (h *history) reclass(w *world) {
	w.classes = map[mesh.Class]bool{}
	for _, n := range h.proxies {
		c, _ := w.model.Classify().Value(model.KeyOf(n, ""))
		w.classes[c] = true
	}
	w.sync()
}

// playHistory edits a mesh at random, forks included, and checks the world after each so many steps. Whatever it and
// its forks have been through, every value is as its rule computes it again.
func playHistory(t *testing.T, data []byte, every int, check func(h *history, t *testing.T, w *world, step int)) {
	t.Helper()
	h, w, d := newHistory(t), newWorld(), &dice{data: data}
	w.graph.Parallel(d.roll(3), 1)
	for _, n := range h.proxies {
		w.join(n)
	}
	var forks []forked
	for step := 0; len(d.data) > 0 && step < 200; step++ {
		h.edit(w, d)
		forks = playForks(t, forks, w, h, d, step)
		if step%every == 0 {
			check(h, t, w, step)
			for _, m := range w.graph.Verify() {
				t.Fatalf("step %d: %s", step, m)
			}
		}
	}
	check(h, t, w, -1)
	for _, f := range forks {
		check(f.h, t, f.w, -1)
	}
}

// TestIncrementalEqualsFromScratch plays fixed random histories, so that every run of the
// tests meets every kind of object many times.
func TestIncrementalEqualsFromScratch(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, wait.Seed(t, 7)))
			data := make([]byte, 2500)
			for i := range data {
				data[i] = byte(r.Uint32())
			}
			playHistory(t, data, 7, (*history).same)
		})
	}
}

func FuzzIncrementalEqualsFromScratch(f *testing.F) {
	f.Add([]byte("any bytes make a history of changes to a small mesh"))
	r := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, 400)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1500 {
			data = data[:1500]
		}
		playHistory(t, data, 3, (*history).same)
	})
}

const bookshop = `
apiVersion: v1
kind: Service
metadata: {name: reviews, namespace: shop}
spec: {clusterIP: 10.96.0.1, selector: {app: reviews}, ports: [{name: http, port: 9080}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {clusterIP: 10.96.0.2, selector: {app: db}, ports: [{name: tcp, port: 5432}]}
---
apiVersion: v1
kind: Pod
metadata: {name: reviews-1, namespace: shop, labels: {app: reviews, version: v1, security.istio.io/tlsMode: istio}}
status: {phase: Running, podIP: 10.99.0.1}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: reviews, namespace: shop}
spec: {host: reviews, subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]}
---
` + virtual90

const virtual90 = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews, namespace: shop}
spec:
  hosts: [reviews]
  http: [{route: [{destination: {host: reviews, subset: v1}, weight: 90}, {destination: {host: reviews, subset: v2}, weight: 10}]}]
`

// TestOnlyAffectedRulesRun says for one edit after another which rules run, how often, and what moves: these and no
// others. Two scopes are connected: one of the shop's namespace, one of another.
func TestOnlyAffectedRulesRun(t *testing.T) {
	w := newWorld()
	w.apply(t, bookshop)
	w.join(proxy(t, "sidecar~10.99.0.9~client.shop~shop.svc.cluster.local", "app=client"))
	w.join(proxy(t, "sidecar~10.99.0.8~client.other~other.svc.cluster.local", "app=client"))
	w.run()
	pod := func(labels, address string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: reviews-2, namespace: shop, labels: {app: reviews, security.istio.io/tlsMode: istio, " + labels + "}}\nstatus: {phase: Running, podIP: " + address + "}\n"
	}
	const all, v1, v2 = "endpoints outbound|9080||reviews.shop.svc.cluster.local", "endpoints outbound|9080|v1|reviews.shop.svc.cluster.local", "endpoints outbound|9080|v2|reviews.shop.svc.cluster.local"
	virtual50 := strings.NewReplacer("90}", "50}", "10}", "50}").Replace(virtual90)
	steps := []struct {
		what, yaml string
		ran        map[string]int
		moved      []string
	}{
		// Scopes share resources: those of the service and of subset v2 move, that of v1 is looked at and found equal.
		{"a Pod joins the service", pod("version: v2", "10.99.0.2"), map[string]int{"accounts": 1, "assignment": 3, "endpoints": 2, "instances": 1}, []string{v2, all}},
		{"its address changes", pod("version: v2", "10.99.0.3"), map[string]int{"accounts": 1, "assignment": 3, "endpoints": 2, "instances": 1}, []string{v2, all}},
		{"its label changes", pod("version: v1", "10.99.0.3"), map[string]int{"accounts": 1, "assignment": 3, "endpoints": 3, "instances": 1}, []string{v1, v2, all}},
		{"a label of it that nothing selects changes", pod("version: v1, team: a", "10.99.0.3"), map[string]int{"accounts": 1, "assignment": 3, "instances": 1}, nil},
		{"a weight changes", virtual50, map[string]int{"joined virtual hosts": 1, "route": 2, "virtual host": 2, "virtual service": 1, "virtual service reach": 1}, []string{"route 9080", "route 9080"}},
		{"a field that nothing reads changes", strings.Replace(virtual50, "name: reviews,", "name: reviews, annotations: {note: seen},", 1), nil, nil},
		{"a rule of routes is exported to its own namespace only", strings.Replace(virtual50, "spec:", "spec:\n  exportTo: [.]", 1), map[string]int{"derived domains": 1, "derived names": 1, "derived routes": 1, "extra hosts": 1, "host domains": 1, "joined virtual hosts": 1, "route": 2, "scope difference": 1, "scope difference of a host": 1, "virtual host": 2, "virtual service": 2, "virtual service reach": 1}, []string{"route 9080"}},
		{"a Pod that no service selects comes up", "apiVersion: v1\nkind: Pod\nmetadata: {name: lone, namespace: shop, labels: {app: lone}}\nstatus: {phase: Running, podIP: 10.99.0.7}\n", nil, nil},
		{"the client's own namespace becomes strict", "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: other}\nspec: {mtls: {mode: STRICT}}\n", map[string]int{"class": 1, "inbound frame": 1, "inbound listener": 1, "inbound security": 1, "policies": 1}, []string{"inbound listener virtualInbound"}},
		{"a policy for workloads that do not exist", "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: b, namespace: other}\nspec: {selector: {matchLabels: {app: none}}, rules: [{}]}\n", map[string]int{"class": 1}, nil},
		{"a policy of the whole namespace", "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: c, namespace: other}\nspec: {}\n", map[string]int{"inbound frame": 1, "inbound listener": 1, "inbound security": 1}, []string{"inbound listener virtualInbound"}},
		{"a DestinationRule gets a limit", "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: reviews, namespace: shop}\nspec: {host: reviews, trafficPolicy: {connectionPool: {tcp: {maxConnections: 9}}}, subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]}\n", map[string]int{"cluster": 3, "destination rule": 1, "endpoints": 3, "scope difference": 1, "service clusters": 1, "virtual host": 2}, []string{"cluster " + v1[len("endpoints "):], "cluster " + v2[len("endpoints "):], "cluster " + all[len("endpoints "):]}},
	}
	for _, s := range steps {
		before := w.runs()
		w.apply(t, s.yaml)
		if moved := w.run(); !slices.Equal(moved, s.moved) {
			t.Errorf("%s: moved %q, want %q", s.what, moved, s.moved)
		}
		if ran := w.runsSince(before); !maps.Equal(ran, s.ran) {
			t.Errorf("%s: ran %v, want %v", s.what, ran, s.ran)
		}
	}
}

// TestPolicyRerunsTheWorkloadsThatItSelects: a changed AuthorizationPolicy with a selector is compiled for the workloads
// that it selects, and for no other.
func TestPolicyRerunsTheWorkloadsThatItSelects(t *testing.T) {
	const policy = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a, namespace: NS}\nspec: {selector: {matchLabels: {app: reviews}}, action: DENY, rules: [{to: [{operation: {ports: [\"PORT\"]}}]}]}\n"
	for _, ns := range []string{"shop", "istio-system"} {
		t.Run(ns, func(t *testing.T) {
			with := func(port string) string { return strings.NewReplacer("NS", ns, "PORT", port).Replace(policy) }
			w := newWorld()
			w.apply(t, bookshop)
			w.apply(t, with("1"))
			w.join(proxy(t, "sidecar~10.99.0.1~reviews-1.shop~shop.svc.cluster.local", "app=reviews"))
			w.join(proxy(t, "sidecar~10.99.0.9~client.shop~shop.svc.cluster.local", "app=client"))
			w.join(proxy(t, "sidecar~10.99.0.8~client.other~other.svc.cluster.local", "app=client"))
			w.run()
			before := w.graph.Stats()
			w.apply(t, with("2"))
			if moved := w.run(); !slices.Equal(moved, []string{"inbound listener virtualInbound"}) {
				t.Errorf("moved %q", moved)
			}
			after := w.graph.Stats()
			for _, rule := range []string{"inbound security", "inbound listener"} {
				if n := after[rule].Runs - before[rule].Runs; n != 1 {
					t.Errorf("rule %q ran %d times, want once", rule, n)
				}
			}
			for _, rule := range []string{"cluster", "listener", "endpoints", "route", "inbound cluster"} {
				if n := after[rule].Runs - before[rule].Runs; n != 0 {
					t.Errorf("rule %q ran %d times", rule, n)
				}
			}
		})
	}
}
