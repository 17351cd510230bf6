package capture

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// maxOwnerGroups is the longest list of groups to capture. [I33]
const maxOwnerGroups = 64

// span is an inclusive range of ports or ids.
type span struct{ from, to uint32 }

// settings are options that have been understood.
type settings struct {
	envoyPort, inboundPort uint16
	tunnelPort             span
	uids, gids             []span
	inbound, outbound      settingsDirection
	interfaces             []string
	loopback               netip.Prefix
	owners, ownersExclude  []span
	ipv6                   bool
}

// settingsDirection: everything, or what is listed.
type settingsDirection struct {
	all                 bool
	ports, excludePorts []span
	cidrs, excludeCIDRs []netip.Prefix
}

// parser collects the errors of many values.
type parser struct{ errs []error }

func (p *parser) bad(flag, value, remedy string) {
	p.errs = append(p.errs, fmt.Errorf("%s=%q: %s", flag, value, remedy))
}

// parse understands all options, and complains of all that it does not understand at once.
func (o Options) parse() (settings, error) {
	var p parser
	s := settings{
		envoyPort:   p.port("--envoy-port", o.EnvoyPort),
		inboundPort: p.port("--inbound-capture-port", o.InboundPort),
		uids:        p.ids("--proxy-uid", o.ProxyUID),
		gids:        p.ids("--proxy-gid", o.ProxyGID),
		interfaces:  p.interfaces("--istio-exclude-interfaces", o.ExcludeInterfaces),
	}
	tunnel := uint32(p.port("--inbound-tunnel-port", o.TunnelPort))
	s.tunnelPort = span{tunnel, tunnel}
	if len(list(o.ProxyUID)) == 0 {
		p.bad("--proxy-uid", o.ProxyUID, "name at least one user by number, such as 1337, or the proxy would capture itself")
	}
	if o.ProxyGID == "" {
		s.gids = s.uids
	}
	if o.Mode != "" && o.Mode != "REDIRECT" {
		p.bad("--istio-inbound-interception-mode", o.Mode, "only REDIRECT is supported; use that, or leave it empty")
	}
	s.inbound.all, s.inbound.ports = p.ports("--istio-inbound-ports", o.Inbound.Ports, true)
	_, s.inbound.excludePorts = p.ports("--istio-local-exclude-ports", o.Inbound.ExcludePorts, false)
	s.outbound.all, s.outbound.cidrs = p.prefixes("--istio-service-cidr", o.Outbound.CIDRs, true)
	_, s.outbound.excludeCIDRs = p.prefixes("--istio-service-exclude-cidr", o.Outbound.ExcludeCIDRs, false)
	_, s.outbound.ports = p.ports("--istio-outbound-ports", o.Outbound.Ports, false)
	_, s.outbound.excludePorts = p.ports("--istio-local-outbound-ports-exclude", o.Outbound.ExcludePorts, false)
	s.loopback = p.loopback("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", o.Outbound.LoopbackCIDR)
	s.owners, s.ownersExclude = p.owners(o.Outbound)
	return s, errors.Join(p.errs...)
}

// list splits at commas and drops what is empty.
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
		p.bad(flag, value, "give one port from 1 to 65535")
	}
	return uint16(n)
}

// ports reads a list of ports and ranges, or, if star, "*".
func (p *parser) ports(flag, value string, star bool) (all bool, spans []span) {
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
			remedy := "give ports from 1 to 65535, or ranges such as 8000-8010, separated by commas"
			if star {
				remedy += ", or * alone"
			}
			p.bad(flag, item, remedy)
			continue
		}
		spans = append(spans, span{uint32(lo), uint32(hi)})
	}
	return false, spans
}

func (p *parser) ids(flag, value string) (ids []span) {
	for _, item := range list(value) {
		n, err := strconv.ParseUint(item, 10, 32)
		if err != nil {
			p.bad(flag, item, "give numeric ids separated by commas, such as 1337 (the command id NAME tells a name's)")
			continue
		}
		ids = append(ids, span{uint32(n), uint32(n)})
	}
	return ids
}

// prefixes reads a list of CIDRs or single addresses, or, if star, "*".
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
			remedy := "give CIDRs separated by commas, such as 10.0.0.0/8"
			if star {
				remedy += ", or * alone"
			}
			p.bad(flag, item, remedy)
			continue
		}
		prefixes = append(prefixes, prefix.Masked())
	}
	return false, prefixes
}

func (p *parser) loopback(key, value string) netip.Prefix {
	prefix, err := netip.ParsePrefix(strings.TrimSpace(value))
	if err != nil || !prefix.Addr().Is4() || !prefix.Addr().IsLoopback() || prefix.Bits() < 8 {
		p.bad(key, value, "give an IPv4 loopback CIDR with a mask from 8 to 32, such as 127.0.0.1/32")
	}
	return prefix.Masked()
}

// interfaces refuses names that no interface can have; the kernel's limit is 15 bytes.
func (p *parser) interfaces(flag, value string) []string {
	names := list(value)
	for _, name := range names {
		if len(name) > 15 || strings.ContainsAny(name, "/ \t\n\"") {
			p.bad(flag, name, "give interface names of at most 15 characters, separated by commas, such as eth1")
		}
	}
	return names
}

func (p *parser) owners(o Outbound) (include, exclude []span) {
	if strings.TrimSpace(o.OwnerGroups) == "*" {
		return nil, p.ids("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", o.OwnerGroupsExclude)
	}
	include = p.ids("ISTIO_OUTBOUND_OWNER_GROUPS", o.OwnerGroups)
	if len(include) > maxOwnerGroups {
		p.bad("ISTIO_OUTBOUND_OWNER_GROUPS", o.OwnerGroups, fmt.Sprintf("give at most %d groups, or * alone", maxOwnerGroups))
	}
	return include, nil
}
