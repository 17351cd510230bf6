package compile

import (
	"fmt"
	"strconv"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/listener"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/route"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// A service with resolution DYNAMIC_DNS is reached by the name in a request: the Host header, or the server name of TLS. What has no such
// name is not the service's. [control-plane 1.9.13]

// planDynamic returns the parts of a port of such a service that is not HTTP.
func (c *Compiler) planDynamic(r *incr.Reader, k scopeHost, s *model.Service, p model.Port, base part) []part {
	base.routes = strconv.FormatUint(uint64(p.Number), 10)
	addresses := c.ownAddresses(r, k.scope, s)
	if len(addresses) == 0 && len(s.Addresses.CIDRs) == 0 {
		return c.dynamicParts(r, k, s, p, []part{base})
	}
	var own []part
	for _, a := range addresses {
		one := base
		one.address, one.routes, one.own = a, fmt.Sprintf("%s:%d", base.host, base.port), true
		own = append(own, one)
	}
	if len(s.Addresses.CIDRs) > 0 {
		base.cidrs = s.Addresses.CIDRs
		own = append(own, base)
	}
	return c.dynamicParts(r, k, s, p, own)
}

// dynamicParts limits parts to what has a name: TLS connections by their server name, and at a port without protocol HTTP.
func (c *Compiler) dynamicParts(r *incr.Reader, k scopeHost, s *model.Service, p model.Port, own []part) (out []part) {
	for _, one := range own {
		switch {
		case p.Protocol.IsTLS():
			one.routes, one.own, one.serverNames = "", false, c.namesOf(r, k.scope, s)
		case p.Protocol == mesh.Auto && len(one.cidrs) == 0:
			one.target = target{}
		default:
			continue
		}
		out = append(out, one)
	}
	if p.Protocol.IsTLS() && len(out) > 0 {
		return c.routed(r, k, p, out)
	}
	return out
}

// dynamicOf returns how requests and connections to a port of a service are resolved, nil for a service with another resolution.
func dynamicOf(service *model.Service, port model.Port) *cluster.DynamicName {
	if service.Resolution != model.Dynamic {
		return nil
	}
	return &cluster.DynamicName{Host: service.Host, Port: port.Target}
}

// named returns the TCP proxy for connections with some server names, none for those of any name: if it leads to a service whose names are
// resolved, these must be among the service's, and all of its destinations that service at one port. Others are closed.
func (c *Compiler) named(r *incr.Reader, s mesh.ScopeID, t listener.TCP, names []string) listener.TCP {
	clusters := []string{t.Cluster}
	for _, w := range t.Weighted {
		clusters = append(clusters, w.Cluster)
	}
	var found []*cluster.DynamicName
	for _, name := range clusters {
		n, ok := cluster.ParseName(name)
		if !ok {
			continue
		}
		service := c.model.Service(r, s, n.Host)
		if service == nil {
			continue
		}
		port, _ := service.PortOf(n.Port)
		if d := dynamicOf(service, port); d != nil {
			found = append(found, d)
		}
	}
	if len(found) == 0 {
		return t
	}
	for _, d := range found {
		if *d != *found[0] || !s.Value().Caps.Has(mesh.DynamicDNS) || mesh.IsProxyPort(d.Port) || !cluster.Covers(d.Host, names) {
			return listener.TCP{Cluster: mesh.BlackHoleCluster}
		}
	}
	t.Dynamic = found[0]
	return t
}

// catchAll returns where requests for hosts go that the mesh does not know, at a route configuration of a port. Connections that a listener
// accepts itself, if binds is set, have no destination of their own. [control-plane 1.4.6]
func (c *Compiler) catchAll(r *incr.Reader, s mesh.ScopeID, port uint32, binds bool) route.Destination {
	if c.model.DynamicDNS(r, s) {
		if port == 0 || mesh.IsProxyPort(port) {
			return route.Destination{}
		}
		return route.Destination{
			Cluster: mesh.AllowAnyDynamicDNSCluster, Dynamic: &cluster.DynamicName{Port: port},
			OwnALPN: c.model.Mesh(r).GetOutboundTrafficPolicy().GetTls() != nil,
		}
	}
	to := c.unknown(r, s)
	if to == mesh.BlackHoleCluster || binds && to == mesh.PassthroughCluster {
		return route.Destination{} // an answer says more than a connection that ends
	}
	return route.Destination{Cluster: to}
}
