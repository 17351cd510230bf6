package webhook

import "time"

// The pauses between attempts.
const (
	minPause = 50 * time.Millisecond
	maxPause = 30 * time.Second
	// calm is after which time without an attempt the next one is the first again.
	calm = 2 * maxPause
)

// pace spreads attempts at the same change, so that neither an API server that refuses it nor somebody else who
// reverts it makes for many of them. The first is made at once.
type pace struct {
	last   time.Time // zero before the first attempt
	streak int       // attempts without a calm between them
	failed bool      // the last one
}

// wait returns after which time the next attempt may be made; 0 or less is now.
func (p pace) wait(now time.Time) time.Duration {
	if p.last.IsZero() || now.Sub(p.last) > calm {
		return 0
	}
	pause := maxPause
	if p.streak < 10 {
		pause = min(maxPause, minPause<<p.streak)
	}
	return pause - now.Sub(p.last)
}

// tried records an attempt.
func (p *pace) tried(now time.Time, failed bool) {
	if now.Sub(p.last) > calm {
		p.streak = 0
	}
	p.last, p.failed = now, failed
	p.streak++
}
