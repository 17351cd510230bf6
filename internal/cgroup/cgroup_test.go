package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestCgroups(t *testing.T) {
	groups := parseCgroups("9:cpu,cpuacct:/pod\n4:memory:/pod\n0::/pod2\n")
	for _, c := range []struct {
		name, file, text string
		cpus             int
		kills            int64
		known            bool
		memory           int64
	}{
		{"unified", "pod2/memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n", 0, 2, true, 0},
		{"a container's own, unified", "memory.events", "oom_kill 4\n", 0, 4, true, 0},
		{"version 1", "memory/pod/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n", 0, 5, true, 0},
		{"half a CPU more than one", "pod2/cpu.max", "150000 100000\n", 2, 0, false, 0},
		{"no limit", "pod2/cpu.max", "max 100000\n", 0, 0, false, 0},
		{"memory, unified", "pod2/memory.max", "134217728\n", 0, 0, false, 128 << 20},
		{"no limit of memory", "pod2/memory.max", "max\n", 0, 0, false, 0},
		{"memory, version 1", "memory/pod/memory.limit_in_bytes", "1048576\n", 0, 0, false, 1 << 20},
		{"no limit, version 1", "memory/pod/memory.limit_in_bytes", "9223372036854771712\n", 0, 0, false, 0},
		{"nothing is known", "other", "", 0, 0, false, 0},
	} {
		root := t.TempDir()
		path := filepath.Join(root, c.file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(c.text), 0o600)); err != nil {
			t.Fatal(err)
		}
		if n := cpuLimit(root, groups); n != c.cpus {
			t.Errorf("%s: %d CPUs, want %d", c.name, n, c.cpus)
		}
		if n := memoryLimit(root, groups); n != c.memory {
			t.Errorf("%s: %d bytes, want %d", c.name, n, c.memory)
		}
		if n, ok := oomKills(root, groups); n != c.kills || ok != c.known {
			t.Errorf("%s: %d kills, known %v; want %d, %v", c.name, n, ok, c.kills, c.known)
		}
	}
}
