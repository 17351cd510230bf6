package xds

// Type is a kind of resource. The order of the constants is the order in which new
// state is sent on a stream. [control-plane 1.6.13, 5.2.3]
type Type uint8

// The types that are served.
const (
	CDS Type = iota
	EDS
	LDS
	RDS
	numTypes
)

// typeInfo is what distinguishes one type from another.
type typeInfo struct {
	short, url string
	// wildcard: a first request without names means "everything" (the legacy form).
	wildcard bool
}

var types = [numTypes]typeInfo{
	CDS: {"CDS", "type.googleapis.com/envoy.config.cluster.v3.Cluster", true},
	EDS: {"EDS", "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment", false},
	LDS: {"LDS", "type.googleapis.com/envoy.config.listener.v3.Listener", true},
	RDS: {"RDS", "type.googleapis.com/envoy.config.route.v3.RouteConfiguration", false},
}

// Types are all types in sending order.
func Types() []Type { return []Type{CDS, EDS, LDS, RDS} }

// ParseType finds the type with that type URL; false if it is not served.
func ParseType(url string) (Type, bool) {
	for t := range numTypes {
		if types[t].url == url {
			return t, true
		}
	}
	return 0, false
}

// URL is the type URL that requests, responses and Any bodies carry.
func (t Type) URL() string { return types[t].url }

// String is the short name: CDS, EDS, LDS, RDS.
func (t Type) String() string { return types[t].short }
