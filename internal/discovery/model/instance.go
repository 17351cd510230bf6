package model

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

// Pod is the row of an object.
type Pod struct {
	Row
	Labels map[string]string
	Spec   *object.PodSpec
}

// WorkloadEntry is the row of an object. Labels are those of its metadata; those of its spec override
// them.
type WorkloadEntry struct {
	Row
	Labels map[string]string
	Spec   *networking.WorkloadEntry
	// Unhealthy is set if the workload reports its health and has not reported that it is healthy: it is no endpoint then.
	Unhealthy bool
}

// Slice is the row of an EndpointSlice.
type Slice struct {
	Row
	Spec *object.EndpointSliceSpec
}

// Health is whether clients may use an endpoint.
type Health uint8

// The states of health, the best first.
const (
	Healthy Health = iota
	// Draining: the endpoint serves the sessions that it has, and gets no others.
	Draining
	// Unready: the endpoint is not ready.
	Unready
)

// Instance is one endpoint of a service.
type Instance struct {
	// Address is an IP, a DNS name (only in services that resolve by DNS) or a socket path.
	Address string
	// Others are further IP addresses of the same endpoint, of other families, in the order of preference.
	Others []string
	// Ports maps the service's port, by its key, to the endpoint's number.
	Ports    map[uint32]uint32
	Labels   map[string]string
	Identity string // SPIFFE URI, empty if unknown
	// TLS is set if the workload has a sidecar that accepts the mesh's mutual TLS.
	TLS       bool
	Locality  mesh.Locality
	Weight    uint32 // at least 1
	Workload  string // of a Pod, that of its controller; see mesh.WorkloadName
	Namespace string
	Node      string // of the Pod; empty if unknown
	// Network is that of the address, ClusterID the cluster of the workload; each may be empty.
	Network, ClusterID string
	// Cluster is ClusterID if it is a remote one.
	Cluster string
	// Hostname is its name below that of the Service, in DNS; empty if it has none.
	Hostname string
	Health   Health
}

// Subset reports whether the instance has all of the labels. Those of its network and its cluster are what is in force,
// whatever labels the workload has.
func (i *Instance) Subset(labels map[string]string) bool {
	for k, v := range labels {
		have, ok := i.Labels[k]
		switch k {
		case networkLabel:
			have, ok = i.Network, i.Network != ""
		case clusterLabel:
			have, ok = i.ClusterID, i.ClusterID != ""
		}
		if !ok || have != v {
			return false
		}
	}
	return true
}

// subset reports whether have contains every pair of want.
func subset(want, have map[string]string) bool {
	for k, v := range want {
		if x, ok := have[k]; !ok || x != v {
			return false
		}
	}
	return true
}

// labelBuckets returns the buckets of a workload with these labels: one for each pair.
func labelBuckets(ns string, labels map[string]string) []string {
	out := make([]string, 0, len(labels))
	for k, v := range labels {
		out = append(out, labelBucket(ns, k, v))
	}
	return out
}

func labelBucket(ns, name, value string) string { return "label:" + ns + "/" + name + "=" + value }

// workloadBucket returns a bucket with all workloads that the selector selects, and few others: that
// of its first label by name. The selector must not be empty.
func workloadBucket(ns string, selector map[string]string) string {
	first := ""
	for k := range selector {
		if first == "" || k < first {
			first = k
		}
	}
	return labelBucket(ns, first, selector[first])
}

// endpointsBucket returns the bucket of a service in which its endpoints find it: one of their labelBuckets, or withoutSelector.
func endpointsBucket(s *Service) string {
	if len(s.Source.Selector) == 0 {
		return withoutSelector(s.Namespace)
	}
	return workloadBucket(s.Namespace, s.Source.Selector)
}

// withoutSelector returns the bucket of the services of a namespace without a selector.
func withoutSelector(ns string) string { return "without selector:" + ns }

// Instances returns the ready endpoints of the service row with that key, and of the rows that are one service with it if it is the one
// with priority, sorted by address.
func (m *Model) Instances(r *incr.Reader, key string) []*Instance {
	return atLeast(m.rules.instances.Of(r, key), Healthy)
}

