// Package app tells when the application that the agent stands beside has ended for good.
//
// An application that runs to its end, a Job's, leaves a sidecar behind that keeps the Pod from
// completing. What is watched is its listening sockets in the Pod's network namespace, and, where the Pod
// shares a process namespace, its processes. It has ended when there were some, and none has come back
// for a grace: an application that crashes is started again, and must find its sidecar. One
// that never listens, in a namespace of its own, cannot be seen, and is taken to run.
// ended.go decides; the rest is the edge.
package app

import "time"

// Sighting is what was seen of the application at a moment.
type Sighting struct {
	// Processes and Listeners are how many it has.
	Processes, Listeners int
	// Shared says that its processes could be seen.
	Shared bool
}

// Watch keeps what was seen. The zero value has seen nothing.
type Watch struct {
	seen  bool
	since time.Time // without it; zero while it is there
}

// there says whether it was there when it was looked for last.
func (w *Watch) there() bool { return w.seen && w.since.IsZero() }

// Ended takes a sighting and says whether the application has ended: it has been there, and not for the grace.
func (w *Watch) Ended(now time.Time, s Sighting, grace time.Duration) bool {
	there := s.Listeners > 0
	if s.Shared {
		there = s.Processes > 0
	}
	switch {
	case there:
		w.seen, w.since = true, time.Time{}
	case w.since.IsZero():
		w.since = now
	}
	return w.seen && !there && now.Sub(w.since) >= grace
}
