package xds

// Sizes in memory, in bytes, without the characters of names.
const (
	namePlace     = 16  // in a list of names
	hostPlace     = 8   // in a list of resources
	resourcePlace = 104 // a Resource, its place in a list and the ends of its strings
	unknownPlace  = 48  // in a map of names
)

// Size is about how many bytes the client has made the machine hold: what only this
// stream has, and a place for each name that it shares with the view or with other streams.
func (s *Sub) Size() int {
	size := namePlace*(s.hosts.newRoutes.len()+s.hosts.waiting.len()+s.hosts.stale.len()) + hostPlace*s.hosts.memo.target.parts[unlayered].len()
	if s.unknown != nil {
		for _, names := range s.unknown.names {
			size += unknownPlace * len(names)
		}
	}
	for t := range s.states {
		c := &s.states[t]
		size += namePlace*c.names.len() + c.names.ownSize()
		if c.forced != c.names {
			size += namePlace*c.forced.len() + c.forced.ownSize()
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
	for _, n := range e.Absent {
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