// AllInstances returns the endpoints as Instances does, then those that are draining, and then, after SendUnready, those that are not ready.
func (m *Model) AllInstances(r *incr.Reader, key string) []*Instance {
	return m.rules.instances.Of(r, key)
}

// atLeast returns the endpoints of a list, which begins with the healthiest, with some health or better.
func atLeast(list []*Instance, h Health) []*Instance {
	n := len(list)
	for n > 0 && list[n-1].Health > h {
		n--
	}
	return list[:n:n]
}

// SendUnready has AllInstances return endpoints that are not ready, too. It must be called before the first rule runs.
func (m *Model) SendUnready() { m.unready = true }

// Accounts returns the SPIFFE identities of the instances of the service row with that key, and its
// subject alternative names, sorted and without duplicates. Those of the mesh are there in its trust domain
// and in each of its aliases, since a workload has the name that was the mesh's when it got its certificate.
func (m *Model) Accounts(r *incr.Reader, key string) []string {
	return m.rules.accounts.Of(r, key)
}

func (m *Model) instances(r *incr.Reader, key string) []*Instance {
	s, ok := incr.Get(r, m.tables.services, key)
	if !ok {
		return nil
	}
	out := m.joinInstances(r, m.parts(r, s))
	slices.SortStableFunc(out, func(a, b *Instance) int {
		return cmp.Or(cmp.Compare(a.Health, b.Health), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Workload, b.Workload), cmp.Compare(a.Cluster, b.Cluster))
	})
	return out
}

// rowInstances returns the endpoints of one row.
func (m *Model) rowInstances(r *incr.Reader, s *Service) (out []*Instance) {
	td := m.Mesh(r).TrustDomain
	for _, e := range s.Source.Inline {
		out = append(out, m.entryInstance(s, e, nil, s.Name, td))
	}
	if s.Source.DNSName != "" {
		out = append(out, m.entryInstance(s, &networking.WorkloadEntry{Address: s.Source.DNSName}, nil, s.Name, td))
	}
	sliced := false // the Service in the control plane's cluster has slices
	if s.Source.Kubernetes {
		var from []*Instance
		from, sliced = m.sliceInstances(r, s, td)
		out = append(out, from...)
	}
	own := m.inOwnCluster(r, s)
	if own != nil && !sliced && len(own.Source.Selector) > 0 {
		for _, p := range incr.In(r, m.tables.pods, workloadBucket(own.Namespace, own.Source.Selector)) {
			ready := p.Spec.Ready || own.Source.PublishNotReady
			if p.Cluster == "" && subset(own.Source.Selector, p.Labels) && !p.Spec.Done && (ready || m.unready) {
				out = append(out, withHealth(m.podInstances(r, own, p, td), ready)...)
			}
		}
	}
	if len(s.Source.Selector) > 0 {
		selected := workloadBucket(s.Namespace, s.Source.Selector)
		for _, e := range incr.In(r, m.tables.entries, selected) {
			if labels := e.labels(); (!e.Unhealthy || m.unready) && subset(s.Source.Selector, labels) && s.takes(e.Spec.Address) {
				i := m.entryInstance(s, e.Spec, labels, e.Name, td)
				if i.Network == "" {
					i.Network = m.network(r, "", labels, i.Address)
				}
				out = append(out, withHealth([]*Instance{i}, !e.Unhealthy)...)
			}
		}
	}
	for _, i := range out {
		if i.Health == Healthy && i.Labels[mesh.DrainingLabel] != "" {
			i.Health = Draining
		}
	}
	return out
}

// withHealth returns a list, whose endpoints have no health yet, as ready ones or as others.
func withHealth(list []*Instance, ready bool) []*Instance {
	if !ready {
		for _, i := range list {
			i.Health = Unready
		}
	}
	return list
}

