package probe_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/pilothouse/pilothouse/internal/agent/probe"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/test/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const readyz, livez, prestopz = "/app-health/app/readyz", "/app-health/app/livez", "/app-lifecycle/app/prestopz"

// agent is a status port with probes.
type agent struct {
	t   *testing.T
	url string
	log wait.Output
}

// start serves the probes of an application at 127.0.0.1; change may be nil.
func start(t *testing.T, probers map[string]spec.Prober, change func(*probe.Options)) *agent {
	t.Helper()
	a := &agent{t: t}
	server := httptest.NewUnstartedServer(nil)
	o := probe.Options{
		Probes: spec.Probes{Probers: probers, HTTP2: true}, Pod: netip.MustParseAddr("127.0.0.1"), Log: slog.New(slog.NewTextHandler(&a.log, nil)),
		StatusPort: port(t, server.Listener.Addr().String()),
	}
	for path, p := range probers {
		if p.Timeout == 0 && path != prestopz {
			p.Timeout = wait.Bound
			probers[path] = p
		}
	}
	if change != nil {
		change(&o)
	}
	h := probe.New(o)
	server.Config.Handler = h
	server.Start()
	t.Cleanup(func() {
		server.Close()
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	a.url = server.URL
	return a
}

func port(t *testing.T, address string) int {
	t.Helper()
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return int(a.Port())
}

func (a *agent) get(path string, header http.Header) (int, http.Header, string) {
	a.t.Helper()
	req, err := http.NewRequest(http.MethodGet, a.url+path, nil)
	if err != nil {
		a.t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	if host := header.Get("Host"); host != "" {
		req.Host = host
	}
	return a.do(req)
}

func (a *agent) do(req *http.Request) (int, http.Header, string) {
	a.t.Helper()
	client := http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(body)
}

func (a *agent) want(path string, code int, body string) {
	a.t.Helper()
	if c, _, b := a.get(path, nil); c != code || !strings.Contains(b, body) {
		a.t.Errorf("%s: got %d %q, want %d and %q", path, c, b, code, body)
	}
}

// application is an HTTP server that reports the requests it gets.
func application(t *testing.T, handler http.HandlerFunc) (number int, requests chan *http.Request) {
	t.Helper()
	requests = make(chan *http.Request, 100)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests <- r
		handler(w, r)
	}))
	t.Cleanup(s.Close)
	return port(t, s.Listener.Addr().String()), requests
}

// The application gets what the kubelet would send to it, whatever the client sends.
func TestHTTPProbe(t *testing.T) {
	app, requests := application(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/x-state")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "state of "+r.RequestURI)
	})
	a := start(t, map[string]spec.Prober{
		readyz:                     {HTTP: &spec.HTTPProbe{Port: app, Target: "/ready?full=1", Headers: []spec.Header{{Name: "X-Probe", Value: "1"}, {Name: "x-probe", Value: "2"}, {Name: "Accept", Value: "text/x-state"}}}},
		livez:                      {HTTP: &spec.HTTPProbe{Port: app, Host: "10.9.8.7", Target: "/live"}},
		"/app-health/app/startupz": {HTTP: &spec.HTTPProbe{Port: app, Host: "10.9.8.7", Target: "/", Headers: []spec.Header{{Name: "host", Value: "shop.example"}}}},
	}, nil)
	hostile := http.Header{
		"User-Agent": {"kube-probe/1.37"}, "Accept": {"*/*"}, "X-Probe": {"evil"}, "X-Forwarded-Host": {"evil.example"}, "Authorization": {"evil"},
		"Host": {"127.0.0.1:15000"}, "Accept-Encoding": {"gzip"},
	}
	code, header, body := a.get(readyz, hostile)
	if code != http.StatusTeapot || body != "state of /ready?full=1" || header.Get("Content-Type") != "text/x-state" {
		t.Errorf("got %d %q %v", code, body, header)
	}
	r := <-requests
	if got := fmt.Sprint(r.Header); got != "map[Accept:[text/x-state] Connection:[close] User-Agent:[kube-probe/1.37] X-Probe:[1 2]]" {
		t.Errorf("the application got %s", got)
	}
	if want := fmt.Sprintf("127.0.0.1:%d", app); r.Host != want || r.Method != http.MethodGet {
		t.Errorf("the application got %s of %q, want GET of %q", r.Method, r.Host, want)
	}
	if from := netip.MustParseAddrPort(r.RemoteAddr).Addr().String(); from != "127.0.0.6" {
		t.Errorf("the application is asked from %s, want 127.0.0.6, which capture leaves alone", from)
	}
	for path, want := range map[string]string{livez: fmt.Sprintf("10.9.8.7:%d", app), "/app-health/app/startupz": "shop.example"} {
		if a.get(path, hostile); (<-requests).Host != want {
			t.Errorf("%s: the Host is not %q", path, want)
		}
	}
}

