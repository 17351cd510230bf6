package xds

import (
	"iter"
	"maps"
	"slices"
	"strconv"
	"time"
)

// hold is a reason to keep the removals of a type back until what may refer to them is
// acknowledged. [control-plane 5.2.3]
type hold struct {
	since time.Time // zero while nothing is held back
	until time.Time // when it ends by itself; zero while that is for others to bring about
	used  bool      // in this pass
}

// flush sends what may be sent now, in the order of the types.
func (s *Sub) flush() {
	s.next = s.retry()
	s.decideUnknown()
	for t := range s.holds {
		s.holds[t].used = false
	}
	s.beginWaits()
	for t := range numTypes {
		// Before all else, since what may never be sent keeps nothing back.
		if types[t].lasting && s.delta && s.states[t].asked {
			s.states[t].leaveUnanswered(s.wanted(t))
		}
	}
	s.removeStaleHosts()
	// What is sent may open or start other holds: go on until nothing is.
	for before := -1; before != len(s.out); {
		before = len(s.out)
		for t := range numTypes {
			s.sendType(t)
		}
	}
	for t := range s.holds {
		h := &s.holds[t]
		if !h.used {
			*h = hold{}
		}
		s.next = sooner(s.next, h.until)
	}
	s.endWaits()
	s.scheduleWake(sooner(s.next, s.reportStuck()))
	s.begins = s.starting()
	for t := range numTypes {
		s.pending[t] = s.outstanding(t)
	}
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
		report := func(f *flight) {
			if f == nil || f.stuck {
				return
			}
			if at := f.since.Add(stuckAfter); s.now.Before(at) {
				next = sooner(next, at)
				return
			}
			f.stuck = true
			s.emit(Stuck{Type: t, Nonce: f.nonce, Since: f.since})
		}
		for _, f := range s.states[t].unanswered {
			report(f)
		}
		report(s.states[t].flight)
	}
	return next
}

// maxUnanswered bounds the responses of one type that a newer one was sent after before their answers.
const maxUnanswered = 16

// ready says whether a response of a type may be sent: the last one was answered. Envoy answers one
// with clusters only when no cluster warms, so that a response which it is known to have, or whose
// clusters warm for reasons that cannot be seen, does not keep back the next one.
func (s *Sub) ready(t Type) bool {
	c := &s.states[t]
	f := c.flight
	if f == nil {
		return true
	}
	if t != CDS || len(c.unanswered) == maxUnanswered || c.bisection != nil {
		return false
	}
	return f.received || f.slow || !s.until(f.since.Add(holdLimit))
}

// level says whether the client has been sent exactly what the view has of a type, and nothing else is open that
// could make something to be sent. It decides most calls for a type without looking for differences: a change moves one
// type or two.
func (s *Sub) level(t Type) bool {
	c := &s.states[t]
	return !c.due && c.forced.len() == 0 && len(c.kept) == 0 && len(c.refused) == 0 && len(c.closed) == 0 && c.bisection == nil &&
		(t != EDS || s.warming.owed == 0) && c.have == s.target(t)
}

