// Package app detects that the application of the agent's Pod has ended for good.
//
// A sidecar that keeps running after the application of a Job has ended keeps the Pod from completing.
// The package watches the listening sockets of the Pod's network namespace and, if the Pod shares a
// process namespace, its processes. The application has ended if there were some and there have been
// none for a grace period: one that crashes is restarted, and still needs its sidecar. An application
// without listening sockets and with its own process namespace cannot be observed, and counts as
// running. ended.go is pure.
package app

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// interval is the time between two snapshots. It is not shorter because an idle agent wakes at most once a second.
const interval = time.Second

// Options configure Run. All are required.
type Options struct {
	// Grace is how long the application must have been gone.
	Grace time.Duration
	// Own returns the process IDs of this program's children, whose sockets are not the application's.
	Own func() []int
	// Ended is called once, from Run, when the application has ended.
	Ended func()
	Log   *slog.Logger
}

// Run watches until the application has ended or ctx ends, and returns nil.
func Run(ctx context.Context, o Options) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var d detector
	warned, running := false, false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		s, err := readSnapshot("/proc", func() []int { return append(o.Own(), os.Getpid()) })
		if err != nil {
			if !warned {
				o.Log.Warn("check whether the application is running", "error", err)
			}
			warned = true
			continue
		}
		ended := d.ended(time.Now(), s, o.Grace)
		if running != d.running() {
			running = d.running()
			o.Log.Info(map[bool]string{true: "the application is running", false: "the application is not running any more"}[running], "grace", o.Grace)
		}
		if ended {
			o.Log.Info("the application has ended, so the agent exits", "grace", o.Grace)
			o.Ended()
			return nil
		}
	}
}

// readSnapshot reads the state of the application from the proc file system at proc.
func readSnapshot(proc string, own func() []int) (snapshot, error) {
	var s snapshot
	sockets, err := applicationSockets(proc, own)
	if err != nil {
		return s, err
	}
	s.listeners = len(sockets)
	// In a shared process namespace the first process is the pause container's.
	first, _ := os.ReadFile(filepath.Join(proc, "1/comm"))
	if s.sharedPID = strings.TrimSpace(string(first)) == "pause"; s.sharedPID {
		s.processes = otherProcesses(proc)
	}
	return s, nil
}

// applicationSockets returns the inodes of the application's listening sockets. It reads them twice,
// because an Envoy may open a socket, or start or exit, between reading two files.
func applicationSockets(proc string, own func() []int) (map[string]bool, error) {
	sockets, err := otherSockets(proc, own)
	if err != nil || len(sockets) == 0 {
		return sockets, err
	}
	again, err := otherSockets(proc, own)
	maps.DeleteFunc(sockets, func(inode string, _ bool) bool { return !again[inode] })
	return sockets, err
}

// otherSockets returns the inodes of the listening sockets that no process of own has.
func otherSockets(proc string, own func() []int) (map[string]bool, error) {
	out := map[string]bool{}
	for _, table := range []string{"tcp", "tcp6"} {
		inodes, err := listeners(filepath.Join(proc, "self/net", table))
		if err != nil && table == "tcp" {
			return nil, fmt.Errorf("read the socket table: %w", err)
		}
		for _, inode := range inodes {
			out[inode] = true
		}
	}
	for _, pid := range own() {
		links, _ := filepath.Glob(filepath.Join(proc, strconv.Itoa(pid), "fd", "*"))
		for _, link := range links {
			target, _ := os.Readlink(link) // it may be closed by now
			delete(out, strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]"))
		}
	}
	return out, nil
}

// listeners returns the inodes of the listening sockets in a table such as /proc/net/tcp.
func listeners(table string) ([]string, error) {
	f, err := os.Open(table)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []string
	for rows := bufio.NewScanner(f); rows.Scan(); {
		// number, local address, remote address, state, …, inode
		if fields := strings.Fields(rows.Text()); len(fields) > 9 && fields[3] == "0A" {
			out = append(out, fields[9])
		}
	}
	return out, nil
}

// otherProcesses counts the processes of other containers, which are in another control group,
// except process 1 and zombies.
func otherProcesses(proc string) int {
	own := cgroup(proc, "self")
	dirs, _ := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	n := 0
	for _, dir := range dirs {
		pid := filepath.Base(dir)
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil || pid == "1" {
			continue
		}
		_, state, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " ")
		if !strings.HasPrefix(state, "Z") && cgroup(proc, pid) != own {
			n++
		}
	}
	return n
}

func cgroup(proc, pid string) string {
	group, _ := os.ReadFile(filepath.Join(proc, pid, "cgroup")) // empty if the process has exited
	return string(group)
}
