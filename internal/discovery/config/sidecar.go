package config

import (
	"net/netip"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

func (c *check) sidecar(s *networking.Sidecar) {
	c.labels("spec.workloadSelector.labels", s.WorkloadSelector.GetLabels())
	if len(s.Egress) == 0 && len(s.Ingress) == 0 && s.OutboundTrafficPolicy == nil && s.InboundConnectionPool == nil {
		c.warn("spec", "is empty: all services are visible, as without a Sidecar; add egress")
	}
	for i, e := range s.Egress {
		at := item("spec.egress", i)
		if e.GetPort() == nil && i < len(s.Egress)-1 {
			c.fail(at+".port", "is missing, but only the last entry may be for all ports; move it to the end")
		}
		if len(e.GetHosts()) == 0 {
			c.fail(at+".hosts", "is empty; add hosts such as \"./*\" or \"~/*\"")
		}
		for j, h := range e.GetHosts() {
			c.namespacedHost(item(at+".hosts", j), h)
		}
		c.egressAddress(at, e)
		for j, other := range s.Egress[:i] {
			switch p, o := e.GetPort(), other.GetPort(); {
			case p == nil || o == nil || p.Number != o.Number:
			case p.Number != 0:
				c.fail(at+".port.number", "port %d is that of %s, too; list the hosts of both in one", p.Number, item("spec.egress", j))
			case e.GetBind() == other.GetBind():
				c.fail(at+".bind", "socket %q is that of %s, too; list the hosts of both in one", e.GetBind(), item("spec.egress", j))
			}
		}
	}
	first := map[uint32]int{}
	for i, in := range s.Ingress {
		at := item("spec.ingress", i)
		c.listenerIn(at, in)
		if j, twice := first[in.GetPort().GetNumber()]; twice {
			c.fail(at+".port.number", "port %d is that of %s, too; remove one of the two", in.GetPort().GetNumber(), item("spec.ingress", j))
		} else {
			first[in.GetPort().GetNumber()] = i
		}
	}
	if s.InboundConnectionPool != nil {
		c.inboundPool("spec.inboundConnectionPool", s.InboundConnectionPool)
	}
	if p := s.OutboundTrafficPolicy.GetEgressProxy(); p != nil {
		c.destination("spec.outboundTrafficPolicy.egressProxy", p)
		if s.OutboundTrafficPolicy.Mode != networking.OutboundTrafficPolicy_ALLOW_ANY {
			c.warn("spec.outboundTrafficPolicy.egressProxy", "not applied: with mode REGISTRY_ONLY nothing is sent to unknown hosts")
		}
	}
}

// egressAddress checks the port and the address of a listener for outbound connections. [control-plane 1.9.22]
func (c *check) egressAddress(at string, e *networking.IstioEgressListener) {
	p, bind := e.GetPort(), e.GetBind()
	path, socket := strings.CutPrefix(bind, mesh.UnixSocket)
	if p != nil {
		c.port(at+".port.number", p.Number, socket)
		c.protocol(at+".port.protocol", p.Protocol)
		if mesh.ParseProtocol(p.Protocol) == mesh.UDP {
			c.fail(at+".port.protocol", "invalid protocol UDP: connections are TCP")
		}
	}
	switch {
	case bind == "":
	case socket && !mesh.IsSocketPath(path):
		c.fail(at+".bind", "invalid Unix socket %q: want \"unix://\" and an absolute path, or \"@\" and a name, of at most %d bytes", bind, mesh.MaxSocketPath)
	case socket && p == nil:
		c.fail(at+".port", "is missing; a Unix socket needs port.number 0 and a protocol")
	case socket && p.Number != 0:
		c.fail(at+".port.number", "invalid port %d: want 0 with a Unix socket", p.Number)
	case socket && e.GetCaptureMode() == networking.CaptureMode_IPTABLES:
		c.fail(at+".captureMode", "IPTABLES is not for Unix sockets; remove it, or use NONE")
	case !socket && !isIP(bind):
		c.fail(at+".bind", "invalid address %q: want an IP address, or unix://PATH", bind)
	}
}

// listenerIn checks one listener for inbound connections. [control-plane 1.9.23]
func (c *check) listenerIn(at string, in *networking.IstioIngressListener) {
	c.port(at+".port.number", in.GetPort().GetNumber(), false)
	c.protocol(at+".port.protocol", in.GetPort().GetProtocol())
	protocol := mesh.ParseProtocol(in.GetPort().GetProtocol())
	if protocol == mesh.UDP {
		c.fail(at+".port.protocol", "invalid protocol UDP: connections are TCP")
	}
	bound := in.GetCaptureMode() == networking.CaptureMode_NONE
	bind, err := netip.ParseAddr(in.GetBind())
	switch {
	case in.GetBind() == "":
	case err != nil || bind.Zone() != "":
		c.fail(at+".bind", "invalid address %q: want an IP address", in.GetBind())
	case !bound:
		c.warn(at+".bind", "not applied: captured connections are served at all addresses of the workload; set captureMode to NONE for a listener that binds")
	case bind.IsLoopback() && in.GetDefaultEndpoint() == "":
		c.fail(at+".defaultEndpoint", "is missing; the listener would forward connections to itself")
	}
	c.defaultEndpoint(at+".defaultEndpoint", in, bind, bound)
	if in.GetConnectionPool() != nil {
		c.inboundPool(at+".connectionPool", in.ConnectionPool)
	}
	if t := in.GetTls(); t != nil {
		c.ingressTLS(at+".tls", t, protocol)
	}
}

// defaultEndpoint checks where connections go: to a Unix socket, or to a port of loopback or of the workload's own address.
func (c *check) defaultEndpoint(at string, in *networking.IstioIngressListener, bind netip.Addr, bound bool) {
	text := in.GetDefaultEndpoint()
	if text == "" {
		return
	}
	if path, ok := strings.CutPrefix(text, mesh.UnixSocket); ok {
		if !mesh.IsSocketPath(path) {
			c.fail(at, "invalid Unix socket %q: want \"unix://\" and an absolute path, or \"@\" and a name, of at most %d bytes", text, mesh.MaxSocketPath)
		}
		return
	}
	i := strings.LastIndexByte(text, ':')
	port, err := strconv.ParseUint(text[i+1:], 10, 16)
	switch address := text[:max(i, 0)]; {
	case err != nil || port == 0:
		c.fail(at, "invalid endpoint %q: want ADDRESS:PORT, or unix://PATH", text)
	case address != "127.0.0.1" && address != "0.0.0.0" && address != "[::1]" && address != "[::]":
		c.fail(at, "invalid address %q: want 127.0.0.1 or [::1] for loopback, or 0.0.0.0 or [::] for the workload's own address", address)
	case bound && uint32(port) == in.GetPort().GetNumber() && (bind.IsLoopback() && (address == "127.0.0.1" || address == "[::1]") || !bind.IsLoopback() && (address == "0.0.0.0" || address == "[::]")):
		c.fail(at, "is the address of the listener itself: want another port of the application")
	}
}

// inboundPool checks limits of inbound connections.
func (c *check) inboundPool(at string, p *networking.ConnectionPoolSettings) {
	c.pool(at, p)
	const why = "not applied: the application gets the protocol of its port"
	if p.GetHttp().GetH2UpgradePolicy() != networking.ConnectionPoolSettings_HTTPSettings_DEFAULT {
		c.warn(at+".http.h2UpgradePolicy", why)
	}
	if p.GetHttp().GetUseClientProtocol() {
		c.warn(at+".http.useClientProtocol", why)
	}
}

// ingressTLS checks how TLS of clients outside the mesh is ended.
func (c *check) ingressTLS(at string, t *networking.ServerTLSSettings, p mesh.Protocol) {
	switch {
	case !p.IsTLS():
		c.fail(at, "needs port.protocol HTTPS or TLS")
	case t.GetMode() != networking.ServerTLSSettings_SIMPLE && t.GetMode() != networking.ServerTLSSettings_MUTUAL:
		c.fail(at+".mode", "invalid mode %s: want SIMPLE or MUTUAL", t.GetMode())
	case mesh.NamesCredential(t):
		c.fail(at+".credentialName", "Secrets are for gateways; use serverCertificate and privateKey, files that the proxy reads")
	case t.GetHttpsRedirect():
		c.fail(at+".httpsRedirect", "is for gateways; remove it")
	default:
		c.serverTLS(at, t)
	}
}
