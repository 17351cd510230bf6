package capture

import "slices"

// mangleChains drop invalid packets and, in the mode TPROXY, capture inbound ones without
// rewriting them, so that the proxy sees where they come from and where they go. [agent 1.15, "TPROXY"]
func (s settings) mangleChains() []Chain {
	if !s.tproxies() && !s.dropInvalid {
		return nil
	}
	var chains []Chain
	pre := s.pass(InInterface)
	if s.dropInvalid {
		chains = append(chains, Chain{Name: chainDrop, Rules: []Rule{do(Action{Verb: Drop})}})
		pre = append(pre, s.enter(jump(chainDrop, Match{Field: ConnState, Name: "invalid"}))...)
	}
	hook := func(kind, hook string, rules []Rule) Chain {
		return Chain{Name: hook, Base: Base{Type: kind, Hook: hook, Priority: priorityMangle}, Rules: rules}
	}
	if !s.tproxies() {
		return append(chains, hook("filter", hookPrerouting, pre))
	}
	marked := exactly(PacketMark, s.tproxy.mark)
	for _, nic := range s.virt {
		pre = append(pre, ret(Match{Field: InInterface, Name: nic})) // outbound, which nat captures
	}
	pre = append(pre, s.enter(
		jump(chainInbound, tcp),
		// What gets here with the mark is the proxy's own call in its caller's name: the
		// application's answers must find back to it.
		do(Action{Verb: SaveMark}, tcp, marked))...)
	return append(chains,
		Chain{Name: chainDivert, Rules: []Rule{do(Action{Verb: SetMark, Mark: s.tproxy.mark}), do(Action{Verb: Accept})}},
		Chain{Name: chainTProxy, Rules: s.tproxyRules()},
		Chain{Name: chainInbound, Rules: s.divertRules()},
		hook("filter", hookPrerouting, pre),
		// Of type route: an answer whose mark is restored has another way than it had.
		hook("route", hookOutput, slices.Concat(s.pass(OutInterface), s.markRules())),
	)
}

// tproxies says whether anything is captured by TPROXY.
func (s settings) tproxies() bool { return s.tproxy.on && s.inbound.some() }

func (s settings) tproxyRules() (rules []Rule) {
	for _, ip := range s.protocols {
		rules = append(rules, do(Action{Verb: TProxy, Port: s.ports.inbound, Mark: s.tproxy.mark},
			Match{Field: Destination, Not: true, Prefix: ip.loopback}, tcp))
	}
	return rules
}

// divertRules choose among what arrives. On loopback only the proxy's calls to its own Pod count.
func (s settings) divertRules() []Rule {
	rules := []Rule{ret(tcp, exactly(PacketMark, s.tproxy.mark))}
	for _, ip := range s.protocols {
		rules = append(rules, ret(tcp, Match{Field: Source, Prefix: ip.passthrough}, viaLoopback))
	}
	rules = append(rules, ret(tcp, viaLoopback, not(exactly(PacketMark, s.selfMark()))))
	known := Match{Field: ConnState, Name: "related,established"}
	if !s.inbound.all {
		for _, ports := range s.inbound.ports {
			rules = append(rules,
				jump(chainDivert, number(TCPPort, ports), known),
				jump(chainTProxy, number(TCPPort, ports)))
		}
		return rules
	}
	for _, ports := range s.inbound.excludePorts {
		rules = append(rules, ret(number(TCPPort, ports)))
	}
	return append(rules, jump(chainDivert, tcp, known), jump(chainTProxy, tcp))
}

// selfMark is on the proxy's calls to its own Pod: its own, if it has one.
func (s settings) selfMark() uint32 {
	if s.proxy[0].Field == PacketMark {
		return s.proxy[0].From
	}
	return outboundMark
}

// markRules mark what this host sends.
func (s settings) markRules() (rules []Rule) {
	marked := exactly(PacketMark, s.tproxy.mark)
	rules = append(rules, ret(tcp, onLoopback, marked))
	for _, owner := range s.proxy {
		if owner.Field == PacketMark {
			continue
		}
		for _, ip := range s.protocols {
			rules = append(rules, do(Action{Verb: SetMark, Mark: outboundMark},
				Match{Field: Destination, Not: true, Prefix: ip.loopback}, tcp, onLoopback, owner))
		}
	}
	rules = append(rules, do(Action{Verb: RestoreMark}, tcp, exactly(ConnMark, s.tproxy.mark)))
	for i := range rules {
		rules[i] = s.enter(rules[i])[0]
	}
	return rules
}

// rawChains keep the agent's own questions apart from those that it answers, in the tracking of
// connections. [agent 1.15; N18]
func (s settings) rawChains() []Chain {
	if !s.dns.on {
		return nil
	}
	zone := func(n uint32, m ...Match) Rule { return do(Action{Verb: SetZone, Mark: n}, m...) }
	var out, in []Rule
	for _, owner := range s.proxy {
		out = append(out,
			zone(zoneProxy, exactly(UDPPort, 53), owner),
			zone(zoneApplication, exactly(UDPSource, portDNS), owner))
	}
	for _, to := range s.resolvers(Destination) {
		out = append(out, zone(zoneApplication, append([]Match{exactly(UDPPort, 53)}, to...)...))
	}
	for _, from := range s.resolvers(Source) {
		in = append(in, zone(zoneProxy, append([]Match{exactly(UDPSource, 53)}, from...)...))
	}
	hook := func(hook, chain string) Chain {
		return Chain{Name: hook, Base: Base{Type: "filter", Hook: hook, Priority: priorityRaw}, Rules: s.enter(jump(chain))}
	}
	chains := []Chain{{Name: chainOutputDNS, Rules: out}}
	if len(in) > 0 {
		chains = append(chains, Chain{Name: chainInbound, Rules: in}, hook(hookPrerouting, chainInbound))
	}
	return append(chains, hook(hookOutput, chainOutputDNS))
}
