package mesh

import "unique"

// Capability is a set of bits: what matters to configuration of what a proxy can do.
type Capability uint32

// The capability bits. Those with an extension's name are set where the proxy's list of
// extensions holds it, or where it sent no list.
const (
	// IPv4 and IPv6 say which families the proxy's own addresses have.
	IPv4 Capability = 1 << iota
	IPv6
	// DNSCapture is set where the agent answers the application's DNS.
	DNSCapture
	// HTTP10 asks for HTTP/1.0 to be accepted.
	HTTP10
	// FilterState: envoy.filters.http.set_filter_state, which offers Istio's ALPN on stock Envoy.
	FilterState
	// GRPCStats: envoy.filters.http.grpc_stats.
	GRPCStats
	// Fault: envoy.filters.http.fault.
	Fault
	// CORS: envoy.filters.http.cors.
	CORS
	// HTTPInspector: envoy.filters.listener.http_inspector; without it nothing is sniffed.
	HTTPInspector
	// PreviousHosts: envoy.retry_host_predicates.previous_hosts.
	PreviousHosts
	// RequestIDUUID: envoy.request_id.uuid.
	RequestIDUUID
	// CaresDNS: envoy.network.dns_resolver.cares.
	CaresDNS
	// PreviousPriorities: envoy.retry_priorities.previous_priorities.
	PreviousPriorities
)

// Has says whether all bits of x are set.
func (c Capability) Has(x Capability) bool { return c&x == x }

var extensionBits = map[string]Capability{
	"envoy.filters.http.set_filter_state":        FilterState,
	"envoy.filters.http.grpc_stats":              GRPCStats,
	"envoy.filters.http.fault":                   Fault,
	"envoy.filters.http.cors":                    CORS,
	"envoy.filters.listener.http_inspector":      HTTPInspector,
	"envoy.retry_host_predicates.previous_hosts": PreviousHosts,
	"envoy.request_id.uuid":                      RequestIDUUID,
	"envoy.network.dns_resolver.cares":           CaresDNS,
	"envoy.retry_priorities.previous_priorities": PreviousPriorities,
}

// Capabilities reads a node's capability bits.
func Capabilities(n Node) Capability {
	var c Capability
	for _, ip := range n.IPs() {
		if ip.Is4() {
			c |= IPv4
		} else {
			c |= IPv6
		}
	}
	if c == 0 {
		c = IPv4
	}
	if n.Metadata.DNSCapture {
		c |= DNSCapture
	}
	if n.Metadata.HTTP10 {
		c |= HTTP10
	}
	for name, bit := range extensionBits {
		if n.Extensions == nil || n.Extensions[name] {
			c |= bit
		}
	}
	return c
}

// Scope decides everything outbound. Two proxies of equal scope get the same outbound bytes.
type Scope struct {
	Role      Role
	Namespace string
	// Sidecar is "namespace/name" of the Sidecar resource in force, or empty.
	Sidecar string
	Caps    Capability
	// Selected is the interned set of client-side selectors that match the proxy's
	// labels (never the labels themselves), in a canonical form that model defines.
	Selected string
}

// ScopeID stands for a Scope: one word, equal where the scopes are, and so a good key.
// Its Value is the Scope; the zero ScopeID has none.
type ScopeID = unique.Handle[Scope]

// ID is the scope's one ScopeID.
func (s Scope) ID() ScopeID { return unique.Make(s) }

// Location is where a proxy is in the network; only endpoint rules read it.
type Location struct {
	Network, Cluster string
	Locality         Locality
}

// LocationID stands for a Location as ScopeID does for a Scope.
type LocationID = unique.Handle[Location]

// ID is the location's one LocationID.
func (l Location) ID() LocationID { return unique.Make(l) }

// Workload decides everything inbound: which services the proxy stands in for and which
// policies select it, each in a canonical form that model defines.
type Workload struct {
	Namespace string
	Services  string
	Policies  string
}

// WorkloadID stands for a Workload as ScopeID does for a Scope.
type WorkloadID = unique.Handle[Workload]

// ID is the workload's one WorkloadID.
func (w Workload) ID() WorkloadID { return unique.Make(w) }

// Class is what rules know of a proxy. Proxies of one class share every byte.
type Class struct {
	Scope    Scope
	Location Location
	Workload Workload
}
