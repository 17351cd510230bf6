package compile_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/jwks"
	"github.com/pilothouse/pilothouse/internal/object"
)

// fork is the world on a fork of its graph.
func (w *world) fork() *world {
	g := w.graph.Fork()
	m := w.model.Fork(g)
	return &world{
		graph: g, model: m, compiler: w.compiler.Fork(g, m), classes: maps.Clone(w.classes), held: maps.Clone(w.held),
	}
}

func (h *history) clone() *history {
	c := *h
	c.standing, c.keys, c.order = maps.Clone(h.standing), maps.Clone(h.keys), slices.Clone(h.order)
	return &c
}

// edit makes some random changes.
func (h *history) edit(w *world, d *dice) {
	if d.oneIn(20) {
		h.mesh = d.meshConfig()
		w.model.SetMesh(h.mesh)
	}
	if d.oneIn(20) {
		h.networks = d.meshNetworks()
		w.model.SetNetworks(h.networks)
	}
	if d.oneIn(20) {
		h.denials = d.denials()
		w.model.Deny(h.denials)
	}
	if d.oneIn(5) {
		s := pick(d, jwks.Source{URL: "https://a.example/keys"}, jwks.Source{Issuer: "https://three.example"})
		h.keys[s] = pick(d, "", fetchedKeys[0], fetchedKeys[1])
		w.model.SetKeys(s, h.keys[s])
	}
	for range 1 + d.roll(2) {
		c := d.change()
		h.note(c)
		w.model.Apply([]object.Change{c})
	}
	w.graph.Run()
	h.reclass(w)
}

// forked is a fork of a world, which lives on while that changes.
type forked struct {
	w *world
	h *history
}

// playForks opens, edits, checks and closes forks of a world at random.
func playForks(t *testing.T, forks []forked, w *world, h *history, d *dice, step int) []forked {
	t.Helper()
	switch d.roll(8) {
	case 0:
		if len(forks) < 2 {
			forks = append(forks, forked{w.fork(), h.clone()})
		}
	case 1, 2:
		for _, f := range forks {
			f.h.edit(f.w, d)
		}
	case 3:
		for _, f := range forks {
			f.h.same(t, f.w, step)
		}
	case 4:
		if len(forks) > 0 {
			forks[0].w.graph.Close()
			forks = forks[1:]
		}
	}
	return forks
}

// TestForkCompilesOnlyWhatItChanges edits a mesh on a fork: only what the edit affects is compiled again, it moves what
// the same edit moves in the original, and the original stays as it is.
func TestForkCompilesOnlyWhatItChanges(t *testing.T) {
	w := newWorld()
	w.apply(t, bookshop)
	class := w.join(proxy(t, "sidecar~10.99.0.9~client.shop~shop.svc.cluster.local", "app=client"))
	w.run()
	before, counts := w.bytes(class), w.graph.Stats()
	for _, edit := range []string{
		"apiVersion: v1\nkind: Pod\nmetadata: {name: reviews-2, namespace: shop, labels: {app: reviews, version: v2}}\nstatus: {phase: Running, podIP: 10.99.0.2}\n",
		"apiVersion: v1\nkind: Service\nmetadata: {name: added, namespace: shop}\nspec: {clusterIP: 10.96.0.9, ports: [{name: http, port: 9080}]}\n",
	} {
		f := w.fork()
		f.apply(t, edit)
		moved := f.run()
		ran := f.graph.Stats()
		if got := w.bytes(class); !maps.EqualFunc(got, before, slices.Equal[[]byte]) || !maps.Equal(w.graph.Stats(), counts) {
			t.Error("an edit of the fork has changed the original")
		}
		got := f.bytes(class)
		f.graph.Close()

		direct := newWorld()
		direct.apply(t, bookshop)
		direct.join(proxy(t, "sidecar~10.99.0.9~client.shop~shop.svc.cluster.local", "app=client"))
		direct.run()
		base := direct.graph.Stats()
		direct.apply(t, edit)
		if want := direct.run(); len(moved) == 0 || !slices.Equal(moved, want) {
			t.Errorf("the fork moved %q, want %q as without a fork", moved, want)
		}
		if want := direct.bytes(class); !maps.EqualFunc(got, want, slices.Equal[[]byte]) {
			t.Error("the fork compiled other bytes than a graph with the same edit")
		}
		for rule, s := range direct.graph.Stats() {
			if got, want := ran[rule].Runs, s.Runs-base[rule].Runs; got != want {
				t.Errorf("rule %q ran %d times on the fork, want %d as without one", rule, got, want)
			}
		}
	}
}
