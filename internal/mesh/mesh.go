// Package mesh holds the words that the agent and the control plane share: identities, nodes, protocols, localities and classes.
//
// Everything in it is a value. Nothing in it reads a clock, a file, a socket or the
// environment, and nothing in it keeps state; any goroutine may use any of it.
// Names follow Istio's public interfaces, because both halves must be able to stand
// beside Istio's own.
package mesh

import (
	"fmt"
	"strings"
)

// Well-known numbers and names of the sidecar contract [control-plane B1–B7].
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
	// ProxyUID is the user and group id that capture lets pass.
	ProxyUID = 1337
	// PassthroughSource is the source address of inbound passthrough connections (IPv4).
	PassthroughSource = "127.0.0.6"
	// PassthroughSourceV6 is its IPv6 twin.
	PassthroughSourceV6 = "::6"
	// TokenAudience is the audience of tokens presented to the CA and to xDS.
	TokenAudience = "istio-ca"
	// TLSModeLabel on a workload says how it accepts connections; "istio" means mutual TLS.
	TLSModeLabel = "security.istio.io/tlsMode"
	// DefaultTrustDomain is used where mesh configuration names none.
	DefaultTrustDomain = "cluster.local"
	// DefaultRootNamespace holds mesh-wide configuration.
	DefaultRootNamespace = "istio-system"
)

// Identity names a workload: the service account it runs as. The zero value is "nobody".
type Identity struct {
	TrustDomain    string
	Namespace      string
	ServiceAccount string
}

// SPIFFE returns the identity as the URI that certificates carry
// (spiffe://<trust domain>/ns/<namespace>/sa/<service account>).
func (i Identity) SPIFFE() string {
	return "spiffe://" + i.TrustDomain + "/ns/" + i.Namespace + "/sa/" + i.ServiceAccount
}

// String is SPIFFE, for logs.
func (i Identity) String() string { return i.SPIFFE() }

// ParseSPIFFE reads the URI form back. It returns an error that quotes the input when
// the URI is not of the form spiffe://<td>/ns/<ns>/sa/<sa> with all three parts present.
func ParseSPIFFE(uri string) (Identity, error) {
	rest, ok := strings.CutPrefix(uri, "spiffe://")
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 5 || parts[1] != "ns" || parts[3] != "sa" || parts[0] == "" || parts[2] == "" || parts[4] == "" {
		return Identity{}, fmt.Errorf("identity %q: want spiffe://<trust domain>/ns/<namespace>/sa/<service account>", uri)
	}
	return Identity{TrustDomain: parts[0], Namespace: parts[2], ServiceAccount: parts[4]}, nil
}

// Locality says where a workload runs. Empty parts match only empty parts.
type Locality struct {
	Region, Zone, Subzone string
}

// ParseLocality reads "region/zone/subzone"; missing parts are empty. A "." separates
// too, where there is no "/", because label values may not hold one.
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

// String is the slash form without trailing separators.
func (l Locality) String() string {
	return strings.TrimRight(l.Region+"/"+l.Zone+"/"+l.Subzone, "/")
}