// inOwnCluster returns the row of a Service in the control plane's cluster, nil if there is none. Other rows are
// returned as they are.
func (m *Model) inOwnCluster(r *incr.Reader, s *Service) *Service {
	if s.Cluster == "" {
		return s
	}
	own, _ := incr.Get(r, m.tables.services, "Service/"+s.Row.Key())
	return own
}

// takes reports whether a selected WorkloadEntry's address can be one of the service's endpoints: proxies resolve a DNS name only if
// the service's resolution is by DNS, and refuse it elsewhere.
func (s *Service) takes(address string) bool {
	if s.Resolution == DNS || s.Resolution == DNSRoundRobin || strings.HasPrefix(address, mesh.UnixSocket) {
		return true
	}
	_, err := netip.ParseAddr(address)
	return err == nil
}

func (e *WorkloadEntry) labels() map[string]string {
	if len(e.Spec.Labels) == 0 {
		return e.Labels
	}
	out := map[string]string{}
	for k, v := range e.Labels {
		out[k] = v
	}
	for k, v := range e.Spec.Labels {
		out[k] = v
	}
	return out
}

// hasSidecar reports whether the mesh's mutual TLS is used towards a WorkloadEntry: its label says so, and without one that
// it has an identity.
func hasSidecar(labels map[string]string, account string) bool {
	if mode, ok := labels[mesh.TLSModeLabel]; ok {
		return mode == "istio"
	}
	return account != ""
}

func (m *Model) entryInstance(s *Service, e *networking.WorkloadEntry, labels map[string]string, name, td string) *Instance {
	if labels == nil {
		labels = e.Labels
	}
	i := &Instance{
		Address: e.Address, Labels: labels, Weight: max(e.Weight, 1), Workload: name, Namespace: s.Namespace,
		Locality: mesh.ParseLocality(e.Locality), Network: cmp.Or(e.Network, labels[networkLabel]), ClusterID: m.own.Cluster, Ports: map[uint32]uint32{},
		TLS: !s.External && hasSidecar(labels, e.ServiceAccount),
	}
	if e.ServiceAccount != "" {
		i.Identity = mesh.Identity{TrustDomain: td, Namespace: s.Namespace, ServiceAccount: e.ServiceAccount}.SPIFFE()
	}
	for _, p := range s.Ports {
		i.Ports[p.Key()] = cmp.Or(e.Ports[p.Name], p.Target, p.Number)
	}
	return i
}

func (m *Model) podInstances(r *incr.Reader, s *Service, p *Pod, td string) []*Instance {
	ips := p.Spec.IPs
	if len(ips) == 0 {
		return nil
	}
	ports := map[uint32]uint32{}
	for _, port := range s.Ports {
		if t, ok := p.target(port); ok {
			ports[port.Key()] = t
		}
	}
	addresses := ips[:1]
	if len(s.Source.Families) > 0 {
		addresses = nil
		for _, f := range s.Source.Families {
			if i := slices.IndexFunc(ips, func(ip netip.Addr) bool { return mesh.FamilyOf(ip) == f }); i >= 0 {
				addresses = append(addresses, ips[i])
			}
		}
		switch {
		case len(addresses) > 0:
		case s.Source.Named:
			return nil
		default:
			addresses = ips[:1]
		}
	}
	i := m.podInstance(r, p, addresses, ports, td)
	if p.Spec.Subdomain == s.Name {
		i.Hostname = p.Spec.Hostname
	}
	return []*Instance{i}
}

// target returns the Pod's port for a service's port; false if that has the name of a container port
// that the Pod does not have.
func (p *Pod) target(port Port) (uint32, bool) {
	if port.TargetName == "" {
		return port.Target, true
	}
	for _, c := range p.Spec.Ports {
		if c.Name == port.TargetName {
			return c.Port, true
		}
	}
	return 0, false
}

// localityOf returns where a Pod is: its label, else its Node's place. [control-plane 1.3.8]
func (m *Model) localityOf(r *incr.Reader, p *Pod) mesh.Locality {
	if label := cmp.Or(p.Labels["topology.istio.io/locality"], p.Labels["istio-locality"]); label != "" {
		return mesh.ParseLocality(label)
	}
	return m.nodeLocality(r, p.Spec.NodeName, p.Cluster)
}

