package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/wait"
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
		`source_workload_namespace="tokens"`, `source_principal="spiffe://cluster.local/ns/tokens/sa/client"`, `source_workload="client-1"`, `source_canonical_service="client"`,
		`destination_workload_namespace="tokens"`, `destination_principal="spiffe://cluster.local/ns/tokens/sa/server"`,
		`destination_service="server.tokens.svc.cluster.local"`, `destination_service_name="server"`, `destination_service_namespace="tokens"`, `destination_canonical_service="server"`,
		`response_code="200"`, `request_protocol="http"`, `response_flags="-"`,
	}
	for pod, own := range map[string][]string{
		"client-1.tokens": {`reporter="source"`, `connection_security_policy="unknown"`, `destination_workload="server-1"`}, "server-1.tokens": {`reporter="destination"`, `connection_security_policy="mutual_tls"`, `destination_workload="server-1"`},
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

// TestMetricsOfMessages makes calls of gRPC, one of them a stream that its client ends: both sides' pages count the messages.
func TestMetricsOfMessages(t *testing.T) {
	m, _ := start(t, "metrics")
	l, err := m.Pod("server-1.tokens").Net.Listen("tcp", ":9091")
	if err != nil {
		t.Fatal(err)
	}
	states, server := health.NewServer(), grpc.NewServer()
	healthpb.RegisterHealthServer(server, states)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient("passthrough:///10.96.40.2:9091", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		return m.Pod("client-1.tokens").Net.Dial(ctx, "tcp", addr)
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := healthpb.NewHealthClient(conn)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const calls, changes = 5, 12
	for range calls {
		if _, err := client.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.Check(ctx, &healthpb.HealthCheckRequest{Service: "none"}); status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
	watched, stop := context.WithCancel(ctx)
	defer stop()
	stream, err := client.Watch(watched, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range changes {
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		states.SetServingStatus("", healthpb.HealthCheckResponse_ServingStatus(2-i%2))
	}
	stop()
	for pod, reporter := range map[string]string{"client-1.tokens": "source", "server-1.tokens": "destination"} {
		labels := []string{
			`reporter="` + reporter + `"`, `request_protocol="grpc"`, `source_workload="client-1"`, `source_principal="spiffe://cluster.local/ns/tokens/sa/client"`, `destination_service_name="server"`,
			`destination_principal="spiffe://cluster.local/ns/tokens/sa/server"`,
		}
		if err := meshup.Await(t.Context(), time.Minute, "the messages on the page of "+pod, func(ctx context.Context) error {
			page, err := metricsOf(ctx, m, pod)
			if err != nil {
				return err
			}
			requests, responses := sumOf(t, page, "istio_request_messages_total", labels...), sumOf(t, page, "istio_response_messages_total", labels...)
			unary := sumOf(t, page, "istio_response_messages_total", append(labels, `grpc_response_status="0"`)...)
			// The stream may have had one more, that of the last change.
			if requests != calls+2 || responses < calls+changes || responses > calls+changes+1 || unary != calls || bytes.Contains(page, []byte("messages=")) {
				return fmt.Errorf("%v messages in requests, %v in responses, %v in those of calls that succeeded: %s", requests, responses, unary, grep(page, "messages_total"))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMetricsOverrides has a Telemetry remove labels from the server's metrics, add some and disable a metric, while it is counted.
func TestMetricsOverrides(t *testing.T) {
	m, config := start(t, "metrics")
	serveHeaders(t, m, "server-1.tokens", ":9090")
	put(t, config, "telemetry.yaml", `
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: server, namespace: tokens}
spec:
  selector: {matchLabels: {app: server}}
  metrics:
  - overrides:
    - match: {metric: REQUEST_COUNT, mode: SERVER}
      tagOverrides:
        request_host: {value: request.host}
        destination_port: {value: string(destination.port)}
        who: {value: "request.headers['x-who']"}
        none: {value: "request.headers['x-none']"}
        source_workload: {operation: REMOVE}
        response_flags: {operation: REMOVE}
    - {match: {metric: REQUEST_DURATION}, disabled: true}
`)
	const requests = 3
	// By the words of the Telemetry, and a text that is no UTF-8, of which a page must have none.
	own := []string{`request_host="server:9090"`, `destination_port="9090"`, `who="a�b"`, `none="unknown"`, `reporter="destination"`, `source_canonical_service="client"`}
	count := func(ctx context.Context) (added, sizes, durations float64, page []byte, err error) {
		page, err = metricsOf(ctx, m, "server-1.tokens")
		if err != nil {
			return 0, 0, 0, nil, err
		}
		return sumOf(t, page, "istio_requests_total", own...), sumOf(t, page, "istio_request_bytes_count"), sumOf(t, page, "istio_request_duration_milliseconds_count"), page, nil
	}
	// Connections that are older than the Telemetry are counted without it, for as long as they drain: there should be none.
	if err := meshup.Await(t.Context(), time.Minute, "the server's proxy has the Telemetry", func(ctx context.Context) error {
		dump, err := m.Get(ctx, m.Pod("server-1.tokens").Net, fmt.Sprintf("http://127.0.0.1:%d/config_dump?resource=dynamic_listeners", mesh.AdminPort))
		if err == nil && !bytes.Contains(dump, []byte("label_request_host")) {
			err = errors.New("not yet")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := meshup.Await(t.Context(), 2*time.Minute, "the server's metrics are those of the Telemetry", func(ctx context.Context) error {
		added, sizes, durations, _, err := count(ctx)
		if err != nil {
			return err
		}
		for range requests {
			got, err := ask(ctx, m, "client-1.tokens", "server:9090", "http://server:9090/", http.Header{"X-Who": {"a\xff\xfeb"}})
			if err != nil || got.Status != http.StatusOK {
				return fmt.Errorf("status %d, error %w", got.Status, err)
			}
		}
		return meshup.Await(ctx, 20*time.Second, "the requests are counted", func(ctx context.Context) error {
			nowAdded, nowSizes, nowDurations, page, err := count(ctx)
			if err != nil {
				return err
			}
			if nowAdded-added != requests || nowSizes-sizes != requests || nowDurations != durations {
				return fmt.Errorf("%v requests with the labels, %v sizes, %v durations more: %s", nowAdded-added, nowSizes-sizes, nowDurations-durations, grep(page, "istio_requests_total"))
			}
			for line := range strings.SplitSeq(grep(page, `request_host="server:9090"`), "\n") {
				if strings.Contains(line, "source_workload=") || strings.Contains(line, "response_flags=") {
					return fmt.Errorf("labels are not removed: %s", line)
				}
			}
			if !utf8.Valid(page) {
				return errors.New("the page is not UTF-8")
			}
			return nil
		})
	}); err != nil {
		t.Fatal(err)
	}
	// The client's metrics are the standard.
	page, err := metricsOf(t.Context(), m, "client-1.tokens")
	if err != nil {
		t.Fatal(err)
	}
	if n := sumOf(t, page, "istio_requests_total", `source_workload="client-1"`, `response_flags="-"`); n == 0 || bytes.Contains(page, []byte("request_host=")) {
		t.Errorf("the client's metrics: %s", grep(page, "istio_requests_total"))
	}
}

// TestMetricsOfConnections makes connections that are not HTTP by mutual TLS between two sidecars: both sides' pages count them, and their
// bytes, with the principals.
func TestMetricsOfConnections(t *testing.T) {
	m, config := start(t, "metrics")
	l, err := m.Pod("server-1.tokens").Net.Listen("tcp", ":5000")
	if err != nil {
		t.Fatal(err)
	}
	const name = "a name of several bytes"
	sayName(t, l, name)
	greet(t, m, "server-1.tokens", ":5001", name)
	const connections = 7
	for range connections {
		if got, err := meshup.Line(t.Context(), m.Pod("client-1.tokens").Net, "10.96.40.4:5000", "who"); err != nil || got != name {
			t.Fatalf("answered by %q, error %v", got, err)
		}
	}
	common := []string{
		`request_protocol="tcp"`, `source_principal="spiffe://cluster.local/ns/tokens/sa/client"`, `destination_principal="spiffe://cluster.local/ns/tokens/sa/server"`,
		`source_workload_namespace="tokens"`, `destination_workload_namespace="tokens"`, `destination_service="data.tokens.svc.cluster.local"`, `destination_service_name="data"`,
		`destination_service_namespace="tokens"`, `destination_canonical_service="server"`, `response_flags="-"`,
	}
	for pod, own := range map[string][]string{
		"client-1.tokens": {`reporter="source"`, `connection_security_policy="unknown"`, `source_workload="client-1"`},
		"server-1.tokens": {`reporter="destination"`, `connection_security_policy="mutual_tls"`, `destination_workload="server-1"`},
	} {
		labels := append(own, common...)
		if err := meshup.Await(t.Context(), time.Minute, "the metrics of "+pod, func(ctx context.Context) error {
			page, err := metricsOf(ctx, m, pod)
			if err != nil {
				return err
			}
			for metric, want := range map[string]float64{
				"istio_tcp_connections_opened_total": connections, "istio_tcp_connections_closed_total": connections,
				"istio_tcp_received_bytes_total": connections * float64(len("who\n")), "istio_tcp_sent_bytes_total": connections * float64(len(name)+1),
			} {
				if n := sumOf(t, page, metric, labels...); n != want {
					return fmt.Errorf("%s is %v, want %v: %s", metric, n, want, grep(page, metric))
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	// A server that speaks first is heard, although its proxy waits for the client's certificate; and a connection that a policy denies
	// has no answer.
	c, err := m.Pod("client-1.tokens").Net.Dial(t.Context(), "tcp", "10.96.40.4:5001")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if got, err := bufio.NewReader(c).ReadString('\n'); err != nil || got != name+"\n" {
		t.Errorf("the server that speaks first says %q, error %v", got, err)
	}
	put(t, config, "deny.yaml", "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: deny, namespace: tokens}\nspec: {action: DENY, rules: [{to: [{operation: {ports: [\"5000\"]}}]}]}\n")
	if err := meshup.Await(t.Context(), time.Minute, "connections are denied", func(ctx context.Context) error {
		if got, err := meshup.Line(ctx, m.Pod("client-1.tokens").Net, "10.96.40.4:5000", "who"); err == nil && got != "" {
			return fmt.Errorf("answered by %q", got)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// greet accepts connections in a Pod, and says something on each before its client does, until the test ends.
func greet(t *testing.T, m *meshup.Mesh, pod, addr, text string) {
	t.Helper()
	l, err := m.Pod(pod).Net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return // the test has ended
			}
			_ = c.SetDeadline(time.Now().Add(10 * time.Second)) // an error is one of the next write, too
			_, _ = io.WriteString(c, text+"\n")                 // the client sees what is missing
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		select {
		case <-done:
		case <-time.After(wait.Bound):
			t.Error("the server has not ended")
		}
	})
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
