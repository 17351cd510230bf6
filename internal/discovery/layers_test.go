package discovery

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

// published is a publisher with its model.
type published struct {
	*publisher
	model *model.Model
}

// newPublished has a publisher that keeps no idle classes.
func newPublished() *published { return newPublishedWith(idleLimits{}) }

func newPublishedWith(idle idleLimits) *published {
	g := incr.New()
	return publishedOf(g, model.New(g, "cluster.local"), idle)
}

// newWholePublished is a publisher in which no layer is derived from another.
func newWholePublished() *published {
	g := incr.New()
	m := model.New(g, "cluster.local")
	m.CompileWhole()
	return publishedOf(g, m, idleLimits{})
}

func publishedOf(g *incr.Graph, m *model.Model, idle idleLimits) *published {
	p := &published{newPublisher(g, m, compile.New(g, m, compile.Options{})), m}
	p.idle.limits = idle
	return p
}

// commit takes the changes of objects into the views.
func (p *published) commit(changes []object.Change) {
	p.model.Apply(changes)
	p.begin()
	p.update(p.graph.Run())
}

// apply commits YAML, which must be good.
func (p *published) apply(t testing.TB, yaml string) { p.commit(changesOf(t, yaml)) }

func changesOf(t testing.TB, yaml string) (out []object.Change) {
	t.Helper()
	res := decode.Documents("mesh.yaml", []byte(yaml))
	if len(res.Problems) > 0 {
		t.Fatal(res.Problems[0])
	}
	for _, o := range res.Objects {
		out = append(out, object.Change{Key: o.Key, Object: &o})
	}
	return out
}

// connect is join for a sidecar in a namespace.
func (p *published) connect(id, namespace, ip string) *xds.LatestView {
	return p.join(id, model.KeyOf(mesh.Node{NodeID: mesh.NodeID{
		Role: mesh.Sidecar, ID: id, Domain: namespace + ".svc.cluster.local", IP: netip.MustParseAddr(ip),
	}}, ""))
}

const twoWorkloads = `
apiVersion: v1
kind: Service
metadata: {name: a, namespace: shop}
spec: {clusterIP: 10.96.0.1, selector: {app: a}, ports: [{name: http, port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: b, namespace: shop}
spec: {clusterIP: 10.96.0.2, selector: {app: b}, ports: [{name: http, port: 9090}]}
---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: shop, labels: {app: a}}
status: {phase: Running, podIP: 10.1.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: b, namespace: shop, labels: {app: b}}
status: {phase: Running, podIP: 10.1.0.2}
`

// Proxies of one scope have the same layers of it, and a change makes only the layers anew that it
// is in, once for all.
func TestClassesShareLayers(t *testing.T) {
	p := newPublished()
	p.apply(t, twoWorkloads)
	a, b := p.connect("a", "shop", "10.1.0.1"), p.connect("b", "shop", "10.1.0.2")
	replica := p.connect("a-again", "shop", "10.1.0.1")
	layersOf := func(l *xds.LatestView) [xds.NumLayers]*xds.Layer {
		v, _ := l.Load()
		return v.Layers
	}
	check := func(what string, before [2][xds.NumLayers]*xds.Layer, changed [2]string) (now [2][xds.NumLayers]*xds.Layer) {
		t.Helper()
		now = [2][xds.NumLayers]*xds.Layer{layersOf(a), layersOf(b)}
		if now[0][compile.ScopeLayer] != now[1][compile.ScopeLayer] || now[0][compile.LocationLayer] != now[1][compile.LocationLayer] {
			t.Errorf("%s: proxies of one scope and location have other layers of them", what)
		}
		if now[0][compile.WorkloadLayer] == now[1][compile.WorkloadLayer] {
			t.Errorf("%s: two workloads have one layer", what)
		}
		if layersOf(replica) != now[0] {
			t.Errorf("%s: a replica has other layers", what)
		}
		for i := range now {
			got := ""
			for l, name := range map[compile.LayerKind]string{compile.ScopeLayer: "scope", compile.LocationLayer: "location", compile.WorkloadLayer: "workload"} {
				if now[i][l] != before[i][l] {
					got += name
				}
			}
			if got != changed[i] {
				t.Errorf("%s: proxy %d has another layer of its %q, want %q", what, i, got, changed[i])
			}
		}
		return now
	}
	start := [2][xds.NumLayers]*xds.Layer{layersOf(a), layersOf(b)}
	now := check("start", start, [2]string{})
	p.apply(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: b2, namespace: shop, labels: {app: b}}\nstatus: {phase: Running, podIP: 10.1.0.3}\n")
	now = check("a Pod", now, [2]string{"location", "location"})
	p.apply(t, "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: b, namespace: shop}\nspec: {hosts: [b], http: [{timeout: 3s, route: [{destination: {host: b}}]}]}\n")
	now = check("a VirtualService", now, [2]string{"scope", "scope"})
	p.apply(t, "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: b, namespace: shop, labels: {x: y}}\nspec: {hosts: [b], http: [{timeout: 3s, route: [{destination: {host: b}}]}]}\n")
	now = check("a field that nothing reads", now, [2]string{})
	p.apply(t, "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: b, namespace: shop}\nspec: {selector: {matchLabels: {app: b}}, mtls: {mode: STRICT}}\n")
	check("a policy that selects one", now, [2]string{"", "workload"})
	for _, id := range []string{"a", "b", "a-again"} {
		p.leave(id)
	}
	if n := len(p.layers.byKey) + len(p.classes); n != 0 {
		t.Errorf("%d layers and classes are kept for nobody", n)
	}
	for rule, stats := range p.graph.Stats() {
		if stats.Live != 0 {
			t.Errorf("%d values of rule %q are kept for nobody", stats.Live, rule)
		}
	}
}

