package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// TestFilesAreRewrittenInPlace truncates the file with the service and its rules and
// writes it again, slowly, while requests are on their way: none fails, each is served
// once, and the new weights arrive.
func TestFilesAreRewrittenInPlace(t *testing.T) {
	m, config := start(t, "rewrite")
	file := filepath.Join(config, "rules.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	client := meshup.Client(m.Pod("client-1.rewrite").Net, 8)
	defer client.CloseIdleConnections()
	before, served := errorStats(t, m), servedByRewrite(t, m)
	got := &outcomes{failures: map[string]int{}, versions: map[string]int{}}
	stop := make(chan struct{})
	var stream sync.WaitGroup
	for range 4 {
		stream.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
					got.add(meshup.Post(t.Context(), client, "http://echo:9080/", nil))
				}
			}
		})
	}
	steady := true
	for i, pauses := range []struct {
		before, line time.Duration
	}{{80 * time.Millisecond, 0}, {400 * time.Millisecond, 0}, {50 * time.Millisecond, 50 * time.Millisecond}} {
		weight := 50 + i
		edited := strings.NewReplacer("weight: 90", fmt.Sprintf("weight: %d", weight), "weight: 10", fmt.Sprintf("weight: %d", 100-weight)).Replace(string(text))
		steady = rewriteSlowly(t, file, edited, pauses.before, pauses.line) && steady
		awaitWeight(t, m, weight)
	}
	close(stop)
	stream.Wait()
	if !steady {
		t.Log("the machine stood still for too long while the file was written: requests may have failed")
		return
	}
	if len(got.failures) > 0 {
		t.Errorf("of %d requests failed: %v", got.sent, got.failures)
	}
	if n := servedByRewrite(t, m) - served; n != got.sent {
		t.Errorf("%d requests sent, %d served", got.sent, n)
	}
	if err := meshup.CompareErrorStats(before, errorStats(t, m)); err != nil {
		t.Error(err)
	}
	t.Logf("%d requests, %v", got.sent, got.versions)
}

// TestMixedCaseHost calls a host that a ServiceEntry and a route spell differently.
func TestMixedCaseHost(t *testing.T) {
	m, _ := start(t, "rewrite")
	client := meshup.Client(m.Pod("client-1.rewrite").Net, 0)
	for range 10 {
		a, err := meshup.Post(t.Context(), client, "http://echo:9080/mixed", nil)
		if err != nil || a.FirstFailure() != "" || a.Version != "v1" {
			t.Fatalf("answer %+v, error %v", a, err)
		}
	}
}

// rewriteSlowly truncates a file, pauses, and writes it again: whole, or line by line
// where a pause follows each. It returns false where the machine made a pause too long.
func rewriteSlowly(t *testing.T, file, text string, pause, line time.Duration) (steady bool) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	parts := []string{text}
	if line > 0 {
		parts = slices.Collect(strings.Lines(text))
	}
	steady = true
	for _, part := range parts {
		began := time.Now()
		<-time.After(pause)
		if _, err := f.WriteString(part); err != nil {
			t.Fatal(err)
		}
		pause = line
		steady = steady && time.Since(began) < filewatch.DefaultQuietPeriod*3/4
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return steady
}

// awaitWeight waits until the client's Envoy sends that many percent to v1.
func awaitWeight(t *testing.T, m *meshup.Mesh, weight int) {
	t.Helper()
	if err := meshup.Await(t.Context(), time.Minute, "the client's Envoy has the new weights", func(ctx context.Context) error {
		dump, err := m.Pod("client-1.rewrite").Admin(ctx, "/config_dump?resource=dynamic_route_configs")
		if err == nil && !strings.Contains(string(dump), fmt.Sprintf(`"weight": %d`, weight)) {
			err = errors.New("it has the old ones")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func servedByRewrite(t *testing.T, m *meshup.Mesh) int64 {
	t.Helper()
	var all int64
	for _, pod := range []string{"echo-v1-1.rewrite", "echo-v2-1.rewrite"} {
		n, err := m.Pod(pod).Served(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all += n
	}
	return all
}
