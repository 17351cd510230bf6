package capture

import (
	"context"
	"log/slog"
	"strings"
	"time"
)

// Watch keeps a plan in force: what somebody else flushes or changes in our rules (a firewall
// manager that reloads, another plugin) is put back, and told.
type Watch struct {
	Backend Backend
	Plan    Ruleset
	// Every is how long one look comes after the other. A second means that rules are back
	// within two.
	Every time.Duration
	Log   *slog.Logger
}

// Run looks until ctx has ended, in the network namespace of the process. Nothing that goes wrong
// is its error: the proxy works on as long as rules are in force, and each trouble is told once.
func (w Watch) Run(ctx context.Context) error {
	tick := time.NewTicker(w.Every)
	defer tick.Stop()
	for trouble := ""; ; {
		trouble = w.look(trouble)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// look mends what it finds, and returns what troubled it, which it tells if it is not what it was.
func (w Watch) look(before string) (trouble string) {
	defer func() {
		if trouble != "" && trouble != before {
			w.Log.Error("the capture of traffic cannot be watched", "error", trouble)
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
	w.Log.Warn("the rules of capture were changed by somebody else and have been restored",
		"found", strings.Join(differences, "; "), "rules", report.Rules, "took", report.Took)
	return ""
}
