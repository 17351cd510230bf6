package discovery

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

func TestStallIsReportedOnce(t *testing.T) {
	s := stall{limit: 10 * time.Second}
	for i, c := range []struct {
		busy             time.Duration
		changed, stalled bool
	}{
		{0, false, false}, {9 * time.Second, false, false}, {10 * time.Second, false, false}, {11 * time.Second, true, true},
		{time.Hour, false, true}, {0, true, false}, {time.Second, false, false}, {time.Minute, true, true}, {time.Second, true, false},
	} {
		if changed := s.observe(c.busy); changed != c.changed || s.stalled != c.stalled {
			t.Errorf("step %d, busy for %s: changed %v, stalled %v; want %v, %v", i, c.busy, changed, s.stalled, c.changed, c.stalled)
		}
	}
}

// blocking is a log handler in which a commit waits once it is armed.
type blocking struct {
	slog.Handler
	armed   atomic.Bool
	waiting atomic.Bool
	release chan struct{}
}

func (b *blocking) Enabled(context.Context, slog.Level) bool { return true }

func (b *blocking) Handle(ctx context.Context, r slog.Record) error {
	if b.armed.Load() && r.Message == "committed" {
		b.waiting.Store(true)
		<-b.release
	}
	return b.Handler.Handle(ctx, r)
}

// A commit hangs, and then goes on. Meanwhile nothing else does that needs the loop.
func TestReadinessFailsWhileTheLoopMakesNoProgress(t *testing.T) {
	var log wait.Output
	h := &blocking{Handler: slog.NewTextHandler(&log, nil), release: make(chan struct{})}
	p := start(t, func(o *Options) { o.Log, o.Watchdog = slog.New(h), time.Hour })
	// The limit is short only while the commit hangs: others take as long as the machine is busy.
	limit := func(d time.Duration) {
		w := p.server.loop.watchdog
		w.mu.Lock()
		defer w.mu.Unlock()
		w.limit, w.state.limit = d, d
	}
	p.emit(shop, true)
	c := p.dial("", "").open()
	c.expect("RDS", "9080")
	wait.Until(t, "readiness", func() bool { code, _ := p.get(p.addr.HTTP, "/ready"); return code == http.StatusOK })
	h.armed.Store(true)
	p.source.batches <- object.Batch{Problems: []object.Problem{{Text: "hang"}}}
	wait.Until(t, "the commit hangs", h.waiting.Load)
	limit(50 * time.Millisecond)
	wait.Until(t, "/ready fails", func() bool {
		code, body := p.get(p.addr.HTTP, "/ready")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "makes no progress: commit for")
	})
	wait.Until(t, "it is logged", func() bool { return strings.Contains(log.String(), "makes no progress: not ready") })
	if _, metrics := p.get(p.addr.Monitoring, "/metrics"); !strings.Contains(metrics, "\npilothouse_loop_stalled 1\n") || !strings.Contains(metrics, "\npilothouse_ready 0\n") {
		t.Error("the metrics do not tell of it")
	}
	if code, _ := p.get(p.addr.HTTP, "/debug/mesh"); code != http.StatusServiceUnavailable {
		t.Errorf("/debug/mesh: %d, want 503", code)
	}
	if err := p.dial("", "").refusal(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no progress") {
		t.Errorf("a new stream: %v, want Unavailable and why", err)
	}
	limit(time.Hour)
	close(h.release)
	wait.Until(t, "/ready succeeds again", func() bool { code, _ := p.get(p.addr.HTTP, "/ready"); return code == http.StatusOK })
	wait.Until(t, "that is logged", func() bool { return strings.Contains(log.String(), "makes progress again") })
	p.emit(route("{timeout: 7s, route: [{destination: {host: reviews}}]}"), false)
	c.until("9080", "\x08\x07") // a duration of 7 s
	wait.Until(t, "the metric is 0 again", func() bool {
		_, metrics := p.get(p.addr.Monitoring, "/metrics")
		return strings.Contains(metrics, "\npilothouse_loop_stalled 0\n")
	})
}
