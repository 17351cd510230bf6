package secret

import (
	"testing"
	"time"
)

func TestDue(t *testing.T) {
	created := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		life          time.Duration
		ratio, jitter float64
		want          time.Duration // after created
	}{
		{24 * time.Hour, 0.5, 0, 12 * time.Hour},
		{24 * time.Hour, 0.5, 0.01, 24*time.Hour*49/100 + 0},
		{24 * time.Hour, 0.5, -0.01, 24 * time.Hour * 51 / 100},
		{24 * time.Hour, 0.25, 0, 18 * time.Hour},
		{24 * time.Hour, 0, -0.1, 24 * time.Hour},
		{24 * time.Hour, 1, 0.1, 0},
		{time.Minute, 0.5, 0, 30 * time.Second},
	} {
		if got := due(created, created.Add(tt.life), tt.ratio, tt.jitter).Sub(created); got.Round(time.Millisecond) != tt.want {
			t.Errorf("life %s, ratio %v, jitter %v: due after %s, want %s", tt.life, tt.ratio, tt.jitter, got, tt.want)
		}
	}
	if got := untilDue(created, created.Add(time.Hour)); got != minGap {
		t.Errorf("overdue: wait %s, want %s", got, minGap)
	}
}

func TestRetry(t *testing.T) {
	for _, tt := range []struct {
		n    int
		left time.Duration
		draw float64
		want time.Duration
	}{
		{1, 0, 0, 100 * time.Millisecond},
		{2, 0, 0, 200 * time.Millisecond},
		{4, 0, 0, 800 * time.Millisecond},
		{4, 0, 1, 880 * time.Millisecond},
		{4, 0, -1, 720 * time.Millisecond},
		{7, 0, 0, 5 * time.Second},
		{7, -time.Hour, 0, 5 * time.Second},
		{7, 12 * time.Hour, 0, 6400 * time.Millisecond},
		{100, 12 * time.Hour, 0, 5 * time.Minute},
		{100, 8 * time.Minute, 0, time.Minute},
		{100, 10 * time.Second, 0, 5 * time.Second},
		{1 << 40, 0, 0, 5 * time.Second},
	} {
		if got := retry(tt.n, tt.left, tt.draw); got != tt.want {
			t.Errorf("failure %d with %s left, draw %v: %s, want %s", tt.n, tt.left, tt.draw, got, tt.want)
		}
	}
}
