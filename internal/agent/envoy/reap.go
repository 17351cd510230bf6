package envoy

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// reapDelay is how long a process must have been a zombie before it is treated as an orphan
// and reaped. A child of this program is reaped at once by the code that started it.
const reapDelay = time.Second

// Reap reaps the orphans that this process inherits, until ctx ends; the error is nil. It is
// for the first process of a container, whose child every process becomes that loses its
// parent: without it their zombies stay until the container ends. The Envoys of this package are left to
// those who wait for their status.
func Reap(ctx context.Context) error {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	defer signal.Stop(ended)
	scan := time.NewTimer(reapDelay) // also for those that ended before
	defer scan.Stop()
	seen := map[int]bool{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ended:
			if len(seen) == 0 {
				scan.Reset(reapDelay)
			}
		case <-scan.C:
			if seen = reap(seen); len(seen) > 0 {
				scan.Reset(reapDelay)
			}
		}
	}
}

// reap reaps the zombies that were seen before and returns those seen for the first time.
func reap(before map[int]bool) map[int]bool {
	first := map[int]bool{}
	for _, pid := range zombies() {
		if _, ours := awaited.Load(pid); ours {
			continue
		}
		if before[pid] {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		} else {
			first[pid] = true
		}
	}
	return first
}

// awaited holds the process ids of the Envoys that a goroutine waits for. It belongs to the
// whole process, as its children do.
var awaited sync.Map

// zombies lists the children of this process that have ended and are not reaped.
func zombies() []int {
	var out []int
	parent := strconv.Itoa(os.Getpid())
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the process is gone
		}
		// pid (name) state parent …; the name may hold any character.
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) < 2 || fields[0] != "Z" || fields[1] != parent {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			out = append(out, pid)
		}
	}
	return out
}
