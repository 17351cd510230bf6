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
	if s.Value().Caps.Has(mesh.Proxyless) {
		c.deriveProxyless(r, s, d, &out)
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
		if c.separate(s, t.routeHosts) {
			c.deriveSeparate(r, s, t, &out)
			continue
		}
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
			if p.target != (target{}) || !hasPart(own, p) || !hasPart(theirs, p) {
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
// name. It does not read which hosts the base's have, so that one host more does not make it stale.
func (c *Compiler) routeChanges(r *incr.Reader, s mesh.ScopeID) []routeChange {
	base, _ := c.model.Base(s)
	d := c.model.Difference(r, s)
	extra := c.model.ExtraHosts(r, base)
	byName := map[string]*routeComparison{}
	change := func(name string) *routeComparison {
		if byName[name] == nil {
			t := c.inner.routeHead.Of(r, scopeName{base, name})
			byName[name] = &routeComparison{routeChange: routeChange{routeHosts: t, New: t.Name == ""}}
		}
		return byName[name]
	}
	gone := slices.DeleteFunc(slices.Clone(d.Services), func(host string) bool { return !has(extra, host) })
	if len(d.Extra)+len(gone) > 0 || slices.ContainsFunc(d.Routes, func(host string) bool { return has(extra, host) }) {
		if c.inner.routeHead.Of(r, scopeName{base, extraRoutes}).Name != "" {
			change(extraRoutes)
		}
	}
	for _, host := range d.Services {
		for _, p := range c.inner.plan.Of(r, scopeHost{s, host}) {
			if p.routes != "" {
				t := change(p.routes)
				t.Name, t.Port, t.Own = p.routes, p.port, strings.Contains(p.routes, ":")
				t.Hosts = append(t.Hosts, host)
			}
		}
	}
	for _, host := range d.Routes {
		for _, p := range c.inner.plan.Of(r, scopeHost{base, host}) {
			if p.routes != "" {
				t := change(p.routes)
				t.before = append(t.before, host)
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
	out := make([]routeChange, 0, len(byName))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		t := byName[name]
		c.finishChange(r, base, d, t)
		out = append(out, t.routeChange)
	}
	return out
}

// routeComparison is a change while it is made: Hosts are hosts of services with a service or
// DestinationRule of the scope's own.
type routeComparison struct {
	routeChange
	// before are hosts of services of the base's, of those whose routes differ.
	before []string
}

// finishChange completes a change.
func (c *Compiler) finishChange(r *incr.Reader, base mesh.ScopeID, d model.Difference, t *routeComparison) {
	var extra []string
	if t.Name == extraRoutes {
		extra = c.model.ExtraHosts(r, base)
	}
	t.Hosts = sortedSet(t.Hosts)
	t.before = sortedSet(t.before)
	for _, host := range d.Services {
		if has(t.Hosts, host) {
			continue
		}
		if t.Name == extraRoutes && has(d.Extra, host) {
			continue // both have it without a service
		}
		if has(t.before, host) || !t.New && has(extra, host) {
			t.Without = append(t.Without, host)
		}
	}
	if len(t.Hosts) == 0 && len(t.Without) > 0 {
		theirs, _ := c.routesNamed(r, scopeName{base, t.Name})
		t.Missing = !slices.ContainsFunc(theirs.Hosts, func(host string) bool { return !has(t.Without, host) && !has(extra, host) })
	}
	t.Hosts = slices.DeleteFunc(t.Hosts, func(host string) bool {
		return has(t.before, host) || !t.New && has(extra, host)
	})
	if t.Name != extraRoutes {
		return
	}
	for _, host := range d.Extra {
		if t.New || !has(extra, host) {
			t.Hosts = append(t.Hosts, host)
		}
	}
	if t.New {
		for _, host := range extra {
			if !has(d.Services, host) {
				t.Hosts = append(t.Hosts, host)
			}
		}
	}
	t.Hosts = sortedSet(t.Hosts)
}

func sortedSet(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

// changeOf returns how a route configuration of a derived scope differs from its base's; false if it does
// not, or does not exist.
func (c *Compiler) changeOf(r *incr.Reader, k scopeName) (routeChange, bool) {
	list := c.inner.routeChanges.Of(r, k.scope)
	i, ok := slices.BinarySearchFunc(list, k.name, func(t routeChange, n string) int { return cmp.Compare(t.Name, n) })
	if !ok || list[i].Missing {
		return routeChange{}, false
	}
	return list[i], true
}

// ownDomains returns those hosts of a derived scope's route configuration whose virtual hosts are not its
// base's: because their routes differ, or because of their domains.
func (c *Compiler) ownDomains(r *incr.Reader, k scopeName) []hostDomains {
	change, ok := c.changeOf(r, k)
	if !ok {
		return nil
	}
	if change.New {
		all := make([]hostDomains, 0, len(change.Hosts))
		for _, host := range change.Hosts {
			all = append(all, hostDomains{host: host, claims: c.claims(r, k.scope, host)})
		}
		assignDomains(change.Own, all)
		return all
	}
	if change.Own {
		if host := k.name[:strings.LastIndexByte(k.name, ':')]; has(c.model.Difference(r, k.scope).Routes, host) {
			return []hostDomains{{host: host, domains: []string{"*"}}}
		}
		return nil
	}
	return c.reassignDomains(r, k, change)
}

// claims returns the domains that a host has if no other host has them.
func (c *Compiler) claims(r *incr.Reader, scope mesh.ScopeID, host string) []string {
	n := route.Names{Host: host, ClientNamespace: scope.Value().Namespace, Domain: c.model.Domain()}
	if s := c.model.Service(r, scope, host); s != nil {
		n.Namespace, n.Headless, n.VIPs = s.Namespace, s.Source.Headless, c.model.VIPs(r, scope, s)
	}
	out := route.Domains(n)
	for _, alias := range c.model.Aliases(r, scope, host) {
		n.Host, n.Namespace, n.Headless, n.VIPs = alias.Host, alias.Namespace, false, nil
		out = append(out, route.Domains(n)...)
	}
	return out
}
