package compile

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/proxyless"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/route"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// A gRPC library asks for what it uses, by name. A client asks for the listener with the name that it dials, "host:port", which
// names a route configuration of that port, which names clusters. A server asks for the listener of the address that it listens
// at. [control-plane 1.6.12]

// apiNames are the resources that gRPC clients have of a host besides its clusters. Own are the listeners with a name that only
// clients in the service's namespace have.
type apiNames struct {
	listeners, own, routes []string
}

// apiNames returns the resources of a host in a scope.
func (c *Compiler) apiNames(r *incr.Reader, k scopeHost) (out apiNames) {
	s := c.model.Service(r, k.scope, k.host)
	if s == nil || strings.HasPrefix(s.Host, "*") {
		return apiNames{} // nobody dials a wildcard
	}
	forms := []string{s.Host}
	own := ""
	if s.Source.Kubernetes {
		for _, form := range []string{s.Name + "." + s.Namespace + ".svc", s.Name + "." + s.Namespace} {
			if c.model.Service(r, k.scope, form) == nil {
				forms = append(forms, form)
			}
		}
		if s.Namespace == k.scope.Value().Namespace && c.model.Service(r, k.scope, s.Name) == nil {
			own = s.Name
		}
	}
	for _, p := range s.Ports {
		if p.Protocol == mesh.UDP {
			continue
		}
		number := strconv.FormatUint(uint64(p.Number), 10)
		for _, form := range forms {
			out.listeners = append(out.listeners, form+":"+number)
		}
		if own != "" {
			out.own = append(out.own, own+":"+number)
		}
		out.routes = append(out.routes, cluster.Name(cluster.Outbound, p.Number, "", s.Host))
	}
	return out
}

// appendAPI adds the listeners and routes of a host.
func appendAPI(to []Key, s mesh.ScopeID, n apiNames) []Key {
	for _, name := range slices.Concat(n.listeners, n.own) {
		to = append(to, Key{Kind: ListenerAPI, Scope: s, Name: name})
	}
	for _, name := range n.routes {
		to = append(to, Key{Kind: RouteAPI, Scope: s, Name: name})
	}
	return to
}

// proxylessNames returns the resources of a gRPC client's scope without base, without locations.
func (c *Compiler) proxylessNames(r *incr.Reader, s mesh.ScopeID) (out []Key) {
	hosts := scopeHosts(s, c.model.Visible(r, s))
	for i, names := range c.inner.clusters.OfAll(r, hosts) {
		out = appendClusters(out, hosts[i], names)
	}
	for _, names := range c.inner.api.OfAll(r, hosts) {
		out = appendAPI(out, s, names)
	}
	return out
}

// deriveProxyless adds what a gRPC client's derived scope has of its own, and lacks, besides clusters.
func (c *Compiler) deriveProxyless(r *incr.Reader, s mesh.ScopeID, d model.Difference, out *derivation) {
	base, _ := c.model.Base(s)
	for _, host := range d.Services {
		out.own = appendAPI(out.own, s, c.inner.api.Of(r, scopeHost{s, host}))
		out.hidden = appendAPI(out.hidden, base, c.inner.api.Of(r, scopeHost{base, host}))
		if full := c.shortened(host); full != "" && !has(d.Services, full) {
			// Where host is a service, it is not a short form of another.
			out.own = appendAPI(out.own, s, apiNames{listeners: c.inner.api.Of(r, scopeHost{s, full}).listeners})
			out.hidden = appendAPI(out.hidden, base, apiNames{listeners: c.inner.api.Of(r, scopeHost{base, full}).listeners})
		}
	}
	for _, host := range d.Routes {
		if !has(d.Services, host) {
			out.own = appendAPI(out.own, s, apiNames{routes: c.inner.api.Of(r, scopeHost{s, host}).routes})
		}
	}
	for _, host := range d.Named {
		if !has(d.Services, host) {
			out.own = appendAPI(out.own, s, apiNames{own: c.inner.api.Of(r, scopeHost{s, host}).own})
		}
	}
}

