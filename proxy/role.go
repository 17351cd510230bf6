package proxy

import (
	"strings"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// The node ids of the two proxies at the mesh's edge in 2017, which said nothing more of themselves.
const (
	IngressNode = "ingress"
	EgressNode  = "egress"
)

// IngressCertsPath is where the ingress proxy of 2017 finds its certificate and key (tls.crt, tls.key).
const IngressCertsPath = "/etc/istio/ingress-certs/"

// Role is what a proxy is for, and who it says it is. The roles of this package are values
// that can be compared.
type Role interface {
	// ServiceNode encodes the role as the proxy's node id, type~ip~id~domain. None of the
	// parts may hold a "~" or a "|".
	ServiceNode() string
}

// Sidecar is the proxy beside one workload.
type Sidecar struct {
	// IPAddress is the workload's address; it may be empty.
	IPAddress string
	// ID names the workload, pod.namespace.
	ID string
	// Domain completes short host names, namespace.svc.cluster.local.
	Domain string
}

// Router is a gateway's proxy. Its fields are those of a Sidecar.
type Router struct{ IPAddress, ID, Domain string }

// Ingress is the proxy that lets traffic into the mesh; a router by its name of 2017. Its
// fields are those of a Sidecar, and were empty then.
type Ingress struct{ IPAddress, ID, Domain string }

// Egress is the proxy that lets traffic out of the mesh; a router by its name of 2017. Its
// fields are those of a Sidecar, and were empty then.
type Egress struct{ IPAddress, ID, Domain string }

const separator = "~"

func encode(parts ...string) string { return strings.Join(parts, separator) }

// ServiceNode is sidecar~ip~id~domain.
func (r Sidecar) ServiceNode() string { return encode("sidecar", r.IPAddress, r.ID, r.Domain) }

// ServiceNode is router~ip~id~domain.
func (r Router) ServiceNode() string { return encode("router", r.IPAddress, r.ID, r.Domain) }

// ServiceNode is ingress~ip~id~domain.
func (r Ingress) ServiceNode() string { return encode("ingress", r.IPAddress, r.ID, r.Domain) }

// ServiceNode is egress~ip~id~domain.
func (r Egress) ServiceNode() string { return encode("egress", r.IPAddress, r.ID, r.Domain) }

// DecodeServiceNode is the role of a node id: four parts as ServiceNode encodes them, or
// one of the forms of 2017, which are ip|id|domain (or with "~") for a sidecar, IngressNode and EgressNode.
// The address must be empty or an IP address. DecodeServiceNode(r.ServiceNode()) is r for every role of this
// package whose fields it takes. Control planes of this project take the same forms.
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
		fields.IPAddress = parts[len(parts)-3] // as it is written, so that a role comes back as it went
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
