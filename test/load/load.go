// Package load sends traffic without retries, and counts the results.
//
// Requests are written without a client library, one after another on each connection, so that
// nothing is sent twice: a silent retry would hide what a test looks for. A connection is closed only when its peer asks
// for it ("connection: close", GOAWAY); any other end is a failure. TCP streams get no notice of a
// drain: their ends are recorded with their times, for the test to check. A Load is stopped once; Stop waits for all
// of its goroutines.
package load

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Dial makes a connection; it is net.Dialer's DialContext, or that of a Pod.
type Dial func(ctx context.Context, network, addr string) (net.Conn, error)

// Load is running traffic.
type Load struct {
	dial   Dial
	ctx    context.Context
	cancel context.CancelFunc
	group  sync.WaitGroup
	sent   atomic.Int64
	began  time.Time

	// mu guards the rest, which every worker adds to.
	mu       sync.Mutex
	failures map[string]int
	answers  map[string]int64
	ends     []End
}

// End is an unexpected end of a TCP stream.
type End struct {
	Opened, Ended time.Time
	Err           error
}

// Result is the result of a Load.
type Result struct {
	// Sent counts the requests, Answers those with status 200, by kind of traffic.
	Sent    int64
	Answers map[string]int64
	// Failures counts the others by error.
	Failures map[string]int
	// Ends are the streams' ends.
	Ends []End
	Took time.Duration
}

// New makes a Load that sends nothing yet.
func New(ctx context.Context, dial Dial) *Load {
	l := &Load{dial: dial, failures: map[string]int{}, answers: map[string]int64{}, began: time.Now()}
	l.ctx, l.cancel = context.WithCancel(ctx)
	return l
}

// Stop waits for the requests in flight and returns the result.
func (l *Load) Stop() Result {
	l.cancel()
	l.group.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return Result{
		Sent: l.sent.Load(), Answers: maps.Clone(l.answers), Failures: maps.Clone(l.failures),
		Ends: slices.Clone(l.ends), Took: time.Since(l.began),
	}
}

// Rate is the requests per second.
func (r Result) Rate() float64 { return float64(r.Sent) / r.Took.Seconds() }

// Broken are the streams that ended although no Envoy had come live before, or not so long
// ago as the drain lasts: the drain is the time that a stream has.
func (r Result) Broken(live []time.Time, drain time.Duration) []End {
	var out []End
	for _, e := range r.Ends {
		allowed := false
		for _, at := range live {
			if at.After(e.Opened) && e.Ended.Sub(at) >= drain {
				allowed = true
			}
		}
		if !allowed {
			out = append(out, e)
		}
	}
	return out
}

func (l *Load) over() bool { return l.ctx.Err() != nil }

func (l *Load) fail(kind string, err error) {
	text := err.Error()
	// Ports differ from try to try; the sort of failure is what counts.
	if i := strings.Index(text, "->"); i >= 0 {
		text = text[i:]
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures[fmt.Sprintf("%s after %v: %s", kind, time.Since(l.began).Round(100*time.Millisecond), text)]++
}

func (l *Load) answered(kind string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answers[kind]++
}

// pace waits for the next request's turn; it reports false when it is over.
func (l *Load) pace(tick *time.Ticker) bool {
	select {
	case <-l.ctx.Done():
		return false
	case <-tick.C:
		return true
	}
}

// workers runs n of them, each with a turn every so often, out of step with each other.
func (l *Load) workers(n int, every time.Duration, work func(turn func() bool)) {
	for i := range n {
		l.group.Go(func() {
			first := time.NewTimer(every * time.Duration(i) / time.Duration(n))
			defer first.Stop()
			select {
			case <-l.ctx.Done():
				return
			case <-first.C:
			}
			tick := time.NewTicker(every)
			defer tick.Stop()
			work(func() bool { return l.pace(tick) })
		})
	}
}
