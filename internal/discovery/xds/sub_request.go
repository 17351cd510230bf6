package xds

import "strings"

// deltaRequest takes an incremental request: an answer and changes of the subscription
// may come in one. [control-plane 5.2.8]
func (s *Sub) deltaRequest(c *channel, r Request) {
	first := !c.asked
	if first {
		c.asked = true
		c.have = claimed(r.Initial)
		if types[r.Type].wildcard && len(r.Names) == 0 {
			c.wildcard = true
			c.due = len(r.Initial) == 0
		}
	} else if r.Nonce != "" {
		s.answered(c, r)
	}
	var add []string
	for _, n := range r.Names {
		if n == "*" {
			s.widen(c, first && len(r.Initial) > 0)
			continue
		}
		n = s.known(r.Type, n)
		add = append(add, n)
		if _, kept := r.Initial[n]; !first || !kept {
			c.force(n)
			delete(c.refused, n)
		}
	}
	c.names = c.names.with(add, r.Unsubscribe)
	for _, n := range r.Unsubscribe {
		switch {
		case n == "*":
			c.wildcard, c.due = false, false
		case c.wildcard:
			// The client cannot know whether the wildcard covers it: tell.
			c.force(n)
		default:
			delete(c.forced, n)
		}
	}
}

// widen makes a subscription a wildcard.
func (s *Sub) widen(c *channel, kept bool) {
	if !c.wildcard && c.have != nil && !kept {
		// What it did not subscribe to it was not sent.
		var own []*Resource
		for r := range c.have.All() {
			if c.names.has(r.Name) {
				own = append(own, r)
			}
		}
		c.have = (*TypeView)(nil).With(own, nil)
	}
	c.wildcard = true
	c.due = !kept
}

// sotwRequest takes a state-of-the-world request. [control-plane 5.2.7]
func (s *Sub) sotwRequest(c *channel, r Request) {
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
		if n == "*" {
			wild = true
		} else {
			list = append(list, s.known(r.Type, n))
		}
	}
	c.named = c.named || len(r.Names) > 0
	if (wild || len(list) > 0) && (first || wild && !c.wildcard || !c.names.holdsAll(list)) {
		c.due = true
	}
	c.wildcard = wild
	c.names = names(nil).with(list, nil)
}

// answered takes the acknowledging part of a request.
func (s *Sub) answered(c *channel, r Request) {
	f := c.flight
	if f == nil || r.Nonce != f.nonce {
		// Answering the last response once more is how a SotW client changes its names.
		if r.Nonce != c.nonce {
			s.emit(Stale{Type: r.Type})
		}
		return
	}
	c.flight, c.late = nil, false
	if !r.Refused {
		for _, u := range f.upserts {
			if len(c.refused) > 0 {
				delete(c.refused, u.Name)
			}
		}
		s.emit(Acked{Type: r.Type, Nonce: f.nonce, Generation: f.generation})
		return
	}
	blamed := blame(f.upserts, r.Message)
	var list []string
	for _, u := range blamed {
		list = append(list, u.Name)
	}
	if len(blamed) == 0 {
		blamed = f.upserts
	}
	for _, u := range blamed {
		if c.refused == nil {
			c.refused = map[string]string{}
		}
		c.refused[u.Name] = u.Version
		if u.Needs != "" {
			delete(s.awaited, u.Needs)
		}
	}
	s.emit(Nacked{Type: r.Type, Nonce: f.nonce, Names: list, Message: r.Message})
}

// claimed is what a client says it has from an earlier stream: names and versions, no
// bodies.
func claimed(initial map[string]string) *TypeView {
	list := make([]*Resource, 0, len(initial))
	for n, v := range initial {
		list = append(list, &Resource{Name: n, Version: v})
	}
	return (*TypeView)(nil).With(list, nil)
}

// known is the name as the view spells it, so that streams share one copy.
func (s *Sub) known(t Type, name string) string {
	if s.cur != nil {
		if r := s.cur.Of(t).Get(name); r != nil {
			return r.Name
		}
	}
	return name
}

// blame finds the resources that an error message names. Names may contain each other,
// so a name counts only where it does not go on to either side.
func blame(sent []*Resource, message string) []*Resource {
	var out []*Resource
	for _, r := range sent {
		for at, rest := 0, message; r.Name != ""; {
			i := strings.Index(rest, r.Name)
			if i < 0 {
				break
			}
			from, to := at+i, at+i+len(r.Name)
			if !goesOn(reversed(message[max(0, from-2):from])) && !goesOn(message[to:]) {
				out = append(out, r)
				break
			}
			at, rest = from+1, message[from+1:]
		}
	}
	return out
}

// goesOn says whether a name would go on with s: a character of names, or a separator
// that such a character follows.
func goesOn(s string) bool {
	if s == "" {
		return false
	}
	if word(s[0]) {
		return true
	}
	return (s[0] == '.' || s[0] == ':') && len(s) > 1 && word(s[1])
}

func word(b byte) bool {
	return b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || strings.IndexByte("-_|~/*", b) >= 0
}

func reversed(s string) string {
	b := []byte(s)
	for i, j := 0, len(b)-1; i < j; i, j = i+1, j-1 {
		b[i], b[j] = b[j], b[i]
	}
	return string(b)
}
