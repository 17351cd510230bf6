package incr

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
)

// Rule is a pure function from a key and what it reads to a value, remembered by key.
type Rule[K comparable, V any] struct {
	g     *Graph
	name  string
	level int
	fn    func(*Reader, K) V
	nodes map[K]*node
	stats *RuleStats
}

// Derive adds a rule to g. Its level must be above that of every rule that it reads;
// reading at or above its own level panics, since that could only be a mistake in code.
func Derive[K comparable, V any](g *Graph, level int, name string, fn func(*Reader, K) V) *Rule[K, V] {
	if g.stats[name] != nil {
		panic("incr: two rules are named " + name)
	}
	s := &RuleStats{}
	g.stats[name] = s
	return &Rule[K, V]{g: g, name: name, level: level, fn: fn, nodes: map[K]*node{}, stats: s}
}

func (u *Rule[K, V]) sourceName() string { return u.name }

// Name is the rule's name, as it shows in Moved and Stats.
func (u *Rule[K, V]) Name() string { return u.name }

// Of asks for the rule's value for key, computing it if nobody has yet, and records
// that it was read.
func (u *Rule[K, V]) Of(r *Reader, key K) V {
	if u.level >= r.node.level {
		panic(fmt.Sprintf("incr: rule %s (level %d) reads rule %s (level %d)", r.node.source.sourceName(), r.node.level, u.name, u.level))
	}
	n := u.node(key)
	r.record(&n.cell)
	return n.value.(box[V]).v
}

// Want computes the rule's value for key and keeps it up to date until Unwant is called
// as often as Want was.
func (u *Rule[K, V]) Want(key K) V {
	n := u.node(key)
	n.wants++
	return n.value.(box[V]).v
}

// Unwant takes one Want back. The value is dropped at the next Run if nobody else has a use for it.
func (u *Rule[K, V]) Unwant(key K) {
	n, ok := u.nodes[key]
	if !ok || n.wants == 0 {
		panic(fmt.Sprintf("incr: Unwant of %s %v, which is not wanted", u.name, key))
	}
	n.wants--
	if n.wants == 0 {
		u.g.loose = append(u.g.loose, n)
	}
}

// Value returns the value for key if it is kept now. It may be stale between a change
// of a table and the next Run.
func (u *Rule[K, V]) Value(key K) (V, bool) {
	if n, ok := u.nodes[key]; ok {
		return n.value.(box[V]).v, true
	}
	var zero V
	return zero, false
}

// Reads lists what the value for key was made from, transitively down to table rows and
// buckets, sorted and without repetition: "services ns/name" or "services [bucket]".
func (u *Rule[K, V]) Reads(key K) []string {
	n, ok := u.nodes[key]
	if !ok {
		return nil
	}
	seen := map[*cell]bool{}
	var out []string
	var walk func(n *node)
	walk = func(n *node) {
		for _, c := range n.deps {
			if seen[c] {
				continue
			}
			seen[c] = true
			switch {
			case c.owner != nil:
				walk(c.owner)
			case c.bucket:
				out = append(out, fmt.Sprintf("%s [%v]", c.source.sourceName(), c.key))
			default:
				out = append(out, fmt.Sprintf("%s %v", c.source.sourceName(), c.key))
			}
		}
	}
	walk(n)
	slices.Sort(out)
	return out
}

// box makes every value, a nil slice included, distinguishable from "never computed".
type box[V any] struct{ v V }

func (u *Rule[K, V]) node(key K) *node {
	if n, ok := u.nodes[key]; ok {
		return n
	}
	n := &node{level: u.level, rule: u.stats}
	n.cell = cell{source: u, key: key, owner: n}
	n.run = func(r *Reader) any { return box[V]{u.fn(r, key)} }
	n.same = func(a, b any) bool { return same(a.(box[V]).v, b.(box[V]).v) }
	n.forget = func() { delete(u.nodes, key) }
	u.nodes[key] = n
	u.stats.Live++
	u.g.execute(n)
	return n
}

func same[V any](a, b V) bool {
	if x, ok := any(a).([]byte); ok {
		return bytes.Equal(x, any(b).([]byte))
	}
	return reflect.DeepEqual(a, b)
}
