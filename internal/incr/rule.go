package incr

import (
	"fmt"
	"sync"
)

// Rule is a pure function of a key and of what it reads. Its values are cached by key.
type Rule[K comparable, V any] struct {
	g      *Graph
	number int
	name   string
	level  int
	fn     func(*Reader, K) V
	same   func(a, b V) bool
	index  bool
	nodes  map[K]*entry[K, V]
	stats  *RuleStats

	original *Rule[K, V] // of the rule of a fork

	mu       sync.Mutex // of unstored
	unstored map[K]*unstoredEntry[K, V]
}

// Derive adds a rule to g. Its level must be higher than that of every rule that it reads:
// reading a rule of its own or a higher level panics, and so does a name that is in use.
func Derive[K comparable, V any](g *Graph, level int, name string, fn func(*Reader, K) V) *Rule[K, V] {
	if g.stats[name] != nil {
		panic("incr: duplicate rule " + name)
	}
	g.mustNotBeFork("rule " + name)
	u := &Rule[K, V]{
		g: g, number: len(g.rules), name: name, level: level, fn: fn, same: comparer[V](), nodes: map[K]*entry[K, V]{}, stats: &RuleStats{},
	}
	g.rules = append(g.rules, u)
	g.stats[name] = u.stats
	return u
}

// AsIndex declares that the rule's values say only which rows others are to read: an index reads every
// row that might be one of them, so what was read through it does not explain a value. Reads and
// Dependents list it last, as indirect. Call AsIndex before there are values. It returns u.
func (u *Rule[K, V]) AsIndex() *Rule[K, V] {
	if len(u.nodes) > 0 {
		panic("incr: AsIndex of rule " + u.name + ", which has values")
	}
	u.index = true
	return u
}

// entry is one value of a rule.
type entry[K comparable, V any] struct {
	node
	of    *Rule[K, V]
	key   K
	value V
}

func (e *entry[K, V]) label() (string, any) { return e.of.name, e.key }

func (e *entry[K, V]) unread() { e.of.g.unused = append(e.of.g.unused, &e.node) }

func (e *entry[K, V]) remove() { delete(e.of.nodes, e.key) }

func (e *entry[K, V]) run(r *Reader) bool {
	v := e.of.fn(r, e.key)
	if e.made && e.of.same(e.value, v) {
		return false
	}
	e.value = v
	return true
}

// Of returns the rule's value for key, computing it if there is none, and records the read.
func (u *Rule[K, V]) Of(r *Reader, key K) V {
	rec := r.get()
	if u.level >= rec.node.level {
		rule, _ := rec.node.evaluator.label()
		panic(fmt.Sprintf("incr: rule %s (level %d) reads rule %s (level %d)", rule, rec.node.level, u.name, u.level))
	}
	if u.g != rec.g {
		u = u.On(rec.g)
	}
	n, ok := u.nodes[key]
	switch {
	case ok:
	case rec.worker != nil:
		var failed *RulePanic
		if n, failed = u.shared(rec.worker, key); failed != nil {
			panic(failed)
		}
	default:
		n = u.node(key)
	}
	rec.record(&n.input)
	return n.value
}

// OfAll calls Of for each key and returns the values in the order of the keys. It computes missing values on
// several goroutines, unless the calling rule runs on one of several itself.
func (u *Rule[K, V]) OfAll(r *Reader, keys []K) []V {
	if rec := r.get(); rec.worker == nil && u.g == rec.g && u.level < rec.node.level {
		u.fill(keys)
	}
	out := make([]V, len(keys))
	for i, key := range keys {
		out[i] = u.Of(r, key)
	}
	return out
}

// Want returns the rule's value for key and keeps it up to date until Unwant has been called as
// often as Want.
func (u *Rule[K, V]) Want(key K) V {
	n := u.node(key)
	u.g.lend(&n.node)
	n.wants++
	return n.value
}

// WantAll calls Want for each key and returns the values in the order of the keys. It computes missing
// values on several goroutines.
func (u *Rule[K, V]) WantAll(keys []K) []V {
	u.fill(keys)
	out := make([]V, len(keys))
	for i, key := range keys {
		out[i] = u.Want(key)
	}
	return out
}

// Unwant undoes one Want. The next Run drops the value if it is neither wanted nor read any more.
// Unwant of a value that is not wanted panics.
func (u *Rule[K, V]) Unwant(key K) {
	n := u.kept(key)
	if n == nil || n.wants == 0 {
		panic(fmt.Sprintf("incr: Unwant of %s %v, which is not wanted", u.name, key))
	}
	u.g.lend(&n.node)
	n.wants--
	if n.wants == 0 {
		u.g.unused = append(u.g.unused, &n.node)
	}
}

// Value returns the value for key if one is kept. It may be stale between a change of a table and
// the next Run.
func (u *Rule[K, V]) Value(key K) (V, bool) {
	if n := u.kept(key); n != nil {
		return n.value, true
	}
	var zero V
	return zero, false
}

func (u *Rule[K, V]) node(key K) *entry[K, V] {
	if n := u.kept(key); n != nil {
		return n
	}
	e := u.entry(key)
	u.g.seq++
	e.seq = u.g.seq
	u.nodes[key] = e
	u.stats.Live++
	u.g.execute(&e.node)
	return e
}

// kept returns the entry for key, nil if there is none.
func (u *Rule[K, V]) kept(key K) *entry[K, V] {
	e := u.nodes[key]
	if e == nil && u.original != nil {
		e = u.borrow(key)
	}
	return e
}

// entry returns a new entry, which is not in the graph.
func (u *Rule[K, V]) entry(key K) *entry[K, V] {
	e := &entry[K, V]{of: u, key: key}
	e.node = node{level: u.level, index: u.index, rule: u.stats, evaluator: e}
	e.input = input{container: e, owner: &e.node}
	return e
}
