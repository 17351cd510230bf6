// Package plan decides, from options and facts, which kernel rules capture a Pod's traffic, and explains them.
//
// [Build] turns [Options] and [Facts] into a [Ruleset], whose text is the dry run. [Explain] follows
// one packet through a Ruleset as the kernel would, and [Probes] lists connections that show
// whether a Ruleset is in force. Everything here is a pure function of its arguments: nothing is
// read, applied or kept, and all functions may be called concurrently.
package plan

import (
	"fmt"
	"net/netip"
	"strings"

	defaults "github.com/pilothouse/pilothouse/internal/settings"
)

// The names of our nftables tables; iptables has them without the prefix. [agent I45]
const (
	TableNAT    = "istio-proxy-nat"
	TableMangle = "istio-proxy-mangle"
	TableRaw    = "istio-proxy-raw"
)

// TableNames lists the nftables tables of capture. All of them are replaced and removed, whichever of them
// a Ruleset uses.
func TableNames() []string { return []string{TableNAT, TableMangle, TableRaw} }

// The chains that rules jump to; the other chains are entered by the kernel at a hook.
const (
	chainInbound    = "istio-inbound"
	chainOutput     = "istio-output"
	chainRedirect   = "istio-redirect"
	chainInRedirect = "istio-in-redirect"
	// ChainOutputDNS holds the rules for DNS queries that this network namespace sends.
	ChainOutputDNS = "istio-output-dns"
	chainDivert    = "istio-divert"
	chainTProxy    = "istio-tproxy"
	chainDrop      = "istio-drop"
)

// The chains that the kernel enters are named after their hooks.
const (
	hookPrerouting = "prerouting"
	hookOutput     = "output"
)

// The priorities of the tables: raw comes before connection tracking (-200); mangle comes after it
// and before destinations are rewritten, which nat does. [agent I45]
const (
	priorityRaw    = -300
	priorityMangle = -150
	priorityNAT    = -100
)

// Numbers that are reserved for capture. [agent I51]
const (
	// DefaultTProxyMark is the default mark of TPROXY.
	DefaultTProxyMark = defaults.DefaultTProxyMark
	// DefaultRouteTable is the default routing table of TPROXY.
	DefaultRouteTable = defaults.DefaultRouteTable
	// OutboundMark is on the proxy's calls to its own Pod, which TPROXY must capture on loopback.
	OutboundMark = 1338
	// ZoneProxy is the conntrack zone of the agent's own DNS queries, zoneApplication that of the
	// applications' queries to the agent: both may have the same addresses and ports. [agent N18]
	ZoneProxy, zoneApplication = 1, 2
	// portDNS is the port on which the agent answers DNS.
	portDNS = 15053
)

// MigrateRequests is the sysctl that lets the kernel hand connections that wait in the queue of a
// closing listener to another listener of the same port, so that an Envoy that ends, or has fewer
// workers than its predecessor, resets none (Linux 5.14).
const MigrateRequests = "net.ipv4.tcp_migrate_req"

// Facts describe the network namespace.
type Facts struct {
	// Addrs are its addresses in the kernel's order; loopback and link-local ones are ignored.
	Addrs []netip.Addr
	// NoIPv6 says that IPv6 is disabled or not supported by the kernel.
	NoIPv6 bool
	// Resolvers are the name servers in its resolv.conf.
	Resolvers []netip.Addr
	// Users and Groups map names to numbers.
	Users, Groups map[string]uint32
	// Interfaces are the names of its network interfaces; nil if unknown.
	Interfaces []string
	// NoMigration is the reason why the sysctl [MigrateRequests] can't be set; empty if it can be.
	NoMigration string
}

// ipv6First reports whether the first address that counts is IPv6. The address that capture itself
// adds to loopback does not count. [agent I40]
func (f Facts) ipv6First() bool {
	for _, a := range f.Addrs {
		if a = a.Unmap(); !a.IsLoopback() && !a.IsLinkLocalUnicast() && a != ipv6.passthrough.Addr() {
			return a.Is6()
		}
	}
	return false
}

// Build returns the rules for the options: for IPv4, and for IPv6 if the first address is IPv6 or
// DualStack is set, unless IPv6 is disabled. The error names every invalid option, with a remedy. The
// order of the rules is part of the contract. [agent I52, I53]
func Build(o Options, f Facts) (Ruleset, error) {
	s, err := o.parse(f)
	if err != nil {
		return Ruleset{}, fmt.Errorf("plan the capture of traffic: %w", err)
	}
	if o.Mode == "NONE" {
		return Ruleset{Notes: []string{"the interception mode is NONE: nothing is captured"}}, nil
	}
	r := Ruleset{
		Sysctls: []Sysctl{{Key: MigrateRequests, Value: "1"}},
		Notes:   s.notes(o, f),
	}
	for _, t := range []Table{{TableMangle, s.mangleChains()}, {TableNAT, s.natChains()}, {TableRaw, s.rawChains()}} {
		if t.Chains != nil {
			r.Tables = append(r.Tables, t)
		}
	}
	for _, ip := range s.families {
		if ip.is6 {
			r.Loopback = []netip.Prefix{ip.passthrough}
		}
		if s.usesTProxy() {
			r.Routes = append(r.Routes, MarkRoute{IPv6: ip.is6, Mark: s.tproxy.mark, Table: s.tproxy.table})
		}
	}
	return r, nil
}

