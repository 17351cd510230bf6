package xds

import (
	"slices"
	"strconv"
	"time"
)

// hold is a reason to keep state back until something else was acknowledged.
type hold struct {
	since time.Time // zero while nothing is held back
	until time.Time // when it ends by itself; zero while that is for others to bring about
	used  bool      // in this pass
}

// A type's updates and its removals are held apart. [control-plane 5.2.3]
const (
	holdUpdates  = iota // until what is in the row's after is in force
	holdRemovals        // until what is in the row's removedAfter is in force
	numHolds
)

// flush sends what may be sent now, in the order of the types.
func (s *Sub) flush() {
	next := s.retry()
	for t := range s.holds {
		for i := range s.holds[t] {
			s.holds[t][i].used = false
		}
	}
	// What is sent may open or start other holds: go on until nothing is.
	for before := -1; before != len(s.out); {
		before = len(s.out)
		for t := range numTypes {
			s.sendType(t)
		}
	}
	for t := range s.holds {
		for i := range s.holds[t] {
			h := &s.holds[t][i]
			if !h.used {
				*h = hold{}
			}
			next = sooner(next, h.until)
		}
	}
	s.scheduleWake(sooner(next, s.reportStuck()))
	s.reportApplied()
}

// sooner is the earlier of two times, where zero is never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// scheduleWake asks for a Now at next unless an earlier one is coming: hundreds of
// acknowledgements do not reset the timer each.
func (s *Sub) scheduleWake(next time.Time) {
	if !s.now.Before(s.woken) {
		s.woken = time.Time{}
	}
	if !next.IsZero() && (s.woken.IsZero() || next.Before(s.woken)) {
		s.woken = next
		s.emit(Wake{At: next})
	}
}

// reportStuck reports responses that have been unanswered for too long, and returns when the
// next one will have been.
func (s *Sub) reportStuck() (next time.Time) {
	for t := range numTypes {
		f := s.states[t].flight
		if f == nil || f.stuck {
			continue
		}
		if at := f.since.Add(stuckAfter); s.now.Before(at) {
			next = sooner(next, at)
			continue
		}
		f.stuck = true
		s.emit(Stuck{Type: t, Nonce: f.nonce, Since: f.since})
	}
	return next
}

// sendType sends what is due of one type, unless a response is in flight or it is held.
func (s *Sub) sendType(t Type) {
	c := &s.states[t]
	if !c.asked || c.flight != nil {
		return
	}
	cur := s.cur.Of(t)
	d := s.difference(t)
	up, gone := s.pendingUpserts(t), s.pendingRemovals(t)
	if !up && !gone {
		c.setHave(cur, cur)
		return
	}
	if !s.open(t, holdUpdates) {
		return
	}
	target := cur
	if gone && !s.open(t, holdRemovals) {
		if !up {
			return
		}
		target, gone = d.Union, false
	}
	if !up && !s.delta && !types[t].wildcard {
		// SotW has no removals for types whose resources are named.
		c.setHave(target, cur)
		return
	}
	send := Send{Type: t, Generation: s.cur.Generation}
	if s.delta {
		send.Upserts, send.Removed = s.increment(t, d, target, gone)
	} else {
		send.Upserts = s.state(t, d, target)
	}
	s.seq++
	send.Nonce = strconv.FormatUint(s.seq, 10)
	switch {
	case s.single:
	case t == CDS:
		s.expectAssignments(send, d, gone)
	case t == EDS:
		s.assignmentsSent(send)
	}
	c.setHave(target, cur)
	c.forced, c.due = nil, false
	c.nonce = send.Nonce
	c.flight = &flight{nonce: send.Nonce, generation: send.Generation, upserts: send.Upserts, since: s.now, own: s.privateSize(send)}
	s.emit(send)
}

// difference is the step from what the client has to the view.
func (s *Sub) difference(t Type) *Delta {
	c := &s.states[t]
	cur := s.cur.Of(t)
	if c.memo.delta == nil || c.memo.old != c.have || c.memo.cur != cur {
		c.memo = computed{old: c.have, cur: cur, delta: diff(c.have, cur, s.between(c))}
	}
	return c.memo.delta
}

// between compares sets of one layer. What is a client's own is compared once, so that the result is not
// kept for others.
func (s *Sub) between(c *typeState) func(old, cur *set) step {
	if c.own {
		return between
	}
	return s.shared.between
}

