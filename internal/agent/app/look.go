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

// pace is between two looks.
const pace = 500 * time.Millisecond

// Options say what to watch. All are needed.
type Options struct {
	// Grace is how long the application must have been gone.
	Grace time.Duration
	// Own are the process ids of this program's children, whose sockets are not the application's.
	Own func() []int
	// Ended is called once, when it has.
	Ended func()
	Log   *slog.Logger
}

// Run looks until the application has ended or ctx ends.
func Run(ctx context.Context, o Options) error {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	var w Watch
	warned, there := false, false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		s, err := Look("/proc", func() []int { return append(o.Own(), os.Getpid()) })
		if err != nil {
			if !warned {
				o.Log.Warn("look whether the application runs", "error", err)
			}
			warned = true
			continue
		}
		ended := w.Ended(time.Now(), s, o.Grace)
		if there != w.there() {
			there = w.there()
			o.Log.Info(map[bool]string{true: "the application is there", false: "the application is gone"}[there], "grace", o.Grace)
		}
		if ended {
			o.Log.Info("the application has ended, and so does the agent", "grace", o.Grace)
			o.Ended()
			return nil
		}
	}
}

// Look sees what the application has; proc is where the kernel tells, own says which processes are not the application's.
func Look(proc string, own func() []int) (Sighting, error) {
	var s Sighting
	others, err := strangers(proc, own)
	if err != nil {
		return s, err
	}
	s.Listeners = len(others)
	// In a shared process namespace the first process is the one that holds the Pod together.
	first, _ := os.ReadFile(filepath.Join(proc, "1/comm"))
	if s.Shared = strings.TrimSpace(string(first)) == "pause"; s.Shared {
		s.Processes = neighbours(proc)
	}
	return s, nil
}

// strangers are the sockets that look foreign twice: an Envoy may have opened one, or have
// come or gone, between two of the files that were read.
func strangers(proc string, own func() []int) (map[string]bool, error) {
	others, err := foreign(proc, own)
	if err != nil || len(others) == 0 {
		return others, err
	}
	again, err := foreign(proc, own)
	maps.DeleteFunc(others, func(inode string, _ bool) bool { return !again[inode] })
	return others, err
}

// foreign are the inodes of the sockets that listen and belong to none of own.
func foreign(proc string, own func() []int) (map[string]bool, error) {
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

// listeners are the inodes of the sockets that listen.
func listeners(table string) ([]string, error) {
	f, err := os.Open(table)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []string
	for rows := bufio.NewScanner(f); rows.Scan(); {
		// number local remote state … inode
		if fields := strings.Fields(rows.Text()); len(fields) > 9 && fields[3] == "0A" {
			out = append(out, fields[9])
		}
	}
	return out, nil
}

// neighbours counts the processes of other containers: those in another control group, but for the
// first. Zombies do not run.
func neighbours(proc string) int {
	mine := container(proc, "self")
	dirs, _ := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	n := 0
	for _, dir := range dirs {
		pid := filepath.Base(dir)
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil || pid == "1" {
			continue
		}
		_, state, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " ")
		if !strings.HasPrefix(state, "Z") && container(proc, pid) != mine {
			n++
		}
	}
	return n
}

func container(proc, pid string) string {
	group, _ := os.ReadFile(filepath.Join(proc, pid, "cgroup")) // gone, or not to be read
	return string(group)
}
