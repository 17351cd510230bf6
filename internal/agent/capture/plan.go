package capture

import (
	"fmt"
	"net/netip"
)

// The names of our tables. REDIRECT needs the first alone; all are ours to replace and to clean.
// [agent I45]
const (
	tableNAT    = "istio-proxy-nat"
	tableMangle = "istio-proxy-mangle"
	tableRaw    = "istio-proxy-raw"
)

// The chains of the nat table beside the two that the kernel enters.
const (
	chainInbound    = "istio-inbound"
	chainOutput     = "istio-output"
	chainRedirect   = "istio-redirect"
	chainInRedirect = "istio-in-redirect"
)

// priorityNAT is where destinations are rewritten.
const priorityNAT = -100

// migrateRequests lets the kernel hand the connections that wait at a closing listener to another
// one of the same port, so that an Envoy that ends, or has fewer workers than the last, resets none.
const migrateRequests = "net.ipv4.tcp_migrate_req"

// Facts are what a plan must know of the network namespace.
type Facts struct {
	// Addrs are its addresses in the kernel's order; loopback and link-local ones don't count.
	Addrs []netip.Addr
}

// ipv6First says whether the first address that counts is IPv6. [I40]
func (f Facts) ipv6First() bool {
	for _, a := range f.Addrs {
		if a = a.Unmap(); !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			return a.Is6()
		}
	}
	return false
}

// Plan says which rules capture what the options ask for: IPv4 always, and IPv6 where the first
// address is IPv6 or both are asked for; otherwise IPv6 is not touched. The error names every
// option that is not understood, with a remedy. The order of the rules is a contract.
// [agent 1.15, "Rule order, REDIRECT"]
func Plan(o Options, f Facts) (Ruleset, error) {
	s, err := o.parse()
	if err != nil {
		return Ruleset{}, fmt.Errorf("plan the capture of traffic: %w", err)
	}
	s.ipv6 = o.DualStack || f.ipv6First()
	r := Ruleset{
		Tables:  []Table{{Name: tableNAT, Chains: s.natChains()}},
		Sysctls: []Sysctl{{Key: migrateRequests, Value: "1"}},
	}
	if s.ipv6 {
		r.Loopback = []netip.Prefix{protocols[1].passthrough}
	}
	return r, nil
}

// protocol is one version of IP. The proxy dials the application from passthrough, so that the
// connection is known as one that was captured already. [I41]
type protocol struct {
	name                  string
	passthrough, loopback netip.Prefix
}

var protocols = [2]protocol{
	{"ipv4", netip.MustParsePrefix("127.0.0.6/32"), netip.MustParsePrefix("127.0.0.1/32")},
	{"ipv6", netip.MustParsePrefix("::6/128"), netip.MustParsePrefix("::1/128")},
}

func (s settings) protocols() []protocol {
	if s.ipv6 {
		return protocols[:]
	}
	return protocols[:1]
}

func (s settings) natChains() []Chain {
	base := func(hook string, rules []Rule) Chain {
		return Chain{Name: hook, Base: Base{Type: "nat", Hook: hook, Priority: priorityNAT}, Rules: rules}
	}
	return []Chain{
		{Name: chainInbound, Rules: s.inboundRules()},
		{Name: chainRedirect, Rules: []Rule{{[]Match{tcp}, Action{Verb: Redirect, Port: s.envoyPort}}}},
		{Name: chainInRedirect, Rules: []Rule{{[]Match{tcp}, Action{Verb: Redirect, Port: s.inboundPort}}}},
		{Name: chainOutput, Rules: s.outputRules()},
		base("prerouting", s.preroutingRules()),
		base("output", []Rule{s.enter(jump(chainOutput))}),
	}
}

// enter keeps packets of a protocol that is not captured out of the other chains.
func (s settings) enter(r Rule) Rule {
	if !s.ipv6 {
		r.Matches = append([]Match{{Field: Family, Name: "ipv4"}}, r.Matches...)
	}
	return r
}

func (s settings) preroutingRules() []Rule {
	var rules []Rule
	for _, nic := range s.interfaces {
		rules = append(rules, ret(Match{Field: InInterface, Name: nic}))
	}
	if s.inbound.all || len(s.inbound.ports) > 0 {
		rules = append(rules, s.enter(jump(chainInbound, tcp)))
	}
	return rules
}

