package patch

import (
	"slices"
	"strconv"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// In reports whether a patch is for resources of a context.
func (p *Patch) In(c Context) bool {
	switch p.ApplyTo {
	case networking.EnvoyFilter_BOOTSTRAP:
		return false
	case networking.EnvoyFilter_EXTENSION_CONFIG:
		return c != Outbound // a sidecar has them once, for all of its listeners
	}
	if p.Place != nil {
		return p.Place.in(c)
	}
	return p.Match.GetContext() == networking.EnvoyFilter_ANY || p.Match.GetContext() == c
}

func (p *Patch) filter() *networking.EnvoyFilter_ListenerMatch_FilterMatch {
	return p.Match.GetListener().GetFilterChain().GetFilter()
}

// name is that of the patch's value, empty if it has none.
func (p *Patch) name() string {
	if v, ok := p.Value.(interface{ GetName() string }); ok {
		return v.GetName()
	}
	return ""
}

// canonicalNames are the names of filters that Envoy had before version 1.14.
var canonicalNames = map[string]string{
	"envoy.http_connection_manager": connectionManager, "envoy.tcp_proxy": "envoy.filters.network.tcp_proxy", "envoy.router": httpRouter,
	"envoy.cors": "envoy.filters.http.cors", "envoy.fault": "envoy.filters.http.fault", "envoy.lua": "envoy.filters.http.lua",
}

func canonical(name string) string {
	if to, ok := canonicalNames[name]; ok {
		return to
	}
	return name
}

// TouchesCluster reports whether a patch may change a cluster of this name, or adds it.
func (p *Patch) TouchesCluster(name string, c Context) bool {
	if p.ApplyTo != networking.EnvoyFilter_CLUSTER || !p.In(c) {
		return false
	}
	if p.Operation == add {
		return p.name() == name
	}
	m := p.Match.GetCluster()
	if m.GetName() != "" {
		return m.GetName() == name
	}
	if m.GetPortNumber() == 0 && m.GetService() == "" && m.GetSubset() == "" {
		return true
	}
	k, ok := cluster.ParseName(name)
	if !ok {
		return false
	}
	return (m.GetPortNumber() == 0 || m.GetPortNumber() == k.Port) && (c == Inbound || m.GetService() == "" || m.GetService() == k.Host) &&
		(m.GetSubset() == "" || m.GetSubset() == k.Subset)
}

// TouchesExtension reports whether a patch adds an extension configuration with this name. Its context does not say for which listeners it
// is: these name it.
func (p *Patch) TouchesExtension(name string, c Context) bool {
	return p.ApplyTo == networking.EnvoyFilter_EXTENSION_CONFIG && p.In(c) && p.name() == name
}

// virtual reports whether a listener has the filter chains of many ports.
func virtual(name string) bool { return name == mesh.VirtualInbound || name == mesh.VirtualOutbound }

// ofListener reports whether a patch is for listeners or what is in them.
func (p *Patch) ofListener() bool {
	switch p.ApplyTo {
	case networking.EnvoyFilter_LISTENER, networking.EnvoyFilter_LISTENER_FILTER, networking.EnvoyFilter_FILTER_CHAIN,
		networking.EnvoyFilter_NETWORK_FILTER, networking.EnvoyFilter_HTTP_FILTER:
		return true
	}
	return false
}

// ofRoutes reports whether a patch is for route configurations or what is in them.
func (p *Patch) ofRoutes() bool {
	switch p.ApplyTo {
	case networking.EnvoyFilter_ROUTE_CONFIGURATION, networking.EnvoyFilter_VIRTUAL_HOST, networking.EnvoyFilter_HTTP_ROUTE:
		return true
	}
	return false
}

// TouchesListener reports whether a patch may change a listener of this name, or adds it. Inbound listeners have their
// routes in them.
func (p *Patch) TouchesListener(name string, c Context) bool {
	if !p.In(c) {
		return false
	}
	if p.Place != nil {
		return c == Inbound && virtual(name) || p.Place.at(c, portOf(name))
	}
	if c == Inbound && p.ofRoutes() {
		return true
	}
	if !p.ofListener() {
		return false
	}
	if p.ApplyTo == networking.EnvoyFilter_LISTENER && p.Operation == add {
		return p.name() == name
	}
	return p.matchesListener(name, portOf(name))
}

// portOf returns the port at the end of a listener's name, "ADDRESS_PORT"; 0 for other names.
func portOf(name string) uint32 {
	n, _ := strconv.ParseUint(name[strings.LastIndexByte(name, '_')+1:], 10, 16)
	return uint32(n)
}

// matchesListener reports whether a patch's match is for a listener. For what is in a listener with the filter chains of many
// ports, the port is that of a filter chain.
func (p *Patch) matchesListener(name string, port uint32) bool {
	m := p.Match.GetListener()
	if m.GetName() != "" && m.GetName() != name {
		return false
	}
	if virtual(name) && p.ApplyTo != networking.EnvoyFilter_LISTENER || m.GetPortNumber() == 0 {
		return true
	}
	return port == m.GetPortNumber()
}

// listenerPort returns a listener's port, 0 if it has none.
func listenerPort(l *listenerv3.Listener) uint32 {
	return l.GetAddress().GetSocketAddress().GetPortValue()
}

// matchesChain reports whether a patch's match is for a filter chain of a listener.
func (p *Patch) matchesChain(l *listenerv3.Listener, fc *listenerv3.FilterChain) bool {
	m, of := p.Match.GetListener(), fc.GetFilterChainMatch()
	if port := m.GetPortNumber(); port != 0 && virtual(l.Name) && of.GetDestinationPort().GetValue() != port {
		return false
	}
	want := m.GetFilterChain()
	switch {
	case want == nil:
		return true
	case want.Name != "" && want.Name != fc.Name,
		want.Sni != "" && !slices.Contains(of.GetServerNames(), want.Sni),
		want.TransportProtocol != "" && of.GetTransportProtocol() != want.TransportProtocol,
		want.DestinationPort != 0 && of.GetDestinationPort().GetValue() != want.DestinationPort:
		return false
	}
	for _, protocol := range strings.Split(want.ApplicationProtocols, ",") {
		if protocol = strings.TrimSpace(protocol); protocol != "" && !slices.Contains(of.GetApplicationProtocols(), protocol) {
			return false
		}
	}
	return true
}

// TouchesRoutes reports whether a patch may change a route configuration of this name.
func (p *Patch) TouchesRoutes(name string, c Context) bool {
	if !p.ofRoutes() || !p.In(c) {
		return false
	}
	m := p.Match.GetRouteConfiguration()
	if m.GetName() != "" && m.GetName() != name {
		return false
	}
	port, portName, gateway := uint32(0), "", ""
	switch c {
	case Gateway:
		port, portName, gateway = gatewayRoutes(name)
	case Inbound:
		if k, ok := cluster.ParseName(name); ok {
			port = k.Port
		}
	default:
		n, _ := strconv.ParseUint(name[strings.LastIndexAny(name, ":_")+1:], 10, 16) // "PORT", "HOST:PORT" or "ADDRESS_PORT"
		port = uint32(n)
	}
	return (m.GetPortNumber() == 0 || m.GetPortNumber() == port || c == Gateway && slices.Contains(p.Listening, port)) && (c != Gateway ||
		(m.GetPortName() == "" || m.GetPortName() == portName) && (m.GetGateway() == "" || m.GetGateway() == gateway))
}

// gatewayRoutes returns what the name of a router's route configuration says: "http.PORT" or
// "https.PORT.PORT-NAME.GATEWAY.NAMESPACE". The gateway is "NAMESPACE/GATEWAY". [control-plane 1.12.4]
func gatewayRoutes(name string) (port uint32, portName, gateway string) {
	parts := strings.Split(name, ".")
	if len(parts) < 2 {
		return 0, "", ""
	}
	n, _ := strconv.ParseUint(parts[1], 10, 16)
	if parts[0] == "https" && len(parts) >= 5 {
		last := len(parts) - 1
		return uint32(n), parts[2], parts[last] + "/" + strings.Join(parts[3:last], ".")
	}
	return uint32(n), "", ""
}

// TouchesVirtualHost reports whether a patch may change a virtual host, given its name and that of its route configuration.
func (p *Patch) TouchesVirtualHost(routes, name string, c Context) bool {
	if !p.TouchesRoutes(routes, c) || p.ApplyTo == networking.EnvoyFilter_ROUTE_CONFIGURATION || p.ApplyTo == networking.EnvoyFilter_VIRTUAL_HOST && p.Operation == add {
		return false
	}
	want := p.Match.GetRouteConfiguration().GetVhost().GetName()
	return want == "" || want == name
}

// matchesHost reports whether a patch's match is for a virtual host of a route configuration that it matches.
func (p *Patch) matchesHost(h *routev3.VirtualHost) bool {
	m := p.Match.GetRouteConfiguration().GetVhost()
	return (m.GetName() == "" || m.GetName() == h.Name) && (m.GetDomainName() == "" || slices.Contains(h.Domains, m.GetDomainName()))
}

// matchesRoute reports whether a patch's match is for a route of a virtual host that it matches.
func (p *Patch) matchesRoute(r *routev3.Route) bool {
	m := p.Match.GetRouteConfiguration().GetVhost().GetRoute()
	if m.GetName() != "" && m.GetName() != r.Name {
		return false
	}
	switch m.GetAction() {
	case networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch_ROUTE:
		return r.GetRoute() != nil
	case networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch_REDIRECT:
		return r.GetRedirect() != nil
	case networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch_DIRECT_RESPONSE:
		return r.GetDirectResponse() != nil
	}
	return true
}
