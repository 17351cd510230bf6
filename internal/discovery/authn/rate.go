package authn

import "time"

// burst is how many seconds' worth of calls a caller may make at once after a pause.
const burst = 10

// maxCallers bounds how many callers are remembered. A caller is forgotten when it has paused for long
// enough to make all calls of a burst.
const maxCallers = 64 << 10

// rates bounds how many calls each of many callers makes in a second. It is pure, and not for concurrent
// use.
type rates struct {
	perSecond float64 // above 0
	// next is, for each caller, when its next call would be if its calls came evenly.
	next map[string]time.Time
	// forgetAt is how many callers are remembered before those that have paused are forgotten; at most most.
	forgetAt, most int
	// forgot is when they were.
	forgot time.Time
}

func newRates(perSecond float64) *rates {
	return &rates{perSecond: perSecond, next: map[string]time.Time{}, forgetAt: 1024, most: maxCallers}
}

// take counts a call of a caller. It returns 0 if the caller may make it, or else how long it must wait
// until it may.
func (r *rates) take(name string, now time.Time) time.Duration {
	interval := time.Duration(min(float64(time.Second)/r.perSecond, float64(time.Hour)))
	ahead := max(burst*time.Second-interval, 0)
	next, known := r.next[name]
	if !known && len(r.next) >= r.forgetAt {
		// At most once a second: a sweep takes long when many callers are active.
		if now.Sub(r.forgot) >= time.Second {
			r.forget(now)
		}
		if len(r.next) >= r.most {
			return time.Second
		}
	}
	if next.Before(now) {
		next = now
	}
	if wait := next.Sub(now) - ahead; wait > 0 {
		return wait
	}
	r.next[name] = next.Add(interval)
	return 0
}

// forget drops the callers that have paused.
func (r *rates) forget(now time.Time) {
	for name, next := range r.next {
		if !next.After(now) {
			delete(r.next, name)
		}
	}
	r.forgot = now
	r.forgetAt = min(max(r.forgetAt, 2*len(r.next)), r.most)
}
