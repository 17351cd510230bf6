// Package compile translates the model to Envoy's resources.
//
// One run of a rule computes the bytes of one resource from a Key: the resource's name, and the part
// of a proxy's class that determines it. The list of a layer's resources is a rule, too (Names). There
// are rules for intermediate results, such as the parts that a service adds to a scope's listeners, the
// domains of a route configuration, and an encoded virtual host. Each of them is a cut-off:
//
//	services ─▶ plan ─▶ index ─▶ listener            DestinationRule ─▶ cluster
//	                      └────▶ routes ─▶ domains ─▶ virtual host ─▶ joined ─▶ route, or virtual host resource
//	instances ─▶ assignment ─▶ endpoints             PeerAuthentication ─▶ virtualInbound
//
// Rules are pure: they read through their incr.Reader, and know a proxy only by its class. The bytes
// are deterministic. The packages below this one translate single objects to Envoy's messages.
package compile

import (
	"fmt"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/authz"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/listener"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/patch"
	"github.com/pilothouse/pilothouse/internal/discovery/jwks"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Kind is the type of a resource and the part of a class that determines it.
type Kind uint8

// The kinds of resources, in the order in which proxies accept them.
const (
	// Cluster is an outbound cluster, determined by the scope.
	Cluster Kind = iota
	// ClusterInline is an outbound cluster that contains its endpoints, determined by the scope and
	// the location.
	ClusterInline
	// ClusterInbound is a cluster for the application, determined by the workload.
	ClusterInbound
	// Endpoints is the load assignment of a Cluster, determined by the scope and the location.
	Endpoints
	// EndpointsOwn is the load assignment of the endpoints of a proxy's own workload, determined by the workload.
	EndpointsOwn
	// Listener is an outbound listener, determined by the scope.
	Listener
	// ListenerInbound is virtualInbound, determined by the workload.
	ListenerInbound
	// ListenerAPI is what a gRPC client asks for by the name that it dials, determined by the scope.
	ListenerAPI
	// ListenerServer is what a gRPC server asks for by the address that it listens at, determined by the workload.
	ListenerServer
	// Route is a route configuration, determined by the scope.
	Route
	// RouteAPI is the route configuration of a gRPC client, of one port of one service, determined by the scope.
	RouteAPI
	// VirtualHost is a virtual host of a Route for which Key.SeparateHosts is true, determined by the scope.
	VirtualHost
	// The others are resources of the kinds above with patches of EnvoyFilters, or such as these add, determined by the same.
	ClusterPatched
	ClusterInlinePatched
	ClusterInboundPatched
	ListenerPatched
	ListenerInboundPatched
	RoutePatched
	VirtualHostPatched
	// ExtensionPatched is an extension configuration (ECDS) that an EnvoyFilter adds to a router, determined by the scope, and
	// ExtensionInboundPatched one of a sidecar, for all of its listeners, determined by the workload.
	ExtensionPatched
	ExtensionInboundPatched
	numKinds
)

// kindRow is the row of a kind.
type kindRow struct {
	// name is that of the rule, in metrics.
	name string
	// message is a nil pointer of the type of the resources.
	message proto.Message
	// layer is the one that the resources are in.
	layer LayerKind
	// level is that of the rule, levelResource if it is 0.
	level int
	rule  func(*Compiler, *incr.Reader, Key) Body
}

// patched returns the row of the kind of a row's resources with patches.
func (r kindRow) patched() kindRow {
	r.name, r.level, r.rule = "patched "+r.name, levelPatched, inOnePiece((*Compiler).patchedBody)
	return r
}

// kinds has a row for each Kind.
var kinds = [numKinds]kindRow{
	Cluster:         {"cluster", (*clusterv3.Cluster)(nil), ScopeLayer, 0, inOnePiece((*Compiler).cluster)},
	ClusterInline:   {"inline cluster", (*clusterv3.Cluster)(nil), LocationLayer, 0, inOnePiece((*Compiler).cluster)},
	ClusterInbound:  {"inbound cluster", (*clusterv3.Cluster)(nil), WorkloadLayer, 0, inOnePiece((*Compiler).inboundCluster)},
	Endpoints:       {"endpoints", (*endpointv3.ClusterLoadAssignment)(nil), LocationLayer, 0, inOnePiece((*Compiler).endpoints)},
	EndpointsOwn:    {"own endpoints", (*endpointv3.ClusterLoadAssignment)(nil), WorkloadLayer, 0, inOnePiece((*Compiler).ownEndpoints)},
	Listener:        {"listener", (*listenerv3.Listener)(nil), ScopeLayer, 0, inOnePiece((*Compiler).listener)},
	ListenerInbound: {"inbound listener", (*listenerv3.Listener)(nil), WorkloadLayer, 0, inOnePiece((*Compiler).inboundListener)},
	ListenerAPI:     {"gRPC listener", (*listenerv3.Listener)(nil), ScopeLayer, 0, inOnePiece((*Compiler).listenerAPI)},
	ListenerServer:  {"gRPC server listener", (*listenerv3.Listener)(nil), WorkloadLayer, 0, inOnePiece((*Compiler).listenerServer)},
	RouteAPI:        {"gRPC route", (*routev3.RouteConfiguration)(nil), ScopeLayer, 0, inOnePiece((*Compiler).routeAPI)},
	Route:           {"route", (*routev3.RouteConfiguration)(nil), ScopeLayer, 0, (*Compiler).route},
	VirtualHost:     {"virtual host resource", (*routev3.VirtualHost)(nil), ScopeLayer, 0, inOnePiece((*Compiler).virtualHostResource)},
}

func init() {
	for bare, k := range patchedKinds {
		kinds[k] = kinds[bare].patched()
	}
	// There are none without patches.
	kinds[ExtensionPatched] = kindRow{name: "extension", message: (*corev3.TypedExtensionConfig)(nil), layer: ScopeLayer}.patched()
	kinds[ExtensionInboundPatched] = kindRow{name: "inbound extension", message: (*corev3.TypedExtensionConfig)(nil), layer: WorkloadLayer}.patched()
}

// Kinds returns all kinds, in the order of their constants.
func Kinds() []Kind {
	all := make([]Kind, numKinds)
	for k := range numKinds {
		all[k] = k
	}
	return all
}

// row returns the kind's row. It panics for a kind that has none.
func (k Kind) row() kindRow {
	if k >= numKinds || kinds[k].rule == nil {
		panic(fmt.Sprintf("compile: unknown kind %d: it has no row in kinds", k))
	}
	return kinds[k]
}

// TypeURL returns the type URL of the kind's resources. It panics for an unknown kind.
func (k Kind) TypeURL() string { return marshal.TypeURL(k.row().message) }

// Key identifies one resource. Parts of the class that do not determine the resource are zero, so that
// classes share keys.
type Key struct {
	Kind Kind
	// EDS is set for clusters whose endpoints are a resource of EDS, of the same name.
	EDS bool
	// SeparateHosts is set for route configurations whose virtual hosts are resources of their own.
	SeparateHosts bool
	Name          string
	Scope         mesh.ScopeID
	Location      mesh.LocationID
	Workload      mesh.WorkloadID
}

// Levels of the rules in this package.
const (
	levelPlan = model.LevelCompile + iota
	levelIndex
	levelLookup
	levelCompare
	levelMerge
	levelDomains
	levelDomainIndex
	levelOwnDomains
	levelHostDomains
	levelHost
	levelJoin
	levelResource
	levelNames
	levelDerive
	levelBare
	levelPatches
	levelPatchesFor
	levelPatch
	levelPatched
	levelLayer
)

// Compiler has the rules. Create one with New or Fork. It is not safe for concurrent use; it belongs to the
// goroutine of its graph.
type Compiler struct {
	model *model.Model
	opts  Options
	inner inner
	// resources are the rules for each Kind; names lists a layer's resources.
	resources [numKinds]*incr.Rule[Key, Body]
	names     *incr.Rule[Layer, Contents]
	// nameTables are what agents resolve, which are no resources of Envoy.
	nameTables *incr.Rule[NamesKey, *NameTable]
	// bootstraps are what EnvoyFilters change in the bootstraps that agents build.
	bootstraps *incr.Rule[BootstrapKey, *Bootstrap]
	byRule     map[string]Kind
}

// inner has the rules for intermediate results.
type inner struct {
	plan         *incr.Rule[scopeHost, []part]
	index        *incr.Rule[mesh.ScopeID, []listenerParts]
	parts        *incr.Rule[scopeName, []part] // of scopes without base
	derivedParts *incr.Rule[scopeName, []part] // of derived scopes
	outbound     *incr.Rule[scopeName, *merged]
	routes       *incr.Rule[mesh.ScopeID, []routeHosts] // of scopes without base
	routeNamed   *incr.Rule[scopeName, routeHosts]
	domains      *incr.Rule[scopeName, []hostDomains]
	// routeChanges and ownDomains are of derived scopes.
	routeChanges *incr.Rule[mesh.ScopeID, []routeChange]
	ownDomains   *incr.Rule[scopeName, []hostDomains]
	// routeHead and domainIndex are of scopes without base, for those that are derived.
	routeHead   *incr.Rule[scopeName, routeHosts]
	domainIndex *incr.Rule[scopeName, domainIndex]
	hostDomains *incr.Rule[scopeNameHost, []string]
	host        *incr.Rule[scopeNameHost, []byte]
	joinedHosts *incr.Rule[scopeName, joinedHosts] // of scopes without base
	clusters    *incr.Rule[scopeHost, []clusterName]
	assignment  *incr.Rule[assignmentKey, []byte]
	mutual      *incr.Rule[servicePortKey, bool]
	// proxylessMutual is mutual for gRPC clients, api the resources that they have of a host besides its clusters.
	proxylessMutual *incr.Rule[servicePortKey, bool]
	api             *incr.Rule[scopeHost, apiNames]
	// inbound and inboundFrame have keys without services.
	inbound        *incr.Rule[Key, Inbound]
	inboundFrame   *incr.Rule[Key, *listener.Frame]
	routerSecurity *incr.Rule[mesh.ScopeID, authz.Filters]
	// passthroughs are the clusters of a service, and passthroughPorts the listeners, of routers that forward mutual TLS.
	passthroughs     *incr.Rule[scopeHost, []string]
	passthroughPorts *incr.Rule[mesh.ScopeID, []passthroughPort]
	// gatewayRoutes and the rules below it are of routers.
	gatewayRoutes    *incr.Rule[mesh.ScopeID, []gatewayRoute]
	gatewayHostNamed *incr.Rule[scopeNameHost, gatewayHostNamed]
	gatewayHost      *incr.Rule[scopeNameHost, hostRoutes]
	gatewayClusters  *incr.Rule[scopeNameHost, []string]
	gatewayPlan      *incr.Rule[scopeName, listener.Gateway]
	routerNames      *incr.Rule[mesh.ScopeID, []Key]
	scopeNames       *incr.Rule[mesh.ScopeID, []Key]      // of scopes without base
	derived          *incr.Rule[mesh.ScopeID, derivation] // of the others
	// parsedPatches and the rules below it are of scopes and workloads with EnvoyFilters.
	parsedPatches *incr.Rule[string, []*patch.Patch]
	bareKeys      *incr.Rule[Layer, []Key]
	layerPatches  *incr.Rule[Layer, []sourced]
	bareKey       *incr.Rule[Key, Key]
	patchesFor    *incr.Rule[Key, []sourced]
	patched       *incr.Rule[Key, patchedResource]
	// bootstrapOf merges patches of bootstraps, which model.Patchings parses.
	bootstrapOf *incr.Rule[string, *Bootstrap]
	hostNames   *incr.Rule[scopeHost, []byte]
	hostList    *incr.Rule[mesh.ScopeID, []namedHost] // of scopes without base
	baseNames   *incr.Rule[mesh.ScopeID, *NameTable]  // of scopes without base
}

type scopeHost struct {
	scope mesh.ScopeID
	host  string
}

type scopeName struct {
	scope mesh.ScopeID
	name  string
}

type scopeNameHost struct {
	scope      mesh.ScopeID
	name, host string
}

// Options are the compiler's settings.
type Options struct {
	// NoSniffOutbound and NoSniffInbound treat ports without a declared protocol as TCP
	// (PILOT_ENABLE_PROTOCOL_SNIFFING_FOR_OUTBOUND and …_INBOUND).
	NoSniffOutbound, NoSniffInbound bool
	// ProtocolFilters are those of mesh.MongoFilter and RedisFilter that are used (PILOT_ENABLE_MONGO_FILTER, PILOT_ENABLE_REDIS_FILTER).
	ProtocolFilters mesh.Capability
	// TraceSampling is the share of requests that are traced where neither a Telemetry nor the node says it, in percent (PILOT_TRACE_SAMPLING).
	TraceSampling float64
	// WholeRoutes sends route configurations with all their virtual hosts to every proxy
	// (--vhds).
	WholeRoutes bool
	// Sessions keeps the requests of a session at one endpoint of services with a label that says so (PILOT_ENABLE_PERSISTENT_SESSION_FILTER).
	Sessions bool
	// Unready says where endpoints that are not ready are sent.
	Unready Unready
	// HTTP3 has routers serve HTTP/3 beside HTTPS (PILOT_ENABLE_QUIC_LISTENERS).
	HTTP3 bool
	// AllocateAsked uses allocated addresses only for the proxies that ask for them (PILOT_ENABLE_IP_AUTOALLOCATE is false).
	AllocateAsked bool
	// RemoteKeys says who fetches the keys of tokens (PILOT_JWT_ENABLE_REMOTE_JWKS).
	RemoteKeys jwks.Mode
}

// Unready says in which clusters endpoints that are not ready are sent, as unhealthy ones.
type Unready uint8

// The clusters in which endpoints that are not ready are sent: in none, in those where Envoy never uses them, and in all
// (PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS, PILOT_SEND_UNHEALTHY_ENDPOINTS).
const (
	UnreadyNever Unready = iota
	UnreadyUnused
	UnreadyAlways
)

// New adds the rules to g. They read those of m.
func New(g *incr.Graph, m *model.Model, o Options) *Compiler {
	c := &Compiler{model: m, opts: o, byRule: map[string]Kind{}}
	if o.Unready != UnreadyNever {
		m.SendUnready()
	}
	c.inner = inner{
		plan:             incr.Derive(g, levelPlan, "listener parts", c.plan),
		clusters:         incr.Derive(g, levelPlan, "service clusters", c.serviceClusters),
		assignment:       incr.Derive(g, levelPlan, "assignment", c.assignment),
		mutual:           incr.Derive(g, levelPlan, "all mutual", c.allMutual),
		inbound:          incr.Derive(g, levelLookup, "inbound security", c.inbound),
		inboundFrame:     incr.Derive(g, levelCompare, "inbound frame", c.inboundFrame),
		routerSecurity:   incr.Derive(g, levelLookup, "security of a router", c.routerAuthorization),
		proxylessMutual:  incr.Derive(g, levelPlan, "all mutual for gRPC", c.allMutualProxyless),
		api:              incr.Derive(g, levelPlan, "gRPC names", c.apiNames),
		index:            incr.Derive(g, levelIndex, "listener index", c.index).AsIndex(),
		passthroughs:     incr.Derive(g, levelPlan, "passthrough clusters", c.servicePassthroughs),
		passthroughPorts: incr.Derive(g, levelIndex, "passthrough ports", c.portsPassedThrough).AsIndex(),
		gatewayRoutes:    incr.Derive(g, levelIndex, "gateway routes", c.gatewayRoutes).AsIndex(),
		gatewayHostNamed: incr.Derive(g, levelLookup, "host of a gateway", c.gatewayHostNamed).AsIndex(),
		gatewayHost:      incr.Derive(g, levelHost, "gateway host", c.gatewayHost),
		gatewayClusters:  incr.Derive(g, levelResource, "clusters of a gateway host", c.gatewayClusters),
		gatewayPlan:      incr.Derive(g, levelHost, "gateway plan", c.gatewayPlan),
		routerNames:      incr.Derive(g, levelNames, "router names", c.routerNames).AsIndex(),
		scopeNames:       incr.Derive(g, levelNames, "scope names", c.scopeNames).AsIndex(),
		derived:          incr.Derive(g, levelDerive, "derived names", c.derive).AsIndex(),
		parts:            incr.Derive(g, levelLookup, "parts of a listener", c.partsOf).AsIndex(),
		derivedParts:     incr.Derive(g, levelCompare, "derived parts of a listener", c.derivedParts).AsIndex(),
		outbound:         incr.Derive(g, levelMerge, "listener plan", c.outbound),
		routes:           incr.Derive(g, levelIndex, "route hosts", c.routeHosts).AsIndex(),
		routeNamed:       incr.Derive(g, levelLookup, "hosts of a route", c.routeNamed).AsIndex(),
		routeChanges:     incr.Derive(g, levelCompare, "derived routes", c.routeChanges).AsIndex(),
		ownDomains:       incr.Derive(g, levelOwnDomains, "derived domains", c.ownDomains).AsIndex(),
		domains:          incr.Derive(g, levelDomains, "route domains", c.domains).AsIndex(),
		routeHead:        incr.Derive(g, levelLookup, "name of a route", c.routeHead).AsIndex(),
		domainIndex:      incr.Derive(g, levelDomainIndex, "domain index", c.domainIndex).AsIndex(),
		hostDomains:      incr.Derive(g, levelHostDomains, "host domains", c.hostDomains),
		host:             incr.Derive(g, levelHost, "virtual host", c.virtualHost),
		joinedHosts:      incr.Derive(g, levelJoin, "joined virtual hosts", c.joinHosts),
		parsedPatches:    incr.Derive(g, levelPlan, "patches of an EnvoyFilter", c.parsePatches),
		bareKeys:         incr.Derive(g, levelBare, "names without patches", c.bareKeys).AsIndex(),
		layerPatches:     incr.Derive(g, levelPatches, "patches of a layer", c.layerPatches).AsIndex(),
		bareKey:          incr.Derive(g, levelPatches, "name without patches", c.bareKey).AsIndex(),
		patchesFor:       incr.Derive(g, levelPatchesFor, "patches of a resource", c.patchesFor).AsIndex(),
		patched:          incr.Derive(g, levelPatch, "patched", c.patchResource),
		bootstrapOf:      incr.Derive(g, levelIndex, "bootstrap of patches", c.mergeBootstrap),
		hostNames:        incr.Derive(g, levelPlan, "names of a host", c.hostNames),
		hostList:         incr.Derive(g, levelIndex, "hosts with names", c.hostList).AsIndex(),
		baseNames:        incr.Derive(g, levelLookup, "base name table", c.baseNames),
	}
	for k := range numKinds {
		row, level := k.row(), levelResource
		if row.level != 0 {
			level = row.level
		}
		c.resources[k] = incr.Derive(g, level, row.name, func(r *incr.Reader, key Key) Body { return row.rule(c, r, key) })
		c.byRule[row.name] = k
	}
	c.names = incr.Derive(g, levelLayer, "names", c.layerNames).AsIndex()
	c.nameTables = incr.Derive(g, levelCompare, "name table", c.nameTableOf)
	c.bootstraps = incr.Derive(g, levelLookup, "bootstrap", c.bootstrapFor)
	return c
}

// Fork returns the compiler on a fork of its graph, and m, which must be the model's fork. A resource that the
// changes of the fork do not affect is that of c, and is not computed again. The fork's graph says what its changes
// moved, among what is wanted of c or of the fork.
func (c *Compiler) Fork(g *incr.Graph, m *model.Model) *Compiler {
	f := *c
	f.model = m
	for k := range numKinds {
		f.resources[k] = c.resources[k].On(g)
	}
	f.names, f.nameTables, f.bootstraps = c.names.On(g), c.nameTables.On(g), c.bootstraps.On(g)
	return &f
}

// Names returns the rule that says what is in a layer.
func (c *Compiler) Names() *incr.Rule[Layer, Contents] { return c.names }

// Resource returns the rule that computes resources of a kind; none of one that no longer exists.
func (c *Compiler) Resource(k Kind) *incr.Rule[Key, Body] { return c.resources[k] }

// WantAll wants resources, and returns them in the order of the keys. Those of one kind that are next
// to each other are computed on several goroutines.
func (c *Compiler) WantAll(keys []Key) []Body {
	out := make([]Body, 0, len(keys))
	for len(keys) > 0 {
		n := slices.IndexFunc(keys, func(k Key) bool { return k.Kind != keys[0].Kind })
		if n < 0 {
			n = len(keys)
		}
		out = append(out, c.resources[keys[0].Kind].WantAll(keys[:n])...)
		keys = keys[n:]
	}
	return out
}

// Moved returns the key of the resource that has changed; false if m is of another rule.
func (c *Compiler) Moved(m incr.Moved) (Key, bool) {
	if _, ok := c.byRule[m.Rule]; !ok {
		return Key{}, false
	}
	k, ok := m.Key.(Key)
	return k, ok
}

// scopeHosts returns the keys of rules for each service that a scope sees.
func scopeHosts(s mesh.ScopeID, visible []model.Ref) []scopeHost {
	out := make([]scopeHost, len(visible))
	for i, ref := range visible {
		out[i] = scopeHost{s, ref.Host}
	}
	return out
}

// scopeNames returns the resources of a scope of sidecars without base, without locations.
func (c *Compiler) scopeNames(r *incr.Reader, s mesh.ScopeID) []Key {
	if s.Value().Caps.Has(mesh.Proxyless) {
		return c.proxylessNames(r, s)
	}
	var out []Key
	for _, fixed := range fixedClusters {
		out = append(out, Key{Kind: Cluster, Scope: s, Name: fixed})
	}
	if c.model.DynamicDNS(r, s) {
		out = append(out, Key{Kind: Cluster, Scope: s, Name: mesh.AllowAnyDynamicDNSCluster})
	}
	hosts := scopeHosts(s, c.model.Visible(r, s))
	for i, names := range c.inner.clusters.OfAll(r, hosts) {
		out = appendClusters(out, hosts[i], names)
	}
	for _, l := range c.inner.index.Of(r, s) {
		out = append(out, Key{Kind: Listener, Scope: s, Name: l.name})
	}
	out = append(out, Key{Kind: Listener, Scope: s, Name: mesh.VirtualOutbound})
	for _, t := range c.inner.routes.Of(r, s) {
		out = c.appendRoute(out, s, t)
	}
	return out
}

// appendClusters adds the clusters of a host, and their assignments.
func appendClusters(to []Key, h scopeHost, names []clusterName) []Key {
	for _, n := range names {
		k := Key{Kind: Cluster, Scope: h.scope, Name: n.name, EDS: n.eds}
		if n.inline {
			k.Kind = ClusterInline
		}
		to = append(to, k)
		if n.eds {
			to = append(to, Key{Kind: Endpoints, Scope: h.scope, Name: n.name})
		}
	}
	return to
}
