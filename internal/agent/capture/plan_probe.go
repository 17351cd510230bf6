package capture

import (
	"net/netip"
)

// Probe is a connection that shows whether the kernel does what a plan says.
type Probe struct {
	// Packet is its first one; its From has the address to connect from, or none.
	Packet Packet
	// Port is where it must arrive, on the loopback address of its family, although it goes to
	// Packet.To.
	Port uint16
}

// Probes are connections that the plan captures: for each family that it captures, one of the proxy
// to its own Pod, which arrives as inbound, and one of an application to an address that leads
// nowhere. What a plan does not capture has no probe. To is the port that they go to. [agent I46]
func Probes(o Options, f Facts, to uint16) ([]Probe, error) {
	plan, err := Plan(o, f)
	if err != nil {
		return nil, err
	}
	s, err := o.parse(f)
	if err != nil {
		return nil, err
	}
	var probes []Probe
	for _, ip := range s.protocols {
		candidates := [][]Packet{s.ownCalls(ip, f), s.applicationsCalls(ip)}
		for i, port := range []uint16{s.ports.inbound, s.ports.envoy} {
			for _, p := range candidates[i] {
				p.Outbound, p.Protocol = true, "tcp"
				p.To = netip.AddrPortFrom(p.To.Addr(), to)
				if v := Explain(plan, p); v.Outcome == Redirected && v.Port == port {
					probes = append(probes, Probe{Packet: p, Port: port})
					break
				}
			}
		}
	}
	return probes, nil
}

// ownCalls are the proxy's to addresses of this Pod, the best known first.
func (s settings) ownCalls(ip protocol, f Facts) (calls []Packet) {
	for _, a := range append([]netip.Addr{ip.passthrough.Addr()}, f.Addrs...) {
		if a.Is6() != ip.is6 {
			continue
		}
		// IPv6 would choose the destination itself as the source, which has a rule of its own.
		p := Packet{From: netip.AddrPortFrom(ip.redirected(), 0), To: netip.AddrPortFrom(a, 0), Interface: "lo"}
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

// documentation addresses are nobody's. [RFC 5737, RFC 3849]
var documentation = map[bool]netip.Addr{false: netip.MustParseAddr("192.0.2.1"), true: netip.MustParseAddr("2001:db8::1")}

// applicationsCalls are those of users and groups that are probably captured.
func (s settings) applicationsCalls(ip protocol) (calls []Packet) {
	to := []netip.Addr{documentation[ip.is6]}
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
