package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// collector is a server of access logs that takes the messages of every service of gRPC.
type collector struct {
	mutex sync.Mutex
	got   map[string][]byte // by the method, what was received of it
}

// serveLogs runs a collector in a Pod until the test ends.
func serveLogs(t *testing.T, m *meshup.Mesh, pod, addr string) *collector {
	t.Helper()
	c := &collector{got: map[string][]byte{}}
	l, err := m.Pod(pod).Net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(stream)
		for {
			message := &emptypb.Empty{} // its unknown fields are the message
			if err := stream.RecvMsg(message); err != nil {
				return nil //nolint:nilerr // the proxy has ended the stream
			}
			c.mutex.Lock()
			c.got[method] = append(c.got[method], message.ProtoReflect().GetUnknown()...)
			c.mutex.Unlock()
			if strings.HasSuffix(method, "/Export") { // which has one answer
				return stream.SendMsg(&emptypb.Empty{})
			}
		}
	}))
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c
}

// has reports whether a text was received by a method.
func (c *collector) has(method, text string) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return bytes.Contains(c.got[method], []byte(text))
}

// TestTelemetrySwitchesAccessLogs has Telemetries decide what the server logs: requests that a filter selects in a file, then all in
// another file and at a server of gRPC, in both of its protocols, then nothing in either file.
func TestTelemetrySwitchesAccessLogs(t *testing.T) {
	t.Parallel() // it waits most of the time
	m, config := start(t, "tokens")
	serveHeaders(t, m, "server-1.tokens", ":9090")
	logs := serveLogs(t, m, "outside-1.tokens", ":4317")
	put(t, config, "collector.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: collector, namespace: tokens}\nspec: {clusterIP: 10.96.40.9, selector: {app: outside}, ports: [{name: grpc, port: 4317}]}\n")
	server := m.Pod("server-1.tokens")
	file := func(name string) string { return filepath.Join(server.Dir, "logs", name) }
	for _, name := range []string{"one", "two"} { // Envoy appends to the file, which is its user's
		if err := server.Write("logs/"+name, nil); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(config, "mesh.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	providers := fmt.Sprintf(`
    extensionProviders:
    - {name: one, envoyFileAccessLog: {path: %s, logFormat: {text: "%%REQ_WITHOUT_QUERY(:PATH)%% %%RESPONSE_CODE%%"}}}
    - {name: two, envoyFileAccessLog: {path: %s, logFormat: {labels: {path: "%%REQ(:PATH)%%"}}}}
    - {name: als, envoyHttpAls: {service: collector.tokens.svc.cluster.local, port: 4317}}
    - {name: otlp, envoyOtelAls: {service: tokens/collector.tokens.svc.cluster.local, port: 4317, logFormat: {text: "to %%REQ(:PATH)%%."}}}
`, file("one"), file("two"))
	put(t, config, "mesh.yaml", strings.Replace(string(text), "  mesh: |\n", "  mesh: |"+providers, 1))
	telemetry := func(spec string) {
		t.Helper()
		put(t, config, "telemetry.yaml", "apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: server, namespace: tokens}\nspec:\n  selector: {matchLabels: {app: server}}\n  accessLogging: "+spec+"\n")
	}
	n := 0
	// round makes a request to a path that no filter selects and one to another, until seen finds what it wants of the second.
	round := func(what string, seen func(silent, logged string) error) {
		t.Helper()
		if err := meshup.Await(t.Context(), time.Minute, what, func(ctx context.Context) error {
			n++
			silent, logged := fmt.Sprintf("/silent-%d-", n), fmt.Sprintf("/logged-%d-", n)
			for _, path := range []string{silent, logged} {
				got, err := ask(ctx, m, "client-1.tokens", "server:9090", "http://server:9090"+path, nil)
				if err != nil || got.Status != http.StatusOK {
					return fmt.Errorf("status %d, error %w", got.Status, err)
				}
			}
			return meshup.Await(ctx, 10*time.Second, what, func(context.Context) error { return seen(silent, logged) })
		}); err != nil {
			t.Fatal(err)
		}
	}
	has := func(name, path string) bool {
		t.Helper()
		text, err := os.ReadFile(file(name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(text), path)
	}

	telemetry(`[{providers: [{name: one}], filter: {expression: "request.url_path.startsWith('/logged')"}}]`)
	round("the file has the requests that the filter selects", func(silent, logged string) error {
		if !has("one", logged+" 200\n") {
			return errors.New("not yet")
		}
		if has("one", silent) {
			return fmt.Errorf("%s is logged", silent)
		}
		return nil
	})
	const als, otlp = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs", "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
	telemetry(`[{providers: [{name: two}, {name: als}, {name: otlp}], match: {mode: SERVER}}]`)
	round("the other file and the collector have them", func(silent, logged string) error {
		for _, path := range []string{silent, logged} {
			if !has("two", `{"path":"`+path+`"}`) || !logs.has(als, path) || !logs.has(otlp, "to "+path+".") {
				return fmt.Errorf("%s: in the file %v, by ALS %v, by OTLP %v", path, has("two", path), logs.has(als, path), logs.has(otlp, path))
			}
			if has("one", path) {
				return fmt.Errorf("%s is in the first file", path)
			}
		}
		return nil
	})
	if !logs.has(als, "http_envoy_accesslog") {
		t.Error("the log has not the name http_envoy_accesslog")
	}
	telemetry(`[{providers: [{name: two}], disabled: true}, {providers: [{name: als}]}]`)
	round("the collector alone has them", func(_, logged string) error {
		if !logs.has(als, logged) {
			return errors.New("not yet")
		}
		if has("two", logged) || logs.has(otlp, logged) {
			return errors.New("others have it, too")
		}
		return nil
	})
}
