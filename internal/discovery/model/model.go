// Package model has the tables of the mesh's objects, and the rules that relate them.
//
// Apply stores validated objects as rows. All reads go through an *incr.Reader, which records them:
// which services a scope sees, which VirtualService and DestinationRule apply to a host, which
// instances a service has, which policies select a workload, and which class a proxy has. The rules
// of this package use levels 1 to 9 of the graph, those of package compile higher ones.
//
// Rows are immutable. A Model is not safe for concurrent use; it belongs to the goroutine of its graph.
package model

import (
	"github.com/pilothouse/pilothouse/internal/discovery/allocate"
	"github.com/pilothouse/pilothouse/internal/discovery/jwks"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Levels of the rules; a rule reads only rules of lower levels.
const (
	levelRow      = 1
	levelIndex    = 2
	levelScope    = 3
	levelHost     = 4
	levelClassify = 5
	// levelDifference is that of the comparison of scopes.
	levelDifference = 5
	levelDiffers    = 6
	// LevelCompile is the lowest level that compile's rules may use.
	LevelCompile = 10
)

// all is the bucket with every row of a table.
const all = "*"

// Model has the tables and their rules. Create one with New.
type Model struct {
	domain  string
	own     Own
	tables  tables
	rules   rules
	denials map[Denial]bool // each is also a row of tables.peers
	whole   bool            // no scope is derived from another
	// allocateAsked uses allocated addresses only for proxies that ask for them.
	allocateAsked bool
	// unready is that of SendUnready.
	unready bool
	// remoteKeys says who fetches the keys of tokens.
	remoteKeys jwks.Mode
}

type tables struct {
	services *incr.Table[*Service]
	pods     *incr.Table[*Pod]
	nodes    *incr.Table[mesh.Locality]
	entries  *incr.Table[*WorkloadEntry]
	slices   *incr.Table[*Slice]
	virtuals *incr.Table[*VirtualService]
	dests    *incr.Table[*DestinationRule]
	peers    *incr.Table[*PeerAuthentication]
	authz    *incr.Table[*AuthorizationPolicy]
	tokens   *incr.Table[*RequestAuthentication]
	// keys has the key sets that were fetched for RequestAuthentications, by jwks.Source.Key.
	keys     *incr.Table[string]
	sidecars *incr.Table[*Sidecar]
	filters  *incr.Table[*EnvoyFilter]
	// extensions are WasmPlugins and TrafficExtensions.
	extensions *incr.Table[*Extension]
	// telemetry has the Telemetries.
	telemetry *incr.Table[*Telemetry]
	mesh      *incr.Table[*meshv1.MeshConfig]
	// namespaces has the network of each namespace, by its label; networks has the row "networks".
	namespaces *incr.Table[string]
	networks   *incr.Table[*meshv1.MeshNetworks]
	gateways   *incr.Table[*gatewayService]
	// routers has the Gateways.
	routers *incr.Table[*Gateway]
	// classes has the controllers of GatewayClasses; kubernetes has the Gateways of the Gateway API, routes its routes, by
	// kind and key, and grants its ReferenceGrants. spaces has the labels of namespaces, of the control plane's cluster.
	classes    *incr.Table[string]
	kubernetes *incr.Table[*KubernetesGateway]
	// sets has the ListenerSets.
	sets   *incr.Table[*ListenerSet]
	routes *incr.Table[*KubernetesRoute]
	grants *incr.Table[*gatewayv1.ReferenceGrantSpec]
	spaces *incr.Table[map[string]string]
	// policies has the BackendTLSPolicies, bundles the certificates of ConfigMaps with the key ca.crt.
	policies *incr.Table[*BackendTLSPolicy]
	bundles  *incr.Table[bundle]
	// ingressClasses has the controllers of IngressClasses.
	ingressClasses *incr.Table[string]
	ingresses      *incr.Table[*IngressRow]
	// faults has why Secrets cannot be the certificates of listeners, by "namespace/name".
	faults *incr.Table[string]
	// allocated has the virtual addresses of services that have none of their own.
	allocated *incr.Table[allocate.Pair]
}

// Row has the metadata of a row's object.
type Row struct {
	Namespace, Name string
	// Cluster is the remote cluster that has the object, empty for the control plane's own.
	Cluster string
	// Age is the creation time in nanoseconds since 1970, 0 if unknown. If only one of several
	// objects can be used, it is the one with the lowest Age.
	Age int64
}

// Key returns "namespace/name".
func (r Row) Key() string { return r.Namespace + "/" + r.Name }

// Older reports whether r has priority over other: by age, then by key.
func (r Row) Older(other Row) bool {
	if r.Age != other.Age {
		return r.Age < other.Age
	}
	return r.Key() < other.Key()
}

// VirtualService is a row. Hosts are spec.hosts as fully qualified names.
type VirtualService struct {
	Row
	Hosts []string
	// Destinations are the hosts that its routes lead to, sorted.
	Destinations []string
	Spec         *networking.VirtualService
}

// DestinationRule is a row. Host is spec.host as a fully qualified name.
type DestinationRule struct {
	Row
	Host string
	Spec *networking.DestinationRule
}

// PeerAuthentication is the row of an object or of a Denial.
type PeerAuthentication struct {
	Row
	Spec *security.PeerAuthentication
	deny deny
	// gateways are those of a denial.
	gateways []string
}

// AuthorizationPolicy is the row of an object.
type AuthorizationPolicy struct {
	Row
	Spec *security.AuthorizationPolicy
	// DryRun counts what the policy would decide, and decides nothing.
	DryRun bool
}

// RequestAuthentication is the row of an object.
type RequestAuthentication struct {
	Row
	Spec *security.RequestAuthentication
}

// Sidecar is the row of an object.
type Sidecar struct {
	Row
	Spec *networking.Sidecar
}

// Gateway is the row of an object.
type Gateway struct {
	Row
	Spec *networking.Gateway
}

// New adds an empty model to g. domain is the cluster's DNS suffix, such as "cluster.local".
func New(g *incr.Graph, domain string) *Model {
	m := &Model{domain: mesh.HostName(domain), tables: tables{
		services:  incr.NewTable[*Service](g, "services"),
		pods:      incr.NewTable[*Pod](g, "pods"),
		nodes:     incr.NewTable[mesh.Locality](g, "nodes"),
		entries:   incr.NewTable[*WorkloadEntry](g, "workload entries"),
		slices:    incr.NewTable[*Slice](g, "endpoint slices"),
		virtuals:  incr.NewTable[*VirtualService](g, "virtual services"),
		dests:     incr.NewTable[*DestinationRule](g, "destination rules"),
		peers:     incr.NewTable[*PeerAuthentication](g, "peer authentications"),
		authz:     incr.NewTable[*AuthorizationPolicy](g, "authorization policies"),
		tokens:    incr.NewTable[*RequestAuthentication](g, "request authentications"),
		keys:      incr.NewTable[string](g, "fetched keys"),
		sidecars:  incr.NewTable[*Sidecar](g, "sidecars"),
		telemetry: incr.NewTable[*Telemetry](g, "telemetries"),
		filters:   incr.NewTable[*EnvoyFilter](g, "envoy filters"),

		extensions: incr.NewTable[*Extension](g, "extensions"),
		mesh:       incr.NewTable[*meshv1.MeshConfig](g, "mesh"),

		namespaces: incr.NewTable[string](g, "namespaces"),
		networks:   incr.NewTable[*meshv1.MeshNetworks](g, "networks"),
		gateways:   incr.NewTable[*gatewayService](g, "gateway services"),
		faults:     incr.NewTable[string](g, "faults of Secrets"),
		routers:    incr.NewTable[*Gateway](g, "gateways"),
		classes:    incr.NewTable[string](g, "gateway classes"),
		kubernetes: incr.NewTable[*KubernetesGateway](g, "kubernetes gateways"),
		sets:       incr.NewTable[*ListenerSet](g, "listener sets"),
		routes:     incr.NewTable[*KubernetesRoute](g, "kubernetes routes"),
		grants:     incr.NewTable[*gatewayv1.ReferenceGrantSpec](g, "reference grants"),
		spaces:     incr.NewTable[map[string]string](g, "namespace labels"),
		policies:   incr.NewTable[*BackendTLSPolicy](g, "backend TLS policies"),
		bundles:    incr.NewTable[bundle](g, "CA bundles"),
		ingresses:  incr.NewTable[*IngressRow](g, "ingresses"),

		ingressClasses: incr.NewTable[string](g, "ingress classes"),

		allocated: incr.NewTable[allocate.Pair](g, "allocated addresses"),
	}}
	m.tables.mesh.Put("mesh", mesh.DefaultMeshConfig())
	m.derive(g)
	return m
}

// Fork returns the model on a fork of its graph, in constant time: what is applied to either does not affect the
// other. Its rules and those of package compile are the same as before; use Classify and Claims of the fork.
func (m *Model) Fork(g *incr.Graph) *Model {
	f, t := *m, m.tables
	f.tables = tables{
		services: t.services.On(g), pods: t.pods.On(g), nodes: t.nodes.On(g), entries: t.entries.On(g), slices: t.slices.On(g), virtuals: t.virtuals.On(g),
		dests: t.dests.On(g), peers: t.peers.On(g), authz: t.authz.On(g), tokens: t.tokens.On(g), keys: t.keys.On(g), sidecars: t.sidecars.On(g), filters: t.filters.On(g), extensions: t.extensions.On(g), telemetry: t.telemetry.On(g), mesh: t.mesh.On(g),
		namespaces: t.namespaces.On(g), networks: t.networks.On(g), gateways: t.gateways.On(g), routers: t.routers.On(g), allocated: t.allocated.On(g),
		classes: t.classes.On(g), kubernetes: t.kubernetes.On(g), sets: t.sets.On(g), routes: t.routes.On(g), grants: t.grants.On(g), spaces: t.spaces.On(g),
		policies: t.policies.On(g), bundles: t.bundles.On(g), faults: t.faults.On(g),
		ingressClasses: t.ingressClasses.On(g), ingresses: t.ingresses.On(g),
	}
	f.rules.classify, f.rules.claims = m.rules.classify.On(g), m.rules.claims.On(g)
	return &f
}

// SetMesh replaces the mesh configuration, which must not be modified afterwards.
func (m *Model) SetMesh(c *meshv1.MeshConfig) { m.tables.mesh.Put("mesh", c) }

// Mesh returns the mesh configuration, which must not be modified.
func (m *Model) Mesh(r *incr.Reader) *meshv1.MeshConfig {
	c, _ := incr.Get(r, m.tables.mesh, "mesh")
	return c
}

// Domain returns the cluster's DNS suffix.
func (m *Model) Domain() string { return m.domain }

// Counts returns the number of rows by table, for metrics.
func (m *Model) Counts() map[string]int {
	t := &m.tables
	return map[string]int{
		"services": t.services.Len(), "pods": t.pods.Len(), "nodes": t.nodes.Len(), "workload_entries": t.entries.Len(),
		"virtual_services": t.virtuals.Len(), "destination_rules": t.dests.Len(),
		"peer_authentications": t.peers.Len() - len(m.denials), "authorization_policies": t.authz.Len(), "request_authentications": t.tokens.Len(), "sidecars": t.sidecars.Len(), "envoy_filters": t.filters.Len(), "extensions": t.extensions.Len(), "telemetries": t.telemetry.Len(), "gateways": t.routers.Len(), "kubernetes_gateways": t.kubernetes.Len(), "kubernetes_routes": t.routes.Len(), "ingresses": t.ingresses.Len(), "endpoint_slices": t.slices.Len(),
	}
}

// Apply stores or removes objects, which must be valid. It panics for an unknown kind. The rules are
// rerun by the next Run of the graph.
func (m *Model) Apply(changes []object.Change) {
	for _, c := range changes {
		row, ok := kinds[c.Key.Kind]
		switch {
		case !ok:
			panic("model: unknown kind of object: " + c.Key.String())
		case c.Object == nil:
			row.remove(m, c.Key)
		default:
			row.put(m, c.Object)
		}
	}
}
