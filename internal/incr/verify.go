package incr

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Mismatch is a kept value of which a rerun over the same rows and values found something else.
type Mismatch struct {
	Rule string
	Key  any
	// Value is set if the rerun returned another value.
	Value bool
	// Missing are the reads of the rerun that were not recorded, Extra the recorded ones that it did not
	// repeat, each as "table key", "table [bucket]" or "rule key".
	Missing, Extra []string
}

// String says which value is wrong, and why that may be.
func (m Mismatch) String() string {
	var found []string
	if m.Value {
		found = append(found, "another value")
	}
	if len(m.Missing) > 0 {
		found = append(found, "reads that were not recorded: "+strings.Join(m.Missing, ", "))
	}
	if len(m.Extra) > 0 {
		found = append(found, "not the recorded reads: "+strings.Join(m.Extra, ", "))
	}
	return fmt.Sprintf("rule %s of %v: a rerun over the same inputs found %s; the rule depends on what its Reader does not give it", m.Rule, m.Key, strings.Join(found, "; "))
}

// Verify reruns every kept value, by level and then in the order of creation, each over the rows and values of
// lower rules that are kept, and returns those whose rerun differs. It is for tests: a rule that depends on
// anything but its key and its reads, such as a variable, time or map order, is found once that differs from
// what the rule saw before. The graph is not changed, and must not have changes that Run has not seen.
func (g *Graph) Verify() []Mismatch {
	var nodes []*node
	for _, u := range g.rules {
		u.each(func(n *node) { nodes = append(nodes, n) })
	}
	slices.SortFunc(nodes, func(a, b *node) int { return cmp.Or(cmp.Compare(a.level, b.level), cmp.Compare(a.seq, b.seq)) })
	f := g.Fork()
	defer f.Close()
	var out []Mismatch
	for _, n := range nodes {
		if n.queued {
			panic("incr: Verify of a graph with changes that Run has not seen")
		}
		rerun := n.evaluator.on(f).owner
		f.ownDeps(rerun)
		before := slices.Clone(rerun.deps)
		m := Mismatch{Value: f.execute(rerun)}
		n.evaluator.reset(f) // higher rules are checked over the kept value
		m.Missing, m.Extra = without(rerun.deps, before), without(before, rerun.deps)
		if m.Value || len(m.Missing) > 0 || len(m.Extra) > 0 {
			m.Rule, m.Key = n.evaluator.label()
			out = append(out, m)
		}
	}
	return out
}

// without returns the labels of the inputs that are in a and not in b.
func without(a, b []dep) (out []string) {
	in := make(map[*input]bool, len(b))
	for _, d := range b {
		in[d.input] = true
	}
	for _, d := range a {
		if !in[d.input] {
			source, key := d.input.container.label()
			out = append(out, fmt.Sprintf("%s %v", source, key))
		}
	}
	return out
}

func (u *Rule[K, V]) each(visit func(*node)) {
	for _, e := range u.nodes {
		visit(&e.node)
	}
}
