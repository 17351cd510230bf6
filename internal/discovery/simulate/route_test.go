package simulate_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	luav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/route"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/discovery/simulate"
	"github.com/pilothouse/pilothouse/test/envoytest"
)

// clustersOfRoutes are all to which random routes lead.
var clustersOfRoutes = []string{"outbound|80|v1|a.shop.svc.cluster.local", "outbound|80|v2|a.shop.svc.cluster.local", "outbound|80||b.shop.svc.cluster.local"}

// manager is a connection manager as sidecars have it for outgoing requests.
func manager(c *routev3.RouteConfiguration, more ...*hcmv3.HttpFilter) []*listenerv3.Filter {
	filter := func(name string, m proto.Message) *hcmv3.HttpFilter {
		return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: marshal.MustAny(m)}}
	}
	m := &hcmv3.HttpConnectionManager{
		StatPrefix: "x", NormalizePath: wrapperspb.Bool(true), RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: c},
		HttpFilters: append(more, filter(route.FaultFilter, &faultv3.HTTPFault{}), filter(route.CORSFilter, &corsv3.Cors{}), filter("envoy.filters.http.router", &routerv3.Router{})),
	}
	return []*listenerv3.Filter{{Name: "envoy.filters.network.http_connection_manager", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: marshal.MustAny(m)}}}
}

// frame is a route configuration with one virtual host, b, for other names.
func frame(hosts ...*routev3.VirtualHost) *routev3.RouteConfiguration {
	c := route.Frame("80")
	c.VirtualHosts = append(hosts, route.VirtualHost("b", []string{"b", "*.b.shop", "b.*"}, []*routev3.Route{route.Default("b.shop.svc.cluster.local", 80, route.Destination{}, nil, all)}))
	c.ResponseHeadersToAdd = []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "x-cluster", Value: "%UPSTREAM_CLUSTER%"}}}
	return c
}

// textMatch is a random match of one of some texts.
func textMatch(r *rand.Rand, of ...string) *networking.StringMatch {
	s := of[r.IntN(len(of))]
	switch r.IntN(3) {
	case 0:
		return &networking.StringMatch{MatchType: &networking.StringMatch_Exact{Exact: s}}
	case 1:
		return &networking.StringMatch{MatchType: &networking.StringMatch_Prefix{Prefix: s[:1+r.IntN(len(s))]}}
	}
	return &networking.StringMatch{MatchType: &networking.StringMatch_Regex{Regex: strings.ReplaceAll(s, "a", "[a-c]+")}}
}

var (
	routePaths   = []string{"/", "/a", "/a/b", "/A/b", "/team/a", "/aa/b/c", "/team"}
	routeQueries = []string{"", "", "?q=a", "?q=b&q=a", "?p=a%20b", "?q"}
	routeValues  = []string{"a", "ab", "cab", "x"}
)

// virtualService is a random one.
func virtualService(r *rand.Rand) *networking.VirtualService {
	out := &networking.VirtualService{}
	for range 1 + r.IntN(5) {
		h := &networking.HTTPRoute{Name: fmt.Sprintf("r%d", r.IntN(100))}
		for range 1 + r.IntN(2) {
			m := &networking.HTTPMatchRequest{Uri: textMatch(r, routePaths...), IgnoreUriCase: r.IntN(4) == 0}
			if r.IntN(3) == 0 {
				m.Headers = map[string]*networking.StringMatch{"x-a": textMatch(r, routeValues...)}
			}
			if r.IntN(4) == 0 {
				m.WithoutHeaders = map[string]*networking.StringMatch{"x-b": textMatch(r, routeValues...)}
			}
			if r.IntN(4) == 0 {
				m.QueryParams = map[string]*networking.StringMatch{pickOf(r, "q", "p"): textMatch(r, "a", "b", "a b", "a%20b")}
			}
			if r.IntN(5) == 0 {
				m.Method = textMatch(r, "GET", "PUT")
			}
			h.Match = append(h.Match, m)
		}
		switch r.IntN(8) {
		case 0:
			h.Redirect = &networking.HTTPRedirect{Uri: "/elsewhere", RedirectCode: []uint32{0, 302, 303, 307, 308}[r.IntN(5)]}
		case 1:
			h.DirectResponse = &networking.HTTPDirectResponse{Status: uint32(200 + r.IntN(300))}
		case 2:
			h.Fault = &networking.HTTPFaultInjection{Abort: &networking.HTTPFaultInjection_Abort{ErrorType: &networking.HTTPFaultInjection_Abort_HttpStatus{HttpStatus: 418}, Percentage: &networking.Percent{Value: pickOf(r, 100.0, 0)}}}
			fallthrough
		default:
			for i := range 1 + r.IntN(2) {
				d := &networking.HTTPRouteDestination{Destination: &networking.Destination{Host: "a.shop.svc.cluster.local", Subset: fmt.Sprintf("v%d", i+1)}, Weight: 50}
				if r.IntN(4) == 0 {
					d.Headers = &networking.Headers{Request: &networking.Headers_HeaderOperations{Set: map[string]string{"x-b": "target"}}}
				}
				h.Route = append(h.Route, d)
			}
			if r.IntN(3) == 0 {
				h.Rewrite = &networking.HTTPRewrite{Uri: pickOf(r, "/new", "/", "/new/"), Authority: pickOf(r, "", "other.example")}
			} else if r.IntN(4) == 0 {
				h.Rewrite = &networking.HTTPRewrite{UriRegexRewrite: &networking.RegexRewrite{Match: "/(a+)", Rewrite: pickOf(r, `/x\1$`, `/x\0\1\\1`)}}
			}
			if r.IntN(3) == 0 {
				h.Headers = &networking.Headers{Request: &networking.Headers_HeaderOperations{
					Set: map[string]string{"x-a": "100%"}, Add: map[string]string{"x-c": "added"}, Remove: []string{"x-d"},
				}}
			}
		}
		out.Http = append(out.Http, h)
	}
	return out
}

