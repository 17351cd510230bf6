package xds

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
)

// Type is a kind of resource. The order of the constants is the order in which new
// state is sent on a stream. [control-plane 1.6.13, 5.2.3]
type Type uint8

// The types that are served. To serve another one, add its constant here, its row in types,
// and the rule that makes its resources in package compile.
const (
	CDS Type = iota
	EDS
	ECDS
	LDS
	RDS
	VHDS
	numTypes
)

// typeInfo is everything that distinguishes one type from another.
type typeInfo struct {
	short, url string
	// status is the type's name in the fields of /debug/syncz, as in "cluster_sent".
	status string
	// wildcard: a first request without names means "everything" (the legacy form).
	wildcard bool
	// referredBy are the types whose resources name those of this one, so that a client asks
	// for it after them.
	referredBy []Type
	// after are the types whose state must be in force before new or changed resources of
	// this one are sent, removedAfter those before resources of this one are removed, because
	// they may refer to them. Both must be given; nothing is a value too.
	after, removedAfter []Type
	// references is where a resource of this type names clusters, nil if it names none.
	references *wireField
	// together: updates and removals are sent in one response or not at all, since each alone may be
	// invalid.
	together bool
	// deltaOnly: the type is not served to SotW clients.
	deltaOnly bool
	// aliased: a name that was asked for and is not there is answered by a resource with that alias and
	// without a body.
	aliased bool
	// lasting: a client that subscribes to a name is never told that nothing has it, and goes on with what it has.
	lasting bool
	// retried: a resource that was refused since its address could not be bound is sent again.
	retried bool
	// absent encodes a resource that says that nothing has a name, for SotW clients, which
	// have no removals; nil where the type does not need one.
	absent func(name string) []byte
	// dump is the part of a config dump with the resources of this type; nil if they are in that of
	// dumpedIn.
	dump     func(*View) proto.Message
	dumpedIn Type
}

// nothing is a list without types that is given and not forgotten.
var nothing = []Type{}

var types = checked([numTypes]typeInfo{
	CDS: {
		short: "CDS", url: "type.googleapis.com/envoy.config.cluster.v3.Cluster", status: "cluster", wildcard: true,
		after: nothing, removedAfter: []Type{ECDS, LDS, RDS, VHDS}, dump: dumpClusters,
	},
	EDS: {
		short: "EDS", url: "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment", status: "endpoint",
		referredBy: []Type{CDS}, after: nothing, removedAfter: []Type{CDS, ECDS, LDS, RDS, VHDS},
		absent: emptyAssignment, dump: dumpEndpoints,
	},
	// A filter whose configuration is gone answers 500, and an incremental Envoy takes a removal for the update that its listener
	// waits for. So a configuration is in force until the client unsubscribes from it, which Envoy does with the last listener
	// that names it. [envoy X3] [control-plane 1.6.5]
	ECDS: {
		short: "ECDS", url: "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig", status: "extensionconfig",
		referredBy: []Type{LDS}, after: []Type{CDS, EDS}, removedAfter: []Type{LDS}, references: extensionFields, lasting: true, dump: dumpExtensions,
	},
	LDS: {
		short: "LDS", url: "type.googleapis.com/envoy.config.listener.v3.Listener", status: "listener", wildcard: true,
		after: []Type{CDS, EDS}, removedAfter: nothing, references: listenerFields, retried: true, dump: dumpListeners,
	},
	RDS: {
		short: "RDS", url: "type.googleapis.com/envoy.config.route.v3.RouteConfiguration", status: "route",
		referredBy: []Type{LDS}, after: []Type{CDS, EDS}, removedAfter: []Type{LDS}, references: routeFields, dump: dumpRoutes,
	},
	// A virtual host follows its route configuration, since a client that has asked for VHDS once does not do
	// so for a further route configuration. It goes together with those that change with it: a domain may move
	// from one to another, and Envoy refuses two with the same. [envoy V1, V5]
	VHDS: {
		short: "VHDS", url: "type.googleapis.com/envoy.config.route.v3.VirtualHost", status: "virtual_host", wildcard: true,
		referredBy: []Type{RDS}, after: []Type{CDS, EDS, RDS}, removedAfter: []Type{LDS, RDS},
		references: virtualHostFields, together: true, deltaOnly: true, aliased: true, dumpedIn: RDS,
	},
})

// checked returns the rows, and panics where one leaves something out or is inconsistent.
func checked(rows [numTypes]typeInfo) [numTypes]typeInfo {
	for t, row := range rows {
		switch {
		case row.short == "" || row.url == "" || row.status == "":
			panic(fmt.Sprintf("xds: type %d has no name, type URL or status name; give it a row in types", t))
		case row.after == nil || row.removedAfter == nil:
			panic("xds: the row of " + row.short + " does not say what its updates and removals wait for")
		case row.dump == nil && row.dumpedIn == 0:
			panic("xds: the row of " + row.short + " has no dump")
		case len(row.after) > 0 && slices.Max(row.after) >= Type(t):
			panic("xds: updates of " + row.short + " wait for a type that is sent later")
		}
	}
	return rows
}

// emptyAssignment is an encoded ClusterLoadAssignment without endpoints.
func emptyAssignment(name string) []byte {
	const clusterName = 1 // of envoy.config.endpoint.v3.ClusterLoadAssignment
	return appendBytes(nil, clusterName, name)
}

// Types are all types in sending order.
func Types() []Type {
	all := make([]Type, numTypes)
	for t := range numTypes {
		all[t] = t
	}
	return all
}

// ParseType finds the type with that type URL; false if it is not served.
func ParseType(url string) (Type, bool) {
	for t := range numTypes {
		if types[t].url == url {
			return t, true
		}
	}
	return 0, false
}

// info is the type's row. It panics for a value that is not one of the constants.
func (t Type) info() *typeInfo {
	if t >= numTypes {
		panic(fmt.Sprintf("xds: unknown type %d", t))
	}
	return &types[t]
}

// URL is the type URL that requests, responses and Any bodies carry.
func (t Type) URL() string { return t.info().url }

// String is the short name: CDS, EDS, ECDS, LDS, RDS, VHDS.
func (t Type) String() string { return t.info().short }

// everyType stands for all types, where a stream is not limited to one.
const everyType = numTypes

// service is the name of a stream's type in the log; that of an aggregated one is "all".
func (t Type) service() string {
	if t == everyType {
		return "all"
	}
	return t.String()
}

// StatusName is the type's name in the fields of /debug/syncz: cluster, endpoint, extensionconfig, listener, route, virtual_host.
func (t Type) StatusName() string { return t.info().status }
