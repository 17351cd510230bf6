package xds

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A client asks for VHDS once and without names, and means the virtual hosts of the route configurations that it
// has asked for by RDS, now or later. So these are the part of the view that it shall have; otherwise VHDS is
// like any type that is asked for by wildcard. [envoy V1]

// separateHosts is what a Sub remembers for VHDS.
type separateHosts struct {
	// newRoutes are route configurations that the client asked for before VHDS, without having them.
	newRoutes *nameSet
	// waiting are route configurations that the client has and for which it still waits for virtual hosts.
	waiting *nameSet
	// stale are virtual hosts that the client would claim on another stream though it has dropped them: their route
	// configuration ended, and the client has asked for it again and was not sent it yet.
	stale *nameSet
	// fresh says that the client has asked for VHDS on this stream, and that those route configurations
	// that it has from an earlier stream are not in waiting yet.
	fresh bool
	// checked says that the client's claims have been compared with the view by claimsWholeRoutes.
	checked bool
	memo    hostsMemo
}

// hostsMemo is a result of Sub.target with what it was computed from.
type hostsMemo struct {
	routes, all TypeView
	names       *nameSet
	wildcard    bool
	target      TypeView
}

// NeedsWholeRoutes says that the client has whole route configurations, and must be sent the views of a class that
// has such. The Sub does nothing until it gets one.
//
// Envoy drops the virtual hosts of a route configuration as soon as it is told that they come by VHDS, so that
// requests would find none until they have come. So an Envoy keeps what it started with. [envoy V6]
type NeedsWholeRoutes struct{}

func (NeedsWholeRoutes) effect() {}

// claimsWholeRoutes says whether a returning client has a route configuration whole that is not so in the view. It
// is true at most once.
func (s *Sub) claimsWholeRoutes() bool {
	c := &s.states[RDS]
	if s.hosts.checked || !c.asked {
		return false
	}
	s.hosts.checked = true
	view := s.cur.Of(RDS)
	for r := range c.have.All() {
		if now := view.Get(r.Name); now != nil && now.SeparateHosts && !strings.HasSuffix(r.Version, separateHostsMark) {
			return true
		}
	}
	return false
}

// routesOf is the name of the route configuration of a virtual host.
func routesOf(virtualHost string) string {
	return virtualHost[:max(0, strings.LastIndexByte(virtualHost, '/'))]
}

// target is what the client shall have of a type.
func (s *Sub) target(t Type) TypeView {
	all := s.cur.Of(t)
	if t != VHDS || all == (TypeView{}) {
		return all
	}
	m, routes, asked := &s.hosts.memo, s.cur.Of(RDS), &s.states[RDS]
	if m.routes != routes || m.all != all || m.wildcard != asked.wildcard || m.names != asked.names {
		*m = hostsMemo{routes, all, asked.names, asked.wildcard, asked.hostsOf(all, routes)}
	}
	return m.target
}

// hostsOf returns the virtual hosts of the route configurations that the client subscribes to: all of them as they
// are, which the views share, if it subscribes to all that have some.
func (c *typeState) hostsOf(all, routes TypeView) TypeView {
	missing := false
	for r := range routes.All() {
		missing = missing || r.SeparateHosts && !c.has(r.Name)
	}
	if !missing {
		return all
	}
	var some []*Resource
	for r := range all.All() {
		if c.has(routesOf(r.Name)) {
			some = append(some, r)
		}
	}
	return newTypeView(some)
}

// routesAsked notes that the client asks for route configurations that it does not have, and unsubscribes from others.
// Of the former it has no virtual hosts, whatever it was sent before, and it waits for them.
func (s *Sub) routesAsked(lacking, unsubscribed *nameSet) {
	if s.states[VHDS].asked {
		s.forgetHosts(lacking)
	} else {
		s.hosts.newRoutes = s.hosts.newRoutes.with(lacking, unsubscribed)
	}
}

// hostsAsked handles the client's first request for VHDS on the stream.
func (s *Sub) hostsAsked() {
	s.forgetHosts(s.hosts.newRoutes)
	s.hosts.newRoutes, s.hosts.fresh = nil, true
}

// routesClaimed notes for which route configurations from an earlier stream the client may wait, once they are known:
// that stream may have ended before their virtual hosts.
func (s *Sub) routesClaimed() {
	if !s.hosts.fresh || !s.states[RDS].asked {
		return
	}
	s.hosts.fresh = false
	have := s.states[VHDS].have
	s.routesSent(slices.DeleteFunc(slices.Collect(s.cur.Of(RDS).All()), func(r *Resource) bool { return have.anyOf(r.Name) }))
	// The view may lack now what it has again before the client is told.
	var claimed []string
	for r := range s.states[RDS].have.All() {
		if strings.HasSuffix(r.Version, separateHostsMark) && !have.anyOf(r.Name) {
			claimed = append(claimed, r.Name)
		}
	}
	s.hosts.waiting = s.hosts.waiting.with(newNameSet(claimed, 0), nil)
}

// mayAsk says whether a client that comes from an earlier stream may still ask for a type. Of VHDS it may have
// something only if the view has, or if it has a route configuration that takes its virtual hosts from there; few have listeners
// that name extension configurations.
func (s *Sub) mayAsk(t Type) bool {
	switch {
	case t == ECDS:
		return s.cur.Of(ECDS).Len() > 0
	case t != VHDS || s.cur.Of(VHDS).Len() > 0:
		return true
	}
	for r := range s.states[RDS].actual() {
		if strings.HasSuffix(r.Version, separateHostsMark) {
			return true
		}
	}
	return false
}

