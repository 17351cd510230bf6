package model

import (
	"slices"

	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// PassthroughServer is a port at which a router forwards the mesh's mutual TLS, without ending it, to the service that
// the client's server name has: the servers of its Gateways with tls.mode AUTO_PASSTHROUGH. [control-plane 1.9.5]
type PassthroughServer struct {
	Port  uint32
	hosts []egressHost
}

// Serves reports whether clients may reach a service through the server.
func (p PassthroughServer) Serves(s *Service) bool {
	return slices.ContainsFunc(p.hosts, func(h egressHost) bool {
		return (h.namespace == "*" || h.namespace == s.Namespace) && hostMatches(h.host, s.Host)
	})
}

// PassthroughServers returns the servers of a router, sorted by port, each port once.
func (m *Model) PassthroughServers(r *incr.Reader, s mesh.ScopeID) []PassthroughServer {
	if s.Value().Gateways == "" {
		return nil
	}
	return m.rules.passthrough.Of(r, s)
}

func (m *Model) passthroughServers(r *incr.Reader, s mesh.ScopeID) (out []PassthroughServer) {
	for _, p := range m.rules.router.Of(r, s).Ports {
		if p.Kind != mesh.ServesPassthrough {
			continue
		}
		server := PassthroughServer{Port: p.Listen}
		for _, one := range p.Servers {
			server.hosts = append(server.hosts, one.hosts...)
		}
		out = append(out, server)
	}
	return out
}
