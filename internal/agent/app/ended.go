package app

import "time"

// snapshot is what is known of the application at one moment.
type snapshot struct {
	processes, listeners int
	// sharedPID says that the Pod shares a process namespace, so that processes are counted.
	sharedPID bool
}

// detector decides whether the application has ended. The zero value has seen no snapshot.
type detector struct {
	wasRunning bool
	goneSince  time.Time // zero while it is running
}

// running reports whether the application was running at the last snapshot.
func (d *detector) running() bool { return d.wasRunning && d.goneSince.IsZero() }

// ended takes a snapshot and reports whether the application was running before, and has not been
// since at least the grace period.
func (d *detector) ended(now time.Time, s snapshot, grace time.Duration) bool {
	running := s.listeners > 0
	if s.sharedPID {
		running = s.processes > 0
	}
	switch {
	case running:
		d.wasRunning, d.goneSince = true, time.Time{}
	case d.goneSince.IsZero():
		d.goneSince = now
	}
	return d.wasRunning && !running && now.Sub(d.goneSince) >= grace
}
