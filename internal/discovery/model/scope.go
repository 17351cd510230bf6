package model

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

// rules are the model's rules. Package compile reads them through the methods of Model.
type rules struct {
	instances *incr.Rule[string, []*Instance]
	accounts  *incr.Rule[string, []string]
	visible   *incr.Rule[mesh.ScopeID, []Ref]
	service   *incr.Rule[scopeHost, *Service]
	dest      *incr.Rule[scopeHost, *DestinationRule]
	virtual   *incr.Rule[scopeHost, *VirtualService]
	reach     *incr.Rule[string, reach]
	merged    *incr.Rule[string, *networking.VirtualService] // of VirtualServices that delegate
	extra     *incr.Rule[mesh.ScopeID, []string]
	egress    *incr.Rule[mesh.ScopeID, *egress]
	imported  *incr.Rule[mesh.ScopeID, []string] // of scopes with a Sidecar
	policies  *incr.Rule[string, []*PeerAuthentication]
	classify  *incr.Rule[ProxyKey, mesh.Class]
	// difference and differs are of scopes that have a base.
	difference *incr.Rule[mesh.ScopeID, Difference]
	differs    *incr.Rule[scopeHost, differing]
	claims     *incr.Rule[ProxyKey, string]
	hosts      *incr.Rule[ProxyKey, string]
	gateways   *incr.Rule[string, []NetworkGateway]        // of the key ""
	counts     *incr.Rule[string, bool]                    // of the key ""
	ingress    *incr.Rule[string, []object.GatewayAddress] // of the key ""
	// router and passthrough are of scopes with Gateways.
	router      *incr.Rule[mesh.ScopeID, Router]
	passthrough *incr.Rule[mesh.ScopeID, []PassthroughServer]
}

type scopeHost struct {
	scope mesh.ScopeID
	host  string
}

func (m *Model) derive(g *incr.Graph) {
	m.rules = rules{
		instances: incr.Derive(g, levelRow, "instances", m.instances),
		accounts:  incr.Derive(g, levelIndex, "accounts", m.accounts),
		egress:    incr.Derive(g, levelRow, "egress", m.egress),
		imported:  incr.Derive(g, levelIndex, "imported hosts", m.imported).AsIndex(),
		visible:   incr.Derive(g, levelScope, "visible services", m.visible).AsIndex(),
		service:   incr.Derive(g, levelScope, "service", m.service),
		dest:      incr.Derive(g, levelHost, "destination rule", m.dest),
		virtual:   incr.Derive(g, levelHost, "virtual service", m.virtual),
		reach:     incr.Derive(g, levelRow, "virtual service reach", m.reachOf),
		merged:    incr.Derive(g, levelRow, "routes with delegates", m.merged),
		extra:     incr.Derive(g, levelHost, "extra hosts", m.extraHosts).AsIndex(),
		policies:  incr.Derive(g, levelRow, "policies", m.policies).AsIndex(),
		classify:  incr.Derive(g, levelClassify, "class", m.class),
		claims:    incr.Derive(g, levelClassify, "claims", m.claims),
		hosts:     incr.Derive(g, levelClassify, "hosts of a proxy", m.hosts),
		gateways:  incr.Derive(g, levelRow, "network gateways", m.networkGateways),
		counts:    incr.Derive(g, levelRow, "whether the mesh has metrics", m.countsAnything),
		ingress:   incr.Derive(g, levelRow, "addresses of Ingresses", m.ingressAddresses),

		router:      incr.Derive(g, levelRow, "servers of a router", m.router),
		passthrough: incr.Derive(g, levelIndex, "passthrough servers", m.passthroughServers),

		difference: incr.Derive(g, levelDifference, "scope difference", m.difference).AsIndex(),
		differs:    incr.Derive(g, levelDiffers, "scope difference of a host", m.differs).AsIndex(),
	}
}