// sendType sends what is due of one type and does not wait for others.
func (s *Sub) sendType(t Type) {
	c := &s.states[t]
	if !c.asked {
		return
	}
	if t == VHDS {
		s.withoutHosts()
	}
	if s.level(t) {
		if c.flight == nil {
			c.own = false
		}
		return
	}
	cur := s.wanted(t)
	d := s.difference(t)
	up, gone := s.pendingUpserts(t), s.pendingRemovals(t)
	if !up && !gone {
		stay := slices.DeleteFunc(slices.Clone(d.Removed), func(r *Resource) bool { return !s.stays(r, t) })
		if c.flight == nil && !(len(stay) == len(d.Removed) && len(c.kept) == 0 && c.have.isLayered(cur)) {
			refused, _ := s.withheld(t, d, cur)
			c.setHave(cur.and(stay), cur, nil, refused)
		}
		return
	}
	if !s.ready(t) || t == VHDS && s.routesUnsent() {
		return
	}
	target := cur
	var removed []*Resource
	if len(d.Removed) > 0 {
		var waits []*Resource
		removed, waits = s.removals(t, c.subscribed(d.Removed))
		if types[t].together && slices.ContainsFunc(waits, func(r *Resource) bool { return !s.keeps(r, t) }) {
			return
		}
		target = target.and(waits)
		if !s.delta && types[t].references != nil && !types[t].wildcard {
			c.leave(removed)
		}
	}
	c.prune(d.Upserts)
	withheld, held := s.withheld(t, d, target)
	if types[t].together {
		if stay := c.holdTogether(c.subscribed(d.Upserts), removed, withheld); len(stay) > 0 {
			removed = slices.DeleteFunc(slices.Clone(removed), func(r *Resource) bool { return hasResource(stay, r.Name) })
			target = target.and(stay)
		}
	}
	if held && c.due && c.wildcard {
		// Without a part of the first answer a client would believe that it has all there is.
		return
	}
	if !up && !s.delta && !types[t].wildcard {
		// SotW has no removals for types whose resources are named.
		c.setHave(target, cur, nil, withheld)
		return
	}
	f := &flight{sotw: !s.delta, generation: s.cur.Generation, since: s.now, had: c.have, hadKept: maps.Clone(c.kept), gone: removed}
	s.content(t, f, d, target, withheld)
	if s.empty(c, f) || c.due && held && len(f.upserts()) == 0 {
		return // all of it waits
	}
	s.seq++
	f.seq, f.nonce = s.seq, strconv.FormatUint(s.seq, 10)
	if c.flight != nil {
		c.unanswered = append(c.unanswered, c.flight)
	}
	c.answeredBy(f, s.delta)
	c.nonce, c.flight = f.nonce, f
	if c.bisection != nil {
		c.bisection.trial = f.seq
	}
	upserts := f.upserts()
	if c.wildcard && len(withheld) == 0 && target == cur && len(upserts) == cur.Len() {
		f.share(cur)
		c.memo = computed{} // which has the same list
	}
	switch {
	case s.single:
	case t == CDS:
		s.clustersSent(f)
	case t == EDS:
		s.assignmentsSent(f)
	case t == RDS:
		s.routesSent(upserts)
	case t == VHDS:
		s.hostsSent(f)
	}
	c.setHave(target, cur, f, withheld)
	send := Send{Type: t, Generation: f.generation, Upserts: upserts, Removed: f.removed, Absent: f.absent, Nonce: f.nonce, from: cur}
	f.own = s.privateSize(send)
	s.emit(send)
}

// leaveUnanswered forgets which names a client has asked for anew that nothing has, neither the view nor the client: if the
// view gets one later, it is new to the client.
func (c *typeState) leaveUnanswered(view TypeView) {
	var missing []string
	for _, n := range c.forced.all() {
		if r := c.get(n); view.Get(n) == nil && (r == nil || r.Body == nil) {
			missing = append(missing, n)
		}
	}
	if len(missing) > 0 {
		c.unforce(newNameSet(missing, 0))
	}
}

// stays says whether a client goes on with a resource that the view has not, and is not told that it is gone.
func (s *Sub) stays(r *Resource, t Type) bool {
	return s.keeps(r, t) || types[t].lasting && s.states[t].has(r.Name)
}

// empty says whether a response would tell the client nothing: no request is answered by it, and
// nothing is in it that the client has otherwise.
func (s *Sub) empty(c *typeState, f *flight) bool {
	switch {
	case c.due:
		return false
	case s.delta:
		return len(f.upserts()) == 0 && len(f.removed) == 0 && len(f.absent) == 0
	case !c.wildcard:
		return len(f.upserts()) == 0
	}
	return len(f.gone) == 0 && c.forced.len() == 0 && !slices.ContainsFunc(f.upserts(), f.changes)
}

// answeredBy takes out of the requests what a response answers. What is still withheld of a SotW
// client's names is sent once it may be, since the client has it not.
func (c *typeState) answeredBy(f *flight, delta bool) {
	if c.due {
		c.due = false
	}
	f.forced, c.forced = c.forced, nil
	if delta && f.forced.len() > 0 {
		left := slices.DeleteFunc(f.forced.besides(f.upserts()), f.has)
		c.forced = c.forced.with(newNameSet(left, 0), nil)
	}
	f.fresh, c.fresh = c.fresh, nil
	if f.fresh != nil && c.forced != nil {
		c.fresh = newNameSet(slices.DeleteFunc(slices.Clone(f.fresh.all()), func(n string) bool { return !c.forced.has(n) }), 0)
	}
}

