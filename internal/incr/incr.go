// Package incr reruns a rule only when something that it read has changed.
//
// A Graph holds tables (the inputs) and rules (pure functions). While a rule runs, its
// Reader records every row it looks up, every bucket it lists and every other rule's
// value it asks for, those that are absent or empty included. After the writer has
// changed rows, Graph.Run reruns the readers of what changed, lowest level first, and
// stops wherever a rerun gave an equal value (cut-off). Nothing is ever declared by
// hand: there are no cache keys and no dependency lists to forget an input in.
//
//	table rows, buckets ──read──▶ level 1 rules ──read──▶ level 2 rules ─▶ … ─▶ wanted outputs
//
// The contract of a rule: it reads only through its Reader; its result depends on
// nothing but its key and what it read (no clock, randomness, map order, package state);
// it never changes what it was given or has returned; it reads only rules of a lower
// level than its own. Values are compared by content: byte slices by their bytes,
// anything else by reflect.DeepEqual, for which equal pointers are equal.
//
// A value lives while it is wanted (Want) or read by one that lives; the rest is dropped
// at the end of each Run. A Graph belongs to one goroutine; it has no locks.
package incr

import (
	"cmp"
	"slices"
)

// cell is anything that can be read: a row, a bucket, a rule's value. A cell knows its
// readers and a node what it has read; each side of that edge holds the place of the
// other, so that edges come and go in constant time without hashing.
type cell struct {
	readers []reader
	mark    uint64 // the run that last recorded this cell, to record it once
	slot    int    // scratch space of settle
	thing   thing
	owner   *node // the node whose value this is; nil for rows and buckets
}

// thing is the row, the bucket or the rule's value that a cell is the readable side of.
type thing interface {
	// label is the name of the table or rule, and the key in it.
	label() (source string, key any)
	// unread is told that nobody reads the cell any more.
	unread()
}

// reader is a node that has read a cell, and where among its deps the cell stands.
type reader struct {
	node *node
	at   int
}

// dep is a cell that a node has read, and where among its readers the node stands.
type dep struct {
	cell *cell
	at   int
}

// Graph is a set of tables and rules that belong together. Make one with New.
type Graph struct {
	marks  uint64
	serial uint64    // of the newest node
	idle   []*Reader // to be used again
	queue  [][]*node // dirty nodes by level
	loose  []*node   // nodes that may have lost their last reader
	moved  []Moved
	stats  map[string]*RuleStats
	tracer func(rule string, key any, moved bool)
}

// Moved names a wanted value that differs from what it was before a Run.
type Moved struct {
	Rule string
	Key  any
}

// RuleStats counts what a rule has done since the graph was made.
type RuleStats struct {
	// Runs counts executions, Moves those that gave a new value, Live the values kept now.
	Runs, Moves uint64
	Live        int
}

// New returns an empty graph.
func New() *Graph {
	return &Graph{stats: map[string]*RuleStats{}}
}

// Trace calls f after every execution of a rule; nil stops it. It is for tests and debugging.
func (g *Graph) Trace(f func(rule string, key any, moved bool)) { g.tracer = f }

// Stats returns a copy of the counters of every rule by name.
func (g *Graph) Stats() map[string]RuleStats {
	out := make(map[string]RuleStats, len(g.stats))
	for n, s := range g.stats {
		out[n] = *s
	}
	return out
}

// node is one value of one rule, as the graph sees it.
type node struct {
	cell
	level  int
	serial uint64 // the order in which nodes were made
	made   bool   // there is a value
	maker  maker
	rule   *RuleStats
	deps   []dep
	wants  int
	queued bool
	gone   bool
}

// maker is the side of a node that knows types.
type maker interface {
	thing
	// run makes the value anew and says whether it is another than before.
	run(r *Reader) bool
	// forget takes the value out of its rule.
	forget()
}

// Reader is a running rule's only door to data. It is valid until the rule returns.
type Reader struct {
	g    *Graph
	node *node
	deps []*cell
	mark uint64
}

