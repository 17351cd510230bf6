package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	networking "istio.io/api/networking/v1alpha3"
)

// Resolution is how a proxy discovers a service's endpoints.
type Resolution uint8

// The resolutions.
const (
	// Static: the control plane knows the endpoints (EDS).
	Static Resolution = iota
	// DNS: the proxy resolves the endpoints' names and uses all addresses.
	DNS
	// DNSRoundRobin: the proxy resolves the name and uses the first address.
	DNSRoundRobin
	// Passthrough: the destination address of the client's connection is used.
	Passthrough
	// Dynamic: the proxy resolves the name that the client requests.
	Dynamic
)

// Service is a row: one host and its ports, from a Kubernetes Service or a ServiceEntry.
type Service struct {
	Row
	// Key is unique among rows: kind, namespace, name, and the host for a ServiceEntry, the cluster for a Service of a
	// remote cluster.
	Key        string
	Host       string
	Ports      []Port
	Addresses  Addresses
	Resolution Resolution
	// External is set for services outside the mesh, which have no workload identity and no automatic
	// mutual TLS.
	External bool
	// ExportTo is that of the object; nil means the mesh's default.
	ExportTo []string
	Source   Source
	// Prefer is which endpoints clients use first.
	Prefer mesh.Preference
	// NodeLocal is set if clients use only endpoints on their own Node.
	NodeLocal bool
	// Session is how clients name the endpoint of their session in requests to it.
	Session Session
	// Joins says with which others a row of a ServiceEntry is one service.
	Joins mesh.EntryJoin
}

// Session is the cookie or else the header that names the endpoint of a client's session; the zero value is for services without
// sessions. [control-plane 1.12.20]
type Session struct {
	Cookie, Path string
	Header       string
}

// Sessions reports whether the service keeps the requests of a session at one endpoint.
func (s *Service) Sessions() bool { return s.Session != Session{} }

// sessionOf returns what the labels of a service's object say of its sessions.
func sessionOf(labels map[string]string) (s Session) {
	if cookie := labels[mesh.SessionLabel]; cookie != "" {
		s.Cookie, s.Path = mesh.SessionCookie(cookie)
		return s
	}
	s.Header = labels[mesh.SessionHeaderLabel]
	return s
}

// Addresses are the virtual addresses of a service.
type Addresses struct {
	VIPs  []netip.Addr
	CIDRs []netip.Prefix
}

// Source is where a service's endpoints come from.
type Source struct {
	// Kubernetes is set for a Service object, unset for a ServiceEntry.
	Kubernetes bool
	Headless   bool
	// Selector selects Pods and WorkloadEntries of the service's namespace; nil selects none.
	Selector map[string]string
	// Inline are the endpoints in a ServiceEntry.
	Inline []*networking.WorkloadEntry
	// DNSName is the name that proxies resolve for an ExternalName service, or for a ServiceEntry with
	// DNS resolution and without endpoints or selector.
	DNSName         string
	SANs            []string
	PublishNotReady bool
	// Families are those of a Service's endpoints, the preferred one first; nil if they are not known. Named is set if the
	// Service names them, so that it has no endpoints of another one.
	Families []mesh.Capability
	Named    bool
}

