package xtables

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
)

// guardChain drops new connections while rules are replaced.
const guardChain = "ISTIO_GUARD"

var (
	chainNames = []string{
		"ISTIO_INBOUND", "ISTIO_REDIRECT", "ISTIO_IN_REDIRECT", "ISTIO_OUTPUT", "ISTIO_OUTPUT_DNS",
		"ISTIO_DIVERT", "ISTIO_TPROXY", "ISTIO_DROP", guardChain,
	}
	tableNames = []string{"mangle", "nat", "raw", "filter"}
)

// ChainNames lists the names of all chains that capture ever made in iptables, ours and Istio's.
func ChainNames() []string { return slices.Clone(chainNames) }

// TableNames lists the tables that capture uses, in the order of a change; filter has the guard.
func TableNames() []string { return slices.Clone(tableNames) }

func isOurChain(name string) bool { return slices.Contains(chainNames, name) }

// table returns a saved table, or an empty one.
func (s Saved) table(name string) savedTable {
	for _, t := range s {
		if t.name == name {
			return t
		}
	}
	return savedTable{name: name}
}

// Empty reports whether there are no rules at all, and no chains but the kernel's own.
func (s Saved) Empty() bool {
	return !slices.ContainsFunc(s, func(t savedTable) bool {
		return len(t.rules) > 0 || slices.ContainsFunc(t.chains, func(c string) bool { return t.policies[c] == "-" })
	})
}

// ourChains returns the chains of a table that capture made.
func (t savedTable) ourChains() (chains []string) {
	for _, c := range t.chains {
		if isOurChain(c) {
			chains = append(chains, c)
		}
	}
	return chains
}

// injectedRules returns the rules of capture in chains that are not ours. Some are recognized by a jump to
// one of our chains, the others by what our chains contain: which interfaces are excluded, which marks
// are set. An equal rule of another program cannot be distinguished. all are all tables, wanted are the
// planned rules.
func (t savedTable) injectedRules(all Saved, wanted []tableRule) (rules []savedRule) {
	var known []string
	for _, w := range wanted {
		if !isOurChain(w.chain) {
			known = append(known, w.chain+" "+w.canonical())
		}
	}
	installed := all.installation()
	for i, r := range t.rules {
		if isOurChain(r.chain) {
			continue
		}
		if isOurChain(target(r.canonical)) || slices.Contains(known, r.chain+" "+r.canonical) ||
			installed.isMarkRule(t.name, r) || installed.isInterfaceRule(t, i) {
			rules = append(rules, r)
		}
	}
	return rules
}

// target returns the chain or target of a rule's jump.
func target(canonical string) string {
	for part := range strings.SplitSeq(" "+canonical, " -") {
		if name, ok := strings.CutPrefix(part, "j "); ok {
			return name
		}
		if name, ok := strings.CutPrefix(part, "g "); ok {
			return name
		}
	}
	return ""
}

// installation describes an installed capture, as far as our chains show it.
type installation struct {
	// present says that there is a chain of ours other than the guard.
	present bool
	// tproxyMark is the mark that TPROXY sets, in decimals; empty without TPROXY.
	tproxyMark string
}

func (s Saved) installation() (found installation) {
	for _, t := range s {
		for _, c := range t.ourChains() {
			found.present = found.present || c != guardChain
		}
		for _, r := range t.rules {
			if mark, ok := strings.CutPrefix(r.canonical, "--set-mark "); ok && r.chain == "ISTIO_DIVERT" {
				found.tproxyMark, _, _ = strings.Cut(mark, " ")
			}
		}
	}
	return found
}

// isMarkRule recognizes the rules that TPROXY adds to the kernel's own chains.
func (i installation) isMarkRule(table string, r savedRule) bool {
	if table != "mangle" || i.tproxyMark == "" {
		return false
	}
	added := map[string][]string{
		prerouting: {"--mark " + i.tproxyMark + " --save-mark -j CONNMARK -p tcp"},
		output: {
			"--mark " + i.tproxyMark + " --restore-mark -j CONNMARK -p tcp",
			"--mark " + i.tproxyMark + " -j RETURN -o lo -p tcp",
		},
	}
	if slices.Contains(added[r.chain], r.canonical) {
		return true
	}
	return r.chain == output && target(r.canonical) == "MARK" && strings.Contains(r.canonical, " -o lo -p tcp") &&
		strings.HasPrefix(r.canonical, "! -d ") && strings.Contains(r.canonical, fmt.Sprintf("--set-mark %d", plan.OutboundMark))
}

