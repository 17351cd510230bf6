package main

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/pilothouse/pilothouse/internal/cgroup"
	"github.com/pilothouse/pilothouse/test/wait"
)

func TestMemoryIsLimitedBelowTheControlGroup(t *testing.T) {
	for group, want := range map[int64]int64{0: math.MaxInt64, -1: math.MaxInt64, 1 << 30: (1 << 30) / 10 * 9, 100: 90} {
		if got := runningLimit(group); got != want {
			t.Errorf("of %d bytes: %d, want %d", group, got, want)
		}
	}
	processors, percent, limit := runtime.GOMAXPROCS(0), debug.SetGCPercent(100), debug.SetMemoryLimit(-1)
	defer func() {
		runtime.GOMAXPROCS(processors)
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	}()
	// Whoever sets the collector's variables is obeyed.
	_, stop := limitMemory(process{env: map[string]string{"GOMEMLIMIT": "1GiB"}})
	stop()
	if got := debug.SetMemoryLimit(-1); got != limit {
		t.Errorf("the limit of the environment is now %d, want %d", got, limit)
	}
	_, stop = limitMemory(process{})
	defer stop()
	if got := debug.SetMemoryLimit(-1); got != startLimit {
		t.Errorf("the limit in the start is %d, want %d", got, startLimit)
	}
	wait.Until(t, "the limit is that of the control group", func() bool { return debug.SetMemoryLimit(-1) == runningLimit(cgroup.MemoryLimit()) })
}
