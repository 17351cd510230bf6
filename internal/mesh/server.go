package mesh

import (
	"net/netip"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// ServerKind is how a router treats the connections of a Gateway's server. Servers of one listener have the same kind, or two that
// ShareListener.
type ServerKind uint8

// The kinds of servers.
const (
	// NotServed is a server that no router serves; package config warns of it.
	NotServed ServerKind = iota
	// ServesHTTP is HTTP without TLS.
	ServesHTTP
	// ServesPassthrough is mode AUTO_PASSTHROUGH: the mesh's mutual TLS is forwarded.
	ServesPassthrough
	// ServesTLS is TLS that the router ends or, in mode PASSTHROUGH, forwards by the server name.
	ServesTLS
	// ServesTCP is TCP without TLS.
	ServesTCP
	// ServesUDP is UDP, which only listeners of the Gateway API have.
	ServesUDP
	// ServesQUIC is HTTP/3 beside ServesTLS, at the port of UDP with the same number.
	ServesQUIC
	// NumServerKinds is how many kinds there are.
	NumServerKinds
)

var serverKindNames = [...]string{"nothing", "HTTP", "AUTO_PASSTHROUGH", "TLS", "TCP", "UDP", "HTTP/3"}

// String returns the kind as messages name it.
func (k ServerKind) String() string { return serverKindNames[k] }

// ServerKindOf returns how routers treat a server. [control-plane 1.9.2, 1.9.5]
func ServerKindOf(s *networking.Server) ServerKind {
	p := ParseProtocol(s.GetPort().GetProtocol())
	switch {
	case s.GetTls().GetMode() == networking.ServerTLSSettings_AUTO_PASSTHROUGH:
		return ServesPassthrough
	case !validBind(s.GetBind()):
		return NotServed
	case p.IsHTTP():
		return ServesHTTP
	case p.IsTCP() && s.GetTls() != nil:
		return ServesTLS
	case p.IsTCP() && !p.IsTLS():
		return ServesTCP
	}
	return NotServed
}

// ShareListener reports whether servers of two different kinds may have one listener: the filter chains of AUTO_PASSTHROUGH are for the server names
// and protocols of the mesh's clients, so those of other TLS may be beside them. [control-plane 1.9.5]
func ShareListener(a, b ServerKind) bool {
	return a == ServesTLS && b == ServesPassthrough || a == ServesPassthrough && b == ServesTLS
}

// NamesCredential reports whether a server's certificates come from Secrets.
func NamesCredential(t *networking.ServerTLSSettings) bool {
	return t.GetCredentialName() != "" || len(t.GetCredentialNames()) > 0 || t.GetCaCertCredentialName() != ""
}

// validBind reports whether a listener can have the address: an IP address or a Unix socket.
func validBind(bind string) bool {
	if path, ok := strings.CutPrefix(bind, UnixSocket); ok {
		return IsSocketPath(path)
	}
	_, err := netip.ParseAddr(bind)
	return bind == "" || err == nil
}
