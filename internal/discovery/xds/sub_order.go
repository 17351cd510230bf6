package xds

import (
	"slices"
	"time"
)

// This file decides what waits for what. A listener, a route configuration or a virtual host waits
// for the clusters that it names, and, behind a Barrier, for policies; a cluster is removed after everything that
// names it. No wait is longer than holdLimit, except for what is still to be sent.
// [control-plane 5.2.1, 5.2.3, 5.2.4]

// clustersSent notes the clusters in a response. Those that are new or changed are to be waited for;
// in SotW the client passes over the others.
func (s *Sub) clustersSent(f *flight) {
	sent := f.lists()
	if !s.delta {
		sent = sent.only(f.changes)
	}
	if sent.len() == 0 && len(f.gone) == 0 {
		return
	}
	for _, r := range sent.all() {
		f.slow = f.slow || r.slow
	}
	if f.slow {
		// What needs nothing is in use at once, but the answer is late because of others.
		atOnce := func(r *Resource) bool { return r.Needs == "" && !r.slow }
		used := sent.only(atOnce)
		s.dropWarming(func(i int) bool { _, ok := used.find(s.warming.lists.at(i).Name); return ok })
		sent = sent.only(func(r *Resource) bool { return !atOnce(r) })
	}
	in := &sentClusters{seq: f.seq, since: s.now}
	s.warming = s.warming.with(sent, in, func(r *Resource) (from *sentClusters, st warmingState) {
		if r.Needs != "" {
			st |= owed
			if s.unasked && !s.states[EDS].has(r.Needs) {
				st |= unasked
			}
		}
		if len(s.waits) > 0 {
			if wait, ok := s.waits[waitKey{cluster: r.Name}]; ok {
				return &sentClusters{seq: f.seq, since: wait.since}, st
			}
		}
		return in, st
	})
	if len(f.gone) > 0 {
		s.dropWarming(func(i int) bool { return hasResource(f.gone, s.warming.lists.at(i).Name) })
	}
}

// clusterSentAgain notes that a response on its way brings a cluster that the client refused in an earlier one. So it is
// new to the client, and its assignment follows once more.
func (s *Sub) clusterSentAgain(r *Resource, f *flight) {
	in, st := &sentClusters{seq: f.seq, since: s.now}, warmingState(0)
	if r.Needs != "" {
		st = owed
	}
	s.warming = s.warming.with(resourceLists{{r}}, in, func(*Resource) (*sentClusters, warmingState) { return in, st })
}

// dropWarming forgets clusters.
func (s *Sub) dropWarming(drop func(i int) bool) { s.warming = s.warming.without(drop) }

// clustersAnswered notes the answer to the responses of clusters from one number to another. What was
// refused is not waited for: the client may not ask for its assignment. The assignment stays owed,
// for a client may use some clusters of a response that it refuses.
func (s *Sub) clustersAnswered(from, to uint64) {
	refused := s.states[CDS].refused
	for i, r := range s.warming.all() {
		if seq := s.warming.response(i).seq; seq < from || seq > to {
			continue
		}
		s.warming.state[i] |= acknowledged
		if len(refused) > 0 {
			if f, ok := refused[r.Name]; ok && f.version == r.Version {
				s.warming.state[i] |= given
			}
		}
	}
	s.inUseNow()
}

// assignmentsSent notes which assignments a response has brought.
func (s *Sub) assignmentsSent(f *flight) {
	list := search{list: f.upserts()}
	s.warming.eachOwed(func(i int, needs string) bool {
		if _, removed := slices.BinarySearch(f.removed, needs); removed || list.has(needs) {
			s.warming.sent(i)
		}
		return true
	})
}

// awaited says whether a resource of a response that is answered now is an assignment which a cluster waited for.
func (s *Sub) awaited(r *Resource) bool {
	return r.Type == EDS && s.warming.awaits(r.Name)
}

// inUseNow forgets the clusters that the client uses.
func (s *Sub) inUseNow() {
	flight := s.states[EDS].flight != nil
	if !flight {
		for i := range s.warming.state {
			s.warming.state[i] &^= assigned
		}
	}
	s.dropWarming(func(i int) bool { return s.warming.inUse(i, flight) })
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
	s.dropWarming(func(i int) bool {
		r := s.warming.lists.at(i)
		return s.warming.response(i).seq < seq && r.Needs == "" && !r.slow
	})
}

// assignmentDue says whether an assignment is to follow that the client subscribes to.
func (s *Sub) assignmentDue() (due bool) {
	s.warming.eachOwed(func(_ int, needs string) bool {
		due = s.states[EDS].has(needs)
		return !due
	})
	return due
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

// held says whether a new or changed resource waits for clusters that it names, for policies, or for stale virtual hosts. old is what the
// client has under its name, nil for nothing.
func (s *Sub) held(r, old *Resource) bool {
	barred := s.barred(r) || s.hasStaleHosts(r)
	if s.single || types[r.Type].references == nil || r.refers.none() {
		return barred
	}
	for _, t := range types[r.Type].after {
		if !s.states[t].asked && s.wanted(t).Len() > 0 && s.until(s.expected) {
			return true // it may have clusters, and ask for them first
		}
	}
	c := &s.states[CDS]
	if !c.asked {
		return barred
	}
	blocked := s.heldByWarming(r) || barred
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
	if s.cur.Barrier != nil || t == RDS && s.hosts.stale.len() > 0 {
		return false
	}
	if s.single {
		return true
	}
	for _, after := range types[t].after {
		if !s.states[after].asked && s.wanted(after).Len() > 0 && s.until(s.expected) {
			return false
		}
	}
	return !s.states[CDS].asked || s.warming.len() == 0 && len(s.difference(CDS).Upserts) == 0
}

// heldByWarming says whether r names a cluster that was sent and is not in use yet.
func (s *Sub) heldByWarming(r *Resource) (blocked bool) {
	w := &s.warming
	each := func(i int) {
		st := w.state[i]
		if st.is(given) || st.is(unasked) && st.is(owed) && st.is(acknowledged) {
			return
		}
		if s.until(w.response(i).since.Add(holdLimit)) {
			blocked = true
			return
		}
		if st.is(owed) && st.is(acknowledged) && !s.states[EDS].has(w.lists.at(i).Needs) {
			s.unasked = true
		}
		w.state[i] |= given
	}
	if r.refers.unknown || len(r.refers.names) > w.len() {
		for i, c := range w.all() {
			if r.refers.has(c.Name) {
				each(i)
			}
		}
		return blocked
	}
	for _, n := range r.refers.names {
		if i, ok := w.find(n); ok {
			each(i)
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

// namesMissing says whether a resource that is about to go names a cluster that the client has not, or of which that is
// not known yet.
func (s *Sub) namesMissing(r *Resource) bool {
	c := &s.states[CDS]
	if !c.asked && !s.single && s.now.Before(s.expected) {
		return !r.refers.none()
	}
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
		case w == nil && types[t].lasting:
			// Nothing tells the client that it is gone.
			if s.waiting(waitKey{cluster: cluster, removal: true}) {
				return true
			}
		case w == nil && s.keepsUnknown(r, t):
			// It may name any cluster, and stays for as long as the source is behind.
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
	for n, r := range c.left {
		w := view.Get(n)
		if w == nil || same(w, r) || !c.has(n) || !r.refersTo(cluster) {
			continue
		}
		if f := c.flight; f == nil || !f.has(n) || s.until(f.since.Add(holdLimit)) {
			return true // it is not known to use the new version
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
