package main

import (
	"fmt"
	"runtime"
	"syscall"
)

// spareFiles is how many files a process has open besides its connections.
const spareFiles = 200

// checkFiles returns an error if processes may not open as many connections as a run needs: one for each stream, and
// for those of perStream or of slow readers.
func checkFiles(streams, slow int) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	// The servers are Go programs, too, which raise their limit to this.
	if need := uint64(streams + max(min(streams, moreStreams), slow) + spareFiles); need > limit.Max {
		return fmt.Errorf("-streams %d needs %d open files, and a process may have %d: raise the limit (ulimit -Hn %d)", streams, need, limit.Max, need)
	}
	return nil
}

// ownMemory is the size in bytes of what this process has in use of heap and stacks.
func ownMemory() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the first only ages what pools have
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
