package route_test

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/route"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/golden"
)

// TestObserved compares with shapes written by hand after what an incumbent sends, field by field.
func TestObserved(t *testing.T) {
	var in struct{ Requests []request }
	var want struct{ Hosts []json.RawMessage }
	golden.ReadYAML(t, "testdata/observed/input.yaml", &in)
	golden.ReadYAML(t, "testdata/observed/want.yaml", &want)
	if len(in.Requests) != len(want.Hosts) || len(in.Requests) == 0 {
		t.Fatalf("%d requests for %d hosts", len(in.Requests), len(want.Hosts))
	}
	for i, r := range in.Requests {
		w := golden.Proto(t, want.Hosts[i], &routev3.VirtualHost{})
		t.Run(w.Name, func(t *testing.T) {
			if diff := cmp.Diff(w, r.host(t), protocmp.Transform()); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
		})
	}
}

func TestFrame(t *testing.T) {
	want := golden.Proto(t, []byte(`{"name":"9080","validate_clusters":false,"max_direct_response_body_size_bytes":1048576,"ignore_port_in_host_matching":true}`), &routev3.RouteConfiguration{})
	if diff := cmp.Diff(want, route.Frame("9080"), protocmp.Transform()); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
}

// TestInboundPassthrough: the chain for undeclared ports, by hand.
func TestInboundPassthrough(t *testing.T) {
	want := golden.Proto(t, []byte(`{"name":"InboundPassthroughCluster","validate_clusters":false,"virtual_hosts":[{"name":"inbound|http|0","domains":["*"],"routes":[
	  {"match":{"prefix":"/"},"name":"default","decorator":{"operation":":0/*"},"route":{"cluster":"InboundPassthroughCluster","timeout":"0s",
	   "retry_policy":{"retry_on":"reset-before-request","num_retries":2},"max_stream_duration":{"max_stream_duration":"0s","grpc_timeout_header_max":"0s"}}}]}]}`),
		&routev3.RouteConfiguration{})
	if diff := cmp.Diff(want, route.Inbound(mesh.InboundPassthroughCluster, "", 0), protocmp.Transform()); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
}

// TestJoin: joined bytes decode to the whole, and depend on nothing but the arguments.
func TestJoin(t *testing.T) {
	whole := route.Frame("9080")
	var hosts [][]byte
	for _, name := range []string{"b:1", "a:1", "c:1"} {
		h := route.VirtualHost(name, []string{name}, []*routev3.Route{route.Default(name, 1, route.Destination{}, nil, 0)})
		whole.VirtualHosts = append(whole.VirtualHosts, h)
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, b)
	}
	joined := route.Join(route.Frame("9080"), hosts)
	got := &routev3.RouteConfiguration{}
	if err := proto.Unmarshal(joined, got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(whole, got, protocmp.Transform()); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	if string(route.Join(route.Frame("9080"), hosts)) != string(joined) {
		t.Error("joining twice gives other bytes")
	}
	if cap(joined) != len(joined) {
		t.Errorf("%d bytes allocated for %d", cap(joined), len(joined))
	}
	got.Reset()
	if err := proto.Unmarshal(route.Join(route.Frame("x"), nil), got); err != nil || !proto.Equal(got, route.Frame("x")) {
		t.Errorf("no hosts: %v, %v", got, err)
	}
}

func TestDomains(t *testing.T) {
	for _, c := range []struct {
		name string
		in   route.Names
		want []string
	}{
		{"own namespace", route.Names{Host: "a.b.svc.cluster.local", Namespace: "b", ClientNamespace: "b", Domain: "cluster.local"},
			[]string{"a.b.svc.cluster.local", "a.b.svc.cluster.local.", "a", "a.b.svc", "a.b"}},
		{"other namespace", route.Names{Host: "a.b.svc.cluster.local", Namespace: "b", ClientNamespace: "c", Domain: "cluster.local"},
			[]string{"a.b.svc.cluster.local", "a.b.svc.cluster.local.", "a.b.svc", "a.b"}},
		{"other domain", route.Names{Host: "a.b.svc.cluster.local", Namespace: "b", ClientNamespace: "b", Domain: "x"},
			[]string{"a.b.svc.cluster.local", "a.b.svc.cluster.local."}},
		{"addresses", route.Names{Host: "api.example.com", Namespace: "b", ClientNamespace: "b", Domain: "cluster.local",
			VIPs: []netip.Addr{netip.MustParseAddr("240.240.0.1"), netip.MustParseAddr("2001:2::1")}},
			[]string{"api.example.com", "api.example.com.", "240.240.0.1", "[2001:2::1]"}},
		{"headless", route.Names{Host: "a.b.svc.x", Namespace: "b", ClientNamespace: "b", Domain: "x", Headless: true},
			[]string{"a.b.svc.x", "a.b.svc.x.", "a", "a.b.svc", "a.b", "*.a.b.svc.x", "*.a.b.svc.x.", "*.a", "*.a.b.svc", "*.a.b"}},
		{"everything", route.Names{Host: "*", Headless: true}, []string{"*"}},
	} {
		if diff := cmp.Diff(c.want, route.Domains(c.in)); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", c.name, diff)
		}
	}
}

// A match of claims never makes a route one for all requests, and sidecars do not get it.
func TestClaims(t *testing.T) {
	spec := &networking.VirtualService{Http: []*networking.HTTPRoute{
		{Name: "claim", Match: []*networking.HTTPMatchRequest{{Headers: map[string]*networking.StringMatch{
			"@request.auth.claims.group": {MatchType: &networking.StringMatch_Exact{Exact: "admin"}},
		}}}, Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: "a"}}}},
		{Name: "rest", Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: "b"}}}},
	}}
	for _, c := range []struct {
		gateways []string
		want     string
	}{{nil, "rest"}, {[]string{"ns/gw"}, "claim rest"}} {
		var names []string
		for _, r := range route.Build(route.Input{
			Rule: route.Rule{Namespace: "ns", Name: "v", Spec: spec}, Port: 80, Domain: "cluster.local", Gateways: c.gateways,
			Destination: func(string, uint32, string) route.Destination { return route.Destination{} },
		}) {
			names = append(names, r.Name)
			if r.Name == "claim" && route.MatchesAll(r) {
				t.Error("a route with a match of claims matches all requests")
			}
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("gateways %q: routes %q, want %q", c.gateways, got, c.want)
		}
	}
}
