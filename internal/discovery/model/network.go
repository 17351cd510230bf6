package model

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"

	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	meshv1 "istio.io/api/mesh/v1alpha1"
)

// The labels of clusters and networks.
const (
	networkLabel     = "topology.istio.io/network"
	clusterLabel     = "topology.istio.io/cluster"
	gatewayPortLabel = "networking.istio.io/gatewayPort"
)

// defaultGatewayPort is the port of a network's gateways unless something else is given.
const defaultGatewayPort = 15443

// Own says where the control plane is.
type Own struct {
	// Cluster is the ID of its cluster; it may be empty. Namespace is its namespace, whose label in each cluster is the
	// cluster's network.
	Cluster, Namespace string
}

// SetOwn says where the control plane is. It must be called before the first rule runs.
func (m *Model) SetOwn(o Own) { m.own = o }

// clusterID returns the ID of a row's cluster.
func (m *Model) clusterID(cluster string) string { return cmp.Or(cluster, m.own.Cluster) }

// clusterBucket is the bucket of a cluster's namespaces.
func clusterBucket(cluster string) string { return "cluster:" + cluster }

// clusterOf returns the remote cluster with an ID that a proxy has given; "" for the control plane's own, and for one
// that is not known.
func (m *Model) clusterOf(r *incr.Reader, id string) string {
	if id == "" || id == m.own.Cluster || len(incr.Keys(r, m.tables.namespaces, clusterBucket(id))) == 0 {
		return ""
	}
	return id
}

// SetNetworks replaces the networks of the mesh and their gateways, which must be valid and must not be modified
// afterwards; nil for none.
func (m *Model) SetNetworks(n *meshv1.MeshNetworks) {
	if n == nil {
		m.tables.networks.Delete("networks")
		return
	}
	m.tables.networks.Put("networks", n)
}

func (m *Model) meshNetworks(r *incr.Reader) map[string]*meshv1.Network {
	n, _ := incr.Get(r, m.tables.networks, "networks")
	return n.GetNetworks()
}

// clusterNetwork returns the network of a cluster: the label of the control plane's namespace there, else the network
// that names the cluster. The result may be empty.
func (m *Model) clusterNetwork(r *incr.Reader, cluster string) string {
	if label, _ := incr.Get(r, m.tables.namespaces, inCluster(m.own.Namespace, cluster)); label != "" {
		return label
	}
	id := m.clusterID(cluster)
	return firstNetwork(m.meshNetworks(r), func(e *meshv1.Network_NetworkEndpoints) bool {
		return id != "" && e.GetFromRegistry() == id
	})
}

// network returns the network of an endpoint of a cluster: its label, else that of the cluster, else the one with its
// address. The result may be empty.
func (m *Model) network(r *incr.Reader, cluster string, labels map[string]string, address string) string {
	if label := cmp.Or(labels[networkLabel], m.clusterNetwork(r, cluster)); label != "" {
		return label
	}
	networks := m.meshNetworks(r)
	if len(networks) == 0 {
		return ""
	}
	ip, err := netip.ParseAddr(address)
	return firstNetwork(networks, func(e *meshv1.Network_NetworkEndpoints) bool {
		cidr, bad := netip.ParsePrefix(e.GetFromCidr())
		return err == nil && bad == nil && cidr.Contains(ip)
	})
}

// firstNetwork returns the first network by name of which an entry of endpoints matches.
func firstNetwork(networks map[string]*meshv1.Network, match func(*meshv1.Network_NetworkEndpoints) bool) (first string) {
	for name, n := range networks {
		if (first == "" || name < first) && slices.ContainsFunc(n.GetEndpoints(), match) {
			first = name
		}
	}
	return first
}

// gatewayService is the row of a Service that is reached from outside its cluster, so that it may be a gateway of a network.
type gatewayService struct {
	Row
	network   string // its label
	port      uint32
	addresses []string
	// names are those of its load balancer, which the endpoints of other networks cannot be.
	names []string
}

