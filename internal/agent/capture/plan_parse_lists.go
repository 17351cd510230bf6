package capture

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

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

// number reads one number from 1, such as a mark, in any of Go's notations.
func (p *parser) number(flag, value, remedy string) uint32 {
	n, err := strconv.ParseUint(strings.TrimSpace(value), 0, 32)
	if err != nil || n == 0 {
		p.bad(flag, value, remedy)
	}
	return uint32(n)
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

// ids reads a list of users or groups: numbers, or names that known has.
func (p *parser) ids(flag string, field Field, value string, known map[string]uint32) (ids []Match) {
	for _, item := range list(value) {
		n, err := strconv.ParseUint(item, 10, 32)
		if err == nil {
			ids = append(ids, Match{Field: field, From: uint32(n), To: uint32(n)})
			continue
		}
		id, ok := known[item]
		if !ok {
			p.bad(flag, item, "give numeric ids, such as 1337, or names that exist here, separated by commas (the command id NAME tells a name's)")
			continue
		}
		ids = append(ids, Match{Field: field, Name: item, From: id, To: id})
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

func (p *parser) groups(o Outbound, known map[string]uint32) (include, exclude []Match) {
	if strings.TrimSpace(o.OwnerGroups) == "*" {
		return nil, p.ids("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", SocketGID, o.OwnerGroupsExclude, known)
	}
	include = p.ids("ISTIO_OUTBOUND_OWNER_GROUPS", SocketGID, o.OwnerGroups, known)
	if len(include) > maxOwnerGroups {
		p.bad("ISTIO_OUTBOUND_OWNER_GROUPS", o.OwnerGroups, fmt.Sprintf("give at most %d groups, or * alone", maxOwnerGroups))
	}
	return include, nil
}
