package secret

import "time"

// Bounds of the wait between attempts.
const (
	firstRetry = 100 * time.Millisecond
	// shortCap is the longest wait if the certificate has expired or expires soon.
	shortCap = 5 * time.Second
	// longCap is the longest wait in any case.
	longCap = 5 * time.Minute
	// minGap is the shortest wait after a success, so that certificates of
	// ever shorter lifetime (the root expires soon) do not cause a busy loop.
	minGap = time.Second
)

// due returns when to renew a certificate that is valid from created to end: when the share
// ratio+jitter, limited to 0–1, of its lifetime is left. [agent S10] The caller has
// drawn jitter, which may be negative.
func due(created, end time.Time, ratio, jitter float64) time.Time {
	left := min(max(ratio+jitter, 0), 1)
	return end.Add(-time.Duration(left * float64(end.Sub(created))))
}

// untilDue returns how long to wait, from now, for a renewal that is due at at.
func untilDue(at, now time.Time) time.Duration { return max(at.Sub(now), minGap) }

// retry returns how long to wait after the n-th failure in a row (n ≥ 1), if left is the
// validity that remains (0 or less: none). It doubles from 100 ms up to an eighth of what is
// left, which is limited to 5 s–5 min: retries become more frequent towards
// the end. draw, from -1 to 1, varies it by a tenth.
func retry(n int, left time.Duration, draw float64) time.Duration {
	wait := min(max(left/8, shortCap), longCap)
	if n < 20 { // the shift could overflow for larger n
		wait = min(firstRetry<<(max(n, 1)-1), wait)
	}
	return wait + time.Duration(0.1*draw*float64(wait))
}
