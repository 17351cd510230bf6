package xds

import (
	"slices"
	"time"
)

// warmingClusters are the clusters that were sent and are not known to be in use yet, in order of names. After a first
// response there are thousands on each stream that starts, so that what they have in common is kept once.
//
// Envoy takes a new or changed cluster into use only when its assignment arrives after it, and
// does not ask again for an assignment that it subscribes to already. So the assignment follows
// every cluster that is sent, whatever the client claims to have or asked for before. Envoy
// acknowledges a response of clusters only when none warms, be it of another response. So an
// acknowledged assignment says as much of its cluster as an acknowledged cluster, unless the cluster
// needs more than its assignment (slow).
type warmingClusters struct {
	list  []*Resource // may be that of a response, and is not changed
	state []warmingState
	// in are the responses that they came in; nil if all came in one, which is all.
	in  []*sentClusters
	all *sentClusters
	// owed is how many are.
	owed int
}

// warmingState is what is known of a cluster.
type warmingState uint8

const (
	// owed: its assignment is still to be sent.
	owed warmingState = 1 << iota
	// assigned: it was, in the response of assignments that is not answered yet.
	assigned
	// acknowledged: the client has acknowledged the cluster.
	acknowledged
	// given: nothing waits for it any more.
	given
	// unasked: nothing waits for its assignment.
	unasked
)

func (st warmingState) is(of warmingState) bool { return st&of != 0 }

// sentClusters is a response that clusters came in: its number, and since when they are waited for. It does not
// change.
type sentClusters struct {
	seq   uint64
	since time.Time
}

func (w *warmingClusters) len() int { return len(w.list) }

// response is the one that a cluster came in.
func (w *warmingClusters) response(i int) *sentClusters {
	if w.in == nil {
		return w.all
	}
	return w.in[i]
}

// find is where a cluster is; false if it is not.
func (w *warmingClusters) find(name string) (int, bool) {
	return slices.BinarySearchFunc(w.list, name, byName)
}

// eachOwed ranges over the clusters whose assignments are still to be sent, until yield is false.
func (w *warmingClusters) eachOwed(yield func(i int, needs string) bool) {
	if w.owed == 0 {
		return
	}
	for i, r := range w.list {
		if w.state[i].is(owed) && !yield(i, r.Needs) {
			return
		}
	}
}

// sent notes that the assignment of a cluster was sent.
func (w *warmingClusters) sent(i int) {
	w.state[i] = w.state[i]&^owed | assigned
	w.owed--
}

// awaits says whether a cluster waits for the answer to its assignment of a name.
func (w *warmingClusters) awaits(needs string) bool {
	for i, r := range w.list {
		if r.Needs == needs && w.state[i].is(assigned) {
			return true
		}
	}
	return false
}

// inUse says whether the client has taken a cluster into use when all answers have come but for one to
// a response of assignments, if that is in flight.
func (w *warmingClusters) inUse(i int, flight bool) bool {
	st, r := w.state[i], w.list[i]
	if st.is(owed) || flight && st.is(assigned) {
		return false
	}
	return st.is(acknowledged) || r.Needs != "" && !r.slow
}

// with is the clusters with those of a response added, in place of those of the same names. made says since when
// each is waited for, and what is known of it.
func (w *warmingClusters) with(list []*Resource, in *sentClusters, made func(*Resource) (*sentClusters, warmingState)) (out warmingClusters) {
	if w.len() == 0 {
		out = warmingClusters{list: list, all: in}
	} else {
		out.list = make([]*Resource, 0, len(list)+w.len())
	}
	out.state = make([]warmingState, 0, cap(out.list))
	add := func(r *Resource, from *sentClusters, st warmingState) {
		if w.len() > 0 {
			out.list = append(out.list, r)
		}
		n := len(out.state)
		if out.in == nil && n > 0 && from != out.all {
			out.in = slices.Grow(slices.Repeat([]*sentClusters{out.all}, n), cap(out.list)-n)
		}
		if n == 0 {
			out.all = from
		}
		if out.in != nil {
			out.in = append(out.in, from)
		}
		out.state = append(out.state, st)
		if st.is(owed) {
			out.owed++
		}
	}
	at := 0
	old := func(before func(name string) bool) {
		for at < w.len() && before(w.list[at].Name) {
			add(w.list[at], w.response(at), w.state[at])
			at++
		}
	}
	for _, r := range list {
		old(func(name string) bool { return name < r.Name })
		if at < w.len() && w.list[at].Name == r.Name {
			at++
		}
		from, st := made(r)
		add(r, from, st)
	}
	old(func(string) bool { return true })
	return out
}

// without is the clusters but for those that are dropped, which drop must say twice.
func (w *warmingClusters) without(drop func(i int) bool) warmingClusters {
	left := 0
	for i := range w.list {
		if !drop(i) {
			left++
		}
	}
	switch left {
	case 0:
		return warmingClusters{}
	case w.len():
		return *w
	}
	out := warmingClusters{list: make([]*Resource, 0, left), state: make([]warmingState, 0, left), all: w.all}
	if w.in != nil {
		out.in = make([]*sentClusters, 0, left)
	}
	for i, r := range w.list {
		if drop(i) {
			continue
		}
		out.list, out.state = append(out.list, r), append(out.state, w.state[i])
		if w.in != nil {
			out.in = append(out.in, w.in[i])
		}
		if w.state[i].is(owed) {
			out.owed++
		}
	}
	return out
}
