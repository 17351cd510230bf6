package xds

import (
	"slices"
	"strings"
	"unique"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// references are the clusters that an extension configuration, a listener, a route configuration or a virtual host names. The
// zero value is of a resource that names none. They are immutable.
type references struct {
	// joined is all names, each followed by a line feed. Equal sets have equal handles, and names
	// are parts of its string, so that the versions of a resource share their characters.
	joined unique.Handle[string]
	names  []string // sorted
	// unknown: the content could not be read, so that any cluster may be named.
	unknown bool
}

// newReferences makes a set of names in any order.
func newReferences(list []string) references {
	if len(list) == 0 {
		return references{}
	}
	slices.Sort(list)
	list = slices.Compact(list)
	joined := unique.Make(strings.Join(list, "\n") + "\n")
	names := make([]string, 0, len(list))
	for rest := joined.Value(); rest != ""; {
		n, after, _ := strings.Cut(rest, "\n")
		names, rest = append(names, n), after
	}
	return references{joined: joined, names: names}
}

// none says that no cluster is named.
func (f references) none() bool { return !f.unknown && len(f.names) == 0 }

// has says whether a cluster is named, or may be.
func (f references) has(cluster string) bool {
	if f.unknown {
		return true
	}
	_, ok := slices.BinarySearch(f.names, cluster)
	return ok
}

// added are the names that an older version has not, nil where one of the two is unknown.
func (f references) added(old references) (out []string) {
	if f.unknown || old.unknown || f.joined == old.joined {
		return nil
	}
	for _, n := range f.names {
		if !old.has(n) {
			out = append(out, n)
		}
	}
	return out
}

// wireField is what is looked for in one field of an encoded message: a name, or other fields of
// the message in it.
type wireField struct {
	name   bool
	fields map[protowire.Number]*wireField
	// packed are, for a google.protobuf.Any, the fields by the type of the message in it.
	packed map[string]*wireField
}

type wireFields = map[protowire.Number]*wireField

func inMessage(fields wireFields) *wireField { return &wireField{fields: fields} }

// What names clusters in extension configurations, listeners, route configurations and virtual hosts.
var (
	nameField = &wireField{name: true}
	// Both of the route's and of the TCP proxy's weighted clusters: clusters[].name.
	weightedClusters  = inMessage(wireFields{1: inMessage(wireFields{1: nameField})})
	mirrorPolicy      = inMessage(wireFields{1: nameField})
	routeAction       = inMessage(wireFields{1: nameField, 3: weightedClusters, 30: mirrorPolicy})
	virtualHostFields = inMessage(wireFields{3: inMessage(wireFields{2: routeAction}), 22: mirrorPolicy})
	routeFields       = inMessage(wireFields{2: virtualHostFields, 13: mirrorPolicy})
	networkFilter     = &wireField{packed: map[string]*wireField{
		"type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy":                            inMessage(wireFields{2: nameField, 10: weightedClusters}),
		"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager": inMessage(wireFields{4: routeFields}),
	}}
	filterChain    = inMessage(wireFields{3: inMessage(wireFields{4: networkFilter})})
	listenerFields = inMessage(wireFields{3: filterChain, 25: filterChain, 19: inMessage(wireFields{1: networkFilter})})
	// Of a gRPC service: envoy_grpc.cluster_name; of a service at a URI: server_uri.cluster.
	grpcService     = inMessage(wireFields{1: inMessage(wireFields{1: nameField})})
	uriService      = inMessage(wireFields{1: inMessage(wireFields{2: nameField})})
	extensionFields = inMessage(wireFields{2: {packed: map[string]*wireField{
		"type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy":      networkFilter.packed["type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"],
		"type.googleapis.com/envoy.extensions.filters.network.ext_authz.v3.ExtAuthz":      inMessage(wireFields{2: grpcService}),
		"type.googleapis.com/envoy.extensions.filters.network.ratelimit.v3.RateLimit":     inMessage(wireFields{6: inMessage(wireFields{2: grpcService})}),
		"type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz":         inMessage(wireFields{1: grpcService, 3: uriService}),
		"type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor": inMessage(wireFields{1: grpcService}),
		"type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit":        inMessage(wireFields{7: inMessage(wireFields{2: grpcService})}),
	}}})
)

// What names secrets in clusters: common_tls_context of their transport sockets.
var (
	tlsContext = inMessage(wireFields{6: inMessage(wireFields{1: nameField}), 7: inMessage(wireFields{1: nameField}),
		8: inMessage(wireFields{2: inMessage(wireFields{1: nameField})})})
	transportSocket = inMessage(wireFields{3: {packed: map[string]*wireField{
		"type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext": inMessage(wireFields{1: tlsContext}),
	}}})
	secretFields = inMessage(wireFields{24: transportSocket, 43: inMessage(wireFields{3: transportSocket})})
)

// referencesIn reads which clusters an encoded message names, which may be in several parts.
func (f *wireField) referencesIn(parts ...[]byte) references {
	var list []string
	for _, part := range parts {
		if !f.find(part, &list) {
			return references{unknown: true}
		}
	}
	return newReferences(list)
}

// find appends the names in an encoded message; false if it is malformed.
func (f *wireField) find(b []byte, list *[]string) bool {
	if f.name {
		if string(b) != mesh.InvalidBackend {
			*list = append(*list, string(b))
		}
		return true
	}
	if f.packed != nil {
		url, value, ok := unpack(b)
		inner := f.packed[url]
		return ok && (inner == nil || inner.find(value, list))
	}
	return eachBytesField(b, func(n protowire.Number, v []byte) bool {
		inner := f.fields[n]
		return inner == nil || inner.find(v, list)
	})
}

// unpack is the type URL and the value of an encoded google.protobuf.Any.
func unpack(b []byte) (url string, value []byte, ok bool) {
	ok = eachBytesField(b, func(n protowire.Number, v []byte) bool {
		switch n {
		case 1:
			url = string(v)
		case 2:
			value = v
		}
		return true
	})
	return url, value, ok
}

// eachBytesField calls f with each length-delimited field of an encoded message, until f returns false;
// false then, or if the message is malformed.
func eachBytesField(b []byte, f func(n protowire.Number, v []byte) bool) bool {
	for len(b) > 0 {
		n, typ, size := protowire.ConsumeTag(b)
		if size < 0 {
			return false
		}
		b = b[size:]
		if size = protowire.ConsumeFieldValue(n, typ, b); size < 0 {
			return false
		}
		if typ == protowire.BytesType {
			v, _ := protowire.ConsumeBytes(b)
			if !f(n, v) {
				return false
			}
		}
		b = b[size:]
	}
	return true
}

// warmsSlowly says whether an encoded cluster waits for more than its endpoints before Envoy takes it
// into use, and answers the response that it came in: for names to be resolved, or for secrets of its
// own. Those of the workload are there before any cluster that needs them.
func warmsSlowly(value []byte) bool {
	var secrets []string
	return resolvesNames(value) || secretFields.find(value, &secrets) && slices.ContainsFunc(secrets, func(n string) bool { return n != mesh.SecretDefault && n != mesh.SecretRoot })
}

// Fields of envoy.config.cluster.v3.Cluster, and its types that resolve names.
const (
	clusterType = 2
	strictDNS   = 1
	logicalDNS  = 2
)

func resolvesNames(value []byte) bool {
	for len(value) > 0 {
		n, typ, size := protowire.ConsumeTag(value)
		if size < 0 {
			return false
		}
		value = value[size:]
		if size = protowire.ConsumeFieldValue(n, typ, value); size < 0 {
			return false
		}
		if n == clusterType && typ == protowire.VarintType {
			v, _ := protowire.ConsumeVarint(value)
			return v == strictDNS || v == logicalDNS
		}
		value = value[size:]
	}
	return false
}