// excludedInterface reports whether a rule does nothing but exclude what an interface carries, and
// which interface that is.
func excludedInterface(r savedRule) (nic string, ok bool) {
	tokens := strings.Fields(r.canonical)
	option := map[string]string{prerouting: "-i", output: "-o"}[r.chain]
	for i := 0; i+1 < len(tokens); i += 2 {
		switch {
		case tokens[i] == option:
			nic = tokens[i+1]
		case tokens[i] == "-j" && tokens[i+1] == "RETURN", tokens[i] == "-d" && option == "-i":
		default:
			return "", false
		}
	}
	return nic, nic != "" && target(r.canonical) == "RETURN"
}

// isInterfaceRule reports whether rule number at of a table excludes an interface and is ours: other
// rules for its interface jump to our chains; or it is in a run of such rules that is followed by a
// jump to our chains, or that ends a chain without such a jump. Other rules are mistaken for ours only
// if they are equal and between ours.
func (i installation) isInterfaceRule(t savedTable, at int) bool {
	r := t.rules[at]
	nic, ok := excludedInterface(r)
	if !ok || !i.present {
		return false
	}
	var before, from []savedRule // the rules of its chain, from is those from it on
	for j, other := range t.rules {
		switch {
		case other.chain != r.chain:
		case j < at:
			before = append(before, other)
		default:
			from = append(from, other)
		}
	}
	jumps := func(r savedRule) bool { return isOurChain(target(r.canonical)) }
	virtual := func(r savedRule) bool {
		return jumps(r) && (strings.HasPrefix(r.canonical, "-d ") || strings.HasPrefix(r.canonical, "-i "))
	}
	if slices.ContainsFunc(slices.Concat(before, from), func(r savedRule) bool {
		return virtual(r) && strings.Contains(r.canonical+" ", "-i "+nic+" ")
	}) {
		return true
	}
	if strings.Contains(r.canonical, "-d ") { // destinations that are excluded for virtual machines are excluded for this host too
		excluded := strings.Replace(r.canonical, " -i "+nic, "", 1)
		return slices.ContainsFunc(t.rules, func(r savedRule) bool { return r.chain == "ISTIO_OUTPUT" && r.canonical == excluded })
	}
	for _, r := range from {
		if _, ok := excludedInterface(r); !ok {
			return jumps(r) || i.isMarkRule(t.name, r)
		}
	}
	return !slices.ContainsFunc(before, func(r savedRule) bool { return jumps(r) && !virtual(r) })
}

// canonical returns the rule as iptables-save prints it: with numeric owners.
func (t tableRule) canonical() string {
	rule := plan.Rule{Matches: slices.Clone(t.rule.Matches), Action: t.rule.Action}
	for i, m := range rule.Matches {
		if m.Field == plan.SocketUID || m.Field == plan.SocketGID {
			rule.Matches[i].Name = ""
		}
	}
	return canonical(ruleArgs(t.table, t.chain, rule))
}

// Differences lists how the rules of capture in s differ from those wanted, each as a sentence, and
// reports whether there are any rules of capture at all. Other rules are ignored.
func (s Saved) Differences(wanted []Table) (differences []string, present bool) {
	for _, name := range tableNames {
		have, want := s.table(name), find(wanted, name)
		injected := have.injectedRules(s, want.rules)
		present = present || len(have.ourChains()) > 0 || len(injected) > 0
		for _, c := range have.ourChains() {
			if !slices.Contains(want.chains, c) {
				differences = append(differences, fmt.Sprintf("table %s has the chain %s", name, c))
			}
		}
		for _, c := range want.chains {
			if !slices.Contains(have.chains, c) {
				differences = append(differences, fmt.Sprintf("table %s has no chain %s", name, c))
			}
		}
		for _, chain := range append([]string{prerouting, output}, want.chains...) {
			differences = append(differences, compare(name, chain, have.rulesOf(chain, injected), want.rulesOf(chain))...)
		}
	}
	return differences, present
}

func find(tables []Table, name string) Table {
	for _, t := range tables {
		if t.name == name {
			return t
		}
	}
	return Table{name: name}
}

