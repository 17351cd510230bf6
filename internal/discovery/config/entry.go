package config

import (
	"cmp"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

func (c *check) serviceEntry(s *networking.ServiceEntry) {
	if len(s.Hosts) == 0 {
		c.fail("spec.hosts", "is empty; add at least one host")
	}
	for i, h := range s.Hosts {
		if h == "*" || !isHost(h) {
			c.fail(item("spec.hosts", i), "invalid host %q: want a DNS name or one that begins with \"*.\"", h)
		}
	}
	c.hostsOnce(s.Hosts)
	for i, a := range s.Addresses {
		if !isIP(a) && !isCIDR(a) {
			c.fail(item("spec.addresses", i), "invalid address %q: want an IP address or a CIDR such as 10.1.0.0/16", a)
		}
	}
	names := c.entryPorts(s)
	c.resolution(s)
	if s.WorkloadSelector != nil {
		if len(s.Endpoints) > 0 {
			c.fail("spec.workloadSelector", "endpoints are set too; remove one of the two")
		}
		c.labels("spec.workloadSelector.labels", s.WorkloadSelector.Labels)
	}
	for i, e := range s.Endpoints {
		if e == nil {
			continue
		}
		at := item("spec.endpoints", i)
		c.workload(at, e, names)
		if s.Resolution == networking.ServiceEntry_STATIC && e.Address != "" && !isIP(e.Address) && !strings.HasPrefix(e.Address, mesh.UnixSocket) {
			c.fail(at+".address", "invalid address %q: want an IP address for resolution STATIC; for a DNS name use resolution DNS", e.Address)
		}
	}
	c.exportTo("spec.exportTo", s.ExportTo, true)
	for i, san := range s.SubjectAltNames {
		if san == "" {
			c.fail(item("spec.subjectAltNames", i), "is empty; remove it")
		}
	}
}

// entryPorts checks the ports and returns their names.
func (c *check) entryPorts(s *networking.ServiceEntry) []string {
	if len(s.Ports) == 0 {
		c.warn("spec.ports", "is empty: the hosts have no ports")
	}
	names, numbers := []string{}, []uint32{}
	for i, p := range s.Ports {
		at := item("spec.ports", i)
		c.port(at+".number", p.GetNumber(), false)
		c.port(at+".targetPort", p.GetTargetPort(), true)
		if !isLabel(p.GetName()) {
			c.fail(at+".name", "invalid port name %q: want letters, digits and \"-\"", p.GetName())
		}
		c.protocol(at+".protocol", p.GetProtocol())
		names, numbers = append(names, p.GetName()), append(numbers, p.GetNumber())
	}
	once(names, func(i int, n string) { c.fail(item("spec.ports", i)+".name", "duplicate %q; rename one", n) })
	once(numbers, func(i int, n uint32) { c.fail(item("spec.ports", i)+".number", "duplicate %d; remove one", n) })
	return names
}

func (c *check) protocol(field, s string) {
	if s != "" && mesh.ParseProtocol(s) == mesh.Auto && !strings.EqualFold(s, "auto") {
		c.fail(field, "invalid protocol %q: want HTTP, HTTP2, GRPC, GRPC-WEB, HTTPS, TLS, TCP, UDP, MONGO, MYSQL or REDIS", s)
	}
}

// resolution checks that the endpoints fit the resolution.
func (c *check) resolution(s *networking.ServiceEntry) {
	switch s.Resolution {
	case networking.ServiceEntry_NONE:
		if len(s.Endpoints) > 0 {
			c.fail("spec.endpoints", "resolution NONE uses the destination address of the client's connection; remove the endpoints, or use STATIC or DNS")
		}
	case networking.ServiceEntry_STATIC:
		if len(s.Endpoints) == 0 && s.WorkloadSelector == nil {
			c.fail("spec.endpoints", "resolution STATIC needs endpoints or a workloadSelector")
		}
	case networking.ServiceEntry_DNS, networking.ServiceEntry_DNS_ROUND_ROBIN:
		if len(s.Endpoints) == 0 && s.WorkloadSelector == nil {
			for i, h := range s.Hosts {
				if strings.HasPrefix(h, "*") {
					c.fail(item("spec.hosts", i), "wildcard %q cannot be resolved; add endpoints, or use resolution NONE", h)
				}
			}
		}
		if s.Resolution == networking.ServiceEntry_DNS_ROUND_ROBIN && len(s.Endpoints) > 1 {
			c.fail("spec.endpoints", "resolution DNS_ROUND_ROBIN allows one endpoint; remove the others, or use DNS")
		}
	case networking.ServiceEntry_DYNAMIC_DNS:
		if len(s.Endpoints) > 0 {
			c.fail("spec.endpoints", "resolution DYNAMIC_DNS resolves the host that the client requests; remove the endpoints, or use STATIC or DNS")
		}
		if s.WorkloadSelector != nil {
			c.fail("spec.workloadSelector", "resolution DYNAMIC_DNS resolves the host that the client requests; remove it, or use STATIC")
		}
		for i, p := range s.Ports {
			at, protocol := item("spec.ports", i), mesh.ParseProtocol(p.GetProtocol())
			if p.GetProtocol() == "" {
				protocol = mesh.ProtocolOf(p.GetName(), "", "TCP")
			}
			if !protocol.IsHTTP() && !protocol.IsTLS() && protocol != mesh.Auto {
				c.warn(at+".protocol", "not applied: connections of protocol %s have no name that could be resolved, and the port is left out: want HTTP, HTTP2, GRPC, GRPC-WEB, HTTPS or TLS, or another resolution", protocol)
			}
			if target := cmp.Or(p.GetTargetPort(), p.GetNumber()); mesh.IsProxyPort(target) {
				c.fail(at, "port %d is one of the proxies' own: a name that resolves to a proxy would open it to everybody who may use the entry; want another port or targetPort", target)
			}
		}
	}
}

// workload checks a WorkloadEntry, or an endpoint of a ServiceEntry. ports are the names of the
// ServiceEntry's ports, nil for a WorkloadEntry.
func (c *check) workload(at string, w *networking.WorkloadEntry, ports []string) {
	unix, isUnix := strings.CutPrefix(w.Address, mesh.UnixSocket)
	switch {
	case w.Address == "":
		c.fail(at+".address", "is empty; set an IP address, a DNS name or unix:///path (an entry that only has a network is not sent to its gateway)")
	case isUnix && !mesh.IsSocketPath(unix):
		c.fail(at+".address", "invalid Unix socket %q: want \"unix://\" and an absolute path, or \"@\" and a name, of at most %d bytes", w.Address, mesh.MaxSocketPath)
	case isUnix && len(w.Ports) > 0:
		c.fail(at+".ports", "a Unix socket has no ports; remove them")
	case !isUnix && !isIP(w.Address) && !isDomain(w.Address):
		c.fail(at+".address", "invalid address %q: want an IP address or a DNS name", w.Address)
	}
	c.workloadPorts(at, w, ports)
	c.labels(at+".labels", w.Labels)
}

// workloadPorts checks the ports of a workload.
func (c *check) workloadPorts(at string, w *networking.WorkloadEntry, ports []string) {
	for _, name := range sorted(w.Ports) {
		if ports != nil && !slices.Contains(ports, name) {
			c.fail(entry(at+".ports", name), "unknown port: want one of %s", strings.Join(ports, ", "))
		} else if !isLabel(name) {
			c.fail(entry(at+".ports", name), "invalid port name: want letters, digits and \"-\"")
		}
		c.port(entry(at+".ports", name), w.Ports[name], false)
	}
}
