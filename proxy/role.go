package proxy

import (
	"fmt"
	"strings"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// IngressCertsPath is where the ingress proxy of 2017 finds its certificate and key (tls.crt, tls.key).
const IngressCertsPath = "/etc/istio/ingress-certs/"

// Role is what a proxy is for, and who it says it is. The roles of this package are values
// that can be compared.
type Role interface {
	// ServiceNode encodes the role as the proxy's node id, type~ip~id~domain. None of the
	// parts may hold a "~".
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

// IngressNode is the proxy that lets traffic into the mesh; a router by its name of 2017. Its
// fields are those of a Sidecar, and were empty then.
type IngressNode struct{ IPAddress, ID, Domain string }

// EgressNode is the proxy that lets traffic out of the mesh; a router by its name of 2017. Its
// fields are those of a Sidecar, and were empty then.
type EgressNode struct{ IPAddress, ID, Domain string }

const separator = "~"

func encode(parts ...string) string { return strings.Join(parts, separator) }

// ServiceNode is sidecar~ip~id~domain.
func (r Sidecar) ServiceNode() string { return encode("sidecar", r.IPAddress, r.ID, r.Domain) }

// ServiceNode is router~ip~id~domain.
func (r Router) ServiceNode() string { return encode("router", r.IPAddress, r.ID, r.Domain) }

// ServiceNode is ingress~ip~id~domain.
func (r IngressNode) ServiceNode() string { return encode("ingress", r.IPAddress, r.ID, r.Domain) }

// ServiceNode is egress~ip~id~domain.
func (r EgressNode) ServiceNode() string { return encode("egress", r.IPAddress, r.ID, r.Domain) }

// DecodeServiceNode is the role of a node id: four parts as ServiceNode encodes them, or
// one of the forms of 2017, which are ip~id~domain for a sidecar and the words "ingress"
// and "egress". The address must be empty or an IP address. DecodeServiceNode(r.ServiceNode()) is r for every role of this
// package whose fields it takes.
func DecodeServiceNode(s string) (Role, error) {
	whole := s
	switch parts := strings.Count(s, separator) + 1; {
	case parts == 3:
		whole = encode("sidecar", s)
	case parts == 1 && (s == "ingress" || s == "egress"):
		whole = encode(s, "", "", "")
	case parts != 4:
		return nil, fmt.Errorf("node id %.200q: want type~ip~id~domain, or ip~id~domain, or ingress or egress; got %d parts", s, parts)
	}
	if _, err := mesh.DecodeNodeID(whole); err != nil {
		return nil, err
	}
	p := strings.Split(whole, separator)
	fields := Sidecar{IPAddress: p[1], ID: p[2], Domain: p[3]}
	switch p[0] {
	case "router":
		return Router(fields), nil
	case "ingress":
		return IngressNode(fields), nil
	case "egress":
		return EgressNode(fields), nil
	}
	return fields, nil
}