// removals divides what is to be removed into what may be removed now and what waits.
func (s *Sub) removals(t Type, gone []*Resource) (now, waits []*Resource) {
	if types[t].lasting {
		return nil, gone
	}
	if t != CDS && !s.keepsSome() {
		if s.mayRemove(t) {
			return gone, nil
		}
		return nil, gone
	}
	for _, r := range gone {
		if s.keeps(r, t) {
			waits = append(waits, r)
		} else if t != CDS && s.mayRemove(t) || t == CDS && s.removable(r) {
			now = append(now, r)
		} else {
			waits = append(waits, r)
		}
	}
	return now, waits
}

// withheld are the resources that are to be sent, and are not now, by name, with what the client has
// instead, nil for nothing: it has refused them, they are not the ones to be tried, or they wait for
// clusters.
func (s *Sub) withheld(t Type, d *Delta, target TypeView) (out map[string]*Resource, held bool) {
	c := &s.states[t]
	if types[t].references == nil && len(c.refused) == 0 && c.bisection == nil {
		return nil, false // nothing of the type ever is, and there may be thousands
	}
	if len(d.Upserts) == 0 && c.forced.len() == 0 {
		return nil, false
	}
	free, fine := s.free(t), len(c.refused) == 0 && c.bisection == nil
	if free && fine && c.have == (TypeView{}) {
		return nil, false
	}
	withhold := func(r, old *Resource) {
		if !c.refuses(r) {
			waits := (!free || old != nil) && s.held(r, old)
			if !waits && c.tries(r.Name) {
				return
			}
			held = held || waits
		}
		if out == nil {
			out = map[string]*Resource{}
		}
		out[r.Name] = old
	}
	// One that warms is enough to hold a first answer, which has nothing that is kept meanwhile.
	first := c.due && c.wildcard && c.have == (TypeView{}) && len(s.waits) == 0
	for _, r := range c.subscribed(d.Upserts) {
		withhold(r, c.get(r.Name))
		if first && held && len(s.waits) == 0 {
			return out, true
		}
	}
	if c.forced.len() > 0 && types[t].references != nil && !(free && fine) {
		for _, n := range c.forced.all() {
			if r := target.Get(n); r != nil && c.has(n) {
				withhold(r, nil) // it has it not, or not any more
			}
		}
	}
	return out, held
}

// get is what the client has under a name, or nil.
func (c *typeState) get(name string) *Resource {
	if r, ok := c.kept[name]; ok {
		return r
	}
	return c.have.Get(name)
}

// actual ranges over all that the client has, in no order.
func (c *typeState) actual() iter.Seq[*Resource] {
	return func(yield func(*Resource) bool) {
		for _, list := range c.have.lists() {
			for _, r := range list {
				if len(c.kept) > 0 {
					if _, ok := c.kept[r.Name]; ok {
						continue
					}
				}
				if !yield(r) {
					return
				}
			}
		}
		for _, r := range c.kept {
			if r != nil && !yield(r) {
				return
			}
		}
	}
}

