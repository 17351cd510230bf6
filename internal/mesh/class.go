package mesh

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unique"
)

// Capability is a bit set of the proxy's abilities that configuration depends on.
type Capability uint64

// The capability bits. A bit documented by an extension's name is set if the proxy lists that
// extension, or if it sent no list of extensions.
const (
	// IPv4 and IPv6 are the address families of the proxy's own addresses.
	IPv4 Capability = 1 << iota
	IPv6
	// DNSCapture is set if the agent answers the application's DNS queries.
	DNSCapture
	// HTTP10 is set if the proxy is to accept HTTP/1.0.
	HTTP10
	// FilterState: envoy.filters.http.set_filter_state, which offers Istio's ALPN on stock Envoy.
	FilterState
	// GRPCStats: envoy.filters.http.grpc_stats.
	GRPCStats
	// Fault: envoy.filters.http.fault.
	Fault
	// CORS: envoy.filters.http.cors.
	CORS
	// HTTPInspector: envoy.filters.listener.http_inspector; protocol sniffing needs it.
	HTTPInspector
	// PreviousHosts: envoy.retry_host_predicates.previous_hosts.
	PreviousHosts
	// RequestIDUUID: envoy.request_id.uuid.
	RequestIDUUID
	// CaresDNS: envoy.network.dns_resolver.cares.
	CaresDNS
	// PreviousPriorities: envoy.retry_priorities.previous_priorities.
	PreviousPriorities
	// VirtualHosts is set if the virtual hosts of shared ports are resources of their own (VHDS).
	VirtualHosts
	// FileSecrets is set if the secrets of files are at SDSFilesCluster, since another server than the agent has the
	// workload's secret.
	FileSecrets
	// DNSAutoAllocate is set with DNSCapture if the proxy asks for allocated addresses even where they are not the default.
	DNSAutoAllocate
	// Proxyless is set if the client is a gRPC library, which is a proxy of its own.
	Proxyless
	// ProxylessCertificates is set with Proxyless if its bootstrap has a certificate provider, which ProxylessCertificatesKey
	// says.
	ProxylessCertificates
	// FIPS1402, FIPS1403 and PQC are set if the proxy's TLS is limited by that policy, at most one of them; see CompliancePolicyKey.
	FIPS1402
	FIPS1403
	PQC
	// RBAC: envoy.filters.http.rbac, and NetworkRBAC: envoy.filters.network.rbac.
	RBAC
	NetworkRBAC
	// JWT: envoy.filters.http.jwt_authn.
	JWT
	// ProxyProtocol: envoy.transport_sockets.upstream_proxy_protocol.
	ProxyProtocol
	// ExtAuthz: envoy.filters.http.ext_authz, and NetworkExtAuthz: envoy.filters.network.ext_authz.
	ExtAuthz
	NetworkExtAuthz
	// SelfDiscovery is set if the proxy asks for the endpoints of its own workload, LocalCluster: Envoy then prefers its own
	// zone where no cluster says otherwise.
	SelfDiscovery
	// Metrics is set if the proxy has all that Istio's metrics and the header of peers need: metricsExtensions.
	Metrics
	// Zipkin, Datadog, SkyWalking and OpenTelemetry: the tracers of these names, envoy.tracers.….
	Zipkin
	Datadog
	SkyWalking
	OpenTelemetry
	// FormattedTags is set if tags of spans may have formats. No extension says so; envoy.formatter.file_content came later.
	FormattedTags
	// Transparent is set for a sidecar whose connections are captured by TPROXY, so that listeners for them must be transparent.
	Transparent
	// OriginalSource: envoy.filters.listener.original_src.
	OriginalSource
	// DynamicDNS is set if the proxy resolves names of requests and leaves out addresses that it is told: an Envoy of 1.39 or later
	// with dynamicExtensions. An older one would ignore the list of addresses.
	DynamicDNS
	// Sessions: envoy.filters.http.stateful_session.
	Sessions
	// QUIC: envoy.transport_sockets.quic.
	QUIC
	// MongoFilter: envoy.filters.network.mongo_proxy, and RedisFilter: envoy.filters.network.redis_proxy.
	MongoFilter
	RedisFilter
	// AccessLogService is set if the bootstrap has AccessLogServiceCluster, and the proxy the loggers for it.
	AccessLogService
)

// Has reports whether all bits of x are set in c.
func (c Capability) Has(x Capability) bool { return c&x == x }