// Ref identifies a service that a scope sees: its host and the key of its row.
type Ref struct {
	Host, Key string
}

// Visible returns the services that a scope sees, sorted by host: those exported to its namespace and
// among the egress hosts of its Sidecar, and those that it imports. Of several rows for the same host, one in the scope's namespace
// has priority, then a Kubernetes Service, of its cluster if there is one, then the oldest. The scope must not have a
// base.
func (m *Model) Visible(r *incr.Reader, s mesh.ScopeID) []Ref { return m.rules.visible.Of(r, s) }

// Imports reports whether a scope sees a service only because routes of a VirtualService among the egress hosts of its Sidecar
// lead to it: there are clusters for it, and no listeners or routes. [control-plane 1.9.21]
func (m *Model) Imports(r *incr.Reader, s mesh.ScopeID, svc *Service) bool {
	return !m.egressOf(r, s).sees(svc.Namespace, svc.Host)
}

// Service returns the service of a host in a scope, nil if the scope sees none. Its key is that of the row with priority; it has what the
// others have that are one service with it.
func (m *Model) Service(r *incr.Reader, s mesh.ScopeID, host string) *Service {
	return m.rules.service.Of(r, scopeHost{m.serviceScope(r, s, host), host})
}

// DestinationRule returns the rule in force for a host in a scope, with merged subsets, nil if there is
// none.
func (m *Model) DestinationRule(r *incr.Reader, s mesh.ScopeID, host string) *DestinationRule {
	return m.rules.dest.Of(r, scopeHost{m.serviceScope(r, s, host), host})
}

// VirtualService returns the VirtualService in force for a host in a scope, nil if there is none.
func (m *Model) VirtualService(r *incr.Reader, s mesh.ScopeID, host string) *VirtualService {
	return m.rules.virtual.Of(r, scopeHost{m.routeScope(r, s, host), host})
}

// ExtraHosts returns the hosts of a scope's VirtualServices that have no listeners because of a service, sorted. The
// scope must not have a base.
func (m *Model) ExtraHosts(r *incr.Reader, s mesh.ScopeID) []string { return m.rules.extra.Of(r, s) }

// ServiceRow returns one row of a service by its key, if it exists.
func (m *Model) ServiceRow(r *incr.Reader, key string) (*Service, bool) {
	return incr.Get(r, m.tables.services, key)
}

// egress says what workloads with a Sidecar see.
type egress struct {
	everything               bool
	hosts                    []egressHost
	registryOnly, anyAllowed bool
	// proxy is where connections to unknown hosts go, the zero value for their destination.
	proxy EgressProxy
	// listeners are those of the Sidecar, with their hosts, if one of them has a port or address; else nil.
	listeners []Egress
}

type egressHost struct{ namespace, host string }

// unrestricted is the egress of scopes without a Sidecar.
var unrestricted = &egress{everything: true}

// egressOf returns the egress of a scope.
func (m *Model) egressOf(r *incr.Reader, s mesh.ScopeID) *egress {
	if s.Value().Sidecar == "" {
		return unrestricted
	}
	return m.rules.egress.Of(r, s)
}

func (m *Model) egress(r *incr.Reader, s mesh.ScopeID) *egress {
	row, ok := incr.Get(r, m.tables.sidecars, s.Value().Sidecar)
	if !ok || row.Spec == nil {
		return unrestricted
	}
	e := &egress{everything: len(row.Spec.Egress) == 0}
	own := false
	for _, l := range row.Spec.Egress {
		first := len(e.hosts)
		for _, h := range l.Hosts {
			ns, host, ok := strings.Cut(h, "/")
			if !ok {
				ns, host = "*", h
			}
			if ns == "." {
				ns = s.Value().Namespace
			}
			e.hosts = append(e.hosts, egressHost{ns, mesh.HostName(host)})
		}
		listener := egressListener(l, e.hosts[first:])
		own = own || listener.Port != 0 || listener.Bind != "" || listener.Binds
		e.listeners = append(e.listeners, listener)
	}
	if !own {
		e.listeners = nil
	}
	if p := row.Spec.OutboundTrafficPolicy; p != nil {
		switch p.Mode {
		case networking.OutboundTrafficPolicy_REGISTRY_ONLY:
			e.registryOnly = true
		case networking.OutboundTrafficPolicy_ALLOW_ANY:
			e.anyAllowed = true
			if to := p.EgressProxy; to != nil {
				e.proxy = EgressProxy{Host: mesh.FullHost(to.Host, row.Namespace, m.domain), Port: to.GetPort().GetNumber(), Subset: to.Subset}
			}
		default:
			panic(fmt.Sprintf("model: unknown outbound traffic policy %d", p.Mode)) // package config rejects it
		}
	}
	return e
}

