package route

import (
	"cmp"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// statusNoBackend is the response to requests for a path of an Ingress that has no usable backend: those of a less specific path must not
// get them.
const statusNoBackend = 503

// IngressRule is one path of an Ingress.
type IngressRule struct {
	Namespace, Name string
	Path            object.IngressPath
	// Group is lower for rules that come first, whatever their paths.
	Group int
}

// IngressInput has everything that determines the routes of one host.
type IngressInput struct {
	// Rules are those of the host, the oldest first.
	Rules []IngressRule
	// Port is the one that clients use.
	Port uint32
	// Backend resolves a backend in a namespace. Without a cluster, requests get 503.
	Backend func(namespace string, b object.IngressBackend) Destination
	Mesh    *meshv1.MeshConfig
	Caps    mesh.Capability
}

// BuildIngress returns the routes of all rules: in each group the longest paths first, and of those of the same length the exact ones.
// [control-plane 1.11.11]
func BuildIngress(in IngressInput) (out []*routev3.Route) {
	type ranked struct {
		IngressRule
		match  *routev3.RouteMatch
		length int
		prefix int
	}
	all := make([]ranked, 0, len(in.Rules))
	for _, rule := range in.Rules {
		one := ranked{IngressRule: rule, prefix: 1}
		path, exact := ingressPath(rule.Path)
		one.match, one.length = &routev3.RouteMatch{CaseSensitive: wrapperspb.Bool(true)}, len(path)
		if exact {
			one.prefix = 0
			one.match.PathSpecifier = &routev3.RouteMatch_Path{Path: path}
		} else {
			setPrefix(one.match, &rank{}, path)
		}
		all = append(all, one)
	}
	slices.SortStableFunc(all, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(b.length, a.length), cmp.Compare(a.prefix, b.prefix))
	})
	for _, r := range all {
		x := Route{
			Config: "/apis/networking.k8s.io/v1/namespaces/" + r.Namespace + "/ingresses/" + r.Name,
			Rule:   r.Name + "." + r.Namespace, Port: in.Port, Match: r.match, Invalid: statusNoBackend,
		}
		if to := in.Backend(r.Namespace, r.Path.Backend); to.Cluster != "" {
			x.Forward = &Forward{To: []Target{{Destination: to, Weight: 1}}, Single: true, Retry: in.Mesh.GetDefaultHttpRetryPolicy(), Rewrite: &routev3.RouteAction{}}
		}
		if one := x.envoy(in.Caps); one != nil {
			out = append(out, one)
		}
	}
	return out
}

// ingressPath returns what a path of an Ingress matches: one path exactly, or whole elements at its beginning. The type
// ImplementationSpecific is exact, unless it ends with a wildcard, which is cut off.
func ingressPath(p object.IngressPath) (path string, exact bool) {
	switch p.Type {
	case "Exact":
		return p.Path, true
	case "Prefix":
		return p.Path, false
	}
	switch p.Path {
	case "", "*", "/*", ".*":
		return "", false
	}
	for _, wildcard := range []string{".*", "/*"} {
		if before, ok := strings.CutSuffix(p.Path, wildcard); ok {
			return before, false
		}
	}
	return p.Path, true
}
