package discovery

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// watchdog watches whether the loop makes progress. If it does not, readiness fails, so that proxies
// connect to another instance, and nobody waits for the loop's answers.
type watchdog struct {
	log *slog.Logger

	mu    sync.Mutex // guards what follows
	limit time.Duration
	doing string    // the present event; empty while the loop waits for one
	since time.Time // when it began
	state stall
	// notice is closed when the loop is stalled, and made anew when it is not any more.
	notice chan struct{}
}

func newWatchdog(limit time.Duration, log *slog.Logger) *watchdog {
	return &watchdog{log: log, limit: limit, state: stall{limit: limit}, notice: make(chan struct{})}
}

// do runs the handling of an event, on the loop's goroutine.
func (w *watchdog) do(event string, handle func()) {
	w.begin(event)
	handle()
	w.begin("")
}

func (w *watchdog) begin(event string) {
	w.mu.Lock()
	w.doing, w.since = event, time.Now()
	w.mu.Unlock()
	if event == "" {
		w.look()
	}
}

// busy returns the present event and for how long it has been handled; "" and 0 if there is none.
func (w *watchdog) busy() (event string, d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.busyLocked()
}

func (w *watchdog) busyLocked() (event string, d time.Duration) {
	if w.doing == "" {
		return "", 0
	}
	return w.doing, time.Since(w.since)
}

// look decides anew, and logs a change.
func (w *watchdog) look() {
	w.mu.Lock()
	event, d := w.busyLocked()
	changed := w.state.observe(d)
	stalled := w.state.stalled
	switch {
	case changed && stalled:
		close(w.notice)
	case changed:
		w.notice = make(chan struct{})
	}
	w.mu.Unlock()
	switch {
	case changed && stalled:
		w.log.Error("the control plane makes no progress: not ready", "doing", event, "for", d.Round(time.Millisecond))
	case changed:
		w.log.Info("the control plane makes progress again")
	}
}

// stalled returns a channel that is closed while the loop makes no progress.
func (w *watchdog) stalled() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.notice
}

// why says why the loop does not make progress, "" if it does.
func (w *watchdog) why() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	event, d := w.busyLocked()
	if d <= w.limit {
		return ""
	}
	return fmt.Sprintf("the control plane makes no progress: %s for %s (--watchdogTimeout %s)", event, d.Round(time.Second), w.limit)
}

// run looks often enough until ctx ends.
func (w *watchdog) run(ctx context.Context) error {
	w.mu.Lock()
	often := min(max(w.limit/10, 10*time.Millisecond), time.Second)
	w.mu.Unlock()
	tick := time.NewTicker(often)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			w.look()
		case <-ctx.Done():
			return nil
		}
	}
}
