package capture

import (
	"fmt"
	"net/netip"
	"strings"
)

// The names of our tables. All are ours to replace and to clean, whatever a plan uses. [agent I45]
const (
	tableNAT    = "istio-proxy-nat"
	tableMangle = "istio-proxy-mangle"
	tableRaw    = "istio-proxy-raw"
)

// The chains beside those that the kernel enters.
const (
	chainInbound    = "istio-inbound"
	chainOutput     = "istio-output"
	chainRedirect   = "istio-redirect"
	chainInRedirect = "istio-in-redirect"
	chainOutputDNS  = "istio-output-dns"
	chainDivert     = "istio-divert"
	chainTProxy     = "istio-tproxy"
	chainDrop       = "istio-drop"
)

// The hooks' chains are named after them.
const (
	hookPrerouting = "prerouting"
	hookOutput     = "output"
)

// Where the tables come in: raw before connections are tracked (-200), mangle after it and before
// destinations are rewritten, which nat does. [agent I45]
const (
	priorityRaw    = -300
	priorityMangle = -150
	priorityNAT    = -100
)

// Numbers that are reserved for capture. [agent §6 (12)]
const (
	// outboundMark is on the proxy's calls to its own Pod, which TPROXY must capture on loopback.
	outboundMark = 1338
	// The agent's questions to a resolver are tracked apart from the applications' to the agent,
	// which may have the same addresses and ports. [N18]
	zoneProxy, zoneApplication = 1, 2
	// portDNS is where the agent answers DNS.
	portDNS = 15053
)

// migrateRequests lets the kernel hand the connections that wait at a closing listener to another
// one of the same port, so that an Envoy that ends, or has fewer workers than the last, resets none.
const migrateRequests = "net.ipv4.tcp_migrate_req"

// Facts are what a plan must know of the network namespace.
type Facts struct {
	// Addrs are its addresses in the kernel's order; loopback and link-local ones don't count.
	Addrs []netip.Addr
	// NoIPv6 says that IPv6 is disabled, or not in the kernel.
	NoIPv6 bool
	// Resolvers are the servers that its resolv.conf names.
	Resolvers []netip.Addr
	// Users and Groups give names' numbers.
	Users, Groups map[string]uint32
	// Interfaces are its network interfaces; nil if unknown.
	Interfaces []string
	// NoMigration says why listeners' queues can't be handed over, by the setting
	// net.ipv4.tcp_migrate_req; empty if they can be.
	NoMigration string
}

// ipv6First says whether the first address that counts is IPv6. What capture itself added to
// loopback does not. [I40]
func (f Facts) ipv6First() bool {
	for _, a := range f.Addrs {
		if a = a.Unmap(); !a.IsLoopback() && !a.IsLinkLocalUnicast() && a != ipv6.passthrough.Addr() {
			return a.Is6()
		}
	}
	return false
}

// Plan says which rules capture what the options ask for: IPv4 always, and IPv6 where the first
// address is IPv6 or both are asked for; otherwise IPv6 is not touched, nor where it is disabled.
// The error names every option that is not understood, with a remedy. The order of the rules is
// a contract. [agent 1.15, "Rule order, REDIRECT", "TPROXY"]
func Plan(o Options, f Facts) (Ruleset, error) {
	s, err := o.parse(f)
	if err != nil {
		return Ruleset{}, fmt.Errorf("plan the capture of traffic: %w", err)
	}
	if o.Mode == "NONE" {
		return Ruleset{Notes: []string{"the interception mode is NONE: nothing is captured"}}, nil
	}
	r := Ruleset{
		Sysctls: []Sysctl{{Key: migrateRequests, Value: "1"}},
		Notes:   s.notes(o, f),
	}
	for _, t := range []Table{{tableMangle, s.mangleChains()}, {tableNAT, s.natChains()}, {tableRaw, s.rawChains()}} {
		if t.Chains != nil {
			r.Tables = append(r.Tables, t)
		}
	}
	for _, ip := range s.protocols {
		if ip.is6 {
			r.Loopback = []netip.Prefix{ip.passthrough}
		}
		if s.tproxies() {
			r.Routes = append(r.Routes, MarkRoute{IPv6: ip.is6, Mark: s.tproxy.mark, Table: s.tproxy.table})
		}
	}
	return r, nil
}

// notes say what the plan does otherwise than the words of the options promise.
func (s settings) notes(o Options, f Facts) (notes []string) {
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if f.NoIPv6 && (o.DualStack || f.ipv6First()) {
		note("IPv6 is disabled here, so only IPv4 is captured")
	}
	if f.NoMigration != "" {
		note("%s can't be set here (%s): connections that wait at a proxy that restarts may be reset", migrateRequests, f.NoMigration)
	}
	if s.dns.on && !s.dns.all && len(s.dns.servers) == 0 {
		note("resolv.conf names no resolver of a captured family, so no DNS is captured; --capture-all-dns captures it whatever the address")
	}
	if s.dns.all && !s.dns.on {
		note("--capture-all-dns does nothing without --redirect-dns")
	}
	if f.Interfaces != nil {
		present := "," + strings.Join(f.Interfaces, ",") + ","
		for _, nic := range append(s.interfaces, s.virt...) {
			if !strings.Contains(present, ","+nic+",") {
				note("there is no interface %s now; its rules hold if it comes", nic)
			}
		}
	}
	return notes
}

// protocol is one version of IP. The proxy dials the application from passthrough, so that the
// connection is known as one that was captured already. [I41]
type protocol struct {
	name                  string
	is6                   bool
	passthrough, loopback netip.Prefix
}

var (
	ipv4 = protocol{"ipv4", false, netip.MustParsePrefix("127.0.0.6/32"), netip.MustParsePrefix("127.0.0.1/32")}
	ipv6 = protocol{"ipv6", true, netip.MustParsePrefix("::6/128"), netip.MustParsePrefix("::1/128")}
)

// redirected is where REDIRECT sends what this host sends: the family's own loopback address,
// whatever the options call loopback.
func (p protocol) redirected() netip.Addr {
	if p.is6 {
		return ipv6.loopback.Addr()
	}
	return ipv4.loopback.Addr()
}

// enter keeps packets of a protocol that is not captured out of a rule.
func (s settings) enter(rules ...Rule) []Rule {
	if s.ipv6() {
		return rules
	}
	for i := range rules {
		rules[i].Matches = append([]Match{{Field: Family, Name: "ipv4"}}, rules[i].Matches...)
	}
	return rules
}

// pass lets what the excluded interfaces carry go by. [I9]
func (s settings) pass(direction Field) (rules []Rule) {
	for _, nic := range s.interfaces {
		rules = append(rules, ret(Match{Field: direction, Name: nic}))
	}
	return rules
}

var (
	tcp         = Match{Field: Protocol, Name: "tcp"}
	onLoopback  = Match{Field: OutInterface, Name: "lo"}
	viaLoopback = Match{Field: InInterface, Name: "lo"}
)

func number(f Field, s span) Match { return Match{Field: f, From: s.from, To: s.to} }

func exactly(f Field, n uint32) Match { return Match{Field: f, From: n, To: n} }

func not(m Match) Match {
	m.Not = !m.Not
	return m
}

func do(a Action, m ...Match) Rule { return Rule{Matches: m, Action: a} }

func ret(m ...Match) Rule { return do(Action{Verb: Return}, m...) }

func jump(chain string, m ...Match) Rule { return do(Action{Verb: Jump, Chain: chain}, m...) }
