package model

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// ProxyKey has what determines a proxy's class. It is the key of a rule, so it is comparable.
type ProxyKey struct {
	Role      mesh.Role
	Namespace string
	// Name is the Pod's name in the node id.
	Name string
	// Account is the service account that the proxy proved to have, empty on a plaintext port.
	Account string
	// Labels is the canonical form of the labels that the node sent. If it is empty, the labels of
	// the Pod or WorkloadEntry with one of its addresses are used.
	Labels   string
	IPs      string // comma-separated
	Caps     mesh.Capability
	Location mesh.Location
	// Version is the version of Istio that the proxy says it has.
	Version string
	// Topology is what the node says of the proxies in front of it.
	Topology mesh.Topology
	// Service is the name that the proxy's service has in spans.
	Service string
	// Tracing is what the node says of traces.
	Tracing mesh.Tracing
	// Texts are what else EnvoyFilters may select the proxy by.
	Texts mesh.Texts
}

// KeyOf returns the key of a node. The account is the service account that its caller has proved, empty if it
// has proved none.
func KeyOf(n mesh.Node, account string) ProxyKey {
	var ips []string
	for _, ip := range n.IPs() {
		ips = append(ips, ip.Unmap().String())
	}
	return ProxyKey{
		Role: n.Role, Namespace: n.Namespace(), Name: strings.TrimSuffix(n.ID, "."+n.Namespace()), Account: account,
		Labels: canonical(n.Metadata.Labels), IPs: strings.Join(ips, ","),
		Caps:     mesh.Capabilities(n),
		Version:  n.Metadata.IstioVersion,
		Service:  n.Service,
		Tracing:  n.Metadata.Tracing,
		Topology: n.Metadata.Topology,
		Texts:    n.Metadata.Texts,
		Location: mesh.Location{Network: n.Metadata.Network, Cluster: n.Metadata.ClusterID, Locality: n.Locality},
	}
}

// Classify returns the rule that computes a proxy's class. The loop wants its value for every connected
// proxy, so that the class changes with the Pod's labels and with policies.
func (m *Model) Classify() *incr.Rule[ProxyKey, mesh.Class] { return m.rules.classify }

func (m *Model) class(r *incr.Reader, k ProxyKey) mesh.Class {
	cluster := m.clusterOf(r, k.Location.Cluster)
	labels, pod := m.labelsOf(r, k, cluster)
	services, gateways := "", ""
	if m.claims(r, k) == "" {
		services = m.servicesOf(r, k, cluster, labels, portNames(pod))
	}
	named := m.gatewayNames(r, k, labels, services)
	if k.Role == mesh.Router {
		gateways, services = m.gatewaysFor(r, k, labels, services), "" // nothing is captured: there are no inbound listeners
	}
	location := k.Location
	if location.Locality == (mesh.Locality{}) && pod != nil {
		location.Locality = m.localityOf(r, pod)
	}
	if location.Network == "" {
		location.Network = cmp.Or(labels[networkLabel], m.clusterNetwork(r, cluster))
	}
	if pod != nil && m.nodesMatter(r) {
		location.Node = pod.Spec.NodeName
	}
	location.Labels = m.rankingLabels(r, labels, pod)
	workload := mesh.Workload{
		// Policies restrict: they hold for a proxy whatever else it is refused.
		Namespace: k.Namespace, Services: services, Policies: m.selecting(r, k.Namespace, labels, named),
		Authorization: policiesFor(m, r, m.tables.authz, k.Namespace, labels, named),
		Tokens:        policiesFor(m, r, m.tables.tokens, k.Namespace, labels, named),
	}
	if k.Caps.Has(mesh.Proxyless) {
		workload.Addresses, workload.Mutual = k.IPs, labels[mesh.TLSModeLabel] == "istio"
	}
	if k.Caps.Has(mesh.SelfDiscovery) {
		workload.Peers = peerLabel + "=" + labels[peerLabel]
	}
	scope := mesh.Scope{
		Role: k.Role, Namespace: k.Namespace, Cluster: cluster, Caps: k.Caps,
		Sidecar: m.sidecarFor(r, k, labels), Gateways: gateways, Selected: m.selected(r, k.Namespace, labels),
	}
	if !k.Caps.Has(mesh.Proxyless) {
		addresses := false
		if workload.Sidecar, addresses = m.inboundSidecar(r, scope.Sidecar); addresses {
			workload.Addresses = k.IPs
		}
	}
	if k.Role == mesh.Router { // its listeners are those of the scope
		scope.Topology = k.Topology
		scope.Authorization, scope.Tokens, scope.Closed = workload.Authorization, workload.Tokens, m.closed(r, k.Namespace, strings.Fields(workload.Policies))
	}
	if !k.Caps.Has(mesh.Proxyless) {
		scope.Tracing, workload.Tracing = k.Tracing, k.Tracing
		if mesh.NamesTracedServices(m.Mesh(r)) {
			scope.Service, workload.Service = k.Service, k.Service
		}
	}
	scope.Telemetry = m.telemetryOf(r, k, labels, named, telemetry.WorkloadMode_CLIENT)
	if k.Role != mesh.Router {
		workload.Telemetry = m.telemetryOf(r, k, labels, named, telemetry.WorkloadMode_SERVER)
	}
	scope.Patches, workload.Patches = m.patching(r, k, labels, named)
	if k.Role == mesh.Router {
		scope.PatchClusters = m.clustersOf(r, scope.Patches)
	}
	return mesh.Class{
		Scope:    scope,
		Location: location,
		Workload: workload,
	}
}

