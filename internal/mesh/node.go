package mesh

import (
	"fmt"
	"net/netip"
	"strings"
)

// Role is the type of a proxy in its node id.
type Role string

// The roles that the control plane compiles configuration for.
const (
	Sidecar Role = "sidecar"
	Router  Role = "router"
)

// Waypoint is a role that only agents have: they serve control planes that compile configuration for it. ParseRole refuses it.
const Waypoint Role = "waypoint"

// ParseRole returns the role of a node id's type. An empty type is a sidecar; "ingress" and
// "egress" are names of 2017 for a router. [control-plane 1.5.2]
func ParseRole(s string) (Role, error) {
	switch s {
	case "sidecar", "":
		return Sidecar, nil
	case "router", "ingress", "egress":
		return Router, nil
	}
	return "", fmt.Errorf("invalid proxy type %.100q: want sidecar or router", s)
}

// NodeID is the decoded form of an xDS node id, type~ip~id~domain. [control-plane 1.5.1]
type NodeID struct {
	Role   Role
	IP     netip.Addr // the zero Addr if the part is empty
	ID     string     // pod.namespace
	Domain string     // namespace.svc.cluster.local
}

// maxNodeID limits the node id that a peer may send, in bytes.
const maxNodeID = 1024

// String encodes the id in the form that DecodeNodeID decodes.
func (n NodeID) String() string {
	ip := ""
	if n.IP.IsValid() {
		ip = n.IP.String()
	}
	return strings.Join([]string{string(n.Role), ip, n.ID, n.Domain}, "~")
}

// DecodeNodeID decodes type~ip~id~domain: exactly four parts, a known type, and an IP that is
// empty or valid. It also decodes the forms of 2017: ip|id|domain or ip~id~domain for a sidecar,
// and "ingress" or "egress" alone. It rejects ids of more than 1024 bytes.
func DecodeNodeID(s string) (NodeID, error) {
	if len(s) > maxNodeID {
		return NodeID{}, fmt.Errorf("invalid node id: %d bytes, want at most %d", len(s), maxNodeID)
	}
	p := strings.Split(s, "~")
	if len(p) == 1 && strings.Contains(s, "|") {
		if p = strings.Split(s, "|"); len(p) != 3 {
			return NodeID{}, fmt.Errorf("invalid node id %.200q: want ip|id|domain, got %d parts", s, len(p))
		}
	}
	switch {
	case len(p) == 3:
		p = append([]string{string(Sidecar)}, p...)
	case s == "ingress" || s == "egress":
		p = []string{s, "", "", ""}
	case len(p) != 4:
		return NodeID{}, fmt.Errorf("invalid node id %.200q: want type~ip~id~domain, four parts, got %d", s, len(p))
	}
	role, err := ParseRole(p[0])
	if err != nil {
		return NodeID{}, fmt.Errorf("invalid node id %.200q: %w", s, err)
	}
	n := NodeID{Role: role, ID: p[2], Domain: p[3]}
	if p[1] != "" {
		if n.IP, err = netip.ParseAddr(p[1]); err != nil || n.IP.Zone() != "" {
			return NodeID{}, fmt.Errorf("invalid node id %.200q: invalid IP address %.100q: want an address without a zone, or nothing", s, p[1])
		}
	}
	return n, nil
}

// Namespace returns the part of the id after its last dot ("pod.namespace"), or without one the
// first label of the domain.
func (n NodeID) Namespace() string {
	if ns := n.idNamespace(); ns != "" {
		return ns
	}
	first, _, _ := strings.Cut(n.Domain, ".")
	return first
}

// idNamespace returns the part of the id after its last dot, or "" if there is none.
func (n NodeID) idNamespace() string {
	if i := strings.LastIndexByte(n.ID, '.'); i >= 0 {
		return n.ID[i+1:]
	}
	return ""
}

// Node is what a proxy says of itself in its first xDS request. None of it is authenticated; see
// CheckIdentity.
type Node struct {
	NodeID
	Metadata Metadata
	Locality Locality
	// Extensions are the names of the extensions compiled into the proxy; nil if it sent no
	// list, as clients other than Envoy do.
	Extensions map[string]bool
	// UserAgent is "name/version", for logs; it may be empty.
	UserAgent string
	// Service is the cluster of Envoy's node, which is the service's name in spans. Empty if there is none, or one that is not
	// printable or longer than 256 bytes.
	Service string
}

// Namespace returns NAMESPACE of the metadata, or if that is empty the namespace of the id.
func (n Node) Namespace() string {
	if n.Metadata.Namespace != "" {
		return n.Metadata.Namespace
	}
	return n.NodeID.Namespace()
}

// IPs returns INSTANCE_IPS of the metadata, or if that is empty the address of the id, if any.
func (n Node) IPs() []netip.Addr {
	if len(n.Metadata.InstanceIPs) > 0 {
		return n.Metadata.InstanceIPs
	}
	if n.IP.IsValid() {
		return []netip.Addr{n.IP}
	}
	return nil
}

// CheckIdentity returns an error unless the node belongs to the workload with the authenticated
// identity id: it must have the same namespace, in its metadata and in its id, by which proxies
// are listed and found; and if its metadata has a service account, the same service account.
// A node or an identity without a namespace is rejected. [control-plane 1.5.5]
func (n Node) CheckIdentity(id Identity) error {
	namespace, account := n.Namespace(), n.Metadata.ServiceAccount
	if namespace == "" || namespace != id.Namespace || account != "" && account != id.ServiceAccount {
		return fmt.Errorf("node claims namespace %q and service account %q, but the caller is %s", namespace, account, id)
	}
	if inID := n.idNamespace(); inID != "" && inID != id.Namespace {
		return fmt.Errorf("node has the id %.200q of namespace %.200q, but the caller is %s", n.ID, inID, id)
	}
	return nil
}
