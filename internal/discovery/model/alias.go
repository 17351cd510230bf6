package model

import (
	"cmp"
	"maps"
	"slices"

	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// maxAliases is how many Services of type ExternalName may lead to each other.
const maxAliases = 8

// aliasBucket is the bucket of Services of type ExternalName by the name that they have.
func aliasBucket(host string) string { return "alias:" + host }

// IsAlias reports whether s is a Service of type ExternalName. It has no listeners and routes: clients resolve its name to that of
// another host. If the mesh has a service of that host, it is another name of that service, as in Istio.
func (s *Service) IsAlias() bool { return s.Source.Kubernetes && s.Source.DNSName != "" }

// Listens reports whether a scope has listeners or routes for a host because of its service.
func (m *Model) Listens(r *incr.Reader, s mesh.ScopeID, host string) bool {
	svc := m.Service(r, s, host)
	return svc != nil && !svc.IsAlias() && !m.Imports(r, s, svc)
}

// listensIn is Listens by the rule of the scope itself, for scopes without base and for the comparison of scopes.
func (m *Model) listensIn(r *incr.Reader, s mesh.ScopeID, host string) bool {
	svc := m.rules.service.Of(r, scopeHost{s, host})
	return svc != nil && !svc.IsAlias() && !m.Imports(r, s, svc)
}

// Aliased returns the service that an alias is another name of in a scope, nil if the scope sees none.
func (m *Model) Aliased(r *incr.Reader, s mesh.ScopeID, alias *Service) *Service {
	return follow(alias, func(host string) *Service { return m.Service(r, s, host) })
}

// follow follows names of aliases to a service that is none.
func follow(alias *Service, service func(host string) *Service) *Service {
	for range maxAliases {
		alias = service(mesh.HostName(alias.Source.DNSName))
		if alias == nil || !alias.IsAlias() {
			return alias
		}
	}
	return nil
}

// Aliases returns the services that are other names of a host in a scope, sorted by host.
func (m *Model) Aliases(r *incr.Reader, s mesh.ScopeID, host string) (out []*Service) {
	for _, row := range m.aliasRows(r, host) {
		if svc := m.Service(r, s, row.Host); svc != nil && svc.Key == row.Key {
			if to := m.Aliased(r, s, svc); to != nil && to.Host == host {
				out = append(out, svc)
			}
		}
	}
	return out
}

// aliasRows returns the rows that may be other names of a host in some scope, sorted by host and key.
func (m *Model) aliasRows(r *incr.Reader, host string) (out []*Service) {
	level := []string{host}
	seen := map[string]bool{}
	for range maxAliases {
		var next []string
		for _, name := range level {
			for key, row := range incr.In(r, m.tables.services, aliasBucket(name)) {
				if !seen[key] {
					seen[key] = true
					out, next = append(out, row), append(next, row.Host)
				}
			}
		}
		level = next
	}
	slices.SortFunc(out, func(a, b *Service) int { return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Key, b.Key)) })
	return out
}

// compareAliases completes the services that differ: another name of one that differs does, and what a name leads to if the name does.
// Of named it returns the hosts that a name of the client's own namespace leads to, too.
func (c *comparison) compareAliases(named []string) []string {
	target := func(scope mesh.ScopeID, host string) string {
		svc := c.rules.service.Of(c.r, scopeHost{scope, host})
		if svc == nil || !svc.IsAlias() {
			return ""
		}
		if to := follow(svc, func(h string) *Service { return c.rules.service.Of(c.r, scopeHost{scope, h}) }); to != nil {
			return to.Host
		}
		return ""
	}
	for _, host := range named {
		if to := target(c.base, host); to != "" {
			named = append(named, to)
		}
	}
	for _, host := range slices.Sorted(maps.Keys(c.services)) {
		for _, row := range c.aliasRows(c.r, host) {
			c.services[row.Host] = true
		}
		for _, scope := range []mesh.ScopeID{c.base, c.scope} {
			if to := target(scope, host); to != "" {
				c.services[to] = true
			}
		}
	}
	slices.Sort(named)
	return slices.Compact(named)
}
