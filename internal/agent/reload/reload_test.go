package reload

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// build makes the Spec of a sidecar whose PROXY_CONFIG_FILE is config.yaml.
func build(running *spec.Spec, cpus int, annotations string) (*spec.Spec, error) {
	return spec.Build(spec.Input{
		Role: mesh.Sidecar, Running: running, Env: map[string]string{"PROXY_CONFIG_FILE": "config.yaml", "ISTIO_CPU_LIMIT": "1"},
		Host: spec.Host{CPULimit: cpus, Interfaces: []spec.Interface{{Name: "eth0", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}},
		ReadFile: func(path string) ([]byte, error) {
			if path == "./etc/istio/pod/annotations" {
				return []byte(annotations), nil
			}
			return os.ReadFile(path)
		},
	})
}

// What discovery changes in the bootstrap needs a new Envoy.
func TestCompareDifferences(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "config.yaml", "binaryPath: /bin/sh")
	running, err := build(nil, 1, "")
	if err != nil {
		t.Fatal(err)
	}
	for next, want := range map[string]bool{"": false, "x": true} {
		if got, err := Compare(running, running.WithDifferences([]byte(next))); err != nil || got.Envoy != want {
			t.Errorf("%q: %+v, %v", next, got, err)
		}
	}
}

func TestCompare(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "config.yaml", "binaryPath: /bin/sh")
	running, err := build(nil, 1, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, config, annotations string
		cpus                      int
		want                      Change
	}{
		{"nothing", "binaryPath: /bin/sh", "", 1, Change{}},
		{"an annotation that nothing reads", "binaryPath: /bin/sh", `example.com/unused="x"`, 1, Change{}},
		{"log level", "binaryPath: /bin/sh", `sidecar.istio.io/logLevel="debug"`, 1, Change{LogLevel: true}},
		{"drain time", "{binaryPath: /bin/sh, drainDuration: 3s}", "", 1, Change{Envoy: true}},
		{"flush interval", "{binaryPath: /bin/sh, fileFlushInterval: 3s}", "", 1, Change{Envoy: true}},
		{"binary", "binaryPath: /bin/true", "", 1, Change{Envoy: true}},
		{"CPU limit, over the variable of the start", "binaryPath: /bin/sh", "", 3, Change{Envoy: true}},
		{"discovery", "{binaryPath: /bin/sh, discoveryAddress: 'd:15012'}", "", 1, Change{Cold: []string{"discoveryAddress"}}},
		{"service cluster", "{binaryPath: /bin/sh, serviceCluster: other}", "", 1, Change{Cold: []string{"serviceCluster"}}},
		{"every class", "{binaryPath: /bin/sh, statusPort: 1, meshId: m}", `sidecar.istio.io/logLevel="info"`, 1, Change{LogLevel: true, Envoy: true, Cold: []string{"statusPort"}}},
		{"a field that only an injector reads", "{binaryPath: /bin/sh, holdApplicationUntilProxyStarts: true}", "", 1, Change{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			write(t, "config.yaml", tt.config)
			next, err := build(running, tt.cpus, tt.annotations)
			if err != nil {
				t.Fatal(err)
			}
			got, err := Compare(running, next)
			if err != nil || got.LogLevel != tt.want.LogLevel || got.Envoy != tt.want.Envoy || !slices.Equal(got.Cold, tt.want.Cold) {
				t.Errorf("got %+v (%v), want %+v", got, err, tt.want)
			}
			if got.Cold != nil && next.Upstream.Discovery != running.Upstream.Discovery {
				t.Errorf("discovery %s, want the running one until the next agent", next.Upstream.Discovery)
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// replace puts a new file in place of another in one step.
func replace(t *testing.T, path, text string) {
	t.Helper()
	write(t, path+".new", text)
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// world is a Reloader that runs.
type world struct {
	*Reloader
	cpus   atomic.Int64
	levels atomic.Pointer[string]

	mu     sync.Mutex
	starts []string // hashes
	last   *spec.Spec
}

func (w *world) started() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.starts)
}

func run(t *testing.T, config string) *world {
	t.Helper()
	t.Chdir(t.TempDir())
	write(t, "envoy", "the first binary")
	write(t, "config.yaml", config)
	w := &world{}
	w.cpus.Store(1)
	read := func(running *spec.Spec) (*spec.Spec, error) {
		return build(running, int(w.cpus.Load()), annotations(t))
	}
	first, err := read(nil)
	if err != nil {
		t.Fatal(err)
	}
	follower := filewatch.NewFollower(filewatch.FollowerOptions{Poll: 10 * time.Millisecond})
	w.Reloader = New(Options{
		Running: first, First: "first", Read: read, Follower: follower, Log: slog.New(slog.DiscardHandler),
		CPULimit: func() int { return int(w.cpus.Load()) },
		Start: func(next *spec.Spec, hash string) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.starts, w.last = append(w.starts, hash), next
			return nil
		},
		SetLogLevel: func(_ context.Context, level, _ string) error {
			w.levels.Store(&level)
			return nil
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = follower.Run(ctx) })
	running.Go(func() { _ = w.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func annotations(t *testing.T) string {
	text, err := os.ReadFile("annotations")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	return string(text)
}

// await waits for a number of starts.
func (w *world) await(t *testing.T, n int) []string {
	t.Helper()
	var got []string
	wait.NoError(t, "starts", func() error {
		if got = w.started(); len(got) < n {
			return errors.New(strings.Join(got, ", "))
		}
		return nil
	})
	return got
}

const config = "{binaryPath: ./envoy, drainDuration: 5s}"

func TestChangedFileStartsNewEnvoy(t *testing.T) {
	w := run(t, config)
	replace(t, "config.yaml", "{binaryPath: ./envoy, drainDuration: 6s}")
	if got := w.await(t, 1); got[0] == "first" {
		t.Errorf("hashes %q, want another than the first", got)
	}
	if d := w.last.Envoy.Arguments.Drain; d != 6*time.Second {
		t.Errorf("drain %s, want the new one", d)
	}
}

func TestInvalidInputChangesNothing(t *testing.T) {
	w := run(t, config)
	replace(t, "config.yaml", "{")
	w.Restart() // fails, too
	replace(t, "config.yaml", "{binaryPath: ./envoy, drainDuration: 7s}")
	w.await(t, 1)
	if d := w.last.Envoy.Arguments.Drain; d != 7*time.Second {
		t.Errorf("drain %s, want that of the configuration that can be read", d)
	}
}

func TestEachRestartHasItsOwnHash(t *testing.T) {
	w := run(t, config)
	w.Restart()
	w.await(t, 1)
	w.Restart()
	if got := w.await(t, 2); got[0] == got[1] {
		t.Errorf("hashes %q, want two", got)
	}
}

func TestChangedBinary(t *testing.T) {
	w := run(t, config)
	replace(t, "envoy", "the first binary") // the same bytes
	w.cpus.Store(1)
	replace(t, "envoy", "another binary")
	w.await(t, 1)
	replace(t, "envoy", "the first binary")
	got := w.await(t, 2)
	if got[0] == got[1] {
		t.Errorf("hashes %q, want two", got)
	}
	if w.binary.sum != "" {
		t.Errorf("digest %q, want that of the first binary", w.binary.sum)
	}
}

func TestChangedCPULimit(t *testing.T) {
	w := run(t, config)
	w.cpus.Store(4)
	w.await(t, 1)
	if n := w.last.Envoy.Arguments.Concurrency; n != 4 {
		t.Errorf("%d workers, want 4", n)
	}
}

func TestDataFilesOfAnOverride(t *testing.T) {
	got := dataFiles([]byte(`{"a": [{"filename": "/x"}], "filename": "/y", "b": {"filename": 3}}`), []byte("c: {filename: /x}"))
	if !slices.Equal(got, []string{"/x", "/y"}) {
		t.Errorf("got %q", got)
	}
}

func TestChangedFileOfTheBootstrap(t *testing.T) {
	t.Chdir(t.TempDir())
	data := filepath.Join(t.TempDir(), "data")
	write(t, data, "one")
	custom := filepath.Join(t.TempDir(), "custom.yaml")
	write(t, custom, "a: {filename: "+data+"}")
	w := run(t, "{binaryPath: ./envoy, customConfigFile: "+custom+"}")
	replace(t, data, "two")
	w.await(t, 1)
}
