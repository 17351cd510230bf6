package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/pilothouse/pilothouse/test/agenttest"
)

// inside lists the files of a folder, with the attributes that change when a file is replaced or rewritten.
func inside(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		st, err := os.Lstat(path)
		if err == nil {
			out[path] = fmt.Sprint(st.Sys().(*syscall.Stat_t).Ino, st.Mode(), st.ModTime())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// swap changes text in an agent's environment.
func swap(a *agenttest.Process, old, with string) {
	for i, e := range a.Cmd.Env {
		a.Cmd.Env[i] = strings.Replace(e, old, with, 1)
	}
}

// An agent that cannot start says why, and harms no agent that runs.
func TestASecondAgentTouchesNothing(t *testing.T) {
	plane := agenttest.NewPlane(t)
	plane.Start()
	a := agenttest.New(t, plane, "", "XDS_COPY_DIR=none") // which the first agent would write meanwhile
	a.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)
	pid := "process " + strconv.Itoa(a.Cmd.Process.Pid)
	for _, tt := range []struct {
		name string
		make func() *agenttest.Process
		want []string // in what it says
	}{
		{"the same", func() *agenttest.Process {
			b := agenttest.New(t, plane, "")
			b.Cmd.Dir, b.Cmd.Env = a.Dir, a.Cmd.Env
			return b
		}, []string{"./etc/istio/proxy", pid, "configPath"}},
		{"the same folder", func() *agenttest.Process {
			b := agenttest.New(t, plane, "")
			b.Cmd.Dir = a.Dir
			return b
		}, []string{"./etc/istio/proxy", pid, "configPath"}},
		{"the same socket", func() *agenttest.Process {
			b := agenttest.New(t, plane, "configPath: ./etc/other")
			b.Cmd.Dir = a.Dir
			return b
		}, []string{"./var/run/secrets/workload-spiffe-uds", pid, "working directory"}},
		{"the same folder by another name", func() *agenttest.Process {
			b := agenttest.New(t, plane, "configPath: ./link")
			if err := os.Symlink(filepath.Join(a.Dir, "etc/istio/proxy"), filepath.Join(b.Dir, "link")); err != nil {
				t.Fatal(err)
			}
			return b
		}, []string{"./link", pid, "configPath"}},
		{"the same status port", func() *agenttest.Process {
			b := agenttest.New(t, plane, "")
			swap(b, "statusPort: "+b.Status, "statusPort: "+a.Status)
			return b
		}, []string{a.Status, "statusPort"}},
		{"the same admin port", func() *agenttest.Process {
			b := agenttest.New(t, plane, "")
			swap(b, "proxyAdminPort: "+b.Admin, "proxyAdminPort: "+a.Admin)
			return b
		}, []string{a.Admin, "proxyAdminPort"}},
		{"the same health port", func() *agenttest.Process {
			b := agenttest.New(t, plane, "")
			swap(b, "ENVOY_STATUS_PORT="+b.Health, "ENVOY_STATUS_PORT="+a.Health)
			return b
		}, []string{a.Health, "ENVOY_STATUS_PORT"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := inside(t, a.Dir)
			b := tt.make()
			b.Start()
			if code := b.Wait(); code != failed {
				t.Errorf("exit code %d, want %d", code, failed)
			}
			_, said, _ := strings.Cut(b.Output(), "Error: ")
			for _, want := range tt.want {
				if !strings.Contains(said, want) {
					t.Errorf("it says %q, which lacks %q", said, want)
				}
			}
			if strings.Contains(b.Output(), "Envoy command") {
				t.Error("it started an Envoy")
			}
			after := inside(t, a.Dir)
			for path, was := range before {
				if after[path] != was {
					t.Errorf("%s was %s and is %q", path, was, after[path])
				}
			}
			if len(after) != len(before) {
				t.Errorf("there were %d files, now there are %d", len(before), len(after))
			}
			if err := a.Ready(); err != nil {
				t.Errorf("the agent that runs: %v", err)
			}
		})
	}
	// Its Envoy finds its bootstrap, its configuration and its certificate.
	replaceKilledEnvoy(t, a)
	if strings.Contains(a.Output(), "drains its listeners") {
		t.Error("the Envoy of the other agent was drained")
	}
}

// What an agent that was killed leaves behind, the next one removes; it removes nothing else.
func TestNextAgentRemovesOldBootstraps(t *testing.T) {
	plane := agenttest.NewPlane(t)
	plane.Start()
	a := agenttest.New(t, plane, "", "PARENT_SHUTDOWN_DURATION=1s")
	a.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)
	if _, err := relay(t.Context(), localClient(agenttest.Bound), port(t, a.Status), "POST", "/restart", ""); err != nil {
		t.Fatal(err)
	}
	awaitEpoch(t, a, 1)
	left, err := filepath.Glob(a.Dir + "/etc/istio/proxy/envoy-rev-*.json")
	if err != nil || len(left) != 1 {
		t.Fatalf("bootstraps: %v, error %v", left, err)
	}
	if err := a.Cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	a.Wait()
	agenttest.Until(t, "its Envoy is gone", func() error {
		if _, _, err := a.Get(a.Admin, "/ready"); err == nil {
			return errors.New("it answers")
		}
		return nil
	})
	others := []string{"envoy-rev-custom.json", "envoy-rev-0123456789abcdef-1.yaml", "envoy-rev-0123456789abcdef-1.json.bak", "other.json"}
	for _, name := range others {
		a.Write("etc/istio/proxy/"+name, []byte("{}"))
	}
	b := agenttest.New(t, plane, "")
	b.Cmd.Dir, b.Cmd.Env = a.Dir, a.Cmd.Env
	b.Health, b.Status, b.Admin = a.Health, a.Status, a.Admin
	b.Start()
	agenttest.Until(t, "the next one is ready", b.Ready)
	if _, err := os.Lstat(left[0]); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: %v, want it removed", left[0], err)
	}
	for _, name := range others {
		if _, err := os.Lstat(a.Dir + "/etc/istio/proxy/" + name); err != nil {
			t.Errorf("what is not the agent's: %v", err)
		}
	}
	replaceKilledEnvoy(t, b)
}

func port(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
