package incr

import "slices"

// fork is what makes a graph a fork. It has copies of what it has looked at: rows, buckets and values of the
// original as they were at the moment of the fork. The copy of a value has no deps, and so is nowhere a
// reader, before they are asked for or before the original changes them: until then those of the original say
// what has read what.
type fork struct {
	of *Graph
	// born is the newest node of the original at the moment of the fork.
	born uint64
	// originals has what inputs are copies of.
	originals map[*input]*input
	// borrowed are the copies of values without deps of their own.
	borrowed map[*node]bool
	closed   bool
}

// Fork returns a graph with the rows, rules and wanted values that g has now, in time independent of their
// number. Its tables and rules are those that Table.On and Rule.On return. Changes of either graph do not affect
// the other, and a fork's Run reruns only what has read what the fork has changed: a value that has not is that of g.
//
// A fork belongs to the goroutine of g, and runs its rules there. It must be closed: until then, each change of
// g costs a little more, and what g changes or drops is kept for the fork. Fork panics for a fork.
func (g *Graph) Fork() *Graph {
	g.mustNotBeFork("fork")
	f := &Graph{
		seq: g.seq, stats: map[string]*RuleStats{}, tables: make([]any, len(g.tables)), rules: make([]ruleOfAnyType, len(g.rules)),
		fork: &fork{of: g, born: g.seq, originals: map[*input]*input{}, borrowed: map[*node]bool{}},
	}
	g.forks = append(g.forks, f)
	for _, level := range g.queue { // changes that Run has not seen
		for _, n := range level {
			own := n.evaluator.on(f).owner
			f.ownDeps(own)
			f.enqueue(own)
		}
	}
	return f
}

// Close ends a fork, which must not be used any more. Close panics for a graph that is not a fork.
func (g *Graph) Close() {
	if g.fork == nil {
		panic("incr: Close of a graph that is not a fork")
	}
	g.fork.closed = true
	of := g.fork.of
	of.forks = slices.DeleteFunc(of.forks, func(f *Graph) bool { return f == g })
}

func (g *Graph) mustNotBeFork(what string) {
	if g.fork != nil {
		panic("incr: new " + what + " of a fork")
	}
}

// mustFork panics unless g is an open fork of the graph of a table or rule.
func (g *Graph) mustFork(of *Graph, what string) {
	if g.fork == nil || g.fork.of != of {
		panic("incr: " + what + " belongs to another graph")
	}
	g.mustBeOpen()
}

func (g *Graph) mustBeOpen() {
	if g.fork.closed {
		panic("incr: use of a closed fork")
	}
}

// On returns the table on a graph: t itself, or that of an open fork of its graph.
func (t *Table[T]) On(g *Graph) *Table[T] {
	if t.g == g {
		return t
	}
	g.mustFork(t.g, "table "+t.name)
	if own, ok := g.tables[t.number].(*Table[T]); ok {
		return own
	}
	own := &Table[T]{
		g: g, number: t.number, name: t.name, same: t.same, rows: map[string]*row[T]{}, buckets: map[string]*bucket[T]{}, present: t.present, original: t,
	}
	g.tables[t.number] = own
	return own
}

// On returns the rule on a graph: u itself, or that of an open fork of its graph.
func (u *Rule[K, V]) On(g *Graph) *Rule[K, V] {
	if u.g == g {
		return u
	}
	g.mustFork(u.g, "rule "+u.name)
	if own, ok := g.rules[u.number].(*Rule[K, V]); ok {
		return own
	}
	own := &Rule[K, V]{
		g: g, number: u.number, name: u.name, level: u.level, fn: u.fn, same: u.same, index: u.index, nodes: map[K]*entry[K, V]{}, stats: &RuleStats{}, original: u,
	}
	g.rules[u.number], g.stats[u.name] = own, own.stats
	return own
}

func (r *row[T]) on(f *Graph) *input    { return &r.table.On(f).row(r.key).input }
func (b *bucket[T]) on(f *Graph) *input { return &b.table.On(f).bucket(b.name).input }

func (e *entry[K, V]) on(f *Graph) *input { return &e.of.On(f).kept(e.key).input }

// borrowRow makes a new row of a fork as that of the original.
func (t *Table[T]) borrowRow(r *row[T]) {
	if t.original == nil {
		return
	}
	t.g.mustBeOpen()
	if o, ok := t.original.rows[r.key]; ok {
		r.value, r.present, r.buckets = o.value, o.present, o.buckets
		t.g.fork.originals[&r.input] = &o.input
	}
}

// borrowBucket makes a new bucket of a fork as that of the original.
func (t *Table[T]) borrowBucket(b *bucket[T]) {
	if t.original == nil {
		return
	}
	t.g.mustBeOpen()
	if o, ok := t.original.buckets[b.name]; ok {
		b.keys = o.keys
		t.g.fork.originals[&b.input] = &o.input
	}
}

// borrow copies a value of the original to a fork; nil if there was none at the moment of the fork.
func (u *Rule[K, V]) borrow(key K) *entry[K, V] {
	u.g.mustBeOpen()
	o, f := u.original.nodes[key], u.g.fork
	if o == nil || o.seq > f.born {
		return nil
	}
	e := u.entry(key)
	e.value, e.made, e.seq, e.wants = o.value, true, o.seq, o.wants
	u.nodes[key] = e
	u.stats.Live++
	f.originals[&e.input], f.borrowed[&e.node] = &o.input, true
	return e
}

func (e *entry[K, V]) reset(f *Graph) { e.of.On(f).kept(e.key).value = e.value }

// ownDeps gives a fork's node deps of its own: those of the original.
func (g *Graph) ownDeps(n *node) {
	if g.fork == nil || !g.fork.borrowed[n] {
		return
	}
	delete(g.fork.borrowed, n)
	original := g.fork.originals[&n.input].owner
	inputs := make([]*input, len(original.deps))
	for i, d := range original.deps {
		inputs[i] = d.input.container.on(g)
	}
	g.replaceDeps(n, inputs)
}

// ownReaders makes the readers of an input of a fork complete: with those that read it in the original at the
// moment of the fork. Readers that have read it since are newer, or have deps of their own in the fork.
func (g *Graph) ownReaders(c *input) {
	if g.fork == nil {
		return
	}
	original := g.fork.originals[c]
	if original == nil {
		return
	}
	for _, r := range original.readers {
		if r.node.seq <= g.fork.born {
			g.ownDeps(r.node.evaluator.on(g).owner)
		}
	}
}

// preserve keeps a value and its deps for the forks, before either changes.
func (g *Graph) preserve(n *node) {
	for _, f := range g.forks {
		if n.made && n.seq <= f.fork.born {
			f.ownDeps(n.evaluator.on(f).owner)
		}
	}
}

// lend keeps for the forks whether a value is wanted.
func (g *Graph) lend(n *node) {
	for _, f := range g.forks {
		if n.seq <= f.fork.born {
			n.evaluator.on(f)
		}
	}
}

func (t *Table[T]) preserveRow(key string) {
	for _, f := range t.g.forks {
		t.On(f).row(key)
	}
}

func (t *Table[T]) preserveBucket(name string) {
	for _, f := range t.g.forks {
		t.On(f).bucket(name)
	}
}
