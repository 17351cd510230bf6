package compile

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/listener"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/route"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// A router has the listeners of the Gateways that select it, the routes of the VirtualServices that are bound to these,
// and only the clusters that its routes name:
//
//	Gateways ─▶ router ─▶ gateway routes ─▶ host of a gateway ─▶ gateway host ─▶ route
//	                 └──▶ gateway plan ─▶ listener                     └─▶ clusters of a host ─▶ router names
//
// [control-plane 1.9.1–1.9.10, 1.12.6, 1.2.35]

// gatewayRoute is one route configuration of a router.
type gatewayRoute struct {
	name string
	// port is the one that clients use, which routes match.
	port uint32
	// tls is set if clients use TLS.
	tls bool
	// quic is set if clients may use HTTP/3 at the port.
	quic  bool
	hosts []gatewayHost // sorted by host
}

// gatewayHost is one virtual host of a gatewayRoute.
type gatewayHost struct {
	host string
	// toHTTPS is set if requests are redirected to HTTPS.
	toHTTPS bool
	// bound are the VirtualServices with routes for the host, oldest first.
	bound []boundRule
	// attached are the keys of the routes of the Gateway API for the host, oldest first.
	attached []string
	// ingress is what is served of Ingresses.
	ingress model.IngressHost
	// misdirected is set if requests belong to another listener of the port and get 421; bare if there are no routes, and requests get 404.
	misdirected, bare bool
}

// boundRule is a VirtualService and the Gateways of a route configuration that it is bound to.
type boundRule struct {
	key      string
	gateways []string // sorted
}

// hostRoutes is an encoded virtual host of a router, and the clusters that its routes name, sorted.
type hostRoutes struct {
	body     []byte
	clusters []string
}

// gatewayRouteName returns the name of the route configuration of a server; "" if it has none. Servers of HTTP without TLS share
// the one of their listener.
func gatewayRouteName(p model.RouterPort, s model.Server) string {
	name := ""
	switch {
	case p.Kind == mesh.ServesHTTP:
		name = "http." + strconv.FormatUint(uint64(p.Listen), 10)
	case p.Kind == mesh.ServesTLS && s.EndsHTTPS():
		name = fmt.Sprintf("https.%d.%s.%s.%s", s.Port, s.Spec.GetPort().GetName(), s.Gateway.Name, s.Gateway.Namespace)
	default:
		return ""
	}
	if p.Bind != "" {
		name += "." + p.Bind
	}
	return name
}

// gatewayListenerName returns the name of a router's listener.
func gatewayListenerName(p model.RouterPort, caps mesh.Capability) string {
	name := cmp.Or(p.Bind, listener.Wildcard(caps)) + "_" + strconv.FormatUint(uint64(p.Listen), 10)
	if p.Kind == mesh.ServesUDP || p.Kind == mesh.ServesQUIC {
		name = "udp_" + name
	}
	return name
}

// gatewayRoutes lists the route configurations of a router, sorted by name.
func (c *Compiler) gatewayRoutes(r *incr.Reader, s mesh.ScopeID) (out []gatewayRoute) {
	router := c.model.Router(r, s)
	for _, p := range router.Ports {
		servers := map[string][]model.Server{}
		for _, one := range p.Servers {
			if name := gatewayRouteName(p, one); name != "" {
				servers[name] = append(servers[name], one)
			}
		}
		for _, name := range sortedKeys(servers) {
			one := c.gatewayRoute(r, s, name, p, servers[name])
			one.quic = c.quic(s, c.topology(r, s)) && p.Kind == mesh.ServesTLS && router.ServesQUIC(servers[name][0])
			out = append(out, one)
		}
	}
	slices.SortFunc(out, func(a, b gatewayRoute) int { return strings.Compare(a.name, b.name) })
	return out
}

// quic reports whether routers serve HTTP/3. Behind proxies that say who a client is there is none: datagrams do not say it.
func (c *Compiler) quic(s mesh.ScopeID, t mesh.Topology) bool {
	return c.opts.HTTP3 && s.Value().Caps.Has(mesh.QUIC) && !s.Value().Closed && !t.ProxyProtocol
}

