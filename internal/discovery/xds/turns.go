package xds

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"
)

// turns lets connections send large requests as long as these take less than that many bytes together. When all
// proxies come back at once, each sends hundreds of kilobytes: without turns, all of that would be in memory until the
// last bytes have come, and be garbage then. With them, it takes the same buffers again and again.
var turns = semaphore.NewWeighted(turnBytes)

const (
	turnBytes = 4 << 20
	// turnTime is how long a connection may have its turn: one that is slow does not keep others waiting, and goes on
	// without.
	turnTime = 500 * time.Millisecond
	// turnWait is how long a connection waits for its turn; then it goes on without, too.
	turnWait = 3 * time.Second
)

// turn is a connection's turn to send large requests.
type turn struct {
	taken bool        // or waited for in vain, for the requests that are not whole yet
	bytes int64       // of turns; 0 while it has none
	end   *time.Timer // ends it
}

// awaitTurn waits for the connection's turn, if it has begun to send a large request. Only the goroutine that reads the
// connection calls it.
func (g *guard) awaitTurn() {
	size := g.turnSize()
	if size == 0 {
		return
	}
	if !turns.TryAcquire(size) {
		ctx, cancel := context.WithTimeout(context.Background(), turnWait)
		defer cancel()
		if turns.Acquire(ctx, size) != nil {
			return
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.turn.bytes, g.turn.end = size, time.AfterFunc(turnTime, g.endTurn)
}

// turnSize is of how many bytes the connection needs a turn, which it takes; 0 if it needs none, or has had it.
func (g *guard) turnSize() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.large == 0 {
		g.turn.taken = false
	}
	if g.large == 0 || g.turn.taken || g.turn.bytes > 0 {
		return 0
	}
	g.turn.taken = true
	return min(int64(g.large), turnBytes)
}

// endTurn ends the connection's turn, if it has one: a request of it has been decoded, or takes too long. A timer that
// has gone off meanwhile may end the next turn early, which does no harm.
func (g *guard) endTurn() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.turn.bytes == 0 {
		return
	}
	g.turn.end.Stop()
	turns.Release(g.turn.bytes)
	g.turn.bytes, g.turn.end = 0, nil
}
