package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// authorizer is an external authorizer, over HTTP and gRPC. Requests say in the header x-mode what it does with them; about
// connections the test says it.
type authorizer struct {
	authv3.UnimplementedAuthorizationServer
	t       *testing.T
	mesh    *meshup.Mesh
	asked   atomic.Int64
	last    atomic.Pointer[http.Request]
	ofTCP   atomic.Pointer[string] // the mode of connections
	caller  atomic.Pointer[string] // the principal of the last connection
	running []func()
}

func newAuthorizer(t *testing.T, m *meshup.Mesh) *authorizer {
	t.Helper()
	a := &authorizer{t: t, mesh: m}
	a.tcp("allow")
	t.Cleanup(a.stop)
	a.start()
	return a
}

func (a *authorizer) tcp(mode string) { a.ofTCP.Store(&mode) }

// start listens; stop ends what start has started.
func (a *authorizer) start() {
	a.t.Helper()
	listen := func(addr string) net.Listener {
		l, err := a.mesh.Pod("authz-1.security").Net.Listen("tcp", addr)
		if err != nil {
			a.t.Fatal(err)
		}
		return l
	}
	web := &http.Server{ReadHeaderTimeout: time.Minute, Handler: a}
	rpc := grpc.NewServer()
	authv3.RegisterAuthorizationServer(rpc, a)
	webAt, rpcAt, done := listen(":9000"), listen(":9001"), make(chan error, 2)
	go func() { done <- web.Serve(webAt) }()
	go func() { done <- rpc.Serve(rpcAt) }()
	a.running = append(a.running, func() {
		_ = web.Close()
		rpc.Stop()
		for range 2 {
			if err := <-done; err != nil && !errors.Is(err, http.ErrServerClosed) {
				a.t.Error(err)
			}
		}
	})
}

func (a *authorizer) stop() {
	for _, f := range a.running {
		f()
	}
	a.running = nil
}

func (a *authorizer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.asked.Add(1)
	a.last.Store(r.Clone(context.Background()))
	w.Header().Set("x-ext", "from the authorizer")
	w.Header().Set("x-allowed", "yes")
	w.Header().Set("x-denied", "yes")
	w.Header().Set("x-inner", "nobody's")
	switch r.Header.Get("x-mode") {
	case "deny":
		w.WriteHeader(http.StatusUnauthorized)
	case "fail":
		w.WriteHeader(http.StatusInternalServerError)
	case "slow":
		<-r.Context().Done()
	}
}

func (a *authorizer) Check(ctx context.Context, r *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	a.asked.Add(1)
	h := r.GetAttributes().GetRequest().GetHttp()
	mode := h.GetHeaders()["x-mode"]
	if h == nil {
		mode = *a.ofTCP.Load()
		who := r.GetAttributes().GetSource().GetPrincipal()
		a.caller.Store(&who)
	}
	header := []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "x-ext", Value: "from the authorizer"}}}
	switch mode {
	case "deny":
		return &authv3.CheckResponse{Status: &status.Status{Code: int32(codes.PermissionDenied)}, HttpResponse: &authv3.CheckResponse_DeniedResponse{DeniedResponse: &authv3.DeniedHttpResponse{
			Status: &typev3.HttpStatus{Code: typev3.StatusCode_Unauthorized}, Headers: []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "x-denied", Value: "yes"}}},
		}}}, nil
	case "fail":
		return nil, errors.New("it fails")
	case "slow":
		<-ctx.Done()
	}
	return &authv3.CheckResponse{Status: &status.Status{}, HttpResponse: &authv3.CheckResponse_OkResponse{OkResponse: &authv3.OkHttpResponse{Headers: header}}}, nil
}

// asking are the policies of a provider: for requests below /checked, and for connections of the port 9100.
func asking(provider string) string {
	return strings.ReplaceAll(`
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: ask, namespace: external}
spec:
  selector: {matchLabels: {app: server}}
  action: CUSTOM
  provider: {name: PROVIDER}
  rules: [{to: [{operation: {paths: ["/checked*"], ports: ["9090"]}}]}, {to: [{operation: {ports: ["9100"]}}]}]
`, "PROVIDER", provider)
}

// outcome is what a client and the application saw.
type outcome struct {
	status  int
	header  http.Header
	arrived string // x-ext at the application
}

func knock(ctx context.Context, from meshup.Dialer, url, mode string) (outcome, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return outcome{}, err
	}
	req.Header = http.Header{"X-Mode": {mode}, "X-Ext": {"forged"}, "X-User-Id": {"ann"}, "X-Secret": {"s"}}
	res, err := meshup.Client(from, 0).Do(req)
	if err != nil {
		return outcome{}, err
	}
	defer res.Body.Close()
	return outcome{res.StatusCode, res.Header, res.Header.Get("x-seen-ext")}, nil
}