func (e *egress) sees(namespace, host string) bool {
	return e.everything || seen(e.hosts, namespace, host)
}

func seen(hosts []egressHost, namespace, host string) bool {
	for _, h := range hosts {
		if (h.namespace == "*" || h.namespace == namespace) && hostMatches(h.host, host) {
			return true
		}
	}
	return false
}

// hostMatches reports whether a host, which may be a wildcard, matches a pattern.
func hostMatches(pattern, host string) bool {
	if pattern == "*" || pattern == host {
		return true
	}
	suffix, ok := strings.CutPrefix(pattern, "*")
	return ok && strings.HasSuffix(host, suffix)
}

// AllowAny reports whether proxies of a scope forward connections to hosts that the mesh does not know.
func (m *Model) AllowAny(r *incr.Reader, s mesh.ScopeID) bool {
	e := m.egressOf(r, s)
	if e.registryOnly || e.anyAllowed {
		return e.anyAllowed
	}
	return m.Mesh(r).GetOutboundTrafficPolicy().GetMode() != meshv1.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY
}

// DynamicDNS reports whether proxies of a scope resolve the names of hosts that the mesh does not know, which its Sidecar cannot say.
// [control-plane 1.4.6]
func (m *Model) DynamicDNS(r *incr.Reader, s mesh.ScopeID) bool {
	e := m.egressOf(r, s)
	return !e.registryOnly && !e.anyAllowed && m.Mesh(r).GetOutboundTrafficPolicy().GetMode() == meshv1.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY_DYNAMIC_DNS
}

func (m *Model) visible(r *incr.Reader, s mesh.ScopeID) []Ref {
	byDefault := m.Mesh(r).DefaultServiceExportTo
	e, client := m.egressOf(r, s), s.Value()
	best := map[string]*Service{}
	var imported []string
	if !e.everything {
		imported = m.rules.imported.Of(r, s)
	}
	for _, svc := range incr.In(r, m.tables.services, all) {
		if !mesh.Exported(svc.ExportTo, byDefault, svc.Namespace, client.Namespace) || !e.sees(svc.Namespace, svc.Host) && !listed(imported, svc.Host) {
			continue
		}
		if old := best[svc.Host]; old == nil || e.prefers(svc, old, client) {
			best[svc.Host] = svc
		}
	}
	out := make([]Ref, 0, len(best))
	for host, svc := range best {
		out = append(out, Ref{Host: host, Key: svc.Key})
	}
	slices.SortFunc(out, func(a, b Ref) int { return cmp.Compare(a.Host, b.Host) })
	return out
}

// prefers reports whether s has priority over o, a row for the same host: one among the egress hosts has it over one that is imported.
func (e *egress) prefers(s, o *Service, client mesh.Scope) bool {
	if a, b := e.sees(s.Namespace, s.Host), e.sees(o.Namespace, o.Host); a != b {
		return a
	}
	return s.before(o, client)
}