var extensionBits = map[string]Capability{
	"envoy.filters.http.set_filter_state":             FilterState,
	"envoy.filters.http.grpc_stats":                   GRPCStats,
	"envoy.filters.http.fault":                        Fault,
	"envoy.filters.http.cors":                         CORS,
	"envoy.filters.http.rbac":                         RBAC,
	"envoy.filters.http.stateful_session":             Sessions,
	"envoy.transport_sockets.quic":                    QUIC,
	"envoy.filters.network.rbac":                      NetworkRBAC,
	"envoy.filters.network.mongo_proxy":               MongoFilter,
	"envoy.filters.network.redis_proxy":               RedisFilter,
	"envoy.filters.http.jwt_authn":                    JWT,
	"envoy.filters.http.ext_authz":                    ExtAuthz,
	"envoy.filters.network.ext_authz":                 NetworkExtAuthz,
	"envoy.transport_sockets.upstream_proxy_protocol": ProxyProtocol,
	"envoy.filters.listener.http_inspector":           HTTPInspector,
	"envoy.filters.listener.original_src":             OriginalSource,
	"envoy.retry_host_predicates.previous_hosts":      PreviousHosts,
	"envoy.request_id.uuid":                           RequestIDUUID,
	"envoy.network.dns_resolver.cares":                CaresDNS,
	"envoy.retry_priorities.previous_priorities":      PreviousPriorities,
	"envoy.tracers.zipkin":                            Zipkin,
	"envoy.tracers.datadog":                           Datadog,
	"envoy.tracers.skywalking":                        SkyWalking,
	"envoy.tracers.opentelemetry":                     OpenTelemetry,
	"envoy.formatter.file_content":                    FormattedTags,
}

// metricsExtensions are what Metrics needs.
var metricsExtensions = []string{
	"envoy.access_loggers.stats", "envoy.filters.http.header_mutation",
	"envoy.filters.http.header_to_metadata", "envoy.filters.http.upstream_codec",
}

// accessLogExtensions are what AccessLogService needs.
var accessLogExtensions = []string{"envoy.access_loggers.http_grpc", "envoy.access_loggers.tcp_grpc"}

// dynamicExtensions are what DynamicDNS needs: the filter state says which port requests go to.
var dynamicExtensions = []string{
	"envoy.clusters.dynamic_forward_proxy", "envoy.filters.http.set_filter_state", "envoy.filters.network.sni_dynamic_forward_proxy",
}

// policyBits are the bits of policies by their names in COMPLIANCE_POLICY.
var policyBits = map[string]Capability{"fips-140-2": FIPS1402, "fips-140-3": FIPS1403, "pqc": PQC}

// CompliancePolicy is the name of the policy that limits the proxy's TLS; empty for none.
func (c Capability) CompliancePolicy() string {
	for name, bit := range policyBits {
		if c.Has(bit) {
			return name
		}
	}
	return ""
}

// Families are the bits of the families of addresses.
const Families = IPv4 | IPv6

