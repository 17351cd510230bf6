package mesh

import (
	"fmt"
	"net/netip"
	"strings"
)

// Role is what a proxy is for.
type Role string

// The roles that configuration is compiled for.
const (
	Sidecar Role = "sidecar"
	Router  Role = "router"
)

// ParseRole accepts the type words of node ids; "ingress" and "egress" are the 2017
// names of what is now a router. [control-plane 1.5.2]
func ParseRole(s string) (Role, error) {
	switch s {
	case "sidecar", "":
		return Sidecar, nil
	case "router", "ingress", "egress":
		return Router, nil
	}
	return "", fmt.Errorf("proxy type %q: want sidecar or router", s)
}

// NodeID is the decoded form of an xDS node id, type~ip~id~domain. [control-plane 1.5.1]
type NodeID struct {
	Role   Role
	IP     netip.Addr // the zero Addr where the part is empty
	ID     string     // pod.namespace
	Domain string     // namespace.svc.cluster.local
}

// maxNodeID bounds what a peer may send as its node id, in bytes.
const maxNodeID = 1024

// String encodes the id. DecodeNodeID(id.String()) gives id back.
func (n NodeID) String() string {
	ip := ""
	if n.IP.IsValid() {
		ip = n.IP.String()
	}
	return strings.Join([]string{string(n.Role), ip, n.ID, n.Domain}, "~")
}

// DecodeNodeID reads type~ip~id~domain: exactly four parts, a known type, and an IP that
// is empty or parses. It also reads the forms of 2017: ip|id|domain (or with "~") for a sidecar, and
// the words "ingress" and "egress" alone.
func DecodeNodeID(s string) (NodeID, error) {
	if len(s) > maxNodeID {
		return NodeID{}, fmt.Errorf("node id of %d bytes: at most %d are taken", len(s), maxNodeID)
	}
	p := strings.Split(s, "~")
	if len(p) == 1 && strings.Contains(s, "|") {
		if p = strings.Split(s, "|"); len(p) != 3 {
			return NodeID{}, fmt.Errorf("invalid node id %q: want ip|id|domain, got %d parts", s, len(p))
		}
	}
	switch {
	case len(p) == 3:
		p = append([]string{string(Sidecar)}, p...)
	case s == "ingress" || s == "egress":
		p = []string{s, "", "", ""}
	case len(p) != 4:
		return NodeID{}, fmt.Errorf("invalid node id %q: want type~ip~id~domain, four parts, got %d", s, len(p))
	}
	role, err := ParseRole(p[0])
	if err != nil {
		return NodeID{}, fmt.Errorf("invalid node id %q: %w", s, err)
	}
	n := NodeID{Role: role, ID: p[2], Domain: p[3]}
	if p[1] != "" {
		if n.IP, err = netip.ParseAddr(p[1]); err != nil || n.IP.Zone() != "" {
			return NodeID{}, fmt.Errorf("invalid node id %q: invalid IP address %q: want an address without a zone, or nothing", s, p[1])
		}
	}
	return n, nil
}

// Namespace is the part of the id after its last dot ("pod.namespace"), else the first
// label of the domain.
func (n NodeID) Namespace() string {
	if i := strings.LastIndexByte(n.ID, '.'); i >= 0 && i+1 < len(n.ID) {
		return n.ID[i+1:]
	}
	first, _, _ := strings.Cut(n.Domain, ".")
	return first
}

// Node is a proxy as it presents itself on its first xDS request.
type Node struct {
	NodeID
	Metadata Metadata
	Locality Locality
	// Extensions are the names of the extensions that the proxy has compiled in; nil
	// where it sent no list (a client that is no Envoy).
	Extensions map[string]bool
	// UserAgent is "name/version" for people, possibly empty.
	UserAgent string
}

// Namespace is metadata's NAMESPACE where given, else the id's.
func (n Node) Namespace() string {
	if n.Metadata.Namespace != "" {
		return n.Metadata.Namespace
	}
	return n.NodeID.Namespace()
}

// IPs are INSTANCE_IPS where given, else the id's single address.
func (n Node) IPs() []netip.Addr {
	if len(n.Metadata.InstanceIPs) > 0 {
		return n.Metadata.InstanceIPs
	}
	if n.IP.IsValid() {
		return []netip.Addr{n.IP}
	}
	return nil
}
