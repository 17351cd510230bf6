package main

import (
	"runtime/debug"
	"time"
)

const (
	// startLimit bounds the heap, in bytes, while the collector is off.
	startLimit = 64 << 20
	// settleAfter is when a start is over: connected, certified, configured.
	settleAfter = 2 * time.Second
	// settledGC trades a little of a CPU that idles for memory in every Pod.
	settledGC = 30
)

// spareMemory keeps the collector out of the start, where every millisecond holds up a
// Pod and the heap is small, and gives back afterwards what only the start needed. What
// the user says with GOGC or GOMEMLIMIT stands. The function that it returns ends it.
func spareMemory(s surroundings) (stop func()) {
	if s.getenv("GOGC") != "" {
		return func() {}
	}
	if s.getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(startLimit)
	}
	debug.SetGCPercent(-1)
	t := time.AfterFunc(settleAfter, func() {
		debug.SetGCPercent(settledGC)
		debug.FreeOSMemory()
	})
	return func() { t.Stop() }
}