// gatewayRoute finds the VirtualServices of each host of a router's servers.
func (c *Compiler) gatewayRoute(r *incr.Reader, s mesh.ScopeID, name string, p model.RouterPort, servers []model.Server) gatewayRoute {
	out := gatewayRoute{name: name, port: servers[0].Port, tls: p.Kind == mesh.ServesTLS}
	type found struct {
		model.Bound
		gateways []string
	}
	hosts := map[string]map[string]*found{} // by host and key of the VirtualService
	toHTTPS := map[string]bool{}
	for _, server := range servers {
		if server.Spec.GetTls().GetHttpsRedirect() {
			for _, h := range server.Names() {
				hosts[h], toHTTPS[h] = map[string]*found{}, true
			}
		}
	}
	for _, server := range servers {
		for _, v := range c.model.Bound(r, s, server.Key()) {
			for _, h := range server.Hosts(v.Namespace, v.Hosts) {
				if hosts[h] == nil {
					hosts[h] = map[string]*found{}
				}
				if hosts[h][v.Key()] == nil {
					hosts[h][v.Key()] = &found{Bound: v}
				}
				f := hosts[h][v.Key()]
				f.gateways = sortedSet(append(f.gateways, server.Key()))
				toHTTPS[h] = toHTTPS[h] || server.Spec.GetTls().GetHttpsRedirect()
			}
		}
	}
	attached := c.attachedByHost(r, p, servers)
	for h := range attached {
		if hosts[h] == nil {
			hosts[h] = map[string]*found{}
		}
	}
	ingresses := c.model.IngressHosts(servers)
	for h := range ingresses {
		if hosts[h] == nil {
			hosts[h] = map[string]*found{}
		}
	}
	for _, h := range sortedKeys(hosts) {
		all := make([]*found, 0, len(hosts[h]))
		for _, f := range hosts[h] {
			all = append(all, f)
		}
		slices.SortFunc(all, func(a, b *found) int {
			if a.Older(b.Row) {
				return -1
			}
			return 1
		})
		one := gatewayHost{host: h, toHTTPS: toHTTPS[h], attached: attached[h], ingress: ingresses[h]}
		for _, f := range all {
			one.bound = append(one.bound, boundRule{f.Key(), f.gateways})
		}
		out.hosts = append(out.hosts, one)
	}
	return withMisdirected(out, p, servers)
}

// withMisdirected adds the hosts of other listeners to those of a route configuration of a listener of the Gateway API, which has it alone.
func withMisdirected(t gatewayRoute, p model.RouterPort, servers []model.Server) gatewayRoute {
	if len(servers) != 1 {
		return t
	}
	elsewhere, own := servers[0].Misdirected(p)
	add := func(h gatewayHost) {
		i, has := slices.BinarySearchFunc(t.hosts, h.host, func(a gatewayHost, n string) int { return strings.Compare(a.host, n) })
		if !has {
			t.hosts = slices.Insert(t.hosts, i, h)
		}
	}
	for _, h := range elsewhere {
		add(gatewayHost{host: h, misdirected: true})
	}
	if own != "" {
		add(gatewayHost{host: own, bare: true})
	}
	return t
}

// gatewayRouteNamed returns a route configuration of a router, false if it has none of that name.
func (c *Compiler) gatewayRouteNamed(r *incr.Reader, k scopeName) (gatewayRoute, bool) {
	list := c.inner.gatewayRoutes.Of(r, k.scope)
	i, ok := slices.BinarySearchFunc(list, k.name, func(t gatewayRoute, n string) int { return strings.Compare(t.name, n) })
	if !ok {
		return gatewayRoute{}, false
	}
	return list[i], true
}

// gatewayHostNamed is one host of a route configuration, with its port; without VirtualServices if there is none.
type gatewayHostNamed struct {
	gatewayHost
	port      uint32
	tls, quic bool
}

func (c *Compiler) gatewayHostNamed(r *incr.Reader, k scopeNameHost) gatewayHostNamed {
	t, _ := c.gatewayRouteNamed(r, scopeName{k.scope, k.name})
	i, ok := slices.BinarySearchFunc(t.hosts, k.host, func(h gatewayHost, n string) int { return strings.Compare(h.host, n) })
	if !ok {
		return gatewayHostNamed{}
	}
	return gatewayHostNamed{t.hosts[i], t.port, t.tls, t.quic}
}

// gatewayHost translates the VirtualServices of one host of a router. Routes that match all requests come last, so that
// those of other VirtualServices are reached. [control-plane 1.7.29]
func (c *Compiler) gatewayHost(r *incr.Reader, k scopeNameHost) hostRoutes {
	h := c.inner.gatewayHostNamed.Of(r, k)
	if h.misdirected || h.bare {
		host := route.VirtualHost(route.HostName(k.host, h.port), []string{k.host}, nil)
		if h.misdirected {
			host.Routes = []*routev3.Route{route.Misdirected()}
		}
		return hostRoutes{body: marshal.Must(host)}
	}
	resolve, m := c.resolver(r, k.scope, h.port), c.model.Mesh(r)
	var routes, last []*routev3.Route
	for _, b := range h.bound {
		v := c.model.VirtualServiceRow(r, b.key)
		if v == nil {
			continue
		}
		for _, one := range route.Build(route.Input{
			Rule: route.Rule{Namespace: v.Namespace, Name: v.Name, Spec: c.model.Routes(r, v)},
			Port: h.port, Domain: c.model.Domain(), ClientNamespace: k.scope.Value().Namespace, Gateways: b.gateways,
			SourceMatch: func(labels map[string]string) bool { return model.Selects(k.scope.Value(), labels) },
			Destination: resolve, Mesh: m, Caps: k.scope.Value().Caps,
		}) {
			if route.MatchesAll(one) {
				last = append(last, one)
			} else {
				routes = append(routes, one)
			}
		}
	}
	ingress := c.ingressRoutes(r, k.scope, h)
	if i := slices.IndexFunc(ingress, route.MatchesAll); i >= 0 {
		ingress, last = ingress[:i], append(last, ingress[i]) // none behind it is reached
	}
	routes = append(routes, ingress...)
	routes = slices.Concat(routes, c.attachedRoutes(r, k.scope, h), last)
	if len(routes) == 0 && !h.toHTTPS {
		return hostRoutes{}
	}
	host := route.VirtualHost(route.HostName(k.host, h.port), []string{k.host}, routes)
	if h.toHTTPS {
		host.RequireTls = routev3.VirtualHost_ALL
	}
	if h.quic {
		host.ResponseHeadersToAdd = route.AltSvc(h.port)
	}
	return hostRoutes{body: marshal.Must(host), clusters: route.Clusters(routes)}
}

