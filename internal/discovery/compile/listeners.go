package compile

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/listener"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// part is what one port of one service adds to a listener.
type part struct {
	name, address string
	port          uint32
	routes        string // RDS name, empty for none
	host          string
	target        target // of connections that are not HTTP, empty if the part has none
	// serverNames and cidrs limit the part to TLS connections with one of these names, and to connections to these addresses.
	serverNames []string
	cidrs       []netip.Prefix
	// serverFirst is set for protocols in which the server sends first. Protocol detection would wait
	// for the client, so they cannot share a listener with HTTP.
	serverFirst bool
	// own is set if the routes are of this service only, binds if clients connect to the listener itself, and declared if a Sidecar has a
	// listener for this port, whose hosts are its only ones.
	own, binds, declared bool
	age                  model.Row
}

func (p part) equal(o part) bool {
	return p.name == o.name && p.address == o.address && p.port == o.port && p.routes == o.routes && p.host == o.host &&
		p.target == o.target && p.serverFirst == o.serverFirst && p.own == o.own && p.binds == o.binds && p.declared == o.declared && p.age == o.age &&
		slices.Equal(p.serverNames, o.serverNames) && slices.Equal(p.cidrs, o.cidrs)
}

// plan returns the parts of one service in a scope. [control-plane 1.12.5, 1.12.6]
func (c *Compiler) plan(r *incr.Reader, k scopeHost) []part {
	s := c.model.Service(r, k.scope, k.host)
	if s == nil || s.IsAlias() || c.model.Imports(r, k.scope, s) {
		return nil
	}
	var out []part
	if list := c.model.Egress(r, k.scope); len(list) > 0 {
		out = c.planEgress(r, k, s, list)
	} else {
		for _, p := range s.Ports {
			out = append(out, c.planPort(r, k, s, p)...)
		}
	}
	for i := range out {
		out[i].name = fmt.Sprintf("%s_%d", out[i].address, out[i].port)
	}
	return out
}

// planPort returns the parts of a port of a service at the addresses to which clients connect. The protocol may be that of a Sidecar's
// listener.
func (c *Compiler) planPort(r *incr.Reader, k scopeHost, s *model.Service, p model.Port) []part {
	base := part{
		host: s.Host, port: p.Number, address: listener.Wildcard(k.scope.Value().Caps), age: s.Row,
		target: target{cluster: cluster.Name(cluster.Outbound, p.Number, "", s.Host)}, serverFirst: p.Protocol.ServerFirst(),
	}
	switch {
	case p.Protocol == mesh.UDP:
		return nil
	case p.Protocol.IsHTTP():
		base.target, base.routes = target{}, strconv.Itoa(int(p.Number))
		return []part{base}
	case s.Resolution == model.Dynamic:
		return c.planDynamic(r, k, s, p, base)
	}
	addresses := c.ownAddresses(r, k.scope, s)
	if s.Elsewhere(k.scope) && len(addresses) == 0 {
		return nil // connections to it cannot be told from those to other hosts
	}
	var own []part
	if len(addresses) > 0 || len(s.Addresses.CIDRs) > 0 {
		own = addressed(base, addresses, s.Addresses.CIDRs, p.Protocol)
	} else if !s.Source.Headless {
		if p.Protocol.IsTLS() {
			base.serverNames = c.namesOf(r, k.scope, s)
		}
		if p.Protocol == mesh.Auto {
			base.routes = strconv.Itoa(int(p.Number))
		}
		own = []part{base}
	}
	if len(own) == 0 {
		return nil
	}
	return c.routed(r, k, p, own)
}

// namesOf returns the names of a service in a scope, by which TLS connections to it are known.
func (c *Compiler) namesOf(r *incr.Reader, scope mesh.ScopeID, s *model.Service) []string {
	out := []string{s.Host}
	for _, alias := range c.model.Aliases(r, scope, s.Host) {
		out = append(out, alias.Host)
	}
	return out
}

