package incr

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
)

// defaultBatch is the number of values from which on starting goroutines costs less than they save.
const defaultBatch = 32

// parallel is how rules run on several goroutines. While they do, no map, edge or counter of the graph is
// written: what workers make is unstored, in maps of its own with locks, and is stored on the graph's
// goroutine afterwards, in the order in which one goroutine would have made it.
type parallel struct {
	workers int // 0 is GOMAXPROCS
	batch   int // 0 is defaultBatch
	// makers have unstored values or rows. mu is for their list.
	mu     sync.Mutex
	makers []interface{ forget() }
}

// unstored is the mark of an input that a worker has made.
const unstored = ^uint64(0)

// Parallel sets on how many goroutines rules of one level run, and from how many values on; fewer are computed
// on the caller's goroutine. 0 is the default: as many goroutines as processors (runtime.GOMAXPROCS), and a batch
// for which they are worth their start. The result does not depend on it.
func (g *Graph) Parallel(workers, batch int) {
	g.parallel.workers, g.parallel.batch = workers, batch
}

// workers returns on how many goroutines n values are computed.
func (g *Graph) workers(n int) int {
	most := g.parallel.workers
	if most == 0 {
		most = runtime.GOMAXPROCS(0)
	}
	if n < max(cmp.Or(g.parallel.batch, defaultBatch), 2) || g.fork != nil {
		return 1 // what a fork looks up in the original is written to the fork
	}
	return min(most, n)
}

// RulePanic is what a rule's panic becomes if the rule ran on another goroutine than the caller's.
type RulePanic struct {
	Rule  string
	Key   any
	Value any    // of the panic; nil if the rule has ended its goroutine
	Stack string // of the rule's goroutine
}

// Error returns the message, with the stack.
func (p *RulePanic) Error() string {
	return fmt.Sprintf("incr: rule %s of %v: %v\n\n%s", p.Rule, p.Key, p.Value, p.Stack)
}

// Unwrap returns the panic's value if it is an error.
func (p *RulePanic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// worker runs rules on one goroutine of several.
type worker struct {
	g     *Graph
	idle  []*recorder
	reads []*input // free space for those of executions
	chunk int      // size of the last such space
}

// result is what one execution has found; failed is set if it panicked.
type result struct {
	reads  []*input
	moved  bool
	failed *RulePanic
}

func (r *recorder) recordShared(c *input) {
	const few = 16 // are found faster without a map
	switch {
	case r.seen != nil:
		if _, ok := r.seen[c]; ok {
			return
		}
		r.seen[c] = struct{}{}
	case slices.Contains(r.deps, c):
		return
	case len(r.deps) == few:
		r.seen = make(map[*input]struct{}, 4*few)
		for _, d := range r.deps {
			r.seen[d] = struct{}{}
		}
		r.seen[c] = struct{}{}
	}
	r.deps = append(r.deps, c)
}

// execute runs n. It does not panic; if the rule ends its goroutine, res says so nevertheless.
func (w *worker) execute(n *node, res *result) {
	var rec *recorder
	if last := len(w.idle) - 1; last >= 0 {
		rec, w.idle = w.idle[last], w.idle[:last]
	} else {
		rec = &recorder{g: w.g, worker: w}
	}
	rec.node = n
	r := Reader{rec}
	returned := false
	defer func() {
		r.recorder = nil
		if returned {
			return
		}
		value := recover()
		if inner, ok := value.(*RulePanic); ok {
			res.failed = inner // of a value that this one reads
			return
		}
		rule, key := n.evaluator.label()
		res.failed = &RulePanic{Rule: rule, Key: key, Value: value, Stack: string(debug.Stack())}
	}()
	res.moved = n.evaluator.run(&r)
	returned = true
	res.reads = w.keep(rec.deps)
	clear(rec.deps)
	rec.node, rec.deps, rec.seen = nil, rec.deps[:0], nil
	w.idle = append(w.idle, rec)
}

// keep returns a copy of reads.
func (w *worker) keep(reads []*input) []*input {
	n := len(reads)
	if cap(w.reads) < n {
		w.chunk = min(max(2*w.chunk, 64), 1024)
		w.reads = make([]*input, 0, max(n, w.chunk))
	}
	out := append(w.reads[:0:n], reads...)
	w.reads = w.reads[n:n:cap(w.reads)]
	return out
}

// forEach calls f for 0 … n-1 on the given number of goroutines, of which the caller's is one, and returns
// after all of them have ended. f reports whether to go on; after it has not, f is still called for
// everything below.
func (g *Graph) forEach(workers, n int, f func(w *worker, i int) bool) {
	var next atomic.Int64
	var stop atomic.Bool
	run := func() {
		w := &worker{g: g}
		for !stop.Load() {
			i := int(next.Add(1)) - 1
			if i >= n {
				return
			}
			if !f(w, i) {
				stop.Store(true)
			}
		}
	}
	var others sync.WaitGroup
	for range workers - 1 {
		others.Go(run)
	}
	defer others.Wait()
	run()
}

// executeAll runs nodes of one level, and enqueues the readers of those that have changed.
func (g *Graph) executeAll(nodes []*node) {
	workers := g.workers(len(nodes))
	if workers == 1 {
		for _, n := range nodes {
			if g.execute(n) {
				g.ran(n)
			}
		}
		return
	}
	for _, n := range nodes {
		g.preserve(n)
	}
	results := make([]result, len(nodes))
	defer g.forget()
	g.forEach(workers, len(nodes), func(w *worker, i int) bool {
		w.execute(nodes[i], &results[i])
		return results[i].failed == nil
	})
	for _, r := range results {
		if r.failed != nil {
			panic(r.failed)
		}
	}
	for i, n := range nodes {
		g.store(n, results[i])
		if results[i].moved {
			g.ran(n)
		}
	}
}

// store stores what a worker has found for n, and first everything that it has made for that.
func (g *Graph) store(n *node, r result) {
	for _, c := range r.reads {
		// An absent row may have lost its last reader, and been freed, since the worker has read it.
		if c.mark == unstored || c.owner == nil && len(c.readers) == 0 {
			c.mark = 0
			c.container.store()
		}
	}
	g.executed(n, r.reads, r.moved)
}

// made remembers who has something unstored.
func (p *parallel) made(m interface{ forget() }) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.makers = append(p.makers, m)
}

