package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
)

// goal is what all streams are to reach: everything that they asked for, or one change.
type goal struct {
	epoch    int // of the change; 0: everything
	from     int // the number of the first stream that counts
	streams  int // how many count
	start    time.Time
	finished chan struct{} // closed when the last stream has reached it

	mu    sync.Mutex
	left  int
	times []time.Duration
}

func (g *goal) reach() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.times = append(g.times, time.Since(g.start))
	if g.left--; g.left == 0 {
		close(g.finished)
	}
}

// totals are what all streams have exchanged.
type totals struct {
	Requests, Responses, Resources int64
	Asked, Sent                    int64 // bytes of requests and of responses
}

func (t totals) minus(o totals) totals {
	return totals{t.Requests - o.Requests, t.Responses - o.Responses, t.Resources - o.Resources, t.Asked - o.Asked, t.Sent - o.Sent}
}

// fleet is all streams to one server. Its methods are for one goroutine, except where the comment says that
// streams call them.
type fleet struct {
	delta   bool
	address string
	tables  *tables
	streams []*stream
	// script, if it is not nil, records what the first stream exchanges.
	script *script

	goal   atomic.Pointer[goal]
	failed chan error // at most one
	// opening has a value for each stream that has been opened and has not reached its goal; nil: any number may be.
	opening chan struct{}

	requests, responses, resources, asked, bytes atomic.Int64
	// restarts counts streams that began anew since their connections were closed before they were answered.
	restarts atomic.Int64
}

// newFleet is a fleet of which that many streams may be opening at a time, or any number if it is 0.
func newFleet(delta bool, address string, atATime int) *fleet {
	f := &fleet{delta: delta, address: address, tables: newTables(delta), failed: make(chan error, 1)}
	if atATime > 0 {
		f.opening = make(chan struct{}, atATime)
	}
	return f
}

// add adds a proxy, whose stream is not open yet.
func (f *fleet) add(p proxy, creds credentials.TransportCredentials) {
	f.streams = append(f.streams, &stream{fleet: f, number: len(f.streams), proxy: p, creds: creds})
}

// current is called by streams.
func (f *fleet) current() *goal { return f.goal.Load() }

// fail is called by streams; the first error counts.
func (f *fleet) fail(err error) {
	select {
	case f.failed <- err:
	default:
	}
}

// received is called by streams with each response.
func (f *fleet) received(s *stream, r *response) {
	f.responses.Add(1)
	f.resources.Add(int64(len(r.resources)))
	f.bytes.Add(int64(len(r.body)))
	if f.script != nil && s.number == 0 {
		f.script.response(bytes.Clone(r.body))
	}
}

// again is called by streams that begin anew.
func (f *fleet) again(s *stream) {
	f.restarts.Add(1)
	if f.script != nil && s.number == 0 {
		f.script.restart()
	}
}

// sent is called by streams with the size of each request.
func (f *fleet) sent(s *stream, size int) {
	f.requests.Add(1)
	f.asked.Add(int64(size))
	if f.script != nil && s.number == 0 {
		f.script.request()
	}
}

func (f *fleet) totals() totals {
	return totals{f.requests.Load(), f.responses.Load(), f.resources.Load(), f.asked.Load(), f.bytes.Load()}
}

// aim sets a goal for a number of streams, those from a number on. With a marker, it is to receive a resource that
// contains the marker.
func (f *fleet) aim(from, streams int, marker []byte) *goal {
	g := &goal{finished: make(chan struct{}), from: from, streams: streams, left: streams}
	if marker != nil {
		g.epoch = f.tables.mark(marker)
	}
	g.start = time.Now()
	f.goal.Store(g)
	return g
}

// connect opens the streams, as many at once as may be opening.
func (f *fleet) connect(ctx context.Context, streams []*stream) error {
	errs := make([]error, len(streams))
	var all sync.WaitGroup
	for i, s := range streams {
		all.Go(func() {
			release, err := f.acquire(ctx)
			if err != nil {
				errs[i] = fmt.Errorf("stream of %s: wait for others to receive what they asked for: %w", s.proxy.id, err)
				return
			}
			s.opened = release
			if errs[i] = s.open(ctx); errs[i] != nil {
				release()
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// acquire waits until one more stream may be opening. Calls of release after the first have no effect.
func (f *fleet) acquire(ctx context.Context) (release func(), err error) {
	if f.opening == nil {
		return func() {}, nil
	}
	select {
	case f.opening <- struct{}{}:
		return sync.OnceFunc(func() { <-f.opening }), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// close ends all streams.
func (f *fleet) close() {
	for _, s := range f.streams {
		if s.conn != nil {
			s.close()
		}
	}
}

// wait waits until all streams have reached a goal, and returns the times at which they did, in order.
func (f *fleet) wait(ctx context.Context, g *goal) ([]time.Duration, error) {
	select {
	case <-g.finished:
	case err := <-f.failed:
		return nil, err
	case <-ctx.Done():
		g.mu.Lock()
		defer g.mu.Unlock()
		return nil, fmt.Errorf("%d of %d streams have not received everything: %w", g.left, g.left+len(g.times), ctx.Err())
	}
	slices.Sort(g.times)
	return g.times, nil
}
