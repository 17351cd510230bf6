package xdsproxy

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// This file holds back Envoy's acknowledgement of its inbound listener until the listener is in force. Envoy acknowledges when its
// main thread has accepted a listener; each worker takes it over at its own time, and goes on with the old one, and its
// policies, until then. The control plane sends what a policy guards after the acknowledgement
// (docs/decisions/0082-routes-wait-for-policies.md). Istio's control plane does not wait, and loses nothing by it.

// Stats reads counters and gauges of Envoy by a regular expression of their names; envoy.Admin does.
type Stats func(ctx context.Context, filter string) (map[string]uint64, error)

const (
	// workersLimit is the longest that an acknowledgement is held back: less than the control plane waits for it.
	workersLimit = 4 * time.Second
	// statsLimit bounds the question before a response: Envoy gets it later by that.
	statsLimit = time.Second
	// firstPause and longestPause are the times between two questions; each is twice the one before.
	firstPause, longestPause = 2 * time.Millisecond, 100 * time.Millisecond
	// maxHeld is how many requests of a stream wait behind one that is held back, before its other requests wait too.
	maxHeld = 16
)

// listenerStats is the filter of the stats that readListeners reads.
const listenerStats = `^(server\.concurrency|listener_manager\.(workers_started|total_listeners_warming|listener_(added|modified|create_success|create_failure)))$`

// listeners is what Envoy's workers have of the listeners that its main thread has.
type listeners struct {
	// warming is how many wait for what they name, such as a secret, and are not given to the workers yet.
	warming int
	// behind is how many listeners have been given to workers that have not taken them over, counted for each worker. Those
	// that were replaced while they were warming are counted, too.
	behind int
}

// readListeners reads the state; false if stats are missing, or the workers have not begun to accept connections.
// https://www.envoyproxy.io/docs/envoy/latest/configuration/listeners/stats#listener-manager
func readListeners(stats map[string]uint64) (listeners, bool) {
	of := func(name string) (int, bool) { n, ok := stats["listener_manager."+name]; return int(n), ok }
	workers, known := stats["server.concurrency"]
	added, ok1 := of("listener_added")
	modified, ok2 := of("listener_modified")
	taken, ok3 := of("listener_create_success") // by each worker
	failed, _ := of("listener_create_failure")
	warming, ok4 := of("total_listeners_warming")
	if started, _ := of("workers_started"); started == 0 || !known || !ok1 || !ok2 || !ok3 || !ok4 {
		return listeners{}, false
	}
	return listeners{warming: warming, behind: int(workers)*(added+modified-warming) - taken - failed}, true
}

// workers holds back acknowledgements of one stream.
type workers struct {
	p       *Proxy
	forward func(f *frame, url string) error
	delta   bool

	mu sync.Mutex // guards watched, least and known
	// watched are the nonces of the responses whose acknowledgements are to be held back.
	watched map[string]bool
	// least is the fewest that the workers were behind, if known: none, or what was replaced while it was warming.
	least int
	known bool
	held  chan heldRequest // nil until there is one; of the goroutine that reads requests
}

type heldRequest struct {
	frame   *frame
	watched bool
}

// newWorkers returns nil if nothing is to be held back.
func (p *Proxy) newWorkers(down *downstream, forward func(*frame, string) error) *workers {
	if p.config.Stats == nil || !isEnvoy(down.Context()) {
		return nil
	}
	return &workers{p: p, forward: forward, delta: down.delta, watched: map[string]bool{}}
}

// response takes note of a response before Envoy gets it.
func (w *workers) response(ctx context.Context, f *frame, h head) {
	if w == nil || h.url != listenerType || w.delta && !bringsInbound(f.data) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, statsLimit)
	defer cancel()
	l, ok := w.read(ctx)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.known || l.behind < w.least {
		w.least, w.known = l.behind, true
	}
	if len(w.watched) < maxHeld {
		w.watched[h.nonce] = true
	}
}

func (w *workers) read(ctx context.Context) (listeners, bool) {
	stats, err := w.p.config.Stats(ctx, listenerStats)
	if err != nil {
		return listeners{}, false
	}
	return readListeners(stats)
}

// request takes a request that is to wait, and reports whether it did.
func (w *workers) request(ctx context.Context, f *frame, h head) bool {
	if w == nil || h.url != listenerType {
		return false
	}
	w.mu.Lock()
	watched := w.watched[h.nonce] && !h.refused
	if h.nonce != "" {
		delete(w.watched, h.nonce)
	}
	w.mu.Unlock()
	if w.held == nil {
		if !watched {
			return false
		}
		w.held = make(chan heldRequest, maxHeld)
		w.p.relays.Add(1)
		go w.run(ctx, w.held)
	}
	select {
	case w.held <- heldRequest{f, watched}:
	case <-ctx.Done():
	}
	return true
}

// run sends the requests about listeners from the first that is held back on, in their order, until ctx ends.
func (w *workers) run(ctx context.Context, held <-chan heldRequest) {
	defer w.p.relays.Done()
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-held:
			if r.watched {
				w.await(ctx)
			}
			if w.forward(r.frame, listenerType) != nil {
				// exchange gets the reason, and ends ctx.
				<-ctx.Done()
				return
			}
		}
	}
}

// await waits until the workers have the listeners that the main thread has.
func (w *workers) await(ctx context.Context) {
	began := time.Now()
	asking, cancel := context.WithTimeout(ctx, w.p.workersLimit)
	defer cancel()
	pause := firstPause
	next := time.NewTimer(pause)
	defer next.Stop()
	var last listeners
	for {
		l, ok := w.read(asking)
		switch {
		case ok:
			last = l
		case asking.Err() == nil:
			return // another process serves the admin interface by now
		}
		w.mu.Lock()
		done := ok && l.warming == 0 && l.behind <= w.least
		w.mu.Unlock()
		if done {
			return
		}
		next.Reset(pause)
		pause = min(2*pause, longestPause)
		select {
		case <-next.C:
		case <-asking.Done():
			if ctx.Err() == nil {
				w.giveUp(last)
				w.p.config.Log.Warn("Envoy's workers have not taken over the inbound listener that Envoy has accepted: older policies may be in force",
					"after", time.Since(began).Round(time.Millisecond).String(), "warming", last.warming, "behind", last.behind)
			}
			return
		}
	}
}

// giveUp takes note of listeners that no worker takes over any more, so that later ones are not waited for in vain.
func (w *workers) giveUp(last listeners) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if last.warming == 0 {
		w.least = last.behind
	}
}

// bringsInbound reports whether a delta response brings the inbound listener.
func bringsInbound(response mem.BufferSlice) bool {
	const resourceName, name = 3, mesh.VirtualInbound
	r := response.Reader()
	defer r.Close()
	for r.Remaining() > 0 {
		n, size, err := nextField(r)
		if err != nil {
			return false
		}
		if size < 0 {
			continue
		}
		if n != responseResources {
			if _, err := r.Discard(size); err != nil {
				return false
			}
			continue
		}
		for end := r.Remaining() - size; r.Remaining() > end; {
			n, size, err := nextField(r)
			switch {
			case err != nil:
				return false
			case size < 0:
			case n == resourceName && size == len(name):
				if text, err := readText(r, n, size, size); err != nil || text == name {
					return err == nil
				}
			default:
				if _, err := r.Discard(size); err != nil {
					return false
				}
			}
		}
	}
	return false
}