// peerLabel is the label in which the Pods of one version of a Deployment agree: Istio's default for which endpoints are a
// proxy's own workload. Pods without it, as those of a StatefulSet, are that of the others without it.
const peerLabel = "pod-template-hash"

// Hosts returns the rule that computes the hosts of the services that a proxy is an endpoint of, separated by spaces.
func (m *Model) Hosts() *incr.Rule[ProxyKey, string] { return m.rules.hosts }

func (m *Model) hosts(r *incr.Reader, k ProxyKey) string {
	if m.claims(r, k) != "" {
		return ""
	}
	cluster := m.clusterOf(r, k.Location.Cluster)
	labels, pod := m.labelsOf(r, k, cluster)
	var hosts []string
	for _, in := range InboundPorts(mesh.Workload{Services: m.servicesOf(r, k, cluster, labels, portNames(pod))}) {
		if s, ok := m.ServiceRow(r, in.Service); ok && !slices.Contains(hosts, s.Host) {
			hosts = append(hosts, s.Host)
		}
	}
	slices.Sort(hosts)
	return strings.Join(hosts, " ")
}

// nodesMatter reports whether a service has clients prefer endpoints on their own Node, or use no others. Otherwise proxies of all Nodes share
// their classes.
func (m *Model) nodesMatter(r *incr.Reader) bool {
	for range incr.In(r, m.tables.services, byNode) {
		return true
	}
	return false
}

// portNames are the numbers of a Pod's named ports; nil is no Pod.
func portNames(pod *Pod) map[string]uint32 {
	ports := map[string]uint32{}
	if pod != nil {
		for _, p := range pod.Spec.Ports {
			ports[p.Name] = p.Port
		}
	}
	return ports
}

// labelsOf returns the proxy's labels and its Pod, nil if it has none.
func (m *Model) labelsOf(r *incr.Reader, k ProxyKey, cluster string) (map[string]string, *Pod) {
	var pod *Pod
	var labels map[string]string
	for _, ip := range strings.Split(k.IPs, ",") {
		for _, p := range incr.In(r, m.tables.pods, "ip:"+ip) {
			if p.Namespace == k.Namespace && p.Cluster == cluster && (pod == nil || pod.account() != k.Account && p.account() == k.Account) {
				pod, labels = p, p.Labels
			}
		}
		if pod == nil && k.Labels == "" {
			for _, e := range incr.In(r, m.tables.entries, "ip:"+ip) {
				if e.Namespace == k.Namespace && labels == nil {
					labels = e.labels()
				}
			}
		}
	}
	if k.Labels != "" {
		labels = map[string]string{}
		for _, pair := range strings.Split(k.Labels, ",") {
			name, value, _ := strings.Cut(pair, "=")
			labels[name] = value
		}
	}
	return labels, pod
}

// sidecarFor returns the key of the Sidecar in force: the oldest that selects the workload, else that
// of the namespace, else that of the root namespace; "" if there is none, and for a router. [control-plane 1.9.20]
func (m *Model) sidecarFor(r *incr.Reader, k ProxyKey, labels map[string]string) string {
	if k.Role != mesh.Sidecar {
		return ""
	}
	root := m.Mesh(r).RootNamespace
	for _, pass := range []struct {
		ns       string
		selected bool
	}{{k.Namespace, true}, {k.Namespace, false}, {root, false}} {
		var best *Sidecar
		for _, s := range incr.In(r, m.tables.sidecars, "ns:"+pass.ns) {
			l := s.Spec.GetWorkloadSelector().GetLabels()
			if (len(l) > 0) != pass.selected || !subset(l, labels) {
				continue
			}
			if best == nil || s.Older(best.Row) {
				best = s
			}
		}
		if best != nil {
			return best.Key()
		}
	}
	return ""
}

