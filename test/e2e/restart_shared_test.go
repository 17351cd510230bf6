package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/run"
)

// baseID is the one on the command line of a Pod's Envoy.
func baseID(t *testing.T, p *meshup.Pod) string {
	t.Helper()
	pid, err := p.EnvoyPID()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		t.Fatal(err)
	}
	args := bytes.Split(text, []byte{0})
	i := slices.IndexFunc(args, func(a []byte) bool { return string(a) == "--base-id" })
	if i < 0 || i+1 == len(args) {
		t.Fatalf("Envoy has no base id: %q", args)
	}
	return string(args[i+1])
}

// atOnce does the same in all Pods at the same time.
func atOnce(t testing.TB, m *meshup.Mesh, do func(context.Context, *meshup.Pod) error) {
	t.Helper()
	var tasks []run.Task
	for _, p := range m.Pods() {
		tasks = append(tasks, run.Task{Name: p.Spec.Key(), Run: func(ctx context.Context) error { return do(ctx, p) }})
	}
	if err := run.Group(t.Context(), tasks...); err != nil {
		t.Fatal(err)
	}
}

// TestNetworkNamespacesThatShareMemory: two agents, each with a network of its own, and one /dev/shm.
func TestNetworkNamespacesThatShareMemory(t *testing.T) {
	m, _ := startWith(t, "restart", func(o *meshup.Options) {
		o.ProxyConfig = "drainDuration: 1s\nterminationDrainDuration: 0.2s"
		o.AgentEnv = []string{"PARENT_SHUTDOWN_DURATION=1s"}
	})
	stop := func(_ context.Context, p *meshup.Pod) error { return p.StopAgent(syscall.SIGTERM) }
	atOnce(t, m, stop)
	shared := t.TempDir()
	if err := os.Chmod(shared, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	for _, p := range m.Pods() {
		if err := p.Net.Do(func() error { return unix.Mount(shared, "/dev/shm", "", unix.MS_BIND, "") }); err != nil {
			t.Fatal(err)
		}
	}
	atOnce(t, m, func(ctx context.Context, p *meshup.Pod) error { return p.StartAgent(ctx) })
	client, echo := m.Pod("client-1.restart"), m.Pod("echo-1.restart")
	one, other := baseID(t, client), baseID(t, echo)
	if one == other {
		t.Errorf("both have base id %s", one)
	}
	if segments, _ := filepath.Glob(shared + "/envoy_shared_memory_*"); len(segments) != 2 {
		t.Errorf("segments %v, want one of each", segments)
	}
	for i := range 2 {
		atOnce(t, m, func(ctx context.Context, p *meshup.Pod) error {
			_, err := restart(ctx, p, turn(t, p, 4*i+1))
			return err
		})
	}
	for _, p := range m.Pods() {
		if e, err := p.Epoch(t.Context()); err != nil || e.Number != 2 || e.Failures != 0 || e.Notes != "" {
			t.Errorf("%s: %+v, error %v", p.Spec.Key(), e, err)
		}
	}
	if baseID(t, client) != one || baseID(t, echo) != other {
		t.Error("a base id was changed by a hot restart")
	}
	// One that was killed leaves its segment to the next, and the one that lives is not touched.
	if err := client.StopAgent(syscall.SIGKILL); err != nil && !errors.As(err, new(interface{ ExitCode() int })) {
		t.Fatal(err)
	}
	if err := client.StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(shared, "envoy_shared_memory_"+one+"0")); err == nil {
		t.Error("the next agent has not removed what a killed one left")
	}
	if _, err := os.Stat(filepath.Join(shared, "envoy_shared_memory_"+other+"0")); err != nil {
		t.Errorf("the memory of one that lives: %v", err)
	}
	began := time.Now()
	atOnce(t, m, stop)
	if left, err := os.ReadDir(shared); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, error %v", left, err)
	}
	t.Logf("both ended after %v", time.Since(began).Round(time.Millisecond))
}
