package compile

import (
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

// A router with servers in mode AUTO_PASSTHROUGH is the entry to its network: it has a cluster for each port of each
// service and of its subsets, with the server name that clients send for it, and a filter chain for each of them. What
// it forwards stays encrypted from the client to the endpoint. [control-plane 1.9.5, 1.12.1]

// passthroughPort is one listener of a router.
type passthroughPort struct {
	port  uint32
	hosts []scopeHost // keys of passthroughs, sorted by host
}

func (p passthroughPort) name(caps mesh.Capability) string {
	return listener.Wildcard(caps) + "_" + strconv.FormatUint(uint64(p.port), 10)
}

// clusterOf parses the name of an outbound cluster, and reports whether it is one of a router that forwards mutual TLS.
func clusterOf(name string) (k cluster.Key, passthrough bool) {
	if k, ok := cluster.ParseSNI(name); ok {
		return k, true
	}
	k, _ = cluster.ParseName(name)
	return k, false
}

// servicePassthroughs returns the names of a service's clusters in a router; none for a service whose endpoints are not
// in the mesh.
func (c *Compiler) servicePassthroughs(r *incr.Reader, k scopeHost) (out []string) {
	s := c.model.Service(r, k.scope, k.host)
	if s == nil || s.External || s.Resolution != model.Static && !s.Source.Headless {
		return nil
	}
	if strings.Contains(k.host, "*") {
		return nil // Envoy refuses a listener with a wildcard in the middle of a server name, and no client asks for one
	}
	subsets := []string{""}
	for _, sub := range c.model.DestinationRule(r, k.scope, k.host).GetSpec().GetSubsets() {
		subsets = append(subsets, sub.Name)
	}
	for _, p := range s.Ports {
		if p.Protocol == mesh.UDP {
			continue
		}
		for _, sub := range subsets {
			out = append(out, cluster.SNI(p.Number, sub, k.host))
		}
	}
	return out
}

// portsPassedThrough returns a router's listeners, sorted by port: of each of its servers that serves any service.
func (c *Compiler) portsPassedThrough(r *incr.Reader, s mesh.ScopeID) (out []passthroughPort) {
	servers := c.model.PassthroughServers(r, s)
	if len(servers) == 0 {
		return nil
	}
	hosts := c.scopeHostsOf(r, s)
	for _, server := range servers {
		p := passthroughPort{port: server.Port}
		for _, h := range hosts {
			if service := c.model.Service(r, h.scope, h.host); service != nil && server.Serves(service) && len(c.inner.passthroughs.Of(r, h)) > 0 {
				p.hosts = append(p.hosts, h)
			}
		}
		if len(p.hosts) > 0 {
			out = append(out, p)
		}
	}
	return out
}

// scopeHostsOf returns a key for each host that a scope sees, sorted by host: that of its base unless the two differ in
// it.
func (c *Compiler) scopeHostsOf(r *incr.Reader, s mesh.ScopeID) []scopeHost {
	base, derived := c.model.Base(s)
	if !derived {
		return scopeHosts(s, c.model.Visible(r, s))
	}
	d := c.model.Difference(r, s)
	var out []scopeHost
	for _, h := range scopeHosts(base, c.model.Visible(r, base)) {
		if !has(d.Services, h.host) {
			out = append(out, h)
		}
	}
	for _, host := range d.Services {
		out = append(out, scopeHost{s, host})
	}
	slices.SortFunc(out, func(a, b scopeHost) int { return strings.Compare(a.host, b.host) })
	return out
}

// appendPassthrough adds the resources with which a router forwards mutual TLS.
func (c *Compiler) appendPassthrough(r *incr.Reader, to []Key, s mesh.ScopeID) []Key {
	for _, p := range c.inner.passthroughPorts.Of(r, s) {
		for _, h := range p.hosts {
			for _, name := range c.inner.passthroughs.Of(r, h) {
				to = append(to, Key{Kind: Cluster, Scope: s, Name: name, EDS: true}, Key{Kind: Endpoints, Scope: s, Name: name})
			}
		}
		if k := (Key{Kind: Listener, Scope: s, Name: p.name(s.Value().Caps)}); !slices.Contains(to, k) { // it may be that of other servers, too
			to = append(to, k)
		}
	}
	return to
}

// passthroughListener returns one listener of a router.
func (c *Compiler) passthroughListener(r *incr.Reader, k Key, env listener.Env) []byte {
	for _, p := range c.inner.passthroughPorts.Of(r, k.Scope) {
		if p.name(k.Scope.Value().Caps) != k.Name {
			continue
		}
		c.model.PassthroughServers(r, k.Scope) // records what the listener is made of, which the index does not say
		var names []string
		for _, h := range p.hosts {
			names = append(names, c.inner.passthroughs.Of(r, h)...)
		}
		return marshal.MustEncodedAny(listener.BuildPassthrough(k.Name, p.port, names, c.topology(r, k.Scope), env))
	}
	return nil
}
