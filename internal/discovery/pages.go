package discovery

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// The pages of this file have the fields of Istio's, as far as they have a meaning here.
// [control-plane 1.16.4]

// clientEntry is one connection in /debug/adsz and /debug/connections.
type clientEntry struct {
	ConnectionID string              `json:"connectionId"`
	ConnectedAt  time.Time           `json:"connectedAt"`
	Address      string              `json:"address"`
	Labels       map[string]string   `json:"labels,omitempty"`
	Metadata     map[string]string   `json:"metadata,omitempty"`
	Locality     *localityEntry      `json:"locality,omitempty"`
	Watches      map[string][]string `json:"watches,omitempty"`
}

type localityEntry struct {
	Region  string `json:"region,omitempty"`
	Zone    string `json:"zone,omitempty"`
	SubZone string `json:"sub_zone,omitempty"`
}

type clientList struct {
	Total   int           `json:"totalClients"`
	Clients []clientEntry `json:"clients,omitempty"`
}

func entryOf(c xds.Connection) clientEntry {
	return clientEntry{ConnectionID: c.ID, ConnectedAt: c.Since.UTC(), Address: c.Peer}
}

// connections lists the connections of proxies.
func (s *Server) connections(w http.ResponseWriter, _ *http.Request) {
	var out clientList
	for _, c := range s.xds.Connections() {
		out.Clients = append(out.Clients, entryOf(c))
	}
	out.Total = len(out.Clients)
	writeJSON(w, out)
}

// watchesLimit is how long streams may take to say what they are subscribed to. Those that wait for
// their clients do not answer.
const watchesLimit = 2 * time.Second

// adsz lists the connections of proxies with what they said of themselves and have subscribed to.
func (s *Server) adsz(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("push") != "" {
		http.Error(w, "push is not available: proxies are sent what they lack, and nothing else", http.StatusNotImplemented)
		return
	}
	all := s.xds.Connections()
	if id := r.URL.Query().Get("proxyID"); id != "" {
		c, ok := s.xds.Find(id)
		if !ok {
			notConnected(w, id)
			return
		}
		all = []xds.Connection{c}
	}
	var ids []string
	for _, c := range all {
		ids = append(ids, c.ID)
	}
	ctx, cancel := context.WithTimeout(r.Context(), watchesLimit)
	defer cancel()
	watches := s.xds.Watches(ctx, ids)
	var out clientList
	for _, c := range all {
		e := entryOf(c)
		m := c.Node.Metadata
		e.Labels, e.Watches, e.Metadata = m.Labels, watches[c.ID], map[string]string{}
		for key, value := range map[string]string{
			"NAME": m.Name, "NAMESPACE": c.Node.Namespace(), "SERVICE_ACCOUNT": m.ServiceAccount, "CLUSTER_ID": m.ClusterID, "NETWORK": m.Network, "ISTIO_VERSION": m.IstioVersion,
		} {
			if value != "" {
				e.Metadata[key] = value
			}
		}
		if l := c.Node.Locality; l != (mesh.Locality{}) {
			e.Locality = &localityEntry{l.Region, l.Zone, l.Subzone}
		}
		out.Clients = append(out.Clients, e)
	}
	out.Total = len(out.Clients)
	writeJSON(w, out)
}

// listPages lists the pages that tools may ask for.
func (s *Server) listPages(w http.ResponseWriter, _ *http.Request) {
	var out []string
	for _, p := range s.pages() {
		if p.why == "" && !p.local && p.path != "list" {
			out = append(out, p.path)
		}
	}
	writeJSON(w, out)
}

// clusterz lists the clusters that objects are read from.
func (s *Server) clusterz(w http.ResponseWriter, _ *http.Request) {
	status := "syncing"
	s.loop.ask(func() {
		if s.loop.gate.synced {
			status = "synced"
		}
	})
	list := []map[string]string{{"id": s.ownCluster(), "secretName": "", "syncStatus": status}}
	for _, c := range s.source.Clusters() {
		one := map[string]string{"id": c.ID, "secretName": c.Secret, "syncStatus": "syncing"}
		if c.Synced {
			one["syncStatus"] = "synced"
		}
		if !c.Behind.IsZero() {
			one["behindSince"] = c.Behind.UTC().Format(time.RFC3339)
		}
		list = append(list, one)
	}
	writeJSON(w, list)
}

