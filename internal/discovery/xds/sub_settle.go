package xds

import (
	"slices"
	"strconv"
	"time"
)

// hold is a reason to keep state back until something else was acknowledged.
type hold struct {
	since time.Time // zero while nothing is held
	used  bool      // in this pass
}

// The holds. [control-plane 5.2.3]
const (
	holdUpdates   = iota // LDS and RDS, until the CDS and EDS that go with them are in force
	holdRoutes           // removal of routes, until no listener refers to them
	holdClusters         // removal of clusters, until no listener or route refers to them
	holdEndpoints        // removal of endpoints, until their clusters are gone
	numHolds
)

var waitsFor = [numHolds][]Type{
	holdUpdates:   {CDS, EDS},
	holdRoutes:    {LDS},
	holdClusters:  {LDS, RDS},
	holdEndpoints: {CDS, LDS, RDS},
}

var removalHold = [numTypes]int{CDS: holdClusters, EDS: holdEndpoints, RDS: holdRoutes}

// settle sends what may be sent now, in the order of the types.
func (s *Sub) settle() {
	for i := range s.holds {
		s.holds[i].used = false
	}
	// What is sent may open or start other holds: go on until nothing is.
	for before := -1; before != len(s.out); {
		before = len(s.out)
		for t := range numTypes {
			s.push(t)
		}
	}
	var next time.Time
	for i := range s.holds {
		h := &s.holds[i]
		if !h.used {
			h.since = time.Time{}
		} else if at := h.since.Add(holdLimit); !h.since.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	if !next.IsZero() && !next.Equal(s.woken) {
		s.emit(Wake{At: next})
	}
	s.woken = next
	s.apply()
}

// push sends what is due of one type, unless a response is in flight or it is held.
func (s *Sub) push(t Type) {
	c := &s.chans[t]
	if !c.asked || c.flight != nil {
		return
	}
	cur := s.cur.Of(t)
	d := s.step(t)
	up, gone := s.pendingUpserts(t), s.pendingRemovals(t)
	if !up && !gone {
		c.have = cur
		return
	}
	if (t == LDS || t == RDS) && !s.open(holdUpdates) {
		return
	}
	target := cur
	if gone && t != LDS && !s.open(removalHold[t]) {
		if !up {
			return
		}
		target, gone = d.Union, false
	}
	if !up && !s.delta && !types[t].wildcard {
		// Leaving out means nothing here: there is no way to tell.
		c.have = target
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
	c.have, c.forced, c.due = target, nil, false
	c.nonce = send.Nonce
	c.flight = &flight{nonce: send.Nonce, generation: send.Generation, upserts: send.Upserts}
	s.emit(send)
	if t == CDS {
		s.warm(c, d)
	}
}

// step is what leads from what the client has to the view.
func (s *Sub) step(t Type) *Delta {
	c := &s.chans[t]
	cur := s.cur.Of(t)
	if c.memo.delta == nil || c.memo.old != c.have || c.memo.cur != cur {
		c.memo = step{old: c.have, cur: cur, delta: s.diff(c.have, cur)}
	}
	return c.memo.delta
}

// increment is the content of a delta response.
func (s *Sub) increment(t Type, d *Delta, target *TypeView, gone bool) (up []*Resource, removed []string) {
	c := &s.chans[t]
	up = c.subscribed(d.Upserts)
	if gone {
		for _, r := range c.subscribed(d.Removed) {
			removed = append(removed, r.Name)
		}
	}
	if len(c.forced) == 0 {
		return up, removed
	}
	up = slices.Clone(up)
	for n := range c.forced {
		if r := s.lookup(t, target, n); r != nil {
			up = append(up, r)
		} else {
			removed = append(removed, n)
		}
	}
	slices.SortFunc(up, order)
	slices.Sort(removed)
	return slices.Compact(up), slices.Compact(removed)
}

// state is the content of a SotW response: everything for the types that are complete by
// definition and for a request that has grown, else what has changed.
func (s *Sub) state(t Type, d *Delta, target *TypeView) []*Resource {
	c := &s.chans[t]
	if types[t].wildcard || c.due {
		if c.wildcard {
			return slices.Collect(target.All())
		}
		var out []*Resource
		for _, n := range c.names {
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
// there are no endpoints, and the cluster would warm, and hold up all others, for ever;
// so it says that there are none now.
func (s *Sub) lookup(t Type, set *TypeView, name string) *Resource {
	if r := set.Get(name); r != nil && r.Body != nil {
		return r
	}
	if t == EDS && !s.delta {
		const clusterName = 1 // of envoy.config.endpoint.v3.ClusterLoadAssignment
		return NewResource(EDS, name, appendBytes(nil, clusterName, name))
	}
	return nil
}

// warm sees to the endpoints of clusters that have just been sent. Envoy takes a changed
// cluster into use only after EDS for it, and does not ask again for a name that it
// subscribes to already. [control-plane 5.2.1]
func (s *Sub) warm(clusters *channel, d *Delta) {
	eds := &s.chans[EDS]
	for _, r := range clusters.flight.upserts {
		if r.Needs == "" {
			continue
		}
		if !s.delta && !changed(d, r.Name) {
			continue
		}
		if eds.asked && eds.has(r.Needs) {
			eds.force(r.Needs)
			continue
		}
		if s.awaited == nil {
			s.awaited = map[string]bool{}
		}
		s.awaited[r.Needs] = true
	}
}

func changed(d *Delta, name string) bool {
	_, ok := slices.BinarySearchFunc(d.Upserts, name, byName)
	return ok
}

// subscribed are those of list that the client subscribes to.
func (c *channel) subscribed(list []*Resource) []*Resource {
	if c.wildcard {
		return list
	}
	var out []*Resource
	for _, r := range list {
		if c.names.has(r.Name) {
			out = append(out, r)
		}
	}
	return out
}

// any says whether the client subscribes to one of list.
func (c *channel) any(list []*Resource) bool {
	return c.wildcard && len(list) > 0 || slices.ContainsFunc(list, func(r *Resource) bool { return c.names.has(r.Name) })
}

func (s *Sub) pendingUpserts(t Type) bool {
	c := &s.chans[t]
	return c.asked && (c.due || len(c.forced) > 0 || c.any(s.step(t).Upserts))
}

// pendingRemovals says whether the client has something that the view has not.
func (s *Sub) pendingRemovals(t Type) bool {
	c := &s.chans[t]
	return c.asked && c.any(s.step(t).Removed)
}

// open says whether what a hold keeps back may go. A response that has been waited for
// longer than holdLimit holds nothing any more; a removal never overtakes state that
// has not even been sent.
func (s *Sub) open(which int) bool {
	h := &s.holds[which]
	h.used = true
	blocked, unsent := which == holdUpdates && len(s.awaited) > 0, false
	for _, t := range waitsFor[which] {
		c := &s.chans[t]
		pending := s.pendingUpserts(t) || which != holdUpdates && s.pendingRemovals(t)
		if which != holdUpdates && pending {
			unsent = true
		}
		if !c.late && (pending || c.flight != nil) {
			blocked = true
		}
	}
	switch {
	case unsent:
		h.since = time.Time{}
		return false
	case !blocked:
		h.since = time.Time{}
		return true
	case h.since.IsZero():
		h.since = s.now
	}
	if s.now.Before(h.since.Add(holdLimit)) {
		return false
	}
	for _, t := range waitsFor[which] {
		s.chans[t].late = s.chans[t].flight != nil
	}
	if which == holdUpdates {
		s.awaited = nil
	}
	h.since = time.Time{}
	return true
}

// apply tells when all of the view has been accepted. A client that has not asked
// for listeners yet is still starting.
func (s *Sub) apply() {
	if !s.chans[LDS].asked || len(s.awaited) > 0 {
		return
	}
	for t := range numTypes {
		c := &s.chans[t]
		for n, v := range c.refused {
			if r := s.cur.Of(t).Get(n); r == nil || r.Version != v {
				delete(c.refused, n)
			}
		}
		if c.flight != nil || len(c.refused) > 0 || s.pendingUpserts(t) || s.pendingRemovals(t) {
			// Of a client that comes back, say, and now asks for one more type.
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
