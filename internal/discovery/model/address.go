package model

import (
	"net/netip"
	"slices"

	"github.com/pilothouse/pilothouse/internal/discovery/allocate"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// AllocateOnlyForThoseThatAsk has only proxies that ask for allocated addresses use them. It must be called before the first rule
// runs.
func (m *Model) AllocateOnlyForThoseThatAsk() { m.allocateAsked = true }

// SetAllocated replaces the addresses that are allocated for a key: that of a row, or AllocatedElsewhere. A zero Pair is none.
func (m *Model) SetAllocated(key string, p allocate.Pair) {
	if p == (allocate.Pair{}) {
		m.tables.allocated.Delete(key)
		return
	}
	m.tables.allocated.Put(key, p)
}

// AllocatedElsewhere returns the key of the addresses at which a Service is reached from clusters that have no such Service.
func AllocatedElsewhere(namespace, name string) string { return "Service/" + namespace + "/" + name }

// VIPs returns the virtual addresses at which proxies of a scope reach a service: its own, or allocated ones if it has none, or
// if it is a Service of another cluster, whose addresses may be those of another service here. Allocated addresses are known
// only to applications whose DNS queries the agent answers, and have the families of the proxy.
func (m *Model) VIPs(r *incr.Reader, scope mesh.ScopeID, s *Service) []netip.Addr {
	key, elsewhere := s.Key, s.Elsewhere(scope)
	switch {
	case elsewhere && s.Source.Headless:
		return nil
	case elsewhere:
		key = AllocatedElsewhere(s.Namespace, s.Name)
	case s.Source.Kubernetes || len(s.Addresses.VIPs)+len(s.Addresses.CIDRs) > 0:
		return s.Addresses.VIPs
	}
	caps := scope.Value().Caps
	if !caps.Has(mesh.DNSCapture) || m.allocateAsked && !caps.Has(mesh.DNSAutoAllocate) {
		return nil
	}
	p, _ := incr.Get(r, m.tables.allocated, key)
	var out []netip.Addr
	if caps.Has(mesh.IPv4) && p.V4.IsValid() {
		out = append(out, p.V4)
	}
	if caps.Has(mesh.IPv6) && p.V6.IsValid() {
		out = append(out, p.V6)
	}
	return out
}

// Named is an endpoint of a headless Service, for DNS.
type Named struct {
	Address netip.Addr
	// Hostname is its name below that of the Service; empty if it has none.
	Hostname string
}

// Named returns the endpoints to which the name of a headless Service resolves in a scope: those in the Service's cluster, as
// Kubernetes has it, and for a Service of another cluster those that can be reached without a gateway.
func (m *Model) Named(r *incr.Reader, scope mesh.ScopeID, s *Service) (out []Named) {
	if !s.Source.Headless {
		return nil
	}
	network, elsewhere := "", s.Elsewhere(scope)
	if elsewhere {
		network = m.clusterNetwork(r, scope.Value().Cluster)
	}
	for _, i := range m.Instances(r, s.Key) {
		if i.Cluster != s.Cluster || elsewhere && i.Network != network {
			continue
		}
		for _, text := range append([]string{i.Address}, i.Others...) {
			ip, err := netip.ParseAddr(text)
			if n := (Named{Address: ip, Hostname: i.Hostname}); err == nil && !slices.Contains(out, n) {
				out = append(out, n)
			}
		}
	}
	return out
}
