package xds

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// everyOrder calls f with every order of the numbers below n.
func everyOrder(n int, f func(order []int)) {
	var rest func(order []int)
	rest = func(order []int) {
		if len(order) == n {
			f(order)
			return
		}
		for i := range n {
			if !slices.Contains(order, i) {
				rest(append(slices.Clip(order), i))
			}
		}
	}
	rest(nil)
}

// changedView is what a client that had the one before is to have next: a changed cluster, a new
// one, one that goes, one without endpoints, and a route that moves.
func changedView() (before, after *View) {
	before = (&View{}).put(NewCluster("a", []byte("1"), "a"), NewCluster("old", []byte("1"), "old"), NewCluster("empty", []byte("1"), "empty"),
		NewResource(EDS, "a", []byte("1")), NewResource(EDS, "old", []byte("1")), NewResource(EDS, "empty", []byte("1")),
		naming(NewResource(LDS, "l", []byte("r"))), naming(NewResource(LDS, "m", []byte("s"))),
		naming(NewResource(RDS, "r", []byte("a#1")), "a"), naming(NewResource(RDS, "s", []byte("old#1")), "old"))
	after = before.put(NewCluster("a", []byte("2"), "a"), NewCluster("new", []byte("1"), "new"), NewCluster("empty", []byte("2"), "empty"),
		NewResource(EDS, "new", []byte("1")),
		naming(NewResource(RDS, "r", []byte("a#2")), "a"), naming(NewResource(RDS, "s", []byte("new#1")), "new")).
		drop(CDS, "old").drop(EDS, "old").drop(EDS, "empty")
	return before, after
}

// TestEveryOrderOfRequestsAndViews brings a client up with one view, breaks its connection
// before or after a change of clusters has reached it, and has it come back with its
// requests, the next view and the answers in every order. The checker and the client judge.
func TestEveryOrderOfRequestsAndViews(t *testing.T) {
	before, after := changedView()
	for _, delta := range []bool{true, false} {
		for _, warming := range []bool{false, true} {
			everyOrder(int(numTypes)+1, func(order []int) {
				for _, slow := range []bool{false, true} {
					what := fmt.Sprintf("delta %v, warming %v, order %v, slow answers %v", delta, warming, order, slow)
					w := newWires(rand.New(rand.NewPCG(1, 1)), delta)
					w.view = before
					w.finish()
					if warming {
						w.losesEndpoints(after.At(before.Generation + 1))
					}
					w.view = after
					w.comeBack(order, slow)
					w.finish()
					w.verify(t, what)
					if t.Failed() {
						t.FailNow()
					}
				}
			})
		}
	}
}

// losesEndpoints has a view arrive, of which only the clusters reach the client.
func (w *wires) losesEndpoints(v *View) {
	w.view = v
	w.step(Moved{View: v})
	for len(w.down) > 0 {
		if s := w.down[0]; s.Type == CDS {
			w.client.take(s)
		}
		w.down = w.down[1:]
	}
}

// comeBack starts a stream with the client's first requests and the view in an order, where
// the number of types stands for the view. With slow answers all of it is there before the
// client takes the first response.
func (w *wires) comeBack(order []int, slow bool) {
	w.client.reconnect(w.rand)
	requests := w.client.out
	w.client.out = nil
	view := w.view
	w.view = nil
	w.connect()
	w.view = view
	for _, i := range order {
		if i == int(numTypes) {
			w.step(Moved{View: view})
		}
		for _, q := range requests {
			if int(q.Type) == i {
				w.step(q)
			}
		}
		requests = slices.DeleteFunc(requests, func(q *Request) bool { return int(q.Type) == i })
		for merge(requests, w.client); !slow && w.deliver(); {
			merge(requests, w.client)
		}
	}
}

// merge puts the names that a client asks for meanwhile into the first requests that are
// still to go.
func merge(requests []*Request, c *modelClient) {
	c.out = slices.DeleteFunc(c.out, func(q *Request) bool {
		i := slices.IndexFunc(requests, func(first *Request) bool { return first.Type == q.Type })
		if i >= 0 {
			requests[i].Names = namesOf(slices.Sorted(maps.Keys(c.subs[q.Type]))...)
		}
		return i >= 0
	})
}
