package xds

import "sync"

// maxSteps bounds the steps that are remembered. More than a few are wanted only while many
// layers change at the same time; a forgotten one is computed again.
const maxSteps = 128

// stepCache shares the steps from one set of a layer to the next between the streams that take
// them. Any goroutine may use it; the zero stepCache is ready.
type stepCache struct {
	mu   sync.Mutex
	seen map[[2]*set]step
}

func (c *stepCache) between(old, cur *set) step {
	if old == nil || cur == nil {
		return between(old, cur) // nothing has to be compared
	}
	key := [2]*set{old, cur}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, ok := c.seen[key]; ok {
		return s
	}
	if c.seen == nil || len(c.seen) >= maxSteps {
		c.seen = make(map[[2]*set]step, maxSteps)
	}
	s := between(old, cur)
	c.seen[key] = s
	return s
}
