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
	"fmt"
	"slices"
)

// cell is anything that can be read: a row, a bucket, a rule's value.
type cell struct {
	readers map[*node]struct{}
	mark    uint64 // the run that last recorded this cell, to record it once
	source  interface{ sourceName() string }
	key     any
	bucket  bool
	owner   *node // the node whose value this is; nil for rows and buckets
}

// Graph is a set of tables and rules that belong together. Make one with New.
type Graph struct {
	marks  uint64
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

// node is one value of one rule.
type node struct {
	cell
	level  int
	value  any
	run    func(*Reader) any
	same   func(a, b any) bool
	forget func()
	rule   *RuleStats
	deps   []*cell
	wants  int
	queued bool
	gone   bool
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
	r := &Reader{g: g, node: n, mark: g.nextMark()}
	v := n.run(r)
	// A nested run may have overwritten marks, so mark what was read once more before
	// telling old reads from new.
	mark := g.nextMark()
	for _, c := range r.deps {
		c.mark = mark
		if c.readers == nil {
			c.readers = map[*node]struct{}{}
		}
		c.readers[n] = struct{}{}
	}
	for _, c := range n.deps {
		if c.mark != mark {
			g.unread(c, n)
		}
	}
	n.deps = slices.Clip(r.deps)
	moved := n.value == nil || !n.same(n.value, v)
	if moved {
		n.value = v
	}
	n.rule.Runs++
	if moved {
		n.rule.Moves++
	}
	if g.tracer != nil {
		g.tracer(n.source.sourceName(), n.key, moved)
	}
	return moved
}

func (g *Graph) unread(c *cell, n *node) {
	delete(c.readers, n)
	if len(c.readers) > 0 {
		return
	}
	if c.owner != nil {
		g.loose = append(g.loose, c.owner)
	} else if t, ok := c.source.(interface{ unread(*cell) }); ok {
		t.unread(c)
	}
}

// dirty queues the readers of c.
func (g *Graph) dirty(c *cell) {
	for n := range c.readers {
		g.enqueue(n)
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
// values that moved, each once, in a deterministic order.
func (g *Graph) Run() []Moved {
	for level := 0; level < len(g.queue); level++ {
		batch := g.queue[level]
		g.queue[level] = nil
		slices.SortFunc(batch, func(a, b *node) int {
			return cmp.Or(cmp.Compare(a.source.sourceName(), b.source.sourceName()), cmp.Compare(fmt.Sprint(a.key), fmt.Sprint(b.key)))
		})
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
					g.moved = append(g.moved, Moved{Rule: n.source.sourceName(), Key: n.key})
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
		n.forget()
		n.rule.Live--
		for _, c := range n.deps {
			g.unread(c, n)
		}
		n.deps = nil
	}
}
