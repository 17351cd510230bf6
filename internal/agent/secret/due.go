package secret

import "time"

// Bounds of the waits between requests.
const (
	firstRetry = 100 * time.Millisecond
	// shortCap is the longest wait if the certificate has expired or expires soon.
	shortCap = 5 * time.Second
	// longCap is the longest wait in any case.
	longCap = 5 * time.Minute
	// minGap and gapShare, a share of the lifetime, bound the wait after a success from below. A CA that
	// issues certificates that are due at once must not get a request every second from every agent.
	minGap   = time.Second
	gapShare = 20
	// reevaluate bounds the time between two looks at the wall clock, which may jump.
	reevaluate = time.Minute
)

// reading is one reading of both clocks of a machine.
type reading struct {
	// wall can jump in both directions. Certificates are valid by it. It has no monotonic part.
	wall time.Time
	// up does not jump, but may stand still while the machine is suspended.
	up time.Duration
}

// since returns the time since an earlier reading, by the clock that shows more: the wall clock may have
// been set back, and the other one may have stood still.
func (r reading) since(before reading) time.Duration {
	return max(r.wall.Sub(before.wall), r.up-before.up)
}

// schedule is everything that decides about the next request for a certificate. The zero value has no
// certificate, and no request has failed.
type schedule struct {
	// held is the certificate in use, nil for none.
	held *held
	// failures counts the failed requests since the last success; failed is when the last one ended.
	failures int
	failed   reading
	// draw, 0 to 1, is the random part of the wait after the last failure.
	draw float64
}

// held describes a certificate.
type held struct {
	// received is when it was requested. Its lifetime counts from then, because CAs backdate certificates.
	received reading
	// notBefore and notAfter are the period in which all of its chain is valid.
	notBefore, notAfter time.Time
	// left is the share of the lifetime that is left at the renewal, 0 to 1.
	left float64
	// unwanted asks for another one without a wait: it is not what the options ask for.
	unwanted bool
}

// share returns the share of the lifetime that is left at the renewal. The caller draws jitter, which may
// be negative. [agent S10]
func share(ratio, jitter float64) float64 { return min(max(ratio+jitter, 0), 1) }

// next returns how long to wait for the next request; 0 or less means now. The answer is for the time of
// the reading, and is asked for again when the wall clock may have jumped.
func (s schedule) next(now reading) time.Duration {
	var wait time.Duration
	left := time.Duration(0)
	if s.held != nil {
		wait, left = s.held.renewal(now), s.held.notAfter.Sub(now.wall)
	}
	if s.failures > 0 {
		wait = max(wait, retryWait(s.failures, left, s.draw)-now.since(s.failed))
	}
	return max(wait, 0)
}

// renewal returns how long to wait for the renewal. It is due at its time by either clock, so that a clock
// that was set back does not let the certificate expire, and at once if the certificate is not valid yet:
// the clock of the CA or of this machine was wrong when it was issued. [agent S10]
func (h *held) renewal(now reading) time.Duration {
	if h.unwanted {
		return 0
	}
	lifetime := h.notAfter.Sub(h.received.wall)
	kept := time.Duration(h.left * float64(lifetime))
	wait := min(h.notAfter.Add(-kept).Sub(now.wall), lifetime-kept-(now.up-h.received.up))
	if now.wall.Before(h.notBefore) {
		wait = 0
	}
	return max(wait, max(minGap, lifetime/gapShare)-now.since(h.received))
}

// retryWait returns the wait after the n-th failure in a row (n ≥ 1), if left is the validity that remains
// (0 or less: none). Its limit doubles from 100 ms up to an eighth of what is left, which is limited to
// 5 s–5 min, and draw, 0 to 1, selects a wait up to the limit, so that agents that failed together do not
// try again together. While the certificate is valid, the last attempt is in its last seconds. [agent S7]
func retryWait(n int, left time.Duration, draw float64) time.Duration {
	limit := min(max(left/8, shortCap), longCap)
	if n < 20 { // the shift could overflow for larger n
		limit = min(firstRetry<<(max(n, 1)-1), limit)
	}
	if left > time.Second {
		limit = min(limit, left/2)
	}
	return max(firstRetry/2, time.Duration(draw*float64(limit)))
}
