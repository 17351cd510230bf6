package route_test

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/route"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/golden"
)

// request is one virtual host of a route configuration.
type request struct {
	// Kind is "" for a service's host, "catchall", or "inbound".
	Kind, Host, Namespace, Client string
	Port                          uint32
	VIPs                          []netip.Addr
	// Labels are the client's.
	Labels map[string]string
	// Gateways are those that the rule is bound to; empty for sidecars.
	Gateways []string
	// Bare is a proxy without the optional extensions.
	Bare bool
	// Rule is the VirtualService named Name; absent for the default route.
	Name string
	Rule json.RawMessage
	Mesh json.RawMessage
	// AllowAny lets requests for unknown hosts through a catchall.
	AllowAny bool
	clusters
}

// clusters is what is known of where routes lead.
type clusters struct {
	// TLS are hosts whose clusters originate ordinary TLS; Hash are subsets with the
	// load balancer that they have; Unknown are hosts that nothing is known of.
	TLS, Unknown []string
	Hash         map[string]json.RawMessage
}

const optional = mesh.FilterState | mesh.Fault | mesh.CORS | mesh.PreviousHosts | mesh.PreviousPriorities

func (r request) caps() mesh.Capability {
	if r.Bare {
		return mesh.IPv4
	}
	return mesh.IPv4 | optional
}

// resolver knows every host but the unknown ones, all at the port asked for or the listener's.
func (r request) resolver(t *testing.T) route.Resolver {
	return func(host string, port uint32, subset string) route.Destination {
		if slices.Contains(r.Unknown, host) {
			return route.Destination{}
		}
		if port == 0 {
			port = r.Port
		}
		d := route.Destination{Cluster: cluster.Name(cluster.Outbound, port, subset, host), OwnALPN: slices.Contains(r.TLS, host)}
		if raw, ok := r.Hash[subset]; ok {
			d.Hash = route.HashPolicies(golden.Proto(t, raw, &networking.LoadBalancerSettings{}))
		}
		return d
	}
}

func (r request) input(t *testing.T) route.Input {
	return route.Input{
		Rule:            route.Rule{Namespace: r.Namespace, Name: r.Name, Spec: golden.Proto(t, r.Rule, &networking.VirtualService{})},
		Port:            r.Port,
		Domain:          "cluster.local",
		ClientNamespace: r.Client,
		SourceMatch: func(want map[string]string) bool {
			for k, v := range want {
				if r.Labels[k] != v {
					return false
				}
			}
			return true
		},
		Destination: r.resolver(t),
		Gateways:    r.Gateways,
		Mesh:        golden.Proto(t, r.Mesh, &meshv1.MeshConfig{}),
		Caps:        r.caps(),
	}
}

func (r request) host(t *testing.T) *routev3.VirtualHost {
	m := golden.Proto(t, r.Mesh, &meshv1.MeshConfig{})
	if r.Kind == "catchall" {
		to := route.Destination{}
		if r.AllowAny {
			to.Cluster = mesh.PassthroughCluster
		}
		return route.CatchAll(to, r.caps())
	}
	var routes []*routev3.Route
	if r.Rule != nil {
		routes = route.Build(r.input(t))
	}
	if len(routes) == 0 {
		routes = []*routev3.Route{route.Default(r.Host, r.Port, r.resolver(t)(r.Host, 0, ""), m, r.caps())}
	}
	domains := route.Domains(route.Names{Host: r.Host, Namespace: r.Namespace, ClientNamespace: r.Client, Domain: "cluster.local", VIPs: r.VIPs})
	return route.VirtualHost(route.HostName(r.Host, r.Port), domains, routes)
}

// parse makes one route configuration of each request, as the port's.
func parse(t *testing.T, input []byte) []*routev3.RouteConfiguration {
	t.Helper()
	var list []request
	if err := yaml.UnmarshalStrict(input, &list); err != nil {
		t.Fatal(err)
	}
	var out []*routev3.RouteConfiguration
	for _, r := range list {
		if r.Kind == "inbound" {
			out = append(out, route.Inbound(cluster.Name(cluster.Inbound, r.Port, "", ""), r.Host, r.Port))
			continue
		}
		c := route.Frame("9080")
		c.VirtualHosts = []*routev3.VirtualHost{r.host(t)}
		out = append(out, c)
	}
	for _, c := range out {
		if err := c.ValidateAll(); err != nil {
			t.Errorf("%s: %v", c.VirtualHosts[0].Name, err)
		}
	}
	return out
}

// TestGolden holds every shape, and has Envoy take all of them at once.
func TestGolden(t *testing.T) {
	validate(t, golden.Run(t, "testdata", parse))
}

// TestDeterministic: equal input, equal bytes, whatever the order of maps.
func TestDeterministic(t *testing.T) {
	in := []byte(`[{host: a.b.svc.cluster.local, namespace: b, client: b, port: 80, name: a, rule: {http: [{
	  match: [{headers: {a: {exact: x}, b: {exact: x}, c: {exact: x}}, withoutHeaders: {d: {}, e: {}}, queryParams: {q: {exact: x}, r: {exact: x}}}],
	  headers: {request: {set: {a: x, b: x, c: x}, add: {d: x, e: x}}}, fault: {abort: {httpStatus: 500}}, corsPolicy: {},
	  route: [{destination: {host: a}}]}]}}]`)
	golden.Deterministic(t, func() proto.Message { return parse(t, in)[0] })
}
