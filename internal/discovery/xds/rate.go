package xds

import "time"

// rateLimit bounds how many streams begin in a second. After a pause as many as in one second may begin at
// once. It is pure, and not for concurrent use; the zero rateLimit allows everything.
type rateLimit struct {
	perSecond float64
	// next is when the next stream would begin if they began evenly, without any pause.
	next time.Time
}

// reserve returns how long a stream is to wait until it may begin; false, and nothing is reserved, if
// that is longer than patience.
func (r *rateLimit) reserve(now time.Time, patience time.Duration) (wait time.Duration, ok bool) {
	if r.perSecond <= 0 {
		return 0, true
	}
	interval := time.Duration(min(float64(time.Second)/r.perSecond, float64(time.Hour)))
	// One interval of the second is the stream's own.
	earliest := now.Add(-max(time.Second-interval, 0))
	next := r.next
	if next.Before(earliest) {
		next = earliest
	}
	if wait = max(next.Sub(now), 0); wait > patience {
		return 0, false
	}
	r.next = next.Add(interval)
	return wait, true
}
