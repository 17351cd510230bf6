package xds

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxUnfinishedAll bounds what all connections together have sent of requests that are not whole yet, in bytes. Past it,
	// connections that have sent much of theirs wait; see maxUnfinished for what one connection may hold.
	maxUnfinishedAll = 256 << 20
	// stallTime is how long a connection may hold much of it while others wait. A client that sends most of a request, and then no more,
	// would keep what it holds.
	stallTime = 5 * time.Second
	// sweepTime is how often such connections are looked for.
	sweepTime = 250 * time.Millisecond
	// maxFinishing is how many connections may send the rest of their requests although there is no room, each for turnTime at
	// a time: if all waited for each other, none of the requests would become whole.
	maxFinishing = 16
)

// room is where the requests that are not whole yet have place. Any goroutine may use it.
type room struct {
	most  int64
	stall time.Duration
	bytes atomic.Int64
	// finishing has a value for each connection that goes on although there is no room.
	finishing chan struct{}

	mu    sync.Mutex
	free  chan struct{} // closed when there is room again; nil while nobody waits for that
	swept time.Time
}

func newRoom() room {
	return room{most: maxUnfinishedAll, stall: stallTime, finishing: make(chan struct{}, maxFinishing)}
}

// add notes that so many bytes more are held, or less.
func (r *room) add(n int) {
	now := r.bytes.Add(int64(n))
	if now > r.most || now-int64(n) <= r.most {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.free != nil {
		close(r.free)
		r.free = nil
	}
}

// full returns what is closed when there is room again, nil if there is.
func (r *room) full() <-chan struct{} {
	if r.bytes.Load() <= r.most {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bytes.Load() <= r.most {
		return nil
	}
	if r.free == nil {
		r.free = make(chan struct{})
	}
	return r.free
}

// sweep says whether to look for connections that have stalled.
func (r *room) sweep(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.swept) < sweepTime {
		return false
	}
	r.swept = now
	return true
}

// awaitRoom waits until there is room for more, or the connection may go on without, if it holds much already. Only the goroutine that reads the connection
// calls it.
func (g *guard) awaitRoom() {
	for {
		free := g.server.room.full()
		if free == nil {
			return
		}
		if since, _ := g.held(); since.IsZero() || g.isFinishing() {
			return
		}
		g.server.endStalled(time.Now())
		next := time.NewTimer(sweepTime)
		select {
		case <-free:
		case <-g.closed:
		case g.server.room.finishing <- struct{}{}:
			g.finish()
		case <-next.C:
			continue
		}
		next.Stop()
		return
	}
}

// finish notes that the connection goes on although there is no room, for turnTime or until its requests are whole.
func (g *guard) finish() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.finishing = time.AfterFunc(turnTime, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.finished() // of the next time, if the timer is late, which does no harm
	})
	if g.gone {
		g.finished()
	}
}

func (g *guard) isFinishing() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.finishing != nil
}

// finished ends what finish began. The caller holds mu.
func (g *guard) finished() {
	if g.finishing != nil {
		g.finishing.Stop()
		g.finishing = nil
		<-g.server.room.finishing
	}
}

// held is since when the connection holds much of requests that are not whole yet, the zero time if it does not, and how much.
func (g *guard) held() (since time.Time, bytes int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.since, g.waiting
}

// hold notes that n bytes more of unfinished requests are held, or less. The caller holds mu.
func (g *guard) hold(n int) {
	if n == 0 {
		return
	}
	g.waiting += n
	if !g.gone {
		g.server.room.add(n)
	}
	switch {
	case g.waiting <= large:
		g.since = time.Time{}
		g.finished()
	case g.since.IsZero():
		g.since = time.Now()
	}
}

// release gives back what the connection holds, at its end.
func (g *guard) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.gone {
		g.gone = true
		close(g.closed)
		g.finished()
		g.server.room.add(-g.waiting)
	}
}

// endStalled ends the streams of the connections that have held much for the longest time, for too long, until a quarter of the room is free.
func (s *Server) endStalled(now time.Time) {
	if !s.room.sweep(now) {
		return
	}
	type holder struct {
		guard *guard
		since time.Time
		bytes int
	}
	var stalled []holder
	s.mu.Lock()
	for _, g := range s.guards {
		if g == nil {
			continue
		}
		if since, n := g.held(); !since.IsZero() && now.Sub(since) >= s.room.stall {
			stalled = append(stalled, holder{g, since, n})
		}
	}
	s.mu.Unlock()
	slices.SortFunc(stalled, func(a, b holder) int { return a.since.Compare(b.since) })
	over := s.room.bytes.Load() - s.room.most/4*3
	for _, h := range stalled {
		if over <= 0 {
			return
		}
		over -= int64(h.bytes)
		h.guard.endStreams()
	}
}

// endStreams ends the connection's streams, and the connection if they have not ended after endingLimit.
func (g *guard) endStreams() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.eased != nil {
		return // they are about to end
	}
	eased := g.overfill()
	time.AfterFunc(endingLimit, func() {
		select {
		case <-eased:
		case <-g.closed:
		default:
			g.server.refusals.note(g.server, unfinished(), "address "+g.entry.address)
			_ = g.Close() // nothing can be done about an error
		}
	})
}
