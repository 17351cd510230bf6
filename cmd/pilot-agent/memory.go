package main

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// startLimit bounds the heap, in bytes, while the collector is off.
	startLimit = 64 << 20
	// settleAfter is when a start is over: connected, certified, configured.
	settleAfter = 2 * time.Second
	// settledGC trades a little of a CPU that idles for memory in every Pod.
	settledGC = 25
)

// spareMemory keeps the collector out of the start, where every millisecond holds up a
// Pod and the heap is small, and gives back afterwards what only the start needed. An
// agent stands beside an application: one CPU at a time is its share, and each more that
// the runtime may use holds memory of its own. What the user says with GOGC, GOMEMLIMIT or
// GOMAXPROCS stands. The function that it returns ends it.
func spareMemory(s surroundings) (stop func()) {
	if s.getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	collects := s.getenv("GOGC") == "" && s.getenv("GOMEMLIMIT") == ""
	if collects {
		debug.SetMemoryLimit(startLimit)
		debug.SetGCPercent(-1)
	}
	t := time.AfterFunc(settleAfter, func() {
		if collects {
			debug.SetGCPercent(settledGC)
			debug.SetMemoryLimit(math.MaxInt64)
		}
		debug.FreeOSMemory() // twice: what pools hold survives one collection
		debug.FreeOSMemory()
		unmapProgram()
	})
	return func() { t.Stop() }
}

// unmapProgram drops the pages of the program's own file from this process: starting
// touches nearly all of them, running few, and those come back from the page cache, which
// all agents of a machine share. Only mappings that cannot be written and that nothing
// has changed in are dropped; where the kernel does not tell, nothing is.
func unmapProgram() {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return
	}
	for _, m := range untouched(string(text), exe) {
		// A refusal costs nothing: the pages stay.
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.start, m.size, unix.MADV_DONTNEED)
	}
}

// mapping is a range of addresses.
type mapping struct{ start, size uintptr }

// untouched finds the mappings of file in /proc/self/smaps that are read-only and hold
// no page of the process's own.
func untouched(smaps, file string) []mapping {
	var out []mapping
	var last mapping
	for line := range strings.Lines(smaps) {
		f := strings.Fields(line)
		switch {
		case len(f) >= 6 && strings.Contains(f[0], "-"):
			last = mapping{}
			from, to, _ := strings.Cut(f[0], "-")
			start, err1 := strconv.ParseUint(from, 16, 64)
			end, err2 := strconv.ParseUint(to, 16, 64)
			if f[len(f)-1] == file && (f[1] == "r-xp" || f[1] == "r--p") && err1 == nil && err2 == nil {
				last = mapping{uintptr(start), uintptr(end - start)}
			}
		case len(f) == 3 && f[0] == "Anonymous:" && f[1] == "0" && last.size > 0:
			out = append(out, last)
		}
	}
	return out
}