// shortened returns the host of the Kubernetes service of which host, NAME.NAMESPACE or NAME.NAMESPACE.svc, is a short form;
// empty if it cannot be one.
func (c *Compiler) shortened(host string) string {
	short := strings.TrimSuffix(host, ".svc")
	if strings.Count(short, ".") != 1 {
		return ""
	}
	return short + ".svc." + c.model.Domain()
}

// hostOfAPI returns the host and the port of a listener's name; false if the scope sees no such service.
func (c *Compiler) hostOfAPI(r *incr.Reader, k Key) (*model.Service, uint32, bool) {
	i := strings.LastIndexByte(k.Name, ':')
	name := k.Name[:i]
	port, err := strconv.ParseUint(k.Name[i+1:], 10, 16)
	if err != nil {
		panic("compile: gRPC listener " + k.Name + " has no port") // apiNames makes the names
	}
	domain := c.model.Domain()
	full := name + "." + k.Scope.Value().Namespace + ".svc." + domain
	switch short := strings.TrimSuffix(name, ".svc"); strings.Count(name, ".") {
	case 1, 2:
		full = short + ".svc." + domain
	}
	for _, host := range []string{name, full} {
		if s := c.model.Service(r, k.Scope, host); s != nil {
			return s, uint32(port), true
		}
	}
	return nil, 0, false
}

// listenerAPI returns what a gRPC client dials.
func (c *Compiler) listenerAPI(r *incr.Reader, k Key) []byte {
	s, port, ok := c.hostOfAPI(r, k)
	if !ok {
		return nil
	}
	return marshal.MustEncodedAny(proxyless.ClientListener(k.Name, cluster.Name(cluster.Outbound, port, "", s.Host)))
}

// routeAPI returns the routes of one port of a service.
func (c *Compiler) routeAPI(r *incr.Reader, k Key) []byte {
	n, _ := cluster.ParseName(k.Name)
	s := c.model.Service(r, k.Scope, n.Host)
	if s == nil {
		return nil
	}
	m := c.model.Mesh(r)
	resolve := c.resolver(r, k.Scope, n.Port)
	var routes []*routev3.Route
	if v := c.model.VirtualService(r, k.Scope, n.Host); v != nil && len(v.Spec.Http) > 0 {
		routes = route.Build(route.Input{
			Rule: route.Rule{Namespace: v.Namespace, Name: v.Name, Spec: c.model.Routes(r, v)},
			Port: n.Port, Domain: c.model.Domain(), ClientNamespace: k.Scope.Value().Namespace,
			SourceMatch: func(labels map[string]string) bool { return model.Selects(k.Scope.Value(), labels) },
			Destination: resolve, Mesh: m, Caps: mesh.Fault,
		})
	}
	if len(routes) == 0 {
		routes = []*routev3.Route{route.Default(n.Host, n.Port, resolve(n.Host, n.Port, ""), m, mesh.Fault)}
	}
	return marshal.MustEncodedAny(proxyless.Routes(k.Name, routes))
}

// proxylessDiscovery returns where a gRPC client's cluster has its endpoints: from EDS, or from DNS, by a name in the cluster. It
// has no connection whose destination it could use, so that such services have their endpoints from EDS, too.
func proxylessDiscovery(s *model.Service, p *networking.TrafficPolicy) (eds, inline bool) {
	switch resolution(mesh.Sidecar, s, p) {
	case cluster.StrictDNS, cluster.LogicalDNS:
		return false, true
	case cluster.EDS, cluster.OriginalDst, cluster.Dynamic:
		if s.Resolution == model.DNS || s.Resolution == model.DNSRoundRobin {
			return false, true // load balancer PASSTHROUGH of a service with names
		}
	}
	return true, false
}

