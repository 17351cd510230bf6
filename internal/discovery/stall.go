package discovery

import "time"

// stall decides whether the loop makes progress: it does unless it has been busy with one event for longer
// than the limit. It is pure.
type stall struct {
	limit   time.Duration
	stalled bool
}

// observe takes for how long the loop has been busy with its present event, 0 if it waits for one, and
// reports whether the answer has changed.
func (s *stall) observe(busy time.Duration) (changed bool) {
	stalled := busy > s.limit
	changed = stalled != s.stalled
	s.stalled = stalled
	return changed
}
