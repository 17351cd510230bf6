package discovery

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

// keeping has a publisher that keeps idle classes, and a clock.
func keeping(limits idleLimits) (p *published, clock *time.Time) {
	p = newPublishedWith(limits)
	now := time.Unix(1e9, 0)
	p.now = func() time.Time { return now }
	return p, &now
}

// Proxies that all leave and come back within the time have the same view, for which nothing runs but
// what classifies them.
func TestClassesOutliveTheirProxies(t *testing.T) {
	p, clock := keeping(defaultIdleLimits)
	p.apply(t, twoWorkloads)
	at := map[string]string{"a": "10.1.0.1", "b": "10.1.0.2"}
	before := map[string]*xds.View{}
	for id, ip := range at {
		before[id], _ = p.connect(id, "shop", ip).Load()
	}
	runs := p.graph.Stats()
	for id := range at {
		p.leave(id)
	}
	*clock = clock.Add(defaultIdleLimits.age - 1)
	p.dropIdle()
	if s := p.snapshot(); len(s.classes) != 0 || len(s.proxies) != 0 || s.idleClasses != 2 || s.idleBytes == 0 {
		t.Errorf("with no proxies: %d classes of %d proxies, %d idle ones of %d bytes; want 0 of 0, and 2 of some bytes",
			len(s.classes), len(s.proxies), s.idleClasses, s.idleBytes)
	}
	for id, ip := range at {
		if after, _ := p.connect(id+"-again", "shop", ip).Load(); after != before[id] {
			t.Errorf("%s has another view after it has come back", id)
		}
	}
	for rule, s := range p.graph.Stats() {
		if n := s.Runs - runs[rule].Runs; n > 0 && rule != "class" {
			t.Errorf("rule %q has run %d times for proxies that came back", rule, n)
		}
	}
	if s := p.snapshot(); len(s.classes) != 2 || s.idleClasses != 0 || s.idleBytes != 0 {
		t.Errorf("after they have come back: %d classes, %d idle ones of %d bytes; want 2, 0, 0", len(s.classes), s.idleClasses, s.idleBytes)
	}
}

// What changes while no proxy is there is what they get when they come back.
func TestIdleClassesAreUpdated(t *testing.T) {
	p, _ := keeping(defaultIdleLimits)
	p.apply(t, twoWorkloads)
	before, _ := p.connect("a", "shop", "10.1.0.1").Load()
	p.leave("a")
	edit := "apiVersion: v1\nkind: Pod\nmetadata: {name: b2, namespace: shop, labels: {app: b}}\nstatus: {phase: Running, podIP: 10.1.0.3}\n"
	p.apply(t, edit)
	after, _ := p.connect("a", "shop", "10.1.0.1").Load()
	fresh := newPublished()
	fresh.apply(t, twoWorkloads+"---\n"+edit)
	want, _ := fresh.connect("a", "shop", "10.1.0.1").Load()
	if got := viewText(after); got != viewText(want) || got == viewText(before) {
		t.Errorf("it has\n%s\nwant\n%s", got, viewText(want))
	}
}