func (r *Reader) record(c *cell) {
	if c.mark != r.mark {
		c.mark = r.mark
		r.deps = append(r.deps, c)
	}
}

func (g *Graph) nextMark() uint64 {
	g.marks++
	return g.marks
}

// execute runs n, replaces its recorded reads and says whether its value moved.
func (g *Graph) execute(n *node) bool {
	var r *Reader
	if last := len(g.idle) - 1; last >= 0 {
		r, g.idle = g.idle[last], g.idle[:last]
	} else {
		r = &Reader{g: g}
	}
	r.node, r.mark = n, g.nextMark()
	moved := n.maker.run(r)
	g.settle(n, r.deps)
	clear(r.deps)
	r.node, r.deps = nil, r.deps[:0]
	g.idle = append(g.idle, r)
	n.made = true
	n.rule.Runs++
	if moved {
		n.rule.Moves++
	}
	if g.tracer != nil {
		rule, key := n.maker.label()
		g.tracer(rule, key, moved)
	}
	return moved
}

// settle replaces what n has read by cells, in which the same one may stand twice: a
// nested run may have overwritten its mark.
func (g *Graph) settle(n *node, cells []*cell) {
	if slices.EqualFunc(n.deps, cells, func(d dep, c *cell) bool { return d.cell == c }) {
		return
	}
	before, now := g.nextMark(), g.nextMark()
	for _, d := range n.deps {
		d.cell.mark, d.cell.slot = before, d.at
	}
	old := n.deps
	n.deps = make([]dep, 0, len(cells))
	for _, c := range cells {
		switch c.mark {
		case now:
			continue
		case before:
			c.readers[c.slot].at = len(n.deps)
		default:
			c.slot = len(c.readers)
			c.readers = append(c.readers, reader{n, len(n.deps)})
		}
		c.mark = now
		n.deps = append(n.deps, dep{c, c.slot})
	}
	for _, d := range old {
		if d.cell.mark == before {
			d.drop()
		}
	}
}

// drop ends a read. The last of the cell's readers takes the place of the one that goes.
func (d dep) drop() {
	c, last := d.cell, len(d.cell.readers)-1
	if d.at != last {
		moved := c.readers[last]
		c.readers[d.at] = moved
		moved.node.deps[moved.at].at = d.at
	}
	c.readers[last] = reader{}
	c.readers = c.readers[:last]
	if last == 0 {
		c.readers = nil
		c.thing.unread()
	}
}

// dirty queues the readers of c.
func (g *Graph) dirty(c *cell) {
	for _, r := range c.readers {
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

// Run reruns what the changes since the last Run made stale and returns the wanted
// values that moved, each once. Within a level the values made first come first, so the
// order is that of the history and of nothing else.
func (g *Graph) Run() []Moved {
	for level := 0; level < len(g.queue); level++ {
		batch := g.queue[level]
		g.queue[level] = nil
		slices.SortFunc(batch, func(a, b *node) int { return cmp.Compare(a.serial, b.serial) })
		for _, n := range batch {
			n.queued = false
			if n.gone || (n.wants == 0 && len(n.readers) == 0) {
				// Drop it now: a rule further up that asks for it must not get the stale value.
				g.loose = append(g.loose, n)
				g.sweep()
				continue
			}
			if g.execute(n) {
				g.dirty(&n.cell)
				if n.wants > 0 {
					rule, key := n.maker.label()
					g.moved = append(g.moved, Moved{Rule: rule, Key: key})
				}
			}
		}
	}
	g.sweep()
	moved := g.moved
	g.moved = nil
	return moved
}

// sweep drops values that nobody wants or reads, and what only they read.
func (g *Graph) sweep() {
	for len(g.loose) > 0 {
		n := g.loose[len(g.loose)-1]
		g.loose = g.loose[:len(g.loose)-1]
		if n.gone || n.wants > 0 || len(n.readers) > 0 {
			continue
		}
		n.gone = true
		n.maker.forget()
		n.rule.Live--
		for _, d := range n.deps {
			d.drop()
		}
		n.deps = nil
	}
}