// variants are objects that come, change and go in TestViewsAreThoseFromScratch. A service entry's
// clusters move between layers with its resolution.
func variants() [][]string {
	var out [][]string
	for _, ns := range []string{"x", "y"} {
		for i := range 3 {
			service := "apiVersion: v1\nkind: Service\nmetadata: {name: s%d, namespace: %s}\nspec: {clusterIP: 10.96.%d.%d, selector: {app: s%d}, ports: [{name: %s, port: %d}]}\n"
			out = append(out, []string{
				fmt.Sprintf(service, i, ns, ns[0], i, i, "http", 80), fmt.Sprintf(service, i, ns, ns[0], i, i, "tcp", 80), fmt.Sprintf(service, i, ns, ns[0], i, i, "http", 81),
			})
			pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: p%d, namespace: %s, labels: {app: s%d, version: v%d}}\nstatus: {phase: Running, podIP: 10.1.%d.%d}\n"
			out = append(out, []string{fmt.Sprintf(pod, i, ns, i, 1, ns[0], i), fmt.Sprintf(pod, i, ns, i, 2, ns[0], i), fmt.Sprintf(pod, i, ns, (i+1)%3, 1, ns[0], i)})
		}
		rule := "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: d, namespace: " + ns + "}\nspec: {host: s0, %s}\n"
		out = append(out, []string{fmt.Sprintf(rule, "subsets: [{name: v1, labels: {version: v1}}]"), fmt.Sprintf(rule, "trafficPolicy: {loadBalancer: {simple: PASSTHROUGH}}")})
		policy := "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: p, namespace: " + ns + "}\nspec: {%smtls: {mode: STRICT}}\n"
		out = append(out, []string{fmt.Sprintf(policy, ""), fmt.Sprintf(policy, "selector: {matchLabels: {app: s1}}, ")})
		entry := "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: e, namespace: " + ns + "}\nspec: {hosts: [" + ns + ".example.com], ports: [{number: 80, name: http, protocol: HTTP}], resolution: %s}\n"
		out = append(out, []string{fmt.Sprintf(entry, "STATIC, endpoints: [{address: 10.7.0.1}]"), fmt.Sprintf(entry, "DNS"), fmt.Sprintf(entry, "NONE")})
		private := "apiVersion: v1\nkind: Service\nmetadata: {name: own, namespace: " + ns + ", annotations: {networking.istio.io/exportTo: '%s'}}\nspec: {clusterIP: 10.97.0.1, selector: {app: s0}, ports: [{name: %s, port: 80}]}\n"
		out = append(out, []string{fmt.Sprintf(private, ".", "http"), fmt.Sprintf(private, "*", "http"), fmt.Sprintf(private, "y", "tcp"), fmt.Sprintf(private, ".", "tcp")})
		own := "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: own, namespace: " + ns + "}\nspec: {host: '%s', exportTo: ['%s'], trafficPolicy: {%s}}\n"
		out = append(out, []string{
			fmt.Sprintf(own, "s1.x.svc.cluster.local", ".", "loadBalancer: {simple: PASSTHROUGH}"), fmt.Sprintf(own, "*.y.svc.cluster.local", ".", "connectionPool: {tcp: {maxConnections: 7}}"),
			fmt.Sprintf(own, "s2.y.svc.cluster.local", "x", "connectionPool: {tcp: {idleTimeout: 7s}}"), fmt.Sprintf(own, "s1", "*", "connectionPool: {tcp: {maxConnections: 8}}"),
		})
		virtual := "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: v, namespace: " + ns + "}\nspec: {hosts: ['%s'], exportTo: ['%s'], http: [{%s, route: [{destination: {host: s1.x.svc.cluster.local}}]}]}\n"
		out = append(out, []string{
			fmt.Sprintf(virtual, "s2", "*", "match: [{sourceNamespace: y}]"), fmt.Sprintf(virtual, "s0.x.svc.cluster.local", ".", "timeout: 3s"),
			fmt.Sprintf(virtual, "extra.example.com", "x", "timeout: 3s"), fmt.Sprintf(virtual, "*.x.svc.cluster.local", "*", "match: [{sourceLabels: {app: s1}}]"),
		})
		sidecar := "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: s, namespace: " + ns + "}\nspec: {egress: [{hosts: [%s]}]}\n"
		out = append(out, []string{fmt.Sprintf(sidecar, "'./*'"), fmt.Sprintf(sidecar, "'*/*'")})
	}
	return out
}

