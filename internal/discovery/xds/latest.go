package xds

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// LatestView holds the newest view of one proxy, and which of its views the proxy has not applied. One
// goroutine publishes, one stream takes the views, any number load, wait for the next and read the
// progress. The stream also says what of its views the proxy has accepted and refused.
type LatestView struct {
	p       atomic.Pointer[published]
	reports reports

	mu sync.Mutex
	// unapplied and unanswered are the views that the proxy has not accepted, and those of which it
	// has not answered everything.
	unapplied, unanswered backlog
	taken                 publication // of the view that the stream took last
	// awaited are the generations of changes that the proxy has not applied, oldest first, and onApplied is called with
	// those that it has applied. Nil counts none.
	awaited   []uint64
	onApplied func(generations []uint64)
}

// maxAwaited bounds what is counted for a proxy that applies nothing: of older changes it counts as not applied for good.
const maxAwaited = 100

type published struct {
	view *View
	publication
	next chan struct{} // closed when there is a newer one
}

// publication is when a view was published to a proxy. The generation may be newer than the view's:
// another class may have had the view before.
type publication struct {
	generation uint64
	at         time.Time
}

// none says that nothing was published.
func (p publication) none() bool { return p.at.IsZero() }

// backlog is the oldest view that something is missing of; none if nothing is.
type backlog struct {
	taken publication // of the views that the stream has taken
	newer publication // of those since
}

func (b *backlog) publish(p publication) {
	if b.newer.none() {
		b.newer = p
	}
}

func (b *backlog) take() {
	if b.taken.none() {
		b.taken = b.newer
	}
	b.newer = publication{}
}

// report notes whether nothing is missing of the view that was taken last.
func (b *backlog) report(done bool, last publication) {
	switch {
	case done:
		b.taken = publication{}
	case b.taken.none():
		b.taken = last // the client has asked for more of it
	}
}

func (b *backlog) first() publication {
	if !b.taken.none() {
		return b.taken
	}
	return b.newer
}

// NewLatestView starts with v, which may be nil while there is none yet. The proxy lacks every
// generation.
func NewLatestView(v *View) *LatestView {
	c := &LatestView{}
	now := publication{generation: 1, at: time.Now()}
	c.p.Store(&published{view: v, publication: now, next: make(chan struct{})})
	c.unapplied.publish(now)
	c.unanswered.publish(now)
	return c
}

// Publish is PublishAt for a view that is new in its own generation.
func (c *LatestView) Publish(v *View) { c.PublishAt(v, v.Generation) }

// PublishAt replaces the view as part of a generation, which must not be older than that of the call
// before. Only one goroutine may call it.
func (c *LatestView) PublishAt(v *View, generation uint64) {
	p := &published{view: v, publication: publication{generation, time.Now()}, next: make(chan struct{})}
	c.mu.Lock()
	old := c.p.Swap(p)
	c.unapplied.publish(p.publication)
	c.unanswered.publish(p.publication)
	c.mu.Unlock()
	close(old.next)
}

// OnApplied has f be called, from any goroutine, with the generations of changes that the proxy has applied. Call it before the
// LatestView is given to a stream.
func (c *LatestView) OnApplied(f func(generations []uint64)) { c.onApplied = f }

// Await notes that the next view is published because of a change, of this generation; it is not older than that of the call
// before. It reports whether the proxy was not awaited to apply it already. Only the goroutine that publishes may call it.
func (c *LatestView) Await(generation uint64) bool {
	if c.onApplied == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.awaited); n > 0 && c.awaited[n-1] == generation {
		return false
	}
	if len(c.awaited) == maxAwaited {
		c.awaited = append(c.awaited[:0], c.awaited[1:]...)
	}
	c.awaited = append(c.awaited, generation)
	return true
}

// Awaited are the generations of changes that the proxy has not applied.
func (c *LatestView) Awaited() []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.awaited)
}

// arrived takes the changes that are part of the view that was taken last.
func (c *LatestView) arrived() (generations []uint64) {
	n, _ := slices.BinarySearch(c.awaited, c.taken.generation+1)
	if n == 0 {
		return nil
	}
	generations, c.awaited = c.awaited[:n:n], slices.Clone(c.awaited[n:])
	return generations
}

// Load is the newest view, nil before there is one, and a channel that is closed when
// there is a newer one.
func (c *LatestView) Load() (*View, <-chan struct{}) {
	p := c.p.Load()
	return p.view, p.next
}

// Take is Load for the stream, which reports on the view from then on.
func (c *LatestView) Take() (*View, <-chan struct{}) {
	p := c.take()
	return p.view, p.next
}

func (c *LatestView) take() *published {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.p.Load()
	if p.view != nil {
		c.taken = p.publication
		c.unapplied.take()
		c.unanswered.take()
	}
	return p
}

// Report notes how far the proxy is with the view that was taken last: whether it has answered all of it,
// and whether it has accepted all of it.
func (c *LatestView) Report(answered, applied bool) {
	c.mu.Lock()
	c.unanswered.report(answered, c.taken)
	c.unapplied.report(applied, c.taken)
	var generations []uint64
	if applied {
		generations = c.arrived()
	}
	c.mu.Unlock()
	if len(generations) > 0 {
		c.onApplied(generations)
	}
}

// Progress is which generations a proxy has applied.
type Progress struct {
	// Missing is the first generation that the proxy has not applied, or of which it has refused
	// something; 0 if it has applied all. It has applied every generation before.
	Missing uint64
	// Since is when Missing was published to the proxy; zero if nothing is missing.
	Since time.Time
	// Unanswered is the first generation of which the proxy has not answered everything, by
	// accepting or by refusing it; 0 if there is none.
	Unanswered uint64
}

// Applied says whether the proxy has applied a generation.
func (p Progress) Applied(generation uint64) bool { return p.Missing == 0 || p.Missing > generation }

// Answered says whether the proxy has accepted or refused everything of a generation.
func (p Progress) Answered(generation uint64) bool {
	return p.Unanswered == 0 || p.Unanswered > generation
}

// Progress is how far the proxy is. Any goroutine may call it.
func (c *LatestView) Progress() (out Progress) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.unapplied.first(); !f.none() {
		out.Missing, out.Since = max(f.generation, 1), f.at
	}
	if f := c.unanswered.first(); !f.none() {
		out.Unanswered = max(f.generation, 1)
	}
	return out
}
