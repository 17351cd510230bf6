package compile

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

var fixedClusters = []string{mesh.BlackHoleCluster, mesh.PassthroughCluster}

// clusterName is one cluster of a service in a scope.
type clusterName struct {
	name        string
	eds, inline bool
}

// serviceClusters returns the clusters of a service: for each port one, and one for each subset of its
// DestinationRule. Only routers have those of ports of UDP, without subsets.
func (c *Compiler) serviceClusters(r *incr.Reader, k scopeHost) []clusterName {
	s := c.model.Service(r, k.scope, k.host)
	if s == nil || s.IsAlias() && !k.scope.Value().Caps.Has(mesh.Proxyless) && c.model.Aliased(r, k.scope, s) != nil {
		return nil
	}
	subsets := []string{""}
	d := c.model.DestinationRule(r, k.scope, k.host)
	for _, sub := range d.GetSpec().GetSubsets() {
		subsets = append(subsets, sub.Name)
	}
	var out []clusterName
	for _, p := range s.Ports {
		direction, of := cluster.Outbound, subsets
		switch {
		case p.Protocol == mesh.UDP && (k.scope.Value().Role != mesh.Router || !s.Source.Kubernetes):
			continue // only routes of the Gateway API send UDP
		case p.Protocol == mesh.UDP:
			direction, of = cluster.OutboundUDP, subsets[:1]
		case !c.model.HasPort(r, k.scope, s, p.Number) || s.Resolution == model.Dynamic && !cluster.ServesDynamic(p.Protocol):
			continue
		}
		for _, sub := range of {
			n := clusterName{name: cluster.Name(direction, p.Number, sub, k.host)}
			policy := rulePolicy(d, sub, p.Number)
			if k.scope.Value().Caps.Has(mesh.Proxyless) {
				n.eds, n.inline = proxylessDiscovery(s, policy)
				out = append(out, n)
				continue
			}
			switch resolution(k.scope.Value().Role, s, policy) {
			case cluster.EDS:
				n.eds = true
			case cluster.StrictDNS, cluster.LogicalDNS:
				n.inline = true
			case cluster.OriginalDst, cluster.Dynamic: // have no endpoints
			}
			out = append(out, n)
		}
	}
	return out
}

// resolution returns how a service's cluster discovers endpoints with a policy, in proxies of a role. The connections of a router have
// no destination of their own.
func resolution(role mesh.Role, s *model.Service, p *networking.TrafficPolicy) cluster.Resolution {
	var own cluster.Resolution
	switch s.Resolution {
	case model.Static:
		own = cluster.EDS
	case model.DNS:
		own = cluster.StrictDNS
	case model.DNSRoundRobin:
		own = cluster.LogicalDNS
	case model.Dynamic:
		own = cluster.Dynamic
	case model.Passthrough:
		own = cluster.OriginalDst
		if role == mesh.Router {
			own = cluster.EDS
		}
	default:
		panic(fmt.Sprintf("compile: unknown resolution %d", s.Resolution))
	}
	return cluster.Resolve(own, p)
}

// policyOf returns the traffic policy in force for a port of a service or of its subset.
func (c *Compiler) policyOf(r *incr.Reader, d *model.DestinationRule, subset string, port uint32) *networking.TrafficPolicy {
	return cluster.WithDefaults(rulePolicy(d, subset, port), c.model.Mesh(r))
}

// rulePolicy returns a DestinationRule's policy for a port of a subset, without the mesh's defaults.
func rulePolicy(d *model.DestinationRule, subset string, port uint32) *networking.TrafficPolicy {
	if d == nil {
		return nil
	}
	var sub *networking.TrafficPolicy
	for _, s := range d.Spec.Subsets {
		if s.Name == subset && subset != "" {
			sub = s.TrafficPolicy
		}
	}
	return cluster.MergePolicy(d.Spec.TrafficPolicy, sub, port)
}

