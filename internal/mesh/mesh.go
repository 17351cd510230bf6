// Package mesh holds the types that the agent and the control plane share: identities, nodes, protocols, localities and classes.
//
// All types are values. The package does no I/O, reads no clock and no environment, and
// keeps no state; everything in it is safe for concurrent use. Names follow Istio's public
// interfaces, because either program may run with Istio's counterpart.
package mesh

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Ports, user ids, addresses, labels and default names of Istio's sidecar contract. [control-plane B1–B7]
const (
	// OutboundPort receives captured outbound TCP.
	OutboundPort = 15001
	// InboundPort receives captured inbound TCP.
	InboundPort = 15006
	// AdminPort is Envoy's admin interface, on loopback.
	AdminPort = 15000
	// StatusPort is the agent's own HTTP server.
	StatusPort = 15020
	// HealthPort is Envoy's listener that forwards /healthz/ready to the agent.
	HealthPort = 15021
	// DNSPort is where capture sends DNS, on loopback.
	DNSPort = 15053
	// PrometheusPort is Envoy's listener for its own metrics.
	PrometheusPort = 15090
	// ProxyUID is the user and group id whose traffic is not captured.
	ProxyUID = 1337
	// TPROXYMark is the mark of Envoy's connections to the application in the mode TPROXY, by which the capture rules leave them
	// alone. [agent I15]
	TPROXYMark = 1337
	// PassthroughSource is the source address of inbound passthrough connections (IPv4).
	PassthroughSource = "127.0.0.6"
	// PassthroughSourceV6 is the same for IPv6.
	PassthroughSourceV6 = "::6"
	// TokenAudience is the audience of tokens presented to the CA and to xDS.
	TokenAudience = "istio-ca"
	// JoinAudience is the audience of tokens that are accepted once, by the CA only: those in pilotctl vm join-token.
	JoinAudience = "pilothouse-join"
	// TLSModeLabel is the workload label that says whether the workload accepts mutual TLS; the value for that is "istio".
	TLSModeLabel = "security.istio.io/tlsMode"
	// RevisionLabel is the label of an object that is for one revision of the control plane only.
	RevisionLabel = "istio.io/rev"
	// GatewayController is the controller of the GatewayClasses of the Gateway API that are served, and the name of this control plane
	// in their statuses. [control-plane 1.11.7]
	GatewayController = "istio.io/gateway-controller"
	// LabelRegion, LabelZone and LabelSubzone are the labels of places.
	LabelRegion  = "topology.kubernetes.io/region"
	LabelZone    = "topology.kubernetes.io/zone"
	LabelSubzone = "topology.istio.io/subzone"
	// DefaultTrustDomain is used if mesh configuration does not set trustDomain.
	DefaultTrustDomain = "cluster.local"
	// DefaultRootNamespace is the namespace of mesh-wide configuration if mesh configuration does not set rootNamespace.
	DefaultRootNamespace = "istio-system"
)

// proxyPorts are those at which a proxy or its agent listen, also those that only Istio's do.
var proxyPorts = []uint32{AdminPort, OutboundPort, 15004, InboundPort, 15008, StatusPort, HealthPort, DNSPort, PrometheusPort}

// IsProxyPort reports whether a port is, where its user has not chosen others, one of a proxy or its agent.
func IsProxyPort(port uint32) bool { return slices.Contains(proxyPorts, port) }

// passthrough is PassthroughSource; PassthroughSourceV6 is not a loopback address.
var passthrough = netip.MustParseAddr(PassthroughSource)

// IsLocalSource reports whether a connection from an address comes from a program on this host: from a
// loopback address other than PassthroughSource, from which Envoy forwards connections of other hosts.
func IsLocalSource(from netip.Addr) bool {
	from = from.Unmap()
	return from.IsLoopback() && from != passthrough
}

// Identity is a workload's identity: the service account it runs as. The zero value identifies nobody.
type Identity struct {
	TrustDomain    string
	Namespace      string
	ServiceAccount string
}

// SPIFFE returns the SPIFFE ID that certificates carry:
// spiffe://<trust domain>/ns/<namespace>/sa/<service account>. It does not validate the parts.
func (i Identity) SPIFFE() string {
	return "spiffe://" + i.TrustDomain + "/ns/" + i.Namespace + "/sa/" + i.ServiceAccount
}

// String returns SPIFFE().
func (i Identity) String() string { return i.SPIFFE() }

// ParseSPIFFE parses a SPIFFE ID of the form that SPIFFE returns. All three parts must be
// present; their characters are not validated.
func ParseSPIFFE(uri string) (Identity, error) {
	rest, ok := strings.CutPrefix(uri, "spiffe://")
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 5 || parts[1] != "ns" || parts[3] != "sa" || parts[0] == "" || parts[2] == "" || parts[4] == "" {
		return Identity{}, fmt.Errorf("invalid identity %.300q: want spiffe://<trust domain>/ns/<namespace>/sa/<service account>", uri)
	}
	return Identity{TrustDomain: parts[0], Namespace: parts[2], ServiceAccount: parts[4]}, nil
}

// Locality is where a workload runs. An empty part matches only an empty part.
type Locality struct {
	Region, Zone, Subzone string
}

// ParseLocality parses "region/zone/subzone"; missing parts are empty. A value without "/"
// is split at "." instead, because Kubernetes label values cannot contain "/".
func ParseLocality(s string) Locality {
	if !strings.Contains(s, "/") {
		s = strings.ReplaceAll(s, ".", "/")
	}
	p := strings.SplitN(s, "/", 3)
	for len(p) < 3 {
		p = append(p, "")
	}
	return Locality{Region: p[0], Zone: p[1], Subzone: p[2]}
}

// String returns "region/zone/subzone" without trailing separators.
func (l Locality) String() string {
	return strings.TrimRight(l.Region+"/"+l.Zone+"/"+l.Subzone, "/")
}
