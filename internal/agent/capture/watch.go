package capture

import (
	"context"
	"log/slog"
	"strings"
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
}

// Run checks the network namespace of the process until ctx has ended, and returns nil. A check that
// fails is not its error, because the proxy works as long as rules are in force; the same failure is
// logged once.
func (w Watch) Run(ctx context.Context) error {
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
func (w Watch) check(previous string) (failure string) {
	defer func() {
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
	w.Log.Warn("the rules of capture were changed by another program and have been restored",
		"found", strings.Join(differences, "; "), "rules", report.Rules, "took", report.Took)
	return ""
}
