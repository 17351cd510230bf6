package plan

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// maxOwnerGroups is the longest list of groups to capture. [agent I33]
const maxOwnerGroups = 64

// portRange is an inclusive range of ports.
type portRange struct{ from, to uint32 }

// settings are the parsed options, with the facts that matter.
type settings struct {
	envoyPort, inboundPort uint16
	tunnelPort             portRange
	// proxy matches the proxy's own packets: any of the matches.
	proxy                  []Match
	inbound, outbound      selection
	tproxy                 tproxy
	dns                    dnsCapture
	excludedNICs, virtNICs []string
	groups, excludedGroups []Match
	dropInvalid            bool
	families               []family
}

// selection is what is captured in one direction: everything, or lists.
type selection struct {
	all                 bool
	ports, excludePorts []portRange
	cidrs, excludeCIDRs []netip.Prefix
}

func (s selection) capturesAny() bool { return s.all || len(s.ports) > 0 }

type tproxy struct {
	on          bool
	mark, table uint32
}

// dnsCapture: servers are single addresses, of captured families only; they are ignored if all is set.
type dnsCapture struct {
	on, all bool
	servers []netip.Prefix
}

// parser collects the errors of many values.
type parser struct{ errs []error }

func (p *parser) fail(flag, value, remedy string) {
	p.errs = append(p.errs, fmt.Errorf("%s=%q: %s", flag, value, remedy))
}

// parse parses all options; the error names all that are invalid at once.
func (o Options) parse(f Facts) (settings, error) {
	var p parser
	s := settings{
		envoyPort:    p.port("--envoy-port", o.EnvoyPort),
		inboundPort:  p.port("--inbound-capture-port", o.InboundPort),
		proxy:        p.proxy(o, f),
		excludedNICs: p.interfaces("--istio-exclude-interfaces", o.ExcludeInterfaces),
		virtNICs:     p.interfaces("--kube-virt-interfaces", o.VirtInterfaces),
		dropInvalid:  o.DropInvalid,
	}
	tunnel := uint32(p.port("--inbound-tunnel-port", o.TunnelPort))
	s.tunnelPort = portRange{tunnel, tunnel}
	switch o.Mode {
	case "", "REDIRECT", "NONE":
	case "TPROXY":
		s.tproxy = p.tproxy(o.Inbound)
	default:
		p.fail("--istio-inbound-interception-mode", o.Mode, "want REDIRECT, TPROXY or NONE")
	}
	if s.tproxy.on && len(s.proxy) == 1 && s.proxy[0].Field == PacketMark && s.proxy[0].From == s.tproxy.mark {
		p.fail("--proxy-mark", o.ProxyMark, "this marks inbound packets (--istio-inbound-tproxy-mark); want another number")
	}
	s.inbound.all, s.inbound.ports = p.ports("--istio-inbound-ports", o.Inbound.Ports, true)
	_, s.inbound.excludePorts = p.ports("--istio-local-exclude-ports", o.Inbound.ExcludePorts, false)
	s.outbound.all, s.outbound.cidrs = p.prefixes("--istio-service-cidr", o.Outbound.CIDRs, true)
	_, s.outbound.excludeCIDRs = p.prefixes("--istio-service-exclude-cidr", o.Outbound.ExcludeCIDRs, false)
	_, s.outbound.ports = p.ports("--istio-outbound-ports", o.Outbound.Ports, false)
	_, s.outbound.excludePorts = p.ports("--istio-local-outbound-ports-exclude", o.Outbound.ExcludePorts, false)
	s.families = []family{ipv4}
	s.families[0].loopback = p.loopback("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", o.Outbound.LoopbackCIDR)
	if !f.NoIPv6 && (o.DualStack || f.ipv6First()) {
		s.families = append(s.families, ipv6)
	}
	s.groups, s.excludedGroups = p.groups(o.Outbound, f.Groups)
	s.dns = dnsCapture{on: o.DNS.Capture, all: o.DNS.All}
	for _, a := range f.Resolvers {
		if host := netip.PrefixFrom(a, a.BitLen()); s.captures(host) && !slices.Contains(s.dns.servers, host) {
			s.dns.servers = append(s.dns.servers, host)
		}
	}
	return s, errors.Join(p.errs...)
}

// tproxy parses the numbers of the mode TPROXY; other modes ignore them.
func (p *parser) tproxy(in Inbound) tproxy {
	t := tproxy{
		on:   true,
		mark: p.mark("--istio-inbound-tproxy-mark", cmp.Or(in.Mark, DefaultTProxyMark)),
		table: p.number("--istio-inbound-tproxy-route-table", cmp.Or(in.RouteTable, DefaultRouteTable),
			"want the number of an unused routing table, such as 133"),
	}
	if slices.Contains([]uint32{253, 254, 255}, t.table) {
		p.fail("--istio-inbound-tproxy-route-table", in.RouteTable, "253 to 255 are the kernel's own tables; want another, such as 133")
	}
	return t
}

