package xds

import (
	"maps"
	"slices"
)

// sent is the response with a nonce that is not answered yet, or nil.
func (c *typeState) sent(nonce string) *flight {
	if f := c.flight; f != nil && f.nonce == nonce {
		return f
	}
	for _, f := range c.unanswered {
		if f.nonce == nonce {
			return f
		}
	}
	return nil
}

// landed notes that a response was answered, and returns the number of the first one that the answer
// counts for. Of the responses that it had no chance to answer one by one, a SotW client answers
// only the last.
func (s *Sub) landed(c *typeState, f *flight) (from uint64) {
	from = f.seq
	if c.flight == f {
		c.flight = nil
	}
	c.unanswered = slices.DeleteFunc(c.unanswered, func(o *flight) bool {
		if !s.delta && o.seq < f.seq {
			from = min(from, o.seq)
			o.covers, f.covers = f.covers, o
			return true
		}
		return o == f
	})
	if c.flight == nil && len(c.unanswered) > 0 && s.delta {
		// The answers came in another order; what is left is waited for.
		last := len(c.unanswered) - 1
		c.flight, c.unanswered = c.unanswered[last], c.unanswered[:last]
	}
	if len(c.unanswered) == 0 {
		c.unanswered = nil
	}
	return from
}

// acked handles the acceptance of a response.
func (s *Sub) acked(c *typeState, t Type, f *flight) {
	if len(c.refused) > 0 {
		for _, u := range f.upserts() {
			if c.refused[u.Name].version == u.Version {
				delete(c.refused, u.Name)
			}
		}
		if types[t].together {
			c.forgiveTakers(f)
		}
	}
	if len(c.left) > 0 {
		for _, u := range f.upserts() {
			delete(c.left, u.Name)
		}
	}
	c.bisection.finished(c, f)
	c.accepted = max(c.accepted, f.generation)
	s.emit(Acked{Type: t, Nonce: f.nonce, Generation: f.generation, Refused: len(c.refused)})
}

// forget forgets what is special about a name that the client does not subscribe to any more.
func (c *typeState) forget(name string) {
	delete(c.refused, name)
	delete(c.left, name)
	if _, ok := c.kept[name]; ok {
		delete(c.kept, name)
		c.memo = computed{}
	}
}

func (c *typeState) forgetAll(list *nameSet) {
	for n := range c.kept {
		if list.has(n) {
			c.forget(n)
		}
	}
	for n := range c.left {
		if list.has(n) {
			c.forget(n)
		}
	}
}

// leave notes that a SotW client is not told of the end of named resources.
func (c *typeState) leave(gone []*Resource) {
	for _, r := range gone {
		if c.left == nil {
			c.left = map[string]*Resource{}
		}
		c.left[r.Name] = r
	}
}

// setHave notes what the client has now: the view's, or more, but for what is withheld, where it has
// what the map says. f is the response that brings that about, nil for none.
func (c *typeState) setHave(have, view TypeView, f *flight, withheld map[string]*Resource) {
	var kept map[string]*Resource
	keep := func(n string, old *Resource) {
		r := have.Get(n)
		if r == nil || old != nil && same(r, old) {
			return // it has nothing under that name any more, or what it is to have
		}
		if kept == nil {
			kept = map[string]*Resource{}
		}
		kept[n] = old
	}
	for n, old := range c.kept {
		if _, ok := withheld[n]; !ok && (f == nil || !f.has(n)) {
			keep(n, old)
		}
	}
	for n, old := range withheld {
		keep(n, old)
	}
	if f != nil {
		for _, n := range f.removed {
			keep(n, nil) // it was told so, even if have holds it still
		}
		if f.sotw {
			for _, n := range f.forced.besides(f.upserts()) {
				keep(n, nil) // it asked for that and was not sent it
			}
		}
	}
	c.have = have
	c.own = c.own && have != view
	if !maps.Equal(kept, c.kept) {
		c.kept, c.memo = kept, computed{}
	}
}

// keepOld notes that the client goes on with what it had before a response, because it refused a
// resource of it. If a later response brings the same again, it returns that: its answer counts.
func (c *typeState) keepOld(f *flight, r *Resource) (again *flight) {
	old := f.before(r.Name)
	for _, later := range append(slices.Clone(c.unanswered), c.flight) {
		if later == nil || later.seq < f.seq {
			continue
		}
		if u := later.upsert(r.Name); u != nil && same(u, r) {
			again = later
		} else if later.sotw || later.has(r.Name) {
			again = nil
		}
		if b := later.before(r.Name); b != nil && same(b, r) {
			if later.hadKept == nil {
				later.hadKept = map[string]*Resource{}
			}
			later.hadKept[r.Name] = old
		}
	}
	if again != nil {
		return again
	}
	if now := c.get(r.Name); now == nil || !same(now, r) {
		return nil // a later response has another version
	}
	if old != nil && same(old, r) {
		return nil
	}
	if c.kept == nil {
		c.kept = map[string]*Resource{}
	}
	c.kept[r.Name], c.memo = old, computed{}
	return nil
}
