package capture

import (
	"fmt"
	"slices"
	"strings"
)

// ourChains are the names under which capture ever made chains, here and by the drop-in.
var ourChains = []string{
	"ISTIO_INBOUND", "ISTIO_REDIRECT", "ISTIO_IN_REDIRECT", "ISTIO_OUTPUT", "ISTIO_OUTPUT_DNS",
	"ISTIO_DIVERT", "ISTIO_TPROXY", "ISTIO_DROP", chainGuard,
}

// chainGuard drops new connections while rules are replaced.
const chainGuard = "ISTIO_GUARD"

// xtableNames are the tables that capture uses, in the order of a change; filter has the guard.
var xtableNames = []string{"mangle", "nat", "raw", "filter"}

// table is what was saved of a table, or an empty one.
func (s saved) table(name string) savedTable {
	for _, t := range s {
		if t.name == name {
			return t
		}
	}
	return savedTable{name: name}
}

// empty says whether nobody has any rule or chain of their own.
func (s saved) empty() bool {
	return !slices.ContainsFunc(s, func(t savedTable) bool {
		return len(t.rules) > 0 || slices.ContainsFunc(t.chains, func(c string) bool { return t.policies[c] == "-" })
	})
}

// mine are the chains of a table that are ours.
func (t savedTable) mine() (chains []string) {
	for _, c := range t.chains {
		if slices.Contains(ourChains, c) {
			chains = append(chains, c)
		}
	}
	return chains
}

// guests are our rules in chains that are not ours. Some say so, by a jump to a chain of ours. The
// others are known by what our chains say: which interfaces are excluded, which marks are set. A
// rule of the same words that somebody else added in our presence can't be told apart; s are all
// tables, wanted are rules that are asked for now.
func (t savedTable) guests(s saved, wanted []xrule) (rules []savedRule) {
	ours := slices.Collect(func(yield func(string) bool) {
		for _, x := range wanted {
			if !slices.Contains(ourChains, x.chain) && !yield(x.chain+" "+x.canonical()) {
				return
			}
		}
	})
	known := s.signs()
	for i, r := range t.rules {
		switch {
		case slices.Contains(ourChains, r.chain):
		case slices.Contains(ourChains, target(r.canon)),
			slices.Contains(ours, r.chain+" "+r.canon),
			known.marks(t.name, r),
			known.passing(t, i):
			rules = append(rules, r)
		}
	}
	return rules
}

// target is where a rule jumps to.
func target(canon string) string {
	for part := range strings.SplitSeq(" "+canon, " -") {
		if name, ok := strings.CutPrefix(part, "j "); ok {
			return name
		}
		if name, ok := strings.CutPrefix(part, "g "); ok {
			return name
		}
	}
	return ""
}

// signs are what our own chains say of our other rules.
type signs struct {
	present bool
	mark    string
}

func (s saved) signs() (found signs) {
	for _, t := range s {
		for _, c := range t.mine() {
			found.present = found.present || c != chainGuard
		}
		for _, r := range t.rules {
			if mark, ok := strings.CutPrefix(r.canon, "--set-mark "); ok && r.chain == "ISTIO_DIVERT" {
				found.mark, _, _ = strings.Cut(mark, " ")
			}
		}
	}
	return found
}

// marks recognizes what TPROXY adds to the kernel's own chains.
func (k signs) marks(table string, r savedRule) bool {
	if table != "mangle" || k.mark == "" {
		return false
	}
	inner := map[string][]string{
		xPrerouting: {"--mark " + k.mark + " --save-mark -j CONNMARK -p tcp"},
		xOutput: {
			"--mark " + k.mark + " --restore-mark -j CONNMARK -p tcp",
			"--mark " + k.mark + " -j RETURN -o lo -p tcp",
		},
	}
	if slices.Contains(inner[r.chain], r.canon) {
		return true
	}
	return r.chain == xOutput && target(r.canon) == "MARK" && strings.Contains(r.canon, " -o lo -p tcp") && strings.HasPrefix(r.canon, "! -d ") &&
		strings.Contains(r.canon, fmt.Sprintf("--set-mark %d", outboundMark))
}

// passes says whether a rule does nothing but let an interface's packets go by, and which one's.
func passes(r savedRule) (nic string, ok bool) {
	tokens := strings.Fields(r.canon)
	option := map[string]string{xPrerouting: "-i", xOutput: "-o"}[r.chain]
	for i := 0; i+1 < len(tokens); i += 2 {
		switch {
		case tokens[i] == option:
			nic = tokens[i+1]
		case tokens[i] == "-j" && tokens[i+1] == "RETURN", tokens[i] == "-d" && option == "-i":
		default:
			return "", false
		}
	}
	return nic, nic != "" && target(r.canon) == "RETURN"
}

// passing says whether such a rule is ours: others for its interface jump to us; or it belongs to a
// run of them that a jump to us follows, or that ends the chain where no such jump is before it.
// Nobody else's rules are taken for ours by that unless they look the same and stand among ours.
func (k signs) passing(t savedTable, i int) bool {
	nic, ok := passes(t.rules[i])
	if !ok || !k.present {
		return false
	}
	var chain []savedRule
	at := 0
	for j, r := range t.rules {
		if r.chain == t.rules[i].chain {
			chain = append(chain, r)
		}
		if j == i {
			at = len(chain) - 1
		}
	}
	jump := func(r savedRule) bool { return slices.Contains(ourChains, target(r.canon)) }
	virtual := func(r savedRule) bool {
		return jump(r) && strings.HasPrefix(r.canon, "-d ") || strings.HasPrefix(r.canon, "-i ") && jump(r)
	}
	if slices.ContainsFunc(chain, func(r savedRule) bool { return virtual(r) && strings.Contains(r.canon+" ", "-i "+nic+" ") }) {
		return true
	}
	if strings.Contains(t.rules[i].canon, "-d ") { // what virtual machines may reach is excluded for us too
		excluded := strings.Replace(t.rules[i].canon, " -i "+nic, "", 1)
		return slices.ContainsFunc(t.rules, func(r savedRule) bool { return r.chain == "ISTIO_OUTPUT" && r.canon == excluded })
	}
	for _, r := range chain[at:] {
		if _, ok := passes(r); !ok {
			return jump(r) || k.marks(t.name, r)
		}
	}
	return !slices.ContainsFunc(chain[:at], func(r savedRule) bool { return jump(r) && !virtual(r) })
}