// nodeLocality returns where a Node of a cluster is; the zero value if that is not known.
func (m *Model) nodeLocality(r *incr.Reader, name, cluster string) mesh.Locality {
	if name == "" {
		return mesh.Locality{}
	}
	l, _ := incr.Get(r, m.tables.nodes, inCluster(name, cluster))
	return l
}

// podInstance returns a Pod as an endpoint with some of its addresses, at least one.
func (m *Model) podInstance(r *incr.Reader, p *Pod, ips []netip.Addr, ports map[uint32]uint32, td string) *Instance {
	return &Instance{
		Address: ips[0].String(), Others: texts(ips[1:]), Ports: ports, Labels: p.Labels, Weight: 1, Workload: mesh.WorkloadName(p.Name, p.Labels), Namespace: p.Namespace, Node: p.Spec.NodeName,
		Identity: mesh.Identity{TrustDomain: td, Namespace: p.Namespace, ServiceAccount: p.account()}.SPIFFE(),
		TLS:      p.Labels[mesh.TLSModeLabel] == "istio",
		Locality: m.localityOf(r, p),
		Network:  m.network(r, p.Cluster, p.Labels, ips[0].String()), ClusterID: m.clusterID(p.Cluster), Cluster: p.Cluster,
	}
}

// texts formats addresses; nil for none.
func texts(ips []netip.Addr) (out []string) {
	for _, ip := range ips {
		out = append(out, ip.String())
	}
	return out
}

// sliceEndpoint is an endpoint of a Service in the slices of a cluster, with its addresses in slices of all families.
type sliceEndpoint struct {
	object.SliceEndpoint
	cluster   string
	addresses []netip.Addr
	ports     map[uint32]uint32
	health    Health
}

// joins reports whether an address of an endpoint is another one of the same endpoint: of the same Pod and of another
// family. Addresses of one family are endpoints of their own, also those in one entry of a slice.
func (e *sliceEndpoint) joins(cluster, pod string, ip netip.Addr) bool {
	if e.cluster != cluster {
		return false
	}
	if slices.Contains(e.addresses, ip) {
		return true
	}
	return pod != "" && e.Pod == pod && !slices.ContainsFunc(e.addresses, func(a netip.Addr) bool { return mesh.FamilyOf(a) == mesh.FamilyOf(ip) })
}

// healthOf returns the health of an endpoint in a slice, false if clients are not told of it.
func (m *Model) healthOf(s *Service, e object.SliceEndpoint) (h Health, told bool) {
	switch {
	case e.Terminating:
		return Draining, e.Serving && s.Sessions()
	case e.Ready || s.Source.PublishNotReady:
		return Healthy, true
	}
	return Unready, m.unready
}

// endpointsInSlices returns the endpoints that clients are told of a Service in the slices of all clusters, and whether the
// control plane's cluster has slices of it.
func (m *Model) endpointsInSlices(r *incr.Reader, s *Service) (out []*sliceEndpoint, own bool) {
	index := map[string][]*sliceEndpoint{} // by Pod, and by address
	for _, sl := range incr.In(r, m.tables.slices, s.Row.Key()) {
		own = own || sl.Cluster == ""
		ports := map[uint32]uint32{}
		for _, sp := range sl.Spec.Ports {
			for _, p := range s.Ports {
				if sp.Name == p.Name {
					ports[p.Key()] = sp.Port
				}
			}
		}
		for _, e := range sl.Spec.Endpoints {
			health, told := m.healthOf(s, e)
			if !told {
				continue
			}
			for _, ip := range e.Addresses {
				keys := []string{ip.String()}
				if e.Pod != "" {
					keys = append(keys, "Pod "+e.Pod)
				}
				var known *sliceEndpoint
				for _, k := range keys {
					if i := slices.IndexFunc(index[k], func(o *sliceEndpoint) bool { return o.joins(sl.Cluster, e.Pod, ip) }); i >= 0 && known == nil {
						known = index[k][i]
					}
				}
				if known == nil {
					known = &sliceEndpoint{SliceEndpoint: e, cluster: sl.Cluster, ports: map[uint32]uint32{}}
					out = append(out, known)
				}
				known.health = max(known.health, health)
				maps.Copy(known.ports, ports) // the ports of one endpoint may be in several slices
				if !slices.Contains(known.addresses, ip) {
					known.addresses = append(known.addresses, ip)
				}
				for _, k := range keys {
					if !slices.Contains(index[k], known) {
						index[k] = append(index[k], known)
					}
				}
			}
		}
	}
	for _, e := range out {
		slices.SortFunc(e.addresses, func(a, b netip.Addr) int {
			return cmp.Or(cmp.Compare(s.Source.rank(a), s.Source.rank(b)), a.Compare(b))
		})
	}
	return out, own
}

