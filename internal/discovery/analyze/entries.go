package analyze

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// user is a Service or ServiceEntry that selects WorkloadEntries and needs their IP addresses.
type user struct {
	key      object.Key
	selector map[string]string
}

// workloadEntry checks that what selects a WorkloadEntry can use its address.
func (a *index) workloadEntry(obj *object.Object, spec *networking.WorkloadEntry) {
	if _, err := netip.ParseAddr(spec.Address); err == nil || strings.HasPrefix(spec.Address, mesh.UnixSocket) {
		return
	}
	labels := mergedLabels(obj, spec)
	for _, u := range a.users[obj.Namespace] {
		if subset(u.selector, labels) {
			a.warn("spec.address", "%s selects this entry and cannot use the DNS name %q: want an IP address, or a ServiceEntry with resolution DNS", u.key, spec.Address)
		}
	}
}

// taker is a port of a ServiceEntry without addresses: of the connections to the port's number that are neither HTTP nor TLS, those
// to other such hosts cannot be told from its own.
type taker struct {
	obj      *object.Object
	host     string
	exportTo []string
}

// takes adds the ports of a ServiceEntry without addresses.
func (a *index) takes(obj *object.Object, spec *networking.ServiceEntry) {
	if len(spec.Addresses) > 0 {
		return
	}
	for _, p := range spec.Ports {
		if n := p.GetNumber(); anyConnection(p) {
			for _, host := range spec.Hosts {
				a.takers[n] = append(a.takers[n], taker{obj, mesh.HostName(host), spec.ExportTo})
			}
		}
	}
}

// anyConnection reports whether a port of a ServiceEntry takes connections whatever is in them.
func anyConnection(p *networking.ServicePort) bool {
	protocol := mesh.ParseProtocol(p.GetProtocol())
	if p.GetProtocol() == "" {
		protocol = mesh.ProtocolOf(p.GetName(), "", "TCP")
	}
	return protocol != mesh.UDP && protocol != mesh.Auto && !protocol.IsHTTP() && !protocol.IsTLS()
}

// serviceEntry checks that a ServiceEntry is used: neither does a Service have its host, nor another ServiceEntry take its connections.
func (a *index) serviceEntry(obj *object.Object, spec *networking.ServiceEntry) {
	for i, host := range spec.Hosts {
		if s := a.services[mesh.HostName(host)]; s != nil && s.hides == obj.Namespace {
			a.warn(fmt.Sprintf("spec.hosts[%d]", i), "%q is the host of a Service, which has priority: clients that see the Service do not use this entry for it; use another host, or remove the Service", host)
		}
	}
	if len(spec.Addresses) > 0 {
		return
	}
	for i, p := range spec.Ports {
		if !anyConnection(p) {
			continue
		}
		first := slices.MinFunc(a.takers[p.Number], func(x, y taker) int {
			return cmp.Or(x.obj.Meta.Created.Compare(y.obj.Meta.Created), cmp.Compare(x.obj.Namespace, y.obj.Namespace), cmp.Compare(x.obj.Name, y.obj.Name))
		})
		if first.obj.Key == obj.Key || !seenTogether(first, obj, spec) {
			continue
		}
		a.warn(fmt.Sprintf("spec.ports[%d]", i), "TCP connections to port %d go to %s of %s: without addresses hosts are told apart only by proxies with DNS proxying and allocated addresses; set spec.addresses, or use another port",
			p.Number, first.host, first.obj.Key)
	}
}

// seenTogether reports whether a namespace may see both of two ServiceEntries.
func seenTogether(t taker, obj *object.Object, spec *networking.ServiceEntry) bool {
	names := func(list []string, namespace string) []string {
		var out []string
		for _, n := range list {
			if n == "." {
				n = namespace
			}
			out = append(out, n)
		}
		return out
	}
	one, two := names(t.exportTo, t.obj.Namespace), names(spec.ExportTo, obj.Namespace)
	all := func(list []string) bool { return len(list) == 0 || slices.Contains(list, "*") }
	return all(one) || all(two) || slices.ContainsFunc(one, func(n string) bool { return slices.Contains(two, n) })
}
