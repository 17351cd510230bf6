package xds

import (
	"sync/atomic"
	"time"
)

// LatestView holds the newest view of one proxy. One goroutine publishes, any number load and
// wait for the next.
type LatestView struct{ p atomic.Pointer[published] }

type published struct {
	view *View
	at   time.Time
	next chan struct{} // closed when there is a newer one
}

// NewLatestView starts with v, which may be nil while there is none yet.
func NewLatestView(v *View) *LatestView {
	c := &LatestView{}
	c.p.Store(&published{view: v, at: time.Now(), next: make(chan struct{})})
	return c
}

// Publish replaces the view. Only one goroutine may call it.
func (c *LatestView) Publish(v *View) {
	old := c.p.Swap(&published{view: v, at: time.Now(), next: make(chan struct{})})
	close(old.next)
}

// Load is the newest view, nil before there is one, and a channel that is closed when
// there is a newer one.
func (c *LatestView) Load() (*View, <-chan struct{}) {
	p := c.p.Load()
	return p.view, p.next
}