// increment is the content of a delta response.
func (s *Sub) increment(t Type, d *Delta, target TypeView, gone bool) (up []*Resource, removed []string) {
	c := &s.states[t]
	up = c.subscribed(d.Upserts)
	if gone {
		for _, r := range c.subscribed(d.Removed) {
			removed = append(removed, r.Name)
		}
	}
	var more []*Resource
	answer := func(name string) {
		if hasResource(up, name) {
			return // at a start that is all of them
		}
		if r := s.lookup(t, target, name); r != nil {
			more = append(more, r)
		} else {
			removed = append(removed, name)
		}
	}
	for _, n := range c.forced.besides(up) {
		answer(n)
	}
	if t == EDS {
		for _, o := range s.assignments {
			if c.has(o.cluster.Needs) {
				answer(o.cluster.Needs)
			}
		}
	}
	if len(more) > 0 {
		up = slices.Concat(up, more)
		slices.SortFunc(up, order)
		up = slices.CompactFunc(up, func(a, b *Resource) bool { return a.Name == b.Name })
	}
	slices.Sort(removed)
	return up, slices.Compact(removed)
}

// state is the content of a SotW response: everything for the types that are complete by
// definition and for a request that has grown, else what has changed.
func (s *Sub) state(t Type, d *Delta, target TypeView) []*Resource {
	c := &s.states[t]
	if types[t].wildcard || c.due {
		if c.wildcard {
			return slices.Collect(target.All())
		}
		var out []*Resource
		for _, n := range c.names.all() {
			if r := s.lookup(t, target, n); r != nil {
				out = append(out, r)
			}
		}
		return out
	}
	up, _ := s.increment(t, d, target, false)
	return up
}

// lookup is the resource to answer a name with, or nil. A SotW response cannot say that
// there are no endpoints, and the cluster would warm, and hold up all others, forever;
// so it says that there are none now.
func (s *Sub) lookup(t Type, set TypeView, name string) *Resource {
	if r := set.Get(name); r != nil && r.Body != nil {
		return r
	}
	if absent := types[t].absent; absent != nil && !s.delta {
		return NewResource(t, name, absent(name))
	}
	return nil
}

// subscribed are those of list that the client subscribes to; list itself, where it is all of them.
func (c *typeState) subscribed(list []*Resource) []*Resource {
	if c.wildcard {
		return list
	}
	for i, r := range list {
		if c.names.has(r.Name) {
			continue
		}
		out := slices.Clone(list[:i])
		for _, r := range list[i:] {
			if c.names.has(r.Name) {
				out = append(out, r)
			}
		}
		return out
	}
	return list
}

// any says whether the client subscribes to one of list.
func (c *typeState) any(list []*Resource) bool {
	return c.wildcard && len(list) > 0 || slices.ContainsFunc(list, func(r *Resource) bool { return c.names.has(r.Name) })
}

func (s *Sub) pendingUpserts(t Type) bool {
	c := &s.states[t]
	return c.asked && (c.due || c.forced.len() > 0 || t == EDS && s.assignmentDue() || c.any(s.difference(t).Upserts))
}

// pendingRemovals says whether the client has something that the view has not.
func (s *Sub) pendingRemovals(t Type) bool {
	c := &s.states[t]
	return c.asked && c.any(s.difference(t).Removed)
}

// open says whether a type's updates or removals may be sent. A response that has been
// waited for longer than holdLimit holds nothing any more, nor does a type that a returning
// client has not asked for by then; a removal never overtakes state that has not even been
// sent.
func (s *Sub) open(of Type, which int) bool {
	waitsFor := types[of].after
	if which == holdRemovals {
		waitsFor = types[of].removedAfter
	}
	if len(waitsFor) == 0 || s.single {
		return true
	}
	h := &s.holds[of][which]
	h.used, h.until = true, time.Time{}
	blocked, unsent, unasked := which == holdUpdates && s.awaitsAssignment(), false, false
	for _, t := range waitsFor {
		c := &s.states[t]
		if !c.asked {
			unasked = unasked || s.awaitsRequest(t, which)
			continue
		}
		pending := s.pendingUpserts(t) || which != holdUpdates && s.pendingRemovals(t)
		if which != holdUpdates && pending {
			unsent = true
		}
		late := c.flight != nil && c.flight.late
		if !late && (pending || c.flight != nil) {
			blocked = true
		}
	}
	switch {
	case unsent:
		h.since = time.Time{}
		return false
	case unasked:
		*h = hold{until: s.expected, used: true}
		return false
	case !blocked:
		h.since = time.Time{}
		return true
	case h.since.IsZero():
		h.since = s.now
	}
	h.until = h.since.Add(holdLimit)
	if s.now.Before(h.until) {
		return false
	}
	for _, t := range waitsFor {
		if f := s.states[t].flight; f != nil {
			f.late = true
		}
	}
	if which == holdUpdates {
		for i := range s.assignments {
			o := &s.assignments[i]
			if !o.late && s.states[CDS].flight == nil && !s.states[EDS].has(o.cluster.Needs) {
				s.unasked = true
			}
			o.late = true
		}
	}
	*h = hold{used: true}
	return true
}

