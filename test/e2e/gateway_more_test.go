package e2e_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

const socketAndSubnets = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: more, namespace: gateway}
spec:
  selector: {istio: ingressgateway}
  servers:
  - {port: {number: 0, name: socket, protocol: HTTP}, bind: "unix://DIR/gateway.sock", hosts: [socket.example.com]}
  - {port: {number: 9001, name: tcp, protocol: TCP}, hosts: ["*"]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: socket, namespace: gateway}
spec:
  hosts: [socket.example.com]
  gateways: [more]
  http: [{route: [{destination: {host: echo, port: {number: 9080}, subset: v2}}]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: subnets, namespace: gateway}
spec:
  hosts: ["*"]
  gateways: [more]
  tcp:
  - {match: [{destinationSubnets: [10.98.0.0/16]}], route: [{destination: {host: nosuch.example.com, port: {number: 9100}}}]}
  - {match: [{destinationSubnets: [10.99.0.9/32], sourceSubnet: 10.99.0.10/32}], route: [{destination: {host: echo, port: {number: 9100}, subset: v1}}]}
  - {route: [{destination: {host: echo, port: {number: 9100}, subset: v2}}]}
`

// TestGatewayAtASocketAndBySubnets makes requests to a server of a Gateway that is bound to a Unix socket, and connections that reach one version or the
// other by the addresses of the client and of the gateway.
func TestGatewayAtASocketAndBySubnets(t *testing.T) {
	m, config := start(t, "gateway")
	dir := m.Pod("ingress-1.istio-system").Dir
	put(t, config, "more.yaml", strings.ReplaceAll(socketAndSubnets, "DIR", dir))
	socket := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, "gateway.sock"))
	}}}
	err := meshup.Await(t.Context(), time.Minute, "the socket leads to its host", func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://socket.example.com/", http.NoBody)
		if err != nil {
			return err
		}
		res, err := socket.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if a, err := meshup.ReadAnswer(res); err != nil || a.Version != "v2" {
			return fmt.Errorf("version %q answers with status %d (%w)", a.Version, res.StatusCode, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for from, version := range map[string]string{"outside-1.gateway": "v1", "ingress-1.istio-system": "v2"} {
		err := meshup.Await(t.Context(), time.Minute, from+" reaches "+version, func(ctx context.Context) error {
			line, err := meshup.Line(ctx, m.Pod(from).Net, "10.99.0.9:9001", "hello")
			if err != nil || !strings.Contains(line, "echo-"+version) {
				return fmt.Errorf("the answer is %q (%w)", line, err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

const retriedRoute = `apiVersion: v1
kind: Service
metadata: {name: flaky, namespace: gateway}
spec: {clusterIP: 10.96.40.7, selector: {app: outside}, ports: [{name: http, port: 80, targetPort: 9300}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: flaky, namespace: gateway}
spec:
  parentRefs: [{name: api, namespace: istio-system}]
  hostnames: [api.example.com]
  rules:
  - matches: [{path: {value: /flaky}}]
    timeouts: {request: 50s, backendRequest: 2s}
    retry: {attempts: 2, codes: [502]}
    backendRefs: [{name: flaky, port: 80}]
  - matches: [{path: {value: /strict}}]
    timeouts: {request: 50s, backendRequest: 2s}
    retry: {attempts: 0}
    backendRefs: [{name: flaky, port: 80}]
`

// TestRetriesOfTheGatewayAPI has requests be repeated whose first try gets no answer in time, loses its connection, or has one of the codes; and not
// without retries, or with another code.
func TestRetriesOfTheGatewayAPI(t *testing.T) {
	m, config := start(t, "gateway")
	l, err := m.Pod("outside-1.gateway").Net.Listen("tcp", ":9300")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	tries := map[string]int{}
	serve(t, l, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		tries[r.URL.Path]++
		first := tries[r.URL.Path] == 1
		mu.Unlock()
		switch what := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]; {
		case !first:
		case what == "hangs":
			<-r.Context().Done()
		case what == "breaks":
			panic(http.ErrAbortHandler)
		case what == "502":
			w.WriteHeader(http.StatusBadGateway)
		case what == "501":
			w.WriteHeader(http.StatusNotImplemented)
		}
	})
	put(t, config, "flaky.yaml", retriedRoute)
	err = meshup.Await(t.Context(), time.Minute, "the route leads to its backend", func(ctx context.Context) error {
		for _, path := range []string{"/flaky", "/strict"} {
			if _, res, err := throughGateway(ctx, m, "api.example.com", path); res == nil || res.StatusCode != http.StatusOK {
				return fmt.Errorf("%s: %v (%w)", path, res, err)
			}
			mu.Lock()
			n := tries[path]
			mu.Unlock()
			if n == 0 {
				return fmt.Errorf("%s: another backend answers", path)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path          string
		status, tries int
	}{
		{"/flaky/hangs", http.StatusOK, 2},
		{"/flaky/breaks", http.StatusOK, 2},
		{"/flaky/502", http.StatusOK, 2},
		{"/flaky/501", http.StatusNotImplemented, 1},
		{"/strict/hangs", http.StatusGatewayTimeout, 1},
		{"/strict/502", http.StatusBadGateway, 1},
	} {
		_, res, err := throughGateway(t.Context(), m, "api.example.com", tt.path)
		mu.Lock()
		n := tries[tt.path]
		mu.Unlock()
		if res == nil || res.StatusCode != tt.status || n != tt.tries {
			t.Errorf("%s: %v after %d tries (%v), want status %d after %d", tt.path, res, n, err, tt.status, tt.tries)
		}
	}
}
