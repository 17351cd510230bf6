// Package incr is incremental computation: it reruns a rule only when something that it read has changed.
//
// A Graph holds tables (the inputs) and rules (pure functions). While a rule runs, its
// Reader records every row, bucket and value of another rule that it reads, including
// absent rows and empty buckets. After rows have changed, Graph.Run reruns the readers of
// what changed, lowest level first, and stops where a rerun returned an equal value
// (cut-off). There are no cache keys and no dependency lists to keep complete by hand.
//
//	table rows, buckets ──read──▶ level 1 rules ──read──▶ level 2 rules ─▶ … ─▶ wanted values
//
// A rule reads only through its Reader, and only rules of a lower level than its own. Its
// result depends on its key and on what it read: not on a clock, randomness, map order or
// package state. It never modifies what it has read or returned; Verify finds rules that break this.
// Values and rows are compared by content: byte slices by bytes.Equal, protobuf messages by
// proto.Equal, others by reflect.DeepEqual.
//
// A value is kept while it is wanted (Want) or read by a value that is kept; Run drops the
// others.
//
// A Graph is not safe for concurrent use, but runs the rules of one level on several goroutines
// itself (see Parallel). So rules only read what they share, package state included; results, edges,
// counters and orders are the same as on one goroutine. Fork gives a graph for what-if questions, which
// shares with the original what neither has changed since.
package incr

import (
	"cmp"
	"slices"
)

// input is what a rule can read: a row, a bucket or a value of another rule. An input lists
// its readers and a node its deps. Each of the two entries of an edge has the index of the
// other, so that adding and removing an edge takes constant time without hashing.
type input struct {
	readers   []reader
	mark      uint64 // of the execution that last recorded this input, to record it once; or unstored
	position  int    // scratch space of replaceDeps
	container container
	owner     *node // the node whose value this is; nil for rows and buckets
	// causes are those of the input's last change, if that was in the Run with the number changed.
	causes  Causes
	changed uint32
}

// container is the row, bucket or entry that an input is part of.
type container interface {
	// label returns the name of the table or rule, and the key in it.
	label() (source string, key any)
	// unread is called when the input has lost its last reader.
	unread()
	// store adds what workers have made to the graph.
	store()
	// on returns the same input on a fork of its graph.
	on(f *Graph) *input
}

// reader is a node that has read an input; at is the index of the input in the node's deps.
type reader struct {
	node *node
	at   int
}

// dep is an input that a node has read; at is the index of the node in the input's readers.
type dep struct {
	input *input
	at    int
}

// Graph is a set of tables and of rules over them. Create one with New. It is not safe for
// concurrent use.
type Graph struct {
	marks    uint64
	seq      uint64      // of the newest node
	idle     []*recorder // for reuse
	queue    [][]*node   // dirty nodes by level
	unused   []*node     // nodes that may have lost their last reader
	moved    []Moved
	stats    map[string]*RuleStats
	runs     uint64 // of all rules
	tables   []any  // by the tables' numbers; of a fork, those that it uses, as rules
	rules    []ruleOfAnyType
	parallel parallel
	forks    []*Graph // that are open
	fork     *fork    // nil if the graph is not a fork
	cause    Causes   // of the changes of tables from now on
	run      uint32   // number of the next Run, or of the one in progress
}

// ruleOfAnyType is a *Rule.
type ruleOfAnyType interface {
	each(visit func(*node))
}

// Moved identifies a wanted value that a Run has changed.
type Moved struct {
	Rule string
	Key  any
	// Causes are those of the changes of tables that the value depends on.
	Causes Causes
}

// Causes is a set of numbers from 0 to MaxCauses-1, which the caller gives to the changes of tables
// before a Run.
type Causes uint32

// MaxCauses is how many causes a Run can distinguish.
const MaxCauses = 32

// Cause sets what causes the changes of tables that follow, until the next Run. Without it they have
// no cause.
func (g *Graph) Cause(c Causes) { g.cause = c }

