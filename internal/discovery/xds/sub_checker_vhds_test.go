package xds

import "maps"

// forget forgets the virtual hosts of route configurations that the client asks for and does not have.
func (r *checker) forget(q *Request) {
	claimed := map[string]bool{}
	for n := range q.Initial.all() {
		claimed[string(n)] = true
	}
	for _, n := range q.Names.strings() {
		if claimed[n] {
			continue
		}
		delete(r.records[RDS].has, n)
		if r.records[VHDS].asked {
			r.forgetHosts(n)
		} else {
			r.lacked[n] = true
		}
	}
	for _, n := range q.Unsubscribe.strings() {
		delete(r.lacked, n)
	}
}

// forgetHosts forgets the virtual hosts of a route configuration.
func (r *checker) forgetHosts(routes string) {
	b := &r.records[VHDS]
	for host := range b.has {
		if routesOf(host) == routes && r.records[RDS].has[routes] == "" {
			r.stale[host] = true // what it was sent already comes too early for that
		}
	}
	maps.DeleteFunc(b.has, func(host, _ string) bool { return routesOf(host) == routes })
	maps.DeleteFunc(b.unknown, func(host string, _ bool) bool { return routesOf(host) == routes })
	maps.DeleteFunc(b.refused, func(host string, _ refusedVersion) bool { return routesOf(host) == routes })
}

// hasStale says whether there are stale virtual hosts of a route configuration.
func (r *checker) hasStale(routes string) bool {
	for host := range r.stale {
		if routesOf(host) == routes {
			return true
		}
	}
	return false
}
