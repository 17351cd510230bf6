package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// concurrent is the number of requests in flight when the weights change.
const concurrent = 2000

// outcomes counts the results of requests; mu guards the other fields, which every
// request's goroutine adds to.
type outcomes struct {
	mu       sync.Mutex
	sent     int64
	failures map[string]int
	versions map[string]int
}

func (o *outcomes) add(a meshup.Answer, err error) {
	bad := a.FirstFailure()
	if err != nil {
		bad = err.Error()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent++
	if bad != "" {
		o.failures[bad]++
		return
	}
	o.versions[a.Version]++
}

// TestWeightsChangeUnderLoad edits the weights while 2,000 requests are in flight and
// more keep coming: none fails, each is served once.
func TestWeightsChangeUnderLoad(t *testing.T) {
	m, config := start(t, "storm")
	client := meshup.Client(m.Pod("client-1.storm").Net, concurrent)
	client.Timeout = 2 * time.Minute
	defer client.CloseIdleConnections()
	before, served := errorStats(t, m), servedByEcho(t, m)
	got := &outcomes{failures: map[string]int{}, versions: map[string]int{}}

	// The app waits before it answers, so that all requests are in flight.
	var requests sync.WaitGroup
	for range concurrent {
		requests.Go(func() { got.add(meshup.Post(t.Context(), client, "http://echo:9080/?delay=8s", nil)) })
	}
	if err := meshup.Await(t.Context(), 2*time.Minute, "all requests are in flight", func(context.Context) error {
		if n := servedByEcho(t, m) - served; n < concurrent {
			return fmt.Errorf("%d are", n)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var stream sync.WaitGroup
	for range 8 {
		stream.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					got.add(meshup.Post(t.Context(), client, "http://echo:9080/", nil))
				}
			}
		})
	}
	changeWeights(t, m, config)
	requests.Wait()
	close(stop)
	stream.Wait()

	if len(got.failures) > 0 {
		t.Errorf("of %d requests failed: %v", got.sent, got.failures)
	}
	if n := servedByEcho(t, m) - served; n != got.sent {
		t.Errorf("%d requests sent, %d served", got.sent, n)
	}
	if err := meshup.CompareErrorStats(before, errorStats(t, m)); err != nil {
		t.Error(err)
	}
	t.Logf("%d requests, %v", got.sent, got.versions)
}

// changeWeights changes 90/10 to 50/50 and waits until it is in effect in the client's Envoy.
func changeWeights(t *testing.T, m *meshup.Mesh, config string) {
	t.Helper()
	file := filepath.Join(config, "mesh.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	edited := strings.NewReplacer("weight: 90", "weight: 50", "weight: 10}", "weight: 50}").Replace(string(text))
	next := filepath.Join(config, "next")
	if err := errors.Join(os.WriteFile(next, []byte(edited), 0o644), os.Rename(next, file)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := meshup.Await(t.Context(), time.Minute, "the client's Envoy has the new weights", func(ctx context.Context) error {
		dump, err := m.Pod("client-1.storm").Admin(ctx, "/config_dump?resource=dynamic_route_configs")
		if err == nil && (strings.Contains(string(dump), `"weight": 90`) || !strings.Contains(string(dump), `"weight": 50`)) {
			err = errors.New("it has the old ones")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("the edit was in the client's Envoy after %v", time.Since(began).Round(time.Millisecond))
}

func servedByEcho(t *testing.T, m *meshup.Mesh) int64 {
	t.Helper()
	var all int64
	for _, pod := range []string{"echo-v1-1.storm", "echo-v2-1.storm"} {
		n, err := m.Pod(pod).Served(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all += n
	}
	return all
}
