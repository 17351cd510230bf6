package xds

import (
	"slices"
	"strings"
	"time"
)

// This file decides what waits for what. A listener, a route configuration or a virtual host waits
// for the clusters that it names, and for nothing else; a cluster is removed after everything that
// names it. No wait is longer than holdLimit, except for what is still to be sent.
// [control-plane 5.2.1, 5.2.3, 5.2.4]

// warmingCluster is a cluster that was sent and is not known to be in use yet.
//
// Envoy takes a new or changed cluster into use only when its assignment arrives after it, and
// does not ask again for an assignment that it subscribes to already. So the assignment follows
// every cluster that is sent, whatever the client claims to have or asked for before. Envoy
// acknowledges a response of clusters only when none warms, be it of another response. So an
// acknowledged assignment says as much of its cluster as an acknowledged cluster, unless the cluster
// needs more than its assignment (slow).
type warmingCluster struct {
	cluster *Resource
	in      *sentClusters
	// owed: its assignment is still to be sent; assigned: it was, in the response with that number.
	owed     bool
	assigned uint64
	// acked: the client has acknowledged the cluster; given: nothing waits for it any more; unasked:
	// nothing waits for its assignment.
	acked, given, unasked bool
}

// sentClusters is a response that clusters came in: its number, and since when they are waited for. It does not
// change.
type sentClusters struct {
	seq   uint64
	since time.Time
}

// inUse says whether the client has taken the cluster into use when all answers have come but for
// an EDS response, whose number is given, 0 for none.
func (w *warmingCluster) inUse(edsInFlight uint64) bool {
	if w.owed || w.assigned != 0 && w.assigned == edsInFlight {
		return false
	}
	return w.acked || w.cluster.Needs != "" && !w.cluster.slow
}

// clustersSent notes the clusters in a response. Those that are new or changed are to be waited for;
// in SotW the client passes over the others.
func (s *Sub) clustersSent(f *flight) {
	sent := f.upserts
	if !s.delta {
		sent = slices.DeleteFunc(slices.Clone(sent), func(r *Resource) bool { return !f.changes(r) })
	}
	if len(sent) == 0 && len(f.gone) == 0 {
		return
	}
	f.slow = slices.ContainsFunc(sent, func(r *Resource) bool { return r.slow })
	in := &sentClusters{seq: f.seq, since: s.now}
	out := make([]warmingCluster, 0, len(s.warming)+len(sent))
	old := s.warming
	for _, r := range sent {
		for len(old) > 0 && old[0].cluster.Name < r.Name {
			out, old = append(out, old[0]), old[1:]
		}
		if len(old) > 0 && old[0].cluster.Name == r.Name {
			old = old[1:]
		}
		w := warmingCluster{cluster: r, in: in, owed: r.Needs != ""}
		w.unasked = w.owed && s.unasked && !s.states[EDS].has(r.Needs)
		if len(s.waits) > 0 {
			if wait, ok := s.waits[waitKey{cluster: r.Name}]; ok {
				w.in = &sentClusters{seq: f.seq, since: wait.since}
			}
		}
		if r.Needs == "" && !r.slow && f.slow {
			continue // it is in use at once, but the answer is late because of others
		}
		out = append(out, w)
	}
	s.warming = append(out, old...)
	if len(f.gone) > 0 {
		s.warming = slices.DeleteFunc(s.warming, func(w warmingCluster) bool { return hasResource(f.gone, w.cluster.Name) })
	}
	s.trimWarming()
}

// clustersAnswered notes the answer to the responses of clusters from one number to another. What was
// refused is not waited for: the client may not ask for its assignment. The assignment stays owed,
// for a client may use some clusters of a response that it refuses.
func (s *Sub) clustersAnswered(from, to uint64) {
	refused := s.states[CDS].refused
	for i := range s.warming {
		w := &s.warming[i]
		if w.in.seq < from || w.in.seq > to {
			continue
		}
		w.acked = true
		if f, ok := refused[w.cluster.Name]; ok && f.version == w.cluster.Version {
			w.given = true
		}
	}
	s.inUseNow()
}

// assignmentsSent notes which assignments a response has brought.
func (s *Sub) assignmentsSent(f *flight) {
	sent := search{list: f.upserts}
	for i := range s.warming {
		w := &s.warming[i]
		if !w.owed {
			continue
		}
		_, removed := slices.BinarySearch(f.removed, w.cluster.Needs)
		if removed || sent.has(w.cluster.Needs) {
			w.owed, w.assigned = false, f.seq
		}
	}
}

