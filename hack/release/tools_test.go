package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// runTools runs a copy of hack/tools.sh on a machine as uname describes it. The pip of that machine
// prints what it is asked for, and has nothing.
func runTools(t *testing.T, system, machine string) string {
	t.Helper()
	root := t.TempDir()
	script, err := os.ReadFile("../tools.sh")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		"hack/tools.sh": string(script),
		"bin/uname":     "#!/bin/sh\ncase $1 in -s) echo " + system + ";; -m) echo " + machine + ";; esac\n",
		"bin/python3":   "#!/bin/sh\nfor f in \"$@\"; do case $f in */requirements.txt) cat \"$f\"; exit 1;; esac; done\n",
	}
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.CommandContext(t.Context(), "bash", filepath.Join(root, "hack/tools.sh"))
	c.Env = append(c.Environ(), "ENVOY=", "PATH="+filepath.Join(root, "bin")+":"+os.Getenv("PATH"))
	out, err := c.CombinedOutput()
	if err == nil {
		t.Errorf("tools.sh succeeded without pip: %s", out)
	}
	return string(out)
}

func TestToolsFetchTheEnvoyOfTheArchitecture(t *testing.T) {
	seen := map[string]bool{}
	for _, machine := range []string{"x86_64", "aarch64"} {
		out := runTools(t, "Linux", machine)
		_, hash, found := strings.Cut(out, "--hash=sha256:")
		if !found || len(hash) < 64 || seen[hash[:64]] {
			t.Errorf("on %s tools.sh asks pip for %q, want a wheel of its own", machine, out)
			continue
		}
		seen[hash[:64]] = true
	}
	if out := runTools(t, "Linux", "riscv64"); !strings.Contains(out, "this is Linux on riscv64: set ENVOY=") {
		t.Errorf("on riscv64: %s", out)
	}
	if out := runTools(t, "Darwin", "x86_64"); !strings.Contains(out, "this is Darwin on x86_64: set ENVOY=") {
		t.Errorf("on Darwin: %s", out)
	}
}