func TestOnlyDefinedProbes(t *testing.T) {
	app, requests := application(t, func(http.ResponseWriter, *http.Request) {})
	a := start(t, map[string]spec.Prober{readyz: {HTTP: &spec.HTTPProbe{Port: app, Target: "/"}}}, nil)
	a.want(livez, http.StatusBadRequest, `unknown probe "/app-health/app/livez"`)
	a.want(readyz+"/..", http.StatusBadRequest, "unknown probe")
	a.want(prestopz, http.StatusBadRequest, "want a key of ISTIO_KUBE_APP_PROBERS")
	req, err := http.NewRequest(http.MethodPost, a.url+readyz, strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	if code, _, _ := a.do(req); code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d, want 405", code)
	}
	if len(requests) > 0 {
		t.Errorf("the application got %v", (<-requests).RequestURI)
	}
}

func TestHTTPSAndHTTP2(t *testing.T) {
	protocols := make(chan string, 1)
	app := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { protocols <- r.Proto }))
	app.EnableHTTP2 = true
	app.StartTLS() // with a certificate that nobody trusts
	defer app.Close()
	for http2, want := range map[bool]string{true: "HTTP/2.0", false: "HTTP/1.1"} {
		p := map[string]spec.Prober{readyz: {HTTP: &spec.HTTPProbe{Port: port(t, app.Listener.Addr().String()), TLS: true, Target: "/"}}}
		a := start(t, p, func(o *probe.Options) { o.Probes.HTTP2 = http2 })
		a.want(readyz, http.StatusOK, "")
		if got := <-protocols; got != want {
			t.Errorf("protocol %s, want %s", got, want)
		}
	}
}

func TestRedirects(t *testing.T) {
	var status string
	app, requests := application(t, func(w http.ResponseWriter, r *http.Request) {
		to := map[string]string{
			"/relative": "/end", "/absolute": "http://" + r.Host + "/end", "/other": "http://192.0.2.1/end", "/loop": "/loop", "/self": "http://127.0.0.1:" + status + readyz,
		}[r.URL.Path]
		if to != "" {
			http.Redirect(w, r, to, http.StatusFound)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})
	for target, want := range map[string]struct {
		code, requests int
		body           string
	}{
		"/relative": {202, 2, ""}, "/absolute": {202, 2, ""}, "/other": {200, 1, ""},
		"/loop": {500, 10, "more than 10 redirects"}, "/self": {500, 1, "a probe of the agent"},
	} {
		a := start(t, map[string]spec.Prober{readyz: {HTTP: &spec.HTTPProbe{Port: app, Target: target}}}, nil)
		_, status, _ = net.SplitHostPort(strings.TrimPrefix(a.url, "http://"))
		a.want(readyz, want.code, want.body)
		if len(requests) != want.requests {
			t.Errorf("%s: %d requests, want %d", target, len(requests), want.requests)
		}
		for len(requests) > 0 {
			<-requests
		}
	}
}

func TestLongAndStrangeResponses(t *testing.T) {
	app, _ := application(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/long" {
			_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
			return
		}
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer c.Close()
		switch r.URL.Path {
		case "/switch":
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
		case "/zero":
			_, _ = io.WriteString(c, "HTTP/1.1 000 None\r\n\r\n")
		case "/short":
			_, _ = io.WriteString(c, "HTTP/1.1 204 OK\r\nContent-Length: 9\r\n\r\nx")
		case "/header":
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", 1<<20)+"\r\n\r\n")
		case "/text":
			_, _ = io.WriteString(c, "hello")
		}
	})
	for target, want := range map[string]int{"/long": 200, "/switch": 500, "/zero": 500, "/short": 204, "/header": 500, "/text": 500} {
		a := start(t, map[string]spec.Prober{readyz: {HTTP: &spec.HTTPProbe{Port: app, Target: target}}}, nil)
		code, _, body := a.get(readyz, nil)
		if code != want {
			t.Errorf("%s: %d %.100q, want %d", target, code, body, want)
		}
		if target == "/long" && len(body) != 10<<10 {
			t.Errorf("%d bytes of a body, want 10 KiB", len(body))
		}
	}
}

