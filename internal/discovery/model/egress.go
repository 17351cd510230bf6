package model

import (
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Egress is a listener of a Sidecar for outbound connections. [control-plane 1.9.22]
type Egress struct {
	// Port is that of the services that have it; 0 for all ports of services, each at a listener of its own or, at a Unix socket, at one.
	Port uint32
	// Protocol is what the listener carries, in place of what the services' ports do; Auto for that.
	Protocol mesh.Protocol
	// Bind is an address or Unix socket ("unix://PATH"), empty for the addresses of services.
	Bind string
	// Binds is set if clients connect to the listener itself, and not to a captured destination.
	Binds bool
	hosts []egressHost
}

// Sees reports whether a service is among the hosts of the listener.
func (e Egress) Sees(s *Service) bool { return seen(e.hosts, s.Namespace, s.Host) }

// Socket reports whether the listener is a Unix socket.
func (e Egress) Socket() bool { return strings.HasPrefix(e.Bind, mesh.UnixSocket) }

// Egress returns the listeners of a scope's Sidecar in their order, nil if none of them says at which port or address it is.
func (m *Model) Egress(r *incr.Reader, s mesh.ScopeID) []Egress { return m.egressOf(r, s).listeners }

// HasPort reports whether a scope has clusters for a port of a service: a Sidecar may list the service for some of its ports only.
func (m *Model) HasPort(r *incr.Reader, s mesh.ScopeID, svc *Service, port uint32) bool {
	e := m.egressOf(r, s)
	if len(e.listeners) == 0 {
		return true
	}
	for _, l := range e.listeners {
		if (l.Port == 0 || l.Port == port) && l.Sees(svc) {
			return true
		}
	}
	return listed(m.rules.imported.Of(r, s), svc.Host)
}

// EgressProxy is a destination for connections to hosts that the mesh does not know. The zero value means their own destination.
type EgressProxy struct {
	Host   string
	Port   uint32 // 0 for the only one
	Subset string
}

// EgressProxy returns the egress proxy of a scope's Sidecar.
func (m *Model) EgressProxy(r *incr.Reader, s mesh.ScopeID) EgressProxy {
	return m.egressOf(r, s).proxy
}

func egressListener(l *networking.IstioEgressListener, hosts []egressHost) Egress {
	e := Egress{Port: l.GetPort().GetNumber(), Protocol: mesh.ParseProtocol(l.GetPort().GetProtocol()), Bind: l.GetBind(), hosts: hosts}
	e.Binds = l.GetCaptureMode() == networking.CaptureMode_NONE || e.Socket()
	return e
}