// registryName is Istio's name of the registry of Kubernetes' services, and that of a cluster that has no name.
const registryName = "Kubernetes"

// ownCluster returns the name of the cluster that is not remote.
func (s *Server) ownCluster() string { return cmp.Or(s.opts.Kubernetes.Cluster, registryName) }

// networkEntry is a gateway in /debug/networkz.
type networkEntry struct {
	Network, Cluster, Addr string
	Port                   uint32
}

// networkz lists the gateways of all networks.
func (s *Server) networkz(w http.ResponseWriter, _ *http.Request) {
	var gateways []model.NetworkGateway
	if !s.loop.ask(func() { gateways = s.loop.list().gateways }) {
		unanswered(w)
		return
	}
	out := []networkEntry{}
	for _, g := range gateways {
		out = append(out, networkEntry{g.Network, g.Cluster, g.Address, g.Port})
	}
	writeJSON(w, out)
}

// injectTemplates writes the templates of the injector.
func (s *Server) injectTemplates(w http.ResponseWriter, _ *http.Request) {
	if s.webhooks.injector == nil {
		http.Error(w, "nothing is injected: that needs a cluster, from which the configuration is read, and --httpsAddr", http.StatusNotFound)
		return
	}
	texts, ok := s.webhooks.injector.TemplateTexts()
	if !ok {
		http.Error(w, "the configuration of the injector has not been read: see the log of pilot-discovery", http.StatusServiceUnavailable)
		return
	}
	writeJSON(w, texts)
}

// meshz writes the mesh configuration in force.
func (s *Server) meshz(w http.ResponseWriter, _ *http.Request) {
	var out proto.Message
	if !s.loop.ask(func() {
		out = s.loop.store.CurrentMesh()
	}) {
		unanswered(w)
		return
	}
	writeMessage(w, out)
}

// unanswered tells a client that the loop does not answer.
func unanswered(w http.ResponseWriter) {
	http.Error(w, "the control plane is busy or ending: see /ready", http.StatusServiceUnavailable)
}

// groupVersion returns the API of one of Istio's kinds, false for others.
func groupVersion(k object.Kind) (group, version string, ok bool) {
	switch k {
	case object.ServiceEntry, object.WorkloadEntry, object.VirtualService, object.DestinationRule, object.Sidecar, object.Gateway, object.WorkloadGroup:
		return "networking.istio.io", "v1", true
	case object.EnvoyFilter:
		return "networking.istio.io", "v1alpha3", true
	case object.ProxyConfig:
		return "networking.istio.io", "v1beta1", true
	case object.PeerAuthentication, object.RequestAuthentication, object.AuthorizationPolicy:
		return "security.istio.io", "v1", true
	case object.Telemetry:
		return "telemetry.istio.io", "v1", true
	case object.WasmPlugin, object.TrafficExtension:
		return "extensions.istio.io", "v1alpha1", true
	case object.Namespace, object.Node, object.Service, object.EndpointSlice, object.Pod, object.ServiceAccount, object.Secret, object.ConfigMap,
		object.GatewayClass, object.KubernetesGateway, object.ListenerSet, object.HTTPRoute, object.GRPCRoute, object.TLSRoute, object.TCPRoute, object.UDPRoute, object.ReferenceGrant, object.BackendTLSPolicy, object.IngressClass, object.Ingress:
		return "", "", false
	}
	panic("discovery: unknown kind of object: " + string(k))
}