// awaitsRequest says whether a hold waits for a client to ask for a type. One that comes from
// an earlier stream may have listeners and routes whose clusters must not go before them.
func (s *Sub) awaitsRequest(t Type, which int) bool {
	return s.now.Before(s.expected) && (which != holdUpdates || s.cur.Of(t).Len() > 0)
}

// reportApplied reports when the client has asked for all of the view and accepted it.
func (s *Sub) reportApplied() {
	if s.starting() || len(s.assignments) > 0 {
		return
	}
	for t := range numTypes {
		c := &s.states[t]
		if c.flight != nil || len(c.refused) > 0 || s.pendingUpserts(t) || s.pendingRemovals(t) {
			// Of a client that now asks for more, say.
			s.applied = 0
			return
		}
	}
	if s.cur.Generation == s.applied {
		return
	}
	s.applied = s.cur.Generation
	s.emit(Applied{Generation: s.applied})
}

// starting says whether the client is still to ask for listeners or, taking all of them,
// for another type that the view has resources of.
func (s *Sub) starting() bool {
	if s.single {
		return false // it has asked for its type, or has sent nothing
	}
	for t := range numTypes {
		if !s.states[t].asked && (t == LDS || s.states[LDS].wildcard && s.cur.Of(t).Len() > 0) {
			return true
		}
	}
	return false
}

// pendingAssignment is a cluster that was sent and whose assignment was not sent after it yet.
//
// Envoy takes a new or changed cluster into use only when its assignment arrives, accepts
// no other change of clusters meanwhile, and does not ask again for an assignment that it
// subscribes to already. So the assignment follows every cluster that is sent, whatever
// the client claims to have or asked for before. [control-plane 5.2.1]
type pendingAssignment struct {
	cluster *Resource
	// late: listeners and routes wait for it no longer.
	late bool
}

// expectAssignments notes the clusters in a response that need an assignment after it. In SotW
// these are the ones that are new or changed; the client passes over the others.
func (s *Sub) expectAssignments(send Send, d *Delta, gone bool) {
	sent := send.Upserts
	if !s.delta {
		forced := s.states[CDS].forced
		sent = slices.DeleteFunc(slices.Clone(sent), func(r *Resource) bool {
			return !hasResource(d.Upserts, r.Name) && !forced.has(r.Name)
		})
	}
	replaced := func(o pendingAssignment) bool {
		return hasResource(sent, o.cluster.Name) || gone && hasResource(d.Removed, o.cluster.Name)
	}
	s.assignments = slices.DeleteFunc(s.assignments, replaced)
	for _, r := range sent {
		if r.Needs != "" {
			s.assignments = append(s.assignments, pendingAssignment{cluster: r, late: s.unasked && !s.states[EDS].has(r.Needs)})
		}
	}
}

// assignmentsSent removes what a response with assignments has brought.
func (s *Sub) assignmentsSent(send Send) {
	s.assignments = slices.DeleteFunc(s.assignments, func(o pendingAssignment) bool {
		_, removed := slices.BinarySearch(send.Removed, o.cluster.Needs)
		return removed || hasResource(send.Upserts, o.cluster.Needs)
	})
	if len(s.assignments) == 0 {
		s.assignments = nil // the room is for thousands
	}
}

// assignmentDue says whether an assignment is to follow that the client subscribes to.
func (s *Sub) assignmentDue() bool {
	return slices.ContainsFunc(s.assignments, func(o pendingAssignment) bool { return s.states[EDS].has(o.cluster.Needs) })
}

// stopWaiting ends the waiting for the assignments of clusters that were refused: the client
// may not ask for them. They stay pending, for a client may use some clusters of a response
// that it refuses.
func (s *Sub) stopWaiting(refused map[string]rejection) {
	for i, o := range s.assignments {
		if f, ok := refused[o.cluster.Name]; ok && f.version == o.cluster.Version {
			s.assignments[i].late = true
		}
	}
}

// awaitsAssignment says whether listeners and routes wait for an assignment.
func (s *Sub) awaitsAssignment() bool {
	return slices.ContainsFunc(s.assignments, func(o pendingAssignment) bool { return !o.late })
}

// hasResource says whether a list in order of names has the name.
func hasResource(list []*Resource, name string) bool {
	_, ok := slices.BinarySearchFunc(list, name, byName)
	return ok
}
