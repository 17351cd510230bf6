package compile

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/route"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// A scope that has a base (model.Base) is derived: only the resources in which it differs from its base
// have keys of its own, and its layers are those of its base with these in place of the base's.

// derivation is what a derived scope has of its own, and which resources of its base it lacks; both without
// locations. Of a resource that is in both, the scope's own counts.
type derivation struct{ own, hidden []Key }

// derive compares a derived scope with its base.
func (c *Compiler) derive(r *incr.Reader, s mesh.ScopeID) (out derivation) {
	base, _ := c.model.Base(s)
	d := c.model.Difference(r, s)
	for _, host := range d.Services {
		out.own = appendClusters(out.own, scopeHost{s, host}, c.inner.clusters.Of(r, scopeHost{s, host}))
		out.hidden = appendClusters(out.hidden, scopeHost{base, host}, c.inner.clusters.Of(r, scopeHost{base, host}))
	}
	if s.Value().Role != mesh.Sidecar {
		return out
	}
	for _, name := range c.changedListeners(r, s, d) {
		k := Key{Kind: Listener, Scope: s, Name: name}
		if c.inner.outbound.Of(r, scopeName{s, name}) == nil {
			k.Scope = base
			out.hidden = append(out.hidden, k)
		} else {
			out.own = append(out.own, k)
		}
	}
	for _, t := range c.inner.routeChanges.Of(r, s) {
		k := Key{Kind: Route, Scope: s, Name: t.Name}
		if t.Missing {
			k.Scope = base
			out.hidden = append(out.hidden, k)
		} else {
			out.own = append(out.own, k)
		}
	}
	return out
}