// resourcesz lists Istio's kinds.
func (s *Server) resourcesz(w http.ResponseWriter, _ *http.Request) {
	type kind struct {
		Group   string `json:"group"`
		Version string `json:"version"`
		Kind    string `json:"kind"`
	}
	var out []kind
	for _, k := range object.Kinds() {
		if group, version, ok := groupVersion(k); ok {
			out = append(out, kind{group, version, string(k)})
		}
	}
	writeJSON(w, out)
}

// configEntry is an object in /debug/configz, in the form of its YAML.
type configEntry struct {
	Kind       string          `json:"kind"`
	APIVersion string          `json:"apiVersion"`
	Metadata   configMeta      `json:"metadata"`
	Spec       json.RawMessage `json:"spec"`
}

type configMeta struct {
	Name              string            `json:"name"`
	Namespace         string            `json:"namespace,omitempty"`
	ResourceVersion   string            `json:"resourceVersion,omitempty"`
	Generation        int64             `json:"generation,omitempty"`
	CreationTimestamp *time.Time        `json:"creationTimestamp"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
}

// configz lists Istio's objects that are in force. Objects of Kubernetes' kinds, Secrets among them, are
// left out.
func (s *Server) configz(w http.ResponseWriter, _ *http.Request) {
	var objects []*object.Object
	if !s.loop.ask(func() { objects = s.loop.store.Good() }) {
		unanswered(w)
		return
	}
	out := []configEntry{}
	for _, o := range objects {
		group, version, ok := groupVersion(o.Kind)
		message, isMessage := o.Spec.(proto.Message)
		if !ok || !isMessage {
			continue
		}
		spec, err := protojson.Marshal(message)
		if err != nil {
			http.Error(w, o.Key.String()+": "+err.Error(), http.StatusInternalServerError)
			return
		}
		e := configEntry{Kind: string(o.Kind), APIVersion: group + "/" + version, Spec: spec, Metadata: configMeta{
			Name: o.Name, Namespace: o.Namespace, ResourceVersion: o.Meta.ResourceVersion, Generation: o.Meta.Generation,
			Labels: o.Meta.Labels, Annotations: o.Meta.Annotations,
		}}
		if created := o.Meta.Created; !created.IsZero() {
			e.Metadata.CreationTimestamp = &created
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b configEntry) int {
		return strings.Compare(a.Kind+"\x00"+a.Metadata.Namespace+"\x00"+a.Metadata.Name, b.Kind+"\x00"+b.Metadata.Namespace+"\x00"+b.Metadata.Name)
	})
	writeJSON(w, out)
}

// inventory is a service with its ready endpoints.
type inventory struct {
	service   *model.Service
	instances []*model.Instance
}

// listing is what the mesh has.
type listing struct {
	services []inventory
	gateways []model.NetworkGateway
}

// listingRule is the rule that lists what the mesh has; it has a value only while a page is made.
func listingRule(g *incr.Graph, m *model.Model) *incr.Rule[struct{}, listing] {
	return incr.Derive(g, model.LevelCompile, "listing", func(r *incr.Reader, _ struct{}) listing {
		out := listing{gateways: m.NetworkGateways(r)}
		for _, s := range m.ServiceRows(r) {
			out.services = append(out.services, inventory{s, m.Instances(r, s.Key)})
		}
		return out
	})
}

// list returns what the mesh has. Call it through ask.
func (l *loop) list() listing {
	out := l.listing.Want(struct{}{})
	l.listing.Unwant(struct{}{})
	l.graph.Run() // drop it
	return out
}

// allServices returns all services with their endpoints; false if the loop does not answer.
func (l *loop) allServices() (out []inventory, ok bool) {
	ok = l.ask(func() { out = l.list().services })
	return out, ok
}

// serviceEntry is a service in /debug/registryz and /debug/instancesz.
type serviceEntry struct {
	Attributes      serviceAttributes `json:"Attributes"`
	Ports           []portEntry       `json:"ports,omitempty"`
	ServiceAccounts []string          `json:"serviceAccounts,omitempty"`
	CreationTime    *time.Time        `json:"creationTime,omitempty"`
	Hostname        string            `json:"hostname"`
	ClusterVIPs     clusterVIPs       `json:"clusterVIPs"`
	DefaultAddress  string            `json:"defaultAddress,omitempty"`
	// Resolution is Istio's number: 0 endpoints of the control plane, 1 DNS, 2 the original
	// destination, 3 DNS with one address.
	Resolution   int
	MeshExternal bool
}

type serviceAttributes struct {
	ServiceRegistry, Name, Namespace string
	LabelSelectors                   map[string]string
	ExportTo                         []string
}

type portEntry struct {
	Name     string `json:"name,omitempty"`
	Port     uint32 `json:"port"`
	Protocol string `json:"protocol,omitempty"`
}

type clusterVIPs struct {
	Addresses map[string][]string
}

func portOf(p model.Port) portEntry {
	protocol := strings.ToUpper(p.Protocol.String())
	if p.Protocol == mesh.Auto {
		protocol = "UnsupportedProtocol" // Istio's name of one that is not declared
	}
	return portEntry{p.Name, p.Number, protocol}
}

// serviceOf describes a service; cluster is the control plane's own.
func serviceOf(s *model.Service, cluster string) serviceEntry {
	registry := "External"
	if s.Source.Kubernetes {
		registry = registryName
	}
	e := serviceEntry{
		Attributes: serviceAttributes{ServiceRegistry: registry, Name: s.Name, Namespace: s.Namespace, LabelSelectors: s.Source.Selector, ExportTo: s.ExportTo},
		Hostname:   s.Host, MeshExternal: s.External, DefaultAddress: "0.0.0.0", ServiceAccounts: s.Source.SANs,
	}
	for _, p := range s.Ports {
		e.Ports = append(e.Ports, portOf(p))
	}
	if s.Age != 0 {
		created := time.Unix(0, s.Age).UTC()
		e.CreationTime = &created
	}
	var addresses []string
	for _, ip := range s.Addresses.VIPs {
		addresses = append(addresses, ip.String())
	}
	for _, prefix := range s.Addresses.CIDRs {
		addresses = append(addresses, prefix.String())
	}
	if len(addresses) > 0 {
		e.DefaultAddress, e.ClusterVIPs.Addresses = addresses[0], map[string][]string{cluster: addresses}
	}
	switch s.Resolution {
	case model.Static:
	case model.DNS:
		e.Resolution = 1
	case model.Passthrough:
		e.Resolution = 2
	case model.DNSRoundRobin:
		e.Resolution = 3
	case model.Dynamic:
		e.Resolution = 5 // 4 is an alias
	default:
		panic("discovery: unknown resolution of service " + s.Key)
	}
	return e
}

// registryz lists all services.
func (s *Server) registryz(w http.ResponseWriter, _ *http.Request) {
	all, ok := s.loop.allServices()
	if !ok {
		unanswered(w)
		return
	}
	out := []serviceEntry{}
	for _, i := range all {
		out = append(out, serviceOf(i.service, s.ownCluster()))
	}
	writeJSON(w, out)
}

// shards are the endpoints of a service in /debug/endpointShardz.
type shards struct {
	Shards          map[string][]endpointEntry
	ServiceAccounts []string
}

type endpointEntry struct {
	Labels          map[string]string
	Addresses       []string
	ServicePortName string
	ServiceAccount  string
	Network         string
	Locality        struct{ Label, ClusterID string }
	EndpointPort    uint32
	LbWeight        uint32
	TLSMode         string
	Namespace       string
	WorkloadName    string
}

// endpointShardz writes the ready endpoints of all services, by host and namespace.
func (s *Server) endpointShardz(w http.ResponseWriter, _ *http.Request) {
	all, ok := s.loop.allServices()
	if !ok {
		unanswered(w)
		return
	}
	out := map[string]map[string]shards{}
	// Services of one host and namespace in several clusters list each other's endpoints.
	type place struct{ host, namespace, shard, address, port string }
	listed := map[place]bool{}
	for _, i := range all {
		if out[i.service.Host] == nil {
			out[i.service.Host] = map[string]shards{}
		}
		registry := "External/"
		if i.service.Source.Kubernetes {
			registry = registryName + "/"
		}
		list := map[string][]endpointEntry{registry + s.ownCluster(): {}}
		of := out[i.service.Host][i.service.Namespace]
		for _, in := range i.instances {
			cluster := cmp.Or(in.ClusterID, s.ownCluster())
			for _, e := range endpointsOf(i.service, in, cluster) {
				if p := (place{i.service.Host, i.service.Namespace, registry + cluster, in.Address, e.ServicePortName}); !listed[p] {
					listed[p] = true
					list[registry+cluster] = append(list[registry+cluster], e)
				}
			}
			if in.Identity != "" {
				of.ServiceAccounts = append(of.ServiceAccounts, in.Identity)
			}
		}
		if of.Shards == nil {
			of.Shards = map[string][]endpointEntry{}
		}
		for shard, more := range list {
			of.Shards[shard] = append(of.Shards[shard], more...)
		}
		slices.Sort(of.ServiceAccounts)
		of.ServiceAccounts = slices.Compact(of.ServiceAccounts)
		out[i.service.Host][i.service.Namespace] = of
	}
	writeJSON(w, out)
}

// endpointsOf are the ports of an instance in a cluster.
func endpointsOf(s *model.Service, in *model.Instance, cluster string) (out []endpointEntry) {
	for _, p := range s.Ports {
		target, ok := in.Ports[p.Key()]
		if !ok {
			continue
		}
		e := endpointEntry{
			Labels: in.Labels, Addresses: append([]string{in.Address}, in.Others...), ServicePortName: p.Name, ServiceAccount: in.Identity, Network: in.Network,
			EndpointPort: target, LbWeight: in.Weight, TLSMode: "disabled", Namespace: in.Namespace, WorkloadName: in.Workload,
		}
		e.Locality.Label, e.Locality.ClusterID = in.Locality.String(), cluster
		if in.TLS {
			e.TLSMode = "istio"
		}
		out = append(out, e)
	}
	return out
}

// instancesz writes the services of each connected proxy, by its addresses.
func (s *Server) instancesz(w http.ResponseWriter, _ *http.Request) {
	type targetPort struct {
		portEntry
		TargetPort uint32
	}
	type target struct {
		Service serviceEntry
		Port    targetPort
	}
	all, ok := s.loop.allServices()
	if !ok {
		unanswered(w)
		return
	}
	type place struct {
		service  *model.Service
		instance *model.Instance
	}
	at := map[string][]place{}
	for _, i := range all {
		for _, in := range i.instances {
			for _, a := range append([]string{in.Address}, in.Others...) {
				key := in.Namespace + "/" + a
				at[key] = append(at[key], place{i.service, in})
			}
		}
	}
	out := map[string][]target{}
	for _, c := range s.xds.Connections() {
		list := []target{}
		addresses := c.Node.IPs()
		slices.SortFunc(addresses, netip.Addr.Compare)
		for _, ip := range slices.Compact(addresses) {
			for _, p := range at[c.Node.Namespace()+"/"+ip.Unmap().String()] {
				for _, port := range p.service.Ports {
					if number, ok := p.instance.Ports[port.Key()]; ok {
						list = append(list, target{serviceOf(p.service, s.ownCluster()), targetPort{portOf(port), number}})
					}
				}
			}
		}
		out[c.Node.ID] = list
	}
	writeJSON(w, out)
}

// pushStatus writes what the configuration in force lacks: the values behind metrics such as
// pilot_eds_no_instances.
func (s *Server) pushStatus(w http.ResponseWriter, _ *http.Request) {
	gaps, ok := s.loop.gaps()
	if !ok {
		unanswered(w)
		return
	}
	out := map[string]map[string]struct{}{}
	for metric, names := range gaps {
		out[metric] = map[string]struct{}{}
		for _, name := range names {
			out[metric][name] = struct{}{}
		}
	}
	writeJSON(w, out)
}
