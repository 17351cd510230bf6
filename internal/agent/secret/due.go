package secret

import "time"

// Bounds of the waits between attempts.
const (
	firstRetry = 100 * time.Millisecond
	// shortCap bounds the wait where nothing valid is left or little time remains.
	shortCap = 5 * time.Second
	// longCap bounds it where there is plenty.
	longCap = 5 * time.Minute
	// minGap stands between a success and the next attempt, so that certificates of
	// ever shorter life (a root near its end) do not make a loop.
	minGap = time.Second
)

// due is when to renew what began at created and ends at end: when the share
// ratio+jitter, held between 0 and 1, of its life is left. [agent S10] Jitter is the
// caller's draw, either sign.
func due(created, end time.Time, ratio, jitter float64) time.Time {
	left := min(max(ratio+jitter, 0), 1)
	return end.Add(-time.Duration(left * float64(end.Sub(created))))
}

// untilDue is how long to wait at the time now for a renewal that is due at at.
func untilDue(at, now time.Time) time.Duration { return max(at.Sub(now), minGap) }

// retry is how long to wait after the n-th failure in a row (n ≥ 1), with this much
// validity left (0 or less: none). It doubles from 100 ms up to an eighth of what is
// left, which is held between 5 s and 5 min: patient while there is time, pressing when
// there is not. draw, from -1 to 1, spreads it by a tenth.
func retry(n int, left time.Duration, draw float64) time.Duration {
	wait := min(max(left/8, shortCap), longCap)
	if n < 20 { // beyond, the shift is past any cap
		wait = min(firstRetry<<(max(n, 1)-1), wait)
	}
	return wait + time.Duration(0.1*draw*float64(wait))
}