// TestExternalAuthorization asks an authorizer about requests and connections: one that allows, refuses, fails, is slow or away,
// with providers that fail closed and open, over HTTP and gRPC, at a sidecar and at a router.
func TestExternalAuthorization(t *testing.T) {
	m, config := start(t, "external")
	l, err := m.Pod("server-1.external").Net.Listen("tcp", ":9090")
	if err != nil {
		t.Fatal(err)
	}
	app := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("x-seen-ext", r.Header.Get("x-ext"))
	})}
	done := make(chan error, 1)
	go func() { done <- app.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(app.Close(), <-done); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	a := newAuthorizer(t, m)
	const url = "http://server.external:9090"
	client := m.Pod("client-1.external").Net
	request := func(ctx context.Context, path, mode string) (outcome, error) {
		return knock(ctx, client, url+path, mode)
	}
	status := func(path, mode string, want int) func(context.Context) error {
		return func(ctx context.Context) error {
			got, err := request(ctx, path, mode)
			if err == nil && got.status != want {
				err = fmt.Errorf("%s with %q has status %d, want %d", path, mode, got.status, want)
			}
			return err
		}
	}
	connect := func(ctx context.Context, want bool) error {
		line, err := meshup.Line(ctx, client, "server.external:9100", "hello")
		if passed := err == nil && line != ""; passed != want {
			return fmt.Errorf("a connection answers %q, error %v; want one that passes: %v", line, err, want)
		}
		return nil
	}
	use := func(provider string, probe func(context.Context) error) {
		t.Helper()
		put(t, config, "policy.yaml", asking(provider))
		await(t, "the provider "+provider+" is asked", probe)
	}

	put(t, config, "policy.yaml", asking("missing"))
	await(t, "a provider that does not exist denies", status("/checked", "allow", http.StatusForbidden))
	if err := errors.Join(status("/free", "deny", http.StatusOK)(t.Context()), connect(t.Context(), false)); err != nil {
		t.Error(err)
	}

	use("http", status("/checked/x?q=1", "allow", http.StatusOK))
	got, err := request(t.Context(), "/checked/x?q=1", "allow")
	if r := a.last.Load(); err != nil || got.status != http.StatusOK || got.arrived != "from the authorizer" || got.header.Get("x-allowed") != "yes" || got.header.Get("x-inner") != "" ||
		r.URL.String() != "/check/checked/x?q=1" || r.Header.Get("x-user-id") != "ann" || r.Header.Get("x-from") != "mesh" || r.Header.Get("x-secret") != "" || r.Host != "server.external:9090" {
		t.Errorf("allowed: %+v, error %v; the authorizer saw %v", got, err, a.last.Load())
	}
	if got, err = request(t.Context(), "/checked", "deny"); err != nil || got.status != http.StatusUnauthorized || got.header.Get("x-denied") != "yes" || got.header.Get("x-allowed") != "" {
		t.Errorf("refused: %+v, error %v", got, err)
	}
	before := a.asked.Load()
	if err := errors.Join(status("/free", "deny", http.StatusOK)(t.Context()), connect(t.Context(), true)); err != nil || a.asked.Load() != before {
		t.Errorf("what no rule matches, and a connection: %v; asked %d times", err, a.asked.Load()-before)
	}
	if err := errors.Join(status("/checked", "fail", 503)(t.Context()), status("/checked", "slow", 503)(t.Context())); err != nil {
		t.Error(err)
	}
	a.stop()
	if err := status("/checked", "allow", 503)(t.Context()); err != nil {
		t.Errorf("away: %v", err)
	}
	use("http-open", status("/checked", "allow", http.StatusOK))
	a.start()
	await(t, "the authorizer is back", status("/checked", "deny", http.StatusUnauthorized))
	if err := errors.Join(status("/checked", "fail", 200)(t.Context()), status("/checked", "slow", 200)(t.Context())); err != nil {
		t.Error(err)
	}

	use("grpc", func(ctx context.Context) error {
		return errors.Join(status("/checked", "fail", 503)(ctx), connect(ctx, true))
	})
	if got, err = request(t.Context(), "/checked", "allow"); err != nil || got.status != http.StatusOK || got.arrived != "from the authorizer" {
		t.Errorf("gRPC, allowed: %+v, error %v", got, err)
	}
	if got, err = request(t.Context(), "/checked", "deny"); err != nil || got.status != http.StatusUnauthorized || got.header.Get("x-denied") != "yes" {
		t.Errorf("gRPC, refused: %+v, error %v", got, err)
	}
	if err := errors.Join(status("/free", "deny", 200)(t.Context()), status("/checked", "slow", 503)(t.Context())); err != nil {
		t.Error(err)
	}
	if who := a.caller.Load(); who == nil || *who != "spiffe://cluster.local/ns/external/sa/client" {
		t.Errorf("the authorizer is told the principal %v", who)
	}
	for _, mode := range []string{"deny", "fail", "slow"} {
		a.tcp(mode)
		if err := connect(t.Context(), false); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
	}
	a.tcp("allow")
	a.stop()
	if err := errors.Join(status("/checked", "allow", 503)(t.Context()), connect(t.Context(), false)); err != nil {
		t.Errorf("away: %v", err)
	}
	use("grpc-open", func(ctx context.Context) error {
		return errors.Join(status("/checked", "allow", 200)(ctx), connect(ctx, true))
	})
	a.start()
	a.tcp("deny")
	await(t, "the authorizer is back", func(ctx context.Context) error {
		return errors.Join(status("/checked", "deny", http.StatusUnauthorized)(ctx), connect(ctx, false))
	})

	// The router asks, too, and has the authorizer's cluster only for that.
	put(t, config, "policy.yaml", `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: edge, namespace: external}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: edge}]
  action: CUSTOM
  provider: {name: http}
  rules: [{to: [{operation: {paths: ["/checked*"]}}]}]
`)
	outside := func(ctx context.Context, path, mode string, want int) error {
		got, err := knock(ctx, m.Pod("outside-1.external").Net, "http://10.99.0.9:8080"+path, mode)
		if err == nil && got.status != want {
			err = fmt.Errorf("%s with %q has status %d at the router, want %d", path, mode, got.status, want)
		}
		return err
	}
	await(t, "the router asks", func(ctx context.Context) error {
		return errors.Join(outside(ctx, "/checked", "deny", http.StatusUnauthorized), outside(ctx, "/checked", "allow", 200), outside(ctx, "/free", "deny", 200))
	})
	if err := status("/checked", "deny", http.StatusOK)(t.Context()); err != nil {
		t.Errorf("at the sidecar nobody is asked any more: %v", err)
	}
}