// selected returns the client-side selectors that match the labels, in canonical form.
func (m *Model) selected(r *incr.Reader, ns string, labels map[string]string) string {
	var out []string
	add := func(l map[string]string) {
		if len(l) > 0 && subset(l, labels) {
			out = append(out, canonical(l))
		}
	}
	for _, v := range incr.In(r, m.tables.virtuals, selectors) {
		for _, h := range v.Spec.Http {
			for _, match := range h.Match {
				add(match.SourceLabels)
			}
		}
		for _, t := range v.Spec.Tls {
			for _, match := range t.Match {
				add(match.SourceLabels)
			}
		}
		for _, t := range v.Spec.Tcp {
			for _, match := range t.Match {
				add(match.SourceLabels)
			}
		}
	}
	for _, d := range incr.In(r, m.tables.dests, selectors) {
		if d.Namespace == ns {
			add(d.Spec.WorkloadSelector.MatchLabels)
		}
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), ";")
}

// servicesOf returns the services of which the proxy is an endpoint, with the ports on which it
// receives their connections: "row key@port>target,port>target", separated by spaces.
func (m *Model) servicesOf(r *incr.Reader, k ProxyKey, cluster string, labels map[string]string, named map[string]uint32) string {
	var out []string
	here := func(s *Service) bool { return !s.Source.Kubernetes || s.Cluster == cluster }
	add := func(key string, s *Service) {
		var ports []string
		for _, p := range s.Ports {
			target := p.Target
			if p.TargetName != "" {
				target = named[p.TargetName]
			}
			if target != 0 && p.Protocol != mesh.UDP {
				ports = append(ports, strconv.Itoa(int(p.Number))+">"+strconv.Itoa(int(target)))
			}
		}
		if len(ports) > 0 || k.Role == mesh.Router && len(s.Ports) > 0 { // a router's ports may all be UDP
			out = append(out, key+"@"+strings.Join(ports, ","))
		}
	}
	buckets := labelBuckets(k.Namespace, labels)
	slices.Sort(buckets)
	for _, b := range buckets {
		for key, s := range incr.In(r, m.tables.services, b) {
			if here(s) && subset(s.Source.Selector, labels) {
				add(key, s)
			}
		}
	}
	for key, s := range incr.In(r, m.tables.services, withoutSelector(k.Namespace)) {
		if here(s) && m.hasAddress(r, s, k.IPs) {
			add(key, s)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// hasAddress reports whether a service without a selector has one of the addresses, which are separated by commas, as an endpoint in
// a ServiceEntry or an EndpointSlice.
func (m *Model) hasAddress(r *incr.Reader, s *Service, ips string) bool {
	addresses := strings.Split(ips, ",")
	for _, ip := range addresses {
		for _, e := range s.Source.Inline {
			if e.Address == ip {
				return true
			}
		}
	}
	if !s.Source.Kubernetes {
		return false
	}
	for _, sl := range incr.In(r, m.tables.slices, s.Row.Key()) {
		if sl.Cluster != s.Cluster {
			continue
		}
		for _, e := range sl.Spec.Endpoints {
			for _, a := range e.Addresses {
				if contains(addresses, a.String()) {
					return true
				}
			}
		}
	}
	return false
}

// selecting returns the keys of the PeerAuthentications and denials that select the workload by label or Gateway, separated
// by spaces. Of the root namespace, these are the denials of everything, for AuthorizationPolicies. The class is made from
// all that select the workload, also from those to which others are preferred.
func (m *Model) selecting(r *incr.Reader, ns string, labels map[string]string, gateways []string) string {
	var out []string
	for _, p := range m.rules.policies.Of(r, ns) {
		if l := p.Spec.GetSelector().GetMatchLabels(); len(l) > 0 && subset(l, labels) || p.denies(gateways) {
			out = append(out, p.Key())
			m.madeFrom(r, p)
		}
	}
	if root := m.Mesh(r).RootNamespace; root != ns {
		for _, p := range m.rules.policies.Of(r, root) {
			if l := p.Spec.GetSelector().GetMatchLabels(); p.deny == denyEverything && len(l) > 0 && subset(l, labels) {
				out = append(out, p.Key())
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// Inbound is one port of a workload and the service that it belongs to.
type Inbound struct {
	Service string // row key
	Port    uint32
	Target  uint32
}

// InboundPorts parses a workload's Services. The result is sorted by target, then by service key.
func InboundPorts(w mesh.Workload) []Inbound {
	var out []Inbound
	for _, s := range strings.Fields(w.Services) {
		key, ports, _ := strings.Cut(s, "@")
		for p := range strings.SplitSeq(ports, ",") {
			number, target, ok := strings.Cut(p, ">")
			if !ok {
				continue // a router's service of UDP
			}
			n, _ := strconv.ParseUint(number, 10, 16)
			t, _ := strconv.ParseUint(target, 10, 16)
			out = append(out, Inbound{Service: key, Port: uint32(n), Target: uint32(t)})
		}
	}
	slices.SortStableFunc(out, func(a, b Inbound) int { return cmp.Compare(a.Target, b.Target) })
	return out
}