func (s settings) inboundRules() []Rule {
	rules := []Rule{ret(number(TCPPort, s.tunnelPort))}
	if !s.inbound.all {
		for _, ports := range s.inbound.ports {
			rules = append(rules, jump(chainInRedirect, number(TCPPort, ports)))
		}
		return rules
	}
	for _, ports := range s.inbound.excludePorts {
		rules = append(rules, ret(number(TCPPort, ports)))
	}
	return append(rules, jump(chainInRedirect))
}

// outputRules is the list (1) to (11) of the contract; (7), DNS, has no rules yet.
func (s settings) outputRules() []Rule {
	var rules []Rule
	for _, nic := range s.interfaces {
		rules = append(rules, ret(Match{Field: OutInterface, Name: nic}))
	}
	for _, field := range []Field{TCPPort, UDPPort} {
		for _, ports := range s.outbound.excludePorts {
			rules = append(rules, ret(number(field, ports)))
		}
	}
	for _, ip := range s.protocols() {
		rules = append(rules, ret(onLoopback, Match{Field: Source, Prefix: ip.passthrough}))
	}
	for _, uid := range s.uids {
		rules = append(rules, s.ownerRules(number(SocketUID, uid))...)
	}
	for _, gid := range s.gids {
		rules = append(rules, s.ownerRules(number(SocketGID, gid))...)
	}
	rules = append(rules, s.groupRules()...)
	for _, ip := range s.protocols() {
		if ip.name == "ipv4" {
			ip.loopback = s.loopback
		}
		rules = append(rules, ret(Match{Field: Destination, Prefix: ip.loopback}))
	}
	return append(rules, s.destinationRules()...)
}

// ownerRules let the proxy's own connections pass. Over loopback to another address than
// 127.0.0.1 it is calling its own Pod, which it must enter like any caller: the application
// called a service that chose the application itself. Others may use loopback freely.
func (s settings) ownerRules(owner Match) []Rule {
	other := owner
	other.Not = true
	tunnel := number(TCPPort, s.tunnelPort)
	tunnel.Not = true
	var rules []Rule
	for _, ip := range s.protocols() {
		rules = append(rules, jump(chainInRedirect, onLoopback,
			Match{Field: Destination, Not: true, Prefix: ip.loopback}, tunnel, owner))
	}
	return append(rules, ret(onLoopback, other), ret(owner))
}

func (s settings) groupRules() []Rule {
	var rules []Rule
	for _, gid := range s.ownersExclude {
		rules = append(rules, ret(number(SocketGID, gid)))
	}
	if len(s.owners) > 0 {
		var none []Match
		for _, gid := range s.owners {
			m := number(SocketGID, gid)
			m.Not = true
			none = append(none, m)
		}
		rules = append(rules, ret(none...))
	}
	return rules
}

// destinationRules choose among the applications' connections that have come this far.
func (s settings) destinationRules() []Rule {
	var rules []Rule
	for _, prefix := range s.outbound.excludeCIDRs {
		if s.captures(prefix) {
			rules = append(rules, ret(Match{Field: Destination, Prefix: prefix}))
		}
	}
	for _, ports := range s.outbound.ports {
		rules = append(rules, jump(chainRedirect, number(TCPPort, ports)))
	}
	if s.outbound.all {
		return append(rules, jump(chainRedirect))
	}
	for _, prefix := range s.outbound.cidrs {
		if s.captures(prefix) {
			rules = append(rules, jump(chainRedirect, Match{Field: Destination, Prefix: prefix}))
		}
	}
	return rules
}

// captures says whether the prefix is of a protocol that is captured at all.
func (s settings) captures(p netip.Prefix) bool { return p.Addr().Is4() || s.ipv6 }

var (
	tcp        = Match{Field: Protocol, Name: "tcp"}
	onLoopback = Match{Field: OutInterface, Name: "lo"}
)

func number(f Field, s span) Match { return Match{Field: f, From: s.from, To: s.to} }

func ret(m ...Match) Rule { return Rule{Matches: m, Action: Action{Verb: Return}} }

func jump(chain string, m ...Match) Rule {
	return Rule{Matches: m, Action: Action{Verb: Jump, Chain: chain}}
}