// RuleStats are counters of a rule since the graph was created.
type RuleStats struct {
	// Runs counts executions, Moves those that changed the value; Live is the number of values
	// kept now.
	Runs, Moves uint64
	Live        int
}

// New returns an empty graph.
func New() *Graph {
	return &Graph{stats: map[string]*RuleStats{}, run: 1}
}

// Runs returns how often rules were executed, all together, since the graph was created.
func (g *Graph) Runs() uint64 { return g.runs }

// Stats returns a copy of the counters of every rule, by name.
func (g *Graph) Stats() map[string]RuleStats {
	out := make(map[string]RuleStats, len(g.stats))
	for n, s := range g.stats {
		out[n] = *s
	}
	return out
}

// node is one value of one rule, independent of its type.
type node struct {
	input
	level     int
	index     bool   // of a rule that is an index
	seq       uint64 // the order of creation
	made      bool   // it has a value
	evaluator evaluator
	rule      *RuleStats
	deps      []dep
	wants     int
	queued    bool
	gone      bool
	stale     Causes // why it is queued
}

// evaluator is the typed part of a node.
type evaluator interface {
	container
	// run computes the value and reports whether it has changed.
	run(r *Reader) bool
	// remove removes the value from its rule.
	remove()
	// reset gives the value of the same node on a fork back.
	reset(f *Graph)
}

// Reader gives a running rule access to rows and values, and records what it reads. It belongs to the
// goroutine on which the rule was called, and is valid until the rule returns: its use afterwards panics.
type Reader struct {
	recorder *recorder
}

func (r *Reader) get() *recorder {
	if r.recorder == nil {
		panic("incr: use of a Reader after its rule has returned")
	}
	return r.recorder
}

// recorder collects what one execution reads.
type recorder struct {
	g      *Graph
	node   *node
	deps   []*input
	mark   uint64              // on the graph's goroutine
	worker *worker             // on another one, where marks are shared; nil otherwise
	seen   map[*input]struct{} // of a worker, once deps are many
}

func (r *recorder) record(c *input) {
	if r.worker != nil {
		r.recordShared(c)
	} else if c.mark != r.mark {
		c.mark = r.mark
		r.deps = append(r.deps, c)
	}
}

func (g *Graph) nextMark() uint64 {
	g.marks++
	return g.marks
}

// execute runs n, replaces its deps and reports whether its value has changed.
func (g *Graph) execute(n *node) bool {
	g.preserve(n)
	var rec *recorder
	if last := len(g.idle) - 1; last >= 0 {
		rec, g.idle = g.idle[last], g.idle[:last]
	} else {
		rec = &recorder{g: g}
	}
	rec.node, rec.mark = n, g.nextMark()
	r := Reader{rec}
	moved := n.evaluator.run(&r)
	r.recorder = nil
	g.executed(n, rec.deps, moved)
	clear(rec.deps)
	rec.node, rec.deps = nil, rec.deps[:0]
	g.idle = append(g.idle, rec)
	return moved
}

// executed stores what an execution of n has read, and counts it.
func (g *Graph) executed(n *node, reads []*input, moved bool) {
	g.replaceDeps(n, reads)
	n.made = true
	n.rule.Runs++
	g.runs++
	causes := g.causes(n)
	if moved {
		n.rule.Moves++
		g.record(&n.input, causes) // who reads a new value depends on what has changed below it
	}
}

// replaceDeps replaces the deps of n by inputs. An input may be listed twice, because a nested
// execution may have overwritten its mark.
func (g *Graph) replaceDeps(n *node, inputs []*input) {
	if slices.EqualFunc(n.deps, inputs, func(d dep, c *input) bool { return d.input == c }) {
		return
	}
	before, now := g.nextMark(), g.nextMark()
	for _, d := range n.deps {
		d.input.mark, d.input.position = before, d.at
	}
	old := n.deps
	n.deps = make([]dep, 0, len(inputs))
	for _, c := range inputs {
		switch c.mark {
		case now:
			continue
		case before:
			c.readers[c.position].at = len(n.deps)
		default:
			c.position = len(c.readers)
			c.readers = append(c.readers, reader{n, len(n.deps)})
		}
		c.mark = now
		n.deps = append(n.deps, dep{c, c.position})
	}
	for _, d := range old {
		if d.input.mark == before {
			d.drop()
		}
	}
}