// changedListeners returns the names of listeners to which a derived scope's services add other parts
// than those of its base do, or parts whose cluster has another policy.
func (c *Compiler) changedListeners(r *incr.Reader, s mesh.ScopeID, d model.Difference) []string {
	base, _ := c.model.Base(s)
	changed := map[string]bool{}
	for _, host := range d.Services {
		own, theirs := c.inner.plan.Of(r, scopeHost{s, host}), c.inner.plan.Of(r, scopeHost{base, host})
		for _, p := range slices.Concat(own, theirs) {
			// A part that only refers to routes is the same whatever the DestinationRule says.
			if p.cluster != "" || !hasPart(own, p) || !hasPart(theirs, p) {
				changed[p.name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(changed))
}

func hasPart(list []part, p part) bool { return slices.ContainsFunc(list, p.equal) }

// derivedParts returns the parts of a listener of a derived scope.
func (c *Compiler) derivedParts(r *incr.Reader, k scopeName) (out []part) {
	base, _ := c.model.Base(k.scope)
	d := c.model.Difference(r, k.scope)
	for _, p := range c.inner.parts.Of(r, scopeName{base, k.name}) {
		if !has(d.Services, p.host) {
			out = append(out, p)
		}
	}
	for _, host := range d.Services {
		for _, p := range c.inner.plan.Of(r, scopeHost{k.scope, host}) {
			if p.name == k.name {
				out = append(out, p)
			}
		}
	}
	slices.SortStableFunc(out, compareParts)
	return out
}

// has reports whether a sorted list has a host.
func has(list []string, host string) bool {
	_, found := slices.BinarySearch(list, host)
	return found
}

// routeChange is a route configuration of a derived scope that is not its base's.
type routeChange struct {
	routeHosts // Hosts are those that the base's has not
	// Without are hosts of the base's that it lacks.
	Without []string
	// New is set if the base has none, Missing if the scope has none.
	New, Missing bool
}

// routeChanges lists the route configurations in which a derived scope differs from its base, sorted by
// name.
func (c *Compiler) routeChanges(r *incr.Reader, s mesh.ScopeID) []routeChange {
	base, _ := c.model.Base(s)
	d := c.model.Difference(r, s)
	extra := c.model.ExtraHosts(r, base)
	byName := map[string]*routeChange{}
	change := func(name string) *routeChange {
		if byName[name] == nil {
			t, known := c.routesNamed(r, scopeName{base, name})
			t.Hosts = nil
			byName[name] = &routeChange{routeHosts: t, New: !known}
		}
		return byName[name]
	}
	shared := func() {
		for _, t := range c.inner.routes.Of(r, base) {
			if !t.Own {
				change(t.Name)
			}
		}
	}
	for _, host := range d.Services {
		for _, p := range c.inner.plan.Of(r, scopeHost{base, host}) {
			if p.routes != "" {
				change(p.routes)
			}
		}
		for _, p := range c.inner.plan.Of(r, scopeHost{s, host}) {
			if p.routes != "" {
				t := change(p.routes)
				t.Name, t.Port, t.Own = p.routes, p.port, strings.Contains(p.routes, ":")
				t.Hosts = append(t.Hosts, host)
			}
		}
	}
	for _, host := range d.Routes {
		if has(extra, host) {
			shared()
			continue
		}
		for _, p := range c.inner.plan.Of(r, scopeHost{base, host}) {
			if p.routes != "" {
				change(p.routes)
			}
		}
	}
	for _, host := range d.Named {
		for _, p := range c.inner.plan.Of(r, scopeHost{base, host}) {
			if p.routes != "" && !strings.Contains(p.routes, ":") {
				change(p.routes)
			}
		}
	}
	if len(d.Extra) > 0 {
		shared()
	}
	out := make([]routeChange, 0, len(byName))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		t := byName[name]
		c.finishChange(r, s, d, t)
		out = append(out, *t)
	}
	return out
}

// finishChange completes a change that has the hosts of services only.
func (c *Compiler) finishChange(r *incr.Reader, s mesh.ScopeID, d model.Difference, t *routeChange) {
	base, _ := c.model.Base(s)
	extra := c.model.ExtraHosts(r, base)
	theirs, _ := c.routesNamed(r, scopeName{base, t.Name})
	slices.Sort(t.Hosts)
	t.Hosts = slices.Compact(t.Hosts)
	services := len(t.Hosts) > 0
	for _, host := range theirs.Hosts {
		switch {
		case has(d.Services, host):
			if !has(t.Hosts, host) {
				t.Without = append(t.Without, host)
			}
		case !has(extra, host):
			services = true
		}
	}
	t.Missing = !services
	if !t.Own {
		t.Hosts = append(t.Hosts, d.Extra...)
		if t.New {
			for _, host := range extra {
				if !has(d.Services, host) {
					t.Hosts = append(t.Hosts, host)
				}
			}
		}
	}
	t.Hosts = slices.DeleteFunc(t.Hosts, func(host string) bool { return has(theirs.Hosts, host) })
	slices.Sort(t.Hosts)
	t.Hosts = slices.Compact(t.Hosts)
}

// derivedHosts returns a route configuration of a derived scope that is not its base's.
func (c *Compiler) derivedHosts(r *incr.Reader, k scopeName) (routeHosts, routeChange, bool) {
	list := c.inner.routeChanges.Of(r, k.scope)
	i, ok := slices.BinarySearchFunc(list, k.name, func(t routeChange, n string) int { return cmp.Compare(t.Name, n) })
	if !ok || list[i].Missing {
		return routeHosts{}, routeChange{}, false
	}
	change := list[i]
	base, _ := c.model.Base(k.scope)
	theirs, _ := c.routesNamed(r, scopeName{base, k.name})
	t := change.routeHosts
	t.Hosts = make([]string, 0, len(theirs.Hosts)+len(change.Hosts))
	for _, host := range theirs.Hosts {
		if !has(change.Without, host) {
			t.Hosts = append(t.Hosts, host)
		}
	}
	t.Hosts = append(t.Hosts, change.Hosts...)
	slices.Sort(t.Hosts)
	return t, change, true
}

// ownDomains returns those hosts of a derived scope's route configuration whose virtual hosts are not its
// base's: because their routes differ, or because of their domains. One host's domains may depend on
// those of any other, since each domain belongs to one host only.
func (c *Compiler) ownDomains(r *incr.Reader, k scopeName) []hostDomains {
	t, change, ok := c.derivedHosts(r, k)
	if !ok {
		return nil
	}
	base, _ := c.model.Base(k.scope)
	d := c.model.Difference(r, k.scope)
	theirs := c.inner.domains.Of(r, scopeName{base, k.name})
	claimed := make([]hostDomains, 0, len(t.Hosts))
	before := make([][]string, 0, len(t.Hosts)) // the base's domains, nil for hosts whose routes differ
	for _, host := range t.Hosts {
		h := hostDomains{host: host}
		i, known := slices.BinarySearchFunc(theirs, host, func(d hostDomains, h string) int { return cmp.Compare(d.host, h) })
		known = known && !change.New && !has(d.Routes, host)
		if known {
			before = append(before, theirs[i].domains)
		} else {
			before = append(before, nil)
		}
		switch {
		case t.Own: // any name
		case known && !has(d.Named, host):
			h.claims = theirs[i].claims
		default:
			h.claims = c.claims(r, k.scope, host)
		}
		claimed = append(claimed, h)
	}
	assignDomains(t.Own, claimed)
	var out []hostDomains
	for i, h := range claimed {
		if before[i] == nil || !slices.Equal(before[i], h.domains) {
			out = append(out, h)
		}
	}
	return out
}

// claims returns the domains that a host has if no other host has them.
func (c *Compiler) claims(r *incr.Reader, s mesh.ScopeID, host string) []string {
	n := route.Names{Host: host, ClientNamespace: s.Value().Namespace, Domain: c.model.Domain()}
	if s := c.model.Service(r, s, host); s != nil {
		n.Namespace, n.Headless, n.VIPs = s.Namespace, s.Source.Headless, s.Addresses.VIPs
	}
	return route.Domains(n)
}