// ownAddresses returns the addresses at which a service has listeners of its own: its virtual addresses, its own or allocated
// ones, or those of its Pods if it is headless. A proxy with addresses of one family gets those of that family, unless there are
// none.
func (c *Compiler) ownAddresses(r *incr.Reader, scope mesh.ScopeID, s *model.Service) []string {
	families := scope.Value().Caps & mesh.Families
	var out []string
	for _, ip := range c.model.VIPs(r, scope, s) {
		out = append(out, ip.String())
	}
	if len(out) == 0 && s.Source.Headless && !s.Elsewhere(scope) {
		for _, i := range c.model.Instances(r, s.Key) {
			if i.Cluster == s.Cluster {
				out = append(append(out, i.Address), i.Others...)
			}
		}
	}
	out = slices.Compact(out)
	if reached := slices.DeleteFunc(slices.Clone(out), func(a string) bool { return !reaches(families, a) }); len(reached) > 0 {
		return reached
	}
	return out
}

// addressed returns the parts of a service that its addresses identify: server names are not needed for that.
func addressed(base part, addresses []string, cidrs []netip.Prefix, p mesh.Protocol) []part {
	var out []part
	for _, a := range addresses {
		one := base
		one.address = a
		if p == mesh.Auto {
			one.routes, one.own = fmt.Sprintf("%s:%d", base.host, base.port), true
		}
		out = append(out, one)
	}
	if len(cidrs) > 0 {
		base.cidrs = cidrs
		out = append(out, base)
	}
	return out
}

// merged is the plan of one listener, made of all its parts. [control-plane C2]
type merged struct {
	Name, Address string
	Port          uint32
	Binds         bool
	Routes        string
	SNI, CIDR     []part
	TCP           target // of the default filter chain
	// Refused are the hosts whose port conflicts with that of another service.
	Refused []string
}

// listenerParts are the parts of one listener, those with priority first.
type listenerParts struct {
	name  string
	parts []part
}

// index lists the parts of all services of a scope by listener, sorted by name. If two services conflict,
// the older one has priority; one with a server-first protocol has the lowest priority, since it cannot
// share a listener.
func (c *Compiler) index(r *incr.Reader, s mesh.ScopeID) []listenerParts {
	var parts []part
	visible := c.model.Visible(r, s)
	declared := c.declared(r, s, visible)
	for _, list := range c.inner.plan.OfAll(r, scopeHosts(s, visible)) {
		for _, p := range list {
			if p.declared || !declared[p.name] {
				parts = append(parts, p)
			}
		}
	}
	slices.SortStableFunc(parts, compareParts)
	var out []listenerParts
	for len(parts) > 0 {
		n := 1
		for n < len(parts) && parts[n].name == parts[0].name {
			n++
		}
		out = append(out, listenerParts{parts[0].name, parts[:n:n]})
		parts = parts[n:]
	}
	return out
}

