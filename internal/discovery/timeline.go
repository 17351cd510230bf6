package discovery

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ui"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
)

// Bounds of the timeline.
const (
	maxEdits       = 200
	maxEditObjects = 20
)

// timeline has the newest changes of the configuration, with how far proxies are with them. The loop adds to it, streams count in
// it, and pages read it: each in a time that does not depend on the number of proxies.
type timeline struct {
	mu    sync.Mutex
	edits []*ui.Edit // oldest first
	// current is what the loop has begun. Streams may have applied some of it before it has ended.
	current *ui.Edit
}

// begin adds a generation. Proxies may apply it from now on.
func (t *timeline) begin(generation uint64, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.current = &ui.Edit{Generation: generation, At: at.UTC()}
	if len(t.edits) == maxEdits {
		t.edits = append(t.edits[:0], t.edits[1:]...)
	}
	t.edits = append(t.edits, t.current)
}

// end completes the generation that was begun last.
func (t *timeline) end(e ui.Edit) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.current
	e.Generation, e.At, e.Applied, e.AppliedMilliseconds, e.Gone = c.Generation, c.At, c.Applied, c.AppliedMilliseconds, c.Gone
	*c = e
}

// applied counts a proxy that has applied generations.
func (t *timeline) applied(generations []uint64, at time.Time) {
	t.each(generations, func(e *ui.Edit) {
		e.Applied++
		e.AppliedMilliseconds = max(e.AppliedMilliseconds, milliseconds(at.Sub(e.At)))
	})
}

// gone counts a proxy that has left without having applied generations.
func (t *timeline) gone(generations []uint64) {
	t.each(generations, func(e *ui.Edit) { e.Gone++ })
}

// each calls f with those of the generations that are still known.
func (t *timeline) each(generations []uint64, f func(*ui.Edit)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, g := range generations {
		if i, ok := slices.BinarySearchFunc(t.edits, g, func(e *ui.Edit, g uint64) int { return cmp.Compare(e.Generation, g) }); ok {
			f(t.edits[i])
		}
	}
}

// list returns copies of all, oldest first.
func (t *timeline) list() []ui.Edit {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]ui.Edit, len(t.edits))
	for i, e := range t.edits {
		out[i] = *e
	}
	return out
}

func milliseconds(d time.Duration) float64 {
	return float64(d.Round(time.Microsecond)) / float64(time.Millisecond)
}

// editOf describes the commit of the present generation.
func (l *loop) editOf(accepted []acceptedChange, moves []move, classes int, runs uint64, spent time.Duration) ui.Edit {
	e := ui.Edit{Milliseconds: milliseconds(spent), Count: len(accepted), Runs: runs, Classes: classes, Proxies: l.views.published}
	for _, a := range accepted[:min(len(accepted), maxEditObjects)] {
		o := ui.EditObject{Object: a.key.String(), Removed: a.removed}
		if good, ok := l.store.Get(a.key); ok {
			o.Origin = good.Origin.String()
		}
		e.Objects = append(e.Objects, o)
	}
	// One resource is in the layers of many classes.
	type version struct {
		name resourceName
		of   *xds.Resource
	}
	seen := map[version]bool{}
	for _, m := range moves {
		layer := l.views.layers.byKey[m.layer]
		if m.proxy != "" || layer == nil || len(layer.classes) == 0 { // others are derived from it, and no proxy has it
			continue
		}
		v := version{m.name, layer.layer.Get(m.name.typ, m.name.name)}
		if seen[v] {
			continue
		}
		seen[v] = true
		if e.Resources++; v.of != nil {
			e.Bytes += v.of.Size()
		}
	}
	return e
}
