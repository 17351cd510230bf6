package main

import (
	"bufio"
	"bytes"
	"io"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// startLimit bounds the heap, in bytes, while the collector is off.
	startLimit = 64 << 20
	// settleAfter is when a start is over: connected, certified, configured. It counts from
	// the start, and again from when the proxy was first ready.
	settleAfter = 2 * time.Second
	// settledGC trades a little of a CPU that idles for memory in every Pod.
	settledGC = 25
)

// spareMemory keeps the collector out of the start, where every millisecond holds up a
// Pod and the heap is small, and gives back afterwards what only the start needed. An
// agent stands beside an application: one CPU at a time is its share, and each more that
// the runtime may use holds memory of its own. What the user says with GOGC, GOMEMLIMIT or
// GOMAXPROCS stands. A call of ready, which does not block, has it give back once more; stop
// ends it.
func spareMemory(s surroundings) (ready, stop func()) {
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
	return func() { t.Reset(settleAfter) }, func() { t.Stop() }
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
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer smaps.Close()
	for _, m := range untouched(smaps, exe) {
		// A refusal costs nothing: the pages stay.
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.start, m.size, unix.MADV_DONTNEED)
	}
}

// mapping is a range of addresses.
type mapping struct{ start, size uintptr }

// untouched finds the mappings of file, in what reads like /proc/self/smaps, that are
// read-only and hold no page of the process's own. It works in one small buffer: this is
// no place to make garbage. A line that does not fit ends it.
func untouched(smaps io.Reader, file string) []mapping {
	var out []mapping
	var last mapping
	lines := bufio.NewReaderSize(smaps, 4<<10)
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return out
		}
		line = bytes.TrimRight(line, " \n")
		if value, ok := bytes.CutPrefix(line, []byte("Anonymous:")); ok {
			if last.size > 0 && string(bytes.TrimSpace(value)) == "0 kB" {
				out = append(out, last)
			}
			continue
		}
		name, _, _ := bytes.Cut(line, []byte(" "))
		if from, to, ok := bytes.Cut(name, []byte("-")); ok {
			last = mapping{}
			if of, ok := bytes.CutSuffix(line, []byte(file)); ok && bytes.HasSuffix(of, []byte(" ")) {
				last = readOnly(from, to, of[len(name):])
			}
		}
	}
}

// readOnly is the mapping between two addresses in hexadecimal, empty where rights do not
// begin with those of one that is only read.
func readOnly(from, to, rights []byte) mapping {
	if !bytes.HasPrefix(rights, []byte(" r-xp ")) && !bytes.HasPrefix(rights, []byte(" r--p ")) {
		return mapping{}
	}
	start, err1 := strconv.ParseUint(string(from), 16, 64)
	end, err2 := strconv.ParseUint(string(to), 16, 64)
	if err1 != nil || err2 != nil {
		return mapping{}
	}
	return mapping{uintptr(start), uintptr(end - start)}
}
