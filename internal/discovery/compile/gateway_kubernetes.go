package compile

import (
	"cmp"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	networking "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/listener"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/route"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// attachedByHost returns the keys of the routes of the Gateway API at listeners, by host, each list as model.Attached has it.
func (c *Compiler) attachedByHost(r *incr.Reader, p model.RouterPort, servers []model.Server) map[string][]string {
	out := map[string][]string{}
	for _, server := range servers {
		for _, a := range c.model.Attached(r, server, p) {
			for _, h := range a.Hosts {
				if !has(out[h], a.Key) {
					out[h] = append(out[h], a.Key)
				}
			}
		}
	}
	return out
}

// attachedRoutes translates the routes of the Gateway API for one host of a router.
func (c *Compiler) attachedRoutes(r *incr.Reader, s mesh.ScopeID, h gatewayHostNamed) []*routev3.Route {
	return c.kubernetesRoutes(r, s, h.attached, route.KubernetesInput{Port: h.port, TLS: h.tls, Sessions: s.Value().Caps.Has(mesh.Sessions)})
}

// kubernetesRoutes translates routes of the Gateway API, of which in says where they are.
func (c *Compiler) kubernetesRoutes(r *incr.Reader, s mesh.ScopeID, keys []string, in route.KubernetesInput) []*routev3.Route {
	in.Mesh, in.Caps, in.Rules = c.model.Mesh(r), s.Value().Caps, c.kubernetesRules(r, keys)
	in.Backend = func(rule route.KubernetesRule, ref gatewayv1.BackendObjectReference) route.Destination {
		kind := object.HTTPRoute
		if rule.GRPC != nil {
			kind = object.GRPCRoute
		}
		return c.backend(r, s, kind, rule.Namespace, ref)
	}
	return route.BuildKubernetes(in)
}

func (c *Compiler) kubernetesRules(r *incr.Reader, keys []string) (out []route.KubernetesRule) {
	for _, key := range keys {
		if k := c.model.KubernetesRoute(r, key); k != nil {
			out = append(out, route.KubernetesRule{Namespace: k.Namespace, Name: k.Name, HTTP: k.HTTP, GRPC: k.GRPC})
		}
	}
	return out
}

// backend returns the cluster of a backend; none if the reference is invalid, or not permitted at a gateway: between workloads, a client of a
// route could call the Service itself, with the same identity, so that there is nothing to permit. A Service that does not exist
// has the name that its cluster would have, which Envoy answers with the route's status for clusters that it does not find.
func (c *Compiler) backend(r *incr.Reader, s mesh.ScopeID, kind object.Kind, from string, ref gatewayv1.BackendObjectReference) route.Destination {
	ns, name := from, string(ref.Name)
	if ref.Namespace != nil && *ref.Namespace != "" {
		ns = string(*ref.Namespace)
	}
	if ref.Group != nil && *ref.Group != "" || ref.Kind != nil && *ref.Kind != "Service" || ref.Port == nil || name == "" {
		return route.Destination{}
	}
	if s.Value().Role == mesh.Router && !c.model.Permitted(r, kind, from, ns, "", "Service", name) {
		return route.Destination{}
	}
	host, port := name+"."+ns+".svc."+c.model.Domain(), uint32(*ref.Port)
	if kind == object.UDPRoute {
		return route.Destination{Cluster: cluster.Name(cluster.OutboundUDP, port, "", host)}
	}
	to := c.resolver(r, s, port)(host, port, "")
	to.Cluster = cmp.Or(to.Cluster, cluster.Name(cluster.Outbound, port, "", host))
	return to
}

// attached adds the chains of TLS and TCP routes of the Gateway API at a listener: the oldest route is used for TCP, and for
// each server name of TLS. [control-plane 1.11.7]
func (g *gatewayChains) attached(p model.RouterPort, s model.Server, t *networking.ServerTLSSettings) {
	for _, a := range g.c.model.Attached(g.r, s, p) {
		k := g.c.model.KubernetesRoute(g.r, a.Key)
		if k == nil {
			continue
		}
		var names []string
		if p.Kind == mesh.ServesTLS {
			names = a.Hosts
		}
		g.add(listener.GatewayChain{ServerNames: names, TLS: t, TCP: g.backends(k)})
	}
}

// udp adds what a listener of UDP does: the oldest route is used. [control-plane 1.11.7]
func (g *gatewayChains) udp(p model.RouterPort, s model.Server) {
	for _, a := range g.c.model.Attached(g.r, s, p) {
		if k := g.c.model.KubernetesRoute(g.r, a.Key); k != nil {
			g.add(listener.GatewayChain{TCP: g.weighted(k)})
			return
		}
	}
}

// backends returns the TCP proxy to the backends of a route, by weight: connections for those that are invalid are closed.
func (g *gatewayChains) backends(k *model.KubernetesRoute) listener.TCP {
	t := g.weighted(k)
	if len(t.Weighted) == 0 && t.Cluster != mesh.BlackHoleCluster {
		return g.c.tcp(g.r, g.scope, t.Cluster)
	}
	return t
}

// weighted returns the clusters of a route's backends, by weight; that of invalid ones has no endpoints.
func (g *gatewayChains) weighted(k *model.KubernetesRoute) listener.TCP {
	t := listener.TCP{Prefix: k.Name + "." + k.Namespace}
	for _, b := range k.Backends {
		weight := uint32(1)
		if b.Weight != nil {
			weight = uint32(max(*b.Weight, 0))
		}
		to := g.c.backend(g.r, g.scope, k.Kind, k.Namespace, b.BackendObjectReference)
		if weight > 0 {
			t.Weighted = append(t.Weighted, listener.WeightedCluster{Cluster: cmp.Or(to.Cluster, mesh.BlackHoleCluster), Weight: weight})
		}
	}
	switch len(t.Weighted) {
	case 0:
		return listener.TCP{Prefix: mesh.BlackHoleCluster, Cluster: mesh.BlackHoleCluster}
	case 1:
		return listener.TCP{Prefix: t.Prefix, Cluster: t.Weighted[0].Cluster}
	}
	return t
}
