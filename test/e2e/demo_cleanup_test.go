package e2e_test

import (
	"bytes"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/demo"
	"github.com/pilothouse/pilothouse/test/wait"
)

// ended waits for the demo's end and returns its exit code, -1 after a signal.
func (d *demoRun) ended(t *testing.T) int {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- d.cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(wait.Bound):
		_ = d.cmd.Process.Kill()
		<-done
		t.Fatal("the demo does not end")
	}
	return d.cmd.ProcessState.ExitCode()
}

// TestDemoCleansUpWhenItsOutputIsClosed is demo | head: its output is closed after some lines.
func TestDemoCleansUpWhenItsOutputIsClosed(t *testing.T) {
	for _, line := range []string{"starting a mesh", "Scenario 2."} {
		t.Run(line, func(t *testing.T) {
			d := startDemo(t)
			d.until(t, line)
			if err := d.out.Close(); err != nil {
				t.Fatal(err)
			}
			if code := d.ended(t); code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			d.left(t)
		})
	}
}

// The signals are those of a closed terminal, a supervisor, and an impatient user.
func TestDemoCleansUpOnSignals(t *testing.T) {
	// What is ignored is inherited, as below nohup; what is caught is not.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP)
	defer signal.Stop(caught)
	for name, signals := range map[string][]os.Signal{
		"hangup": {syscall.SIGHUP}, "terminated": {syscall.SIGTERM}, "interrupted twice": {os.Interrupt, os.Interrupt},
	} {
		t.Run(name, func(t *testing.T) {
			d := startDemo(t)
			d.until(t, "Scenario 1.")
			for _, s := range signals {
				if err := d.cmd.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
			}
			if code := d.end(t); code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			d.left(t)
		})
	}
}

// TestDemoCleansUpAfterAFailedStart fails at each step before the scenarios.
func TestDemoCleansUpAfterAFailedStart(t *testing.T) {
	config := t.TempDir()
	if err := os.WriteFile(filepath.Join(config, "a.yaml"), []byte("kind: Pod\nmetadata: {name: a, namespace: b}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// It replaces pilot-discovery, and ends at once.
	bin := t.TempDir()
	for _, name := range []string{"pilot-agent", "pilot-discovery", "app"} {
		if err := os.Symlink("/bin/false", filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, args := range map[string][]string{
		"no configuration":    {"--configDir", t.TempDir()},
		"a Pod of no address": {"--configDir", config},
		"no discovery":        {"--bin", bin},
		"logs that are there": {"--logs", config},
	} {
		t.Run(name, func(t *testing.T) {
			d := startDemo(t, args...)
			if code := d.end(t); code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			d.left(t)
		})
	}
}

// TestChecksOfEditsCanFail runs a discovery that serves a copy of the directory, so that edits have no effect.
func TestChecksOfEditsCanFail(t *testing.T) {
	stale := filepath.Join(t.TempDir(), "pilot-discovery")
	script := strings.Join([]string{
		"#!/bin/sh",
		"set -e",
		// discovery --configDir DIR …: the copy lies beside DIR.
		`mkdir -p "$3-copy"`, `cp -n "$3"/*.yaml "$3-copy"`, `dir="$3-copy"`, "shift 3",
		`exec ` + programs.Discovery + ` discovery --configDir "$dir" "$@"`,
	}, "\n")
	if err := os.WriteFile(stale, []byte(script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	p := programs
	p.Discovery = stale
	for scenario, want := range map[string][]string{
		"weights":   {"FAILED: the edit was in effect in the Envoy of productpage after ", "it has 90/10, not 50/50"},
		"discovery": {"FAILED: an edit was in effect after ", "it has 90/10, not 50/50"},
		"ingress":   {"FAILED: new connections get the new certificate ", "it has the old one"},
		"egress":    {"FAILED: it is answered ", "status 403"},
	} {
		t.Run(scenario, func(t *testing.T) {
			t.Parallel() // most of the time is spent waiting for what does not come
			var out bytes.Buffer
			err := demo.Run(t.Context(), demo.Options{
				Start: demo.OnThisMachine(p, issue), ConfigDir: filepath.Join(root, "samples", "bookshop"), Out: &out, Scenarios: []string{scenario},
			})
			for _, text := range want {
				if err == nil || !strings.Contains(out.String(), text) {
					t.Errorf("%v; want %q in\n%s", err, text, out.String())
				}
			}
		})
	}
}
