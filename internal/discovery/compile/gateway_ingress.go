package compile

import (
	"cmp"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/route"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// ingressRoutes translates the rules of Ingresses for one host of a router.
func (c *Compiler) ingressRoutes(r *incr.Reader, s mesh.ScopeID, h gatewayHostNamed) []*routev3.Route {
	list := c.model.IngressRoutes(r, h.ingress)
	if len(list) == 0 {
		return nil
	}
	in := route.IngressInput{
		Port: h.port, Mesh: c.model.Mesh(r), Caps: s.Value().Caps,
		Backend: func(namespace string, b object.IngressBackend) route.Destination {
			return c.ingressBackend(r, s, namespace, b)
		},
	}
	for _, one := range list {
		in.Rules = append(in.Rules, route.IngressRule{Namespace: one.Namespace, Name: one.Name, Path: one.Path, Group: one.Group})
	}
	return route.BuildIngress(in)
}

// ingressBackend returns the cluster of a backend; none if it is no Service, or if the Service has no port of the name. A Service that does
// not exist has the name that its cluster would have, which Envoy answers with 503.
func (c *Compiler) ingressBackend(r *incr.Reader, s mesh.ScopeID, namespace string, b object.IngressBackend) route.Destination {
	if b.Resource != "" || b.Service == "" {
		return route.Destination{}
	}
	host, port := b.Service+"."+namespace+".svc."+c.model.Domain(), b.Port
	if b.PortName != "" {
		port = 0
		if svc := c.model.Service(r, s, host); svc != nil {
			port = svc.PortNamed(b.PortName)
		}
	}
	if port == 0 {
		return route.Destination{}
	}
	to := c.resolver(r, s, port)(host, port, "")
	to.Cluster = cmp.Or(to.Cluster, cluster.Name(cluster.Outbound, port, "", host))
	return to
}
