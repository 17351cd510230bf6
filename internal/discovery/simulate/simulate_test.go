package simulate_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	luav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/local_ratelimit/v3"
	"google.golang.org/protobuf/proto"
	meshv1 "istio.io/api/mesh/v1alpha1"
	security "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/authz"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/listener"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/discovery/simulate"
	meshvalues "github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/policytest"
)

const all = ^meshvalues.Capability(0)

// inbound is the listener of a workload with a port of each mode and protocol.
func inbound(filters authz.Filters) *listenerv3.Listener {
	in := listener.Inbound{
		Unknown:       listener.InboundPort{Mode: meshvalues.Permissive, Protocol: meshvalues.Auto, Cluster: meshvalues.InboundPassthroughCluster, Routes: &routev3.RouteConfiguration{}},
		Authorization: filters, TrustDomains: []string{"cluster.local", "old-td"},
	}
	port := uint32(1000)
	for _, mode := range []meshvalues.MTLSMode{meshvalues.Permissive, meshvalues.Strict, meshvalues.Disable} {
		for _, protocol := range []meshvalues.Protocol{meshvalues.Auto, meshvalues.HTTP, meshvalues.TCP} {
			port++
			in.Ports = append(in.Ports, listener.InboundPort{Port: port, Mode: mode, Protocol: protocol, Cluster: "inbound|x||", Routes: &routev3.RouteConfiguration{}})
		}
	}
	return listener.VirtualInbound(in, listener.Env{Caps: all &^ (meshvalues.FIPS1402 | meshvalues.PQC), Mesh: &meshv1.MeshConfig{}})
}

// TestChoiceOfChains sends each kind of connection to a port of each mode and protocol, the ports in the order of inbound.
func TestChoiceOfChains(t *testing.T) {
	l := inbound(authz.Filters{})
	identity := []string{"spiffe://cluster.local/ns/shop/sa/cart"}
	for _, c := range []struct {
		name string
		simulate.Connection
		// want has a letter for each port: "H" is let in as HTTP, "t" as TCP, "." is refused.
		want string
	}{
		{"HTTP", simulate.Connection{Protocol: "http/1.1"}, "HHt ... HHt t"},
		{"TCP", simulate.Connection{}, "tHt ... tHt t"},
		{"mesh HTTP", simulate.Connection{TLS: &simulate.TLS{ALPN: []string{"istio-http/1.1", "istio-h2", "istio"}, Identities: identity}}, "HHt HHt tHt t"},
		{"mesh TCP", simulate.Connection{TLS: &simulate.TLS{ALPN: []string{"istio"}, Identities: identity}}, "tHt tHt tHt t"},
		{"mesh HTTP of an alias", simulate.Connection{TLS: &simulate.TLS{ALPN: []string{"istio-h2", "istio"}, Identities: []string{"spiffe://old-td/ns/shop/sa/cart"}}}, "HHt HHt tHt t"},
		{"mesh HTTP of another trust domain", simulate.Connection{TLS: &simulate.TLS{ALPN: []string{"istio-h2", "istio"}, Identities: []string{"spiffe://other/ns/shop/sa/cart"}}}, "... ... tHt t"},
		{"mesh HTTP without a certificate", simulate.Connection{TLS: &simulate.TLS{ALPN: []string{"istio-h2", "istio"}}}, "... ... tHt t"},
		{"TLS of an application", simulate.Connection{TLS: &simulate.TLS{ServerName: "x.example", ALPN: []string{"h2"}}}, "t.t ... tHt t"},
		{"TLS of a gRPC library", simulate.Connection{TLS: &simulate.TLS{ALPN: []string{"h2"}, Identities: identity}}, "tHt tHt tHt t"},
	} {
		ports := strings.Fields(c.want)
		for i, want := range strings.Join(ports[:3], "") {
			c.Source, c.Destination = netip.MustParseAddrPort("10.0.0.1:40000"), netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), uint16(1001+i))
			v, err := simulate.Evaluate(l, c.Connection, &simulate.Request{Method: "GET", Authority: "x", Path: "/a/../b"}, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			got := '.'
			if v.Allowed {
				got = 't'
				if v.Path == "/b" {
					got = 'H'
				}
			}
			if got != want {
				t.Errorf("%s at port %d (mode %d, protocol %d): %c, want %c: %+v", c.name, 1001+i, i/3, i%3, got, want, v)
			}
		}
	}
}

