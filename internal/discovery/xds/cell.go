package xds

import (
	"sync"
	"sync/atomic"
	"time"
)

// Cell holds the newest view of one class. One goroutine publishes, any number load.
type Cell struct{ p atomic.Pointer[published] }

type published struct {
	view *View
	at   time.Time
	next chan struct{} // closed when there is a newer one
}

// NewCell makes a cell; v may be nil while there is nothing to show yet.
func NewCell(v *View) *Cell {
	c := &Cell{}
	c.p.Store(&published{view: v, at: time.Now(), next: make(chan struct{})})
	return c
}

// Publish replaces the view. Only one goroutine may call it.
func (c *Cell) Publish(v *View) {
	old := c.p.Swap(&published{view: v, at: time.Now(), next: make(chan struct{})})
	close(old.next)
}

// Load is the newest view, nil before there is one, and a channel that is closed when
// there is a newer one.
func (c *Cell) Load() (*View, <-chan struct{}) {
	p := c.p.Load()
	return p.view, p.next
}

// maxSteps bounds the differences that are remembered. More than a few are wanted only
// while classes move at the same time; a forgotten one is computed again.
const maxSteps = 128

// steps shares differences between streams that make the same step.
type steps struct {
	mu   sync.Mutex
	seen map[[2]*TypeView]*Delta
}

func (s *steps) diff(old, cur *TypeView) *Delta {
	if old == cur {
		return &Delta{Union: cur}
	}
	key := [2]*TypeView{old, cur}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.seen[key]; d != nil {
		return d
	}
	if s.seen == nil || len(s.seen) >= maxSteps {
		s.seen = make(map[[2]*TypeView]*Delta, maxSteps)
	}
	d := Diff(old, cur)
	s.seen[key] = d
	return d
}
