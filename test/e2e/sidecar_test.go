package e2e_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// serveAs answers with a name, and whether the request came by the mesh's mutual TLS.
func serveAs(t *testing.T, l net.Listener, name string) {
	t.Helper()
	serve(t, l, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("x-app", name)
		w.Header().Set("x-mutual", fmt.Sprint(r.Header.Get("x-forwarded-client-cert") != ""))
	})
}

// serve answers requests until the test ends.
func serve(t *testing.T, l net.Listener, answer http.HandlerFunc) {
	t.Helper()
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: answer}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		err := s.Close()
		select {
		case served := <-done:
			err = errors.Join(err, served)
		case <-time.After(time.Minute):
			err = errors.New("the server does not end")
		}
		if !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
}

const ingressListeners = `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: server, namespace: tokens}
spec:
  workloadSelector: {labels: {app: server}}
  ingress:
  - {port: {number: 9090, protocol: HTTP, name: http}, defaultEndpoint: "127.0.0.1:19090"}
  - {port: {number: 9080, protocol: HTTP, name: socket}, defaultEndpoint: "unix://DIR/app.sock"}
  - {port: {number: 9445, protocol: HTTP, name: abstract}, defaultEndpoint: "unix://@app"}
  - {port: {number: 7777, protocol: HTTP, name: own}, bind: 127.0.0.1, captureMode: NONE, defaultEndpoint: "127.0.0.1:19090"}
  - {port: {number: 9443, protocol: HTTPS, name: https}, defaultEndpoint: "127.0.0.1:19090", tls: {mode: SIMPLE, serverCertificate: DIR/certs/s.pem, privateKey: DIR/certs/s.key}}
  - {port: {number: 9444, protocol: HTTPS, name: https-strict}, defaultEndpoint: "127.0.0.1:19090", tls: {mode: SIMPLE, serverCertificate: DIR/certs/s.pem, privateKey: DIR/certs/s.key}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: server, namespace: tokens}
spec:
  selector: {matchLabels: {app: server}}
  mtls: {mode: STRICT}
  portLevelMtls: {7777: {mode: DISABLE}, 9443: {mode: PERMISSIVE}, 9445: {mode: PERMISSIVE}}
`

// TestIngressListenersOfASidecar has a Sidecar say where the connections to its workload go: to another port, to a Unix socket, from a
// listener that binds, and from one that ends TLS of clients outside the mesh. The mode of mutual TLS holds at each.
func TestIngressListenersOfASidecar(t *testing.T) {
	m, config := start(t, "tokens")
	server := m.Pod("server-1.tokens")
	ca := newAuthority(t)
	_, files, _ := ca.issue(t, "s.example.com")
	if err := errors.Join(server.Write("certs/s.key", files[1]), server.Write("certs/s.pem", files[0])); err != nil {
		t.Fatal(err)
	}
	l, err := server.Net.Listen("tcp", "127.0.0.1:19090")
	if err != nil {
		t.Fatal(err)
	}
	serveAs(t, l, "port")
	path := filepath.Join(server.Dir, "app.sock")
	if l, err = net.Listen("unix", path); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o777); err != nil { // the proxy has another user
		t.Fatal(err)
	}
	serveAs(t, l, "socket")
	if l, err = server.Net.Listen("unix", "@app"); err != nil {
		t.Fatal(err)
	}
	serveAs(t, l, "abstract")
	put(t, config, "sidecar.yaml", strings.ReplaceAll(ingressListeners, "DIR", server.Dir))

	get := func(ctx context.Context, from, url, wantApp string, wantMutual bool) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		c := meshup.Client(m.Pod(from).Net, 0)
		c.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: ca.pool, ServerName: "s.example.com", MinVersion: tls.VersionTLS12}
		res, err := c.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if app := res.Header.Get("x-app"); app != wantApp || res.Header.Get("x-mutual") != fmt.Sprint(wantMutual) {
			return fmt.Errorf("status %d from %q, mutual TLS %s", res.StatusCode, app, res.Header.Get("x-mutual"))
		}
		return nil
	}
	for _, c := range []struct {
		what, from, url, app string
		mutual               bool
	}{
		{"another port answers", "client-1.tokens", "http://server.tokens:9090/", "port", true},
		{"the Unix socket answers", "client-1.tokens", "http://server.tokens:9080/", "socket", true},
		{"the socket in the abstract namespace answers", "client-1.tokens", "http://10.99.0.12:9445/", "abstract", false},
		{"the listener that binds answers in its Pod", "server-1.tokens", "http://127.0.0.1:7777/", "port", false},
		{"TLS from outside the mesh is ended", "outside-1.tokens", "https://10.99.0.12:9443/", "port", false},
	} {
		steady(t, c.what, func(ctx context.Context) error { return get(ctx, c.from, c.url, c.app, c.mutual) })
	}
	for what, url := range map[string]string{
		"plaintext to a port of STRICT":                "http://10.99.0.12:9090/",
		"plaintext to a socket's port of STRICT":       "http://10.99.0.12:9080/",
		"plaintext to a port with TLS":                 "http://10.99.0.12:9443/",
		"TLS that is not the mesh's to a STRICT port":  "https://10.99.0.12:9444/",
		"plaintext to the port of a listener in a Pod": "http://10.99.0.12:7777/",
	} {
		if err := get(t.Context(), "outside-1.tokens", url, "port", false); err == nil {
			t.Errorf("%s is answered", what)
		}
	}
}

