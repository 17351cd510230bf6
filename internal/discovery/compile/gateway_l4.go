package compile

import (
	"cmp"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/listener"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// gatewayPlan returns the plan of one listener of a router, without chains if there is none: a server of TCP, or of TLS that
// is not HTTP, needs routes.
func (c *Compiler) gatewayPlan(r *incr.Reader, k scopeName) listener.Gateway {
	ports := c.model.Router(r, k.scope).Ports
	caps := k.scope.Value().Caps
	i := slices.IndexFunc(ports, func(p model.RouterPort) bool { return gatewayListenerName(p, caps) == k.name })
	if i < 0 {
		return listener.Gateway{}
	}
	p := ports[i]
	m := c.model.Mesh(r)
	plan := listener.Gateway{
		Name: k.name, Address: cmp.Or(p.Bind, listener.Wildcard(caps)), Port: p.Listen, TLS: p.Kind == mesh.ServesTLS,
		TrustDomains: append([]string{m.TrustDomain}, m.TrustDomainAliases...), Topology: c.topology(r, k.scope),
	}
	g := gatewayChains{c: c, r: r, scope: k.scope, plan: &plan, seen: map[string]bool{}}
	switch p.Kind {
	case mesh.ServesHTTP:
		plan.Chains = []listener.GatewayChain{{Routes: gatewayRouteName(p, p.Servers[0])}}
	case mesh.ServesTCP:
		g.tcp(p.Servers[0], nil, nil)
		g.attached(p, p.Servers[0], nil)
	case mesh.ServesTLS:
		for _, s := range p.Servers {
			switch t := s.Spec.GetTls(); {
			case t.GetMode() == networking.ServerTLSSettings_PASSTHROUGH:
				g.forward(s)
				g.attached(p, s, nil)
			case s.EndsHTTPS():
				g.add(listener.GatewayChain{ServerNames: s.Names(), TLS: t, Routes: gatewayRouteName(p, s)})
			default:
				g.tcp(s, s.Names(), t)
				g.attached(p, s, t)
			}
		}
	case mesh.NotServed, mesh.ServesPassthrough, mesh.NumServerKinds: // passthroughListener serves the second
	}
	return plan
}

// topology returns what is known of the proxies in front of a router: what its node says, else what the mesh configuration does.
func (c *Compiler) topology(r *incr.Reader, s mesh.ScopeID) mesh.Topology {
	if t := s.Value().Topology; t.Set {
		return t
	}
	return mesh.TopologyOf(c.model.Mesh(r).GetDefaultConfig().GetGatewayTopology())
}

// gatewayChains makes the filter chains of one listener.
type gatewayChains struct {
	c     *Compiler
	r     *incr.Reader
	scope mesh.ScopeID
	plan  *listener.Gateway
	// seen are the server names of chains, "*" for the chain for all: Envoy refuses a listener that has one twice.
	seen map[string]bool
}

// add adds a chain, for those of its server names that no other chain has; none are all names.
func (g *gatewayChains) add(chain listener.GatewayChain) {
	names := chain.ServerNames
	if len(names) == 0 || slices.Contains(names, "*") {
		names = []string{"*"}
	}
	chain.ServerNames = nil
	unused := false
	for _, n := range names {
		if g.seen[n] {
			continue
		}
		g.seen[n], unused = true, true
		if n != "*" {
			chain.ServerNames = append(chain.ServerNames, n)
		}
	}
	if unused {
		g.plan.Chains = append(g.plan.Chains, chain)
	}
}

// tcp adds the chain of a server to the destinations of the first tcp route that applies. [control-plane 1.7.2]
func (g *gatewayChains) tcp(s model.Server, names []string, t *networking.ServerTLSSettings) {
	for _, b := range g.c.model.Bound(g.r, g.scope, s.Key()) {
		if len(s.Hosts(b.Namespace, b.Hosts)) == 0 {
			continue
		}
		v := g.c.model.VirtualServiceRow(g.r, b.Key())
		for _, route := range v.GetSpec().GetTcp() {
			applies := len(route.Match) == 0 || slices.ContainsFunc(route.Match, func(m *networking.L4MatchAttributes) bool {
				limited := len(m.GetDestinationSubnets()) > 0 || len(m.GetSourceLabels()) > 0 || m.GetSourceSubnet() != ""
				return !limited && g.applies(s, b, m.GetPort(), m.GetGateways(), m.GetSourceNamespace())
			})
			if applies {
				g.add(listener.GatewayChain{ServerNames: names, TLS: t, TCP: g.c.destinations(g.r, g.scope, s.Port, v, route.Route)})
				return
			}
		}
	}
}

// forward adds chains that forward TLS by the server names of tls routes.
func (g *gatewayChains) forward(s model.Server) {
	for _, b := range g.c.model.Bound(g.r, g.scope, s.Key()) {
		if len(s.Hosts(b.Namespace, b.Hosts)) == 0 {
			continue
		}
		v := g.c.model.VirtualServiceRow(g.r, b.Key())
		for _, route := range v.GetSpec().GetTls() {
			for _, m := range route.Match {
				var names []string
				for _, n := range m.GetSniHosts() {
					names = append(names, mesh.HostName(n))
				}
				names = s.Hosts(b.Namespace, names)
				limited := len(m.GetDestinationSubnets()) > 0 || len(m.GetSourceLabels()) > 0
				if len(names) > 0 && !limited && g.applies(s, b, m.GetPort(), m.GetGateways(), m.GetSourceNamespace()) {
					g.add(listener.GatewayChain{ServerNames: names, TCP: g.c.destinations(g.r, g.scope, s.Port, v, route.Route)})
				}
			}
		}
	}
}

// applies evaluates the conditions that are the same for all connections of a server.
func (g *gatewayChains) applies(s model.Server, b model.Bound, port uint32, gateways []string, namespace string) bool {
	at := func(name string) bool {
		if !strings.Contains(name, "/") {
			name = b.Namespace + "/" + name
		}
		return name == s.Key()
	}
	return (port == 0 || port == s.Port) && (len(gateways) == 0 || slices.ContainsFunc(gateways, at)) &&
		(namespace == "" || namespace == g.scope.Value().Namespace)
}
