package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// late is how much later than its time anything may be on a busy machine.
const late = wait.Bound

// probes asks port 15020 until stop is called, and counts what it says about readiness.
func probes(t *testing.T, p *meshup.Pod) (stop func() map[string]int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	client := &http.Client{Transport: &http.Transport{DialContext: p.Net.Dial, DisableKeepAlives: true}, Timeout: time.Minute}
	said := map[string]int{}
	var group sync.WaitGroup
	group.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			res, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz/ready", mesh.StatusPort))
			if err != nil {
				said["silent"]++
				continue
			}
			why, _ := io.ReadAll(res.Body) // what is missing is not found below
			_ = res.Body.Close()
			said[res.Status[:3]]++
			if res.StatusCode == http.StatusServiceUnavailable && strings.Contains(string(why), "draining") {
				said["draining"]++
			}
			if said["silent"] > 0 {
				said["silent and then not"]++
			}
			if said["draining"] > 0 && res.StatusCode != http.StatusServiceUnavailable {
				said["draining and then not"]++
			}
		}
	})
	return func() map[string]int {
		cancel()
		group.Wait()
		return said
	}
}

// end sends SIGTERM to a Pod's agent and waits for its end.
func end(p *meshup.Pod) (took time.Duration, err error) {
	began := time.Now()
	err = p.StopAgent(syscall.SIGTERM)
	return time.Since(began), err
}

// inFlight makes a request that its app holds for a while, and returns once the app has it.
func inFlight(t *testing.T, m *meshup.Mesh, hold string) <-chan error {
	t.Helper()
	client, echo := m.Pod("client-1.restart"), m.Pod("echo-1.restart")
	before, err := echo.Served(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		a, err := meshup.Post(context.WithoutCancel(t.Context()), meshup.Client(client.Net, 0), "http://echo:9080/?delay="+hold, nil)
		if bad := a.FirstFailure(); err == nil && bad != "" {
			err = errors.New(bad)
		}
		answered <- err
	}()
	if err := meshup.Await(t.Context(), time.Minute, "the app has the request", func(ctx context.Context) error {
		if n, err := echo.Served(ctx); err != nil || n == before {
			return fmt.Errorf("%d served, error %w", n, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return answered
}

// TestShutdownCompletesRequests ends the agent in front of an app that is answering, and then the one of the caller.
func TestShutdownCompletesRequests(t *testing.T) {
	t.Parallel()
	const drain = 5 * time.Second // far more than the app holds a request
	m, _ := startWith(t, "restart", func(o *meshup.Options) {
		o.ProxyConfig = meshup.CountFailures + "\nterminationDrainDuration: " + drain.String()
	})
	for _, key := range []string{"client-1.restart", "echo-1.restart"} {
		p := m.Pod(key)
		answer := inFlight(t, m, "1200ms")
		stop := probes(t, p)
		took, err := end(p)
		said := stop()
		if err != nil || took < drain || took > drain+late {
			t.Errorf("%s: the end took %v, error %v", key, took, err)
		}
		if err := <-answer; err != nil {
			t.Errorf("%s: a request under way failed: %v", key, err)
		}
		// The last probes may meet the end itself, when nothing answers any more.
		if said["draining"] < 5 || said["silent and then not"] > 0 || said["draining and then not"] > 0 {
			t.Errorf("%s: port 15020 said %v during the drain", key, said)
		}
		if key == "client-1.restart" {
			if err := p.StartAgent(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Without connections the shutdown does not wait, and it does not wait forever for one that stays open.
func TestShutdownWaitsForConnections(t *testing.T) {
	t.Parallel()
	const most = 20 * time.Second // far more than an end takes that waits for nobody
	m, _ := startWith(t, "restart", func(o *meshup.Options) {
		o.AgentEnv = []string{"EXIT_ON_ZERO_ACTIVE_CONNECTIONS=true", "MINIMUM_DRAIN_DURATION=500ms", "MAXIMUM_DRAIN_DURATION=" + most.String()}
	})
	client, echo := m.Pod("client-1.restart"), m.Pod("echo-1.restart")
	conn, err := client.Net.Dial(t.Context(), "tcp", "echo:9000")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintln(conn, "stuck"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	if took, err := end(echo); err != nil || took < most || took > most+late {
		t.Errorf("with a client that stays: %v, error %v", took, err)
	}
	_ = conn.Close()
	if took, err := end(client); err != nil || took >= most {
		t.Errorf("with nobody there: %v, error %v", took, err)
	}
}