// drop removes the reader of d from its input: the last reader takes its index.
func (d dep) drop() {
	c, last := d.input, len(d.input.readers)-1
	if d.at != last {
		moved := c.readers[last]
		c.readers[d.at] = moved
		moved.node.deps[moved.at].at = d.at
	}
	c.readers[last] = reader{}
	c.readers = c.readers[:last]
	if last == 0 {
		c.readers = nil
		c.container.unread()
	}
}

// record records why c has changed.
func (g *Graph) record(c *input, causes Causes) {
	if c.changed != g.run {
		c.changed, c.causes = g.run, 0
	}
	c.causes |= causes
}

// causes returns why n has been computed: because of what it has read before, and of what it reads now.
func (g *Graph) causes(n *node) Causes {
	out := n.stale
	n.stale = 0
	for _, d := range n.deps {
		if d.input.changed == g.run {
			out |= d.input.causes
		}
	}
	return out
}

// changed records why a row or bucket has changed, and enqueues its readers.
func (g *Graph) changed(c *input) {
	g.record(c, g.cause)
	g.dirty(c)
}

// dirty enqueues the readers of c, which has changed.
func (g *Graph) dirty(c *input) {
	g.ownReaders(c)
	for _, r := range c.readers {
		r.node.stale |= c.causes
		g.enqueue(r.node)
	}
}

func (g *Graph) enqueue(n *node) {
	if n.queued || n.gone {
		return
	}
	n.queued = true
	for len(g.queue) <= n.level {
		g.queue = append(g.queue, nil)
	}
	g.queue[n.level] = append(g.queue[n.level], n)
}

// Run reruns the rules that have read what changed since the last Run, and returns the wanted
// values that have changed, each once. Within a level the order is that of the values' creation,
// so that the result is deterministic.
func (g *Graph) Run() []Moved {
	for level := 0; level < len(g.queue); level++ {
		batch := g.queue[level]
		g.queue[level] = nil
		slices.SortFunc(batch, func(a, b *node) int { return cmp.Compare(a.seq, b.seq) })
		live := batch[:0]
		for _, n := range batch {
			n.queued = false
			switch {
			case n.gone:
			case !g.used(n):
				g.drop(n) // now, so that a rule of a higher level does not read the stale value
			default:
				live = append(live, n)
			}
		}
		g.executeAll(live)
	}
	g.sweep()
	moved := g.moved
	g.moved, g.cause = nil, 0
	g.run++
	return moved
}

// ran enqueues the readers of a value that has changed in a Run.
func (g *Graph) ran(n *node) {
	g.dirty(&n.input)
	if n.wants > 0 {
		rule, key := n.evaluator.label()
		g.moved = append(g.moved, Moved{Rule: rule, Key: key, Causes: n.causes})
	}
}

// sweep drops values that are neither wanted nor read, and then what only they have read.
func (g *Graph) sweep() {
	for len(g.unused) > 0 {
		n := g.unused[len(g.unused)-1]
		g.unused = g.unused[:len(g.unused)-1]
		if !n.gone && !g.used(n) {
			g.drop(n)
		}
	}
}

// used reports whether a value is wanted or read. A fork does not know who has stopped to read what it has
// of the original.
func (g *Graph) used(n *node) bool {
	return n.wants > 0 || len(n.readers) > 0 || g.fork != nil && g.fork.originals[&n.input] != nil
}

// drop drops a value. What only it has read becomes unused.
func (g *Graph) drop(n *node) {
	g.preserve(n)
	n.gone = true
	n.evaluator.remove()
	n.rule.Live--
	for _, d := range n.deps {
		d.drop()
	}
	n.deps = nil
}
