package plan

import "slices"

// natChains redirect captured connections, but the inbound ones of TPROXY.
func (s settings) natChains() []Chain {
	base := func(hook string, rules []Rule) Chain {
		return Chain{Name: hook, Base: Base{Type: "nat", Hook: hook, Priority: priorityNAT}, Rules: rules}
	}
	chains := []Chain{
		{Name: chainInbound, Rules: s.inboundRules()},
		{Name: chainRedirect, Rules: []Rule{rule(Action{Verb: Redirect, Port: s.envoyPort}, tcp)}},
		{Name: chainInRedirect, Rules: []Rule{rule(Action{Verb: Redirect, Port: s.inboundPort}, tcp)}},
		{Name: chainOutput, Rules: s.outputRules()},
	}
	if s.dns.on {
		chains = append(chains, Chain{Name: ChainOutputDNS, Rules: s.dnsRules()})
	}
	return append(chains,
		base(hookPrerouting, s.preroutingRules()),
		base(hookOutput, slices.Concat(s.skipInterfaces(OutInterface), s.limitFamilies(jump(chainOutput)))),
	)
}

func (s settings) preroutingRules() []Rule {
	rules := append(s.virtRules(), s.skipInterfaces(InInterface)...)
	if s.inbound.capturesAny() && !s.tproxy.on {
		rules = append(rules, s.limitFamilies(jump(chainInbound, tcp))...)
	}
	return rules
}

// virtRules capture what virtual machines send as if this host sent it. [agent I14]
func (s settings) virtRules() (rules []Rule) {
	for _, nic := range s.virtNICs {
		from := Match{Field: InInterface, Name: nic}
		for _, prefix := range s.outbound.excludeCIDRs {
			if s.captures(prefix) {
				rules = append(rules, returnIf(from, Match{Field: Destination, Prefix: prefix}))
			}
		}
		if s.outbound.all {
			rules = append(rules, s.limitFamilies(jump(chainRedirect, from))...)
		}
		for _, prefix := range s.outbound.cidrs {
			if s.captures(prefix) {
				rules = append(rules, jump(chainRedirect, from, Match{Field: Destination, Prefix: prefix}))
			}
		}
		rules = append(rules, returnIf(from))
	}
	return rules
}

func (s settings) inboundRules() []Rule {
	rules := []Rule{returnIf(inRange(TCPPort, s.tunnelPort))}
	switch {
	case s.tproxy.on: // the mangle table captures
	case s.inbound.all:
		for _, ports := range s.inbound.excludePorts {
			rules = append(rules, returnIf(inRange(TCPPort, ports)))
		}
		rules = append(rules, jump(chainInRedirect))
	default:
		for _, ports := range s.inbound.ports {
			rules = append(rules, jump(chainInRedirect, inRange(TCPPort, ports)))
		}
	}
	return rules
}

// outputRules returns rules (2) to (11) in the order of the contract; (1) is in the hook's chain.
func (s settings) outputRules() []Rule {
	var rules []Rule
	for _, field := range []Field{TCPPort, UDPPort} {
		for _, ports := range s.outbound.excludePorts {
			rules = append(rules, returnIf(inRange(field, ports)))
		}
	}
	for _, ip := range s.families {
		rules = append(rules, returnIf(onLoopback, Match{Field: Source, Prefix: ip.passthrough}))
	}
	for _, owner := range s.proxy {
		rules = append(rules, s.ownerRules(owner)...)
	}
	rules = append(rules, s.groupRules()...)
	if s.dns.on {
		rules = append(rules, jump(ChainOutputDNS))
	}
	for _, ip := range s.families {
		rules = append(rules, returnIf(Match{Field: Destination, Prefix: ip.loopback}))
	}
	return append(rules, s.destinationRules()...)
}

// ownerRules exclude the proxy's own connections. A connection of the proxy over loopback to an
// address other than 127.0.0.1 is a call to its own Pod, which is captured as inbound like any
// caller's: the application called a service that selected the application itself. Connections of
// others over loopback are not captured, but for DNS.
func (s settings) ownerRules(owner Match) []Rule {
	dns := inRange(TCPPort, portRange{53, 53})
	var rules []Rule
	for _, ip := range s.families {
		self := []Match{onLoopback, {Field: Destination, Not: true, Prefix: ip.loopback}, tcp}
		if s.dns.on && owner.Field != SocketGID {
			self = append(self, not(dns))
		}
		rules = append(rules, jump(chainInRedirect, append(self, not(inRange(TCPPort, s.tunnelPort)), owner)...))
	}
	others := []Match{onLoopback}
	if s.dns.on {
		others = append(others, tcp, not(dns))
	}
	if owner.Field != SocketCgroup {
		// The rules of the proxy's other users and groups follow. A cgroup is the only owner, and
		// is excluded together with the others: nftables cannot match a process outside of it
		// if the process's own cgroup is less deep in the hierarchy.
		others = append(others, not(owner))
	}
	return append(rules, returnIf(others...), returnIf(owner))
}

func (s settings) groupRules() []Rule {
	var rules []Rule
	for _, group := range s.excludedGroups {
		rules = append(rules, returnIf(group))
	}
	if len(s.groups) > 0 {
		var none []Match
		for _, group := range s.groups {
			none = append(none, not(group))
		}
		rules = append(rules, returnIf(none...))
	}
	return rules
}

// dnsRules redirect DNS queries to the agent.
func (s settings) dnsRules() (rules []Rule) {
	for _, field := range []Field{TCPPort, UDPPort} {
		for _, to := range s.resolvers(Destination) {
			rules = append(rules, rule(Action{Verb: Redirect, Port: portDNS}, append(to, exactly(field, 53))...))
		}
	}
	return rules
}

// resolvers returns, for each server whose queries are captured, the matches of the given field; a
// single empty list, which always matches, if all queries are captured.
func (s settings) resolvers(f Field) (matches [][]Match) {
	if s.dns.all {
		return [][]Match{nil}
	}
	for _, server := range s.dns.servers {
		matches = append(matches, []Match{{Field: f, Prefix: server}})
	}
	return matches
}

// destinationRules choose among the applications' connections by destination.
func (s settings) destinationRules() []Rule {
	var rules []Rule
	for _, prefix := range s.outbound.excludeCIDRs {
		if s.captures(prefix) {
			rules = append(rules, returnIf(Match{Field: Destination, Prefix: prefix}))
		}
	}
	for _, ports := range s.outbound.ports {
		rules = append(rules, jump(chainRedirect, inRange(TCPPort, ports)))
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
