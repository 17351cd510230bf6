package xds

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// Two instances of the control plane never know the same at the same time. A client that comes from one that knew more claims
// names that this one does not know, or not yet: their removals are held back for a while, since they would take away what is in
// use. [control-plane 5.2.8]

// unknownLimit is for how long that is so, at least, from the request that claims them, and from when the configuration has become
// complete. Instances that read the same source differ by well below a second, and by the time to commit what has accumulated after
// an outage; it is also the bound of every other wait.
const unknownLimit = holdLimit

// unknownClaims is what a Sub remembers of them.
type unknownClaims struct {
	// names are those that the client claims to have and that no view has had since the stream began.
	names [numTypes]map[string]bool
	// until is when it is decided whether their removals are held back any longer.
	until time.Time
	// behind says that something was missing since until was set.
	behind bool
}

// claimsUnknown notes which names of its first request for a type the client claims and the view has not.
func (s *Sub) claimsUnknown(t Type) {
	list := s.states[t].have.parts[unlayered].all()
	if len(list) == 0 || types[t].lasting {
		return
	}
	if s.unknown == nil {
		s.unknown = &unknownClaims{}
	}
	names := make(map[string]bool, len(list))
	for _, r := range list {
		names[r.Name] = true
	}
	s.unknown.names[t], s.unknown.until = names, s.now.Add(unknownLimit)
}

// learn forgets the names that the view has: from now on they are like any other.
func (s *Sub) learn() {
	if s.unknown == nil {
		return
	}
	for t, names := range s.unknown.names {
		view := s.cur.Of(Type(t))
		maps.DeleteFunc(names, func(n string, _ bool) bool { return view.Get(n) != nil })
	}
}

// decideUnknown ends the hold when its time has come.
func (s *Sub) decideUnknown() {
	u := s.unknown
	if u == nil {
		return
	}
	if u.behind = u.behind || s.behind; !s.now.Before(u.until) {
		if !u.behind || !s.hasUnknown() {
			s.unknown = nil
			return
		}
		u.until, u.behind = s.now.Add(unknownLimit), s.behind
	}
	s.next = sooner(s.next, u.until)
}

// hasUnknown says whether the client has any of the names still.
func (s *Sub) hasUnknown() bool {
	for t, names := range s.unknown.names {
		c := &s.states[t]
		for n := range names {
			if c.has(n) && c.claimed(n) {
				return true
			}
		}
	}
	return false
}

// keepsSome says whether keeps may be true for anything.
func (s *Sub) keepsSome() bool { return s.unknown != nil || len(s.cur.Quarantined) > 0 }

// keeps says whether a client goes on with a resource that the view has not, because it is in quarantine, or because it may be that
// only this instance does not know it. That it goes on with it is not something that it lacks.
func (s *Sub) keeps(r *Resource, t Type) bool { return s.cur.keeps(r, t) || s.keepsUnknown(r, t) }

// keepsUnknown is keeps for the latter reason. The endpoints of a cluster stay as long as it does, and route configurations as long
// as any listener: what that has is not known, and Envoy goes on with a route configuration that a listener uses, and its clusters.
func (s *Sub) keepsUnknown(r *Resource, t Type) bool {
	if s.unknown == nil {
		return false
	}
	names := &s.unknown.names
	return names[t][r.Name] && !s.makesWay(r, t) || t == EDS && names[CDS][r.Name] || t == RDS && len(names[LDS]) > 0
}

// makesWay says whether a virtual host may have a domain that another one of its route configuration is to have: which it has is
// not known, and Envoy refuses two with the same. [envoy V5]
func (s *Sub) makesWay(r *Resource, t Type) bool {
	if !types[t].together {
		return false
	}
	prefix := routesOf(r.Name) + "/"
	up := s.difference(t).Upserts
	i, _ := slices.BinarySearchFunc(up, prefix, byName)
	return i < len(up) && strings.HasPrefix(up[i].Name, prefix)
}

// forgetUnknownHosts has virtual hosts of route configurations removed at once: the client waits for an answer about these.
func (s *Sub) forgetUnknownHosts(routes *nameSet) {
	if s.unknown != nil {
		maps.DeleteFunc(s.unknown.names[VHDS], func(n string, _ bool) bool { return routes.has(routesOf(n)) })
	}
}
