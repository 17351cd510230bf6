package discovery

import (
	"maps"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/object"
)

// Debug pages and metrics show snapshots, which the loop's goroutine makes on request, so that no other
// goroutine reads its tables. Snapshots are immutable. The functions return false once the loop has
// ended.

// viewsSnapshot returns the current views.
func (l *loop) viewsSnapshot() (s *viewsSnapshot, ok bool) {
	ok = l.ask(func() { s = l.views.snapshot() })
	return s, ok
}

// problemsSnapshot has the problems of the configuration at one moment.
type problemsSnapshot struct {
	// notServed is why no proxy is served; empty if proxies are served.
	notServed string
	// saved are texts about objects in force as they were saved.
	saved    []string
	problems []shownProblem
}

type shownProblem struct {
	object.Problem
	// meanwhile is what is in force instead of a rejected object; empty if none is rejected.
	meanwhile string
}

func (l *loop) problemsSnapshot() (s problemsSnapshot, ok bool) {
	ok = l.ask(func() {
		if !l.gate.open.Load() {
			s.notServed = *l.gate.why.Load()
		}
		n := l.gate.notes.Load()
		for _, text := range []string{n.restoredText(time.Now()), n.endsText()} {
			if text != "" {
				s.saved = append(s.saved, text)
			}
		}
		places := l.placesInForce()
		for _, p := range l.allProblems() {
			shown := shownProblem{Problem: p}
			if p.Severity == object.Error {
				shown.meanwhile = l.meanwhile(p, places)
			}
			s.problems = append(s.problems, shown)
		}
	})
	return s, ok
}

// numbers are the values of the loop's metrics.
type numbers struct {
	rows     map[string]int
	events   map[config.Events]uint64
	updates  map[string]uint64
	triggers map[string]uint64
	problems map[problemKind]int
	rules    map[string]incr.RuleStats
	commits  uint64
	spent    time.Duration
	views    *viewsSnapshot
	// acknowledged and late are as in counts; unacknowledged is how many proxies lack policies whose routes were sent.
	acknowledged, late uint64
	unacknowledged     int
	// sources counts where keys are fetched from, by state.
	sources map[string]int
	filters map[filterStatus]bool
}

// problemKind has the labels by which problems are counted.
type problemKind struct {
	severity object.Severity
	kind     object.Kind
}

func (l *loop) numbers() (n numbers, ok bool) {
	// Two are always present, so that an alert can distinguish "none" from "not scraped".
	n.problems = map[problemKind]int{{object.Error, ""}: 0, {object.Warning, ""}: 0}
	ok = l.ask(func() {
		n.rows, n.rules, n.events = l.model.Counts(), l.graph.Stats(), l.store.EventCounts()
		n.updates, n.triggers = maps.Clone(l.counts.updates), maps.Clone(l.counts.triggers)
		n.commits, n.spent = l.counts.commits, l.counts.spent
		n.acknowledged, n.late, n.unacknowledged = l.counts.acknowledged, l.counts.late, l.views.barriers.unacknowledged()
		n.views, n.sources = l.views.snapshot(), l.keys.counts()
		effects := l.patchEffects()
		n.filters = l.filterStatuses(effects)
		for _, v := range l.problemsWith(effects) {
			if v.Severity != object.Info {
				n.problems[problemKind{v.Severity, v.Key.Kind}]++
			}
		}
	})
	return n, ok
}
