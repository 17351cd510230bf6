package compile

import (
	"cmp"
	"maps"
	"slices"

	"github.com/pilothouse/pilothouse/internal/incr"
)

// domainIndex has the domains of a route configuration by name, of a scope without base.
type domainIndex struct {
	// owners are the hosts that have the domains.
	owners map[string]string
	// contested are the hosts that claim a domain, of those that several claim; sorted.
	contested map[string][]string
}

func (c *Compiler) domainIndex(r *incr.Reader, k scopeName) domainIndex {
	x := domainIndex{owners: map[string]string{}, contested: map[string][]string{}}
	first := map[string]string{}
	for _, h := range c.inner.domains.Of(r, k) {
		for _, name := range h.domains {
			x.owners[name] = h.host
		}
		for _, name := range h.claims {
			other, known := first[name]
			switch {
			case !known:
				first[name] = h.host
			case other != h.host && len(x.contested[name]) == 0:
				x.contested[name] = []string{other, h.host}
			case other != h.host && !slices.Contains(x.contested[name], h.host):
				x.contested[name] = append(x.contested[name], h.host)
			}
		}
	}
	return x
}

// claimants returns the hosts that claim a domain, sorted.
func (x domainIndex) claimants(name string) []string {
	if list := x.contested[name]; len(list) > 0 {
		return list
	}
	if owner, ok := x.owners[name]; ok {
		return []string{owner}
	}
	return nil
}

// reassignDomains is ownDomains for a route configuration of several hosts that the base has, too. It looks
// only at the domains of hosts that differ, and at other hosts that win or lose one of these.
func (c *Compiler) reassignDomains(r *incr.Reader, k scopeName, change routeChange) []hostDomains {
	base, _ := c.model.Base(k.scope)
	d := c.model.Difference(r, k.scope)
	index := c.inner.domainIndex.Of(r, scopeName{base, k.name})
	inBase := func(host string) bool { return slices.Contains(index.claimants(host), host) }

	// claims are those of hosts that differ; none of a host that the scope lacks.
	claims := map[string][]string{}
	for _, host := range change.Without {
		claims[host] = nil
	}
	for _, list := range [][]string{change.Hosts, d.Routes, d.Named} {
		for _, host := range list {
			if _, known := claims[host]; !known && (inBase(host) || has(change.Hosts, host)) {
				claims[host] = c.claims(r, k.scope, host)
			}
		}
	}
	claimed := map[string][]string{} // by those hosts, by domain
	for _, host := range slices.Sorted(maps.Keys(claims)) {
		list := claims[host]
		if inBase(host) {
			for _, name := range c.claims(r, base, host) {
				claimed[name] = append(claimed[name], "")
			}
		}
		for _, name := range list {
			claimed[name] = append(claimed[name], host)
		}
	}
	owner := func(name string) string {
		hosts, affected := claimed[name]
		if !affected {
			return index.owners[name]
		}
		best := ""
		consider := func(host string) {
			if host != "" && best != name && (best == "" || host == name || host < best) {
				best = host
			}
		}
		for _, host := range index.claimants(name) {
			if _, differs := claims[host]; !differs {
				consider(host)
			}
		}
		for _, host := range hosts {
			consider(host)
		}
		return best
	}
	others := map[string][]string{} // the claims of other hosts that win or lose a domain
	for _, name := range slices.Sorted(maps.Keys(claimed)) {
		before, now := index.owners[name], owner(name)
		if before == now {
			continue
		}
		for _, host := range []string{before, now} {
			if _, differs := claims[host]; host != "" && !differs && others[host] == nil {
				others[host] = c.claims(r, base, host)
			}
		}
	}
	var out []hostDomains
	add := func(host string, list []string) {
		h, before := hostDomains{host: host}, []string(nil)
		for _, name := range list {
			if owner(name) == host && !slices.Contains(h.domains, name) {
				h.domains = append(h.domains, name)
			}
			if index.owners[name] == host && !slices.Contains(before, name) {
				before = append(before, name)
			}
		}
		if len(list) > 0 && (has(d.Routes, host) || has(change.Hosts, host) || !slices.Equal(before, h.domains)) {
			out = append(out, h)
		}
	}
	for host, list := range claims {
		add(host, list)
	}
	for host, list := range others {
		add(host, list)
	}
	slices.SortFunc(out, func(a, b hostDomains) int { return cmp.Compare(a.host, b.host) })
	return out
}
