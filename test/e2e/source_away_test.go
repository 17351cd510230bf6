package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/load"
)

const goneService = "apiVersion: v1\nkind: Service\nmetadata: {name: gone, namespace: away}\nspec: {clusterIP: 10.96.31.1, selector: {app: echo}, ports: [{name: http, port: 9080}]}\n"

// updates returns how often each Envoy has accepted clusters and listeners.
func updates(t *testing.T, pods ...*meshup.Pod) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	for _, p := range pods {
		stats, err := p.Stats(t.Context(), "(cds|lds).update_success")
		if err != nil {
			t.Fatal(err)
		}
		for name, n := range stats {
			out[p.Spec.Key()+": "+name] = n
		}
	}
	if len(out) < 2*len(pods) {
		t.Fatalf("statistics %v, want those of clusters and listeners for each Pod", out)
	}
	return out
}

// hasCluster reports whether an Envoy uses a cluster of a service.
func hasCluster(ctx context.Context, p *meshup.Pod, service string) (bool, error) {
	text, err := p.Admin(ctx, "/config_dump?resource=dynamic_active_clusters")
	return strings.Contains(string(text), "outbound|9080||"+service+".away.svc.cluster.local"), err
}

// TestDiscoveryRestartsWithoutItsDirectory kills pilot-discovery under load and starts it while the directory of
// the configuration is missing. It serves the saved configuration: proxies that were connected get nothing
// again, one that starts then gets everything, and nothing is removed until the directory is back.
func TestDiscoveryRestartsWithoutItsDirectory(t *testing.T) {
	m, config := start(t, "away")
	client, v1, v2, late := m.Pod("client-1.away"), m.Pod("echo-v1-1.away"), m.Pod("echo-v2-1.away"), m.Pod("late-1.away")
	connected := []*meshup.Pod{client, v1, v2}
	inSync := func(pods ...*meshup.Pod) {
		t.Helper()
		if err := meshup.Await(t.Context(), time.Minute, "the proxies are in sync", func(ctx context.Context) error {
			known, err := statuses(ctx, m)
			for _, p := range pods {
				if s := known[p.Spec.Key()]; err == nil && (s.Generation == 0 || s.Applied != s.Generation) {
					err = fmt.Errorf("discovery says of %s: %+v", p.Spec.Key(), s)
				}
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	awaitCluster := func(want bool) {
		t.Helper()
		if err := meshup.Await(t.Context(), time.Minute, "the service that is removed", func(ctx context.Context) error {
			if has, err := hasCluster(ctx, client, "gone"); err != nil || has != want {
				return errors.Join(err, fmt.Errorf("the client has its cluster: %v", has))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	ready := func() string {
		t.Helper()
		text, err := m.Get(t.Context(), m.Net.Host(), m.DiscoveryURL()+"/ready")
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if err := os.WriteFile(filepath.Join(config, "gone.yaml"), []byte(goneService), 0o644); err != nil {
		t.Fatal(err)
	}
	awaitCluster(true)
	state := filepath.Join(m.StateDir(), "configuration.saved")
	if err := meshup.Await(t.Context(), time.Minute, "the configuration is saved", func(context.Context) error {
		text, err := os.ReadFile(state)
		switch {
		case err != nil:
			return err
		case strings.Contains(string(text), "correct-horse") || strings.Contains(string(text), "Y29ycmVjdC1ob3JzZ") || strings.Contains(string(text), `"Secret"`):
			return meshup.Final(errors.New("it contains a Secret"))
		case !strings.Contains(string(text), `"gone"`):
			return errors.New("the last service is not in it")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := late.StopAgent(unix.SIGKILL); err != nil && !errors.As(err, new(interface{ ExitCode() int })) {
		t.Fatal(err)
	}

	l := load.New(t.Context(), client.Net.Dial)
	l.KeepAlive("echo:9080", 6, 20*time.Millisecond)
	l.Churn("echo:9080", 2, 20*time.Millisecond)
	inSync(connected...)
	before := updates(t, connected...)
	if err := m.KillDiscovery(); err != nil {
		t.Fatal(err)
	}
	aside := config + ".aside"
	if err := errors.Join(os.Rename(config, aside), os.Remove(filepath.Join(aside, "gone.yaml"))); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := m.StartDiscovery(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("pilot-discovery is ready %v after its start", time.Since(began).Round(time.Millisecond))
	if text := ready(); !strings.Contains(text, "objects in force are those of the saved configuration") || !strings.Contains(text, " ago") {
		t.Errorf("/ready says %q", text)
	}
	inSync(connected...)
	if after := updates(t, connected...); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("connected proxies were sent something: %v, before %v", after, before)
	}
	if err := late.StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	inSync(m.Pods()...)
	a, err := meshup.Post(t.Context(), meshup.Client(late.Net, 0), "http://echo:9080/", nil)
	if err != nil || a.FirstFailure() != "" {
		t.Errorf("the proxy that has started calls the echo: %v, %v", a.FirstFailure(), err)
	}
	awaitCluster(true)
	if err := os.Rename(aside, config); err != nil {
		t.Fatal(err)
	}
	awaitCluster(false)
	if err := meshup.Await(t.Context(), time.Minute, "all objects have been read again", func(context.Context) error {
		if text := ready(); text != "ready\n" {
			return errors.New(text)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	r := l.Stop()
	if r.Sent == 0 || len(r.Failures) > 0 {
		t.Errorf("of %d requests failed: %v", r.Sent, r.Failures)
	}
	if err := meshup.CompareErrorStats(nil, errorStats(t, m)); err != nil {
		t.Error(err)
	}
	t.Logf("%d requests, none failed", r.Sent)
}
