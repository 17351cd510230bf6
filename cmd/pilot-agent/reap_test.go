package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pilothouse/pilothouse/test/agenttest"
	"github.com/pilothouse/pilothouse/test/envoytest"
)

// As process 1 of a container the agent inherits every orphan, and reaps it; how Envoy ended
// it still learns.
func TestTheFirstProcessReapsOrphans(t *testing.T) {
	plane := agenttest.NewPlane(t)
	plane.Start()
	dir := t.TempDir()
	binary := filepath.Join(dir, "envoy")
	// Whenever it is started it leaves an orphan that ends by itself.
	script := fmt.Sprintf("#!/bin/sh\n(sleep 0.1 & echo $! >%s/orphan)\nexec %s \"$@\"\n", dir, envoytest.Binary(t))
	if err := os.WriteFile(binary, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	a := agenttest.New(t, plane, "binaryPath: "+binary)
	a.Cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS}
	a.Cmd.Args = append([]string{"sh", "-c", `mount -t proc proc /proc && exec "$0" "$@"`, a.Cmd.Path}, a.Cmd.Args[1:]...)
	a.Cmd.Path = "/bin/sh"
	a.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)
	proc := fmt.Sprintf("/proc/%d/root/proc", a.Cmd.Process.Pid) // the namespace's own
	reaped := func() error {
		pid, err := os.ReadFile(dir + "/orphan")
		if err != nil {
			return err
		}
		stat, err := os.ReadFile(filepath.Join(proc, strings.TrimSpace(string(pid)), "stat"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("it is there: %s, %w", stat, err)
	}
	if _, err := os.Stat(filepath.Join(proc, "1/stat")); err != nil {
		t.Fatal(err)
	}
	agenttest.Until(t, "the orphan is reaped", reaped)
	pid, err := a.Envoy()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGSEGV); err != nil {
		t.Fatal(err)
	}
	agenttest.Until(t, "how Envoy ended", func() error {
		if !strings.Contains(a.Output(), "killed by signal 11") {
			return errors.New("not told")
		}
		return a.Ready()
	})
	agenttest.Until(t, "the next orphan is reaped", reaped)
	a.Stop()
	if code := a.Wait(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}
