package compile

import (
	"cmp"
	"net/netip"
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
	i := slices.IndexFunc(ports, func(p model.RouterPort) bool {
		return p.Kind != mesh.ServesPassthrough && gatewayListenerName(p, caps) == k.name
	})
	if i < 0 {
		return listener.Gateway{}
	}
	p := ports[i]
	m := c.model.Mesh(r)
	plan := listener.Gateway{
		Name: k.name, Address: cmp.Or(p.Bind, listener.Wildcard(caps)), Port: p.Listen, TLS: p.Kind == mesh.ServesTLS,
		TrustDomains: append([]string{m.TrustDomain}, m.TrustDomainAliases...), Topology: c.topology(r, k.scope),
		Sessions: caps.Has(mesh.Sessions) && c.model.KeepsSessions(r, p),
	}
	g := gatewayChains{c: c, r: r, scope: k.scope}
	switch p.Kind {
	case mesh.ServesHTTP:
		g.add(listener.GatewayChain{Routes: gatewayRouteName(p, p.Servers[0])})
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
				g.add(listener.GatewayChain{ServerNames: s.Names(), TLS: t, ClientCA: s.ClientCA, Routes: gatewayRouteName(p, s)})
			default:
				g.tcp(s, s.Names(), t)
				g.attached(p, s, t)
			}
		}
	case mesh.ServesQUIC:
		if plan.QUIC = c.quic(k.scope, plan.Topology); plan.QUIC {
			tls := p
			tls.Kind = mesh.ServesTLS
			for _, s := range p.Servers {
				g.add(listener.GatewayChain{ServerNames: s.Names(), TLS: s.Spec.GetTls(), Routes: gatewayRouteName(tls, s)})
			}
		}
	case mesh.ServesUDP:
		plan.UDP = true
		g.udp(p, p.Servers[0])
	case mesh.NotServed, mesh.ServesPassthrough, mesh.NumServerKinds: // the second is not looked for
	}
	if p.Kind == mesh.ServesTLS && len(g.all) > 0 {
		g.passThrough(k)
	}
	plan.Chains = chainsByAddress(g.all)
	for i := range plan.Chains {
		if chain := &plan.Chains[i]; chain.Routes == "" && !chain.Mesh {
			chain.TCP = c.named(r, k.scope, chain.TCP, chain.ServerNames)
		}
	}
	return plan
}

// passThrough adds the chains of servers in mode AUTO_PASSTHROUGH that share the listener. They come last: a name that a Gateway says itself is its own.
func (g *gatewayChains) passThrough(k scopeName) {
	for _, p := range g.c.inner.passthroughPorts.Of(g.r, k.scope) {
		if p.name(k.scope.Value().Caps) != k.name {
			continue
		}
		var names []string
		for _, h := range p.hosts {
			names = append(names, g.c.inner.passthroughs.Of(g.r, h)...)
		}
		g.all = append(g.all, listener.PassthroughChains(names)...)
	}
}

// topology returns what is known of the proxies in front of a router: what its node says, else what the mesh configuration does.
func (c *Compiler) topology(r *incr.Reader, s mesh.ScopeID) mesh.Topology {
	if t := s.Value().Topology; t.Set {
		return t
	}
	return mesh.TopologyOf(c.model.Mesh(r).GetDefaultConfig().GetGatewayTopology())
}

// gatewayChains lists what the filter chains of one listener are made of: the first that a connection matches is for it.
type gatewayChains struct {
	c     *Compiler
	r     *incr.Reader
	scope mesh.ScopeID
	all   []listener.GatewayChain
}

func (g *gatewayChains) add(chain listener.GatewayChain) { g.all = append(g.all, chain) }

// chainsByAddress makes filter chains that choose as the first match of a list does. Envoy chooses by the most specific prefix of the
// destination, then by the server name, then by the most specific prefix of the client, and never goes back. So each combination of
// prefixes has all chains whose own prefixes contain it.
func chainsByAddress(all []listener.GatewayChain) (out []listener.GatewayChain) {
	var to, from []netip.Prefix
	for _, chain := range all {
		to, from = append(to, chain.Prefixes...), append(from, chain.Sources...)
	}
	for _, prefix := range within(to) {
		for _, source := range within(from) {
			g := chainSet{seen: map[string]bool{}}
			for _, chain := range all {
				if contains(chain.Prefixes, prefix) && contains(chain.Sources, source) {
					chain.Prefixes, chain.Sources = prefix, source
					g.add(chain)
				}
			}
			out = append(out, g.chains...)
		}
	}
	return out
}

