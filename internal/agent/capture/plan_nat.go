package capture

import "slices"

func (s settings) natChains() []Chain {
	base := func(hook string, rules []Rule) Chain {
		return Chain{Name: hook, Base: Base{Type: "nat", Hook: hook, Priority: priorityNAT}, Rules: rules}
	}
	chains := []Chain{
		{Name: chainInbound, Rules: s.inboundRules()},
		{Name: chainRedirect, Rules: []Rule{do(Action{Verb: Redirect, Port: s.ports.envoy}, tcp)}},
		{Name: chainInRedirect, Rules: []Rule{do(Action{Verb: Redirect, Port: s.ports.inbound}, tcp)}},
		{Name: chainOutput, Rules: s.outputRules()},
	}
	if s.dns.on {
		chains = append(chains, Chain{Name: chainOutputDNS, Rules: s.dnsRules()})
	}
	return append(chains,
		base(hookPrerouting, s.preroutingRules()),
		base(hookOutput, slices.Concat(s.pass(OutInterface), s.enter(jump(chainOutput)))),
	)
}

func (s settings) preroutingRules() []Rule {
	rules := append(s.virtRules(), s.pass(InInterface)...)
	if s.inbound.some() && !s.tproxy.on {
		rules = append(rules, s.enter(jump(chainInbound, tcp))...)
	}
	return rules
}

// virtRules capture what virtual machines send, as if this host sent it. [I14]
func (s settings) virtRules() (rules []Rule) {
	for _, nic := range s.virt {
		from := Match{Field: InInterface, Name: nic}
		for _, prefix := range s.outbound.excludeCIDRs {
			if s.captures(prefix) {
				rules = append(rules, ret(from, Match{Field: Destination, Prefix: prefix}))
			}
		}
		if s.outbound.all {
			rules = append(rules, s.enter(jump(chainRedirect, from))...)
		}
		for _, prefix := range s.outbound.cidrs {
			if s.captures(prefix) {
				rules = append(rules, jump(chainRedirect, from, Match{Field: Destination, Prefix: prefix}))
			}
		}
		rules = append(rules, ret(from))
	}
	return rules
}

func (s settings) inboundRules() []Rule {
	rules := []Rule{ret(number(TCPPort, s.ports.tunnel))}
	switch {
	case s.tproxy.on: // the mangle table captures
	case s.inbound.all:
		for _, ports := range s.inbound.excludePorts {
			rules = append(rules, ret(number(TCPPort, ports)))
		}
		rules = append(rules, jump(chainInRedirect))
	default:
		for _, ports := range s.inbound.ports {
			rules = append(rules, jump(chainInRedirect, number(TCPPort, ports)))
		}
	}
	return rules
}

// outputRules is the list (2) to (11) of the contract; (1) is in the hook's chain.
func (s settings) outputRules() []Rule {
	var rules []Rule
	for _, field := range []Field{TCPPort, UDPPort} {
		for _, ports := range s.outbound.excludePorts {
			rules = append(rules, ret(number(field, ports)))
		}
	}
	for _, ip := range s.protocols {
		rules = append(rules, ret(onLoopback, Match{Field: Source, Prefix: ip.passthrough}))
	}
	for _, owner := range s.proxy {
		rules = append(rules, s.ownerRules(owner)...)
	}
	rules = append(rules, s.groupRules()...)
	if s.dns.on {
		rules = append(rules, jump(chainOutputDNS))
	}
	for _, ip := range s.protocols {
		rules = append(rules, ret(Match{Field: Destination, Prefix: ip.loopback}))
	}
	return append(rules, s.destinationRules()...)
}

// ownerRules let the proxy's own connections pass. Over loopback to another address than
// 127.0.0.1 it is calling its own Pod, which it must enter like any caller: the application
// called a service that chose the application itself. Others may use loopback freely, but for DNS.
func (s settings) ownerRules(owner Match) []Rule {
	dns := number(TCPPort, span{53, 53})
	var rules []Rule
	for _, ip := range s.protocols {
		self := []Match{onLoopback, {Field: Destination, Not: true, Prefix: ip.loopback}, tcp}
		if s.dns.on && owner.Field != SocketGID {
			self = append(self, not(dns))
		}
		rules = append(rules, jump(chainInRedirect, append(self, not(number(TCPPort, s.ports.tunnel)), owner)...))
	}
	others := []Match{onLoopback}
	if s.dns.on {
		others = append(others, tcp, not(dns))
	}
	if owner.Field != SocketCgroup {
		// The rules of the proxy's other users and groups follow. A cgroup is alone, and passes
		// with the others: nftables can't tell that a process is not in it, if that one's own is
		// less deep in the hierarchy.
		others = append(others, not(owner))
	}
	return append(rules, ret(others...), ret(owner))
}

func (s settings) groupRules() []Rule {
	var rules []Rule
	for _, group := range s.notGroups {
		rules = append(rules, ret(group))
	}
	if len(s.groups) > 0 {
		var none []Match
		for _, group := range s.groups {
			none = append(none, not(group))
		}
		rules = append(rules, ret(none...))
	}
	return rules
}

// dnsRules send questions to the agent.
func (s settings) dnsRules() (rules []Rule) {
	for _, field := range []Field{TCPPort, UDPPort} {
		for _, to := range s.resolvers(Destination) {
			rules = append(rules, do(Action{Verb: Redirect, Port: portDNS}, append(to, exactly(field, 53))...))
		}
	}
	return rules
}

// resolvers are the matches for each server whose questions are captured, by the given field:
// one that always holds if all are.
func (s settings) resolvers(f Field) (matches [][]Match) {
	if s.dns.all {
		return [][]Match{nil}
	}
	for _, server := range s.dns.servers {
		matches = append(matches, []Match{{Field: f, Prefix: server}})
	}
	return matches
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
