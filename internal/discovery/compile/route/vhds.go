package route

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"
)

// virtualHostName is VirtualHost.name in the wire format.
const virtualHostName = 1

// SeparateHosts returns the setting by which a route configuration takes its virtual hosts, but for those that it
// contains, from VHDS. It is always the same, since Envoy subscribes anew when it changes. Envoy waits for them
// without a limit, as for the route configuration: requests would go to the catch-all meanwhile.
func SeparateHosts() *routev3.Vhds {
	return &routev3.Vhds{ConfigSource: &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		InitialFetchTimeout:   durationpb.New(0),
		ResourceApiVersion:    corev3.ApiVersion_V3,
	}}
}

// ResourceName returns the name of a virtual host as a resource of VHDS: Envoy finds the route configuration by
// what is before the last slash. [envoy V2]
func ResourceName(routes, virtualHost string) string { return routes + "/" + virtualHost }

// Rename returns an encoded VirtualHost with another name, without decoding it. A VirtualHost of VHDS has the name
// of its resource, since Envoy ignores the removal of one that has another. [envoy V2]
func Rename(virtualHost []byte, name string) []byte {
	rest := virtualHost
	if n, _, size := protowire.ConsumeTag(rest); size > 0 && n == virtualHostName {
		_, length := protowire.ConsumeBytes(rest[size:])
		rest = rest[size+max(length, 0):]
	}
	out := make([]byte, 0, protowire.SizeTag(virtualHostName)+protowire.SizeBytes(len(name))+len(rest))
	out = protowire.AppendTag(out, virtualHostName, protowire.BytesType)
	out = protowire.AppendString(out, name)
	return append(out, rest...)
}
