package capture

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// maxOwnerGroups is the longest list of groups to capture. [I33]
const maxOwnerGroups = 64

// span is an inclusive range of ports.
type span struct{ from, to uint32 }

// settings are options that have been understood, with the facts that matter.
type settings struct {
	ports             settingsPorts
	proxy             []Match
	inbound, outbound settingsDirection
	tproxy            settingsTProxy
	dns               settingsDNS
	interfaces, virt  []string
	groups, notGroups []Match
	dropInvalid       bool
	protocols         []protocol
}

type settingsPorts struct {
	envoy, inbound uint16
	tunnel         span
}

// settingsDirection: everything, or what is listed.
type settingsDirection struct {
	all                 bool
	ports, excludePorts []span
	cidrs, excludeCIDRs []netip.Prefix
}

func (d settingsDirection) some() bool { return d.all || len(d.ports) > 0 }

type settingsTProxy struct {
	on          bool
	mark, table uint32
}

// settingsDNS: servers are hosts, of captured families only; with all they don't count.
type settingsDNS struct {
	on, all bool
	servers []netip.Prefix
}

// parser collects the errors of many values.
type parser struct{ errs []error }

func (p *parser) bad(flag, value, remedy string) {
	p.errs = append(p.errs, fmt.Errorf("%s=%q: %s", flag, value, remedy))
}

// parse understands all options, and complains of all that it does not understand at once.
func (o Options) parse(f Facts) (settings, error) {
	var p parser
	s := settings{
		ports:       settingsPorts{envoy: p.port("--envoy-port", o.EnvoyPort), inbound: p.port("--inbound-capture-port", o.InboundPort)},
		proxy:       p.owner(o.Owner, f),
		interfaces:  p.interfaces("--istio-exclude-interfaces", o.ExcludeInterfaces),
		virt:        p.interfaces("--kube-virt-interfaces", o.VirtInterfaces),
		dropInvalid: o.DropInvalid,
	}
	tunnel := uint32(p.port("--inbound-tunnel-port", o.TunnelPort))
	s.ports.tunnel = span{tunnel, tunnel}
	switch o.Mode {
	case "", "REDIRECT", "NONE":
	case "TPROXY":
		s.tproxy = p.tproxy(o.Inbound)
	default:
		p.bad("--istio-inbound-interception-mode", o.Mode, "give REDIRECT, TPROXY or NONE")
	}
	if s.tproxy.on && len(s.proxy) == 1 && s.proxy[0].Field == PacketMark && s.proxy[0].From == s.tproxy.mark {
		p.bad("--proxy-mark", o.ProxyMark, "this marks inbound packets (--istio-inbound-tproxy-mark); give another number")
	}
	s.inbound.all, s.inbound.ports = p.ports("--istio-inbound-ports", o.Inbound.Ports, true)
	_, s.inbound.excludePorts = p.ports("--istio-local-exclude-ports", o.Inbound.ExcludePorts, false)
	s.outbound.all, s.outbound.cidrs = p.prefixes("--istio-service-cidr", o.Outbound.CIDRs, true)
	_, s.outbound.excludeCIDRs = p.prefixes("--istio-service-exclude-cidr", o.Outbound.ExcludeCIDRs, false)
	_, s.outbound.ports = p.ports("--istio-outbound-ports", o.Outbound.Ports, false)
	_, s.outbound.excludePorts = p.ports("--istio-local-outbound-ports-exclude", o.Outbound.ExcludePorts, false)
	s.protocols = []protocol{ipv4}
	s.protocols[0].loopback = p.loopback("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", o.Outbound.LoopbackCIDR)
	if !f.NoIPv6 && (o.DualStack || f.ipv6First()) {
		s.protocols = append(s.protocols, ipv6)
	}
	s.groups, s.notGroups = p.groups(o.Outbound, f.Groups)
	s.dns = settingsDNS{on: o.DNS.Capture, all: o.DNS.All}
	for _, a := range f.Resolvers {
		if host := netip.PrefixFrom(a, a.BitLen()); s.captures(host) && !slices.Contains(s.dns.servers, host) {
			s.dns.servers = append(s.dns.servers, host)
		}
	}
	return s, errors.Join(p.errs...)
}

// tproxy reads the numbers that only matter in its mode.
func (p *parser) tproxy(in Inbound) settingsTProxy {
	t := settingsTProxy{
		on:   true,
		mark: p.mark("--istio-inbound-tproxy-mark", cmp.Or(in.Mark, defaultMark)),
		table: p.number("--istio-inbound-tproxy-route-table", cmp.Or(in.RouteTable, defaultRouteTable),
			"give the number of a routing table of your own, such as 133"),
	}
	if slices.Contains([]uint32{253, 254, 255}, t.table) {
		p.bad("--istio-inbound-tproxy-route-table", in.RouteTable, "253 to 255 are the kernel's own tables; give another, such as 133")
	}
	return t
}

// owner is what the kernel knows the proxy's packets by: any of the matches.
func (p *parser) owner(o Owner, f Facts) []Match {
	switch {
	case o.ProxyMark != "" && o.ProxyCgroup != "":
		p.bad("--proxy-cgroup", o.ProxyCgroup, "give this or --proxy-mark, not both")
		return nil
	case o.ProxyMark != "":
		n := p.mark("--proxy-mark", o.ProxyMark)
		return []Match{{Field: PacketMark, From: n, To: n}}
	case o.ProxyCgroup != "":
		path := strings.Trim(o.ProxyCgroup, "/")
		if path == "" || strings.Contains(path, "//") || strings.Contains(path, "..") || strings.ContainsAny(path, "\"\n\x00") {
			p.bad("--proxy-cgroup", o.ProxyCgroup, "give the path of the proxy's own cgroup, such as system.slice/proxy.service")
		}
		return []Match{{Field: SocketCgroup, Name: path}}
	}
	uids := p.ids("--proxy-uid", SocketUID, o.ProxyUID, f.Users)
	if len(list(o.ProxyUID)) == 0 {
		p.bad("--proxy-uid", o.ProxyUID, "name at least one user, such as 1337, or the proxy would capture itself")
	}
	if o.ProxyGID != "" {
		return append(uids, p.ids("--proxy-gid", SocketGID, o.ProxyGID, f.Groups)...)
	}
	for _, m := range slices.Clone(uids) {
		m.Field, m.Name = SocketGID, ""
		uids = append(uids, m)
	}
	return uids
}

// mark reads a mark that is not reserved.
func (p *parser) mark(flag, value string) uint32 {
	n := p.number(flag, value, "give a number from 1 to 4294967295, such as 1337")
	if n == outboundMark {
		p.bad(flag, value, fmt.Sprintf("%d marks the proxy's calls to its own Pod; give another number", outboundMark))
	}
	return n
}

// captures says whether the prefix is of a protocol that is captured at all.
func (s settings) captures(p netip.Prefix) bool { return p.Addr().Is4() || s.ipv6() }

// ipv6 says whether IPv6 is captured beside IPv4.
func (s settings) ipv6() bool { return len(s.protocols) > 1 }
