package xds

import (
	"slices"
	"strings"
	"time"
)

// This file keeps traffic from where a policy is still to come. A policy and a route to what it guards may be part of
// one change, and reach different proxies at different times. [control-plane 5.2.1]

// Barrier keeps proxies from being sent what leads to some services, until the policies of these are in force. It is
// immutable; one who knows that they are publishes a view without it.
type Barrier struct {
	// Hosts are the services, each with the time at which the wait for it ends by itself.
	Hosts map[string]time.Time
	// Own are the listeners of the view that have other policies than before, by name, with the same times: routes wait
	// until the proxy has accepted them. They wait for nothing themselves.
	Own map[string]time.Time
}

// LeadsTo says whether a listener, a route configuration or a virtual host names a cluster of a service with one of
// the hosts, or may.
func (r *Resource) LeadsTo(has func(host string) bool) bool {
	if r.refers.unknown {
		return true
	}
	return slices.ContainsFunc(r.refers.names, func(cluster string) bool {
		host, ok := serviceOf(cluster)
		return ok && has(host)
	})
}

// serviceOf is the host of the service that an outbound cluster is of.
func serviceOf(cluster string) (string, bool) {
	rest, outbound := strings.CutPrefix(cluster, "outbound")
	return rest[strings.LastIndexByte(rest, '|')+1:], outbound && strings.HasPrefix(rest, "|")
}

// Moved are the resources of a type that a view has and an older one of the same class has not, or has in another
// version. They are in order of names, and must not be changed.
func (v *View) Moved(from *View, t Type) []*Resource {
	return diff(from.Of(t), v.Of(t), between).Upserts
}

// barred says whether a new or changed resource leads to where a policy is not known to be in force.
func (s *Sub) barred(r *Resource) (blocked bool) {
	b := s.cur.Barrier
	if b == nil {
		return false
	}
	if r.Type == LDS {
		if _, own := b.Own[r.Name]; own {
			return false
		}
	} else {
		for name, until := range b.Own {
			if !s.inForce(name) && s.until(until) {
				blocked = true
			}
		}
	}
	r.LeadsTo(func(host string) bool {
		if until, ok := b.Hosts[host]; ok && s.until(until) {
			blocked = true
		}
		return false // all of them, for the time of the next wake
	})
	if r.refers.unknown {
		for _, until := range b.Hosts {
			blocked = s.until(until) || blocked
		}
	}
	return blocked
}

// inForce says whether the client has accepted the newest version of a listener, as far as can be known.
func (s *Sub) inForce(listener string) bool {
	if s.single {
		return true // another stream has them
	}
	r := s.target(LDS).Get(listener)
	if slices.ContainsFunc(s.cur.Quarantined, func(q Quarantined) bool { return q.Type == LDS && q.Name == listener }) {
		return false
	}
	return r == nil || s.holdings(LDS).has(r)
}

// has says whether a version of a resource is one of them.
func (h holdings) has(r *Resource) bool {
	have, ok := h.kept[r.Name]
	if !ok {
		have = h.set.Get(r.Name)
	}
	return have != nil && same(have, r)
}
