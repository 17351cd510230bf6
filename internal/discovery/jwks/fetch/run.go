package fetch

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/jwks"
)

// Update is what is known of a source after a fetch.
type Update struct {
	Source jwks.Source
	State  jwks.State
}

// Fetcher fetches the keys of the sources that are wanted. Create one with New. Its methods are safe for concurrent use.
type Fetcher struct {
	client *Client
	plan   *jwks.Plan // of the goroutine that runs Run

	mu     sync.Mutex // guards wanted
	wanted map[jwks.Source]time.Duration
	wake   chan struct{}

	succeeded, failed atomic.Uint64
}

// New returns a fetcher, which fetches keys again after an interval; it must be positive. known is what an earlier process fetched.
func New(client *Client, interval time.Duration, known map[jwks.Source]jwks.State) *Fetcher {
	return &Fetcher{client: client, plan: jwks.NewPlan(interval, known), wake: make(chan struct{}, 1)}
}

// Want says which sources are needed, each with the time that a fetch may take. It does not block.
func (f *Fetcher) Want(sources map[jwks.Source]time.Duration) {
	f.mu.Lock()
	f.wanted = sources
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Counts returns how many fetches have succeeded and failed.
func (f *Fetcher) Counts() (succeeded, failed uint64) { return f.succeeded.Load(), f.failed.Load() }

// result is how a fetch ended.
type result struct {
	source jwks.Source
	keys   string
	number int
	err    error
}

// Run fetches until ctx ends, then returns nil when all fetches have ended. emit is called after each one, from one goroutine; it may wait.
func (f *Fetcher) Run(ctx context.Context, emit func(Update)) error {
	results := make(chan result)
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		for _, due := range f.plan.Due(time.Now()) {
			all.Go(func() {
				bounded, done := context.WithTimeout(ctx, due.Timeout)
				defer done()
				r := result{source: due.Source}
				r.keys, r.number, r.err = f.client.Keys(bounded, due.Source)
				select {
				case results <- r:
				case <-ctx.Done():
				}
			})
		}
		timer := time.NewTimer(f.pause())
		select {
		case <-timer.C:
		case <-f.wake:
			f.mu.Lock()
			wanted := f.wanted
			f.mu.Unlock()
			f.plan.Want(wanted, time.Now())
		case r := <-results:
			f.take(r, emit)
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		timer.Stop()
	}
}

// pause is how long nothing is due. Those that are due and may not run yet wait for the end of another fetch.
func (f *Fetcher) pause() time.Duration {
	next := f.plan.Next()
	if next.IsZero() {
		return time.Hour
	}
	if pause := time.Until(next); pause > 0 {
		return pause
	}
	return time.Second
}

func (f *Fetcher) take(r result, emit func(Update)) {
	failed := ""
	if r.err != nil {
		failed = r.err.Error()
		f.failed.Add(1)
	} else {
		f.succeeded.Add(1)
	}
	state, wanted := f.plan.Done(r.source, r.keys, r.number, failed, time.Now(), rand.Float64()) // #nosec G404 -- only spreads load
	if wanted {
		emit(Update{Source: r.source, State: state})
	}
}