// reached are its addresses and names as a status has them.
func (g *gatewayService) reached() (out []object.GatewayAddress) {
	for _, a := range g.addresses {
		out = append(out, object.GatewayAddress{Type: "IPAddress", Value: a})
	}
	for _, name := range g.names {
		out = append(out, object.GatewayAddress{Type: "Hostname", Value: name})
	}
	return out
}

func (m *Model) putGatewayService(o *object.Object, spec *object.ServiceSpec) {
	g := &gatewayService{Row: rowOf(o), network: o.Meta.Labels[networkLabel], port: defaultGatewayPort}
	g.Age = 0 // what is made of it does not depend on it
	if n, err := strconv.ParseUint(o.Meta.Labels[gatewayPortLabel], 10, 16); err == nil && n > 0 {
		g.port = uint32(n)
	}
	for _, a := range spec.ExternalAddresses {
		g.addresses = append(g.addresses, a.String())
	}
	g.names = spec.ExternalHostnames
	if len(g.addresses)+len(g.names) == 0 {
		m.tables.gateways.Delete(rowKey(o.Key))
		return
	}
	buckets := []string{"host:" + mesh.FullHost(o.Name, o.Namespace, m.domain)}
	if g.network != "" {
		buckets = append(buckets, all)
	}
	m.tables.gateways.Put(rowKey(o.Key), g, buckets...)
}

// NetworkGateway is an address at which endpoints of a network are reached from other networks, by mutual TLS.
type NetworkGateway struct {
	Network string
	Address string // an IP address
	Port    uint32
	// Cluster is the ID of the cluster that the gateway is in; empty if it is not known. Endpoints of that cluster are
	// reached through its gateways.
	Cluster string
}

// NetworkGateways returns the gateways of all networks, sorted: the addresses and services in the mesh's networks, and
// the Services that are labelled with a network.
func (m *Model) NetworkGateways(r *incr.Reader) []NetworkGateway { return m.rules.gateways.Of(r, "") }

// GatewaysOf returns the gateways of a cluster's endpoints in a network, of all that there are: those in the cluster if
// there are any.
func GatewaysOf(all []NetworkGateway, network, cluster string) []NetworkGateway {
	var near, far []NetworkGateway
	for _, g := range all {
		if g.Network != network {
			continue
		}
		if far = append(far, g); g.Cluster == cluster && cluster != "" {
			near = append(near, g)
		}
	}
	if len(near) > 0 {
		return near
	}
	return far
}

func (m *Model) networkGateways(r *incr.Reader, _ string) []NetworkGateway {
	var out []NetworkGateway
	add := func(network string, port uint32, s *gatewayService) {
		for _, a := range s.addresses {
			out = append(out, NetworkGateway{Network: network, Address: a, Port: port, Cluster: m.clusterID(s.Cluster)})
		}
	}
	for _, s := range incr.In(r, m.tables.gateways, all) {
		add(s.network, s.port, s)
	}
	for name, n := range m.meshNetworks(r) {
		for _, g := range n.GetGateways() {
			port := cmp.Or(g.GetPort(), defaultGatewayPort)
			if a := g.GetAddress(); a != "" {
				out = append(out, NetworkGateway{Network: name, Address: a, Port: port})
				continue
			}
			for _, s := range incr.In(r, m.tables.gateways, "host:"+mesh.HostName(g.GetRegistryServiceName())) {
				if fromRegistry(n, m.clusterID(s.Cluster)) && s.network == "" {
					add(name, port, s)
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b NetworkGateway) int {
		return cmp.Or(cmp.Compare(a.Network, b.Network), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Cluster, b.Cluster))
	})
	return slices.Compact(out)
}

// fromRegistry reports whether a network names a cluster, or none.
func fromRegistry(n *meshv1.Network, id string) bool {
	named := false
	for _, e := range n.GetEndpoints() {
		if e.GetFromRegistry() == id {
			return true
		}
		named = named || e.GetFromRegistry() != ""
	}
	return !named
}
