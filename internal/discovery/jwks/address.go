package jwks

import (
	"fmt"
	"net/netip"
)

// neverAsked are addresses that no issuer has, each with what it is.
var neverAsked = []struct {
	prefix netip.Prefix
	what   string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "this host"},
	{netip.MustParsePrefix("127.0.0.0/8"), "this host"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved"},
	{netip.MustParsePrefix("100.100.100.200/32"), "a metadata service of clouds"},
	{netip.MustParsePrefix("168.63.129.16/32"), "a metadata service of clouds"},
	{netip.MustParsePrefix("192.0.0.192/32"), "a metadata service of clouds"},
	{netip.MustParsePrefix("::/128"), "this host"},
	{netip.MustParsePrefix("::1/128"), "this host"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("fec0::/10"), "link-local"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
	{netip.MustParsePrefix("fd00:ec2::254/128"), "a metadata service of clouds"},
	{netip.MustParsePrefix("fd20:ce::254/128"), "a metadata service of clouds"},
}

// embedding are the ranges of IPv6 whose addresses stand for one of IPv4, with the byte at which it begins.
var embedding = []struct {
	prefix netip.Prefix
	at     int
}{
	{netip.MustParsePrefix("::/96"), 12},           // IPv4-compatible
	{netip.MustParsePrefix("::ffff:0:0/96"), 12},   // IPv4-mapped
	{netip.MustParsePrefix("::ffff:0:0:0/96"), 12}, // IPv4-translated (RFC 2765)
	{netip.MustParsePrefix("64:ff9b::/96"), 12},    // NAT64 (RFC 6052)
	{netip.MustParsePrefix("64:ff9b:1::/48"), 12},  // NAT64 of a network's own (RFC 8215), with a prefix of 96 bits
	{netip.MustParsePrefix("2002::/16"), 2},        // 6to4 (RFC 3056)
	{netip.MustParsePrefix("2001::/32"), 4},        // Teredo (RFC 4380): the server
}

// CheckAddress returns an error if keys must not be fetched from an address: those of this host, link-local ones, multicast, the
// metadata services of clouds, and those in blocked. Addresses of IPv6 that stand for one of IPv4 are judged as both. Private
// ranges are allowed, since issuers may be in the cluster; blocked refuses them.
func CheckAddress(a netip.Addr, blocked []netip.Prefix) error {
	shown := a
	a = a.WithZone("")
	for _, one := range standsFor(a) {
		for _, never := range neverAsked {
			if never.prefix.Contains(one) {
				return fmt.Errorf("address %s must not be asked for keys: it is %s", shown, never.what)
			}
		}
		for _, p := range blocked {
			if p.Contains(one) {
				return fmt.Errorf("address %s must not be asked for keys: %s is blocked (BLOCKED_CIDRS_IN_JWKS_URIS)", shown, p)
			}
		}
	}
	return nil
}

// ParseBlocked parses the prefixes of addresses that are not to be asked for keys.
func ParseBlocked(texts []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil || p.Addr().Is4In6() {
			return nil, fmt.Errorf("invalid CIDR %q: want one such as 10.0.1.0/24 or fd00:1::/64", text)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// standsFor returns an address and those of IPv4 that it stands for.
func standsFor(a netip.Addr) []netip.Addr {
	out := []netip.Addr{a.Unmap()}
	if !a.Is6() {
		return out
	}
	bytes := a.As16()
	in16 := netip.AddrFrom16(bytes)
	for _, e := range embedding {
		// A prefix contains no mapped addresses, so that these are compared by their bytes.
		if within(e.prefix, in16) {
			out = append(out, netip.AddrFrom4([4]byte(bytes[e.at:e.at+4])))
		}
	}
	if isatap := [4]byte(bytes[8:12]); isatap == [4]byte{0, 0, 0x5e, 0xfe} || isatap == [4]byte{2, 0, 0x5e, 0xfe} {
		out = append(out, netip.AddrFrom4([4]byte(bytes[12:]))) // ISATAP (RFC 5214), below any prefix
	}
	return out
}

// within reports whether the first bits of an address of IPv6 are those of a prefix.
func within(p netip.Prefix, a netip.Addr) bool {
	have, want := a.As16(), p.Addr().As16()
	for i := range p.Bits() {
		bit := byte(0x80 >> (i % 8))
		if have[i/8]&bit != want[i/8]&bit {
			return false
		}
	}
	return true
}
