package plan

// rawChains put the agent's own DNS queries and those that it answers into different conntrack
// zones. [agent I52, N18]
func (s settings) rawChains() []Chain {
	if !s.dns.on {
		return nil
	}
	setZone := func(n uint32, m ...Match) Rule { return rule(Action{Verb: SetZone, Mark: n}, m...) }
	var out, in []Rule
	for _, owner := range s.proxy {
		out = append(out,
			setZone(ZoneProxy, exactly(UDPPort, 53), owner),
			setZone(zoneApplication, exactly(UDPSource, portDNS), owner))
	}
	for _, to := range s.resolvers(Destination) {
		out = append(out, setZone(zoneApplication, append([]Match{exactly(UDPPort, 53)}, to...)...))
	}
	for _, from := range s.resolvers(Source) {
		in = append(in, setZone(ZoneProxy, append([]Match{exactly(UDPSource, 53)}, from...)...))
	}
	hook := func(hook, chain string) Chain {
		return Chain{Name: hook, Base: Base{Type: "filter", Hook: hook, Priority: priorityRaw}, Rules: s.limitFamilies(jump(chain))}
	}
	chains := []Chain{{Name: ChainOutputDNS, Rules: out}}
	if len(in) > 0 {
		chains = append(chains, Chain{Name: chainInbound, Rules: in}, hook(hookPrerouting, chainInbound))
	}
	return append(chains, hook(hookOutput, ChainOutputDNS))
}
