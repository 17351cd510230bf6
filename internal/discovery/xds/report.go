package xds

import (
	"cmp"
	"maps"
	"slices"
	"sync"
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
	// onListeners is called when the proxy has answered a response of listeners while watched is set.
	onListeners func()
	watched     bool
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
func (c *LatestView) WatchListeners(watch bool) {
	c.reports.mu.Lock()
	defer c.reports.mu.Unlock()
	c.reports.watched = watch
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
	told := c.reports.watched && t == LDS
	c.reports.mu.Unlock()
	if told && c.reports.onListeners != nil {
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