// familiesOf returns the families of a Service's endpoints: those that it names, else those of its virtual addresses.
func familiesOf(spec *object.ServiceSpec) (out []mesh.Capability) {
	for _, f := range spec.IPFamilies {
		switch f {
		case "IPv4":
			out = append(out, mesh.IPv4)
		case "IPv6":
			out = append(out, mesh.IPv6)
		}
	}
	if len(out) > 0 {
		return out
	}
	for _, ip := range spec.ClusterIPs {
		if f := mesh.FamilyOf(ip); !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	return out
}

// Port is one port of a service.
type Port struct {
	Name     string
	Number   uint32
	Protocol mesh.Protocol
	// Target is the endpoint's port; 0 if TargetName is the name of a container port of each Pod.
	Target     uint32
	TargetName string
}

// Key is the number or, for UDP, UDPKey of it: a service may have a port of TCP and one of UDP with the same number.
func (p Port) Key() uint32 {
	if p.Protocol == mesh.UDP {
		return UDPKey(p.Number)
	}
	return p.Number
}

// UDPKey is the key of a port of UDP; it is no number of a port.
func UDPKey(number uint32) uint32 { return number | udpBit }

// IsUDPKey reports whether the key of a port is that of one of UDP.
func IsUDPKey(key uint32) bool { return key&udpBit != 0 }

const udpBit = 1 << 16

// PortOf returns the service's port with that number, if it has one; of one of TCP and one of UDP that of TCP.
func (s *Service) PortOf(number uint32) (Port, bool) {
	for _, p := range s.Ports {
		if p.Number == number && p.Protocol != mesh.UDP {
			return p, true
		}
	}
	return s.UDPPortOf(number)
}

// UDPPortOf returns the service's port of UDP with that number, if it has one.
func (s *Service) UDPPortOf(number uint32) (Port, bool) {
	for _, p := range s.Ports {
		if p.Number == number && p.Protocol == mesh.UDP {
			return p, true
		}
	}
	return Port{}, false
}

func serviceOf(o *object.Object, spec *object.ServiceSpec, domain string) *Service {
	s := &Service{
		Row:  Row{Namespace: o.Namespace, Name: o.Name, Cluster: o.Cluster},
		Key:  inCluster("Service/"+o.Namespace+"/"+o.Name, o.Cluster),
		Host: mesh.FullHost(o.Name, o.Namespace, domain),
		Source: Source{
			Kubernetes: true, Headless: spec.Headless, Selector: spec.Selector, PublishNotReady: spec.PublishNotReady,
			Families: familiesOf(spec), Named: len(spec.IPFamilies) > 0,
		},
		Addresses: Addresses{VIPs: spec.ClusterIPs},
		NodeLocal: spec.NodeLocal,
		Session:   sessionOf(o.Meta.Labels),
	}
	s.Prefer, _ = mesh.ParsePreference(cmp.Or(spec.TrafficDistribution, o.Meta.Annotations[mesh.DistributionAnnotation])) // package config tells of others
	if !o.Meta.Created.IsZero() {
		s.Age = o.Meta.Created.UnixNano()
	}
	if spec.Headless {
		s.Resolution = Passthrough
	}
	if spec.Type == "ExternalName" {
		s.Resolution, s.External = DNS, true
		s.Source = Source{Kubernetes: true, DNSName: spec.ExternalName}
	}
	if e := o.Meta.Annotations[mesh.ExportToAnnotation]; e != "" {
		s.ExportTo = mesh.List(e)
	}
	for _, p := range spec.Ports {
		port := Port{
			Name: p.Name, Number: p.Port, Protocol: mesh.ProtocolOfPort(p.Port, p.Name, p.AppProtocol, p.Protocol),
			Target: p.TargetPort, TargetName: p.TargetName,
		}
		if port.Target == 0 && port.TargetName == "" {
			port.Target = p.Port
		}
		s.Ports = append(s.Ports, port)
	}
	return s
}

func servicesOfEntry(o *object.Object, spec *networking.ServiceEntry) []*Service {
	var out []*Service
	for _, host := range spec.Hosts {
		host = mesh.HostName(host)
		s := &Service{
			Row:      Row{Namespace: o.Namespace, Name: o.Name},
			Key:      "ServiceEntry/" + o.Namespace + "/" + o.Name + "/" + host,
			Host:     host,
			External: spec.Location == networking.ServiceEntry_MESH_EXTERNAL,
			ExportTo: spec.ExportTo,
			Joins:    mesh.EntryJoinOf(spec, o.Namespace),
			Session:  sessionOf(o.Meta.Labels),
			Source:   Source{Inline: spec.Endpoints, Selector: spec.GetWorkloadSelector().GetLabels(), SANs: spec.SubjectAltNames},
		}
		s.Prefer, _ = mesh.ParsePreference(o.Meta.Annotations[mesh.DistributionAnnotation])
		if !o.Meta.Created.IsZero() {
			s.Age = o.Meta.Created.UnixNano()
		}
		switch spec.Resolution {
		case networking.ServiceEntry_NONE:
			s.Resolution = Passthrough
		case networking.ServiceEntry_DYNAMIC_DNS:
			s.Resolution = Dynamic
		case networking.ServiceEntry_STATIC:
			s.Resolution = Static
		case networking.ServiceEntry_DNS:
			s.Resolution = DNS
		case networking.ServiceEntry_DNS_ROUND_ROBIN:
			s.Resolution = DNSRoundRobin
		default:
			panic(fmt.Sprintf("model: unknown resolution %d", spec.Resolution)) // package config rejects it
		}
		if s.Resolution == DNS || s.Resolution == DNSRoundRobin {
			if len(spec.Endpoints) == 0 && spec.WorkloadSelector == nil {
				s.Source.DNSName = host
			}
		}
		for _, a := range spec.Addresses {
			if p, err := netip.ParsePrefix(a); err == nil && !p.IsSingleIP() {
				s.Addresses.CIDRs = append(s.Addresses.CIDRs, p.Masked())
			} else if err == nil {
				s.Addresses.VIPs = append(s.Addresses.VIPs, p.Addr())
			} else if ip, err := netip.ParseAddr(a); err == nil {
				s.Addresses.VIPs = append(s.Addresses.VIPs, ip)
			}
		}
		for _, p := range spec.Ports {
			port := Port{Name: p.Name, Number: p.Number, Protocol: mesh.ParseProtocol(p.Protocol), Target: p.TargetPort}
			if p.Protocol == "" {
				port.Protocol = mesh.ProtocolOf(p.Name, "", "TCP")
			}
			if port.Target == 0 {
				port.Target = p.Number
			}
			s.Ports = append(s.Ports, port)
		}
		out = append(out, s)
	}
	return out
}

func contains(list []string, s string) bool { return slices.Contains(list, s) }
