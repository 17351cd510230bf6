package discovery

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

func TestEffectsOfACommit(t *testing.T) {
	layer := func(n int) compile.Layer { return compile.Layer{Kind: compile.LayerKind(n)} }
	cluster := func(name string) resourceName { return resourceName{xds.CDS, name} }
	key := func(name string) object.Key {
		return object.Key{Kind: object.VirtualService, Namespace: "a", Name: name}
	}
	l := newChangeLog()
	l.commit(4, []acceptedChange{{key("one"), false, 1}, {key("two"), false, 2}, {key("none"), false, 4}, {key("class"), false, 8}}, []move{
		{layer: layer(0), name: cluster("x"), causes: 1}, {layer: layer(0), name: cluster("y"), causes: 3}, {layer: layer(1), name: cluster("z"), causes: 2},
		{proxy: "p-2", causes: 8}, {proxy: "p-1", causes: 8}, {layer: layer(2), name: cluster("denied")},
	})
	for name, want := range map[string]string{
		"one": "4: layers [0], proxies [], x y", "two": "4: layers [0 1], proxies [], y z", "none": "4: layers [], proxies [], ", "class": "4: layers [], proxies [p-1 p-2], all",
	} {
		if got := effectText(l.objects[key(name)]); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	l.commit(5, []acceptedChange{{key("one"), true, 1}}, []move{{layer: layer(2), name: cluster("x"), causes: 1}})
	if got := l.objects[key("one")]; !got.removed || effectText(got) != "5: layers [2], proxies [], x" {
		t.Errorf("after its removal: %s", effectText(got))
	}
	if got := effectText(l.objects[key("two")]); got != "4: layers [0 1], proxies [], y z" {
		t.Errorf("what another commit changed is %s now", got)
	}
}

func effectText(c objectChange) string {
	names := "all"
	if c.effect.names != nil {
		var list []string
		for n := range c.effect.names {
			list = append(list, n.name)
		}
		slices.Sort(list)
		names = strings.Join(list, " ")
	}
	var layers []int
	for _, l := range c.effect.layers {
		layers = append(layers, int(l.Kind))
	}
	return fmt.Sprintf("%d: layers %v, proxies %v, %s", c.generation, layers, c.effect.proxies, names)
}

func TestWhatIsRememberedIsBounded(t *testing.T) {
	key := func(i int) object.Key { return object.Key{Kind: object.Pod, Name: fmt.Sprint(i)} }
	l := newChangeLog()
	var first []acceptedChange
	for i := range 3 * maxRemovals {
		first = append(first, acceptedChange{key: key(i), cause: causeNumber(i)})
	}
	l.commit(1, first, nil)
	for i := range 2 * maxRemovals {
		l.commit(uint64(2+i), []acceptedChange{{key: key(i), removed: true, cause: 1}}, nil)
	}
	if n := len(l.objects); n != 2*maxRemovals || len(l.removed) != maxRemovals {
		t.Errorf("%d objects and %d removals are remembered, want %d and %d", n, len(l.removed), 2*maxRemovals, maxRemovals)
	}
	// One that is back is not forgotten with its removal.
	back := key(2*maxRemovals - 1)
	l.commit(9000, []acceptedChange{{key: back, cause: 1}}, nil)
	for i := range maxRemovals {
		l.commit(uint64(9001+i), []acceptedChange{{key: key(2*maxRemovals + i), removed: true, cause: 1}}, nil)
	}
	if got, ok := l.objects[back]; !ok || got.removed || got.generation != 9000 {
		t.Errorf("the object that is back: %+v, known: %v", got, ok)
	}
	var moves []move
	for i := range maxEffectNames + 1 {
		moves = append(moves, move{name: resourceName{xds.RDS, fmt.Sprint(i)}, causes: 1})
	}
	if e := effectOf(1, moves); e.names != nil || !e.has(resourceName{xds.CDS, "any"}) || len(e.layers) != 1 {
		t.Errorf("an effect of many resources: %+v", e)
	}
	if causeNumber(0) != 1 || causeNumber(incr.MaxCauses-1) != causeNumber(1e6) || causeNumber(incr.MaxCauses-2) == causeNumber(incr.MaxCauses-1) {
		t.Error("the last cause is not the one that is shared")
	}
}

// testLoop is a loop that no goroutine runs.
func testLoop() *loop {
	p := newPublished()
	return &loop{graph: p.graph, model: p.model, store: config.NewStore(), views: p.publisher, applied: newChangeLog(), counts: counts{updates: map[string]uint64{}}, triggers: triggers{}, allocated: newAllocator(nil), onMesh: func(*meshv1.MeshConfig) {}}
}

// commit is loop.commit without its other effects.
func (l *loop) testCommit(changes []object.Change) []acceptedChange {
	accepted := l.apply(object.Batch{Changes: changes}, nil)
	moved := l.graph.Run()
	if len(accepted) > 0 || len(moved) > 0 {
		l.views.begin()
	}
	_, moves := l.views.update(moved)
	l.applied.commit(l.views.generation, accepted, moves)
	return accepted
}

// modelProxy is what a proxy was to have, by a recomputation.
type modelProxy struct {
	latest    *xds.LatestView
	published []uint64 // the generations in which its view was another one
	taken     int      // how many of them the stream has taken
	applied   int      // and how many the proxy has applied
	view      *xds.View
}

// missing is the first generation that the proxy has not applied; 0 for none.
func (m *modelProxy) missing() uint64 {
	if m.applied == len(m.published) {
		return 0
	}
	return m.published[m.applied]
}

// Whatever changes, joins, leaves and acknowledges: a change concerns the proxies that got another view by
// it, those that have applied it are counted, and each proxy's generation is the one before the first that
// it lacks.
func TestAppliedIsThatOfARecomputation(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, wait.Seed(t, 9)))
		l, choices, proxies := testLoop(), variants(), map[string]*modelProxy{}
		serial := 0
		for step := range 80 {
			where := fmt.Sprintf("seed %d, step %d", seed, step)
			switch r.IntN(4) {
			case 0:
				id := ""
				for id = range proxies {
					break
				}
				if r.IntN(2) == 0 && id != "" {
					l.views.leave(id)
					delete(proxies, id)
					break
				}
				serial++
				id = fmt.Sprintf("p%d-%d", serial, serial)
				ns := []string{"x", "y"}[r.IntN(2)]
				before := l.views.generation
				latest := (&published{publisher: l.views}).connect(id, ns, fmt.Sprintf("10.1.%d.%d", ns[0], r.IntN(3)))
				view, _ := latest.Load()
				proxies[id] = &modelProxy{latest: latest, published: []uint64{1}, view: view}
				if l.views.generation != before {
					t.Fatalf("%s: a proxy that joined raised the generation", where)
				}
			case 1:
				for _, m := range proxies {
					switch r.IntN(3) {
					case 0:
						m.latest.Take()
						m.taken = len(m.published)
					case 1:
						if m.taken > 0 {
							m.latest.Report(true, true)
							m.applied = m.taken
						}
					}
				}
			default:
				commitAndCheck(t, where, r, l, choices, proxies)
			}
			views := l.views.snapshot()
			for id, m := range proxies {
				want := views.generation
				if missing := m.missing(); missing > 0 {
					want = min(missing-1, want)
				}
				if got := views.applied(m.latest.Progress()); got != want {
					t.Fatalf("%s: %s has applied %d, want %d of %v", where, id, got, want, m.published)
				}
			}
		}
	}
}