// A timeout is that of the probe; a hook has none but its client's.
func TestTimeouts(t *testing.T) {
	block := make(chan struct{})
	app, requests := application(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-block:
		case <-r.Context().Done():
		}
	})
	get, hook := &spec.HTTPProbe{Port: app, Target: "/"}, &spec.HTTPProbe{Port: app, Target: "/hook"}
	a := start(t, map[string]spec.Prober{readyz: {HTTP: get, Timeout: time.Millisecond}, prestopz: {HTTP: hook}}, nil)
	a.want(readyz, http.StatusInternalServerError, "probe "+readyz+": no result within 1ms, its timeoutSeconds")
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+prestopz, nil)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		ended <- err
	}()
	running := <-requests
	for running.URL.Path != hook.Target { // the probe's
		running = <-requests
	}
	cancel()
	<-running.Context().Done() // the application's request ends with its client's
	if err := <-ended; err == nil {
		t.Error("the hook was answered")
	}
	close(block)
	a.want(prestopz, http.StatusOK, "")
}

// However many clients there are, the application has few connections from the agent.
func TestConnectionsAreBounded(t *testing.T) {
	const clients = 30
	var open, most atomic.Int32
	proceed := make(chan struct{})
	app, requests := application(t, func(http.ResponseWriter, *http.Request) {
		n := open.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-proceed
		open.Add(-1)
	})
	a := start(t, map[string]spec.Prober{readyz: {HTTP: &spec.HTTPProbe{Port: app, Target: "/"}}}, nil)
	codes := make(chan int, clients)
	for range clients {
		go func() {
			resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(a.url + readyz)
			if err != nil {
				codes <- 0
				return
			}
			resp.Body.Close()
			codes <- resp.StatusCode
		}()
	}
	for range 4 {
		<-requests
	}
	close(proceed)
	for range clients {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("status %d, want 200", code)
		}
	}
	if n := most.Load(); n > 4 {
		t.Errorf("%d connections at a time, want at most 4", n)
	}
}

func TestKeptConnections(t *testing.T) {
	for keep, want := range map[bool]int32{true: 1, false: 3} {
		var conns atomic.Int32
		app := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		app.Config.ConnState = func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				conns.Add(1)
			}
		}
		app.Start()
		a := start(t, map[string]spec.Prober{readyz: {HTTP: &spec.HTTPProbe{Port: port(t, app.Listener.Addr().String()), Target: "/"}}},
			func(o *probe.Options) { o.Probes.KeepAlive = keep })
		for range 3 {
			a.want(readyz, http.StatusOK, "")
		}
		if n := conns.Load(); n != want {
			t.Errorf("keep %v: %d connections for 3 probes, want %d", keep, n, want)
		}
		app.CloseClientConnections()
		app.Close()
	}
}

func TestTCPProbe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a := start(t, map[string]spec.Prober{livez: {TCPPort: port(t, l.Addr().String())}, readyz: {TCPPort: wait.FreePort(t)}}, nil)
	a.want(livez, http.StatusOK, "")
	a.want(readyz, http.StatusInternalServerError, "probe "+readyz+": dial tcp")
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if from := c.RemoteAddr().(*net.TCPAddr).IP.String(); from != "127.0.0.6" {
		t.Errorf("the application is asked from %s", from)
	}
	if _, err := io.ReadAll(c); err != nil {
		t.Errorf("the connection did not end in order: %v", err)
	}
}