// inUseNow forgets the clusters that the client uses.
func (s *Sub) inUseNow() {
	eds := uint64(0)
	if f := s.states[EDS].flight; f != nil {
		eds = f.seq
	}
	s.warming = slices.DeleteFunc(s.warming, func(w warmingCluster) bool { return w.inUse(eds) })
	s.trimWarming()
}

func (s *Sub) trimWarming() {
	if len(s.warming) == 0 {
		s.warming = nil // the room is for thousands
	}
}

// received notes that the client has had every response up to one with a number, which it has
// answered: it takes them in order. Clusters without endpoints are in use then, even if the
// answer to their response is late because of others.
func (s *Sub) received(seq uint64) {
	news := false
	note := func(f *flight) {
		if f != nil && f.seq < seq && !f.received {
			f.received, news = true, true
		}
	}
	c := &s.states[CDS]
	note(c.flight)
	for _, f := range c.unanswered {
		note(f)
	}
	if !news {
		return
	}
	s.warming = slices.DeleteFunc(s.warming, func(w warmingCluster) bool {
		return w.in.seq < seq && w.cluster.Needs == "" && !w.cluster.slow
	})
	s.trimWarming()
}

// warmingIndex is where a cluster is in s.warming; false if it is not.
func (s *Sub) warmingIndex(name string) (int, bool) {
	return slices.BinarySearchFunc(s.warming, name, func(w warmingCluster, n string) int { return strings.Compare(w.cluster.Name, n) })
}

// assignmentDue says whether an assignment is to follow that the client subscribes to.
func (s *Sub) assignmentDue() bool {
	return slices.ContainsFunc(s.warming, func(w warmingCluster) bool { return w.owed && s.states[EDS].has(w.cluster.Needs) })
}

// assignmentsOwed says whether any assignment is still to be sent.
func (s *Sub) assignmentsOwed() bool {
	return slices.ContainsFunc(s.warming, func(w warmingCluster) bool { return w.owed })
}

// waitKey is a wait for something about a cluster that is not in s.warming: that it is sent or comes
// into being, or that nothing names it any more.
type waitKey struct {
	cluster string
	removal bool
}

// waitState is since when something has waited.
type waitState struct {
	since time.Time
	used  bool // in this pass
}

// waiting says whether a wait goes on, which ends holdLimit after it has begun.
func (s *Sub) waiting(w waitKey) bool {
	st, ok := s.waits[w]
	if !ok {
		st.since = s.now
		if s.waits == nil {
			s.waits = map[waitKey]waitState{}
		}
	}
	st.used = true
	s.waits[w] = st
	return s.until(st.since.Add(holdLimit))
}

// until says whether it is before t, and has the stream be woken at t then.
func (s *Sub) until(t time.Time) bool {
	if !s.now.Before(t) {
		return false
	}
	s.next = sooner(s.next, t)
	return true
}

// beginWaits and endWaits enclose a pass; waits that it has not used have ended.
func (s *Sub) beginWaits() {
	for w, st := range s.waits {
		if st.used {
			st.used = false
			s.waits[w] = st
		}
	}
}

func (s *Sub) endWaits() {
	for t := range numTypes {
		if types[t].references != nil && s.states[t].flight != nil {
			return // what waits of this type is looked at again after the answer
		}
	}
	for w, st := range s.waits {
		if !st.used {
			delete(s.waits, w)
		}
	}
}

// held says whether a new or changed resource waits for clusters that it names. old is what the
// client has under its name, nil for nothing.
func (s *Sub) held(r, old *Resource) bool {
	if s.single || types[r.Type].references == nil || r.refers.none() {
		return false
	}
	for _, t := range types[r.Type].after {
		if !s.states[t].asked && s.wanted(t).Len() > 0 && s.until(s.expected) {
			return true // it may have clusters, and ask for them first
		}
	}
	c := &s.states[CDS]
	if !c.asked {
		return false
	}
	blocked := s.heldByWarming(r)
	if up := s.difference(CDS).Upserts; len(up) > 0 {
		blocked = s.heldByUnsent(r, up) || blocked
	}
	if old != nil && old.Body != nil && c.wildcard {
		// A route to a subset whose DestinationRule is still to come: not before the version that
		// the client has is known to be worse.
		view := s.wanted(CDS)
		for _, n := range r.refers.added(old.refers) {
			if view.Get(n) == nil && s.waiting(waitKey{cluster: n}) {
				blocked = true
			}
		}
	}
	return blocked
}