const egressListeners = `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: client, namespace: tokens}
spec:
  workloadSelector: {labels: {app: client}}
  egress:
  - {port: {number: 9080, protocol: HTTP, name: http}, bind: 127.0.0.1, captureMode: NONE, hosts: ["./server.tokens.svc.cluster.local"]}
  - {port: {number: 0, protocol: HTTP, name: socket}, bind: "unix://DIR/egress.sock", hosts: ["./canary.tokens.svc.cluster.local"]}
  - {port: {number: 0, protocol: HTTP, name: abstract}, bind: "unix://@egress", hosts: ["./canary.tokens.svc.cluster.local"]}
  - {hosts: ["./server.tokens.svc.cluster.local"]}
`

// TestEgressListenersOfASidecar has a Sidecar open listeners for its workload, at loopback and at a Unix socket: requests to them go to
// the hosts of the listener by the mesh's mutual TLS, and to no others.
func TestEgressListenersOfASidecar(t *testing.T) {
	m, config := start(t, "tokens")
	client := m.Pod("client-1.tokens")
	put(t, config, "sidecar.yaml", strings.ReplaceAll(egressListeners, "DIR", client.Dir))
	socket := filepath.Join(client.Dir, "egress.sock")
	get := func(ctx context.Context, c *http.Client, host string) (meshup.Answer, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:9080/", http.NoBody)
		if err != nil {
			return meshup.Answer{}, err
		}
		req.Host = host
		res, err := c.Do(req)
		if err != nil {
			return meshup.Answer{}, err
		}
		defer res.Body.Close()
		return meshup.ReadAnswer(res)
	}
	port := meshup.Client(client.Net, 0)
	abstract := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (c net.Conn, err error) {
		doErr := client.Net.Do(func() error { c, err = (&net.Dialer{}).DialContext(ctx, "unix", "@egress"); return nil })
		return c, errors.Join(err, doErr)
	}}}
	unix := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	const caller = "spiffe://cluster.local/ns/tokens/sa/client"
	for _, c := range []struct {
		what, host, service string
		client              *http.Client
	}{
		{"the listener on loopback leads to its host", "server.tokens", "server", port},
		{"the Unix socket leads to its host", "canary.tokens", "canary", unix},
		{"the socket in the abstract namespace leads to its host", "canary.tokens", "canary", abstract},
	} {
		steady(t, c.what, func(ctx context.Context) error {
			a, err := get(ctx, c.client, c.host)
			if err == nil && (a.Status != http.StatusOK || a.Service != c.service || a.Peer != caller) {
				err = fmt.Errorf("answer %+v", a)
			}
			return err
		})
	}
	for what, c := range map[string]struct {
		host   string
		client *http.Client
	}{"loopback": {"canary.tokens", port}, "the socket": {"server.tokens", unix}, "the socket in the abstract namespace": {"server.tokens", abstract}} {
		if a, err := get(t.Context(), c.client, c.host); err == nil {
			t.Errorf("%s leads to a host that is not one of its own: %+v", what, a)
		}
	}
}

// TestStatusesThatEjectEndpoints has a DestinationRule count responses with status 404, and no others, as errors of an endpoint: the only
// one is ejected for these, and not for as many with status 500.
func TestStatusesThatEjectEndpoints(t *testing.T) {
	m, config := start(t, "tokens")
	l, err := m.Pod("server-1.tokens").Net.Listen("tcp", ":9090")
	if err != nil {
		t.Fatal(err)
	}
	serveStatuses(t, l)
	put(t, config, "outliers.yaml", `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: server, namespace: tokens}
spec:
  host: server
  trafficPolicy:
    connectionPool: {tcp: {maxConnections: 77}}
    outlierDetection: {consecutive5xxErrors: 3, baseEjectionTime: 600s, maxEjectionPercent: 100, outlierDetectionHttpErrorCodes: [404]}
`)
	client := m.Pod("client-1.tokens")
	await(t, "the client has the rule", func(ctx context.Context) error {
		text, err := client.Admin(ctx, "/clusters")
		if err == nil && !strings.Contains(string(text), "outbound|9090||server.tokens.svc.cluster.local::default_priority::max_connections::77") {
			err = errors.New("the cluster has no such limit")
		}
		return err
	})
	status := func(ctx context.Context, path string) (int, error) {
		got, err := ask(ctx, m, "client-1.tokens", "", "http://server.tokens:9090/"+path, nil)
		return got.Status, err
	}
	for range 20 {
		if got, err := status(t.Context(), "500"); err != nil || got != http.StatusInternalServerError {
			t.Fatalf("status %d, error %v: an endpoint is ejected for responses that do not count", got, err)
		}
	}
	await(t, "the endpoint is ejected for what counts", func(ctx context.Context) error {
		got, err := status(ctx, "404")
		if err == nil && got != http.StatusServiceUnavailable {
			err = fmt.Errorf("status %d", got)
		}
		return err
	})
}

// serveStatuses answers with the status in the path.
func serveStatuses(t *testing.T, l net.Listener) {
	t.Helper()
	serve(t, l, func(w http.ResponseWriter, r *http.Request) {
		code, err := strconv.Atoi(strings.Trim(r.URL.Path, "/"))
		if err != nil {
			code = http.StatusBadRequest
		}
		w.WriteHeader(code)
		_, _ = w.Write([]byte("{}")) // an error means that the caller has gone
	})
}
