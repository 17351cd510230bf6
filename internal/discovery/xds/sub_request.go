package xds

import "slices"

// deltaRequest handles an incremental request: an answer and changes of the subscription
// may come in one. [control-plane 5.2.8]
func (s *Sub) deltaRequest(c *typeState, r Request) {
	first := !c.asked
	var claimed *finder // the view, if the client claims to have exactly that
	if first {
		c.asked = true
		c.have, c.ownSize, claimed = s.initialState(r.Initial, s.view(r.Type), r.Type != EDS || !s.askedEarly(EDS))
		c.own = c.ownSize > 0
		s.claimsUnknown(r.Type)
		if types[r.Type].wildcard && r.Names.n == 0 {
			c.wildcard = true
			c.due = r.Initial.n == 0
		}
		if r.Type == VHDS {
			s.hostsAsked()
		}
		if s.expected.IsZero() && (r.Initial.n > 0 || s.askedEarly(r.Type)) {
			s.expected = s.now.Add(holdLimit)
		}
	} else if r.Nonce != "" {
		s.answered(c, r)
	}
	if r.Names.star {
		s.makeWildcard(c, first && r.Initial.n > 0)
	}
	add := s.nameSet(r.Type, r.Names, true)
	drop := c.dropped(r.Unsubscribe, add)
	switch {
	case !first || r.Initial.n == 0:
		c.force(add)
	case claimed == nil || add.len() != claimed.n || add.hashes() != claimed.names:
		c.force(newNameSet(add.lacking(c.have), 0))
	}
	before := c.names
	if !first && !c.wildcard {
		c.fresh = c.fresh.with(newNameSet(add.without(before), 0), nil)
	}
	if r.Type == RDS {
		lacking := add
		if first {
			lacking = newNameSet(add.lacking(c.have), 0)
		}
		s.routesAsked(lacking, drop)
	}
	c.names = s.edited(r.Type, before, add, drop)
	if r.Unsubscribe.star {
		c.wildcard, c.due = false, false
	}
	if !c.wildcard {
		c.unforce(drop)
		c.forgetAll(drop)
		return
	}
	// The client cannot know whether the wildcard covers what it unsubscribes from: say so, if it had it.
	var had []string
	for _, n := range drop.all() {
		if before.has(n) || c.have.Get(n) != nil {
			had = append(had, n)
		}
	}
	c.forced = c.forced.with(newNameSet(had, 0), nil)
}

