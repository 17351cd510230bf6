package xds

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// Refusal is a resource that a proxy refuses in the version that its view has.
type Refusal struct {
	// Resource is what it refuses; Message is what it says of it.
	Resource *Resource
	Message  string
	// Accepted is what the proxy goes on with: the last version that it accepted. It has no body if the
	// proxy has it from an earlier stream, and is nil if there is none.
	Accepted *Resource
	// After and Generation are the generations of the last response of the type that was accepted before
	// the refused one, 0 for none, and of the refused one: what came between them is the cause.
	After, Generation uint64
}

// reports are what a proxy has said of its views. Its stream writes them, any goroutine reads.
type reports struct {
	mu       sync.Mutex
	refusals []Refusal
	accepted [numTypes]holdings
	notify   func()
	// onListeners is called when the proxy has answered a response of listeners, or listeners have changed, while watched is set.
	onListeners func()
	watched     atomic.Bool
	listeners   listenerReport
}

// listenerReport is what was on its way of listeners when the stream had sent what it could of a view.
type listenerReport struct {
	generation uint64 // of the view, or of a later one
	// moving are the names of the listeners that responses without an answer bring or remove.
	moving []string
}

// holdings are the resources of a type that a client has: set, but for some names.
type holdings struct {
	set  TypeView
	kept map[string]*Resource
}

// OnRefusal has f called whenever the refusals have changed, from any goroutine. Call it before the
// LatestView is given to a stream.
func (c *LatestView) OnRefusal(f func()) { c.reports.notify = f }

// Refusals are what the proxy refuses now; the slice must not be changed. Any goroutine may call it.
func (c *LatestView) Refusals() []Refusal {
	c.reports.mu.Lock()
	defer c.reports.mu.Unlock()
	return c.reports.refusals
}

// Accepts says whether the proxy has accepted that version of a resource, and has it still. Any
// goroutine may call it.
func (c *LatestView) Accepts(r *Resource) bool {
	c.reports.mu.Lock()
	defer c.reports.mu.Unlock()
	return c.reports.accepted[r.Type].has(r)
}

// OnListeners has f called, from any goroutine, whenever the proxy has answered a response of listeners while they are
// watched. Call it before the LatestView is given to a stream.
func (c *LatestView) OnListeners(f func()) { c.reports.onListeners = f }

// WatchListeners begins or ends that. Any goroutine may call it.
func (c *LatestView) WatchListeners(watch bool) { c.reports.watched.Store(watch) }

// HasListener says whether the proxy has accepted that version of a listener, and will not be told another one by what it has been sent:
// the stream has had the view of a generation, and no response on its way is about the listener. A version that the proxy
// accepted earlier may come again, after another one that it has not seen yet. WatchListeners must have been called before the
// view was published. Any goroutine may call it.
func (c *LatestView) HasListener(r *Resource, generation uint64) bool {
	c.reports.mu.Lock()
	defer c.reports.mu.Unlock()
	l := c.reports.listeners
	return l.generation >= generation && !slices.Contains(l.moving, r.Name) && c.reports.accepted[LDS].has(r)
}

// reportListeners takes note of what is on its way of listeners, if they are watched.
func (c *LatestView) reportListeners(s *Sub) {
	if !c.reports.watched.Load() {
		return
	}
	l := listenerReport{moving: s.moving(LDS)}
	c.mu.Lock()
	l.generation = c.taken.generation
	c.mu.Unlock()
	c.reports.mu.Lock()
	changed := l.generation != c.reports.listeners.generation || !slices.Equal(l.moving, c.reports.listeners.moving)
	c.reports.listeners = l
	c.reports.mu.Unlock()
	if changed && c.reports.onListeners != nil {
		c.reports.onListeners()
	}
}

// refuses replaces the refusals, and keeps and sorts the list.
func (c *LatestView) refuses(list []Refusal) {
	slices.SortFunc(list, func(a, b Refusal) int {
		return cmp.Or(cmp.Compare(a.Resource.Type, b.Resource.Type), order(a.Resource, b.Resource))
	})
	c.reports.mu.Lock()
	changed := !slices.Equal(c.reports.refusals, list)
	c.reports.refusals = list
	c.reports.mu.Unlock()
	if c.reports.notify != nil && changed {
		c.reports.notify()
	}
}

// accepts replaces what the proxy has of a type.
func (c *LatestView) accepts(t Type, h holdings) {
	c.reports.mu.Lock()
	c.reports.accepted[t] = h
	c.reports.mu.Unlock()
	if t == LDS && c.reports.watched.Load() && c.reports.onListeners != nil {
		c.reports.onListeners()
	}
}

// Refusals are what the client refuses, but for listeners that could not be bound: nothing is wrong
// with those.
func (s *Sub) Refusals() (out []Refusal) {
	for t := range numTypes {
		c := &s.states[t]
		for n, f := range c.refused {
			if f.tries == 0 {
				out = append(out, Refusal{Resource: f.resource, Message: f.text, Accepted: c.get(n), After: f.after, Generation: f.generation})
			}
		}
	}
	return out
}

// holdings are what the client has accepted of a type.
func (s *Sub) holdings(t Type) holdings {
	c := &s.states[t]
	first := c.flight
	if len(c.unanswered) > 0 {
		first = c.unanswered[0]
	}
	if first != nil {
		return holdings{set: first.had, kept: maps.Clone(first.hadKept)}
	}
	return holdings{set: c.have, kept: maps.Clone(c.kept)}
}

// moving are the names of the resources that responses without an answer bring or remove.
func (s *Sub) moving(t Type) (names []string) {
	c := &s.states[t]
	add := func(f *flight) {
		for _, r := range f.upserts() {
			if f.changes(r) {
				names = append(names, r.Name)
			}
		}
		for _, r := range f.gone {
			names = append(names, r.Name)
		}
		names = append(names, f.removed...)
	}
	for _, f := range c.unanswered {
		add(f)
	}
	if c.flight != nil {
		add(c.flight)
	}
	return names
}
