package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/run"
	"github.com/pilothouse/pilothouse/test/load"
)

// keepIdentities gives each Pod of the mesh of directory away a folder in memory for its certificate.
func keepIdentities(t testing.TB, o *meshup.Options) {
	t.Helper()
	memory, err := os.MkdirTemp("/dev/shm", "pilothouse-e2e-")
	if err == nil {
		err = os.Chmod(memory, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(memory); err != nil {
			t.Error(err)
		}
	})
	if o.PodEnv == nil {
		o.PodEnv = map[string][]string{}
	}
	for _, key := range []string{"client-1.away", "echo-v1-1.away", "echo-v2-1.away", "late-1.away"} {
		dir := filepath.Join(memory, key)
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, mesh.ProxyUID, mesh.ProxyUID)); err != nil {
			t.Fatal(err)
		}
		o.PodEnv[key] = append(o.PodEnv[key], "IDENTITY_COPY_DIR="+dir)
	}
}

// copyMetric reads a metric of the agent about the copy of the configuration.
func copyMetric(ctx context.Context, m *meshup.Mesh, p *meshup.Pod, name string) (string, error) {
	text, err := m.Get(ctx, p.Net, fmt.Sprintf("http://127.0.0.1:%d/metrics", mesh.StatusPort))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "istio_agent_xds_copy_"+name+" "); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", nil
}

// awaitCopy waits until the agents of all Pods have a copy.
func awaitCopies(t testing.TB, m *meshup.Mesh) {
	t.Helper()
	if err := meshup.Await(t.Context(), time.Minute, "each agent has a copy of the configuration", func(ctx context.Context) error {
		for _, p := range m.Pods() {
			if size, err := copyMetric(ctx, m, p, "bytes"); err != nil || size == "" {
				return errors.Join(err, fmt.Errorf("%s has none", p.Spec.Key()))
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// killAgents kills the agents of all Pods, and with them their Envoys.
func killAgents(t testing.TB, m *meshup.Mesh) {
	t.Helper()
	atOnce(t, m, func(_ context.Context, p *meshup.Pod) error {
		if err := p.StopAgent(unix.SIGKILL); err != nil && !errors.As(err, new(interface{ ExitCode() int })) {
			return err
		}
		return nil
	})
}

// startAgents starts the agents of all Pods, and returns how long it took until the first request of the client was answered.
func startAgents(t testing.TB, m *meshup.Mesh) time.Duration {
	t.Helper()
	client := m.Pod("client-1.away")
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var served atomic.Int64
	tasks := []run.Task{{Name: "requests", Run: func(context.Context) error {
		for ctx.Err() == nil {
			if a, err := meshup.Post(ctx, meshup.Client(client.Net, 0), "http://echo:9080/", nil); err == nil && a.FirstFailure() == "" {
				served.Store(int64(time.Since(began)))
				return nil
			}
		}
		return errors.New("no request is answered")
	}}}
	for _, p := range m.Pods() {
		tasks = append(tasks, run.Task{Name: p.Spec.Key(), Run: func(context.Context) error { return p.StartAgent(ctx) }})
	}
	if err := run.Group(t.Context(), tasks...); err != nil {
		t.Fatal(err)
	}
	return time.Duration(served.Load())
}

// BenchmarkServeWithoutDiscovery reports how long it takes from the start of all agents until the first request is answered, by the agents'
// copies: neither discovery nor the CA is there.
func BenchmarkServeWithoutDiscovery(b *testing.B) {
	m, _ := startWith(b, "away", func(o *meshup.Options) { keepIdentities(b, o) })
	awaitCopies(b, m)
	if err := m.KillDiscovery(); err != nil {
		b.Fatal(err)
	}
	var total time.Duration
	for b.Loop() {
		killAgents(b, m)
		total += startAgents(b, m)
	}
	b.ReportMetric(float64(total.Milliseconds())/float64(b.N), "first-request-ms")
	b.ReportMetric(0, "ns/op")
}

// TestAgentsServeWithoutDiscovery kills pilot-discovery, which is the CA too, and all agents and Envoys, and starts the agents: they
// serve what they served before. When discovery is back with another configuration, that is taken over under load.
func TestAgentsServeWithoutDiscovery(t *testing.T) {
	for name, env := range map[string][]string{"delta": nil, "state of the world": {"ISTIO_DELTA_XDS=false"}} {
		t.Run(name, func(t *testing.T) {
			m, config := startWith(t, "away", func(o *meshup.Options) {
				keepIdentities(t, o)
				o.AgentEnv = env
			})
			serveWithoutDiscovery(t, m, config)
		})
	}
}

func serveWithoutDiscovery(t *testing.T, m *meshup.Mesh, config string) {
	client, v1, v2 := m.Pod("client-1.away"), m.Pod("echo-v1-1.away"), m.Pod("echo-v2-1.away")
	awaitCopies(t, m)
	if err := m.KillDiscovery(); err != nil {
		t.Fatal(err)
	}
	killAgents(t, m)
	// Requests are answered while nothing but the copies can have configured the proxies: there is no discovery until they have been, within
	// the minute that startAgents gives them. BenchmarkServeWithoutDiscovery measures the time.
	took := startAgents(t, m)
	t.Logf("the first request was served %v after the start of the agents", took.Round(time.Millisecond))
	for _, p := range m.Pods() {
		serving, err := copyMetric(t.Context(), m, p, "serving")
		if err != nil || serving != "1" {
			t.Errorf("%s serves from its copy: %q, %v", p.Spec.Key(), serving, err)
		}
		text, err := m.Get(t.Context(), p.Net, fmt.Sprintf("http://127.0.0.1:%d/healthz/ready", mesh.StatusPort))
		if err != nil || !strings.Contains(string(text), "Envoy has the copy of its configuration of ") {
			t.Errorf("readiness of %s says %q, %v", p.Spec.Key(), text, err)
		}
	}
	l := load.New(t.Context(), client.Net.Dial)
	l.KeepAlive("echo:9080", 6, 20*time.Millisecond)
	l.Churn("echo:9080", 2, 20*time.Millisecond)
	edit(t, config, "subset: v1}, weight: 90", "subset: v1}, weight: 0", "subset: v2}, weight: 10", "subset: v2}, weight: 100")
	if err := m.StartDiscovery(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := meshup.Await(t.Context(), time.Minute, "the proxies have the new configuration", func(ctx context.Context) error {
		known, err := statuses(ctx, m)
		for _, p := range m.Pods() {
			if s := known[p.Spec.Key()]; err == nil && (s.Generation == 0 || s.Applied != s.Generation) {
				err = fmt.Errorf("discovery says of %s: %+v", p.Spec.Key(), s)
			}
			if serving, metric := copyMetric(ctx, m, p, "serving"); err == nil && (metric != nil || serving != "0") {
				err = errors.Join(metric, fmt.Errorf("%s serves from its copy: %s", p.Spec.Key(), serving))
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	before, err := v1.Served(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	served := func() int64 {
		n, err := v2.Served(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for now := served(); served() < now+100; {
		if t.Context().Err() != nil {
			t.Fatal("no requests are served with the new weights")
		}
	}
	r := l.Stop()
	if after, err := v1.Served(t.Context()); err != nil || after != before {
		t.Errorf("the subset without weight served %d requests, %v", after-before, err)
	}
	if r.Sent == 0 || len(r.Failures) > 0 {
		t.Errorf("of %d requests failed: %v", r.Sent, r.Failures)
	}
	t.Logf("%d requests, none failed", r.Sent)
}
