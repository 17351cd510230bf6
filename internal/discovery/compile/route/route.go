// Package route translates the http routes of a VirtualService, or their absence, to Envoy's.
//
// It consists of pure functions of values: equal values give equal messages. Conditions that depend on
// the client only (its namespace, its labels, the port) are evaluated here, so that routes that cannot
// match are not sent. There are no errors. An invalid part, which validation rejects, never makes a
// match wider: a route whose match cannot be translated is left out, and one whose action cannot be
// translated responds with 503. Names, order and defaults are those of [control-plane 1.7, 1.12, C4].
package route

import (
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Names of the HTTP filters that routes configure. Listeners must use the same names.
const (
	// FilterStateFilter sets the mesh's ALPN; routes to clusters with an ALPN of their own disable it.
	FilterStateFilter = "envoy.filters.http.set_filter_state"
	// FaultFilter injects delays and aborts.
	FaultFilter = "envoy.filters.http.fault"
	// CORSFilter handles CORS.
	CORSFilter = "envoy.filters.http.cors"
)

// statusUnavailable is the response of a route whose action cannot be translated.
const statusUnavailable = 503

// meshGateway is the reserved gateway name for all sidecars.
const meshGateway = "mesh"

// Destination is a resolved destination of a route.
type Destination struct {
	// Cluster is the name of the cluster. If it is empty, there is none: the route then has the name
	// that the cluster would have, and Envoy responds with 503.
	Cluster string
	// OwnALPN is set if the cluster's TLS offers its own ALPN, so that the filter does not set it (cluster.OwnALPN).
	OwnALPN bool
	// Dynamic says how the cluster resolves the Host header, nil for a cluster that does not; its Host is empty for all names.
	Dynamic *cluster.DynamicName
	// Hash are the policies of the cluster's consistent hashing (HashPolicies); empty for none.
	Hash []*routev3.RouteAction_HashPolicy
	// Session is how the requests of a session stay at one endpoint, the configuration of SessionFilter; nil if they do not.
	Session *anypb.Any
}

// Resolver resolves a host, port and subset. The host is fully qualified. If port is 0, it is the
// service's only port, or the listener's if the service has several.
type Resolver func(host string, port uint32, subset string) Destination

// Rule is a VirtualService.
type Rule struct {
	Namespace, Name string
	Spec            *networking.VirtualService
}

// Input has everything that determines the routes of one rule for one scope and one port.
type Input struct {
	Rule Rule
	// Port is the port of the service that the client called.
	Port uint32
	// Domain is the cluster's DNS suffix ("cluster.local"), to which short names are completed.
	Domain string
	// ClientNamespace is compared with sourceNamespace.
	ClientNamespace string
	// SourceMatch reports whether the client has all of these labels; nil means that no labels match.
	SourceMatch func(labels map[string]string) bool
	// Destination resolves destinations; never nil.
	Destination Resolver
	// Gateways are the routers' Gateways ("namespace/name") that the rule is bound to; empty for sidecars.
	Gateways []string
	// Mesh has the default retry policy; may be nil.
	Mesh *meshv1.MeshConfig
	// Caps are the capabilities of the proxy; what it does not support is left out.
	Caps mesh.Capability
}

// Build returns the routes of the rule, in order, up to the first that matches all requests. If the rule
// has no route for this client and port, the result is empty, and the caller uses Default.
func Build(in Input) []*routev3.Route {
	var out []*routev3.Route
	for _, h := range in.Rule.Spec.GetHttp() {
		matches := h.GetMatch()
		if len(matches) == 0 {
			matches = []*networking.HTTPMatchRequest{nil}
		}
		for _, m := range matches {
			r := in.route(h, m)
			if r == nil {
				continue
			}
			out = append(out, r)
			if catchAll(r.GetMatch()) {
				return out
			}
		}
	}
	return out
}

// route translates one match of one http route; nil if it does not apply to this client or port.
func (in Input) route(h *networking.HTTPRoute, m *networking.HTTPMatchRequest) *routev3.Route {
	if !in.applies(m) || (h.GetDelegate() != nil && len(h.GetRoute()) == 0) {
		return nil
	}
	match, ok := translateMatch(m, len(in.Gateways) > 0)
	if !ok {
		return nil
	}
	x := Route{
		Name: routeName(h, m), Match: match, Config: cluster.ConfigPath("virtual-service", in.Rule.Namespace, in.Rule.Name),
		Rule: in.Rule.Name, Port: in.Port, Invalid: statusUnavailable,
		Request: operations(h.GetHeaders().GetRequest()), Response: operations(h.GetHeaders().GetResponse()),
		Filters: in.filters(h),
	}
	if m != nil {
		x.StatPrefix = m.StatPrefix
	}
	switch {
	case h.GetRedirect() != nil:
		x.Redirect = redirect(h.Redirect, in.Port)
	case h.GetDirectResponse() != nil:
		x.Direct = directResponse(h.DirectResponse)
	default:
		x.Forward = in.forward(h, match)
	}
	return x.envoy(in.Caps)
}

// applies evaluates the conditions that are the same for all requests of a client. [control-plane 1.7.11, 1.7.12]
func (in Input) applies(m *networking.HTTPMatchRequest) bool {
	if m == nil {
		return true
	}
	if m.Port != 0 && m.Port != in.Port {
		return false
	}
	if len(m.Gateways) > 0 && !slices.ContainsFunc(m.Gateways, in.at) {
		return false
	}
	if m.SourceNamespace != "" && m.SourceNamespace != in.ClientNamespace {
		return false
	}
	return len(m.SourceLabels) == 0 || (in.SourceMatch != nil && in.SourceMatch(m.SourceLabels))
}

// at reports whether the proxy is at a gateway of a match: "mesh", "name" or "namespace/name".
func (in Input) at(gateway string) bool {
	if len(in.Gateways) == 0 {
		return gateway == meshGateway
	}
	if !strings.Contains(gateway, "/") {
		gateway = in.Rule.Namespace + "/" + gateway
	}
	return slices.Contains(in.Gateways, gateway)
}

func routeName(h *networking.HTTPRoute, m *networking.HTTPMatchRequest) string {
	if m.GetName() != "" {
		return h.GetName() + "." + m.GetName()
	}
	return h.GetName()
}

// catchAll reports whether a match matches all requests, so that later routes are unreachable.
func catchAll(m *routev3.RouteMatch) bool {
	return m.GetPrefix() == "/" && len(m.GetHeaders()) == 0 && len(m.GetQueryParameters()) == 0 && len(m.GetDynamicMetadata()) == 0
}

// MatchesAll reports whether a route matches all requests, so that those behind it are unreachable.
func MatchesAll(r *routev3.Route) bool { return catchAll(r.GetMatch()) }

// Clusters returns the clusters that routes name, mirrors included, sorted and without repetition.
func Clusters(routes []*routev3.Route) []string {
	var out []string
	for _, r := range routes {
		a := r.GetRoute()
		if name := a.GetCluster(); name != "" {
			out = append(out, name)
		}
		for _, c := range a.GetWeightedClusters().GetClusters() {
			out = append(out, c.GetName())
		}
		for _, m := range a.GetRequestMirrorPolicies() {
			out = append(out, m.GetCluster())
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// operation returns the name of the route's spans: the host of a single destination, or else the name of
// the rule, then port and path.
func operation(r *routev3.Route, rule string, port uint32) string {
	path := "/*"
	switch m := r.GetMatch(); p := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		path = p.Prefix + "*"
	case *routev3.RouteMatch_Path:
		path = p.Path
	case *routev3.RouteMatch_SafeRegex:
		path = p.SafeRegex.GetRegex()
	}
	if k, ok := cluster.ParseName(r.GetRoute().GetCluster()); ok {
		rule, port = k.Host, k.Port
	}
	return rule + ":" + strconv.FormatUint(uint64(port), 10) + path
}

// Default returns the route of a service without a rule.
func Default(host string, port uint32, d Destination, m *meshv1.MeshConfig, caps mesh.Capability) *routev3.Route {
	if d.Cluster == "" {
		d.Cluster = cluster.Name(cluster.Outbound, port, "", host)
	}
	r := &routev3.Route{
		Name:  "default",
		Match: anyPath(),
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: d.Cluster},
			Timeout:          &durationpb.Duration{},
			MaxGrpcTimeout:   &durationpb.Duration{}, //nolint:staticcheck // as Istio sends it
			RetryPolicy:      retryPolicy(m.GetDefaultHttpRetryPolicy(), len(d.Hash) > 0, caps),
			HashPolicy:       d.Hash,
		}},
		Decorator: &routev3.Decorator{Operation: host + ":" + strconv.FormatUint(uint64(port), 10) + "/*"},
	}
	r.TypedPerFilterConfig = d.perFilter(caps, "")
	return r
}

func anyPath() *routev3.RouteMatch {
	return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
}

// filterOff disables a filter for one route.
func filterOff() *anypb.Any { return marshal.MustAny(&routev3.FilterConfig{Disabled: true}) }
