package model

import (
	"cmp"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	networking "istio.io/api/networking/v1alpha3"
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

// gatewaysFor returns the keys of the Gateways that select a router and have such servers, separated by spaces.
// [control-plane 1.9.1]
func (m *Model) gatewaysFor(r *incr.Reader, k ProxyKey, labels map[string]string) string {
	if k.Role != mesh.Router {
		return ""
	}
	var out []string
	for key, g := range incr.In(r, m.tables.routers, all) {
		if subset(g.Spec.Selector, labels) && slices.ContainsFunc(g.Spec.Servers, autoPassthrough) {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func autoPassthrough(s *networking.Server) bool {
	return s.GetTls().GetMode() == networking.ServerTLSSettings_AUTO_PASSTHROUGH
}

func (m *Model) passthroughServers(r *incr.Reader, s mesh.ScopeID) (out []PassthroughServer) {
	for _, key := range strings.Fields(s.Value().Gateways) {
		g, ok := incr.Get(r, m.tables.routers, key)
		if !ok {
			continue
		}
		for _, server := range g.Spec.Servers {
			if !autoPassthrough(server) {
				continue
			}
			p := PassthroughServer{Port: server.GetPort().GetNumber()}
			for _, h := range server.Hosts {
				ns, host, ok := strings.Cut(h, "/")
				if !ok {
					ns, host = "*", h
				}
				if ns == "." {
					ns = g.Namespace
				}
				p.hosts = append(p.hosts, egressHost{ns, mesh.HostName(host)})
			}
			if i := slices.IndexFunc(out, func(o PassthroughServer) bool { return o.Port == p.Port }); i >= 0 {
				out[i].hosts = append(out[i].hosts, p.hosts...)
			} else {
				out = append(out, p)
			}
		}
	}
	slices.SortFunc(out, func(a, b PassthroughServer) int { return cmp.Compare(a.Port, b.Port) })
	return out
}