// In the legacy mode an application is reached at localhost of either family.
func TestIPv6AndLocalhost(t *testing.T) {
	for _, c := range []struct {
		listen, pod string
		localhost   bool
	}{{"::1", "::1", false}, {"::1", "10.255.0.1", true}, {"127.0.0.1", "10.255.0.1", true}} {
		hosts := make(chan string, 1)
		app := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { hosts <- r.Host }))
		_ = app.Listener.Close()
		var err error
		// The port must have no listener at the other family's address: 127.0.0.1 is tried first, and a port that the
		// kernel chose for ::1 may belong to another program there.
		p := wait.FreePort(t)
		if app.Listener, err = net.Listen("tcp", net.JoinHostPort(c.listen, strconv.Itoa(p))); err != nil {
			t.Fatal(err)
		}
		app.Start()
		a := start(t, map[string]spec.Prober{livez: {TCPPort: p}, readyz: {HTTP: &spec.HTTPProbe{Port: p, Target: "/"}}}, func(o *probe.Options) {
			o.Pod, o.Probes.Localhost = netip.MustParseAddr(c.pod), c.localhost
		})
		a.want(livez, http.StatusOK, "")
		a.want(readyz, http.StatusOK, "")
		select {
		case got := <-hosts:
			if want := netip.AddrPortFrom(netip.MustParseAddr(c.pod), uint16(p)).String(); got != want {
				t.Errorf("%+v: the Host is %q, want %q", c, got, want)
			}
		default:
			t.Errorf("%+v: the application was not asked", c)
		}
		app.Close()
	}
}

func TestGRPCProbe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	agents := make(chan string, 100)
	server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		agents <- strings.Join(md.Get("user-agent"), "")
		return next(ctx, req)
	}))
	states := health.NewServer()
	states.SetServingStatus("", grpc_health_v1.HealthCheckResponse_SERVING)
	states.SetServingStatus("shop", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	grpc_health_v1.RegisterHealthServer(server, states)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	defer func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	app := port(t, l.Addr().String())
	plain, _ := application(t, func(http.ResponseWriter, *http.Request) {})
	a := start(t, map[string]spec.Prober{
		livez:                      {GRPC: &spec.GRPCProbe{Port: app}},
		readyz:                     {GRPC: &spec.GRPCProbe{Port: app, Service: "shop"}},
		"/app-health/app/startupz": {GRPC: &spec.GRPCProbe{Port: app, Service: "unknown"}},
		"/app-health/b/livez":      {GRPC: &spec.GRPCProbe{Port: wait.FreePort(t)}},
		"/app-health/c/livez":      {GRPC: &spec.GRPCProbe{Port: plain}},
	}, nil)
	if code, _, body := a.get(livez, http.Header{"User-Agent": {"kube-probe/1.37"}}); code != http.StatusOK || !strings.HasPrefix(<-agents, "kube-probe/1.37") {
		t.Errorf("got %d %q", code, body)
	}
	a.want(readyz, http.StatusInternalServerError, "status NOT_SERVING: want SERVING")
	a.want("/app-health/app/startupz", http.StatusInternalServerError, "NotFound")
	a.want("/app-health/b/livez", http.StatusInternalServerError, "connection refused")
	a.want("/app-health/c/livez", http.StatusInternalServerError, "gRPC health check at")
	states.SetServingStatus("shop", grpc_health_v1.HealthCheckResponse_SERVING)
	a.want(readyz, http.StatusOK, "")
}

// A health check that does not answer ends with its timeout.
func TestHungGRPCProbe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a := start(t, map[string]spec.Prober{livez: {GRPC: &spec.GRPCProbe{Port: port(t, l.Addr().String())}, Timeout: time.Millisecond}}, nil)
	a.want(livez, http.StatusInternalServerError, "no result within 1ms, its timeoutSeconds")
}

func TestResultsAreLoggedWhenTheyChange(t *testing.T) {
	var fails atomic.Bool
	app, _ := application(t, func(w http.ResponseWriter, _ *http.Request) {
		if fails.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	a := start(t, map[string]spec.Prober{readyz: {HTTP: &spec.HTTPProbe{Port: app, Target: "/"}}}, nil)
	for _, failing := range []bool{false, true, true, false, false} {
		fails.Store(failing)
		a.get(readyz, nil)
	}
	got := a.log.String()
	if strings.Count(got, "\n") != 2 || !strings.Contains(got, "path="+readyz+` error="status 503"`) || !strings.Contains(got, "succeeds again") {
		t.Errorf("log:\n%s", got)
	}
}
