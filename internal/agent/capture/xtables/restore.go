// Package xtables translates planned rules into the language of iptables and compares them with rules in force.
//
// [Restore] is the input for iptables-restore that puts a plan into force where there are no rules of
// capture yet. [ParseSaved] reads the output of iptables-save; a [Saved] says how it differs from a
// plan, and what input for iptables-restore replaces the rules of capture in it and no others.
// Everything here is a pure function of its arguments: package iptables runs the programs.
package xtables

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
)

// Restore returns the rules for one version of IP as input for iptables-restore --noflush, and the
// empty string where that version is not captured. The order and the syntax of tables, chains and
// rules are a contract with scripts. [agent 1.15]
func Restore(r plan.Ruleset, ipv6 bool) string {
	var b strings.Builder
	for _, t := range Tables(r, ipv6) {
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

// RestoreBoth returns Restore for IPv4, then for IPv6.
func RestoreBoth(r plan.Ruleset) string { return Restore(r, false) + Restore(r, true) }

// Table is a planned table as iptables has it: our chains in the order of their creation, and the
// rules of all chains in the order of their addition.
type Table struct {
	name   string
	chains []string
	rules  []tableRule
}

// Rules returns the number of the table's rules.
func (t Table) Rules() int { return len(t.rules) }

// tableRule is one rule. It is appended to its chain, or inserted if at is its position there, from 1.
type tableRule struct {
	table, chain string
	at           int
	rule         plan.Rule
	args         []string
}

func newTableRule(table, chain string, at int, r plan.Rule) tableRule {
	return tableRule{table, chain, at, r, ruleArgs(table, chain, r)}
}

// String returns the rule as a line.
func (t tableRule) String() string {
	if t.at > 0 {
		return fmt.Sprintf("-I %s %d %s", t.chain, t.at, strings.Join(t.args, " "))
	}
	return fmt.Sprintf("-A %s %s", t.chain, strings.Join(t.args, " "))
}

// Tables splits tables of both versions of IP into those of one; nil if that is not captured.
func Tables(r plan.Ruleset, ipv6 bool) []Table {
	if !r.Captures(ipv6) {
		return nil
	}
	var all []Table
	for _, t := range r.Tables {
		b := &tableBuilder{table: strings.TrimPrefix(t.Name, "istio-proxy-"), remaining: map[string][]plan.Rule{}}
		for _, c := range t.Chains {
			name := chainName(c)
			if _, ok := b.remaining[name]; !ok {
				b.chains = append(b.chains, name)
			}
			b.remaining[name] = append(b.remaining[name], slices.DeleteFunc(slices.Clone(c.Rules), func(r plan.Rule) bool { return !r.AppliesTo(ipv6) })...)
		}
		if _, dns := b.remaining[outputDNS]; dns && b.table == "nat" {
			b.remaining[outputDNS] = withOwners(r, b.remaining[outputDNS])
		}
		b.dropEmptyChains()
		b.addVirtual(virtualInterfaces(t))
		if built := b.build(); len(built.rules) > 0 {
			all = append(all, built)
		}
	}
	return all
}

// withOwners adds to the rules for DNS what Istio has before those for UDP: the proxy's own queries
// return. Earlier rules have excluded them already, so this changes nothing but the text.
func withOwners(r plan.Ruleset, dns []plan.Rule) []plan.Rule {
	var own []plan.Rule
	for _, t := range r.Tables {
		for _, c := range t.Chains {
			for _, rule := range c.Rules {
				if t.Name == plan.TableRaw && c.Name == plan.ChainOutputDNS && rule.Action == (plan.Action{Verb: plan.SetZone, Mark: plan.ZoneProxy}) {
					own = append(own, plan.Rule{Matches: rule.Matches, Action: plan.Action{Verb: plan.Return}})
				}
			}
		}
	}
	udp := leading(dns, func(r plan.Rule) bool { return protocol(r) != "udp" })
	return slices.Insert(slices.Clone(dns), udp, own...)
}

// chainName returns a chain's name in iptables: the kernel's own at a hook, in capitals where rules jump.
func chainName(c plan.Chain) string {
	if c.Base.Hook != "" {
		return upper(c.Base.Hook)
	}
	return upper(c.Name)
}

func upper(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }

const (
	prerouting = "PREROUTING"
	output     = "OUTPUT"
	outputDNS  = "ISTIO_OUTPUT_DNS"
)

// tableBuilder puts the rules of a table's chains into one order.
type tableBuilder struct {
	table  string
	chains []string
	// remaining are the rules of each chain that are not in rules yet.
	remaining map[string][]plan.Rule
	rules     []tableRule
}

// dropEmptyChains drops the jumps to chains that have no rules for this version of IP; such chains
// are not created.
func (b *tableBuilder) dropEmptyChains() {
	for name, rules := range b.remaining {
		b.remaining[name] = slices.DeleteFunc(rules, func(r plan.Rule) bool {
			return r.Action.Verb == plan.Jump && len(b.remaining[upper(r.Action.Chain)]) == 0
		})
	}
}

// batch is a number of consecutive rules of one chain, counted from the first that remains.
type batch struct {
	chain string
	count func([]plan.Rule) int
}

// istioOrder is the order in which Istio writes the rules of several chains, for scripts that compare
// the text of a dry run. It never changes the order within a chain.
var istioOrder = map[string][]batch{
	"nat": {
		{prerouting, interfaceRules}, {output, interfaceRules}, {"ISTIO_INBOUND", one},
		{"ISTIO_REDIRECT", every}, {"ISTIO_IN_REDIRECT", every}, {prerouting, every}, {"ISTIO_INBOUND", every},
		{output, every}, {"ISTIO_OUTPUT", throughJump("istio-output-dns")}, {outputDNS, every}, {"ISTIO_OUTPUT", every},
	},
	"mangle": {
		{prerouting, interfaceRules}, {output, interfaceRules}, {prerouting, throughJump("istio-drop")}, {"ISTIO_DROP", every},
		{"ISTIO_DIVERT", every}, {"ISTIO_TPROXY", every}, {prerouting, throughJump("istio-inbound")}, {"ISTIO_INBOUND", every},
		{prerouting, every}, {output, every},
	},
	"raw": {{output, every}, {outputDNS, ownerRules}, {prerouting, every}},
}

func (b *tableBuilder) build() Table {
	inserted := b.takeInserted()
	for _, next := range istioOrder[b.table] {
		b.append(next.chain, next.count(b.remaining[next.chain]))
	}
	// What istioOrder does not list: one rule of each chain in turn, as resolvers have one rule in
	// each of two chains.
	for more := true; more; {
		more = false
		for _, name := range b.chains {
			if len(b.remaining[name]) > 0 {
				b.append(name, 1)
				more = true
			}
		}
	}
	b.rules = append(b.rules, inserted...)
	t := Table{name: b.table, rules: b.rules}
	for _, r := range b.rules {
		if r.chain != prerouting && r.chain != output && !slices.Contains(t.chains, r.chain) {
			t.chains = append(t.chains, r.chain)
		}
	}
	return t
}

// addVirtual inserts the rules for the interfaces of virtual machines at the head of PREROUTING,
// each before the previous one.
func (b *tableBuilder) addVirtual(nics []string) {
	rules := b.remaining[prerouting]
	n := leading(rules, func(r plan.Rule) bool {
		return slices.ContainsFunc(r.Matches, func(m plan.Match) bool { return m.Field == plan.InInterface && slices.Contains(nics, m.Name) })
	})
	for _, rule := range slices.Backward(rules[:n]) {
		b.rules = append(b.rules, newTableRule(b.table, prerouting, 1, rule))
	}
	b.remaining[prerouting] = rules[n:]
}

// virtualInterfaces returns the interfaces whose packets a hook's own rules send to our chains.
func virtualInterfaces(t plan.Table) (nics []string) {
	for _, c := range t.Chains {
		for _, r := range c.Rules {
			for _, m := range r.Matches {
				if c.Base.Hook != "" && r.Action.Verb == plan.Jump && m.Field == plan.InInterface {
					nics = append(nics, m.Name)
				}
			}
		}
	}
	return nics
}

// takeInserted removes from the remaining rules those that Istio inserts at the head of a chain after
// all others were appended.
func (b *tableBuilder) takeInserted() (inserted []tableRule) {
	const chain = "ISTIO_INBOUND"
	if b.table != "mangle" {
		return nil
	}
	for len(b.remaining[chain]) > 0 && len(inserted) < 3 {
		rule := b.remaining[chain][0]
		if !slices.ContainsFunc(rule.Matches, func(m plan.Match) bool { return m.Field == plan.PacketMark || m.Field == plan.InInterface }) {
			break
		}
		inserted = append(inserted, newTableRule(b.table, chain, len(inserted)+1, rule))
		b.remaining[chain] = b.remaining[chain][1:]
	}
	return inserted
}

// append moves the first n remaining rules of a chain to the result.
func (b *tableBuilder) append(chain string, n int) {
	for _, rule := range b.remaining[chain][:n] {
		b.rules = append(b.rules, newTableRule(b.table, chain, 0, rule))
	}
	b.remaining[chain] = b.remaining[chain][n:]
}

func every(rules []plan.Rule) int { return len(rules) }

func one(rules []plan.Rule) int { return min(1, len(rules)) }

// interfaceRules counts the leading rules that match a network interface and nothing else.
func interfaceRules(rules []plan.Rule) int {
	return leading(rules, func(r plan.Rule) bool {
		return len(r.Matches) == 1 && (r.Matches[0].Field == plan.InInterface || r.Matches[0].Field == plan.OutInterface)
	})
}

// ownerRules counts the leading rules for the proxy's own packets.
func ownerRules(rules []plan.Rule) int {
	return leading(rules, func(r plan.Rule) bool {
		return slices.ContainsFunc(r.Matches, func(m plan.Match) bool {
			return m.Field == plan.SocketUID || m.Field == plan.SocketGID || m.Field == plan.SocketCgroup
		})
	})
}

func leading(rules []plan.Rule, is func(plan.Rule) bool) int {
	if n := slices.IndexFunc(rules, func(r plan.Rule) bool { return !is(r) }); n >= 0 {
		return n
	}
	return len(rules)
}

// throughJump counts the rules up to and including the jump to a chain, or none if there is no such jump.
func throughJump(chain string) func([]plan.Rule) int {
	return func(rules []plan.Rule) int {
		return 1 + slices.IndexFunc(rules, func(r plan.Rule) bool { return r.Action.Verb == plan.Jump && r.Action.Chain == chain })
	}
}
