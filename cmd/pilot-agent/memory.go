package main

import (
	"math"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/pilothouse/pilothouse/internal/cgroup"
	"github.com/pilothouse/pilothouse/internal/unmap"
)

const (
	// startLimit bounds the heap, in bytes, while the collector is off.
	startLimit = 64 << 20
	// startTime is after how long a start is over: connected, certified, configured. It
	// counts from the start, and again from when the proxy was first ready.
	startTime = 2 * time.Second
	// runningGC is the garbage collector's GOGC after the start, in percent: it spends a
	// little of an idle CPU to save memory in every Pod.
	runningGC = 25
)

// runningLimit is the soft limit of the agent's memory after the start, of the control group's limit, both in bytes: nine
// tenths, as Istio's agent has it; none if the group has none. The group is shared with Envoy, so it is a last resort.
func runningLimit(group int64) int64 {
	if group <= 0 {
		return math.MaxInt64
	}
	return group / 10 * 9
}

// limitMemory keeps the garbage collector off during the start, where every millisecond
// delays a Pod and the heap is small, and afterwards gives back what only the start needed, and unmaps what it read of
// the program's file.
// It limits the runtime to one CPU at a time, because each more holds memory of its own.
// GOGC, GOMEMLIMIT and GOMAXPROCS take precedence. A call of ready, which does not block,
// gives memory back once more; stop ends it.
func limitMemory(s process) (ready, stop func()) {
	if s.getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	collects := s.getenv("GOGC") == "" && s.getenv("GOMEMLIMIT") == ""
	if collects {
		debug.SetMemoryLimit(startLimit)
		debug.SetGCPercent(-1)
	}
	t := time.AfterFunc(startTime, func() {
		if collects {
			debug.SetGCPercent(runningGC)
			debug.SetMemoryLimit(runningLimit(cgroup.MemoryLimit()))
		}
		debug.FreeOSMemory() // twice: what a sync.Pool holds survives one collection
		debug.FreeOSMemory()
		_ = unmap.Program() // what stays mapped costs memory only
	})
	return func() { t.Reset(startTime) }, func() { t.Stop() }
}
