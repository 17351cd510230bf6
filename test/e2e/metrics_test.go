package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// sumOf returns the sum of the samples of a metric on a page that have all of the labels, each name="value".
func sumOf(t *testing.T, page []byte, name string, labels ...string) (sum float64) {
	t.Helper()
	for s := bufio.NewScanner(bytes.NewReader(page)); s.Scan(); {
		rest, ok := strings.CutPrefix(s.Text(), name+"{")
		end := strings.LastIndex(rest, "} ")
		if !ok || end < 0 {
			continue
		}
		all := true
		for _, l := range labels {
			all = all && strings.Contains(","+rest[:end]+",", ","+l+",")
		}
		if !all {
			continue
		}
		v, err := strconv.ParseFloat(strings.Fields(rest[end+2:])[0], 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += v
	}
	return sum
}

// metricsOf returns the page of metrics of a Pod's agent.
func metricsOf(ctx context.Context, m *meshup.Mesh, pod string) ([]byte, error) {
	return m.Get(ctx, m.Pod(pod).Net, fmt.Sprintf("http://127.0.0.1:%d/stats/prometheus", mesh.StatusPort))
}

// TestMetricsOfRequests makes requests and compares what both sides' pages count: each request once, with the workloads, the service
// and the principals. A header that the application forges changes nothing and reaches no one.
func TestMetricsOfRequests(t *testing.T) {
	m, _ := start(t, "metrics")
	serveHeaders(t, m, "server-1.tokens", ":9090")
	const requests = 5
	forged := http.Header{"X-Pilothouse-Peer": {"forged;forged;forged;forged;forged;forged;forged"}}
	for range requests {
		got, err := ask(t.Context(), m, "client-1.tokens", "server:9090", "http://server:9090/", forged)
		if err != nil || got.Status != http.StatusOK {
			t.Fatalf("status %d, error %v", got.Status, err)
		}
		if v := got.Header["X-Pilothouse-Peer"]; v != nil {
			t.Fatalf("the application has got the header of peers: %q", v)
		}
	}
	common := []string{
		`source_workload_namespace="tokens"`, `source_principal="spiffe://cluster.local/ns/tokens/sa/client"`, `source_workload="client"`, `source_canonical_service="client"`,
		`destination_workload_namespace="tokens"`, `destination_principal="spiffe://cluster.local/ns/tokens/sa/server"`,
		`destination_service="server.tokens.svc.cluster.local"`, `destination_service_name="server"`, `destination_service_namespace="tokens"`, `destination_canonical_service="server"`,
		`response_code="200"`, `request_protocol="http"`, `response_flags="-"`,
	}
	for pod, own := range map[string][]string{
		"client-1.tokens": {`reporter="source"`, `connection_security_policy="unknown"`, `destination_workload="server-1"`}, "server-1.tokens": {`reporter="destination"`, `connection_security_policy="mutual_tls"`, `destination_workload="server"`},
	} {
		labels := append(own, common...)
		if err := meshup.Await(t.Context(), time.Minute, "the metrics of "+pod, func(ctx context.Context) error {
			text, err := metricsOf(ctx, m, pod)
			if err != nil {
				return err
			}
			for _, name := range []string{"istio_requests_total", "istio_request_duration_milliseconds_count", "istio_request_bytes_count", "istio_response_bytes_count"} {
				if n := sumOf(t, text, name, labels...); n != requests {
					return fmt.Errorf("%s is %v, want %d; lines with istio_requests: %s", name, n, requests, grep(text, "istio_requests_total"))
				}
			}
			if n := sumOf(t, text, "istio_response_bytes_sum", labels...); n < requests*100 {
				return fmt.Errorf("%v bytes of responses", n)
			}
			if bytes.Contains(text, []byte("forged")) {
				return fmt.Errorf("the page has what the application forged: %s", grep(text, "forged"))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// grep returns the lines that have a text.
func grep(text []byte, what string) string {
	var out []string
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		if strings.Contains(s.Text(), what) {
			out = append(out, s.Text())
		}
	}
	return strings.Join(out, "\n")
}
