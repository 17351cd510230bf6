package compile

import (
	"cmp"
	"net/netip"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/listener"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// target is where connections that are not HTTP go: to a cluster, or to the destinations of a tls or tcp route.
type target struct {
	cluster string
	// virtual is the key of the VirtualService of a route, tls and index say which of its routes it is.
	virtual string
	tls     bool
	index   int
}

// routed returns the parts of a service's port, with the tls or tcp routes of VirtualServices in place of the service's own
// cluster. Conditions that are the same for all connections of the client are evaluated here, the others become matches of filter
// chains. [control-plane 1.7.27, 1.7.28]
func (c *Compiler) routed(r *incr.Reader, k scopeHost, p model.Port, own []part) []part {
	rules := c.model.ConnectionRoutes(r, k.scope, k.host)
	if len(rules) == 0 {
		return own
	}
	if p.Protocol.IsTLS() {
		return tlsParts(rules, k.scope.Value(), own)
	}
	return tcpParts(rules, k.scope.Value(), own)
}

// tlsParts returns a part for each match of tls routes. If there is one, connections with other names are not the service's, as in
// Istio.
func tlsParts(rules []*model.VirtualService, client mesh.Scope, own []part) (out []part) {
	for _, v := range rules {
		for i, route := range v.Spec.GetTls() {
			for _, m := range route.GetMatch() {
				if !clientMatches(client, own[0].port, m.GetPort(), m.GetGateways(), m.GetSourceNamespace(), m.GetSourceLabels()) {
					continue
				}
				names := sniNames(m.GetSniHosts())
				for _, p := range own {
					p.serverNames, p.target = names, target{virtual: v.Key(), tls: true, index: i}
					if subnets := prefixes(m.GetDestinationSubnets()); len(subnets) > 0 {
						p.cidrs = subnets
					}
					out = append(out, p)
				}
			}
		}
	}
	if len(out) == 0 {
		return own
	}
	return out
}

// tcpParts returns a part for each tcp route with subnets, up to the first without, which takes the other connections.
func tcpParts(rules []*model.VirtualService, client mesh.Scope, own []part) (out []part) {
	for _, v := range rules {
		for i, route := range v.Spec.GetTcp() {
			var subnets []netip.Prefix
			rest := len(route.GetMatch()) == 0
			for _, m := range route.GetMatch() {
				if m.GetSourceSubnet() != "" || !clientMatches(client, own[0].port, m.GetPort(), m.GetGateways(), m.GetSourceNamespace(), m.GetSourceLabels()) {
					continue
				}
				if len(m.GetDestinationSubnets()) == 0 {
					rest = true
					break
				}
				subnets = append(subnets, prefixes(m.GetDestinationSubnets())...)
			}
			for _, p := range own {
				p.target = target{virtual: v.Key(), index: i}
				if rest {
					out = append(out, p)
				} else if len(subnets) > 0 {
					p.cidrs, p.routes = subnets, ""
					out = append(out, p)
				}
			}
			if rest {
				return out
			}
		}
	}
	return append(out, own...)
}

// clientMatches evaluates the conditions that are the same for all connections of a scope's sidecars to a port.
func clientMatches(client mesh.Scope, listenerPort, port uint32, gateways []string, namespace string, labels map[string]string) bool {
	return (port == 0 || port == listenerPort) && (len(gateways) == 0 || slices.Contains(gateways, "mesh")) &&
		(namespace == "" || namespace == client.Namespace) && model.Selects(client, labels)
}

// sniNames returns sniHosts as a filter chain matches them, nil if one of them is for all names.
func sniNames(sniHosts []string) (out []string) {
	for _, n := range sniHosts {
		if n == "*" {
			return nil
		}
		out = append(out, mesh.HostName(n))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// prefixes parses subnets, which are addresses or CIDRs; package config refuses others.
func prefixes(subnets []string) (out []netip.Prefix) {
	for _, s := range subnets {
		if p, err := netip.ParsePrefix(s); err == nil {
			out = append(out, p.Masked())
		} else if ip, err := netip.ParseAddr(s); err == nil {
			out = append(out, netip.PrefixFrom(ip, ip.BitLen()))
		}
	}
	return out
}

// connectTo returns the TCP proxy to a target, and the path of the VirtualService that says so, empty for none. listenerPort is that
// of destinations without a port, and names are the server names of the connections.
func (c *Compiler) connectTo(r *incr.Reader, s mesh.ScopeID, t target, listenerPort uint32, names []string) (listener.TCP, string) {
	if t.virtual == "" {
		return c.named(r, s, c.tcp(r, s, t.cluster), names), ""
	}
	v := c.model.VirtualServiceRow(r, t.virtual)
	var list []*networking.RouteDestination
	if t.tls && t.index < len(v.GetSpec().GetTls()) {
		list = v.Spec.Tls[t.index].GetRoute()
	} else if !t.tls && t.index < len(v.GetSpec().GetTcp()) {
		list = v.Spec.Tcp[t.index].GetRoute()
	}
	if len(list) == 0 {
		return listener.TCP{Cluster: mesh.BlackHoleCluster}, "" // not in force any more: the listener is planned anew in the same run
	}
	return c.named(r, s, c.destinations(r, s, listenerPort, v, list), names), cluster.ConfigPath("virtual-service", v.Namespace, v.Name)
}

// destinations returns the TCP proxy to the destinations of a VirtualService's route, by weight, with the limits on connections in the
// policy of the first. listenerPort is that of a destination that has no port, if its service has several.
func (c *Compiler) destinations(r *incr.Reader, s mesh.ScopeID, listenerPort uint32, v *model.VirtualService, list []*networking.RouteDestination) listener.TCP {
	resolve := c.resolver(r, s, listenerPort)
	name := func(d *networking.Destination) (name string, exists bool) {
		host, port := mesh.FullHost(d.GetHost(), v.Namespace, c.model.Domain()), d.GetPort().GetNumber()
		if to := resolve(host, port, d.GetSubset()); to.Cluster != "" {
			return to.Cluster, true
		}
		return cluster.Name(cluster.Outbound, cmp.Or(port, listenerPort), d.GetSubset(), host), false
	}
	t := listener.TCP{}
	if first, exists := name(list[0].GetDestination()); !exists {
		t.Cluster = first // a DestinationRule is one of a service
	} else {
		t = c.tcp(r, s, first)
	}
	if len(list) == 1 {
		return t
	}
	t.Cluster, t.Prefix = "", v.Name+"."+v.Namespace
	for _, d := range list {
		if d.GetWeight() > 0 {
			to, _ := name(d.GetDestination())
			t.Weighted = append(t.Weighted, listener.WeightedCluster{Cluster: to, Weight: uint32(d.GetWeight())})
		}
	}
	return t
}

// chainMatches are the matches of a listener's filter chains: Envoy refuses a listener that has one twice.
type chainMatches map[struct{ name, prefix string }]bool

// unused returns those of the names that no chain for the prefix has, and takes them; empty strings mean no condition.
func (m chainMatches) unused(prefix string, names []string) (out []string) {
	for _, n := range names {
		k := struct{ name, prefix string }{n, prefix}
		if !m[k] {
			out = append(out, n)
		}
		m[k] = true
	}
	return out
}

// chains returns the filter chains of a part, for the names and addresses that no earlier chain has: one, unless only some of its
// names are left for some of its addresses.
func (c *Compiler) chains(r *incr.Reader, s mesh.ScopeID, p part, matches chainMatches) (out []listener.Chain) {
	base := listener.Chain{}
	base.TCP, base.Config = c.connectTo(r, s, p.target, p.port, p.serverNames)
	names := p.serverNames
	if len(names) == 0 {
		names = []string{""}
	}
	add := func(names []string, prefix ...netip.Prefix) {
		if len(names) == 0 {
			return
		}
		if len(p.serverNames) == 0 {
			names = nil
		}
		if n := len(out); n > 0 && slices.Equal(out[n-1].ServerNames, names) {
			out[n-1].Prefixes = append(out[n-1].Prefixes, prefix...)
			return
		}
		chain := base
		chain.ServerNames, chain.Prefixes = names, prefix
		out = append(out, chain)
	}
	if len(p.cidrs) == 0 {
		add(matches.unused("", names))
	}
	for _, prefix := range p.cidrs {
		add(matches.unused(prefix.String(), names), prefix)
	}
	return out
}
