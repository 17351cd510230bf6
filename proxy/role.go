package proxy

import (
	"strings"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// The node IDs of the ingress and egress proxies of 2017, which have no other fields.
const (
	IngressNode = "ingress"
	EgressNode  = "egress"
)

// IngressCertsPath is the directory of the certificate and key (tls.crt, tls.key) of the ingress proxy of 2017.
const IngressCertsPath = "/etc/istio/ingress-certs/"

// Role is the type and identity of a proxy. The roles of this package can be compared with ==.
type Role interface {
	// ServiceNode encodes the role as a node ID, type~ip~id~domain. No part may contain "~" or "|".
	ServiceNode() string
}

// Sidecar is the proxy of one workload.
type Sidecar struct {
	// IPAddress is the workload's address; it may be empty.
	IPAddress string
	// ID names the workload, pod.namespace.
	ID string
	// Domain is appended to short host names, such as namespace.svc.cluster.local.
	Domain string
}

// Router is the proxy of a gateway. Its fields are those of a Sidecar.
type Router struct{ IPAddress, ID, Domain string }

// Ingress is the proxy for traffic into the mesh, from before routers. Its fields are those of a
// Sidecar; they were empty in 2017.
type Ingress struct{ IPAddress, ID, Domain string }

// Egress is the proxy for traffic out of the mesh, from before routers. Its fields are those of a
// Sidecar; they were empty in 2017.
type Egress struct{ IPAddress, ID, Domain string }

const separator = "~"

func encode(parts ...string) string { return strings.Join(parts, separator) }

// ServiceNode returns sidecar~ip~id~domain.
func (r Sidecar) ServiceNode() string { return encode("sidecar", r.IPAddress, r.ID, r.Domain) }

// ServiceNode returns router~ip~id~domain.
func (r Router) ServiceNode() string { return encode("router", r.IPAddress, r.ID, r.Domain) }

// ServiceNode returns ingress~ip~id~domain.
func (r Ingress) ServiceNode() string { return encode("ingress", r.IPAddress, r.ID, r.Domain) }

// ServiceNode returns egress~ip~id~domain.
func (r Egress) ServiceNode() string { return encode("egress", r.IPAddress, r.ID, r.Domain) }

// DecodeServiceNode returns the role of a node ID: four parts as ServiceNode encodes them, or one of the
// forms of 2017, which are ip|id|domain (or with "~") for a sidecar, IngressNode and EgressNode. The address
// must be empty or an IP address. DecodeServiceNode(r.ServiceNode()) is r for every role of this package with
// valid fields. The control plane accepts the same forms.
func DecodeServiceNode(s string) (Role, error) {
	n, err := mesh.DecodeNodeID(s)
	if err != nil {
		return nil, err
	}
	fields := Sidecar{ID: n.ID, Domain: n.Domain}
	if n.IP.IsValid() {
		parts := strings.Split(s, separator)
		if len(parts) == 1 {
			parts = strings.Split(s, "|")
		}
		fields.IPAddress = parts[len(parts)-3] // as written, so that encoding the role gives s
	}
	switch {
	case n.Role == mesh.Sidecar:
		return fields, nil
	case strings.HasPrefix(s, IngressNode):
		return Ingress(fields), nil
	case strings.HasPrefix(s, EgressNode):
		return Egress(fields), nil
	}
	return Router(fields), nil
}
