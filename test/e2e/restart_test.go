package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/run"
	"github.com/pilothouse/pilothouse/test/load"
)

// How the restarts of these tests are timed; parents live longer than they drain.
const (
	restartDrain    = 2 * time.Second
	restartShutdown = 4 * time.Second
)

// startForRestarts brings up the mesh of directory restart.
func startForRestarts(t testing.TB) *meshup.Mesh {
	t.Helper()
	m, _ := startWith(t, "restart", func(o *meshup.Options) {
		o.ProxyConfig = meshup.CountFailures + "\ndrainDuration: " + restartDrain.String()
		o.AgentEnv = []string{"PARENT_SHUTDOWN_DURATION=" + restartShutdown.String()}
	})
	return m
}

// turn is what the i-th restart changes: configuration, number of workers and path of the binary by turns.
func turn(t testing.TB, p *meshup.Pod, i int) string {
	t.Helper()
	binary := p.EnvoyPath()
	if i%4 >= 2 {
		other := filepath.Join(filepath.Dir(binary), "envoy-too")
		if err := os.Link(binary, other); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
		binary = other
	}
	return fmt.Sprintf("concurrency: %d\nbinaryPath: %s\nstatNameLength: %d\n", 1+i%2, binary, 190+i)
}

// restart changes a Pod's annotation and waits until another epoch serves alone. It returns when that was live.
func restart(ctx context.Context, p *meshup.Pod, config string) (time.Time, error) {
	before, err := p.Epoch(ctx)
	if err != nil {
		return time.Time{}, err
	}
	text, err := json.Marshal(config)
	if err != nil {
		return time.Time{}, err
	}
	if err := p.Write("etc/istio/pod/annotations", []byte("proxy.istio.io/config="+string(text)+"\n")); err != nil {
		return time.Time{}, err
	}
	var live time.Time
	err = meshup.Await(ctx, 2*time.Minute, "the next epoch of "+p.Spec.Key()+" serves alone", func(ctx context.Context) error {
		if err := p.Ready(ctx); err != nil {
			return meshup.Final(fmt.Errorf("it is not ready: %w", err))
		}
		now, err := p.Epoch(ctx)
		if err != nil {
			return err
		}
		if live = now.Live; now.Number != before.Number+1 || now.Running != 1 {
			return fmt.Errorf("epoch %d, %d of them run: %s", now.Number, now.Running, now.Notes)
		}
		return nil
	})
	return live, err
}

// restarts replaces the Envoys of all Pods at once, so many times, under load.
func restarts(t testing.TB, m *meshup.Mesh, times int) load.Result {
	t.Helper()
	client, echo := m.Pod("client-1.restart"), m.Pod("echo-1.restart")
	served, err := echo.Served(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before, err := m.ErrorStats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l := load.New(t.Context(), client.Net.Dial)
	l.KeepAlive("echo:9080", 18, 10*time.Millisecond)
	l.Churn("echo:9080", 6, 10*time.Millisecond)
	l.HTTP2("echo:9081", 6, 10*time.Millisecond)
	l.Streams("echo:9000", 8, 50*time.Millisecond)
	var live []time.Time
	for i := range times {
		pods := []*meshup.Pod{client, echo}
		at := make([]time.Time, len(pods))
		var tasks []run.Task
		for k, p := range pods {
			config := turn(t, p, i+1)
			tasks = append(tasks, run.Task{Name: p.Spec.Key(), Run: func(ctx context.Context) (err error) {
				at[k], err = restart(ctx, p, config)
				return err
			}})
		}
		if err := run.Group(t.Context(), tasks...); err != nil {
			t.Error(err)
			break
		}
		live = append(live, at...)
	}
	r := l.Stop()
	after, err := m.ErrorStats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := meshup.CompareErrorStats(before, after); err != nil {
		t.Error(err)
	}
	if len(r.Failures) > 0 {
		t.Errorf("of %d requests failed: %v", r.Sent, r.Failures)
	}
	now, err := echo.Served(t.Context())
	if err != nil || now-served != r.Sent {
		t.Errorf("%d requests sent, %d served, error %v", r.Sent, now-served, err)
	}
	if b := r.Broken(live, restartDrain); len(b) > 0 {
		t.Errorf("%d streams of %d were broken, the first: %+v", len(b), len(r.Ends), b[0])
	}
	t.Logf("%d restarts of two Envoys in %v, %d requests (%.0f/s): %v; %d streams ended after their drain",
		len(live), r.Took.Round(time.Millisecond), r.Sent, r.Rate(), r.Answers, len(r.Ends))
	return r
}

// TestHotRestartsUnderLoad replaces the Envoys at both ends of captured traffic, over and over.
func TestHotRestartsUnderLoad(t *testing.T) {
	m := startForRestarts(t)
	restarts(t, m, 3)
	_, shown, _ := pilotctl(t, m, "proxies", "-o", "json")
	if n := strings.Count(shown, `"epoch": 3`); n != len(m.Pods()) {
		t.Errorf("%d proxies are shown with epoch 3, want all: %s", n, shown)
	}
	for _, p := range m.Pods() {
		e, err := p.Epoch(t.Context())
		if err != nil || e.Number != 3 || e.Failures != 0 || strings.Contains(e.Notes, "workers") {
			t.Errorf("%s: %+v, error %v", p.Spec.Key(), e, err)
		}
	}
}

// BenchmarkHotRestarts is the same 50 times.
func BenchmarkHotRestarts(b *testing.B) {
	m := startForRestarts(b)
	for b.Loop() {
		r := restarts(b, m, 50)
		b.ReportMetric(r.Rate(), "requests/s")
		b.ReportMetric(float64(len(r.Failures)), "failures")
	}
}
