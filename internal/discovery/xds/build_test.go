package xds

import (
	"slices"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func pack(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func ads() *corev3.ConfigSource {
	return &corev3.ConfigSource{ResourceApiVersion: corev3.ApiVersion_V3, InitialFetchTimeout: durationpb.New(0),
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}
}

func address(port int) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)}}}}
}

// edsCluster is a cluster that takes its endpoints from EDS under its own name. Another
// timeout makes it another cluster.
func edsCluster(t testing.TB, name string, timeoutSeconds int64) *Resource {
	return NewCluster(name, encode(t, &clusterv3.Cluster{
		Name:                 name,
		ConnectTimeout:       &durationpb.Duration{Seconds: timeoutSeconds},
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads(), ServiceName: name},
	}), name)
}

func endpoints(t testing.TB, name string, ports ...int) *Resource {
	var l endpointv3.LocalityLbEndpoints
	for _, p := range ports {
		l.LbEndpoints = append(l.LbEndpoints, &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
			Endpoint: &endpointv3.Endpoint{Address: address(p)}}})
	}
	return NewResource(EDS, name, encode(t, &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{&l}}))
}

func listener(t testing.TB, name, routes string) *Resource { return listenerAt(t, name, routes, 0) }

// listenerAt is a listener on a port; 0 is any.
func listenerAt(t testing.TB, name, routes string, port int) *Resource {
	return listenerWith(t, name, routes, port)
}

// listenerWith is listenerAt with HTTP filters before the router.
func listenerWith(t testing.TB, name, routes string, port int, filters ...*hcmv3.HttpFilter) *Resource {
	h := &hcmv3.HttpConnectionManager{
		StatPrefix: name,
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{
			ConfigSource: ads(), RouteConfigName: routes}},
		HttpFilters: append(filters, &hcmv3.HttpFilter{Name: "envoy.filters.http.router",
			ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: pack(t, &routerv3.Router{})}}),
	}
	return NewResource(LDS, name, encode(t, &listenerv3.Listener{Name: name, Address: address(port),
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{Name: "envoy.filters.network.http_connection_manager",
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(t, h)}}}}}}))
}

// routes sends path prefixes to clusters: prefix, cluster, prefix, cluster …
func routes(t testing.TB, name string, pairs ...string) *Resource {
	v := &routev3.VirtualHost{Name: "all", Domains: []string{"*"}}
	for i := 0; i < len(pairs); i += 2 {
		v.Routes = append(v.Routes, &routev3.Route{
			Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: pairs[i]}},
			Action: &routev3.Route_Route{Route: &routev3.RouteAction{
				ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: pairs[i+1]}}},
		})
	}
	return NewResource(RDS, name, encode(t, &routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{v}}))
}

// put is v with resources put in, a generation on.
func (v *View) put(rs ...*Resource) *View {
	out := v.At(v.Generation + 1)
	for _, r := range rs {
		out = out.With(r.Type, []*Resource{r}, nil)
	}
	return out
}

// testLayer is the layer that With puts a resource in. Name and content decide it, so that all
// layers are used, and a name may move from one to another.
func testLayer(r *Resource) int {
	sum := int(r.Version[0])
	for _, c := range []byte(r.Name) {
		sum += int(c)
	}
	return sum % NumLayers
}

// With is v with resources of a type added or replaced and others removed.
func (v *View) With(t Type, upserts []*Resource, removes []string) *View {
	out := *v
	for i := range out.Layers {
		var up []*Resource
		gone := slices.Clone(removes)
		for _, r := range upserts {
			if testLayer(r) == i {
				up = append(up, r)
			} else {
				gone = append(gone, r.Name)
			}
		}
		out.Layers[i] = out.Layers[i].With(t, up, gone)
	}
	return &out
}

// At is v under another generation.
func (v *View) At(generation uint64) *View {
	out := *v
	out.Generation = generation
	return &out
}

// drop is v without a resource, a generation on.
func (v *View) drop(t Type, name string) *View {
	return v.At(v.Generation+1).With(t, nil, []string{name})
}