// Each limit holds on its own; the class that has been idle the longest goes first, and nothing of it is left.
func TestIdleClassesAreBounded(t *testing.T) {
	mesh := ""
	for i := range 4 {
		mesh += fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: s, namespace: n%d}
spec: {clusterIP: 10.96.0.%d, selector: {app: s}, ports: [{name: http, port: 8080}]}
---`, i, i+1)
	}
	// kept are the namespaces whose classes are left after all proxies have left, one a minute.
	kept := func(limits idleLimits) (out string, p *published) {
		p, clock := keeping(limits)
		p.apply(t, mesh)
		for i := range 4 {
			p.connect(fmt.Sprint(i), fmt.Sprint("n", i), "10.1.0.1")
		}
		for i := range 4 {
			*clock = clock.Add(time.Minute)
			p.leave(fmt.Sprint(i))
		}
		for _, c := range p.idle.list {
			out += c.class.Scope.Namespace
		}
		return out, p
	}
	all, p := kept(defaultIdleLimits)
	if all != "n0n1n2n3" {
		t.Fatalf("classes of %s are kept, want all", all)
	}
	bytes, layers := p.layers.idleBytes, len(p.layers.byKey)
	sum := 0
	for _, l := range p.layers.byKey {
		sum += p.layers.ownSize(l)
	}
	if bytes != sum || bytes == 0 {
		t.Errorf("idle layers are of %d bytes, want %d", bytes, sum)
	}
	for what, c := range map[string]struct {
		limits idleLimits
		want   string
	}{
		"number":  {idleLimits{age: time.Hour, classes: 2, bytes: bytes}, "n2n3"},
		"bytes":   {idleLimits{age: time.Hour, classes: 4, bytes: bytes - 1}, "n1n2n3"},
		"time":    {idleLimits{age: 3 * time.Minute, classes: 4, bytes: bytes}, "n1n2n3"},
		"nothing": {idleLimits{}, ""},
	} {
		got, p := kept(c.limits)
		if got != c.want {
			t.Errorf("%s: classes of %q are kept, want %q", what, got, c.want)
		}
		if c.want == "" {
			for rule, s := range p.graph.Stats() {
				if s.Live != 0 {
					t.Errorf("%s: %d values of rule %q are kept", what, s.Live, rule)
				}
			}
			if len(p.layers.byKey) != 0 || p.layers.idleBytes != 0 {
				t.Errorf("%s: %d layers of %d bytes are kept", what, len(p.layers.byKey), p.layers.idleBytes)
			}
		} else if n := len(p.layers.byKey); n >= layers {
			t.Errorf("%s: %d layers are kept, all were %d", what, n, layers)
		}
	}
}

// Whatever changes, joins, leaves and is dropped, each proxy's view is the one from scratch, and the size of the idle
// layers is what a count of them gives.
func TestViewsWithIdleClassesAreThoseFromScratch(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, wait.Seed(t, 7)))
			choices := variants()
			standing := make([]int, len(choices)) // one more than the variant; 0 is none
			p, clock := keeping(idleLimits{age: 10 * time.Second, classes: 3, bytes: 1 << 20})
			proxies, latest := map[string][2]string{}, map[string]*xds.LatestView{}
			for step := range 50 {
				*clock = clock.Add(time.Duration(r.IntN(3)) * time.Second)
				for range r.IntN(3) {
					i := r.IntN(len(choices))
					standing[i] = r.IntN(len(choices[i]) + 1)
					c := changesOf(t, choices[i][max(standing[i], 1)-1])
					if standing[i] == 0 {
						c[0].Object = nil
					}
					p.commit(c)
				}
				id := fmt.Sprint("p", r.IntN(4))
				if _, there := proxies[id]; there {
					p.leave(id)
					delete(proxies, id)
				} else {
					ns := []string{"x", "y"}[r.IntN(2)]
					proxies[id] = [2]string{ns, fmt.Sprintf("10.1.%d.%d", ns[0], r.IntN(3))}
					latest[id] = p.connect(id, proxies[id][0], proxies[id][1])
				}
				fresh := newPublished()
				for i, n := range standing {
					if n > 0 {
						fresh.model.Apply(changesOf(t, choices[i][n-1]))
					}
				}
				fresh.graph.Run()
				for id, at := range proxies {
					got, _ := latest[id].Load()
					want, _ := fresh.connect(id, at[0], at[1]).Load()
					if a, b := viewText(got), viewText(want); a != b {
						t.Fatalf("step %d: %s has\n%s\nfrom scratch\n%s", step, id, a, b)
					}
				}
				checkIdle(t, p)
			}
		})
	}
}

func checkIdle(t *testing.T, p *published) {
	t.Helper()
	used := map[compile.Layer]bool{}
	idle := map[mesh.Class]bool{}
	for class, c := range p.classes {
		if len(c.proxies) == 0 {
			idle[class] = true
			continue
		}
		for _, l := range c.layers {
			used[l.key] = true
			if l.derivation != nil {
				used[l.derivation.base.key] = true
			}
		}
	}
	bytes := 0
	for key, l := range p.layers.byKey {
		if !used[key] {
			bytes += p.layers.ownSize(l)
		}
	}
	if len(p.idle.list) != len(idle) || len(p.idle.since) != len(idle) || p.layers.idleBytes != bytes || len(idle) > p.idle.limits.classes {
		t.Fatalf("%d idle classes of %d bytes are counted, want %d of %d", len(p.idle.list), p.layers.idleBytes, len(idle), bytes)
	}
}

// The loop drops a class that nobody has come back to, without another event.
func TestTheLoopDropsIdleClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop("cluster.local", compile.Options{}, Lenience{}, openKeeper(wait.Folder(t), "", slog.New(slog.DiscardHandler)), slog.New(slog.DiscardHandler))
		go func() { _ = l.Run(t.Context()) }()
		l.Emit(object.Batch{Changes: changesOf(t, twoWorkloads), Synced: true})
		classes := func() (n int) {
			l.ask(func() { n = len(l.views.classes) })
			return n
		}
		join := func() (leave func()) {
			_, leave, err := l.Join(t.Context(), mesh.Node{NodeID: mesh.NodeID{Role: mesh.Sidecar, ID: "a", Domain: "shop.svc.cluster.local"}}, mesh.Identity{}, "a-1")
			if err != nil {
				t.Fatal(err)
			}
			return leave
		}
		synctest.Wait()
		join()()
		if n := classes(); n != 1 {
			t.Fatalf("%d classes are kept when the proxy has left, want 1", n)
		}
		<-time.After(defaultIdleLimits.age - time.Second)
		synctest.Wait()
		if n := classes(); n != 1 {
			t.Errorf("%d classes are kept before the time is over, want 1", n)
		}
		<-time.After(time.Second)
		synctest.Wait()
		if n := classes(); n != 0 {
			t.Errorf("%d classes are kept when the time is over, want none", n)
		}
	})
}
