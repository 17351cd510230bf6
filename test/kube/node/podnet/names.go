package podnet

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Answer is what the cluster's DNS says about a name.
type Answer struct {
	// Exists says whether there is the name; without it the answer is NXDOMAIN.
	Exists bool
	// Alias is the name that an ExternalName Service stands for.
	Alias string
	// Addrs are the addresses, Servers the targets of SRV records.
	Addrs   []netip.Addr
	Servers []Server
}

// Server is an SRV record.
type Server struct {
	Target string
	Port   uint16
	Addrs  []netip.Addr
}

// Lookup answers for a name of the domain, such as cluster.local: NAME.NAMESPACE.svc.DOMAIN of Services, with a port's
// _NAME._PROTOCOL before it for SRV, and with the host name or dashed address of an endpoint before it for headless
// ones; 10-1-2-3.NAMESPACE.pod.DOMAIN.
func (t Tables) Lookup(name, domain string) Answer {
	rest, ok := strings.CutSuffix(lower(name), "."+lower(domain))
	if !ok {
		return Answer{Exists: lower(name) == lower(domain)}
	}
	labels := strings.Split(rest, ".")
	slices.Reverse(labels)
	switch {
	case labels[0] == "pod" && len(labels) == 3:
		a, err := netip.ParseAddr(strings.ReplaceAll(labels[2], "-", "."))
		if err != nil {
			return Answer{}
		}
		return Answer{Exists: true, Addrs: []netip.Addr{a}}
	case labels[0] != "svc":
		return Answer{}
	case len(labels) <= 2:
		// Empty names between the domain and its Services.
		return Answer{Exists: len(labels) == 1 || slices.ContainsFunc(t.Services, func(s *corev1.Service) bool { return s.Namespace == labels[1] })}
	}
	i := slices.IndexFunc(t.Services, func(s *corev1.Service) bool { return s.Namespace == labels[1] && s.Name == labels[2] })
	if i < 0 {
		return Answer{}
	}
	v := serviceNames{service: t.Services[i], domain: lower(domain)}
	v.slices = t.slicesByService()[labels[1]+"/"+labels[2]]
	switch len(labels) {
	case 3:
		return v.whole()
	case 4:
		return v.endpoint(labels[3])
	case 5:
		return v.port(labels[3], labels[4])
	}
	return Answer{}
}

type serviceNames struct {
	service *corev1.Service
	slices  []*discoveryv1.EndpointSlice
	domain  string
}

func (v serviceNames) isHeadless() bool { return v.service.Spec.ClusterIP == corev1.ClusterIPNone }

// name is the name of the Service.
func (v serviceNames) name() string {
	return v.service.Name + "." + v.service.Namespace + ".svc." + v.domain
}

func (v serviceNames) whole() Answer {
	if v.service.Spec.Type == corev1.ServiceTypeExternalName {
		return Answer{Exists: true, Alias: lower(v.service.Spec.ExternalName)}
	}
	if !v.isHeadless() {
		a, err := netip.ParseAddr(v.service.Spec.ClusterIP)
		if err != nil {
			return Answer{Exists: true}
		}
		return Answer{Exists: true, Addrs: []netip.Addr{a}}
	}
	var out []netip.Addr
	v.endpoints(func(_ string, a netip.Addr, _ *discoveryv1.EndpointSlice) { out = append(out, a) })
	slices.SortFunc(out, netip.Addr.Compare)
	out = slices.Compact(out)
	return Answer{Exists: len(out) > 0, Addrs: out}
}

// endpoints visits the ready endpoints with the name of each: its host name, or its address with dashes.
func (v serviceNames) endpoints(visit func(name string, a netip.Addr, s *discoveryv1.EndpointSlice)) {
	for _, s := range v.slices {
		for _, e := range s.Endpoints {
			if !isTrue(e.Conditions.Ready, true) {
				continue
			}
			for _, a := range addresses(e) {
				name := strings.ReplaceAll(a.String(), ".", "-")
				if e.Hostname != nil && *e.Hostname != "" {
					name = *e.Hostname
				}
				visit(name, a, s)
			}
		}
	}
}

// endpoint answers for one endpoint of a headless Service.
func (v serviceNames) endpoint(label string) Answer {
	var out Answer
	if !v.isHeadless() {
		return out
	}
	v.endpoints(func(name string, a netip.Addr, _ *discoveryv1.EndpointSlice) {
		if name == label && !slices.Contains(out.Addrs, a) {
			out.Exists, out.Addrs = true, append(out.Addrs, a)
		}
	})
	return out
}

// port answers for _port._protocol.
func (v serviceNames) port(protocol, port string) Answer {
	var out Answer
	name, ok := strings.CutPrefix(port, "_")
	proto, ok2 := strings.CutPrefix(protocol, "_")
	if !ok || !ok2 {
		return out
	}
	if !v.isHeadless() {
		for _, p := range v.service.Spec.Ports {
			if p.Name == name && strings.EqualFold(string(p.Protocol), proto) {
				out.Exists = true
				out.Servers = append(out.Servers, Server{Target: v.name(), Port: uint16(p.Port), Addrs: v.whole().Addrs})
			}
		}
		return out
	}
	v.endpoints(func(host string, a netip.Addr, s *discoveryv1.EndpointSlice) {
		for _, p := range s.Ports {
			if p.Name != nil && *p.Name == name && p.Port != nil && p.Protocol != nil && strings.EqualFold(string(*p.Protocol), proto) {
				out.Exists = true
				out.Servers = append(out.Servers, Server{Target: host + "." + v.name(), Port: uint16(*p.Port), Addrs: []netip.Addr{a}})
			}
		}
	})
	return out
}
