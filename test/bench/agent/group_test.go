package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/test/envoytest"
)

// group is a control group for memory, of either version.
type group struct {
	dir, outside       string // outside is the group that the benchmark runs in
	current, anonymous string // file; field of memory.stat
}

// newGroup makes a group below the benchmark's own; it goes with the benchmark.
func newGroup(b *testing.B) *group {
	b.Helper()
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		b.Fatal(err)
	}
	g := &group{}
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(f) == 3 && f[1] == "memory":
			g.outside, g.current, g.anonymous = filepath.Join("/sys/fs/cgroup/memory", f[2]), "memory.usage_in_bytes", "rss"
		case len(f) == 3 && f[1] == "" && g.outside == "":
			g.outside, g.current, g.anonymous = filepath.Join("/sys/fs/cgroup", f[2]), "memory.current", "anon"
		}
	}
	g.dir, err = os.MkdirTemp(g.outside, "agent-")
	if err != nil {
		b.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(g.dir, g.current)); err != nil {
		b.Fatalf("measure memory by control group: %v: enable the memory controller for %s", err, g.outside)
	}
	b.Cleanup(func() {
		if err := os.Remove(g.dir); err != nil {
			b.Error(err)
		}
	})
	return g
}

// hold has cmd run in the group.
func (g *group) hold(cmd *exec.Cmd) {
	script := fmt.Sprintf(`echo $$ >%s/cgroup.procs && exec "$0" "$@"`, g.dir)
	cmd.Args = append([]string{"sh", "-c", script, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
}

// outside is a program that runs Envoy outside of the group, so that only the agent is
// charged.
func outside(b *testing.B, g *group) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), "envoy")
	script := fmt.Sprintf("#!/bin/sh\necho $$ >%s/cgroup.procs && exec %s \"$@\"\n", g.outside, envoytest.Binary(b))
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		b.Fatal(err)
	}
	return path
}

// charged is what the group is charged with, and the anonymous part of it, in MB.
func (g *group) charged() (current, anonymous float64, err error) {
	text, err := os.ReadFile(filepath.Join(g.dir, g.current))
	if err != nil {
		return 0, 0, err
	}
	if current, err = strconv.ParseFloat(strings.TrimSpace(string(text)), 64); err != nil {
		return 0, 0, err
	}
	stat, err := os.ReadFile(filepath.Join(g.dir, "memory.stat"))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(stat)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name == g.anonymous {
			anonymous, err = strconv.ParseFloat(value, 64)
			return current / (1 << 20), anonymous / (1 << 20), err
		}
	}
	return 0, 0, fmt.Errorf("read %s: no field %q", filepath.Join(g.dir, "memory.stat"), g.anonymous)
}
