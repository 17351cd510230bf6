package plan

import "slices"

// mangleChains drop invalid packets and, in the mode TPROXY, capture inbound packets without
// rewriting them, so that the proxy sees their source and destination. [agent I53]
func (s settings) mangleChains() []Chain {
	if !s.usesTProxy() && !s.dropInvalid {
		return nil
	}
	var chains []Chain
	pre := s.skipInterfaces(InInterface)
	if s.dropInvalid {
		chains = append(chains, Chain{Name: chainDrop, Rules: []Rule{rule(Action{Verb: Drop})}})
		pre = append(pre, s.limitFamilies(jump(chainDrop, Match{Field: ConnState, Name: "invalid"}))...)
	}
	hook := func(kind, hook string, rules []Rule) Chain {
		return Chain{Name: hook, Base: Base{Type: kind, Hook: hook, Priority: priorityMangle}, Rules: rules}
	}
	if !s.usesTProxy() {
		return append(chains, hook("filter", hookPrerouting, pre))
	}
	marked := exactly(PacketMark, s.tproxy.mark)
	for _, nic := range s.virtNICs {
		pre = append(pre, returnIf(Match{Field: InInterface, Name: nic})) // outbound, which nat captures
	}
	pre = append(pre, s.limitFamilies(
		jump(chainInbound, tcp),
		// A packet with the mark belongs to the proxy's own connection, made with its client's
		// source address: the application's answers must come back to the proxy.
		rule(Action{Verb: SaveMark}, tcp, marked))...)
	return append(chains,
		Chain{Name: chainDivert, Rules: []Rule{rule(Action{Verb: SetMark, Mark: s.tproxy.mark}), rule(Action{Verb: Accept})}},
		Chain{Name: chainTProxy, Rules: s.tproxyRules()},
		Chain{Name: chainInbound, Rules: s.divertRules()},
		hook("filter", hookPrerouting, pre),
		// The type route reroutes a response whose mark was restored.
		hook("route", hookOutput, slices.Concat(s.skipInterfaces(OutInterface), s.markRules())),
	)
}

// usesTProxy reports whether TPROXY captures anything.
func (s settings) usesTProxy() bool { return s.tproxy.on && s.inbound.capturesAny() }

func (s settings) tproxyRules() (rules []Rule) {
	for _, ip := range s.families {
		rules = append(rules, rule(Action{Verb: TProxy, Port: s.inboundPort, Mark: s.tproxy.mark},
			Match{Field: Destination, Not: true, Prefix: ip.loopback}, tcp))
	}
	return rules
}

// divertRules choose which arriving packets are captured; on loopback, only those of the proxy's
// calls to its own Pod.
func (s settings) divertRules() []Rule {
	rules := []Rule{returnIf(tcp, exactly(PacketMark, s.tproxy.mark))}
	for _, ip := range s.families {
		rules = append(rules, returnIf(tcp, Match{Field: Source, Prefix: ip.passthrough}, viaLoopback))
	}
	rules = append(rules, returnIf(tcp, viaLoopback, not(exactly(PacketMark, s.ownCallMark()))))
	tracked := Match{Field: ConnState, Name: "related,established"}
	if !s.inbound.all {
		for _, ports := range s.inbound.ports {
			rules = append(rules,
				jump(chainDivert, inRange(TCPPort, ports), tracked),
				jump(chainTProxy, inRange(TCPPort, ports)))
		}
		return rules
	}
	for _, ports := range s.inbound.excludePorts {
		rules = append(rules, returnIf(inRange(TCPPort, ports)))
	}
	return append(rules, jump(chainDivert, tcp, tracked), jump(chainTProxy, tcp))
}

// ownCallMark returns the mark on the proxy's calls to its own Pod: the proxy's own mark, if it has one.
func (s settings) ownCallMark() uint32 {
	if s.proxy[0].Field == PacketMark {
		return s.proxy[0].From
	}
	return OutboundMark
}

// markRules mark packets that this host sends.
func (s settings) markRules() (rules []Rule) {
	marked := exactly(PacketMark, s.tproxy.mark)
	rules = append(rules, returnIf(tcp, onLoopback, marked))
	for _, owner := range s.proxy {
		if owner.Field == PacketMark {
			continue
		}
		for _, ip := range s.families {
			rules = append(rules, rule(Action{Verb: SetMark, Mark: OutboundMark},
				Match{Field: Destination, Not: true, Prefix: ip.loopback}, tcp, onLoopback, owner))
		}
	}
	rules = append(rules, rule(Action{Verb: RestoreMark}, tcp, exactly(ConnMark, s.tproxy.mark)))
	for i := range rules {
		rules[i] = s.limitFamilies(rules[i])[0]
	}
	return rules
}