// canonical is the rule as the kernel would have it saved: owners by number.
func (x xrule) canonical() string {
	rule := Rule{Matches: slices.Clone(x.rule.Matches), Action: x.rule.Action}
	for i, m := range rule.Matches {
		if m.Field == SocketUID || m.Field == SocketGID {
			rule.Matches[i].Name = ""
		}
	}
	return canonical(words(x.table, x.chain, rule))
}

// drift lists how the kernel's rules differ from those wanted, and says whether there are any of
// ours at all. Rules of others don't count.
func (s saved) drift(wanted []xtable) (differences []string, residue bool) {
	for _, name := range xtableNames {
		have, want := s.table(name), wantedTable(wanted, name)
		guests := have.guests(s, want.rules)
		residue = residue || len(have.mine()) > 0 || len(guests) > 0
		for _, c := range have.mine() {
			if !slices.Contains(want.chains, c) {
				differences = append(differences, fmt.Sprintf("table %s has the chain %s", name, c))
			}
		}
		for _, c := range want.chains {
			if !slices.Contains(have.chains, c) {
				differences = append(differences, fmt.Sprintf("table %s has no chain %s", name, c))
			}
		}
		for _, chain := range append([]string{xPrerouting, xOutput}, want.chains...) {
			differences = append(differences, compare(name, chain, have.of(chain, guests), want.of(chain))...)
		}
	}
	return differences, residue
}

func wantedTable(tables []xtable, name string) xtable {
	for _, t := range tables {
		if t.name == name {
			return t
		}
	}
	return xtable{name: name}
}

// of is a chain of ours, or our part of another one.
func (t savedTable) of(chain string, guests []savedRule) (rules []string) {
	from := t.rules
	if !slices.Contains(ourChains, chain) {
		from = guests
	}
	for _, r := range from {
		if r.chain == chain {
			rules = append(rules, r.canon)
		}
	}
	return rules
}

// of is a chain's rules in the order that they will have.
func (t xtable) of(chain string) (rules []string) {
	for _, x := range t.rules {
		if x.chain != chain {
			continue
		}
		at := len(rules)
		if x.at > 0 {
			at = x.at - 1
		}
		rules = slices.Insert(rules, at, x.canonical())
	}
	return rules
}

// compare names the first place where two lists of rules part.
func compare(table, chain string, have, want []string) []string {
	for i := range max(len(have), len(want)) {
		where := fmt.Sprintf("rule %d of %s in table %s", i+1, chain, table)
		switch {
		case i >= len(have):
			return []string{fmt.Sprintf("%s is missing: %s", where, want[i])}
		case i >= len(want):
			return []string{fmt.Sprintf("%s is too many: %s", where, have[i])}
		case have[i] != want[i]:
			return []string{fmt.Sprintf("%s is %s instead of %s", where, have[i], want[i])}
		}
	}
	return nil
}

// change is the text that makes iptables-restore --noflush put the wanted rules in the place of
// ours, each table at once. It is empty where there is nothing to do.
func (s saved) change(wanted []xtable) string {
	var b strings.Builder
	for _, name := range xtableNames {
		have, want := s.table(name), wantedTable(wanted, name)
		guests := have.guests(s, want.rules)
		mine := slices.DeleteFunc(have.mine(), func(c string) bool { return c == chainGuard })
		guests = slices.DeleteFunc(guests, func(r savedRule) bool { return target(r.canon) == chainGuard })
		if len(want.rules)+len(guests)+len(mine) == 0 {
			continue
		}
		fmt.Fprintf(&b, "* %s\n", name)
		for _, c := range want.chains { // new, or emptied
			fmt.Fprintf(&b, ":%s - [0:0]\n", c)
		}
		gone := slices.DeleteFunc(mine, func(c string) bool { return slices.Contains(want.chains, c) })
		for _, c := range gone {
			fmt.Fprintf(&b, "-F %s\n", c)
		}
		for _, r := range guests {
			fmt.Fprintf(&b, "-D %s %s\n", r.chain, r.text)
		}
		for _, x := range want.rules {
			fmt.Fprintln(&b, x)
		}
		for _, c := range gone {
			fmt.Fprintf(&b, "-X %s\n", c)
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}

// foreign names firewalls among saved rules.
func (s saved) foreign(program string) (warnings []string) {
	for _, t := range s {
		for _, chain := range t.chains {
			switch {
			case strings.HasPrefix(chain, "ufw-") && !slices.Contains(warnings, ufwAdvice):
				warnings = append(warnings, ufwAdvice)
			case t.policies[chain] == "DROP" && chain != "FORWARD":
				what := map[string]string{"INPUT": "is meant for this host", xOutput: "leaves", xPrerouting: "arrives"}[chain]
				warnings = append(warnings, dropAdvice(fmt.Sprintf("chain %s of the table %s of %s", chain, t.name, program), what))
			}
		}
	}
	return warnings
}