// Whatever changes, joins and leaves, each proxy's view is the one that it would get from a
// publisher that has just been made, and from one in which no layer is derived from another.
func TestViewsAreThoseFromScratch(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, wait.Seed(t, 7)))
			choices := variants()
			standing := make([]int, len(choices)) // one more than the variant; 0 is none
			proxies := map[string][2]string{}
			latest := map[string]*xds.LatestView{}
			p := newPublished()
			for step := range 60 {
				var changes []object.Change
				for range 1 + r.IntN(3) {
					i := r.IntN(len(choices))
					n := r.IntN(len(choices[i]) + 1)
					c := changesOf(t, choices[i][max(n, 1)-1])
					if n == 0 {
						c[0].Object = nil
					}
					standing[i] = n
					changes = append(changes, c...)
				}
				p.commit(changes)
				id := fmt.Sprint("p", r.IntN(6))
				if _, there := proxies[id]; there {
					p.leave(id)
					delete(proxies, id)
					delete(latest, id)
				} else {
					ns := []string{"x", "y"}[r.IntN(2)]
					proxies[id] = [2]string{ns, fmt.Sprintf("10.1.%d.%d", ns[0], r.IntN(3))}
					latest[id] = p.connect(id, proxies[id][0], proxies[id][1])
				}
				fresh, whole := newPublished(), newWholePublished()
				for i, n := range standing {
					if n > 0 {
						changes := changesOf(t, choices[i][n-1])
						fresh.model.Apply(changes)
						whole.model.Apply(changes)
					}
				}
				fresh.graph.Run()
				whole.graph.Run()
				for id, at := range proxies {
					got, _ := latest[id].Load()
					want, _ := fresh.connect(id, at[0], at[1]).Load()
					if a, b := viewText(got), viewText(want); a != b {
						t.Fatalf("step %d: %s has\n%s\nfrom scratch\n%s", step, id, a, b)
					}
					alone, _ := whole.connect(id, at[0], at[1]).Load()
					if a, b := viewText(got), viewText(alone); a != b {
						t.Fatalf("step %d: %s has\n%s\nwithout derived layers\n%s", step, id, a, b)
					}
					if now := p.snapshot().proxies[id].view; now != got {
						t.Fatalf("step %d: the snapshot has another view of %s", step, id)
					}
				}
				if n, want := len(p.layers.byKey), len(fresh.layers.byKey); n != want {
					t.Fatalf("step %d: %d layers are kept, from scratch %d", step, n, want)
				}
			}
		})
	}
}

// viewText is everything in a view, and fails to be equal where a name is in it twice.
func viewText(v *xds.View) string {
	var out strings.Builder
	for _, t := range xds.Types() {
		last := ""
		for r := range v.Of(t).All() {
			if r.Name <= last {
				return fmt.Sprintf("%s %q after %q", t, r.Name, last)
			}
			last = r.Name
			fmt.Fprintln(&out, t, r.Name, r.Version, r.Needs)
		}
	}
	return out.String()
}
