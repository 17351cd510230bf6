package main

import (
	"math"
	"testing"
)

func TestMemoryIsLimitedBelowTheControlGroup(t *testing.T) {
	for group, want := range map[int64]int64{0: math.MaxInt64, -1: math.MaxInt64, 1 << 30: (1 << 30) / 10 * 9, 100: 90} {
		if got := runningLimit(group); got != want {
			t.Errorf("of %d bytes: %d, want %d", group, got, want)
		}
	}
}