func pickOf[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// TestRoutesAgreeWithEnvoy makes VirtualServices and requests, and compares where the simulation says that a request goes, and as
// what, with a real Envoy in front of a server that says what it got.
func TestRoutesAgreeWithEnvoy(t *testing.T) {
	const services, requests = 60, 40
	r := rand.New(rand.NewPCG(seedOf(t), 7))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("x-got", strings.Join([]string{req.Host, req.RequestURI, joinedValues(req.Header)}, " "))
	}))
	t.Cleanup(server.Close)
	at := netip.MustParseAddrPort(server.Listener.Addr().(*net.TCPAddr).String())
	b := envoytest.Bootstrap()
	for _, name := range clustersOfRoutes {
		b.StaticResources.Clusters = append(b.StaticResources.Clusters, &clusterv3.Cluster{
			Name: name, ConnectTimeout: durationpb.New(10 * time.Second), ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
			LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: socket(at)}},
			}}}}},
		})
	}
	var list []*listenerv3.Listener
	for i := range services {
		host := route.VirtualHost("a", []string{"a.shop", "A", "*"}, route.Build(route.Input{
			Rule: route.Rule{Namespace: "shop", Name: "vs", Spec: virtualService(r)}, Port: 80, Domain: "cluster.local", Caps: all,
			Destination: func(h string, port uint32, subset string) route.Destination {
				return route.Destination{Cluster: cluster.Name(cluster.Outbound, port+80*(1-min(port, 1)), subset, h)}
			},
		}))
		list = append(list, &listenerv3.Listener{Name: fmt.Sprintf("l%d", i), Address: socket(netip.MustParseAddrPort("127.0.0.1:0")), FilterChains: []*listenerv3.FilterChain{{Filters: manager(frame(host))}}})
	}
	b.StaticResources.Listeners = list
	open := envoytest.Start(t, b)
	client := &http.Client{Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	statuses := map[int]int{}
	for _, l := range list {
		for range requests {
			q := &simulate.Request{Method: pickOf(r, "GET", "PUT"), Authority: pickOf(r, "a.shop", "a:80", "b", "x.B.shop", "b.example", "other"), Path: pickOf(r, routePaths...) + pickOf(r, routeQueries...), Headers: map[string][]string{}}
			for _, name := range []string{"x-a", "x-b", "x-c", "x-d"} {
				if r.IntN(2) == 0 {
					q.Headers[name] = []string{pickOf(r, routeValues...)}
				}
			}
			said, err := simulate.Outbound(l, simulate.Connection{Destination: netip.MustParseAddrPort("10.0.0.1:80")}, q, nil)
			if err != nil {
				t.Fatalf("%+v: %v", q, err)
			}
			req, err := http.NewRequestWithContext(t.Context(), q.Method, "http://"+open[l.GetName()]+q.Path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = q.Authority
			for name, values := range q.Headers {
				req.Header[http.CanonicalHeaderKey(name)] = values
			}
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			statuses[res.StatusCode]++
			got := res.Header.Get("x-cluster")
			if len(said.Targets) == 0 {
				if uint32(res.StatusCode) != said.Status || res.Header.Get("x-got") != "" {
					t.Errorf("%+v: Envoy says %d, cluster %q; the simulation %+v\n%v", q, res.StatusCode, got, said, l)
				}
				continue
			}
			i := slices.IndexFunc(said.Targets, func(to simulate.Target) bool { return to.Cluster == got })
			if i < 0 {
				t.Errorf("%+v: Envoy says %d, cluster %q; the simulation %+v\n%v", q, res.StatusCode, got, said, l)
				continue
			}
			to := said.Targets[i].Request
			h := http.Header{}
			for name, values := range to.Headers {
				h[http.CanonicalHeaderKey(name)] = values
			}
			if want := strings.Join([]string{to.Authority, to.Path, joinedValues(h)}, " "); res.Header.Get("x-got") != want {
				t.Errorf("%+v: the server got %q; the simulation says %q\n%v", q, res.Header.Get("x-got"), want, l)
			}
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	t.Logf("statuses %v", statuses)
	if len(statuses) < 10 || statuses[200] < 500 || statuses[404] < 100 {
		t.Errorf("statuses %v: the cases show little", statuses)
	}
}

func joinedValues(h http.Header) string {
	var out []string
	for _, name := range []string{"X-A", "X-B", "X-C", "X-D"} {
		out = append(out, name+"="+strings.Join(h[name], ","))
	}
	return strings.Join(out, " ")
}

func socket(at netip.AddrPort) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: at.Addr().String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(at.Port())},
	}}}
}