// proxylessCluster returns a cluster of a gRPC client.
func (c *Compiler) proxylessCluster(r *incr.Reader, k Key, n cluster.Key, s *model.Service, p *networking.TrafficPolicy) []byte {
	m := c.model.Mesh(r)
	in := proxyless.Cluster{
		Name: k.Name, Policy: p, SANs: c.model.Accounts(r, s.Key), SNI: cluster.SNI(n.Port, n.Subset, n.Host), EDS: k.EDS,
		AutoMTLS: k.Scope.Value().Caps.Has(mesh.ProxylessCertificates) && m.GetEnableAutoMtls().GetValue() && !s.External &&
			p.GetTls() == nil && c.inner.proxylessMutual.Of(r, servicePortKey{s.Key, n.Port}),
	}
	if !k.EDS {
		in.Endpoints = c.endpointsOf(r, endpointsInput{
			service: s, port: n.Port, labels: subsetLabels(c.model.DestinationRule(r, k.Scope, n.Host), n.Subset),
		})
	}
	out := proxyless.BuildCluster(in)
	if out == nil {
		return nil
	}
	return marshal.MustEncodedAny(out)
}

// allMutualProxyless reports whether a service has endpoints and all of them accept the mutual TLS of a gRPC client, which offers
// no ALPN of the mesh. A sidecar in mode PERMISSIVE takes that for the mesh's only where the port is declared as HTTP; at other
// ports it may be the application's. A client has one TLS setting for all endpoints of a cluster.
func (c *Compiler) allMutualProxyless(r *incr.Reader, k servicePortKey) bool {
	s, ok := c.model.JoinedRow(r, k.service)
	if !ok {
		return false
	}
	port, ok := s.PortOf(k.port)
	if !ok {
		return false
	}
	some := false
	for _, i := range c.model.Instances(r, s.Key) {
		target, ok := i.Ports[k.port]
		if !ok {
			continue
		}
		mode := c.model.ModesFor(r, i.Namespace, i.Labels).Of(target)
		if !i.TLS || mode == mesh.Disable || mode != mesh.Strict && !port.Protocol.IsHTTP() {
			return false
		}
		some = true
	}
	return some
}

// serverNames returns the listeners of a workload's gRPC servers: of each of its ports at each address at which a server may
// listen.
func serverNames(l Layer) (out []Key) {
	w := l.Workload.Value()
	addresses := []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	for _, a := range strings.Split(w.Addresses, ",") {
		if ip, err := netip.ParseAddr(a); err == nil {
			addresses = append(addresses, ip)
		}
	}
	for _, p := range model.InboundPorts(w) {
		for _, a := range addresses {
			name := mesh.ProxylessListenerPrefix + netip.AddrPortFrom(a, uint16(p.Target)).String()
			out = append(out, Key{Kind: ListenerServer, Scope: l.Scope, Workload: l.Workload, Name: name})
		}
	}
	return out
}

// listenerServer returns the listener of a gRPC server. A server has one mode at a time: in mode PERMISSIVE it is mutual TLS if
// the workload's label says so, since clients then use that.
func (c *Compiler) listenerServer(r *incr.Reader, k Key) []byte {
	at, err := netip.ParseAddrPort(strings.TrimPrefix(k.Name, mesh.ProxylessListenerPrefix))
	if err != nil {
		return nil
	}
	w := k.Workload.Value()
	modes := c.model.ModesOf(r, w.Namespace, strings.Fields(w.Policies))
	modes.Closed = modes.Closed || c.restricted(r, w) // a library cannot evaluate all rules
	mode := modes.Of(uint32(at.Port()))
	return marshal.MustEncodedAny(proxyless.ServerListener(proxyless.Server{
		Name: k.Name, Address: at.Addr().String(), Port: uint32(at.Port()), Closed: modes.Closed,
		Mutual: modes.Closed || mode == mesh.Strict || mode == mesh.Permissive && w.Mutual,
	}))
}