// difference is the step from what the client has to the view.
func (s *Sub) difference(t Type) *Delta {
	c := &s.states[t]
	cur := s.wanted(t)
	if c.memo.delta == nil || c.memo.old != c.have || c.memo.cur != cur {
		c.memo = computed{old: c.have, cur: cur, delta: c.corrected(diff(c.have, cur, s.between(c)), cur)}
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

// corrected is the step to the view from have, made that from what the client really has.
func (c *typeState) corrected(d *Delta, view TypeView) *Delta {
	if len(c.kept) == 0 {
		return d
	}
	var up, gone []*Resource
	for n, old := range c.kept {
		switch r := view.Get(n); {
		case r == nil && old != nil:
			gone = append(gone, old)
		case r != nil && (old == nil || !same(old, r)):
			up = append(up, r)
		}
	}
	slices.SortFunc(up, order)
	slices.SortFunc(gone, order)
	kept := func(r *Resource) bool { _, ok := c.kept[r.Name]; return ok }
	out := &Delta{}
	out.Upserts = mergeLists(slices.DeleteFunc(slices.Clone(d.Upserts), kept), up)
	out.Removed = mergeLists(slices.DeleteFunc(slices.Clone(d.Removed), kept), gone)
	return out
}

// content fills in a response.
func (s *Sub) content(t Type, f *flight, d *Delta, target TypeView, withheld map[string]*Resource) {
	c := &s.states[t]
	if !s.delta && (types[t].wildcard || c.due) {
		f.list = s.state(t, target, withheld)
		return
	}
	f.list = c.subscribed(d.Upserts)
	if len(withheld) > 0 {
		f.list = slices.DeleteFunc(slices.Clone(f.upserts()), func(r *Resource) bool { _, ok := withheld[r.Name]; return ok })
	}
	for _, r := range f.gone {
		f.removed = append(f.removed, r.Name)
	}
	s.answers(t, f, target, withheld)
	slices.Sort(f.removed)
	slices.Sort(f.absent)
	f.removed = slices.Compact(f.removed)
	if !s.delta {
		f.removed = nil
	}
}

// answers adds what was asked for by name, and the assignments that are to follow clusters.
func (s *Sub) answers(t Type, f *flight, target TypeView, withheld map[string]*Resource) {
	c := &s.states[t]
	var more []*Resource
	answer := func(name string) {
		if hasResource(f.upserts(), name) {
			return // at a start that is all of them
		}
		if _, waits := withheld[name]; waits || !c.tries(name) {
			return
		}
		r := s.lookup(t, target, name)
		if r == nil && types[t].aliased && c.names.has(name) {
			f.absent = append(f.absent, name)
		} else if types[t].lasting {
			if r != nil {
				more = append(more, r)
			}
		} else if r == nil || s.wanted(t).Get(name) == nil && s.namesMissing(r) {
			f.removed = append(f.removed, name)
		} else {
			more = append(more, r)
		}
	}
	for _, n := range c.forced.besides(f.upserts()) {
		answer(n)
	}
	if t == VHDS {
		for _, n := range s.withoutHosts() {
			f.removed = append(f.removed, n+"/*")
		}
	}
	if t == EDS {
		sent := search{list: f.upserts()}
		s.warming.eachOwed(func(_ int, n string) bool {
			if sent.has(n) || !c.has(n) || !c.tries(n) {
				return true
			}
			// Even one that was refused, or the cluster would not be used; rather the one before.
			if r := withheld[n]; r != nil && r.Body != nil {
				more = append(more, r)
			} else if r := s.lookup(t, target, n); r != nil {
				more = append(more, r)
				delete(withheld, n)
			} else {
				f.removed = append(f.removed, n)
			}
			return true
		})
	}
	if len(more) > 0 {
		f.list = slices.Concat(f.upserts(), more)
		slices.SortFunc(f.upserts(), order)
		f.list = slices.CompactFunc(f.upserts(), func(a, b *Resource) bool { return a.Name == b.Name })
	}
}

// state is the content of a SotW response that has all that the client subscribes to. What is withheld
// is in it as the client has it.
func (s *Sub) state(t Type, target TypeView, withheld map[string]*Resource) (out []*Resource) {
	c := &s.states[t]
	if len(withheld) == 0 && target == s.cur.Of(t) {
		// All of it is the view's, so that streams share a list.
		if c.wildcard {
			return target.list()
		}
		return s.lookupAll(t, target.list(), c.names)
	}
	add := func(n string, r *Resource) {
		if old, ok := withheld[n]; ok {
			r = old
		}
		if r != nil && r.Body != nil {
			out = append(out, r)
		}
	}
	if c.wildcard {
		for r := range target.All() {
			add(r.Name, r)
		}
		return out
	}
	for _, n := range c.names.all() {
		if r := s.lookup(t, target, n); r != nil && (s.wanted(t).Get(n) != nil || types[t].lasting || !s.namesMissing(r)) {
			add(n, r)
		}
	}
	return out
}

// lookupAll is lookup for all names of a set in a list in order of names; the list itself, where that
// is exactly what it has.
func (s *Sub) lookupAll(t Type, list []*Resource, names *nameSet) []*Resource {
	all := names.all()
	if slices.EqualFunc(list, all, func(r *Resource, n string) bool { return r.Name == n && r.Body != nil }) {
		return list
	}
	out := make([]*Resource, 0, len(all))
	for _, n := range all {
		for len(list) > 0 && list[0].Name < n {
			list = list[1:]
		}
		var r *Resource
		if len(list) > 0 && list[0].Name == n {
			r = list[0]
		}
		if r = s.orAbsent(t, r, n); r != nil {
			out = append(out, r)
		}
	}
	return out
}

// lookup is the resource to answer a name with, or nil.
func (s *Sub) lookup(t Type, set TypeView, name string) *Resource {
	return s.orAbsent(t, set.Get(name), name)
}

// orAbsent is the resource to answer a name with where r is what there is of it, or nil. A SotW response
// cannot say that there are no endpoints, and the cluster would warm, and hold up all others, forever;
// so it says that there are none now.
func (s *Sub) orAbsent(t Type, r *Resource, name string) *Resource {
	if r != nil && r.Body != nil {
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

// pendingUpserts says whether there is something to be sent, be it later.
func (s *Sub) pendingUpserts(t Type) bool {
	c := &s.states[t]
	if !c.asked || s.level(t) {
		return false
	}
	if c.due || c.forced.len() > 0 || t == EDS && s.assignmentDue() {
		return true
	}
	up := s.difference(t).Upserts
	if len(c.refused) == 0 {
		return c.any(up)
	}
	return slices.ContainsFunc(up, func(r *Resource) bool { return c.has(r.Name) && !c.refuses(r) })
}

// pendingRemovals says whether the client has something that the view has not.
func (s *Sub) pendingRemovals(t Type) bool {
	c := &s.states[t]
	if !c.asked || types[t].lasting || s.level(t) {
		return false
	}
	gone := s.difference(t).Removed
	if !s.keepsSome() {
		return c.any(gone)
	}
	return slices.ContainsFunc(gone, func(r *Resource) bool { return c.has(r.Name) && !s.keeps(r, t) })
}

// mayRemove says whether resources of a type may be removed, for all of them together. A response
// that has been waited for longer than holdLimit holds nothing any more, nor does a type that a
// returning client has not asked for by then; a removal never overtakes state that has not even
// been sent.
func (s *Sub) mayRemove(of Type) bool {
	waitsFor := types[of].removedAfter
	if len(waitsFor) == 0 || s.single {
		return true
	}
	h := &s.holds[of]
	h.used, h.until = true, time.Time{}
	blocked, unsent, unasked := false, false, false
	for _, t := range waitsFor {
		c := &s.states[t]
		if !c.asked {
			unasked = unasked || s.mayAsk(t) && s.now.Before(s.expected)
			continue
		}
		if s.pendingUpserts(t) || s.pendingRemovals(t) {
			unsent = true
		}
		if f := c.flight; f != nil && !f.late {
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
	*h = hold{used: true}
	return true
}

// reportApplied reports when the client has asked for all of the view and accepted it.
func (s *Sub) reportApplied() {
	if s.begins || s.warming.owed > 0 {
		return
	}
	for t := range numTypes {
		if s.pending[t] || len(s.states[t].refused) > 0 {
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
// for another type that the view has resources of and that its listeners lead to.
func (s *Sub) starting() bool {
	if s.single {
		return false // it has asked for its type, or has sent nothing
	}
	for t := range numTypes {
		if !s.states[t].asked && (t == LDS || s.states[LDS].wildcard && t != ECDS && s.wanted(t).Len() > 0) {
			return true
		}
	}
	return false
}

// search looks for names in a list that is in order of names. It is fast where they are asked for in about the same
// order.
type search struct {
	list []*Resource
	at   int
}

func (s *search) has(name string) bool {
	if s.at < len(s.list) && s.list[s.at].Name == name {
		s.at++
		return true
	}
	i, ok := slices.BinarySearchFunc(s.list, name, byName)
	if s.at = i; ok {
		s.at++
	}
	return ok
}

// hasResource says whether a list in order of names has the name.
func hasResource(list []*Resource, name string) bool {
	_, ok := slices.BinarySearchFunc(list, name, byName)
	return ok
}
