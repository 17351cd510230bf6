package capture

import (
	"fmt"
	"slices"
	"strings"
)

// Restore is the rules for one version of IP in the words of iptables-restore --noflush, and empty
// where that version is not captured. Tables, chains and rules come in the order, and in the
// spelling, that scripts know. [agent 1.15]
func (r Ruleset) Restore(ipv6 bool) string {
	var b strings.Builder
	for _, t := range r.xtables(ipv6) {
		fmt.Fprintf(&b, "* %s\n", t.name)
		for _, chain := range t.chains {
			fmt.Fprintf(&b, "-N %s\n", chain)
		}
		for _, rule := range t.rules {
			fmt.Fprintln(&b, rule)
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}

// xtable is a table as iptables has it: the chains of ours in the order of their creation, and the
// rules of all chains in the order of their addition.
type xtable struct {
	name   string
	chains []string
	rules  []xrule
}

// xrule is one rule. It is appended to its chain, or inserted if at is its place there, from 1.
type xrule struct {
	table, chain string
	at           int
	rule         Rule
	words        []string
}

// String is the rule as a line.
func (x xrule) String() string {
	if x.at > 0 {
		return fmt.Sprintf("-I %s %d %s", x.chain, x.at, strings.Join(x.words, " "))
	}
	return fmt.Sprintf("-A %s %s", x.chain, strings.Join(x.words, " "))
}

// Captures says whether connections of one version of IP come to our rules at all.
func (r Ruleset) Captures(ipv6 bool) bool {
	for _, t := range r.Tables {
		for _, c := range t.Chains {
			if c.Base.Hook != "" && slices.ContainsFunc(c.Rules, func(rule Rule) bool {
				return rule.Action.Verb == Jump && rule.sees(ipv6)
			}) {
				return true
			}
		}
	}
	return false
}

// sees says whether a packet of that version can match at all.
func (r Rule) sees(ipv6 bool) bool {
	for _, m := range r.Matches {
		switch m.Field {
		case Family:
			if (m.Name == "ipv6") == m.Not == ipv6 {
				return false
			}
		case Source, Destination:
			if m.Prefix.Addr().Is6() != ipv6 {
				return false
			}
		}
	}
	return true
}

// xtables turns tables of both versions into those of one.
func (r Ruleset) xtables(ipv6 bool) []xtable {
	if !r.Captures(ipv6) {
		return nil
	}
	var all []xtable
	for _, t := range r.Tables {
		x := &writer{table: strings.TrimPrefix(t.Name, "istio-proxy-"), left: map[string][]Rule{}}
		for _, c := range t.Chains {
			name := xname(c)
			if _, ok := x.left[name]; !ok {
				x.names = append(x.names, name)
			}
			x.left[name] = append(x.left[name], slices.DeleteFunc(slices.Clone(c.Rules), func(r Rule) bool { return !r.sees(ipv6) })...)
		}
		if _, dns := x.left[xOutputDNS]; dns && x.table == "nat" {
			x.left[xOutputDNS] = r.withOwners(x.left[xOutputDNS])
		}
		x.prune()
		x.virtual(t.machines())
		if xt := x.write(); len(xt.rules) > 0 {
			all = append(all, xt)
		}
	}
	return all
}

// withOwners adds to the rules for DNS what the drop-in has before those for UDP: the proxy's own
// questions return, again. Rules before the chain have let them pass already.
func (r Ruleset) withOwners(dns []Rule) []Rule {
	var own []Rule
	for _, t := range r.Tables {
		for _, c := range t.Chains {
			for _, rule := range c.Rules {
				if t.Name == tableRaw && c.Name == chainOutputDNS && rule.Action == (Action{Verb: SetZone, Mark: zoneProxy}) {
					own = append(own, Rule{Matches: rule.Matches, Action: Action{Verb: Return}})
				}
			}
		}
	}
	udp := leading(dns, func(r Rule) bool { return r.protocol() != "udp" })
	return slices.Insert(slices.Clone(dns), udp, own...)
}

// xname is a chain's name there: the kernel's own where it enters, in capitals where we jump.
func xname(c Chain) string {
	name := c.Name
	if c.Base.Hook != "" {
		name = c.Base.Hook
	}
	return strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// writer puts the rules of a table's chains into one order.
type writer struct {
	table string
	names []string
	left  map[string][]Rule
	done  []xrule
}

// prune drops chains that have no rules for this version of IP, and the jumps to them.
func (w *writer) prune() {
	for name, rules := range w.left {
		w.left[name] = slices.DeleteFunc(rules, func(r Rule) bool {
			return r.Action.Verb == Jump && len(w.left[xname(Chain{Name: r.Action.Chain})]) == 0
		})
	}
}

// step takes as many of a chain's next rules as take says.
type step struct {
	chain string
	take  func([]Rule) int
}

const (
	xPrerouting = "PREROUTING"
	xOutput     = "OUTPUT"
	xOutputDNS  = "ISTIO_OUTPUT_DNS"
)

// order is how rules of several chains follow each other: where the text of a dry run is compared,
// as the drop-in writes them. Within a chain the order never changes.
var order = map[string][]step{
	"nat": {
		{xPrerouting, interfaces}, {xOutput, interfaces}, {"ISTIO_INBOUND", one},
		{"ISTIO_REDIRECT", every}, {"ISTIO_IN_REDIRECT", every}, {xPrerouting, every}, {"ISTIO_INBOUND", every},
		{xOutput, every}, {"ISTIO_OUTPUT", until("istio-output-dns")}, {xOutputDNS, every}, {"ISTIO_OUTPUT", every},
	},
	"mangle": {
		{xPrerouting, interfaces}, {xOutput, interfaces}, {xPrerouting, until("istio-drop")}, {"ISTIO_DROP", every},
		{"ISTIO_DIVERT", every}, {"ISTIO_TPROXY", every}, {xPrerouting, until("istio-inbound")}, {"ISTIO_INBOUND", every},
		{xPrerouting, every}, {xOutput, every},
	},
	"raw": {{xOutput, every}, {xOutputDNS, owners}, {xPrerouting, every}},
}

func (w *writer) write() xtable {
	inserted := w.hold()
	for _, s := range order[w.table] {
		w.take(s.chain, s.take(w.left[s.chain]))
	}
	// What no step names: by turns, as resolvers have one rule in each of two chains.
	for more := true; more; {
		more = false
		for _, name := range w.names {
			if len(w.left[name]) > 0 {
				w.take(name, 1)
				more = true
			}
		}
	}
	w.done = append(w.done, inserted...)
	t := xtable{name: w.table, rules: w.done}
	for _, x := range w.done {
		if x.chain != xPrerouting && x.chain != xOutput && !slices.Contains(t.chains, x.chain) {
			t.chains = append(t.chains, x.chain)
		}
	}
	return t
}

// virtual inserts the rules for the interfaces of virtual machines, whose packets go to our chains,
// before those of others, each before the last one.
func (w *writer) virtual(nics []string) {
	rules := w.left[xPrerouting]
	n := leading(rules, func(r Rule) bool {
		return len(r.Matches) > 0 && slices.ContainsFunc(r.Matches, func(m Match) bool { return m.Field == InInterface && slices.Contains(nics, m.Name) })
	})
	for _, rule := range slices.Backward(rules[:n]) {
		w.done = append(w.done, xrule{w.table, xPrerouting, 1, rule, words(w.table, xPrerouting, rule)})
	}
	w.left[xPrerouting] = rules[n:]
}

// machines are the interfaces whose packets a hook's own rules send to our chains.
func (t Table) machines() (nics []string) {
	for _, c := range t.Chains {
		for _, r := range c.Rules {
			for _, m := range r.Matches {
				if c.Base.Hook != "" && r.Action.Verb == Jump && m.Field == InInterface {
					nics = append(nics, m.Name)
				}
			}
		}
	}
	return nics
}

// hold takes the rules that the drop-in inserts at the head of a chain once all else is there.
func (w *writer) hold() (inserted []xrule) {
	const chain = "ISTIO_INBOUND"
	if w.table != "mangle" {
		return nil
	}
	for len(w.left[chain]) > 0 && len(inserted) < 3 {
		rule := w.left[chain][0]
		if !slices.ContainsFunc(rule.Matches, func(m Match) bool { return m.Field == PacketMark || m.Field == InInterface }) {
			break
		}
		inserted = append(inserted, xrule{w.table, chain, len(inserted) + 1, rule, words(w.table, chain, rule)})
		w.left[chain] = w.left[chain][1:]
	}
	return inserted
}

func (w *writer) take(chain string, n int) {
	for _, rule := range w.left[chain][:n] {
		w.done = append(w.done, xrule{w.table, chain, 0, rule, words(w.table, chain, rule)})
	}
	w.left[chain] = w.left[chain][n:]
}

func every(rules []Rule) int { return len(rules) }

func one(rules []Rule) int { return min(1, len(rules)) }

// interfaces are the leading rules for a network interface and no more.
func interfaces(rules []Rule) int {
	return leading(rules, func(r Rule) bool {
		return len(r.Matches) == 1 && (r.Matches[0].Field == InInterface || r.Matches[0].Field == OutInterface)
	})
}

// owners are the leading rules for the proxy's own packets.
func owners(rules []Rule) int {
	return leading(rules, func(r Rule) bool {
		return slices.ContainsFunc(r.Matches, func(m Match) bool { return m.Field == SocketUID || m.Field == SocketGID || m.Field == SocketCgroup })
	})
}

func leading(rules []Rule, is func(Rule) bool) int {
	if n := slices.IndexFunc(rules, func(r Rule) bool { return !is(r) }); n >= 0 {
		return n
	}
	return len(rules)
}

// until is through the jump to a chain, or nothing if there is none.
func until(chain string) func([]Rule) int {
	return func(rules []Rule) int {
		return 1 + slices.IndexFunc(rules, func(r Rule) bool { return r.Action.Verb == Jump && r.Action.Chain == chain })
	}
}
