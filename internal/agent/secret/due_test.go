package secret

import (
	"testing"
	"time"
)

var begin = time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)

// at is a reading some time after begin, with the wall clock ahead by jump.
func at(up, jump time.Duration) reading { return reading{wall: begin.Add(up + jump), up: up} }

// of is a certificate that was requested at begin and lasts for life.
func of(life time.Duration, left float64) *held {
	return &held{received: at(0, 0), notBefore: begin.Add(-2 * time.Minute), notAfter: begin.Add(life), left: left}
}

func TestDue(t *testing.T) {
	const day = 24 * time.Hour
	for _, tt := range []struct {
		name string
		held *held
		now  reading
		want time.Duration
	}{
		{"no certificate", nil, at(0, 0), 0},
		{"half of the lifetime", of(day, 0.5), at(0, 0), 12 * time.Hour},
		{"half of what is left of it", of(day, 0.5), at(9*time.Hour, 0), 3 * time.Hour},
		{"a quarter left", of(day, 0.25), at(0, 0), 18 * time.Hour},
		{"nothing left", of(day, 0), at(0, 0), day},
		{"a minute", of(time.Minute, 0.5), at(0, 0), 30 * time.Second},
		{"due", of(day, 0.5), at(12*time.Hour, 0), 0},
		{"overdue", of(day, 0.5), at(13*time.Hour, 0), 0},
		{"expired", of(day, 0.5), at(2*day, 0), 0},

		{"due at once, but for the gap", of(day, 1), at(0, 0), 72 * time.Minute},
		{"the gap has passed", of(day, 1), at(72*time.Minute, 0), 0},
		{"an issuer near its end", of(10*time.Second, 1), at(0, 0), time.Second},
		{"it ends before the gap", of(time.Millisecond, 0.5), at(0, 0), time.Second},
		{"another kind of key", &held{received: at(0, 0), notBefore: begin, notAfter: begin.Add(day), left: 0.5, unwanted: true}, at(0, 0), 0},
		{"backdated", &held{received: at(0, 0), notBefore: begin.Add(-20 * time.Hour), notAfter: begin.Add(4 * time.Hour), left: 0.5}, at(0, 0), 2 * time.Hour},

		{"the clock jumps ahead, not far", of(day, 0.5), at(time.Hour, 2*time.Hour), 9 * time.Hour},
		{"the clock jumps ahead to the renewal", of(day, 0.5), at(time.Hour, 11*time.Hour), 0},
		{"the clock jumps ahead by 48 h", of(day, 0.5), at(time.Hour, 48*time.Hour), 0},
		{"the machine was suspended for 48 h", of(day, 0.5), at(time.Minute, 48*time.Hour), 0},
		{"the clock is set back, not far", of(day, 0.5), at(time.Hour, -30*time.Minute), 11 * time.Hour},
		{"the clock is set back before its begin", of(day, 0.5), at(2*time.Hour, -48*time.Hour), 0},
		{"the same right after it was received", of(day, 0.5), at(time.Minute, -48*time.Hour), 71 * time.Minute},
		{"set back, and due by the other clock", &held{received: at(0, 0), notBefore: begin.Add(-100 * time.Hour), notAfter: begin.Add(day), left: 0.5}, at(12*time.Hour, -48*time.Hour), 0},
		{"set back, and not due by either", &held{received: at(0, 0), notBefore: begin.Add(-100 * time.Hour), notAfter: begin.Add(day), left: 0.5}, at(11*time.Hour, -48*time.Hour), time.Hour},
		{"set ahead and back", of(day, 0.5), at(time.Hour, 0), 11 * time.Hour},
	} {
		if got := (schedule{held: tt.held}).next(tt.now); got.Round(time.Millisecond) != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestShare(t *testing.T) {
	for _, tt := range []struct{ ratio, jitter, want float64 }{{0.5, 0, 0.5}, {0.5, 0.25, 0.75}, {0.5, -0.25, 0.25}, {0, -0.1, 0}, {1, 0.1, 1}} {
		if got := share(tt.ratio, tt.jitter); got != tt.want {
			t.Errorf("ratio %v, jitter %v: %v, want %v", tt.ratio, tt.jitter, got, tt.want)
		}
	}
}

func TestDueAfterFailures(t *testing.T) {
	const day = 24 * time.Hour
	for _, tt := range []struct {
		name     string
		held     *held
		failures int
		failed   reading
		now      reading
		want     time.Duration
	}{
		{"never had one", nil, 1, at(0, 0), at(0, 0), 100 * time.Millisecond},
		{"it doubles", nil, 4, at(0, 0), at(0, 0), 800 * time.Millisecond},
		{"it has passed in part", nil, 4, at(0, 0), at(500*time.Millisecond, 0), 300 * time.Millisecond},
		{"many failures and half a day left", of(day, 0.5), 20, at(12*time.Hour, 0), at(12*time.Hour, 0), 5 * time.Minute},
		{"many failures and eight minutes left", of(day, 0.5), 20, at(day-8*time.Minute, 0), at(day-8*time.Minute, 0), time.Minute},
		{"many failures and eight seconds left", of(day, 0.5), 20, at(day-8*time.Second, 0), at(day-8*time.Second, 0), 4 * time.Second},
		{"the wait shortens as the end comes near", of(day, 0.5), 20, at(day-8*time.Minute, 0), at(day-4*time.Minute, 0), 0},
		{"many failures and expired", of(day, 0.5), 20, at(day, 0), at(day, 0), 5 * time.Second},

		{"the clock jumps ahead while waiting", of(day, 0.5), 20, at(12*time.Hour, 0), at(12*time.Hour, 48*time.Hour), 0},
		{"the clock is set back while waiting", of(day, 0.5), 20, at(12*time.Hour, 0), at(12*time.Hour+4*time.Minute, -48*time.Hour), time.Minute},
		{"failed in a future that was a mistake", of(day, 0.5), 5, at(time.Hour, 48*time.Hour), at(time.Hour+time.Minute, 0), 11*time.Hour - time.Minute},
	} {
		if got := (schedule{held: tt.held, failures: tt.failures, failed: tt.failed, draw: 1}).next(tt.now); got.Round(time.Millisecond) != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestRetry(t *testing.T) {
	for _, tt := range []struct {
		n    int
		left time.Duration
		draw float64
		want time.Duration
	}{
		{1, 0, 1, 100 * time.Millisecond},
		{2, 0, 1, 200 * time.Millisecond},
		{4, 0, 0.5, 400 * time.Millisecond},
		{4, 0, 0, 50 * time.Millisecond},
		{7, 0, 1, 5 * time.Second},
		{7, -time.Hour, 1, 5 * time.Second},
		{7, 12 * time.Hour, 1, 6400 * time.Millisecond},
		{100, 12 * time.Hour, 1, 5 * time.Minute},
		{100, 12 * time.Hour, 0.1, 30 * time.Second},
		{100, 8 * time.Minute, 1, time.Minute},
		{100, 10 * time.Second, 1, 5 * time.Second},
		{100, 3 * time.Second, 1, 1500 * time.Millisecond},
		{1 << 40, 0, 1, 5 * time.Second},
	} {
		if got := retryWait(tt.n, tt.left, tt.draw); got != tt.want {
			t.Errorf("failure %d with %s left, draw %v: %s, want %s", tt.n, tt.left, tt.draw, got, tt.want)
		}
	}
}
