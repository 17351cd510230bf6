package plan

import (
	"fmt"
	"net/netip"
)

// Probe is a connection that tests whether a plan is in force.
type Probe struct {
	// Packet is its first packet. From is the address to connect from, or invalid for any.
	Packet Packet
	// Port is the local port that must receive the connection: see Listen.
	Port uint16
}

// Listen returns the address that must receive the probe: Port on the loopback address of its family.
func (p Probe) Listen() netip.AddrPort {
	return netip.AddrPortFrom(redirectAddr(p.Packet.To.Addr().Is6()), p.Port)
}

// String describes the probe.
func (p Probe) String() string {
	return fmt.Sprintf("connect to %s as user %d and group %d", p.Packet.To, p.Packet.UID, p.Packet.GID)
}

// Probes returns connections that the plan captures: for each captured family, one of the proxy to
// its own Pod, which is captured as inbound, and one of an application to an address that no host
// has. What the plan does not capture has no probe. The destination port of all is port. The
// error is that of [Build]. [agent I46]
func Probes(o Options, f Facts, port uint16) ([]Probe, error) {
	rules, err := Build(o, f)
	if err != nil {
		return nil, err
	}
	s, err := o.parse(f)
	if err != nil {
		return nil, err
	}
	var probes []Probe
	for _, ip := range s.families {
		candidates := [][]Packet{s.proxyCalls(ip, f), s.applicationCalls(ip)}
		for i, proxyPort := range []uint16{s.inboundPort, s.envoyPort} {
			for _, p := range candidates[i] {
				p.Outbound, p.Protocol = true, "tcp"
				p.To = netip.AddrPortFrom(p.To.Addr(), port)
				if v := Explain(rules, p); v.Outcome == Redirected && v.Port == proxyPort {
					probes = append(probes, Probe{Packet: p, Port: proxyPort})
					break
				}
			}
		}
	}
	return probes, nil
}

// proxyCalls returns candidates for a call of the proxy to its own Pod.
func (s settings) proxyCalls(ip family, f Facts) (calls []Packet) {
	for _, a := range append([]netip.Addr{ip.passthrough.Addr()}, f.Addrs...) {
		if a.Is6() != ip.is6 {
			continue
		}
		// With IPv6, the kernel would choose the destination as the source, which has its own rule.
		p := Packet{From: netip.AddrPortFrom(redirectAddr(ip.is6), 0), To: netip.AddrPortFrom(a, 0), Interface: "lo"}
		switch owner := s.proxy[0]; owner.Field {
		case SocketUID:
			p.UID, p.GID = owner.From, owner.From
		case PacketMark:
			p.Mark = owner.From
		case SocketCgroup:
			p.Cgroup = owner.Name
		}
		calls = append(calls, p)
	}
	return calls
}

// documentationAddrs are not assigned to any host. [RFC 5737, RFC 3849]
var documentationAddrs = map[bool]netip.Addr{false: netip.MustParseAddr("192.0.2.1"), true: netip.MustParseAddr("2001:db8::1")}

// applicationCalls returns candidates for a captured call of an application.
func (s settings) applicationCalls(ip family) (calls []Packet) {
	to := []netip.Addr{documentationAddrs[ip.is6]}
	for _, prefix := range s.outbound.cidrs {
		if prefix.Addr().Is6() == ip.is6 {
			to = append(to, prefix.Addr(), prefix.Addr().Next())
		}
	}
	ids := []uint32{0, 65534, 65533}
	if len(s.groups) > 0 {
		ids = append(ids, s.groups[0].From)
	}
	for _, a := range to {
		for _, id := range ids {
			calls = append(calls, Packet{To: netip.AddrPortFrom(a, 0), UID: 65534, GID: id})
		}
	}
	return calls
}