// FamilyOf returns the family of an address, IPv4 or IPv6.
func FamilyOf(ip netip.Addr) Capability {
	if ip.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

// Capabilities returns the node's capability bits. A node without addresses counts as IPv4.
func Capabilities(n Node) Capability {
	var c Capability
	for _, ip := range n.IPs() {
		c |= FamilyOf(ip)
	}
	if c == 0 {
		c = IPv4
	}
	if n.Metadata.DNSCapture {
		c |= DNSCapture
		if n.Metadata.DNSAutoAllocate {
			c |= DNSAutoAllocate
		}
	}
	if n.Metadata.Generator == GeneratorGRPC {
		if c |= Proxyless; n.Metadata.ProxylessCertificates {
			c |= ProxylessCertificates
		}
		return c // the others are Envoy's
	}
	if n.Metadata.HTTP10 {
		c |= HTTP10
	}
	if n.Metadata.VirtualHosts {
		c |= VirtualHosts
	}
	if n.Metadata.FileSecrets {
		c |= FileSecrets
	}
	if n.Metadata.SelfDiscovery && n.Role == Sidecar {
		c |= SelfDiscovery
	}
	if n.Metadata.Interception == InterceptionTPROXY && n.Role == Sidecar {
		c |= Transparent
	}
	c |= policyBits[n.Metadata.CompliancePolicy]
	for name, bit := range extensionBits {
		if n.Extensions == nil || n.Extensions[name] {
			c |= bit
		}
	}
	lacks := func(name string) bool { return n.Extensions != nil && !n.Extensions[name] }
	if !slices.ContainsFunc(dynamicExtensions, lacks) && filtersAddresses(n.UserAgent) {
		c |= DynamicDNS
	}
	if !slices.ContainsFunc(metricsExtensions, lacks) {
		c |= Metrics
	}
	if n.Metadata.AccessLogService && !slices.ContainsFunc(accessLogExtensions, lacks) {
		c |= AccessLogService
	}
	return c
}

// filtersAddresses reports whether an agent, "name/version", is Envoy 1.39 or later. One that does not say what it is counts as new, as one
// without a list of extensions does.
func filtersAddresses(agent string) bool {
	if agent == "" {
		return true
	}
	_, version, _ := strings.Cut(agent, "/")
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, errA := strconv.Atoi(major)
	b, errB := strconv.Atoi(minor)
	return errA == nil && errB == nil && (a > 1 || a == 1 && b >= 39)
}

// Scope determines all outbound configuration: proxies of equal scope get the same outbound bytes.
type Scope struct {
	Role      Role
	Namespace string
	// Cluster is the remote cluster of the proxy, whose Services and their addresses have priority; empty for the
	// control plane's own.
	Cluster string
	// Sidecar is "namespace/name" of the Sidecar resource that applies, or empty.
	Sidecar string
	// Gateways identifies the Gateway resources that select a router, in a canonical form that package model defines.
	Gateways string
	Caps     Capability
	// Selected identifies the client-side selectors that match the proxy's labels (never the
	// labels themselves), in a canonical form that package model defines.
	Selected string
	// Authorization and Tokens are, for a router, as those of Workload, and Closed is set if it must accept no request, because of a policy
	// that cannot be read.
	Authorization, Tokens string
	Closed                bool
	// Topology is what a router's node says of the proxies in front of it.
	Topology Topology
	// Telemetry are the keys of the Telemetry objects that decide about access logs, metrics and tracing of the listeners that the scope determines, in
	// order of precedence: root, namespace, workload; separated by spaces.
	Telemetry string
	// Service is the proxy's service in spans, if a provider of the mesh's has that name in a listener; empty otherwise.
	Service string
	// Tracing is what the node says of traces.
	Tracing Tracing
	// Patches are the EnvoyFilters that patch what the scope determines, in a canonical form that package model defines; empty
	// for none.
	Patches string
	// PatchClusters are, for a router, the clusters that these EnvoyFilters name, sorted and separated by spaces: it has them although
	// no route leads to them.
	PatchClusters string
}

// ScopeID is an interned Scope: cheap to compare and to use as a map key. IDs are equal if
// and only if the scopes are. Value panics on the zero ScopeID.
type ScopeID = unique.Handle[Scope]

// ID returns the ScopeID of s.
func (s Scope) ID() ScopeID { return unique.Make(s) }

// Location is where a proxy is in the network. It determines how endpoints are ranked; only
// rules for endpoints read it.
type Location struct {
	Network, Cluster string
	Locality         Locality
	// Node is the proxy's Node; empty if no service prefers endpoints of the client's own, or has it use no others.
	Node string
	// Labels are those of the proxy's labels by which a failoverPriority ranks endpoints, in the canonical form "a=b,c=d".
	Labels string
}

// LocationID is an interned Location, like ScopeID.
type LocationID = unique.Handle[Location]

// ID returns the LocationID of l.
func (l Location) ID() LocationID { return unique.Make(l) }

// Workload determines all inbound configuration: the services that the proxy is an endpoint of
// and the policies that select it, each in a canonical form that package model defines.
type Workload struct {
	Namespace string
	Services  string
	Policies  string
	// Authorization are the AuthorizationPolicies that select the proxy by its labels.
	Authorization string
	// Tokens are the RequestAuthentications that do.
	Tokens string
	// Telemetry are the Telemetry objects for inbound listeners, as those of Scope; Service and Tracing are those of Scope.
	Telemetry, Service string
	Tracing            Tracing
	// Patches are the EnvoyFilters that patch what the workload determines, as those of Scope.
	Patches string
	// Sidecar is "namespace/name" of the Sidecar resource that applies if it determines inbound listeners or clusters, or empty.
	Sidecar string
	// Addresses are the proxy's own, separated by commas, and Mutual is set if the workload says that it accepts the mesh's
	// mutual TLS. Only the listeners of gRPC servers depend on them, on the first also those of a Sidecar that bind to it; of other
	// proxies they are zero.
	Addresses string
	Mutual    bool
	// Peers is the label, "name=value", of those of the services' endpoints that count as the proxy's own workload. Empty for
	// proxies that do not ask for them.
	Peers string
}

// WorkloadID is an interned Workload, like ScopeID.
type WorkloadID = unique.Handle[Workload]

// ID returns the WorkloadID of w.
func (w Workload) ID() WorkloadID { return unique.Make(w) }

// Class is all that rules know of a proxy: proxies of one class get the same bytes.
type Class struct {
	Scope    Scope
	Location Location
	Workload Workload
}