// free says whether held is false for every resource of a type that takes the place of nothing.
func (s *Sub) free(t Type) bool {
	if s.single {
		return true
	}
	for _, after := range types[t].after {
		if !s.states[after].asked && s.wanted(after).Len() > 0 && s.until(s.expected) {
			return false
		}
	}
	return !s.states[CDS].asked || len(s.warming) == 0 && len(s.difference(CDS).Upserts) == 0
}

// heldByWarming says whether r names a cluster that was sent and is not in use yet.
func (s *Sub) heldByWarming(r *Resource) (blocked bool) {
	each := func(w *warmingCluster) {
		if w.given || w.unasked && w.owed && w.acked {
			return
		}
		if s.until(w.in.since.Add(holdLimit)) {
			blocked = true
			return
		}
		if w.owed && w.acked && !s.states[EDS].has(w.cluster.Needs) {
			s.unasked = true
		}
		w.given = true
	}
	if r.refers.unknown || len(r.refers.names) > len(s.warming) {
		for i := range s.warming {
			if r.refers.has(s.warming[i].cluster.Name) {
				each(&s.warming[i])
			}
		}
		return blocked
	}
	for _, n := range r.refers.names {
		if i, ok := s.warmingIndex(n); ok {
			each(&s.warming[i])
		}
	}
	return blocked
}

// heldByUnsent says whether r names a cluster that is still to be sent.
func (s *Sub) heldByUnsent(r *Resource, up []*Resource) (blocked bool) {
	c := &s.states[CDS]
	each := func(u *Resource) {
		if c.has(u.Name) && !c.refuses(u) && s.waiting(waitKey{cluster: u.Name}) {
			blocked = true
		}
	}
	if r.refers.unknown || len(r.refers.names) > len(up) {
		for _, u := range up {
			if r.refers.has(u.Name) {
				each(u)
			}
		}
		return blocked
	}
	for _, n := range r.refers.names {
		if i, ok := slices.BinarySearchFunc(up, n, byName); ok {
			each(up[i])
		}
	}
	return blocked
}

// namesMissing says whether a resource that is about to go names a cluster that the client has not.
func (s *Sub) namesMissing(r *Resource) bool {
	c := &s.states[CDS]
	return c.wildcard && slices.ContainsFunc(r.refers.names, func(n string) bool { return c.get(n) == nil })
}

// removable says whether nothing that the client has names a cluster any more, but for the bounds.
// What it is still to be sent is waited for without a bound, and so is what it has because it
// refused the newer version.
func (s *Sub) removable(cluster *Resource) bool {
	for t := range numTypes {
		if types[t].references == nil || s.single {
			continue
		}
		c := &s.states[t]
		if !c.asked {
			if s.mayAsk(t) && s.until(s.expected) {
				return false
			}
			continue
		}
		if f := c.flight; f != nil && f.replaced(cluster.Name) && s.until(f.since.Add(holdLimit)) {
			return false
		}
		if s.named(t, cluster.Name) {
			return false
		}
	}
	return true
}

// named says whether a resource of a type that the client has keeps a cluster from being removed.
func (s *Sub) named(t Type, cluster string) bool {
	c := &s.states[t]
	view := s.wanted(t)
	for r := range c.actual() {
		if !c.has(r.Name) || !r.refersTo(cluster) {
			continue
		}
		w := view.Get(r.Name)
		switch {
		case w != nil && same(w, r):
			// The view itself is like that, and nothing newer is to come.
			if s.waiting(waitKey{cluster: cluster, removal: true}) {
				return true
			}
		case w != nil || s.delta || types[t].wildcard:
			return true
		default:
			// Nothing tells a SotW client that a named resource is gone; it goes with what refers to it.
			if s.changing(types[t].removedAfter) {
				return true
			}
		}
	}
	return false
}

// changing says whether something of the types is to be sent or acknowledged.
func (s *Sub) changing(list []Type) bool {
	return slices.ContainsFunc(list, func(t Type) bool {
		f := s.states[t].flight
		return s.pendingUpserts(t) || s.pendingRemovals(t) || f != nil && s.until(f.since.Add(holdLimit))
	})
}
