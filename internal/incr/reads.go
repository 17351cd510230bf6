package incr

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
)

// Read is a row or a bucket that a value was made from.
type Read struct {
	Table string
	// Key is the row's key, or the bucket's name if Bucket is set.
	Key    string
	Bucket bool
	// Present is set for a row that exists and for a bucket that has members.
	Present bool
	// Indirect is set if the value has read it through an index only.
	Indirect bool
}

// String returns "table key" for a row and "table [name]" for a bucket.
func (r Read) String() string {
	if r.Bucket {
		return fmt.Sprintf("%s [%s]", r.Table, r.Key)
	}
	return r.Table + " " + r.Key
}

// Dependent is a wanted value that was made from a row.
type Dependent struct {
	Rule string
	Key  any
	// Indirect is set if the value has read the row through an index only.
	Indirect bool
}

// origin is a container that is not a rule's value.
type origin interface{ read() Read }

// Reads yields what the value for key was made from, transitively down to rows and buckets, each once,
// in the order in which the rules have read it, what was read through an index only after all else.
// It takes time proportional to what it yields; stop the iteration to bound it. It yields nothing for a
// value that is not kept. The graph must not be changed meanwhile.
func (u *Rule[K, V]) Reads(key K) iter.Seq[Read] {
	return func(yield func(Read) bool) {
		if e := u.kept(key); e != nil {
			u.g.reads(&e.node, yield)
		}
	}
}

func (g *Graph) reads(n *node, yield func(Read) bool) {
	var indexes []*node
	indirect := false
	seen := map[*input]bool{}
	var walk func(n *node) bool
	walk = func(n *node) bool {
		g.ownDeps(n)
		for _, d := range n.deps {
			if seen[d.input] {
				continue
			}
			seen[d.input] = true
			switch owner := d.input.owner; {
			case owner == nil:
				r := d.input.container.(origin).read()
				r.Indirect = indirect
				if !yield(r) {
					return false
				}
			case owner.index && !indirect:
				indexes = append(indexes, owner)
			case !walk(owner):
				return false
			}
		}
		return true
	}
	if !walk(n) {
		return
	}
	indirect = true
	for _, index := range indexes {
		if !walk(index) {
			return
		}
	}
}

// Dependents yields the wanted values that were made from the row with that key, present or absent, each
// once and in the order of their creation, those that have read it through an index only after all others.
// It takes time proportional to the values between the row and those that it yields. The graph must not be
// changed meanwhile.
func (t *Table[T]) Dependents(key string) iter.Seq[Dependent] {
	return func(yield func(Dependent) bool) {
		if r := t.kept(key); r != nil {
			t.g.dependents(&r.input, yield)
		}
	}
}

func (g *Graph) dependents(c *input, yield func(Dependent) bool) {
	var found, indexes []*node
	seen := map[*node]bool{}
	indirect := false
	var walk func(c *input)
	walk = func(c *input) {
		g.ownReaders(c)
		for _, r := range c.readers {
			n := r.node
			if seen[n] {
				continue
			}
			if n.index && !indirect {
				indexes = append(indexes, n)
				continue
			}
			seen[n] = true
			if n.wants > 0 {
				found = append(found, n)
			}
			walk(&n.input)
		}
	}
	walk(c)
	if !yieldSorted(found, false, yield) {
		return
	}
	found, indirect = nil, true
	for _, n := range indexes {
		if seen[n] {
			continue
		}
		seen[n] = true
		if n.wants > 0 {
			found = append(found, n)
		}
		walk(&n.input)
	}
	yieldSorted(found, true, yield)
}

// yieldSorted yields nodes in the order of their creation; false if the iteration was stopped.
func yieldSorted(nodes []*node, indirect bool, yield func(Dependent) bool) bool {
	slices.SortFunc(nodes, func(a, b *node) int { return cmp.Compare(a.seq, b.seq) })
	for _, n := range nodes {
		rule, key := n.evaluator.label()
		if !yield(Dependent{Rule: rule, Key: key, Indirect: indirect}) {
			return false
		}
	}
	return true
}
