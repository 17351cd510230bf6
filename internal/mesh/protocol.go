package mesh

import "strings"

// Protocol is what a port speaks, as far as a proxy needs to know.
type Protocol uint8

// The protocols that port names and appProtocol can declare. Auto means "not declared":
// the proxy sniffs.
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

// String is the name that a port-name prefix uses.
func (p Protocol) String() string {
	if int(p) < len(protocolNames) {
		return protocolNames[p]
	}
	return "auto"
}

// IsHTTP says whether routes apply to the protocol.
func (p Protocol) IsHTTP() bool {
	return p == HTTP || p == HTTP2 || p == GRPC || p == GRPCWeb
}

// IsHTTP2 says whether the upstream must be spoken to in HTTP/2.
func (p Protocol) IsHTTP2() bool { return p == HTTP2 || p == GRPC || p == GRPCWeb }

// IsTLS says whether the bytes on the wire are TLS of the application's own.
func (p Protocol) IsTLS() bool { return p == HTTPS || p == TLS }

// IsTCP says whether the port is opaque bytes (TLS included); Auto and HTTP are not.
func (p Protocol) IsTCP() bool {
	switch p {
	case TCP, HTTPS, TLS, Mongo, MySQL, Redis:
		return true
	}
	return false
}

// ServerFirst says whether the server speaks first, so that nothing may wait for the client's bytes.
func (p Protocol) ServerFirst() bool { return p == MySQL || p == Mongo }

// ParseProtocol reads a protocol's own name ("HTTP", "grpc-web", "TLS" …), any case; Auto if unknown.
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

// ProtocolOf decides what a service port speaks: the transport first (UDP is UDP),
// then appProtocol, then the prefix of the port's name up to the first "-"
// (grpc-web taken whole). Anything else is Auto. [control-plane 1.12.9, 1.12.10]
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
		return Auto // a TCP port named udp-… declares nothing that TCP could be
	}
	return ParseProtocol(prefix)
}
