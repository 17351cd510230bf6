package mesh

import (
	"fmt"
	"slices"
	"strings"
)

// Protocol is the application protocol of a port.
type Protocol uint8

// The protocols that a port name or appProtocol can declare. Auto means that none is declared:
// the proxy detects it.
const (
	Auto Protocol = iota
	HTTP
	HTTP2
	GRPC
	GRPCWeb
	HTTPS
	TLS
	TCP
	UDP
	Mongo
	MySQL
	Redis
)

var protocolNames = [...]string{"auto", "http", "http2", "grpc", "grpc-web", "https", "tls", "tcp", "udp", "mongo", "mysql", "redis"}

// String returns the protocol's name as in a port name ("grpc-web"), or Protocol(N) for a value
// that is not one of the constants.
func (p Protocol) String() string {
	if int(p) < len(protocolNames) {
		return protocolNames[p]
	}
	return fmt.Sprintf("Protocol(%d)", uint8(p))
}

// IsHTTP reports whether the protocol is HTTP in cleartext, so that HTTP routes apply to it.
func (p Protocol) IsHTTP() bool {
	return p == HTTP || p == HTTP2 || p == GRPC || p == GRPCWeb
}

// IsHTTP2 reports whether the protocol requires HTTP/2 to the upstream.
func (p Protocol) IsHTTP2() bool { return p == HTTP2 || p == GRPC || p == GRPCWeb }

// IsTLS reports whether the application itself uses TLS.
func (p Protocol) IsTLS() bool { return p == HTTPS || p == TLS }

// IsTCP reports whether the port is proxied as opaque bytes. That includes the application's own
// TLS; it excludes Auto, HTTP and UDP.
func (p Protocol) IsTCP() bool {
	switch p {
	case TCP, HTTPS, TLS, Mongo, MySQL, Redis:
		return true
	}
	return false
}

// ServerFirst reports whether the server sends first, so that a listener must not wait for the
// client's bytes.
func (p Protocol) ServerFirst() bool { return p == MySQL || p == Mongo }

// ParseProtocol returns the protocol of a name ("HTTP", "grpc-web", "kubernetes.io/h2c"), in any
// case. As in Istio, a name that is not known is Auto. [control-plane 1.12.9]
func ParseProtocol(s string) Protocol {
	s = strings.ToLower(s)
	if s == "kubernetes.io/h2c" || s == "h2c" {
		return HTTP2
	}
	if s == "kubernetes.io/ws" || s == "kubernetes.io/wss" {
		return HTTP
	}
	for i, n := range protocolNames {
		if n == s {
			return Protocol(i)
		}
	}
	return Auto
}

// knownTCP are the ports of protocols in which the server sends first, or that are not HTTP for sure: SMTP, DNS, MySQL, MongoDB.
var knownTCP = []uint32{25, 53, 3306, 27017}

// ProtocolOfPort is ProtocolOf for a Service's port with that number: 25, 53, 3306 and 27017 are TCP if nothing is declared for
// them, since the detection would wait for the client. [control-plane 1.12.9]
func ProtocolOfPort(number uint32, portName, appProtocol, transport string) Protocol {
	p := ProtocolOf(portName, appProtocol, transport)
	if p == Auto && slices.Contains(knownTCP, number) {
		return TCP
	}
	return p
}

// ProtocolOf returns the protocol of a service port: UDP if that is the transport, else what
// appProtocol says, else the prefix of the port's name up to the first "-" ("grpc-web" is one
// prefix), else Auto. [control-plane 1.12.9, 1.12.10]
func ProtocolOf(portName, appProtocol, transport string) Protocol {
	if strings.EqualFold(transport, "UDP") {
		return UDP
	}
	if appProtocol != "" {
		return ParseProtocol(appProtocol)
	}
	name := strings.ToLower(portName)
	if name == "grpc-web" || strings.HasPrefix(name, "grpc-web-") {
		return GRPCWeb
	}
	prefix, _, _ := strings.Cut(name, "-")
	if prefix == "udp" {
		return Auto // the prefix contradicts the transport
	}
	return ParseProtocol(prefix)
}
