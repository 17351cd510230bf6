package xds

import (
	"runtime"
	"sync"
	"weak"
)

// Bounds on what streams share, in number. More than a few steps and indexes are wanted only while many layers
// change, or many proxies come back, at the same time; what is forgotten is computed again.
const (
	maxSteps   = 128
	maxIndexes = 64
)

// stepCache is the sharer of a server's streams. Any goroutine may use it; the zero stepCache is ready.
type stepCache struct {
	steps   onceCache[[2]*set, step]
	indexes onceCache[*set, setIndex]
	pool    namePool
}

func (c *stepCache) between(old, cur *set) step {
	if old == nil || cur == nil {
		return between(old, cur) // nothing has to be compared
	}
	return c.steps.get([2]*set{old, cur}, maxSteps, func() step { return between(old, cur) })
}

func (c *stepCache) index(s *set) setIndex { return c.indexes.get(s, maxIndexes, s.index) }

func (c *stepCache) names(sum uint64) *nameSet { return c.pool.find(sum) }

func (c *stepCache) keep(n *nameSet) *nameSet { return c.pool.keep(n) }

// onceCache keeps values that are computed once for each key, those of different keys at the same time. The zero
// onceCache is ready.
type onceCache[K comparable, V any] struct {
	mu     sync.Mutex
	values map[K]func() V
	keys   []K // in the order in which they came
}

// get is the value of a key. If there are more than most already, the oldest one is forgotten.
func (c *onceCache[K, V]) get(key K, most int, compute func() V) V {
	c.mu.Lock()
	value, ok := c.values[key]
	if !ok {
		if c.values == nil {
			c.values = map[K]func() V{}
		}
		if len(c.keys) >= most {
			delete(c.values, c.keys[0])
			c.keys = append(c.keys[:0], c.keys[1:]...)
		}
		value = sync.OnceValue(compute)
		c.values[key], c.keys = value, append(c.keys, key)
	}
	c.mu.Unlock()
	return value()
}

// namePool keeps each set of names once. A set that no stream holds any more is forgotten. The zero namePool is
// ready.
type namePool struct {
	mu   sync.Mutex
	seen map[uint64]weak.Pointer[nameSet] // by sum
}

// minPooled is the size from which a set of names is kept in the pool: a smaller one costs less than its place.
const minPooled = 16

func (p *namePool) find(sum uint64) *nameSet {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[sum].Value()
}

// keep returns the pool's set that equals n, or n.
func (p *namePool) keep(n *nameSet) *nameSet {
	if n.len() < minPooled {
		return n
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.seen[n.sum].Value(); old != nil {
		if equalNames(old.list, n.union(nil, nil)) {
			return old
		}
		return n // two sets of one sum; the first stays
	}
	if p.seen == nil {
		p.seen = map[uint64]weak.Pointer[nameSet]{}
	}
	w := weak.Make(n)
	p.seen[n.sum] = w
	runtime.AddCleanup(n, func(sum uint64) { p.forget(sum, w) }, n.sum)
	return n
}

func (p *namePool) forget(sum uint64, w weak.Pointer[nameSet]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen[sum] == w {
		delete(p.seen, sum)
	}
}
