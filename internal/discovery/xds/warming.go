package xds

import (
	"iter"
	"slices"
	"time"
)

// warmingClusters are the clusters that were sent and are not known to be in use yet. After a first response there are
// thousands on each stream that starts, so that what they have in common is kept once, and their lists are those of
// the view's layers.
//
// Envoy takes a new or changed cluster into use only when its assignment arrives after it, and
// does not ask again for an assignment that it subscribes to already. So the assignment follows
// every cluster that is sent, whatever the client claims to have or asked for before. Envoy
// acknowledges a response of clusters only when none warms, be it of another response. So an
// acknowledged assignment says as much of its cluster as an acknowledged cluster, unless the cluster
// needs more than its assignment (slow).
type warmingClusters struct {
	lists resourceLists // may be those of a view, and are not changed
	state []warmingState
	// used is how many of them are in use by now. They stay in the lists as long as most of these warm, since a list without
	// them is a copy.
	used int
	// in are the responses that they came in; nil if all came in one, which is only.
	in   []*sentClusters
	only *sentClusters
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
	// used: the cluster does not count any more.
	used
)

func (st warmingState) is(of warmingState) bool { return st&of != 0 }

// sentClusters is a response that clusters came in: its number, and since when they are waited for. It does not
// change.
type sentClusters struct {
	seq   uint64
	since time.Time
}

func (w *warmingClusters) len() int { return len(w.state) - w.used }

// all ranges over the clusters with their places in the lists.
func (w *warmingClusters) all() iter.Seq2[int, *Resource] {
	return func(yield func(int, *Resource) bool) {
		for i, r := range w.lists.all() {
			if !w.state[i].is(used) && !yield(i, r) {
				return
			}
		}
	}
}

// response is the one that a cluster came in.
func (w *warmingClusters) response(i int) *sentClusters {
	if w.in == nil {
		return w.only
	}
	return w.in[i]
}

// find is where a cluster is; false if it is not.
func (w *warmingClusters) find(name string) (place int, ok bool) {
	place, ok = w.lists.find(name)
	return place, ok && !w.state[place].is(used)
}

// eachOwed ranges over the clusters whose assignments are still to be sent, until yield is false.
func (w *warmingClusters) eachOwed(yield func(i int, needs string) bool) {
	if w.owed == 0 {
		return
	}
	for i, r := range w.all() {
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
	for i, r := range w.all() {
		if r.Needs == needs && w.state[i].is(assigned) {
			return true
		}
	}
	return false
}

// inUse says whether the client has taken a cluster into use when all answers have come but for one to
// a response of assignments, if that is in flight.
func (w *warmingClusters) inUse(i int, flight bool) bool {
	st, r := w.state[i], w.lists.at(i)
	if st.is(owed) || flight && st.is(assigned) {
		return false
	}
	return st.is(acknowledged) || r.Needs != "" && !r.slow
}

// with is the clusters with those of a response added, in place of those of the same names. made says since when
// each is waited for, and what is known of it.
func (w *warmingClusters) with(added resourceLists, in *sentClusters, made func(*Resource) (*sentClusters, warmingState)) warmingClusters {
	if w.len() == 0 {
		return newWarming(added, in, func(_ int, r *Resource) (*sentClusters, warmingState) { return made(r) })
	}
	type entry struct {
		r     *Resource
		from  *sentClusters
		state warmingState
	}
	entries := make([]entry, 0, w.len()+added.len())
	for i, r := range w.all() {
		if _, again := added.find(r.Name); !again {
			entries = append(entries, entry{r, w.response(i), w.state[i]})
		}
	}
	for _, r := range added.all() {
		from, st := made(r)
		entries = append(entries, entry{r, from, st})
	}
	slices.SortFunc(entries, func(a, b entry) int { return order(a.r, b.r) })
	list := make([]*Resource, len(entries))
	for i, e := range entries {
		list[i] = e.r
	}
	return newWarming(resourceLists{list}, in, func(i int, _ *Resource) (*sentClusters, warmingState) { return entries[i].from, entries[i].state })
}

// newWarming is the clusters of lists, with what is known of each. Most came in one response.
func newWarming(lists resourceLists, most *sentClusters, known func(i int, r *Resource) (*sentClusters, warmingState)) warmingClusters {
	n := lists.len()
	out := warmingClusters{lists: lists, only: most, state: make([]warmingState, n)}
	for i, r := range lists.all() {
		from, st := known(i, r)
		if out.in == nil && from != out.only {
			out.in = slices.Repeat([]*sentClusters{out.only}, n)
		}
		if out.in != nil {
			out.in[i] = from
		}
		if out.state[i] = st; st.is(owed) {
			out.owed++
		}
	}
	return out
}

// without is the clusters but for those that are dropped. drop may be asked twice.
func (w *warmingClusters) without(drop func(i int) bool) warmingClusters {
	left := 0
	for i := range w.all() {
		if !drop(i) {
			left++
		}
	}
	switch {
	case left == 0:
		return warmingClusters{}
	case left == w.len():
		return *w
	}
	out := *w
	for i := range w.all() {
		if drop(i) {
			if out.state[i].is(owed) {
				out.owed--
			}
			out.state[i] = used
		}
	}
	if out.used = len(out.state) - left; out.used > left {
		return out.compact()
	}
	return out
}

// compact is the clusters without those that do not count.
func (w *warmingClusters) compact() warmingClusters {
	var lists resourceLists
	places := make([]int32, 0, w.len())
	place := int32(0)
	for part, list := range w.lists {
		for _, r := range list {
			if !w.state[place].is(used) {
				places, lists[part] = append(places, place), append(lists[part], r)
			}
			place++
		}
	}
	return newWarming(lists, w.only, func(i int, _ *Resource) (*sentClusters, warmingState) {
		return w.response(int(places[i])), w.state[places[i]]
	})
}