// cluster returns one outbound cluster of a scope.
func (c *Compiler) cluster(r *incr.Reader, k Key) []byte {
	m := c.model.Mesh(r)
	switch k.Name {
	case mesh.BlackHoleCluster:
		return marshal.MustEncodedAny(cluster.BlackHole(m))
	case mesh.AllowAnyDynamicDNSCluster:
		return marshal.MustEncodedAny(cluster.AllowAnyDynamicDNS(m, k.Scope.Value().Caps))
	case mesh.PassthroughCluster:
		return marshal.MustEncodedAny(cluster.Passthrough(m))
	}
	n, passthrough := clusterOf(k.Name)
	s := c.model.Service(r, k.Scope, n.Host)
	if s == nil {
		return nil // the Run that removes the service also drops this value
	}
	port, ok := s.PortOf(n.Port)
	if n.Direction == cluster.OutboundUDP {
		port, ok = s.UDPPortOf(n.Port)
	}
	if !ok {
		return nil
	}
	d := c.model.DestinationRule(r, k.Scope, n.Host)
	p := c.policyOf(r, d, n.Subset, n.Port)
	if k.Scope.Value().Caps.Has(mesh.Proxyless) {
		return c.proxylessCluster(r, k, n, s, p)
	}
	in := cluster.Input{
		Service:     cluster.Service{Host: s.Host, Name: shortName(s), Namespace: s.Namespace, External: s.External},
		Port:        n.Port,
		Protocol:    c.protocol(r, k.Scope, s, port),
		Target:      port.Target,
		Subset:      n.Subset,
		Resolution:  resolution(k.Scope.Value().Role, s, p),
		Policy:      p,
		AutoMTLS:    m.GetEnableAutoMtls().GetValue() && !s.External,
		SANs:        c.model.Accounts(r, s.Key),
		Declared:    s.Source.SANs,
		Mesh:        m,
		Caps:        k.Scope.Value().Caps,
		Passthrough: passthrough,
		Near:        prefersNear(s, p),
		Sessions:    s.Sessions() && !passthrough,
	}
	in.TLS = c.backendTLS(r, k.Scope, s, port)
	if in.Resolution == cluster.OriginalDst && in.AutoMTLS && p.GetTls() == nil && c.inner.mutual.Of(r, servicePortKey{s.Key, n.Port}) {
		in.Policy = mutualTLS(p)
	}
	in.Router = k.Scope.Value().Role == mesh.Router
	in.Credentials = in.Router || len(d.GetSpec().GetWorkloadSelector().GetMatchLabels()) > 0
	if d != nil {
		in.ConfigPath = cluster.ConfigPath("destination-rule", d.Namespace, d.Name)
	}
	if k.Kind == ClusterInline {
		in.Endpoints = c.endpointsOf(r, endpointsInput{
			service: s, port: port.Key(), labels: subsetLabels(d, n.Subset), location: k.Location.Value(), locality: localityText(s, p, m), families: in.Caps & mesh.Families,
		})
		for i := range in.Endpoints {
			in.Endpoints[i].Others = nil // Envoy has them in EDS clusters only
		}
	}
	return marshal.MustEncodedAny(cluster.Build(in))
}

// protocol returns what the endpoints of a service speak at a port. For gateways, a GRPCRoute declares it for ports that declare nothing
// themselves: gRPC needs HTTP/2. Sidecars detect it. [control-plane 1.8.8]
func (c *Compiler) protocol(r *incr.Reader, s mesh.ScopeID, service *model.Service, port model.Port) mesh.Protocol {
	if port.Protocol == mesh.Auto && s.Value().Role == mesh.Router && c.model.SpeaksGRPC(r, service, port.Number) {
		return mesh.GRPC
	}
	return port.Protocol
}

// backendTLS returns how gateways connect to a port of a service by a BackendTLSPolicy; nil for none. Sidecars do not apply these policies:
// the application of a client may use TLS itself. [control-plane 1.11.7]
func (c *Compiler) backendTLS(r *incr.Reader, s mesh.ScopeID, service *model.Service, port model.Port) *cluster.BackendTLS {
	if s.Value().Role != mesh.Router {
		return nil
	}
	t := c.model.BackendTLS(r, service, port)
	if t == nil {
		return nil
	}
	return &cluster.BackendTLS{Closed: t.Why != "", ServerName: t.ServerName, DNS: t.DNS, URIs: t.URIs, CA: t.CA, Certificate: c.model.ClientCertificate(r, s)}
}

// servicePortKey identifies a port of a service by the key of its row.
type servicePortKey struct {
	service string
	port    uint32
}

// allMutual reports whether a headless service has endpoints and all of them accept the mesh's mutual
// TLS at a port. Its clusters are of type ORIGINAL_DST, which have no endpoint metadata to match a
// transport socket by.
func (c *Compiler) allMutual(r *incr.Reader, k servicePortKey) bool {
	s, ok := c.model.JoinedRow(r, k.service)
	if !ok || !s.Source.Headless {
		return false
	}
	list := c.endpointsOf(r, endpointsInput{service: s, port: k.port})
	return len(list) > 0 && !slices.ContainsFunc(list, func(e cluster.Endpoint) bool { return !e.TLS })
}

func mutualTLS(p *networking.TrafficPolicy) *networking.TrafficPolicy {
	if p == nil {
		p = &networking.TrafficPolicy{}
	}
	p = proto.Clone(p).(*networking.TrafficPolicy)
	p.Tls = &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_ISTIO_MUTUAL}
	return p
}

func shortName(s *model.Service) string {
	if s.Source.Kubernetes {
		return s.Name
	}
	return s.Host
}

