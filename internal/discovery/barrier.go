package discovery

import (
	"slices"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// This file decides which changes wait for a policy, decision 82: where one commit has a listener refuse more than before,
// what leads to its workload by the same commit is sent once the proxies there have acknowledged the listener.

// policyLimit bounds that wait.
const policyLimit = 5 * time.Second

// threadTime is how long routes wait after the last acknowledgement. That of an agent that does not wait for Envoy's workers is
// that of the main thread, and each worker takes a new listener at its own time.
const threadTime = 200 * time.Millisecond

// viewStep is another view that proxies are to have after a commit.
type viewStep struct {
	class         mesh.Class
	before, after *xds.View
}

// isPolicy says whether objects of a kind decide what proxies let in.
func isPolicy(k object.Kind) bool {
	return k == object.AuthorizationPolicy || k == object.RequestAuthentication || k == object.PeerAuthentication
}

// guarded are the names of the listeners that may refuse what they let in before. Those of a router do not say what
// they refuse; with policies, a commit that changes some, all that are in another version may.
func (s viewStep) guarded(policies bool) (names []string) {
	had, has := s.before.Of(xds.LDS), s.after.Of(xds.LDS)
	switch {
	case had == has:
	case s.class.Scope.Role == mesh.Router && policies:
		for _, r := range s.after.Moved(s.before, xds.LDS) {
			if had.Get(r.Name) != nil {
				names = append(names, r.Name)
			}
		}
	case s.class.Scope.Role != mesh.Router:
		old, r := had.Get(mesh.VirtualInbound), has.Get(mesh.VirtualInbound)
		if old != nil && r != nil && old.Policy != nil && r.Policy != nil && r.Policy.StricterThan(old.Policy) {
			names = append(names, r.Name)
		}
	}
	return names
}

// leads says whether the step brings something that leads to one of the hosts, or, where the class has guarded listeners
// of its own, a route.
func (s viewStep) leads(hosts map[string]bool, own []string) bool {
	for _, t := range []xds.Type{xds.ECDS, xds.LDS, xds.RDS, xds.VHDS} {
		for _, r := range s.after.Moved(s.before, t) {
			switch {
			case t == xds.LDS && slices.Contains(own, r.Name):
			case t != xds.LDS && len(own) > 0, r.LeadsTo(func(host string) bool { return hosts[host] }):
				return true
			}
		}
	}
	return false
}

// barrier is a commit whose routes wait for its policies.
type barrier struct {
	generation uint64
	// policies are those that the commit has changed.
	policies []object.Key
	until    time.Time
	hosts    map[string]bool
	// own are the guarded listeners of routers, by class.
	own map[mesh.Class][]string
	// awaited are the guarded listeners of the connections that have not acknowledged them; all is how many there were.
	awaited map[string][]string
	all     int
	// acknowledged is when none was awaited any more; zero while one is.
	acknowledged time.Time
}

// ends is when the wait is over, as far as is known.
func (b *barrier) ends() time.Time {
	if b.acknowledged.IsZero() || b.until.Before(b.acknowledged.Add(threadTime)) {
		return b.until
	}
	return b.acknowledged.Add(threadTime)
}

// barrierFor is what a class waits for because of the barriers; nil for nothing.
func barrierFor(class mesh.Class, list []*barrier) *xds.Barrier {
	if len(list) == 0 {
		return nil
	}
	out := &xds.Barrier{Hosts: map[string]time.Time{}, Own: map[string]time.Time{}}
	for _, b := range list { // a later one ends later
		for host := range b.hosts {
			out.Hosts[host] = b.until
		}
		for _, name := range b.own[class] {
			out.Own[name] = b.until
		}
	}
	return out
}
