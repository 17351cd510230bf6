package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// pagesVariable names the folder that TestPagesOfMetrics writes pages to, for the tests of package prometheus, a module of its own.
const pagesVariable = "PILOTHOUSE_TEST_PAGES"

// TestPagesOfMetrics makes requests and connections, with mutual TLS and in plaintext, twice as many the second time, and takes the
// pages of metrics of all proxies and of the control plane after each.
func TestPagesOfMetrics(t *testing.T) {
	out := os.Getenv(pagesVariable)
	if out == "" {
		out = t.TempDir()
	}
	m, config := start(t, "metrics")
	put(t, config, "permissive.yaml", "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: server, namespace: tokens}\nspec: {selector: {matchLabels: {app: server}}, mtls: {mode: PERMISSIVE}}\n")
	serveHeaders(t, m, "server-1.tokens", ":9090")
	l, err := m.Pod("server-1.tokens").Net.Listen("tcp", ":5000")
	if err != nil {
		t.Fatal(err)
	}
	sayName(t, l, "hello")
	const client, outside, server = "client-1.tokens", "outside-1.tokens", "server-1.tokens"
	answered := func(ctx context.Context, from, addr string) error {
		_, err := meshup.Line(ctx, m.Pod(from).Net, addr, "who is it") // long enough for Envoy to see that it is no TLS
		return err
	}
	// What the server does not take in plaintext yet has no answer, and is counted nowhere.
	if err := meshup.Await(t.Context(), time.Minute, "the server takes plaintext", func(ctx context.Context) error {
		return answered(ctx, outside, "10.99.0.12:5000")
	}); err != nil {
		t.Fatal(err)
	}
	const requests = 5
	for round := 1; round <= 2; round++ {
		for range requests {
			if err := answered(t.Context(), client, "10.96.40.4:5000"); err != nil {
				t.Fatal(err)
			}
			if err := answered(t.Context(), outside, "10.99.0.12:5000"); err != nil {
				t.Fatal(err)
			}
			for from, host := range map[string]string{client: "server:9090", outside: "10.99.0.12:9090"} {
				if got, err := ask(t.Context(), m, from, host, "http://"+host+"/", nil); err != nil || got.Status != http.StatusOK {
					t.Fatalf("%s: status %d, error %v", from, got.Status, err)
				}
			}
		}
		for pod, want := range map[string]float64{client: requests, server: 2 * requests} {
			if err := meshup.Await(t.Context(), time.Minute, "the metrics of "+pod, func(ctx context.Context) error {
				page, err := metricsOf(ctx, m, pod)
				if err != nil {
					return err
				}
				for _, name := range []string{"istio_requests_total", "istio_response_bytes_count"} { // histograms are later
					if n := sumOf(t, page, name, `response_code="200"`); n != want*float64(round) {
						return fmt.Errorf("%s is %v, want %v", name, n, want*float64(round))
					}
				}
				if n := sumOf(t, page, "istio_tcp_connections_closed_total"); n < want*float64(round) {
					return fmt.Errorf("%v connections", n)
				}
				return write(out, round, pod, page)
			}); err != nil {
				t.Fatal(err)
			}
		}
		page, err := m.Get(t.Context(), m.Net.Host(), "http://127.0.0.1:15014/metrics")
		if err != nil {
			t.Fatal(err)
		}
		if err := write(out, round, "discovery", page); err != nil {
			t.Fatal(err)
		}
	}
}

// write writes the page of a target after a round.
func write(dir string, round int, target string, page []byte) error {
	dir = filepath.Join(dir, strconv.Itoa(round))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, target), page, 0o600)
}