// notes returns sentences about options that the plan cannot apply or that have no effect.
func (s settings) notes(o Options, f Facts) (notes []string) {
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if f.NoIPv6 && (o.DualStack || f.ipv6First()) {
		note("IPv6 is disabled here, so only IPv4 is captured")
	}
	if f.NoMigration != "" {
		note("%s can't be set here (%s): connections that wait at a proxy that restarts may be reset", MigrateRequests, f.NoMigration)
	}
	if s.dns.on && !s.dns.all && len(s.dns.servers) == 0 {
		note("resolv.conf names no resolver of a captured family, so no DNS is captured; --capture-all-dns captures it whatever the address")
	}
	if s.dns.all && !s.dns.on {
		note("--capture-all-dns has no effect without --redirect-dns")
	}
	if !s.inbound.all && len(s.inbound.excludePorts) > 0 {
		note("--istio-local-exclude-ports has no effect unless --istio-inbound-ports is *")
	}
	if len(s.groups) > 0 && o.Outbound.OwnerGroupsExclude != "" {
		note("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE has no effect unless ISTIO_OUTBOUND_OWNER_GROUPS is *")
	}
	if !s.tproxy.on && o.Inbound.Mark != "" && o.Inbound.Mark != DefaultTProxyMark {
		note("--istio-inbound-tproxy-mark has no effect without --istio-inbound-interception-mode=TPROXY")
	}
	if !s.tproxy.on && o.Inbound.RouteTable != "" && o.Inbound.RouteTable != DefaultRouteTable {
		note("--istio-inbound-tproxy-route-table has no effect without --istio-inbound-interception-mode=TPROXY")
	}
	if o.ProxyGID != "" && o.ProxyGID != o.ProxyUID && (o.ProxyMark != "" || o.ProxyCgroup != "") {
		note("--proxy-gid has no effect with --proxy-mark or --proxy-cgroup")
	}
	if f.Interfaces != nil {
		present := "," + strings.Join(f.Interfaces, ",") + ","
		for _, nic := range append(s.excludedNICs, s.virtNICs...) {
			if !strings.Contains(present, ","+nic+",") {
				note("there is no interface %s now; its rules apply once it exists", nic)
			}
		}
	}
	return notes
}

// family is a version of IP. The proxy connects to the application from the address passthrough, so
// that the connection is known as one that was captured already. [agent I41]
type family struct {
	name                  string
	is6                   bool
	passthrough, loopback netip.Prefix
}

var (
	ipv4 = family{"ipv4", false, netip.MustParsePrefix("127.0.0.6/32"), netip.MustParsePrefix("127.0.0.1/32")}
	ipv6 = family{"ipv6", true, netip.MustParsePrefix("::6/128"), netip.MustParsePrefix("::1/128")}
)

// PassthroughIPv6 returns the source address of the proxy's IPv6 connections to the application. The
// loopback interface has it only while IPv6 is captured.
func PassthroughIPv6() netip.Prefix { return ipv6.passthrough }

// redirectAddr returns the address to which REDIRECT redirects packets of this host: the loopback address
// of the family, whatever LoopbackCIDR is.
func redirectAddr(is6 bool) netip.Addr {
	if is6 {
		return ipv6.loopback.Addr()
	}
	return ipv4.loopback.Addr()
}

// limitFamilies restricts the rules to the captured families.
func (s settings) limitFamilies(rules ...Rule) []Rule {
	if s.capturesIPv6() {
		return rules
	}
	for i := range rules {
		rules[i].Matches = append([]Match{{Field: Family, Name: "ipv4"}}, rules[i].Matches...)
	}
	return rules
}

// skipInterfaces returns the rules that exclude interfaces from capture in one direction. [agent I9]
func (s settings) skipInterfaces(direction Field) (rules []Rule) {
	for _, nic := range s.excludedNICs {
		rules = append(rules, returnIf(Match{Field: direction, Name: nic}))
	}
	return rules
}

var (
	tcp         = Match{Field: Protocol, Name: "tcp"}
	onLoopback  = Match{Field: OutInterface, Name: "lo"}
	viaLoopback = Match{Field: InInterface, Name: "lo"}
)

func inRange(f Field, r portRange) Match { return Match{Field: f, From: r.from, To: r.to} }

func exactly(f Field, n uint32) Match { return Match{Field: f, From: n, To: n} }

func not(m Match) Match {
	m.Not = !m.Not
	return m
}

func rule(a Action, m ...Match) Rule { return Rule{Matches: m, Action: a} }

func returnIf(m ...Match) Rule { return rule(Action{Verb: Return}, m...) }

func jump(chain string, m ...Match) Rule { return rule(Action{Verb: Jump, Chain: chain}, m...) }
