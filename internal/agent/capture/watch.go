package capture

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
)

// Watch keeps a plan in force: it restores rules of capture that another program, such as a firewall
// manager, removes or changes, and logs that.
type Watch struct {
	Backend Backend
	Plan    plan.Ruleset
	// Every is the time between two checks. With one second, rules are restored within two.
	Every time.Duration
	Log   *slog.Logger

	mu    sync.Mutex
	state WatchState
}

// WatchState is what a Watch has done.
type WatchState struct {
	// Checked is when the rules were last compared with the kernel's, successfully; zero if they never were.
	Checked time.Time
	// Restored counts how often rules were restored, the last time at Last because of Found.
	Restored int
	Last     time.Time
	Found    string
	// Problem is why the last check failed; empty after a success.
	Problem string
}

// State returns a snapshot. Any goroutine may call it.
func (w *Watch) State() WatchState {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

// record changes the state.
func (w *Watch) record(change func(*WatchState)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.state)
}

// Run checks the network namespace of the process until ctx has ended, and returns nil. A check that
// fails is not its error, because the proxy works as long as rules are in force; the same failure is
// logged once.
func (w *Watch) Run(ctx context.Context) error {
	tick := time.NewTicker(w.Every)
	defer tick.Stop()
	for failure := ""; ; {
		failure = w.check(failure)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// check restores the rules if they differ. It returns its error, if any, which it logs unless it is the
// previous one.
func (w *Watch) check(previous string) (failure string) {
	defer func() {
		w.record(func(s *WatchState) {
			s.Problem = failure
			if failure == "" {
				s.Checked = time.Now()
			}
		})
		if failure != "" && failure != previous {
			w.Log.Error("check the rules of capture", "error", failure)
		}
	}()
	differences, err := w.Backend.Drift(w.Plan)
	if err != nil {
		return err.Error()
	}
	if len(differences) == 0 {
		return ""
	}
	report, err := w.Backend.Apply(w.Plan)
	if err != nil {
		return err.Error()
	}
	found := strings.Join(differences, "; ")
	w.record(func(s *WatchState) { s.Restored, s.Last, s.Found = s.Restored+1, time.Now(), found })
	w.Log.Warn("the rules of capture were changed by another program and have been restored",
		"found", found, "rules", report.Rules, "took", report.Took)
	return ""
}