// within lists prefixes, each once and alone, after no prefix at all, which stands for every address.
func within(list []netip.Prefix) (out [][]netip.Prefix) {
	slices.SortFunc(list, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	out = [][]netip.Prefix{nil}
	for _, p := range slices.Compact(list) {
		out = append(out, []netip.Prefix{p})
	}
	return out
}

// contains reports whether the addresses of one, as within lists it, are all in a list of prefixes; an empty list has all addresses.
func contains(list, one []netip.Prefix) bool {
	return len(list) == 0 || len(one) == 1 && slices.ContainsFunc(list, func(p netip.Prefix) bool {
		return p.Bits() <= one[0].Bits() && p.Contains(one[0].Addr())
	})
}

// halves are subnets as prefixes that Envoy tells from no condition: that of all addresses of a family is two.
func halves(subnets []string) (out []netip.Prefix) {
	for _, p := range prefixes(subnets) {
		if p.Bits() > 0 {
			out = append(out, p)
			continue
		}
		upper := p.Addr().AsSlice()
		upper[0] = 0x80
		half, _ := netip.AddrFromSlice(upper)
		out = append(out, netip.PrefixFrom(p.Addr(), 1), netip.PrefixFrom(half, 1))
	}
	return out
}

// chainSet makes the filter chains for one combination of prefixes.
type chainSet struct {
	chains []listener.GatewayChain
	// seen are the server names of chains, "*" for the chain for all: Envoy refuses a listener that has one twice.
	seen map[string]bool
}

// add adds a chain, for those of its server names that no other chain has; none are all names.
func (g *chainSet) add(chain listener.GatewayChain) {
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
		g.chains = append(g.chains, chain)
	}
}

// tcp adds the chains of a server to the destinations of tcp routes, up to the first that takes all connections.
// [control-plane 1.7.2, 1.7.28]
func (g *gatewayChains) tcp(s model.Server, names []string, t *networking.ServerTLSSettings) {
	for _, b := range g.c.model.Bound(g.r, g.scope, s.Key()) {
		if len(s.Hosts(b.Namespace, b.Hosts)) == 0 {
			continue
		}
		v := g.c.model.VirtualServiceRow(g.r, b.Key())
		for _, route := range v.GetSpec().GetTcp() {
			matches := route.Match
			if len(matches) == 0 {
				matches = []*networking.L4MatchAttributes{{}}
			}
			for _, m := range matches {
				if !g.applies(s, b, m.GetPort(), m.GetGateways(), m.GetSourceNamespace(), m.GetSourceLabels()) {
					continue
				}
				chain := listener.GatewayChain{ServerNames: names, TLS: t, Prefixes: halves(m.GetDestinationSubnets())}
				if subnet := m.GetSourceSubnet(); subnet != "" {
					chain.Sources = halves([]string{subnet})
				}
				chain.TCP = g.c.destinations(g.r, g.scope, s.Port, v, route.Route)
				g.add(chain)
				if len(chain.Prefixes)+len(chain.Sources) == 0 {
					return
				}
			}
		}
	}
}

// forward adds chains that forward TLS by the server names of tls routes. [control-plane 1.7.27]
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
				if len(names) > 0 && g.applies(s, b, m.GetPort(), m.GetGateways(), m.GetSourceNamespace(), m.GetSourceLabels()) {
					g.add(listener.GatewayChain{ServerNames: names, Prefixes: halves(m.GetDestinationSubnets()), TCP: g.c.destinations(g.r, g.scope, s.Port, v, route.Route)})
				}
			}
		}
	}
}

// applies evaluates the conditions that are the same for all connections of a server; labels are those of the router.
func (g *gatewayChains) applies(s model.Server, b model.Bound, port uint32, gateways []string, namespace string, labels map[string]string) bool {
	at := func(name string) bool {
		if !strings.Contains(name, "/") {
			name = b.Namespace + "/" + name
		}
		return name == s.Key()
	}
	return (port == 0 || port == s.Port) && (len(gateways) == 0 || slices.ContainsFunc(gateways, at)) &&
		(namespace == "" || namespace == g.scope.Value().Namespace) && model.Selects(g.scope.Value(), labels)
}
