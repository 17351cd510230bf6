package compile

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/route"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// routeHosts is one route configuration: its RDS name and the hosts in it, sorted.
type routeHosts struct {
	Name  string
	Port  uint32
	Hosts []string
	// Own is set if the listener belongs to one service, so that its only host matches any name.
	Own bool
	// Binds is set if clients connect to the listener itself: what is for no host has no destination.
	Binds bool
}

// extraRoutes is the route configuration with the hosts of VirtualServices that no service has: that of port 80, as in Istio.
// A connection to such a host at another port is one to a host that the mesh does not know.
const extraRoutes = "80"

// routeHosts returns the route configurations of a scope, sorted by name.
func (c *Compiler) routeHosts(r *incr.Reader, s mesh.ScopeID) []routeHosts {
	byName := map[string]*routeHosts{}
	visible := c.model.Visible(r, s)
	declared := c.declared(r, s, visible)
	for _, ref := range visible {
		for _, p := range c.inner.plan.Of(r, scopeHost{s, ref.Host}) {
			if p.routes == "" || declared[p.name] && !p.declared {
				continue
			}
			t := byName[p.routes]
			if t == nil {
				t = &routeHosts{Name: p.routes, Port: p.port, Own: p.own, Binds: p.binds}
				byName[p.routes] = t
			}
			t.Hosts = append(t.Hosts, p.host)
		}
	}
	extra := c.model.ExtraHosts(r, s)
	out := make([]routeHosts, 0, len(byName))
	for _, t := range byName {
		if t.Name == extraRoutes {
			t.Hosts = append(t.Hosts, extra...)
		}
		slices.Sort(t.Hosts)
		t.Hosts = slices.Compact(t.Hosts)
		out = append(out, *t)
	}
	slices.SortFunc(out, func(a, b routeHosts) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// routesNamed returns a route configuration of a scope without base, false if there is none.
func (c *Compiler) routesNamed(r *incr.Reader, k scopeName) (routeHosts, bool) {
	t := c.inner.routeNamed.Of(r, k)
	return t, t.Name != ""
}

// routeHead is routesNamed without the hosts; the zero value if there is no such route configuration.
func (c *Compiler) routeHead(r *incr.Reader, k scopeName) routeHosts {
	t := c.routeNamed(r, k)
	t.Hosts = nil
	return t
}

func (c *Compiler) routeNamed(r *incr.Reader, k scopeName) routeHosts {
	list := c.inner.routes.Of(r, k.scope)
	i, ok := slices.BinarySearchFunc(list, k.name, func(t routeHosts, n string) int { return cmp.Compare(t.Name, n) })
	if !ok {
		return routeHosts{}
	}
	return list[i]
}

// hostDomains has the domains of one host of a route configuration, and those that it would have if no
// other host had them.
type hostDomains struct {
	host            string
	domains, claims []string
}

// domains returns the domains of every host of a route configuration. Each domain belongs to one host
// only, since Envoy rejects the whole configuration otherwise; fully qualified names have priority over
// short forms and addresses.
func (c *Compiler) domains(r *incr.Reader, k scopeName) []hostDomains {
	t, ok := c.routesNamed(r, k)
	if !ok {
		return nil
	}
	out := make([]hostDomains, 0, len(t.Hosts))
	for _, host := range t.Hosts {
		h := hostDomains{host: host}
		if !t.Own {
			h.claims = c.claims(r, k.scope, host)
		}
		out = append(out, h)
	}
	assignDomains(t.Own, out)
	return out
}

// assignDomains sets the domains of all hosts of a route configuration, which are sorted. Of one that
// belongs to a single service the only host matches any name.
func assignDomains(single bool, hosts []hostDomains) {
	if single {
		hosts[0].domains = []string{"*"}
		return
	}
	used := make(map[string]bool, 4*len(hosts))
	used["*"] = true
	for _, h := range hosts {
		used[h.host] = true
	}
	for i := range hosts {
		h := &hosts[i]
		h.domains = nil
		for _, name := range h.claims {
			if (name == h.host || !used[name]) && !slices.Contains(h.domains, name) {
				h.domains = append(h.domains, name)
			}
			used[name] = true
		}
		if len(h.domains) == len(h.claims) {
			h.domains = h.claims
		}
	}
}

func (c *Compiler) hostDomains(r *incr.Reader, k scopeNameHost) []string {
	rule := c.inner.domains
	if _, derived := c.model.Base(k.scope); derived {
		rule = c.inner.ownDomains
	}
	list := rule.Of(r, scopeName{k.scope, k.name}) // sorted by host
	i, ok := slices.BinarySearchFunc(list, k.host, func(d hostDomains, h string) int { return cmp.Compare(d.host, h) })
	if !ok {
		return nil
	}
	c.model.Service(r, k.scope, k.host) // records where the domains come from, which the index does not say
	return list[i].domains
}

// virtualHost returns one encoded virtual host of a route configuration.
func (c *Compiler) virtualHost(r *incr.Reader, k scopeNameHost) []byte {
	domains := c.inner.hostDomains.Of(r, k)
	if len(domains) == 0 {
		return nil
	}
	port := portOf(k.name)
	if strings.HasPrefix(k.name, mesh.UnixSocket) {
		port = c.socketPort(r, k)
	}
	m := c.model.Mesh(r)
	resolve := c.resolver(r, k.scope, port)
	var routes []*routev3.Route
	if v := c.model.VirtualService(r, k.scope, k.host); v != nil && len(v.Spec.Http) > 0 {
		routes = route.Build(route.Input{
			Rule: route.Rule{Namespace: v.Namespace, Name: v.Name, Spec: c.model.Routes(r, v)},
			Port: port, Domain: c.model.Domain(), ClientNamespace: k.scope.Value().Namespace,
			SourceMatch: func(labels map[string]string) bool { return model.Selects(k.scope.Value(), labels) },
			Destination: resolve, Mesh: m, Caps: k.scope.Value().Caps,
		})
	}
	if keys := c.model.MeshRoutes(r, k.scope, k.host, port); len(routes) == 0 && len(keys) > 0 {
		routes = c.kubernetesRoutes(r, k.scope, keys, route.KubernetesInput{Port: port})
		return marshal.Must(route.VirtualHost(route.HostName(k.host, port), domains, routes))
	}
	if len(routes) == 0 {
		if !c.model.Listens(r, k.scope, k.host) {
			return nil // the host is only in a VirtualService, without a route for this client and port
		}
		routes = []*routev3.Route{route.Default(k.host, port, resolve(k.host, port, ""), m, k.scope.Value().Caps)}
	}
	return marshal.Must(route.VirtualHost(route.HostName(k.host, port), domains, routes))
}

// portOf returns the port in the name of a route configuration, "PORT", "host:PORT" or "ADDRESS_PORT".
func portOf(name string) uint32 {
	if i := strings.LastIndexAny(name, ":_"); i >= 0 {
		name = name[i+1:]
	}
	n, _ := strconv.ParseUint(name, 10, 16)
	return uint32(n)
}

// resolver returns the function that resolves destinations of a scope's routes. A host that the scope
// does not see has no cluster, so that Envoy responds with 503.
func (c *Compiler) resolver(r *incr.Reader, s mesh.ScopeID, listenerPort uint32) route.Resolver {
	return func(host string, port uint32, subset string) route.Destination {
		svc := c.model.Service(r, s, host)
		if svc == nil {
			return route.Destination{}
		}
		if svc.IsAlias() {
			if to := c.model.Aliased(r, s, svc); to != nil {
				svc, host = to, to.Host
			}
		}
		if port == 0 {
			port = listenerPort
			if len(svc.Ports) == 1 {
				port = svc.Ports[0].Number
			}
		}
		p := c.policyOf(r, c.model.DestinationRule(r, s, host), subset, port)
		to, _ := svc.PortOf(port)
		tls := c.backendTLS(r, s, svc, to)
		return route.Destination{
			Cluster: cluster.Name(cluster.Outbound, port, subset, host),
			Dynamic: dynamicOf(svc, to),
			OwnALPN: tls != nil || cluster.OwnALPN(c.protocol(r, s, svc, to), p, c.model.Mesh(r)),
			Hash:    route.HashPolicies(p.GetLoadBalancer()),
			Session: c.sessionOf(s, svc),
		}
	}
}

// sessionOf returns how routes to a service keep sessions at one endpoint; nil if they do not.
func (c *Compiler) sessionOf(s mesh.ScopeID, svc *model.Service) *anypb.Any {
	if !c.opts.Sessions || !s.Value().Caps.Has(mesh.Sessions) || !svc.Sessions() {
		return nil
	}
	return route.Session(svc.Session.Cookie, svc.Session.Path, svc.Session.Header)
}

// route returns a route configuration with its virtual hosts, unless they are resources of their own.
func (c *Compiler) route(r *incr.Reader, k Key) Body {
	if k.Scope.Value().Role == mesh.Router {
		return whole(c.gatewayRouteConfig(r, k))
	}
	if k.SeparateHosts {
		frame := route.Frame(k.Name)
		frame.Vhds = route.SeparateHosts()
		return whole(marshal.EncodedAny((*routev3.RouteConfiguration)(nil), route.Join(frame, [][]byte{c.catchAllHost(r, k.Scope, k.Name, false)})))
	}
	return c.joinedRoutes(r, scopeName{k.Scope, k.Name})
}

// catchAllHost returns the encoded virtual host of a route configuration for requests to all other hosts.
func (c *Compiler) catchAllHost(r *incr.Reader, s mesh.ScopeID, name string, binds bool) []byte {
	port := portOf(name)
	if strings.HasPrefix(name, mesh.UnixSocket) {
		port = 0
	}
	return marshal.Must(route.CatchAll(c.catchAll(r, s, port, binds), s.Value().Caps))
}