// proxy returns what the kernel knows the proxy's packets by: any of the matches.
func (p *parser) proxy(o Options, f Facts) []Match {
	switch {
	case o.ProxyMark != "" && o.ProxyCgroup != "":
		p.fail("--proxy-cgroup", o.ProxyCgroup, "want this or --proxy-mark, not both")
		return nil
	case o.ProxyMark != "":
		n := p.mark("--proxy-mark", o.ProxyMark)
		return []Match{{Field: PacketMark, From: n, To: n}}
	case o.ProxyCgroup != "":
		path := strings.Trim(o.ProxyCgroup, "/")
		if path == "" || strings.Contains(path, "//") || strings.Contains(path, "..") || strings.ContainsAny(path, "\"\n\x00") {
			p.fail("--proxy-cgroup", o.ProxyCgroup, "want the path of the proxy's own cgroup, such as system.slice/proxy.service")
		}
		return []Match{{Field: SocketCgroup, Name: path}}
	}
	uids := p.ids("--proxy-uid", SocketUID, o.ProxyUID, f.Users)
	if len(list(o.ProxyUID)) == 0 {
		p.fail("--proxy-uid", o.ProxyUID, "name at least one user, such as 1337, or the proxy would capture itself")
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

// mark parses a mark that is not reserved.
func (p *parser) mark(flag, value string) uint32 {
	n := p.number(flag, value, "want a number from 1 to 4294967295, such as 1337")
	if n == OutboundMark {
		p.fail(flag, value, fmt.Sprintf("%d marks the proxy's calls to its own Pod; want another number", OutboundMark))
	}
	return n
}

// captures reports whether the prefix is of a family that is captured at all.
func (s settings) captures(p netip.Prefix) bool { return p.Addr().Is4() || s.capturesIPv6() }

// capturesIPv6 reports whether IPv6 is captured as well as IPv4.
func (s settings) capturesIPv6() bool { return len(s.families) > 1 }

// list splits at commas and drops empty items.
func list(value string) []string {
	var items []string
	for item := range strings.SplitSeq(value, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

func (p *parser) port(flag, value string) uint16 {
	n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 16)
	if err != nil || n == 0 {
		p.fail(flag, value, "want one port from 1 to 65535")
	}
	return uint16(n)
}

// number parses one number from 1, such as a mark, in any of Go's notations.
func (p *parser) number(flag, value, remedy string) uint32 {
	n, err := strconv.ParseUint(strings.TrimSpace(value), 0, 32)
	if err != nil || n == 0 {
		p.fail(flag, value, remedy)
	}
	return uint32(n)
}

// ports parses a list of ports and ranges, or, if star, "*".
func (p *parser) ports(flag, value string, star bool) (all bool, ranges []portRange) {
	if star && strings.TrimSpace(value) == "*" {
		return true, nil
	}
	for _, item := range list(value) {
		from, to, isRange := strings.Cut(strings.ReplaceAll(item, ":", "-"), "-")
		if !isRange {
			to = from
		}
		lo, err1 := strconv.ParseUint(from, 10, 16)
		hi, err2 := strconv.ParseUint(to, 10, 16)
		if err1 != nil || err2 != nil || lo == 0 || hi < lo {
			remedy := "want ports from 1 to 65535, or ranges such as 8000-8010, separated by commas"
			if star {
				remedy += ", or * alone"
			}
			p.fail(flag, item, remedy)
			continue
		}
		ranges = append(ranges, portRange{uint32(lo), uint32(hi)})
	}
	return false, ranges
}

// ids parses a list of users or groups: numbers, or names in known.
func (p *parser) ids(flag string, field Field, value string, known map[string]uint32) (ids []Match) {
	for _, item := range list(value) {
		n, err := strconv.ParseUint(item, 10, 32)
		if err == nil {
			ids = append(ids, Match{Field: field, From: uint32(n), To: uint32(n)})
			continue
		}
		id, ok := known[item]
		if !ok {
			p.fail(flag, item, "want numeric ids, such as 1337, or names that exist here, separated by commas (the command id NAME prints the number of a name)")
			continue
		}
		ids = append(ids, Match{Field: field, Name: item, From: id, To: id})
	}
	return ids
}

// prefixes parses a list of CIDRs or single addresses, or, if star, "*".
func (p *parser) prefixes(flag, value string, star bool) (all bool, prefixes []netip.Prefix) {
	if star && strings.TrimSpace(value) == "*" {
		return true, nil
	}
	for _, item := range list(value) {
		prefix, err := netip.ParsePrefix(item)
		if addr, addrErr := netip.ParseAddr(item); addrErr == nil && addr.Zone() == "" {
			prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil || prefix.Addr().Is4In6() {
			remedy := "want CIDRs separated by commas, such as 10.0.0.0/8"
			if star {
				remedy += ", or * alone"
			}
			p.fail(flag, item, remedy)
			continue
		}
		prefixes = append(prefixes, prefix.Masked())
	}
	return false, prefixes
}

func (p *parser) loopback(key, value string) netip.Prefix {
	prefix, err := netip.ParsePrefix(strings.TrimSpace(value))
	if err != nil || !prefix.Addr().Is4() || !prefix.Addr().IsLoopback() || prefix.Bits() < 8 {
		p.fail(key, value, "want an IPv4 loopback CIDR with a mask from 8 to 32, such as 127.0.0.1/32")
	}
	return prefix.Masked()
}

// interfaces refuses names that no interface can have; the kernel's limit is 15 bytes.
func (p *parser) interfaces(flag, value string) []string {
	names := list(value)
	for _, name := range names {
		if len(name) > 15 || strings.ContainsAny(name, "/ \t\n\"") {
			p.fail(flag, name, "want interface names of at most 15 characters, separated by commas, such as eth1")
		}
	}
	return names
}

func (p *parser) groups(o Outbound, known map[string]uint32) (include, exclude []Match) {
	if strings.TrimSpace(o.OwnerGroups) == "*" {
		return nil, p.ids("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", SocketGID, o.OwnerGroupsExclude, known)
	}
	include = p.ids("ISTIO_OUTBOUND_OWNER_GROUPS", SocketGID, o.OwnerGroups, known)
	if len(include) > maxOwnerGroups {
		p.fail("ISTIO_OUTBOUND_OWNER_GROUPS", o.OwnerGroups, fmt.Sprintf("want at most %d groups, or * alone", maxOwnerGroups))
	}
	return include, nil
}