// forget forgets what is unstored: everything has been stored, or a rule has panicked.
func (g *Graph) forget() {
	for _, m := range g.parallel.makers {
		m.forget()
	}
	clear(g.parallel.makers)
	g.parallel.makers = g.parallel.makers[:0]
}

// unstoredEntry is a value that a worker computes or has computed for others.
type unstoredEntry[K comparable, V any] struct {
	entry  *entry[K, V]
	result result
	done   bool
	wait   chan struct{} // closed when done; nil while nobody waits
}

// shared returns the value for key, which is not stored: computed by whoever asks first, while others wait.
// Since a rule reads lower levels only, nobody waits for itself. The panic is nil unless the rule panicked.
func (u *Rule[K, V]) shared(w *worker, key K) (*entry[K, V], *RulePanic) {
	u.mu.Lock()
	s := u.unstored[key]
	if s == nil {
		if len(u.unstored) == 0 {
			u.g.parallel.made(u)
			u.unstored = map[K]*unstoredEntry[K, V]{}
		}
		s = &unstoredEntry[K, V]{entry: u.entry(key)}
		s.entry.mark = unstored
		u.unstored[key] = s
		u.mu.Unlock()
		u.compute(w, s)
		u.mu.Lock()
	} else if !s.done {
		if s.wait == nil {
			s.wait = make(chan struct{})
		}
		wait := s.wait
		u.mu.Unlock()
		<-wait
		u.mu.Lock()
	}
	defer u.mu.Unlock()
	return s.entry, s.result.failed
}

func (u *Rule[K, V]) compute(w *worker, s *unstoredEntry[K, V]) {
	defer func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		s.done = true
		if s.wait != nil {
			close(s.wait)
		}
	}()
	w.execute(&s.entry.node, &s.result)
}

// fill computes the values for keys that are not kept.
func (u *Rule[K, V]) fill(keys []K) {
	missing := make([]K, 0, len(keys))
	for _, key := range keys {
		if u.nodes[key] == nil {
			missing = append(missing, key)
		}
	}
	workers := u.g.workers(len(missing))
	if workers == 1 {
		return // they are computed one by one
	}
	defer u.g.forget()
	u.g.forEach(workers, len(missing), func(w *worker, i int) bool {
		_, failed := u.shared(w, missing[i])
		return failed == nil
	})
	for _, key := range missing {
		if s := u.unstored[key]; s != nil && s.result.failed != nil { // nil if nobody came to it
			panic(s.result.failed)
		}
	}
	for _, key := range missing {
		if e := u.unstored[key].entry; e.mark == unstored {
			e.mark = 0
			e.store()
		}
	}
}

// store adds a value to its rule.
func (e *entry[K, V]) store() {
	g := e.of.g
	g.seq++
	e.seq = g.seq
	e.of.nodes[e.key] = e
	e.rule.Live++
	g.store(&e.node, e.of.unstored[e.key].result)
}

func (u *Rule[K, V]) forget() { u.unstored = nil }
