package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
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
			return fmt.Errorf("a connection answers %q, error %s; want one that passes: %v", line, fmt.Sprint(err), want)
		}
		return nil
	}
	// Each thread of an Envoy takes a new listener at its own time, so that every check is repeated until it holds.
	use := func(provider string, checks map[string]func(context.Context) error) {
		t.Helper()
		put(t, config, "policy.yaml", asking(provider))
		for _, name := range slices.Sorted(maps.Keys(checks)) {
			await(t, provider+": "+name, checks[name])
		}
	}
	connects := func(mode string, want bool) func(context.Context) error {
		return func(ctx context.Context) error {
			a.tcp(mode)
			return connect(ctx, want)
		}
	}
	refused := func(ctx context.Context) error {
		got, err := request(ctx, "/checked", "deny")
		if err == nil && (got.status != http.StatusUnauthorized || got.header.Get("x-denied") != "yes" || got.header.Get("x-allowed") != "") {
			err = fmt.Errorf("refused: %+v", got)
		}
		return err
	}

	use("missing", map[string]func(context.Context) error{
		"denies": status("/checked", "allow", http.StatusForbidden), "lets other requests pass": status("/free", "deny", http.StatusOK), "denies connections": connects("allow", false),
	})
	use("http", map[string]func(context.Context) error{
		"allows, with headers": func(ctx context.Context) error {
			got, err := request(ctx, "/checked/x?q=1", "allow")
			r := a.last.Load()
			if err == nil && (got.status != http.StatusOK || got.arrived != "from the authorizer" || got.header.Get("x-allowed") != "yes" || got.header.Get("x-inner") != "" || r == nil ||
				r.URL.String() != "/check/checked/x?q=1" || r.Header.Get("x-user-id") != "ann" || r.Header.Get("x-from") != "mesh" || r.Header.Get("x-secret") != "" || r.Host != "server.external:9090") {
				err = fmt.Errorf("allowed: %+v; the authorizer saw %v", got, r)
			}
			return err
		},
		"refuses, with headers": refused,
		"is not asked about the rest": func(ctx context.Context) error {
			before := a.asked.Load()
			err := errors.Join(status("/free", "deny", http.StatusOK)(ctx), connect(ctx, true))
			if n := a.asked.Load() - before; err == nil && n != 0 {
				err = fmt.Errorf("it is asked %d times", n)
			}
			return err
		},
		"fails": status("/checked", "fail", http.StatusServiceUnavailable), "is slow": status("/checked", "slow", http.StatusServiceUnavailable),
	})
	a.stop()
	await(t, "http: is away", status("/checked", "allow", http.StatusServiceUnavailable))
	use("http-open", map[string]func(context.Context) error{"is away": status("/checked", "allow", http.StatusOK)})
	a.start()
	use("http-open", map[string]func(context.Context) error{
		"refuses": status("/checked", "deny", http.StatusUnauthorized), "fails": status("/checked", "fail", http.StatusOK), "is slow": status("/checked", "slow", http.StatusOK),
	})
	use("grpc", map[string]func(context.Context) error{
		"allows, with a header": func(ctx context.Context) error {
			got, err := request(ctx, "/checked", "allow")
			if err == nil && (got.status != http.StatusOK || got.arrived != "from the authorizer") {
				err = fmt.Errorf("allowed: %+v", got)
			}
			return err
		},
		"refuses, with a header": refused, "lets other requests pass": status("/free", "deny", http.StatusOK),
		"fails": status("/checked", "fail", http.StatusServiceUnavailable), "is slow": status("/checked", "slow", http.StatusServiceUnavailable),
		"allows connections": func(ctx context.Context) error {
			err := connects("allow", true)(ctx)
			if who := a.caller.Load(); err == nil && (who == nil || *who != "spiffe://cluster.local/ns/external/sa/client") {
				err = fmt.Errorf("the authorizer is told the principal %v", who)
			}
			return err
		},
		"refuses connections": connects("deny", false), "fails with connections": connects("fail", false), "is slow with connections": connects("slow", false),
	})
	a.stop()
	await(t, "grpc: is away", func(ctx context.Context) error {
		return errors.Join(status("/checked", "allow", http.StatusServiceUnavailable)(ctx), connects("allow", false)(ctx))
	})
	use("grpc-open", map[string]func(context.Context) error{"is away": status("/checked", "allow", http.StatusOK), "is away for connections": connects("allow", true)})
	a.start()
	use("grpc-open", map[string]func(context.Context) error{"refuses": status("/checked", "deny", http.StatusUnauthorized), "refuses connections": connects("deny", false)})

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
	await(t, "at the sidecar nobody is asked any more", status("/checked", "deny", http.StatusOK))
}
