package xds

import (
	"fmt"
	"net"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/pilothouse/pilothouse/test/wait"
)

// separate is a source of configuration that is not aggregated.
func separate(delta bool) *corev3.ConfigSource {
	api := corev3.ApiConfigSource_GRPC
	if delta {
		api = corev3.ApiConfigSource_DELTA_GRPC
	}
	return &corev3.ConfigSource{ResourceApiVersion: corev3.ApiVersion_V3, ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
		ApiType: api, TransportApiVersion: corev3.ApiVersion_V3,
		GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: "xds"}}}},
	}}}
}

// separated is a cluster or listener whose endpoints or routes come on a stream of their own.
func separated(t *testing.T, r *Resource, delta bool) *Resource {
	t.Helper()
	if r.Type == CDS {
		var c clusterv3.Cluster
		if err := r.any().UnmarshalTo(&c); err != nil {
			t.Fatal(err)
		}
		c.EdsClusterConfig.EdsConfig = separate(delta)
		return NewCluster(r.Name, encode(t, &c), r.Needs)
	}
	var l listenerv3.Listener
	if err := r.any().UnmarshalTo(&l); err != nil {
		t.Fatal(err)
	}
	var h hcmv3.HttpConnectionManager
	filters := l.FilterChains[0].Filters
	filter := filters[len(filters)-1]
	if err := filter.GetTypedConfig().UnmarshalTo(&h); err != nil {
		t.Fatal(err)
	}
	h.GetRds().ConfigSource = separate(delta)
	filter.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: pack(t, &h)}
	return NewResource(LDS, r.Name, encode(t, &l))
}

// An Envoy that takes each type from a service of its own follows changes of all types.
func TestRealEnvoyWithSeparateServices(t *testing.T) {
	for name, delta := range map[string]bool{"GRPC": false, "DELTA_GRPC": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := backend(t, "a"), backend(t, "b")
			view := (&View{}).put(separated(t, edsCluster(t, "one", 1), delta), endpoints(t, "one", a), separated(t, luaListener(t, "in", "filter", separate(delta)), delta), luaExtension(t, "filter", "function envoy_on_request(h) end"), routes(t, "r", "/", "one"))
			latest := NewLatestView(view)
			s := New(&oneClass{latest: latest}, quiet(t), nil)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			serveOn(t, l, s, nil)
			source := fmt.Sprintf(`{"api_config_source": {"api_type": %q, "transport_api_version": "V3", "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}]}, "resource_api_version": "V3"}`, name)
			_, port, _ := net.SplitHostPort(l.Addr().String())
			bootstrap := fmt.Sprintf(bootstrapText, name, port)
			bootstrap = strings.NewReplacer(
				`{"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}`, source,
				fmt.Sprintf(`"ads_config": {"api_type": %q, "transport_api_version": "V3", "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}]},`, name), "",
			).Replace(bootstrap)
			e := startEnvoyWith(t, bootstrap)
			answers := func(want string) {
				t.Helper()
				wait.Until(t, "the answer "+want, func() bool { return e.listening("in") != "" && fetch("http://"+e.listening("in")+"/") == want })
			}
			answers("a")
			view = view.put(endpoints(t, "one", b))
			latest.Publish(view)
			answers("b")
			view = view.put(separated(t, edsCluster(t, "one", 2), delta), endpoints(t, "one", a))
			latest.Publish(view)
			answers("a")
			view = view.put(separated(t, edsCluster(t, "two", 1), delta), endpoints(t, "two", b), routes(t, "r", "/", "two"))
			latest.Publish(view)
			answers("b")
			view = view.drop(CDS, "one").drop(EDS, "one")
			latest.Publish(view)
			wait.Until(t, "the cluster is removed", func() bool { return !strings.Contains("\n"+e.get("/clusters"), "\none::") })
			answers("b")
			e.settled()
			types := map[string]bool{}
			for _, c := range s.Connections() {
				types[c.Only] = true
			}
			// Virtual hosts need the routes of the same stream.
			if len(types) != int(VHDS) || types[""] {
				t.Errorf("streams of %v, want one of each type", types)
			}
		})
	}
}