// TestNothingIsGuessed has parts in a listener that the simulation does not know.
func TestNothingIsGuessed(t *testing.T) {
	deny := authz.Build([]authz.Policy{{Namespace: "shop", Name: "p", Spec: &security.AuthorizationPolicy{
		Rules: []*security.Rule{{When: []*security.Condition{{Key: "request.headers[x-request-id]", Values: []string{"x"}}}}},
	}}}, nil, nil, nil)
	c := simulate.Connection{Source: netip.MustParseAddrPort("10.0.0.1:40000"), Destination: netip.MustParseAddrPort("10.0.0.2:1002"), Protocol: "http/1.1"}
	for want, l := range map[string]*listenerv3.Listener{
		`filter chain "0.0.0.0_1002": filter "envoy.filters.http.rbac": rule "ns[shop]-policy[p]-rule[0]": header x-request-id, which the proxy writes`: inbound(deny),
		`filter "lua" (envoy.extensions.filters.http.lua.v3.Lua): not known to the simulation`: inbound(authz.Filters{HTTP: []*hcmv3.HttpFilter{{
			Name: "lua", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: marshal.MustAny(&luav3.Lua{})},
		}}}),
	} {
		_, err := simulate.Evaluate(l, c, &simulate.Request{Method: "GET", Authority: "x", Path: "/"}, time.Now())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	c.Destination = netip.MustParseAddrPort("10.0.0.2:1003")
	_, err := simulate.Evaluate(inbound(authz.Filters{TCP: []*listenerv3.Filter{policytest.Filter(t, "limit", &ratelimitv3.LocalRateLimit{})}}), c, nil, time.Now())
	if want := `filter "limit" (envoy.extensions.filters.network.local_ratelimit.v3.LocalRateLimit)`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestAClosedListener(t *testing.T) {
	l := listener.VirtualInbound(listener.Inbound{Closed: true}, listener.Env{Caps: all, Mesh: &meshv1.MeshConfig{}})
	v, err := simulate.Evaluate(l, simulate.Connection{Source: netip.MustParseAddrPort("10.0.0.1:40000"), Destination: netip.MustParseAddrPort("10.0.0.2:80")}, nil, time.Now())
	if err != nil || v.Allowed || v.By != "no filter chain" {
		t.Errorf("%+v, %v", v, err)
	}
}

// FuzzEvaluate takes listeners as they come from a file: whatever they have, evaluation ends with a verdict or an error.
func FuzzEvaluate(f *testing.F) {
	for _, l := range []*listenerv3.Listener{{}, inbound(authz.Filters{})} {
		b, err := proto.Marshal(l)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, uint16(1002), "/a/%2e%2E/b?x=y", "Bearer x.y.z")
	}
	f.Fuzz(func(t *testing.T, b []byte, port uint16, path, token string) {
		var l listenerv3.Listener
		if proto.Unmarshal(b, &l) != nil {
			return
		}
		for _, identity := range []string{"", "spiffe://cluster.local/ns/shop/sa/cart"} {
			c := simulate.Connection{Source: netip.MustParseAddrPort("10.0.0.1:40000"), Destination: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), port), Protocol: "http/1.1"}
			if identity != "" {
				c.TLS = &simulate.TLS{ServerName: "x", ALPN: []string{"istio"}, Identities: []string{identity}}
			}
			v, err := simulate.Evaluate(&l, c, &simulate.Request{Method: "GET", Authority: "x", Path: path, Headers: map[string][]string{"authorization": {token}}}, time.Unix(0, 0))
			if err == nil && !v.Allowed && v.By == "" {
				t.Errorf("refused by nothing: %+v", v)
			}
		}
	})
}