func commitAndCheck(t *testing.T, where string, r *rand.Rand, l *loop, choices [][]string, proxies map[string]*modelProxy) {
	t.Helper()
	var changes []object.Change
	for range 1 + r.IntN(3) {
		i := r.IntN(len(choices))
		n := r.IntN(len(choices[i]) + 1)
		c := changesOf(t, choices[i][max(n, 1)-1])
		if n == 0 {
			c[0].Object = nil
		}
		changes = append(changes, c...)
	}
	before := l.views.generation
	accepted := l.testCommit(changes)
	if want := before + uint64(min(len(accepted), 1)); l.views.generation != want {
		t.Fatalf("%s: generation %d after %d accepted changes, want %d", where, l.views.generation, len(accepted), want)
	}
	want, all := map[string]bool{}, map[string]bool{}
	for id, m := range proxies {
		if view, _ := m.latest.Load(); view != m.view {
			m.view, m.published = view, append(m.published, l.views.generation)
			want[id] = true
		}
	}
	state := standingOf(l.views.snapshot())
	for _, a := range accepted {
		c := l.concernOf(a.key)
		e := state.entry(c, func(string) (xds.Connection, bool) { return xds.Connection{}, false })
		concerned, applied := map[string]bool{}, 0
		for id, p := range state.byID {
			if c.classes[p.class] || c.proxies[id] {
				concerned[id], all[id] = true, true
				if m := proxies[id].missing(); m == 0 || m > l.views.generation {
					applied++
				}
			}
		}
		if len(accepted) == 1 && !maps.Equal(concerned, want) {
			t.Fatalf("%s: %s concerns %v, want %v", where, a.key, concerned, want)
		}
		if e.Proxies != len(concerned) || e.Applied != applied || len(e.Behind) != len(concerned)-applied {
			t.Fatalf("%s: %s is applied by %d of %d, %d behind; want %d of %d", where, a.key, e.Applied, e.Proxies, len(e.Behind), applied, len(concerned))
		}
	}
	if !maps.Equal(all, want) {
		t.Fatalf("%s: the changes concern %v, want %v", where, all, want)
	}
}
