package xds

// stays says whether a name that the client claims, and that no view has had, may stay.
func (r *checker) stays(t Type, name string) bool {
	since := r.claimed
	if r.wasBehind.After(since) {
		since = r.wasBehind
	}
	unknown := r.records[t].unknown[name] || t == EDS && r.records[CDS].unknown[name] || t == RDS && len(r.records[LDS].unknown) > 0
	return unknown && r.now.Before(since.Add(2*unknownLimit))
}

// mayForget checks that such names are not removed at once, unless the client asks for them or has to be told.
func (r *checker) mayForget(e Send, complain func(string, ...any)) {
	b := &r.records[e.Type]
	for _, n := range e.Removed {
		if !b.unknown[n] || b.anew[n] || b.free {
			continue
		}
		told := false // since something else needs the answer
		for _, needs := range r.unsentEDS {
			told = told || e.Type == EDS && n == needs
		}
		for u := range r.view.Of(VHDS).All() {
			told = told || e.Type == VHDS && routesOf(u.Name) == routesOf(n) && b.has[u.Name] != u.Version
		}
		if !told {
			complain("%s %s removed %s after the client has claimed it, behind %v", e.Type, n, r.now.Sub(b.claimed), r.behind)
		}
	}
	for _, n := range e.Removed {
		delete(b.unknown, n)
	}
}
