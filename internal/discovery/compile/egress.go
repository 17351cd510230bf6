package compile

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/listener"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// planEgress returns the parts of a service at the listeners of a Sidecar that says at which ports or addresses they are.
// [control-plane 1.9.22]
func (c *Compiler) planEgress(r *incr.Reader, k scopeHost, s *model.Service, list []model.Egress) (out []part) {
	for _, l := range list {
		if !l.Sees(s) {
			continue
		}
		for _, p := range s.Ports {
			if !serves(l, s, p) {
				continue
			}
			own := l.Port != 0 || l.Socket()
			if own && l.Protocol != mesh.Auto {
				p.Protocol = l.Protocol
			}
			var parts []part
			if l.Bind == "" && !l.Binds {
				parts = c.planPort(r, k, s, p)
			} else if s.Resolution != model.Passthrough { // else only the client's destination says where it is
				parts = c.planBound(r, k, s, p, l)
			}
			for i := range parts {
				parts[i].declared = own
			}
			out = append(out, parts...)
		}
	}
	return out
}

// serves reports whether a listener of a Sidecar is for a port of a service that it sees. At a Unix socket a service has one port, the
// first that fits: the Host header says no more than its name.
func serves(l model.Egress, s *model.Service, p model.Port) bool {
	if l.Socket() {
		return p.Number == socketPort(l, s)
	}
	return p.Protocol != mesh.UDP && (l.Port == 0 || l.Port == p.Number)
}

// socketPort returns the port of a service at a Unix socket, 0 for none.
func socketPort(l model.Egress, s *model.Service) uint32 {
	for _, p := range s.Ports {
		if p.Protocol != mesh.UDP && (!l.Protocol.IsHTTP() || p.Protocol.IsHTTP() || p.Protocol == mesh.Auto) {
			return p.Number
		}
	}
	return 0
}

// socketPort returns the port of a host's service at the Unix socket of a route configuration, 0 for none.
func (c *Compiler) socketPort(r *incr.Reader, k scopeNameHost) uint32 {
	s := c.model.Service(r, k.scope, k.host)
	if s == nil {
		return 0
	}
	for _, l := range c.model.Egress(r, k.scope) {
		if l.Bind == k.name && l.Sees(s) {
			return socketPort(l, s)
		}
	}
	return 0
}

// planBound returns the parts of a port of a service at the address of a Sidecar's listener.
func (c *Compiler) planBound(r *incr.Reader, k scopeHost, s *model.Service, p model.Port, l model.Egress) []part {
	base := part{
		host: s.Host, port: p.Number, address: cmp.Or(l.Bind, loopback(k.scope.Value().Caps)), age: s.Row, binds: l.Binds,
		target: target{cluster: cluster.Name(cluster.Outbound, p.Number, "", s.Host)}, serverFirst: p.Protocol.ServerFirst(),
	}
	routes := fmt.Sprintf("%s_%d", base.address, base.port)
	if l.Socket() {
		base.port, routes = 0, base.address
	}
	switch {
	case p.Protocol.IsHTTP():
		base.target, base.routes = target{}, routes
		return []part{base}
	case s.Resolution == model.Dynamic:
		base.routes = routes
		return c.dynamicParts(r, k, s, p, []part{base})
	case p.Protocol == mesh.Auto:
		base.routes = routes
	case p.Protocol.IsTLS():
		base.serverNames = c.namesOf(r, k.scope, s)
	}
	return c.routed(r, k, p, []part{base})
}

func loopback(caps mesh.Capability) string {
	if strings.Contains(listener.Wildcard(caps), ":") {
		return "::1"
	}
	return "127.0.0.1"
}

// declared returns the names of the listeners to which a Sidecar's listeners with a port or socket add parts: what its listener for all
// other ports has is not added to them. Nil if the scope has none.
func (c *Compiler) declared(r *incr.Reader, s mesh.ScopeID, visible []model.Ref) map[string]bool {
	if len(c.model.Egress(r, s)) == 0 {
		return nil
	}
	out := map[string]bool{}
	for _, list := range c.inner.plan.OfAll(r, scopeHosts(s, visible)) {
		for _, p := range list {
			if p.declared {
				out[p.name] = true
			}
		}
	}
	return out
}

// unknown returns the cluster for connections of a scope to hosts that the mesh does not know: that of their destination, that of an
// egress proxy, or one that ends them, also if nothing is known of the proxy. [control-plane 1.9.24]
func (c *Compiler) unknown(r *incr.Reader, s mesh.ScopeID) string {
	if !c.model.AllowAny(r, s) {
		return mesh.BlackHoleCluster
	}
	to := c.model.EgressProxy(r, s)
	if to.Host == "" {
		return mesh.PassthroughCluster
	}
	d := c.resolver(r, s, 0)(to.Host, to.Port, to.Subset)
	if d.Dynamic != nil {
		return mesh.BlackHoleCluster // these connections have no name
	}
	return cmp.Or(d.Cluster, mesh.BlackHoleCluster)
}