// before reports whether s has priority over o, a row for the same host.
func (s *Service) before(o *Service, client mesh.Scope) bool {
	if a, b := s.Namespace == client.Namespace, o.Namespace == client.Namespace; a != b {
		return a
	}
	if s.Source.Kubernetes != o.Source.Kubernetes {
		return s.Source.Kubernetes
	}
	if a, b := s.distance(client.Cluster), o.distance(client.Cluster); a != b {
		return a < b
	}
	if s.Age != o.Age || s.Row.Key() != o.Row.Key() {
		return s.Older(o.Row)
	}
	return s.Key < o.Key
}

// distance orders rows for the same host by their clusters: the client's, the control plane's, and others.
func (s *Service) distance(cluster string) int {
	switch s.Cluster {
	case cluster:
		return 0
	case "":
		return 1
	}
	return 2
}

func (m *Model) service(r *incr.Reader, k scopeHost) (best *Service) {
	byDefault := m.Mesh(r).DefaultServiceExportTo
	e, client := m.egressOf(r, k.scope), k.scope.Value()
	for _, s := range incr.In(r, m.tables.services, "host:"+k.host) {
		if !mesh.Exported(s.ExportTo, byDefault, s.Namespace, client.Namespace) || !e.sees(s.Namespace, s.Host) && !listed(m.rules.imported.Of(r, k.scope), s.Host) {
			continue
		}
		if best == nil || e.prefers(s, best, client) {
			best = s
		}
	}
	if best == nil {
		return nil
	}
	return m.joined(r, best)
}

// ServiceFrom returns the service of a host that proxies of a namespace use, whatever their Sidecar says; nil if there is none.
func (m *Model) ServiceFrom(r *incr.Reader, namespace, host string) (best *Service) {
	byDefault := m.Mesh(r).DefaultServiceExportTo
	for _, s := range incr.In(r, m.tables.services, "host:"+host) {
		if mesh.Exported(s.ExportTo, byDefault, s.Namespace, namespace) && (best == nil || s.before(best, mesh.Scope{Namespace: namespace})) {
			best = s
		}
	}
	if best == nil {
		return nil
	}
	return m.joined(r, best)
}

// imported returns the hosts that the routes of a scope's VirtualServices lead to, that of its egress proxy, and those of external authorizers,
// of collectors of traces and of keys of tokens, which listeners use whatever the Sidecar says, sorted. Envoy rejects a listener whose collector is no cluster.
// [control-plane 1.9.21, 1.10.13, 1.11.1]
func (m *Model) imported(r *incr.Reader, s mesh.ScopeID) (out []string) {
	if to := m.egressOf(r, s).proxy; to.Host != "" {
		out = append(out, to.Host)
	}
	for _, p := range m.Mesh(r).GetExtensionProviders() {
		service, _, ok := mesh.ExternalAuthorizer(p)
		if !ok {
			service, _, ok = mesh.TraceProvider(p)
		}
		if ok {
			_, host := mesh.ProviderService(service)
			out = append(out, host)
		}
	}
	out = append(out, m.keyHosts(r, s.Value().Namespace)...)
	for _, key := range incr.Keys(r, m.tables.virtuals, all) {
		if v := m.rules.reach.Of(r, key); m.servesMesh(r, s, v) {
			out = append(out, v.destinations...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (m *Model) extraHosts(r *incr.Reader, s mesh.ScopeID) []string {
	var out []string
	for _, key := range incr.Keys(r, m.tables.virtuals, all) {
		v := m.rules.reach.Of(r, key)
		if !m.servesMesh(r, s, v) {
			continue
		}
		for _, h := range v.hosts {
			if h != "*" && !m.listensIn(r, s, h) {
				out = append(out, h)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Elsewhere reports whether a service is one of another cluster than a scope's: its virtual addresses, and those of its
// Pods if it is headless, are not those of the service there, and may be those of another.
func (s *Service) Elsewhere(scope mesh.ScopeID) bool {
	return s.Source.Kubernetes && s.Cluster != scope.Value().Cluster
}
