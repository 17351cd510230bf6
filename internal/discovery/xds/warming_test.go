package xds

import (
	"fmt"
	"slices"
	"testing"
)

// clustersNamed are clusters with endpoints from EDS, of names that begin alike, in order.
func clustersNamed(prefix string, n int) (out []*Resource) {
	for i := range n {
		name := fmt.Sprintf("%s-%03d", prefix, i)
		out = append(out, NewCluster(name, []byte(name), name))
	}
	return out
}

// After its first response of clusters a stream has no list of them of its own: with hundreds of streams that start,
// thousands of clusters each, these took as much memory as all that was compiled for them.
func TestStreamsThatStartShareTheListsOfTheirLayers(t *testing.T) {
	var scope, workload *Layer
	scope = scope.With(CDS, clustersNamed("outbound", 100), nil)
	workload = workload.With(CDS, clustersNamed("inbound", 1), nil)
	view := &View{Generation: 1, Layers: [NumLayers]*Layer{0: scope, 2: workload}}

	s := NewSub(true, nil)
	s.Step(Moved{View: view})
	sent := s.Step(&Request{Type: CDS})
	i := slices.IndexFunc(sent, func(e Effect) bool { _, ok := e.(Send); return ok })
	if i < 0 {
		t.Fatalf("a request for clusters was answered by %v", sent)
	}
	send := sent[i].(Send)
	if n := len(send.Upserts); n != 101 {
		t.Fatalf("%d clusters were sent, want 101", n)
	}
	if n := s.warming.len(); n != 101 || s.warming.owed != 101 {
		t.Fatalf("%d clusters warm, the assignments of %d are owed: want 101 of each", n, s.warming.owed)
	}
	if of, list := scope.of(CDS).all(), s.warming.lists[0]; len(list) != len(of) || &list[0] != &of[0] {
		t.Error("the clusters that warm are in a list of the stream's own, want the scope's")
	}
	if f := s.states[CDS].flight; f.list != nil {
		t.Error("the response that is not answered yet has a list of its own")
	}
	r := &response{Send: send, delta: true}
	if r.encode(); r.Upserts != nil {
		t.Error("a response has its list when it is encoded, and gRPC keeps it until the proxy has room")
	}
}

func TestWarmingClusters(t *testing.T) {
	names := func(w warmingClusters) (out []string) {
		for i, r := range w.all() {
			if at := w.lists.at(i); at != r {
				t.Errorf("at place %d is %s, and %s by its place", i, r.Name, at.Name)
			}
			if place, ok := w.find(r.Name); !ok || place != i {
				t.Errorf("%s is found at %d (%v), want %d", r.Name, place, ok, i)
			}
			out = append(out, fmt.Sprintf("%s of %d", r.Name, w.response(i).seq))
		}
		slices.Sort(out)
		return out
	}
	owes := func(in *sentClusters) func(*Resource) (*sentClusters, warmingState) {
		return func(*Resource) (*sentClusters, warmingState) { return in, owed }
	}
	same := func(what string, w warmingClusters, want ...string) {
		t.Helper()
		if got := names(w); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
		if w.owed != len(want) || w.len() != len(want) {
			t.Errorf("%s: %d clusters, the assignments of %d are owed: want %d of each", what, w.len(), w.owed, len(want))
		}
	}
	first, second := &sentClusters{seq: 1}, &sentClusters{seq: 2}
	var none warmingClusters
	w := none.with(resourceLists{clustersNamed("b", 3), clustersNamed("a", 2)}, first, owes(first))
	same("of a view", w, "a-000 of 1", "a-001 of 1", "b-000 of 1", "b-001 of 1", "b-002 of 1")

	some := w.without(func(i int) bool { n := w.lists.at(i).Name; return n == "b-001" || n == "a-000" })
	same("without two", some, "a-001 of 1", "b-000 of 1", "b-002 of 1")
	if &some.lists[0][0] != &w.lists[0][0] {
		t.Error("without a few, the clusters are in lists of their own")
	}
	if _, ok := some.find("b-001"); ok {
		t.Error("one that is not there is found")
	}
	fewer := some.without(func(i int) bool { return some.lists.at(i).Name == "b-002" })
	same("without one more", fewer, "a-001 of 1", "b-000 of 1")
	if n := fewer.lists.len(); n != 2 {
		t.Errorf("the lists of 2 clusters have %d, want them without those that are in use when these are most", n)
	}

	some = some.without(func(int) bool { return true })
	some = some.with(resourceLists{{clustersNamed("a", 2)[1]}, clustersNamed("b", 3)}, first, owes(first))
	some = some.without(func(i int) bool { return some.lists.at(i).Name == "b-001" })
	more := some.with(resourceLists{clustersNamed("b", 2), clustersNamed("c", 1)}, second, owes(second))
	same("with later ones", more, "a-001 of 1", "b-000 of 2", "b-001 of 2", "b-002 of 1", "c-000 of 2")
	same("without those of the first response", more.without(func(i int) bool { return more.response(i) == first }),
		"b-000 of 2", "b-001 of 2", "c-000 of 2")
	same("without all", more.without(func(int) bool { return true }))

	list := resourceLists{clustersNamed("a", 3), clustersNamed("b", 2)}
	odd := list.only(func(r *Resource) bool { return r.Name != "a-001" })
	if odd.len() != 4 || list.len() != 5 || &odd[1][0] != &list[1][0] {
		t.Errorf("only some: %d of %d, with the other list shared: %v", odd.len(), list.len(), &odd[1][0] == &list[1][0])
	}
	if _, ok := odd.find("a-001"); ok {
		t.Error("a-001 is found where it is left out")
	}
}