// TestRouteNeverGuesses has parts that may decide where a request goes and are not evaluated.
func TestRouteNeverGuesses(t *testing.T) {
	to := &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: "c"}}}
	anyPath := &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
	host := func(r *routev3.Route) *routev3.VirtualHost {
		return route.VirtualHost("a", []string{"a"}, []*routev3.Route{r})
	}
	cases := map[string][]*listenerv3.Filter{
		"a Lua filter":       manager(frame(host(&routev3.Route{Match: anyPath, Action: to})), &hcmv3.HttpFilter{Name: "lua", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: marshal.MustAny(&luav3.Lua{})}}),
		"a fraction":         manager(frame(host(&routev3.Route{Match: &routev3.RouteMatch{PathSpecifier: anyPath.PathSpecifier, RuntimeFraction: &corev3.RuntimeFractionalPercent{}}, Action: to}))),
		"a connect matcher":  manager(frame(host(&routev3.Route{Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_ConnectMatcher_{}}, Action: to}))),
		"a cluster's header": manager(frame(host(&routev3.Route{Match: anyPath, Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_ClusterHeader{ClusterHeader: "x"}}}}))),
		"a host's header":    manager(frame(host(&routev3.Route{Match: anyPath, Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: to.Route.ClusterSpecifier, HostRewriteSpecifier: &routev3.RouteAction_HostRewriteHeader{HostRewriteHeader: "x"}}}}))),
		"no action":          manager(frame(host(&routev3.Route{Match: anyPath}))),
		"a header of the proxy": manager(frame(host(&routev3.Route{Action: to, Match: &routev3.RouteMatch{PathSpecifier: anyPath.PathSpecifier, Headers: []*routev3.HeaderMatcher{{
			Name: "x-request-id", HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
		}}}}))),
	}
	for name, filters := range cases {
		l := &listenerv3.Listener{Name: "l", FilterChains: []*listenerv3.FilterChain{{Filters: filters}}}
		got, err := simulate.Outbound(l, simulate.Connection{}, &simulate.Request{Method: "GET", Authority: "a", Path: "/"}, nil)
		if err == nil || !strings.Contains(err.Error(), "not known to the simulation") {
			t.Errorf("%s: %+v, error %v", name, got, err)
		}
	}
	l := &listenerv3.Listener{Name: "l", FilterChains: []*listenerv3.FilterChain{{Filters: manager(frame())}}}
	if _, err := simulate.Outbound(l, simulate.Connection{}, nil, nil); err == nil {
		t.Error("no error for a connection at a chain for HTTP")
	}
}

// TestConnectionsAreRouted has chains for connections that are not HTTP.
func TestConnectionsAreRouted(t *testing.T) {
	tcp := func(p *tcpproxyv3.TcpProxy) *listenerv3.Listener {
		return &listenerv3.Listener{FilterChains: []*listenerv3.FilterChain{{
			Metadata: cluster.ConfigMetadata("/apis/x"),
			Filters:  []*listenerv3.Filter{{Name: "tcp", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: marshal.MustAny(p)}}},
		}}}
	}
	got, err := simulate.Outbound(tcp(&tcpproxyv3.TcpProxy{ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: "c"}}), simulate.Connection{}, nil, nil)
	if err != nil || len(got.Targets) != 1 || got.Targets[0].Cluster != "c" || got.Config != "/apis/x" {
		t.Errorf("%+v, error %v", got, err)
	}
	got, err = simulate.Outbound(tcp(&tcpproxyv3.TcpProxy{ClusterSpecifier: &tcpproxyv3.TcpProxy_WeightedClusters{WeightedClusters: &tcpproxyv3.TcpProxy_WeightedCluster{
		Clusters: []*tcpproxyv3.TcpProxy_WeightedCluster_ClusterWeight{{Name: "c", Weight: 90}, {Name: "d", Weight: 10}},
	}}}), simulate.Connection{}, nil, nil)
	if err != nil || len(got.Targets) != 2 || got.Targets[1].Weight != 10 {
		t.Errorf("%+v, error %v", got, err)
	}
	if got, err := simulate.Outbound(&listenerv3.Listener{}, simulate.Connection{}, nil, nil); err != nil || len(got.Targets) != 0 || got.Status != 0 {
		t.Errorf("%+v, error %v", got, err)
	}
}