// subsetLabels returns the labels of a subset's endpoints; nil for the whole service.
func subsetLabels(d *model.DestinationRule, subset string) map[string]string {
	if d == nil || subset == "" {
		return nil
	}
	for _, s := range d.Spec.Subsets {
		if s.Name == subset {
			return s.Labels
		}
	}
	return nil
}

// inboundNames returns the resources of a workload's layer.
func (c *Compiler) inboundNames(r *incr.Reader, l Layer) []Key {
	if l.Scope.Value().Caps.Has(mesh.Proxyless) {
		return serverNames(l)
	}
	if l.Scope.Value().Role != mesh.Sidecar {
		return nil
	}
	key := Key{Kind: ClusterInbound, Name: mesh.InboundPassthroughCluster, Scope: l.Scope, Workload: l.Workload}
	out := []Key{key}
	list, listed := c.model.Ingress(r, l.Workload.Value())
	for _, i := range list {
		key.Kind, key.Name = ClusterInbound, cluster.Name(cluster.Inbound, i.Port, "", "")
		out = append(out, key)
		if i.Bind != "" {
			key.Kind, key.Name = ListenerInbound, i.Name()
			out = append(out, key)
		}
	}
	key.Kind = ClusterInbound
	last := uint32(0)
	for _, p := range model.InboundPorts(l.Workload.Value()) {
		if p.Target != last && !listed {
			key.Name = cluster.Name(cluster.Inbound, p.Target, "", "")
			out = append(out, key)
		}
		last = p.Target
	}
	key.Kind, key.Name = ListenerInbound, mesh.VirtualInbound
	out = append(out, key)
	if l.Workload.Value().Peers != "" {
		key.Kind, key.Name = EndpointsOwn, mesh.LocalCluster
		out = append(out, key)
	}
	return out
}

// inboundCluster returns the cluster for one of the application's ports.
func (c *Compiler) inboundCluster(r *incr.Reader, k Key) []byte {
	m := c.model.Mesh(r)
	if k.Name == mesh.InboundPassthroughCluster {
		return marshal.MustEncodedAny(cluster.InboundPassthrough(m, k.Scope.Value().Caps))
	}
	n, _ := cluster.ParseName(k.Name)
	in := cluster.InboundInput{Port: n.Port, Mesh: m, Caps: k.Scope.Value().Caps}
	for i, p := range c.portsAt(r, k.Workload.Value(), n.Port) {
		if i == 0 {
			in.Protocol = p.port.Protocol
			if d := c.model.ServerRule(r, k.Workload.Value().Namespace, p.service); d != nil && d.Spec.TrafficPolicy != nil {
				in.Pool = rulePolicy(d, "", p.port.Number).GetConnectionPool()
				in.ConfigPath = cluster.ConfigPath("destination-rule", d.Namespace, d.Name)
			}
		}
		in.Services = append(in.Services, cluster.Service{
			Host: p.service.Host, Name: shortName(p.service), Namespace: p.service.Namespace, External: p.service.External,
		})
	}
	if pool := c.model.InboundPool(r, k.Workload.Value(), n.Port); pool != nil {
		in.Pool, in.ConfigPath = pool, ""
	}
	list, _ := c.model.Ingress(r, k.Workload.Value())
	for _, l := range list {
		if l.Port == n.Port {
			in.Protocol, in.Address, in.Own, in.To = l.Protocol, l.To.Address, l.To.Own, l.To.Port
		}
	}
	return marshal.MustEncodedAny(cluster.BuildInbound(in))
}

// servicePort is a port of a service whose target is a port of a workload.
type servicePort struct {
	service *model.Service
	port    model.Port
}

// portsAt returns the service ports whose target is a workload's port, sorted by key.
func (c *Compiler) portsAt(r *incr.Reader, w mesh.Workload, target uint32) []servicePort {
	var out []servicePort
	for _, in := range model.InboundPorts(w) {
		if in.Target != target {
			continue
		}
		s, ok := c.model.ServiceRow(r, in.Service)
		if !ok {
			continue
		}
		if p, ok := s.PortOf(in.Port); ok {
			out = append(out, servicePort{s, p})
		}
	}
	return out
}

// canonicalService returns the workload's name and revision for telemetry.
func canonicalService(i *model.Instance) (name, revision string) {
	for _, l := range []string{mesh.CanonicalNameLabel, mesh.AppNameLabel, "app"} {
		if name == "" {
			name = i.Labels[l]
		}
	}
	if name == "" {
		name = strings.TrimSuffix(i.Workload, "-0")
	}
	for _, l := range []string{mesh.CanonicalRevisionLabel, mesh.AppVersionLabel, "version"} {
		if revision == "" {
			revision = i.Labels[l]
		}
	}
	return name, revision
}