// dropped are the names of a list that the client unsubscribes from and that make a difference: it is
// subscribed to them, now or with add, or has them.
func (c *typeState) dropped(l nameList, add *nameSet) *nameSet {
	if l.n == 0 {
		return nil
	}
	var list []string
	for b := range eachOf(l.wire, l.field) {
		if name := string(b); name != "*" && (c.names.has(name) || add.has(name) || c.forced.has(name) || c.have.Get(name) != nil) {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return newNameSet(slices.Compact(list), 0)
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
	before := &c.listed // the names of the last request
	if !c.asked {
		before = nil
	}
	first := !c.asked || r.Nonce == ""
	if !first && r.Nonce != c.nonce {
		if c.sent(r.Nonce) != nil {
			s.answered(c, r) // its names are older than those that come with the answer to the next one
			return
		}
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
	wild, list := c.wildcard, c.names
	if before == nil || *before != r.Names.listID {
		wild = r.Names.star || types[r.Type].wildcard && r.Names.n == 0 && !c.named
		// What says that nothing has a name must have one itself, or the client refuses it.
		list = s.nameSet(r.Type, r.Names, types[r.Type].absent == nil)
	}
	c.listed = r.Names.listID
	c.named = c.named || r.Names.n > 0
	if (wild || list.len() > 0) && (first || wild && !c.wildcard || !c.names.hasAll(list)) {
		c.due = true
	}
	if !c.wildcard && list != c.names {
		// What is subscribed to anew is sent, and is new to the client then.
		c.forced = c.forced.with(newNameSet(list.without(c.names), 0), nil)
	}
	c.wildcard, c.names = wild, list
	for n := range c.refused {
		if !c.has(n) {
			c.forget(n)
		}
	}
	for n := range c.kept {
		if !c.has(n) {
			c.forget(n)
		}
	}
}

// answered handles the acknowledging part of a request.
func (s *Sub) answered(c *typeState, r Request) {
	f := c.sent(r.Nonce)
	if f == nil {
		// Answering the last response once more is how a SotW client changes its names.
		if r.Nonce != c.nonce {
			s.emit(Stale{Type: r.Type})
		}
		return
	}
	from := s.landed(c, f)
	s.received(f.seq)
	if r.Refused {
		s.nacked(c, r, f)
	} else {
		s.acked(c, r.Type, f)
	}
	switch r.Type {
	case CDS:
		s.clustersAnswered(from, f.seq)
	case EDS:
		s.inUseNow()
	}
}

// claims are what a client says it has of one layer.
type claims struct {
	// claimed are the places in the layer of what it has, other those that it has in another version.
	claimed bitmap
	n       int
	other   map[int]string
}

// add takes a claim, which replaces an earlier one of the same resource.
func (c *claims) add(at int, version []byte, r *Resource, trusted bool) {
	if c.claimed.set(at) {
		c.n++
	}
	switch {
	case trusted && string(version) == r.Version:
		if len(c.other) > 0 {
			delete(c.other, at)
		}
		return
	case !trusted:
		version = nil
	}
	if c.other == nil {
		c.other = map[int]string{}
	}
	c.other[at] = string(version)
}

// apply is what the client has of a layer: the layer itself where it has all of it, and how many bytes
// of it are its own.
func (c *claims) apply(layer *set) (have *set, size int) {
	list := layer.all()
	if c.n == len(list) && len(c.other) == 0 {
		return layer, 0
	}
	if c.n == 0 {
		return nil, 0
	}
	var missing []string
	if c.n < len(list) {
		for i, r := range list {
			if !c.claimed.has(i) {
				missing = append(missing, r.Name)
			}
		}
	}
	other := make([]*Resource, 0, len(c.other))
	for i, version := range c.other {
		other = append(other, &Resource{Name: list[i].Name, Version: version})
		size += resourcePlace + costOf(version)
	}
	return layer.with(other, missing), size + namePlace*c.n
}

// initialState is what a client says it has from an earlier stream: names and versions, with
// bodies only where the view has the very same. A layer that it has whole is the view's own. What
// it needs once more, whatever it has, gets no version. It also returns how many bytes the stream does not
// share with the view, zero if it shares everything, and what finds the view's resources if they are exactly what it
// has.
func (s *Sub) initialState(initial versionList, view TypeView, trusted bool) (have TypeView, size int, whole *finder) {
	if initial.n == 0 {
		return TypeView{}, 0, nil
	}
	f := s.finder(view)
	if trusted && initial.n == f.n && initial.sum == f.sum {
		return view, 0, &f // as nearly all have that come back
	}
	var known [NumLayers]claims
	for i, list := range f.lists {
		known[i].claimed = newBitmap(len(list))
	}
	var rest []*Resource
	for name, version := range initial.all() {
		if i, at := f.find(name, hashOfBytes(name)); i >= 0 {
			known[i].add(at, version, f.lists[i][at], trusted)
			continue
		}
		if !trusted {
			version = nil
		}
		r := &Resource{Name: string(name), Version: string(version)}
		rest = append(rest, r)
		size += resourcePlace + costOf(r.Version) + costOf(r.Name)
	}
	for i := range known {
		part, own := known[i].apply(view.parts[i])
		have.parts[i], size = part, size+own
	}
	have.parts[unlayered] = (*set)(nil).with(rest, nil)
	return have, size, nil
}

// view is what the client shall have of a type, nothing while that is not known.
func (s *Sub) view(t Type) TypeView {
	if s.cur == nil {
		return TypeView{}
	}
	return s.cur.Of(t)
}
