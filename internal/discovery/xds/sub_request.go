package xds

import "slices"

// deltaRequest handles an incremental request: an answer and changes of the subscription
// may come in one. [control-plane 5.2.8]
func (s *Sub) deltaRequest(c *typeState, r Request) {
	first := !c.asked
	if first {
		c.asked = true
		c.have, c.ownSize = initialState(r.Initial, s.view(r.Type), r.Type != EDS || !s.askedEarly(EDS))
		c.own = c.have.parts[unlayered] != nil
		if types[r.Type].wildcard && len(r.Names) == 0 {
			c.wildcard = true
			c.due = len(r.Initial) == 0
		}
		if s.expected.IsZero() && (len(r.Initial) > 0 || s.askedEarly(r.Type)) {
			s.expected = s.now.Add(holdLimit)
		}
	} else if r.Nonce != "" {
		s.answered(c, r)
	}
	var add []string
	for _, n := range r.Names {
		if n == "*" {
			s.makeWildcard(c, first && len(r.Initial) > 0)
			continue
		}
		n = s.interned(r.Type, n)
		add = append(add, n)
		if _, kept := r.Initial[n]; !first || !kept {
			c.force(n)
			delete(c.refused, n)
		}
	}
	before := c.names
	c.names = c.names.with(add, r.Unsubscribe)
	for _, n := range r.Unsubscribe {
		switch {
		case n == "*":
			c.wildcard, c.due = false, false
		case c.wildcard:
			// The client cannot know whether the wildcard covers it: say so, if it had it.
			if before.has(n) || c.have.Get(n) != nil {
				c.force(n)
			}
		default:
			delete(c.forced, n)
			delete(c.refused, n)
		}
	}
}

// askedEarly says whether a type is asked for before the one whose resources lead to it, and so
// by a client that has such resources from an earlier stream. One that asks for assignments
// then may be waiting for those that it has: an Envoy whose clusters warm does not ask for
// clusters on a new stream until they have warmed.
func (s *Sub) askedEarly(t Type) bool {
	return !s.single && slices.ContainsFunc(types[t].referredBy, func(by Type) bool { return !s.states[by].asked })
}

// makeWildcard makes a subscription a wildcard.
func (s *Sub) makeWildcard(c *typeState, kept bool) {
	if !c.wildcard && c.have != (TypeView{}) && !kept {
		// What it did not subscribe to it was not sent.
		var own []*Resource
		for r := range c.have.All() {
			if c.names.has(r.Name) {
				own = append(own, r)
			}
		}
		c.have, c.own = newTypeView(own), true
	}
	c.wildcard = true
	c.due = !kept
}

// sotwRequest handles a state-of-the-world request. [control-plane 5.2.7]
func (s *Sub) sotwRequest(c *typeState, r Request) {
	first := !c.asked || r.Nonce == ""
	if !first && r.Nonce != c.nonce {
		s.emit(Stale{Type: r.Type})
		return
	}
	c.asked = true
	if !first {
		s.answered(c, r)
	} else if c.flight != nil {
		// It was sent before the response arrived, and only changes the names.
		first = false
	}
	wild := types[r.Type].wildcard && len(r.Names) == 0 && !c.named
	var list []string
	for _, n := range r.Names {
		switch {
		case n == "*":
			wild = true
		case n == "" && types[r.Type].absent != nil:
			// What says that nothing has a name must have one itself, or the client refuses it.
		default:
			list = append(list, s.interned(r.Type, n))
		}
	}
	c.named = c.named || len(r.Names) > 0
	if (wild || len(list) > 0) && (first || wild && !c.wildcard || !c.names.hasAll(list)) {
		c.due = true
	}
	if r.Type == CDS {
		// What is subscribed to anew is sent, and is new to the client then.
		for _, n := range list {
			if !c.has(n) {
				c.force(n)
			}
		}
	}
	c.wildcard = wild
	c.names = names(nil).with(list, nil)
	for n := range c.refused {
		if !c.has(n) {
			delete(c.refused, n)
		}
	}
}

// answered handles the acknowledging part of a request.
func (s *Sub) answered(c *typeState, r Request) {
	f := c.flight
	if f == nil || r.Nonce != f.nonce {
		// Answering the last response once more is how a SotW client changes its names.
		if r.Nonce != c.nonce {
			s.emit(Stale{Type: r.Type})
		}
		return
	}
	c.flight = nil
	if r.Refused {
		s.nacked(c, r, f)
		return
	}
	for _, u := range f.upserts {
		if len(c.refused) > 0 {
			delete(c.refused, u.Name)
		}
	}
	s.emit(Acked{Type: r.Type, Nonce: f.nonce, Generation: f.generation, Refused: len(c.refused)})
}

// initialState is what a client says it has from an earlier stream: names and versions, with
// bodies only where the view has the very same. A layer that it has whole is the view's own. What
// it needs once more, whatever it has, gets no version. It also returns how many bytes the stream
// does not share with the view.
func initialState(initial map[string]string, view TypeView, trusted bool) (have TypeView, size int) {
	var rest []*Resource
	known := 0
	claim := func(name, version string) {
		rest = append(rest, &Resource{Name: name, Version: version})
		size += resourcePlace + costOf(version)
	}
	for i, list := range view.lists() {
		before, equal := len(rest), 0
		for _, r := range list {
			v, claimed := initial[r.Name]
			if !claimed {
				continue
			}
			known++
			if !trusted {
				v = ""
			}
			if v != r.Version {
				claim(r.Name, v)
				continue
			}
			equal++
			rest = append(rest, r)
		}
		if equal == len(list) {
			have.parts[i], rest = view.parts[i], rest[:before]
		}
	}
	if known < len(initial) {
		for n, v := range initial {
			if view.Get(n) != nil {
				continue
			}
			if !trusted {
				v = ""
			}
			claim(n, v)
			size += costOf(n)
		}
	}
	have.parts[unlayered] = (*set)(nil).with(rest, nil)
	return have, size
}

// view is what the client shall have of a type, nothing while that is not known.
func (s *Sub) view(t Type) TypeView {
	if s.cur == nil {
		return TypeView{}
	}
	return s.cur.Of(t)
}

// interned is the name as the view spells it, so that streams share one copy.
func (s *Sub) interned(t Type, name string) string {
	if r := s.view(t).Get(name); r != nil {
		return r.Name
	}
	return name
}
