package xds

// Sizes in memory, in bytes, without the characters of names.
const (
	namePlace     = 16  // in a list of names
	resourcePlace = 104 // a Resource, its place in a list and the ends of its strings
	forcedPlace   = 64
)

// Size is about how many bytes the client has made the machine hold: what only this
// stream has, and a place for each name that it shares with the view.
func (s *Sub) Size() int {
	size := 0
	for t := range s.states {
		c := &s.states[t]
		view := s.view(Type(t))
		size += namePlace*len(c.names) + unshared(c.names, view)
		for n := range c.forced {
			size += forcedPlace
			if view.Get(n) == nil {
				size += costOf(n)
			}
		}
		if c.own {
			size += c.ownSize
		}
		if c.flight != nil {
			size += c.flight.own
		}
	}
	return size
}

// privateSize is the size of what in a response is made for this stream only: names that the view has
// not, and for SotW resources without content under them.
func (s *Sub) privateSize(e Send) (size int) {
	for _, n := range e.Removed {
		size += costOf(n)
	}
	if s.delta || e.Type != EDS {
		return size
	}
	view := s.view(EDS)
	for _, u := range e.Upserts {
		if view.Get(u.Name) == nil {
			size += resourcePlace + len(u.Body) + costOf(u.Version)
		}
	}
	return size
}

// unshared is the size of the names that are not in the view.
func unshared(list names, view TypeView) (size int) {
	rest := view.starts()
	for _, n := range list {
		known := false
		for i := range rest {
			rest[i].seek(n)
			r := rest[i].head()
			known = known || r != nil && r.Name == n
		}
		if !known {
			size += costOf(n)
		}
	}
	return size
}