// forgetHosts has the virtual hosts of route configurations sent again, or removed, whatever the client has of them.
func (s *Sub) forgetHosts(routes *nameSet) {
	if routes.len() == 0 {
		return
	}
	s.forgetUnknownHosts(routes)
	c, unsent := &s.states[VHDS], s.states[RDS].forced
	var rest []*Resource
	var stale []string
	size := 0
	for r := range c.have.All() {
		if n := routesOf(r.Name); routes.has(n) {
			if unsent.has(n) && c.get(r.Name) != nil {
				stale = append(stale, r.Name)
			}
			r = &Resource{Type: VHDS, Name: r.Name}
			size += resourcePlace
		}
		rest = append(rest, r)
	}
	if size > 0 {
		c.have, c.own, c.ownSize = newTypeView(rest), true, c.ownSize+size
	}
	slices.Sort(stale)
	s.hosts.stale = s.hosts.stale.with(newNameSet(slices.Compact(stale), 0), nil)
	for n := range c.kept {
		if routes.has(routesOf(n)) {
			c.forget(n)
		}
	}
}

// removeStaleHosts has the client forget stale virtual hosts, before it gets their route configurations. If the stream
// ended between these and the virtual hosts, the client would claim on the next one what it has not. [envoy V7]
func (s *Sub) removeStaleHosts() {
	c := &s.states[VHDS]
	if s.hosts.stale.len() == 0 || !s.ready(VHDS) {
		return
	}
	f := &flight{generation: s.cur.Generation, since: s.now, had: c.have, hadKept: maps.Clone(c.kept), removed: s.hosts.stale.all()}
	s.hosts.stale = nil
	s.seq++
	f.seq, f.nonce = s.seq, strconv.FormatUint(s.seq, 10)
	c.nonce, c.flight = f.nonce, f
	s.hostsSent(f)
	c.setHave(c.have, s.wanted(VHDS), f, nil)
	send := Send{Type: VHDS, Generation: f.generation, Removed: f.removed, Nonce: f.nonce, from: s.wanted(VHDS)}
	f.own = s.privateSize(send)
	s.emit(send)
}

// hasStaleHosts says whether r is a route configuration that the client has virtual hosts of from before. It waits until
// the client is told so, which no more than the answer to an earlier response of virtual hosts delays.
func (s *Sub) hasStaleHosts(r *Resource) bool {
	return r.Type == RDS && s.hosts.stale.len() > 0 &&
		slices.ContainsFunc(s.hosts.stale.all(), func(n string) bool { return routesOf(n) == r.Name })
}

// routesUnsent says whether a route configuration with virtual hosts is still to be sent. They follow it: the client
// takes none of one that it does not have.
func (s *Sub) routesUnsent() bool {
	c, view := &s.states[RDS], s.cur.Of(RDS)
	if !c.asked {
		return false
	}
	unsent := func(r *Resource) bool { return r != nil && r.SeparateHosts && !c.refuses(r) }
	return slices.ContainsFunc(c.subscribed(s.difference(RDS).Upserts), unsent) ||
		slices.ContainsFunc(c.forced.all(), func(n string) bool { return unsent(view.Get(n)) })
}

// routesSent notes that the client waits for the virtual hosts of route configurations.
func (s *Sub) routesSent(sent []*Resource) {
	var list []string
	for _, r := range sent {
		if r.SeparateHosts {
			list = append(list, r.Name)
		}
	}
	s.hosts.waiting = s.hosts.waiting.with(newNameSet(list, 0), nil)
}

// withoutHosts returns the route configurations for which the client waits in vain, and has it told so. Envoy takes
// the removal of a virtual host for an answer about its route configuration; a response without any is only
// an answer where no route configuration has one. [envoy V4]
func (s *Sub) withoutHosts() (routes []string) {
	if s.hosts.waiting.len() == 0 {
		return nil
	}
	view, hosts := s.cur.Of(RDS), s.target(VHDS)
	for _, n := range s.hosts.waiting.all() {
		if r := view.Get(n); r != nil && r.SeparateHosts && s.states[RDS].has(n) && !hosts.anyOf(n) {
			routes = append(routes, n)
		}
	}
	if len(routes) > 0 {
		s.states[VHDS].due = true
	}
	return routes
}

// hostsSent notes for which route configurations the client waits no longer.
func (s *Sub) hostsSent(f *flight) {
	if s.hosts.waiting.len() == 0 {
		return
	}
	told := map[string]bool{}
	for _, r := range f.upserts() {
		told[routesOf(r.Name)] = true
	}
	for _, n := range f.removed {
		told[routesOf(n)] = true
	}
	s.hosts.waiting = newNameSet(slices.DeleteFunc(slices.Clone(s.hosts.waiting.all()), func(n string) bool { return told[n] }), 0)
}

// anyOf reports whether there is a virtual host of a route configuration.
func (v TypeView) anyOf(routes string) bool {
	prefix := routes + "/"
	return slices.ContainsFunc(v.parts[:], func(p *set) bool {
		list := p.all()
		i, _ := slices.BinarySearchFunc(list, prefix, byName)
		return i < len(list) && strings.HasPrefix(list[i].Name, prefix)
	})
}
