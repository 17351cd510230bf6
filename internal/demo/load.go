package demo

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// The load during a scenario: enough to notice a gap of some milliseconds, and little enough
// for two CPUs, since every request passes six proxies.
const (
	workers = 8
	pace    = 4 * time.Millisecond // between two requests
)

// load makes requests and counts them.
type load struct {
	caller, url string
	client      *http.Client

	// mu guards now and total, which all workers add to.
	mu    sync.Mutex
	now   *counters // since the last reset, for the table and the checks of a scenario
	total int       // since the start
}

func newLoad(caller, url string, client *http.Client) *load {
	return &load{caller: caller, url: url, client: client, now: newCounters()}
}

// one makes a request and counts it, also if the end of the demo interrupts it.
func (l *load) one(ctx context.Context, header http.Header) {
	a, err := meshup.Post(ctx, l.client, l.url, header)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total++
	l.now.add(l.caller, a, err)
}

// send makes n requests, several at a time, and returns when all are answered.
func (l *load) send(ctx context.Context, n int, header http.Header) {
	turns := make(chan struct{}, n)
	for range n {
		turns <- struct{}{}
	}
	close(turns)
	l.consume(ctx, header, turns)
}

// consume makes a request for each turn until the channel is closed.
func (l *load) consume(ctx context.Context, header http.Header, turns <-chan struct{}) {
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for range turns {
				if ctx.Err() != nil {
					return
				}
				l.one(ctx, header)
			}
		})
	}
	group.Wait()
}

// during makes requests while fn runs, then waits for the last answer.
func (l *load) during(ctx context.Context, fn func() error) error {
	turns, stop := make(chan struct{}), make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		defer close(turns)
		tick := time.NewTicker(pace)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			select {
			case turns <- struct{}{}:
			case <-stop:
				return
			case <-ctx.Done():
				return
			}
		}
	})
	group.Go(func() { l.consume(ctx, nil, turns) })
	err := fn()
	close(stop)
	group.Wait()
	return err
}

// reset begins a new count and returns the old one.
func (l *load) reset() *counters {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.now
	l.now = newCounters()
	return old
}

// snapshot is a copy of the current count.
func (l *load) snapshot() *counters {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := newCounters()
	c.Sent, c.OK = l.now.Sent, l.now.OK
	for k, v := range l.now.Edges {
		c.Edges[k] = v
	}
	for k, v := range l.now.Errors {
		c.Errors[k] = v
	}
	return c
}

// sent is how many requests were made since the beginning.
func (l *load) sent() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}
