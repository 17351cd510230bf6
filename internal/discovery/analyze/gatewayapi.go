package analyze

import (
	"cmp"
	"fmt"

	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// speaks notes the protocol of a port of a Service.
func (s *service) speaks(p object.ServicePort) {
	protocol := mesh.ProtocolOfPort(p.Port, p.Name, p.AppProtocol, p.Protocol)
	if protocol == mesh.UDP {
		return
	}
	if s.protocols == nil {
		s.protocols = map[uint32]mesh.Protocol{}
	}
	s.protocols[p.Port] = protocol
}

// usesHTTP2 reports whether a policy has connections to ports of HTTP use HTTP/2, or the version of their clients.
func usesHTTP2(p *networking.TrafficPolicy) bool {
	pools := []*networking.ConnectionPoolSettings{p.GetConnectionPool()}
	for _, port := range p.GetPortLevelSettings() {
		pools = append(pools, port.GetConnectionPool())
	}
	for _, pool := range pools {
		if h := pool.GetHttp(); h.GetUseClientProtocol() || h.GetH2UpgradePolicy() == networking.ConnectionPoolSettings_HTTPSettings_UPGRADE {
			return true
		}
	}
	return false
}

// grpcRoute checks that the backends of a GRPCRoute do not declare a protocol by which gRPC cannot be sent. For ports that declare none, the
// route does. [control-plane 1.8.8]
func (a *index) grpcRoute(spec *gatewayv1.GRPCRouteSpec) {
	check := func(field string, b gatewayv1.BackendObjectReference) {
		if b.Group != nil && *b.Group != "" || b.Kind != nil && *b.Kind != "Service" || b.Port == nil {
			return
		}
		namespace := a.now.Namespace
		if b.Namespace != nil {
			namespace = cmp.Or(string(*b.Namespace), namespace)
		}
		host := mesh.FullHost(string(b.Name), namespace, a.o.Domain)
		s := a.services[host]
		if s == nil {
			return
		}
		p := s.protocols[uint32(*b.Port)]
		upgraded := p == mesh.HTTP && (a.http2[host] || a.o.Mesh.GetH2UpgradePolicy() == meshv1.MeshConfig_UPGRADE)
		if p == mesh.Auto || p.IsHTTP2() || upgraded {
			return
		}
		a.warn(field+".port", "port %d of Service %s declares %s, and requests of gRPC fail, which need HTTP/2: set the port's appProtocol to kubernetes.io/h2c, or have it declare nothing", *b.Port, b.Name, p)
	}
	for i, rule := range spec.Rules {
		at := fmt.Sprintf("spec.rules[%d]", i)
		for j, b := range rule.BackendRefs {
			check(fmt.Sprintf("%s.backendRefs[%d]", at, j), b.BackendObjectReference)
		}
		for j, f := range rule.Filters {
			if f.RequestMirror != nil {
				check(fmt.Sprintf("%s.filters[%d].requestMirror.backendRef", at, j), f.RequestMirror.BackendRef)
			}
		}
	}
}
