package envoy

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// reapDelay is how long a zombie must have lain before it counts as nobody's. Whoever started
// a process and waits for it takes it at once.
const reapDelay = time.Second

// Reap makes this process the one that inherits orphaned descendants, and buries those that
// nobody here waits for, until ctx ends. As the first process of a container the agent
// has that duty anyway: whatever loses its parent in there becomes its child.
func Reap(ctx context.Context) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the reaper of orphaned processes: %w", err)
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	defer signal.Stop(ended)
	look := time.NewTimer(reapDelay) // also for those that ended before us
	defer look.Stop()
	seen := map[int]bool{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ended:
			if len(seen) == 0 {
				look.Reset(reapDelay)
			}
		case <-look.C:
			if seen = bury(seen); len(seen) > 0 {
				look.Reset(reapDelay)
			}
		}
	}
}

// bury reaps the zombies that had been seen before and returns those seen now for the first time.
func bury(seen map[int]bool) map[int]bool {
	fresh := map[int]bool{}
	for _, pid := range zombies() {
		if seen[pid] {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		} else {
			fresh[pid] = true
		}
	}
	return fresh
}

// zombies lists the children of this process that have ended and are not reaped. The kernel
// keeps children by thread.
func zombies() []int {
	var out []int
	files, _ := filepath.Glob("/proc/self/task/*/children")
	for _, file := range files {
		text, _ := os.ReadFile(file) // the thread may be gone
		for _, word := range strings.Fields(string(text)) {
			stat, _ := os.ReadFile("/proc/" + word + "/stat")
			// pid (name) state …; the name may hold anything.
			_, after, ok := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " ")
			if pid, err := strconv.Atoi(word); ok && err == nil && strings.HasPrefix(after, "Z") {
				out = append(out, pid)
			}
		}
	}
	return out
}
