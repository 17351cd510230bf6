package model

import "slices"

// maxMisdirected is the most hosts of a port for which requests at the wrong listener are told from those for hosts that nobody has: each
// listener's route configuration has all others' hosts. A Gateway has 64 listeners at most; ListenerSets add more.
const maxMisdirected = 128

// Misdirected returns the hosts of which requests on connections for a listener of HTTPS belong to other ones of the port, sorted: they get 421, so
// that their clients connect again. own is set if the listener's own host is among the names of one of these, so that requests for it, and for
// no host of its routes, have to be told from those. Servers of Istio's Gateways have none, nor have ports of more than 128 such hosts.
// [gateway-api Listener.hostname]
func (s Server) Misdirected(port RouterPort) (elsewhere []string, own string) {
	if s.listener == nil || len(s.hosts) == 0 || !s.EndsHTTPS() {
		return nil, ""
	}
	mine := s.hosts[0].host
	for _, other := range port.Servers {
		if other.listener == nil || !other.EndsHTTPS() {
			continue
		}
		for _, h := range other.Names() {
			if h == mine || contains(elsewhere, h) {
				continue
			}
			elsewhere = append(elsewhere, h)
			if hostMatches(h, mine) {
				own = mine
			}
			if len(elsewhere) > maxMisdirected {
				return nil, ""
			}
		}
	}
	slices.Sort(elsewhere)
	return elsewhere, own
}
