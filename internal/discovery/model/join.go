package model

import (
	"cmp"
	"maps"
	"slices"

	"github.com/pilothouse/pilothouse/internal/incr"
)

// parts returns the rows that are one service with s: those of ServiceEntries of its namespace for the same host, the oldest first, which
// is the one with priority. Any other row is one of its own. [control-plane 1.9.11]
func (m *Model) parts(r *incr.Reader, s *Service) []*Service {
	if s.Source.Kubernetes {
		return []*Service{s}
	}
	var out []*Service
	for _, o := range incr.In(r, m.tables.services, "host:"+s.Host) {
		if !o.Source.Kubernetes && o.Namespace == s.Namespace && o.Joins.Visible == s.Joins.Visible {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b *Service) int {
		return cmp.Or(cmp.Compare(a.Age, b.Age), cmp.Compare(a.Row.Key(), b.Row.Key()), cmp.Compare(a.Key, b.Key))
	})
	if out[0].Key != s.Key {
		return []*Service{s}
	}
	return slices.DeleteFunc(out, func(o *Service) bool { return o.Joins != s.Joins })
}

// joined returns the service that a row with priority is, with the ports and addresses of the others that are one with it; of several
// ports with one number it has that of the oldest.
func (m *Model) joined(r *incr.Reader, s *Service) *Service {
	parts := m.parts(r, s)
	if len(parts) == 1 {
		return s
	}
	out := *s
	out.Ports, out.Addresses = slices.Clone(s.Ports), Addresses{VIPs: slices.Clone(s.Addresses.VIPs), CIDRs: slices.Clone(s.Addresses.CIDRs)}
	for _, o := range parts[1:] {
		for _, p := range o.Ports {
			if !out.hasPort(p.Number) {
				out.Ports = append(out.Ports, p)
			}
		}
		for _, ip := range o.Addresses.VIPs {
			if !slices.Contains(out.Addresses.VIPs, ip) {
				out.Addresses.VIPs = append(out.Addresses.VIPs, ip)
			}
		}
		for _, c := range o.Addresses.CIDRs {
			if !slices.Contains(out.Addresses.CIDRs, c) {
				out.Addresses.CIDRs = append(out.Addresses.CIDRs, c)
			}
		}
	}
	return &out
}

// endpointPort is a port of a service at an address.
type endpointPort struct {
	address      string
	port, target uint32
}

// joinInstances returns the instances of the rows of one service. Each has the ports of its own row. What an earlier row has, too, is left
// out, as is what a name that is resolved to one address cannot have: a second endpoint.
func (m *Model) joinInstances(r *incr.Reader, parts []*Service) (out []*Instance) {
	known, numbers := map[endpointPort]bool{}, map[uint32]bool{}
	for n, s := range parts {
		list := m.rowInstances(r, s)
		for _, i := range list {
			if n > 0 {
				i.Ports = maps.Clone(i.Ports)
				maps.DeleteFunc(i.Ports, func(port, target uint32) bool {
					return known[endpointPort{i.Address, port, target}] || s.Resolution == DNSRoundRobin && numbers[port]
				})
				if len(i.Ports) == 0 {
					continue
				}
			}
			out = append(out, i)
		}
		for _, i := range list {
			for port, target := range i.Ports {
				known[endpointPort{i.Address, port, target}], numbers[port] = true, true
			}
		}
	}
	return out
}

// JoinedRow returns the service whose row with priority has that key, if it exists.
func (m *Model) JoinedRow(r *incr.Reader, key string) (*Service, bool) {
	s, ok := incr.Get(r, m.tables.services, key)
	if !ok {
		return nil, false
	}
	return m.joined(r, s), true
}