// compareParts orders parts by listener, and those of one listener by priority.
func compareParts(a, b part) int {
	return cmp.Or(cmp.Compare(a.name, b.name), compareBool(a.serverFirst, b.serverFirst), cmp.Compare(a.age.Age, b.age.Age), cmp.Compare(a.host, b.host))
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// add adds a part. First is set for those of the host with priority.
func (m *merged) add(p part, first bool) {
	switch {
	case p.serverFirst && !first && len(p.cidrs) == 0:
		m.Refused = append(m.Refused, p.host)
	case len(p.serverNames) > 0:
		m.SNI = append(m.SNI, p)
	case len(p.cidrs) > 0:
		m.CIDR = append(m.CIDR, p)
	default:
		if p.routes != "" && m.Routes == "" {
			m.Routes = p.routes
		}
		if p.target == (target{}) {
			return
		}
		if m.TCP == (target{}) {
			m.TCP = p.target
		} else if p.routes == "" {
			m.Refused = append(m.Refused, p.host)
		}
	}
}

// partsOf returns the parts of a listener of a scope without base.
func (c *Compiler) partsOf(r *incr.Reader, k scopeName) []part {
	list := c.inner.index.Of(r, k.scope)
	i, ok := slices.BinarySearchFunc(list, k.name, func(l listenerParts, n string) int { return cmp.Compare(l.name, n) })
	if !ok {
		return nil
	}
	return list[i].parts
}

// outbound merges the parts of a listener; nil if it has none.
func (c *Compiler) outbound(r *incr.Reader, k scopeName) *merged {
	base, derived := c.model.Base(k.scope)
	parts := c.inner.parts
	var d model.Difference
	if derived {
		parts, d = c.inner.derivedParts, c.model.Difference(r, k.scope)
	}
	list := parts.Of(r, k)
	if len(list) == 0 {
		return nil
	}
	m := &merged{Name: k.name, Address: list[0].address, Port: list[0].port, Binds: list[0].binds}
	for _, p := range list {
		from := scopeHost{k.scope, p.host}
		if derived && !has(d.Services, p.host) {
			from.scope = base
		}
		c.inner.plan.Of(r, from) // records what the listener is made of, which the index does not say
		m.add(p, p.host == list[0].host)
	}
	return m
}

// RefusedOf returns the hosts with a port that sidecars cannot connect to by an outbound listener, since it conflicts with that of an
// older service; none for other resources, and if the listener is not wanted.
func (c *Compiler) RefusedOf(k Key) []string {
	if m, _ := c.inner.outbound.Value(scopeName{k.Scope, k.Name}); k.Kind == Listener && m != nil {
		return m.Refused
	}
	return nil
}

// listener returns one outbound listener of a scope.
func (c *Compiler) listener(r *incr.Reader, k Key) []byte {
	env := listener.Env{Caps: k.Scope.Value().Caps, Mesh: c.model.Mesh(r), Protocols: c.opts.ProtocolFilters, Sessions: c.opts.Sessions && k.Scope.Value().Caps.Has(mesh.Sessions), Logs: c.clientLogs(r, k.Scope), Metrics: c.clientMetrics(r, k.Scope), Tracing: c.clientTracing(r, k.Scope)}
	if c.opts.NoSniffOutbound {
		env.Caps &^= mesh.HTTPInspector
	}
	if k.Name == mesh.VirtualOutbound {
		return marshal.MustEncodedAny(listener.VirtualOutbound(env, c.unknown(r, k.Scope)))
	}
	if k.Scope.Value().Role == mesh.Router {
		return c.routerListener(r, k, env)
	}
	m := c.inner.outbound.Of(r, scopeName{k.Scope, k.Name})
	if m == nil {
		return nil
	}
	o := listener.Outbound{Name: m.Name, Address: m.Address, Port: m.Port, Binds: m.Binds, Routes: m.Routes, Unknown: c.unknown(r, k.Scope)}
	o.TCP, o.Config = c.connectTo(r, k.Scope, m.TCP, m.Port, nil)
	matches := chainMatches{}
	for _, p := range m.SNI {
		o.SNI = append(o.SNI, c.chains(r, k.Scope, p, matches)...)
	}
	for _, p := range m.CIDR {
		o.CIDR = append(o.CIDR, c.chains(r, k.Scope, p, matches)...)
	}
	return marshal.MustEncodedAny(listener.BuildOutbound(o, env))
}

// tcp returns the TCP proxy to a cluster, with the limits on connections in its policy.
func (c *Compiler) tcp(r *incr.Reader, s mesh.ScopeID, name string) listener.TCP {
	t := listener.TCP{Cluster: name}
	if n, ok := cluster.ParseName(name); ok {
		p := c.policyOf(r, c.model.DestinationRule(r, s, n.Host), n.Subset, n.Port)
		tcp := p.GetConnectionPool().GetTcp()
		t.IdleTimeout, t.MaxDuration = tcp.GetIdleTimeout(), tcp.GetMaxConnectionDuration()
		if c.opts.ProtocolFilters != 0 {
			if svc := c.model.Service(r, s, n.Host); svc != nil {
				port, _ := svc.PortOf(n.Port)
				t.Protocol = port.Protocol
			}
		}
		if tunnel := p.GetTunnel(); tunnel != nil {
			host := tunnel.TargetHost
			if strings.Contains(host, ":") {
				host = "[" + host + "]"
			}
			t.TunnelTo, t.TunnelByPost = fmt.Sprintf("%s:%d", host, tunnel.TargetPort), tunnel.Protocol == "POST"
		}
	}
	return t
}