// gatewayClusters returns the clusters that the routes of one host of a router name. Unlike gatewayHost it has the same
// result after most changes of routes.
func (c *Compiler) gatewayClusters(r *incr.Reader, k scopeNameHost) []string {
	return c.inner.gatewayHost.Of(r, k).clusters
}

func gatewayHostKeys(s mesh.ScopeID, t gatewayRoute) []scopeNameHost {
	out := make([]scopeNameHost, len(t.hosts))
	for i, h := range t.hosts {
		out[i] = scopeNameHost{s, t.name, h.host}
	}
	return out
}

// routerNames returns the resources of a router, without locations.
func (c *Compiler) routerNames(r *incr.Reader, s mesh.ScopeID) []Key {
	out := []Key{{Kind: Cluster, Scope: s, Name: mesh.BlackHoleCluster}}
	var named []string
	for _, t := range c.inner.gatewayRoutes.Of(r, s) {
		out = append(out, Key{Kind: Route, Scope: s, Name: t.name})
		for _, list := range c.inner.gatewayClusters.OfAll(r, gatewayHostKeys(s, t)) {
			named = append(named, list...)
		}
	}
	for _, p := range c.model.Router(r, s).Ports {
		if p.Kind == mesh.ServesPassthrough {
			continue // appendPassthrough adds it
		}
		name := gatewayListenerName(p, s.Value().Caps)
		plan := c.inner.gatewayPlan.Of(r, scopeName{s, name})
		if len(plan.Chains) > 0 {
			out = append(out, Key{Kind: Listener, Scope: s, Name: name})
			named = append(named, plan.Clusters()...)
		}
	}
	named = append(named, strings.Fields(s.Value().PatchClusters)...)
	for _, l := range c.clientLogs(r, s).List {
		named = append(named, l.Cluster)
	}
	named = append(named, c.clientTracing(r, s).Clusters()...)
	security := c.inner.routerSecurity.Of(r, s)
	named = append(named, security.Cluster)
	for _, k := range security.Keys {
		named = append(named, k.Cluster)
	}
	for _, name := range sortedSet(named) {
		n, ok := cluster.ParseName(name)
		if !ok {
			continue
		}
		h := c.ownerOf(r, scopeHost{s, n.Host})
		for _, one := range c.inner.clusters.Of(r, h) {
			if one.name == name {
				out = appendClusters(out, scopeHost{s, n.Host}, []clusterName{one})
			}
		}
	}
	return c.appendPassthrough(r, out, s)
}

// ownerOf returns the key with which a host's clusters are listed: that of the base unless the scopes differ in the host.
func (c *Compiler) ownerOf(r *incr.Reader, k scopeHost) scopeHost {
	if base, derived := c.model.Base(k.scope); derived && !has(c.model.Difference(r, k.scope).Services, k.host) {
		return scopeHost{base, k.host}
	}
	return k
}

// gatewayRouteConfig returns a route configuration of a router. One without routes has a virtual host that answers 404 to
// everything.
func (c *Compiler) gatewayRouteConfig(r *incr.Reader, k Key) []byte {
	t, ok := c.gatewayRouteNamed(r, scopeName{k.Scope, k.Name})
	if !ok {
		return nil
	}
	c.model.Router(r, k.Scope) // records what the routes are made of, which the index does not say
	var encoded [][]byte
	for _, h := range c.inner.gatewayHost.OfAll(r, gatewayHostKeys(k.Scope, t)) {
		if h.body != nil {
			encoded = append(encoded, h.body)
		}
	}
	if len(encoded) == 0 {
		encoded = [][]byte{marshal.Must(&routev3.VirtualHost{Name: route.HostName("blackhole", t.port), Domains: []string{"*"}})}
	}
	return marshal.EncodedAny((*routev3.RouteConfiguration)(nil), route.Join(route.Frame(k.Name), encoded))
}

// routerListener returns one listener of a router.
func (c *Compiler) routerListener(r *incr.Reader, k Key, env listener.Env) []byte {
	if plan := c.inner.gatewayPlan.Of(r, scopeName{k.Scope, k.Name}); len(plan.Chains) > 0 {
		s := k.Scope.Value()
		plan.Authorization = c.inner.routerSecurity.Of(r, k.Scope)
		plan.Closed = s.Closed || !s.Caps.Has(plan.Authorization.Needs)
		return marshal.MustEncodedAny(listener.BuildGateway(plan, env))
	}
	return c.passthroughListener(r, k, env)
}
