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
}

// Slice is the row of an EndpointSlice.
type Slice struct {
	Row
	Spec *object.EndpointSliceSpec
}

// Instance is one endpoint of a service.
type Instance struct {
	// Address is an IP, a DNS name (only in services that resolve by DNS) or a socket path.
	Address string
	// Ports maps the service's port number to the endpoint's.
	Ports    map[uint32]uint32
	Labels   map[string]string
	Identity string // SPIFFE URI, empty if unknown
	// TLS is set if the workload has a sidecar that accepts the mesh's mutual TLS.
	TLS                bool
	Locality           mesh.Locality
	Weight             uint32 // at least 1
	Workload           string
	Namespace          string
	Network, ClusterID string
}

// Subset reports whether the instance has all of the labels.
func (i *Instance) Subset(labels map[string]string) bool { return subset(labels, i.Labels) }

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

// Instances returns the ready endpoints of the service row with that key, sorted by address.
func (m *Model) Instances(r *incr.Reader, key string) []*Instance {
	return m.rules.instances.Of(r, key)
}

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
	td := m.Mesh(r).TrustDomain
	selected := workloadBucket(s.Namespace, s.Source.Selector)
	var out []*Instance
	for _, e := range s.Source.Inline {
		out = append(out, m.entryInstance(s, e, nil, s.Name, td))
	}
	if s.Source.DNSName != "" {
		out = append(out, m.entryInstance(s, &networking.WorkloadEntry{Address: s.Source.DNSName}, nil, s.Name, td))
	}
	if s.Source.Kubernetes && len(incr.Keys(r, m.tables.slices, s.Row.Key())) > 0 {
		out = append(out, m.sliceInstances(r, s, td)...)
	} else if len(s.Source.Selector) > 0 {
		for _, p := range incr.In(r, m.tables.pods, selected) {
			if subset(s.Source.Selector, p.Labels) && !p.Spec.Done && (p.Spec.Ready || s.Source.PublishNotReady) {
				out = append(out, m.podInstances(r, s, p, td)...)
			}
		}
	}
	if len(s.Source.Selector) > 0 {
		for _, e := range incr.In(r, m.tables.entries, selected) {
			if labels := e.labels(); subset(s.Source.Selector, labels) {
				out = append(out, m.entryInstance(s, e.Spec, labels, e.Name, td))
			}
		}
	}
	slices.SortStableFunc(out, func(a, b *Instance) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Workload, b.Workload))
	})
	return out
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

func (m *Model) entryInstance(s *Service, e *networking.WorkloadEntry, labels map[string]string, name, td string) *Instance {
	if labels == nil {
		labels = e.Labels
	}
	i := &Instance{
		Address: e.Address, Labels: labels, Weight: max(e.Weight, 1), Workload: name, Namespace: s.Namespace,
		Locality: mesh.ParseLocality(e.Locality), Network: e.Network, Ports: map[uint32]uint32{},
		TLS: !s.External && labels[mesh.TLSModeLabel] == "istio",
	}
	if e.ServiceAccount != "" {
		i.Identity = mesh.Identity{TrustDomain: td, Namespace: s.Namespace, ServiceAccount: e.ServiceAccount}.SPIFFE()
	}
	for _, p := range s.Ports {
		i.Ports[p.Number] = cmp.Or(e.Ports[p.Name], p.Target, p.Number)
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
			ports[port.Number] = t
		}
	}
	return []*Instance{p.instance(ips[0], ports, td, m.localityOf(r, p))}
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
	return m.nodeLocality(r, p.Spec.NodeName)
}

// nodeLocality returns where a Node is; the zero value if that is not known.
func (m *Model) nodeLocality(r *incr.Reader, name string) mesh.Locality {
	if name == "" {
		return mesh.Locality{}
	}
	l, _ := incr.Get(r, m.tables.nodes, name)
	return l
}

func (p *Pod) instance(ip netip.Addr, ports map[uint32]uint32, td string, at mesh.Locality) *Instance {
	return &Instance{
		Address: ip.String(), Ports: ports, Labels: p.Labels, Weight: 1, Workload: p.Name, Namespace: p.Namespace,
		Identity: mesh.Identity{TrustDomain: td, Namespace: p.Namespace, ServiceAccount: p.account()}.SPIFFE(),
		TLS:      p.Labels[mesh.TLSModeLabel] == "istio",
		Locality: at,
		Network:  p.Labels["topology.istio.io/network"],
	}
}

func (m *Model) sliceInstances(r *incr.Reader, s *Service, td string) []*Instance {
	var out []*Instance
	for _, sl := range incr.In(r, m.tables.slices, s.Row.Key()) {
		ports := map[uint32]uint32{}
		for _, sp := range sl.Spec.Ports {
			for _, p := range s.Ports {
				if sp.Name == p.Name {
					ports[p.Number] = sp.Port
				}
			}
		}
		for _, e := range sl.Spec.Endpoints {
			if len(e.Addresses) == 0 || e.Terminating || (!e.Ready && !s.Source.PublishNotReady) {
				continue
			}
			i := &Instance{Address: e.Addresses[0].String(), Ports: ports, Weight: 1, Workload: e.Pod, Namespace: s.Namespace}
			if p, ok := incr.Get(r, m.tables.pods, s.Namespace+"/"+e.Pod); ok && e.Pod != "" {
				i = p.instance(e.Addresses[0], ports, td, m.localityOf(r, p))
			}
			if i.Locality == (mesh.Locality{}) {
				i.Locality = m.nodeLocality(r, e.NodeName)
			}
			if e.Zone != "" && i.Locality == (mesh.Locality{}) {
				i.Locality.Zone = e.Zone
			}
			if j := slices.IndexFunc(out, func(o *Instance) bool { return o.Address == i.Address }); j >= 0 {
				maps.Copy(out[j].Ports, i.Ports) // the ports of one endpoint may be in several slices
				continue
			}
			i.Ports = maps.Clone(i.Ports)
			out = append(out, i)
		}
	}
	return out
}

func (m *Model) accounts(r *incr.Reader, key string) []string {
	var out []string
	for _, i := range m.rules.instances.Of(r, key) {
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