// rank is the place of an address's family in the order of preference.
func (s Source) rank(ip netip.Addr) int {
	if i := slices.Index(s.Families, mesh.FamilyOf(ip)); i >= 0 {
		return i
	}
	return len(s.Families)
}

// sliceInstances returns the endpoints of a Service in the slices of all clusters, and whether the control plane's
// cluster has slices of it.
func (m *Model) sliceInstances(r *incr.Reader, s *Service, td string) (out []*Instance, own bool) {
	endpoints, own := m.endpointsInSlices(r, s)
	for _, e := range endpoints {
		i := &Instance{
			Address: e.addresses[0].String(), Others: texts(e.addresses[1:]), Ports: e.ports, Weight: 1, Workload: e.Pod, Namespace: s.Namespace,
			ClusterID: m.clusterID(e.cluster), Cluster: e.cluster, Node: e.NodeName,
		}
		if p, ok := incr.Get(r, m.tables.pods, inCluster(s.Namespace+"/"+e.Pod, e.cluster)); ok && e.Pod != "" {
			i = m.podInstance(r, p, e.addresses, e.ports, td)
		} else {
			i.Network = m.network(r, e.cluster, nil, i.Address)
		}
		if i.Locality == (mesh.Locality{}) {
			i.Locality = m.nodeLocality(r, e.NodeName, e.cluster)
		}
		if e.Zone != "" && i.Locality == (mesh.Locality{}) {
			i.Locality.Zone = e.Zone
		}
		i.Hostname, i.Health = e.Hostname, e.health
		out = append(out, i)
	}
	return out, own
}

func (m *Model) accounts(r *incr.Reader, key string) []string {
	var out []string
	for _, i := range atLeast(m.rules.instances.Of(r, key), Draining) {
		if i.Identity != "" {
			out = append(out, i.Identity)
		}
	}
	if s, ok := incr.Get(r, m.tables.services, key); ok {
		out = append(out, s.Source.SANs...)
	}
	out = inTrustDomains(out, m.Mesh(r))
	slices.Sort(out)
	return slices.Compact(out)
}

// inTrustDomains adds to names the identities of the mesh in its other trust domains. Names of other trust
// domains stay as they are: an alias of this mesh is none of theirs.
func inTrustDomains(names []string, m *meshv1.MeshConfig) []string {
	if len(m.TrustDomainAliases) == 0 {
		return names
	}
	domains := append([]string{m.TrustDomain}, m.TrustDomainAliases...)
	out := slices.Clone(names)
	for _, name := range names {
		id, err := mesh.ParseSPIFFE(name)
		if err != nil || !contains(domains, id.TrustDomain) {
			continue
		}
		for _, id.TrustDomain = range domains {
			out = append(out, id.SPIFFE())
		}
	}
	return out
}

// canonical formats labels as "a=b,c=d", sorted.
func canonical(labels map[string]string) string {
	pairs := make([]string, 0, len(labels))
	for k, v := range labels {
		pairs = append(pairs, k+"="+v)
	}
	slices.Sort(pairs)
	return strings.Join(pairs, ",")
}