// rulesOf returns the rules of a chain of ours, or those of capture in another chain.
func (t savedTable) rulesOf(chain string, injected []savedRule) (rules []string) {
	from := t.rules
	if !isOurChain(chain) {
		from = injected
	}
	for _, r := range from {
		if r.chain == chain {
			rules = append(rules, r.canonical)
		}
	}
	return rules
}

// rulesOf returns a chain's rules in the order that they will have.
func (t Table) rulesOf(chain string) (rules []string) {
	for _, r := range t.rules {
		if r.chain != chain {
			continue
		}
		at := len(rules)
		if r.at > 0 {
			at = r.at - 1
		}
		rules = slices.Insert(rules, at, r.canonical())
	}
	return rules
}

// compare names the first difference between two lists of rules.
func compare(table, chain string, have, want []string) []string {
	for i := range max(len(have), len(want)) {
		where := fmt.Sprintf("rule %d of %s in table %s", i+1, chain, table)
		switch {
		case i >= len(have):
			return []string{fmt.Sprintf("%s is missing: %s", where, want[i])}
		case i >= len(want):
			return []string{fmt.Sprintf("%s is not planned: %s", where, have[i])}
		case have[i] != want[i]:
			return []string{fmt.Sprintf("%s is %s instead of %s", where, have[i], want[i])}
		}
	}
	return nil
}

// Change returns input for iptables-restore --noflush that replaces the rules of capture in s by the
// wanted ones, each table atomically. It is empty where there is nothing to do.
func (s Saved) Change(wanted []Table) string {
	var b strings.Builder
	for _, name := range tableNames {
		have, want := s.table(name), find(wanted, name)
		injected := have.injectedRules(s, want.rules)
		chains := slices.DeleteFunc(have.ourChains(), func(c string) bool { return c == guardChain })
		injected = slices.DeleteFunc(injected, func(r savedRule) bool { return target(r.canonical) == guardChain })
		if len(want.rules)+len(injected)+len(chains) == 0 {
			continue
		}
		fmt.Fprintf(&b, "* %s\n", name)
		for _, c := range want.chains { // created, or emptied
			fmt.Fprintf(&b, ":%s - [0:0]\n", c)
		}
		obsolete := slices.DeleteFunc(chains, func(c string) bool { return slices.Contains(want.chains, c) })
		for _, c := range obsolete {
			fmt.Fprintf(&b, "-F %s\n", c)
		}
		for _, r := range injected {
			fmt.Fprintf(&b, "-D %s %s\n", r.chain, r.text)
		}
		for _, r := range want.rules {
			fmt.Fprintln(&b, r)
		}
		for _, c := range obsolete {
			fmt.Fprintf(&b, "-X %s\n", c)
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}

// Guard is input for iptables-restore --noflush that drops new connections and DNS queries, which clients
// retry, until the guard is removed. Packets of existing connections are not affected.
const Guard = "* filter\n:" + guardChain + " - [0:0]\n" +
	"-A " + guardChain + " -p tcp -m conntrack --ctstate NEW -j DROP\n" +
	"-A " + guardChain + " -p udp --dport 53 -j DROP\n" +
	"-I INPUT 1 -j " + guardChain + "\n-I OUTPUT 1 -j " + guardChain + "\nCOMMIT\n"

// Guarded reports whether a [Guard] is in force.
func (s Saved) Guarded() bool { return slices.Contains(s.table("filter").chains, guardChain) }

// Unguard returns input for iptables-restore --noflush that removes all guards, however many an
// interrupted change left. It is empty where there is none.
func (s Saved) Unguard() string {
	if !s.Guarded() {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "* filter\n-F %s\n", guardChain)
	for _, r := range s.table("filter").rules {
		if target(r.canonical) == guardChain {
			fmt.Fprintf(&b, "-D %s %s\n", r.chain, r.text)
		}
	}
	fmt.Fprintf(&b, "-X %s\nCOMMIT\n", guardChain)
	return b.String()
}

// Chain is a chain in the kernel that is not ours.
type Chain struct {
	Table, Name string
	// Drops says that the chain's policy is to drop.
	Drops bool
}

// OtherChains lists the chains that are not ours.
func (s Saved) OtherChains() (chains []Chain) {
	for _, t := range s {
		for _, c := range t.chains {
			if !isOurChain(c) {
				chains = append(chains, Chain{Table: t.name, Name: c, Drops: t.policies[c] == "DROP"})
			}
		}
	}
	return chains
}
