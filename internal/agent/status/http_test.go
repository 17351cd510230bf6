package status_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"

	"github.com/pilothouse/pilothouse/internal/agent/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// proxy is an admin interface with fixed responses.
type proxy struct {
	stats map[string]uint64
	page  string
	err   error
	query string
}

func (p *proxy) Stats(context.Context, string) (map[string]uint64, error) { return p.stats, p.err }

func (p *proxy) Scrape(_ context.Context, query string, w io.Writer) error {
	p.query = query
	_, _ = io.WriteString(w, p.page)
	return p.err
}

type lifecycle struct{ drains, quits atomic.Int32 }

func (o *lifecycle) Drain() { o.drains.Add(1) }
func (o *lifecycle) Quit()  { o.quits.Add(1) }

// harness is a running Server with its dependencies.
type harness struct {
	t         *testing.T
	proxy     *proxy
	lifecycle *lifecycle
	facts     atomic.Pointer[status.Facts]
	log       bytes.Buffer // read only after Run has returned
	addr      string
	cancel    func()
	ended     chan error
	client    http.Client
}

func serve(t *testing.T, address string, adjust func(*status.Options)) *harness {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := &harness{
		t: t, lifecycle: &lifecycle{}, addr: l.Addr().String(), ended: make(chan error, 1),
		proxy: &proxy{page: "envoy_server_live{} 1\n", stats: map[string]uint64{
			"cluster_manager.cds.update_success": 1, "listener_manager.lds.update_success": 1, "server.state": 0, "listener_manager.workers_started": 1,
		}},
	}
	s.client.Transport = &http.Transport{DisableKeepAlives: true}
	s.facts.Store(&status.Facts{
		Envoy: status.Envoy{Running: true, Live: true, Restarts: 3}, Upstream: status.Upstream{Wanted: true, Connected: true},
		Certificate: status.Certificate{Wanted: true, Present: true, NotAfter: time.Now().Add(time.Hour)},
	})
	o := status.Options{
		Listener: l, Proxy: s.proxy, Lifecycle: s.lifecycle, Facts: func() status.Facts { return *s.facts.Load() },
		Log: slog.New(slog.NewTextHandler(&s.log, nil)), Started: time.Now(),
	}
	if adjust != nil {
		adjust(&o)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	server := status.New(o)
	go func() { s.ended <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-s.ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *harness) request(method, path string) (int, string) {
	s.t.Helper()
	req, err := http.NewRequest(method, "http://"+s.addr+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func (s *harness) want(method, path string, code int, body string) {
	s.t.Helper()
	if c, b := s.request(method, path); c != code || b != body {
		s.t.Errorf("%s %s: got %d %q, want %d %q", method, path, c, b, code, body)
	}
}

func TestReadinessHasAReason(t *testing.T) {
	s := serve(t, "127.0.0.1:0", nil)
	s.want("GET", "/healthz/ready", 200, "")
	noted := *s.facts.Load()
	plain := s.facts.Swap(&noted)
	noted.Files = []string{"read /x: no such file"}
	s.want("GET", "/healthz/ready", 200, "note: read (path): no such file\n")
	s.facts.Store(plain)
	s.proxy.stats["server.state"] = 1
	s.want("GET", "/healthz/ready", 503, "Envoy is initialising\n")
	s.proxy.err = errors.New("deadline exceeded")
	s.want("GET", "/healthz/ready", 503, "Envoy does not answer: deadline exceeded\n")
	s.facts.Store(&status.Facts{Envoy: status.Envoy{Running: true, Ending: true}})
	s.want("GET", "/healthz/ready", 503, "the proxy is draining and about to end\n")
	// The admin interface of an Envoy that is not running is not used: it would be another process.
	s.proxy.err = nil
	s.facts.Store(&status.Facts{Envoy: status.Envoy{LastExit: "exited with code 1"}})
	s.want("GET", "/healthz/ready", 503, "Envoy exited with code 1 and is about to be restarted (0 restarts so far, 0 left)\n")
}

// Who asks on this machine is told what Envoy said of what it refused; others are told that it did, also through Envoy's port.
func TestReadinessTellsEnvoysTextHere(t *testing.T) {
	s := serve(t, "127.0.0.1:0", nil)
	refused := *s.facts.Load()
	refused.Upstream.RefusedListeners = "error adding listener 'x': no such\nfilter"
	s.facts.Store(&refused)
	s.proxy.stats["listener_manager.lds.update_success"], s.proxy.stats["listener_manager.lds.update_rejected"], s.proxy.stats["server.state"] = 0, 2, 0
	const short = "Envoy rejected the listeners that discovery sent (2 times)"
	s.want("GET", "/healthz/ready", 503, short+": error adding listener 'x': no such\\nfilter\n")
	for _, header := range []string{"X-Forwarded-Proto", "X-Request-Id"} {
		req, err := http.NewRequest(http.MethodGet, "http://"+s.addr+"/healthz/ready", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(header, "http")
		resp, err := s.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(body) != short+"\n" {
			t.Errorf("through Envoy: %q", body)
		}
	}
	s.proxy.stats["listener_manager.lds.update_success"] = 1
	s.want("GET", "/healthz/ready", 200, "")
}

func TestChangesAreLoggedOnce(t *testing.T) {
	s := serve(t, "127.0.0.1:0", nil)
	for range 3 {
		s.request("GET", "/healthz/ready")
	}
	s.facts.Store(&status.Facts{})
	for range 3 {
		s.request("GET", "/healthz/ready")
	}
	s.cancel()
	if err := <-s.ended; err != nil {
		t.Error(err)
	}
	s.ended <- nil // for the cleanup
	if got := s.log.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, `NOT ready" reason="Envoy has not been started yet"`) {
		t.Errorf("log:\n%s", got)
	}
}

func TestPostsOverIPv4AndIPv6(t *testing.T) {
	// The agent has one listener for all addresses.
	for _, host := range []string{"127.0.0.1", "::1", "localhost"} {
		s := serve(t, ":0", nil)
		_, port, _ := net.SplitHostPort(s.addr)
		s.addr = net.JoinHostPort(host, port)
		s.want("GET", "/drain", 405, "only POST is allowed\n")
		s.want("GET", "/quitquitquit", 405, "only POST is allowed\n")
		if s.lifecycle.drains.Load() != 0 || s.lifecycle.quits.Load() != 0 {
			t.Error("a GET had an effect")
		}
		s.want("POST", "/drain", 200, "OK")
		s.want("POST", "/quitquitquit", 200, "OK")
		if s.lifecycle.drains.Load() != 1 || s.lifecycle.quits.Load() != 1 {
			t.Error("a POST had no effect")
		}
	}
}

func TestOtherMachinesAreRefused(t *testing.T) {
	var o lifecycle
	facts := func() status.Facts { return status.Facts{} }
	server := status.New(status.Options{Lifecycle: &o, Facts: facts, Log: slog.New(slog.DiscardHandler), Profiling: true, LocalMetrics: true})
	for from, allowed := range map[string]bool{
		"127.0.0.1:1": true, "127.1.2.3:1": true, "[::1]:1": true, "[::ffff:127.0.0.1]:1": true,
		"10.0.0.1:1": false, "[2001:db8::1]:1": false, "[::ffff:10.0.0.1]:1": false, "127.0.0.6:1": false, "[::6]:1": false, "[::ffff:127.0.0.6]:1": false, "": false,
	} {
		for _, path := range []string{"/drain", "/quitquitquit", "/debug/status", "/debug/pprof/cmdline", "/metrics"} {
			req := httptest.NewRequest("POST", path, nil)
			req.RemoteAddr, req.Host = from, "localhost:15020"
			w := httptest.NewRecorder()
			status.Handler(server).ServeHTTP(w, req)
			if want := map[bool]int{true: 200, false: 403}[allowed]; w.Code != want {
				t.Errorf("%s from %q: got %d, want %d", path, from, w.Code, want)
			}
		}
	}
	if o.quits.Load() != 4 || o.drains.Load() != 4 {
		t.Errorf("%d quits, %d drains, want 4 each, those of this machine", o.quits.Load(), o.drains.Load())
	}
}

// A browser on this machine is on this machine, too: what a page of another origin may have asked for is
// refused, however it has this server's address.
func TestWebPagesAreRefused(t *testing.T) {
	var o lifecycle
	restarts := 0
	server := status.New(status.Options{
		Lifecycle: &o, Facts: func() status.Facts { return status.Facts{} }, Log: slog.New(slog.DiscardHandler),
		Profiling: true, LocalMetrics: true, Restart: func() { restarts++ },
	})
	for _, c := range []struct {
		host, origin string
		want         int
	}{
		{"localhost:15020", "", 200}, {"127.0.0.1:15020", "", 200}, {"[::1]:15020", "", 200}, {"localhost:15020", "http://localhost:15020", 200},
		{"evil.example:15020", "", 403}, {"evil.example:15020", "http://evil.example:15020", 403}, {"localhost:15020", "http://evil.example", 403}, {"127.0.0.1:15020", "null", 403},
	} {
		for _, path := range []string{"/drain", "/quitquitquit", "/restart", "/debug/status", "/debug/pprof/cmdline", "/metrics"} {
			req := httptest.NewRequest("POST", path, nil)
			req.RemoteAddr, req.Host = "127.0.0.1:1", c.host
			if c.origin != "" {
				req.Header.Set("Origin", c.origin)
			}
			w := httptest.NewRecorder()
			status.Handler(server).ServeHTTP(w, req)
			if w.Code != c.want {
				t.Errorf("%s with Host %q and Origin %q: got %d, want %d", path, c.host, c.origin, w.Code, c.want)
			}
		}
	}
	if o.quits.Load() != 4 || o.drains.Load() != 4 || restarts != 4 {
		t.Errorf("%d quits, %d drains, %d restarts, want 4 each", o.quits.Load(), o.drains.Load(), restarts)
	}
}

// A probe may come from anybody: it gets no path of a secret's file. This machine gets it at /debug/status.
func TestReadinessTellsNoPaths(t *testing.T) {
	s := serve(t, "127.0.0.1:0", nil)
	const key = "/var/run/secrets/shop/key.pem"
	s.facts.Store(&status.Facts{
		Envoy:       status.Envoy{Running: true, Live: true},
		Certificate: status.Certificate{Wanted: true, Problem: "read token: open " + key + ": permission denied"},
		Files:       []string{"file-cert:" + key + "~" + key + ": no such file"},
	})
	code, body := s.request("GET", "/healthz/ready")
	if code != 503 || strings.Contains(body, "/") || strings.Contains(body, "pem") || !strings.Contains(body, "permission denied") || !strings.Contains(body, "no such file") {
		t.Errorf("%d %q, want the reasons without paths", code, body)
	}
	if _, body := s.request("GET", "/debug/status"); strings.Count(body, key) < 3 {
		t.Errorf("/debug/status lacks the paths: %s", body)
	}
}

func TestMetrics(t *testing.T) {
	s := serve(t, "127.0.0.1:0", func(o *status.Options) {
		o.Version = "v1.2.3"
		o.Collect = []func(*status.Page){func(p *status.Page) {
			p.Counter("istiod_connection_failures", "Failed connections.", 2, "reason", "a \"b\"\\\n")
			p.Counter("istiod_connection_failures", "Failed connections.", 3, "reason", "c", "code", "1")
			p.Histogram("waits_seconds", "Waits.", []float64{0.001, 5}, []uint64{3, 2, 1}, 7.5)
		}}
	})
	s.request("GET", "/healthz/ready")
	code, body := s.request("GET", "/stats/prometheus?usedonly")
	if code != 200 || s.proxy.query != "usedonly" {
		t.Errorf("got %d, query %q", code, s.proxy.query)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		t.Fatalf("%v in\n%s", err, body)
	}
	if h := families["istio_agent_waits_seconds"].GetMetric()[0].GetHistogram(); h.GetSampleCount() != 6 || h.GetSampleSum() != 7.5 || len(h.GetBucket()) != 3 ||
		h.GetBucket()[0].GetCumulativeCount() != 3 || h.GetBucket()[1].GetCumulativeCount() != 5 || h.GetBucket()[1].GetUpperBound() != 5 {
		t.Errorf("the histogram is %v", h)
	}
	for name, want := range map[string]float64{
		"istio_agent_envoy_restarts_total": 3, "istio_agent_envoy_live": 1, "istio_agent_scrapes_total": 1, "istio_agent_scrape_failures_total": 0,
		"istio_agent_istiod_connected": 1, "istio_agent_istiod_connection_failures": 2,
	} {
		m := families[name]
		if m == nil {
			t.Errorf("no %s in\n%s", name, body)
			continue
		}
		if got := m.Metric[0].GetCounter().GetValue() + m.Metric[0].GetGauge().GetValue(); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	for _, name := range []string{"startup_duration_seconds", "cert_expiry_seconds", "process_resident_memory_bytes", "go_goroutines"} {
		if m := families["istio_agent_"+name]; m == nil || m.Metric[0].GetGauge().GetValue() <= 0 {
			t.Errorf("%s is %v", name, m)
		}
	}
	if !strings.Contains(body, `istio_agent_istio_build{component="citadel_agent",tag="v1.2.3"} 1`) {
		t.Errorf("no build in\n%s", body)
	}
	if !strings.HasSuffix(body, "\nenvoy_server_live{} 1\n") {
		t.Errorf("Envoy's metrics are not at the end of\n%s", body)
	}
	if l := families["istio_agent_istiod_connection_failures"].Metric[0].Label[0].GetValue(); l != "a \"b\"\\\n" {
		t.Errorf("label %q", l)
	}
}

func TestMetricsOfAnExpiredCertificate(t *testing.T) {
	s := serve(t, "127.0.0.1:0", nil)
	f := *s.facts.Load()
	f.Certificate.NotAfter, f.Certificate.RootsNotAfter, f.Certificate.EndsWithIssuer = time.Now().Add(-time.Hour), time.Now().Add(time.Hour), true
	s.facts.Store(&f)
	_, body := s.request("GET", "/metrics")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		t.Fatalf("%v in\n%s", err, body)
	}
	got := map[string]float64{}
	for _, m := range families["istio_agent_cert_expiry_seconds"].GetMetric() {
		got[m.Label[0].GetValue()] = m.GetGauge().GetValue()
	}
	if len(got) != 2 || got["default"] >= 0 || got["ROOTCA"] <= 0 {
		t.Errorf("cert_expiry_seconds is %v, want one below 0 for default and one above for ROOTCA", got)
	}
	if m := families["istio_agent_cert_ends_with_issuer"].GetMetric(); len(m) != 1 || m[0].GetGauge().GetValue() != 1 {
		t.Errorf("cert_ends_with_issuer is %v", m)
	}
}

func TestAnEnvoyThatCannotBeScrapedIsLeftOut(t *testing.T) {
	s := serve(t, "127.0.0.1:0", nil)
	s.proxy.page, s.proxy.err = "", errors.New("hung")
	s.request("GET", "/metrics")
	if code, body := s.request("GET", "/metrics"); code != 200 || !strings.Contains(body, `istio_agent_scrape_failures_total{type="envoy"} 1`) {
		t.Errorf("got %d\n%s", code, body)
	}
}

func TestDebugStatus(t *testing.T) {
	s := serve(t, "127.0.0.1:0", func(o *status.Options) { o.Detail = func() any { return map[string]int{"nacks": 1} } })
	s.facts.Store(&status.Facts{Envoy: status.Envoy{Running: true, Live: true, PID: 42}, Certificate: status.Certificate{Wanted: true}})
	code, body := s.request("GET", "/debug/status")
	var got struct {
		Ready  bool
		Reason string
		Facts  status.Facts
		Detail map[string]int
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil || code != 200 {
		t.Fatalf("%d, %v in %s", code, err, body)
	}
	if got.Ready || got.Reason != "there is no workload certificate yet" || got.Facts.Envoy.PID != 42 || !got.Facts.Admin.Workers || got.Detail["nacks"] != 1 {
		t.Errorf("got %s", body)
	}
}

// The names of the mesh are for this machine only.
func TestNamesAreForThisMachine(t *testing.T) {
	var table any
	server := status.New(status.Options{Lifecycle: &lifecycle{}, Facts: func() status.Facts { return status.Facts{} }, Log: slog.New(slog.DiscardHandler), Names: func() any { return table }})
	for _, c := range []struct {
		from  string
		table any
		code  int
		body  string
	}{
		{"127.0.0.1:1", nil, http.StatusNotFound, "{}\n"}, {"127.0.0.1:1", map[string]int{"a.shop": 1}, http.StatusOK, `{"a.shop":1}` + "\n"},
		{"192.0.2.1:1", map[string]int{"a.shop": 1}, http.StatusForbidden, ""},
	} {
		table = c.table
		req := httptest.NewRequest("GET", "/debug/ndsz", nil)
		req.RemoteAddr, req.Host = c.from, "127.0.0.1:15020"
		w := httptest.NewRecorder()
		status.Handler(server).ServeHTTP(w, req)
		if w.Code != c.code || c.body != "" && w.Body.String() != c.body || strings.Contains(w.Body.String(), "shop") != (c.code == http.StatusOK) {
			t.Errorf("from %s: got %d %q, want %d %q", c.from, w.Code, w.Body, c.code, c.body)
		}
	}
}

func TestProfilingIsOptional(t *testing.T) {
	for on, want := range map[bool]int{true: 200, false: 404} {
		s := serve(t, "127.0.0.1:0", func(o *status.Options) { o.Profiling = on })
		if code, _ := s.request("GET", "/debug/pprof/cmdline"); code != want {
			t.Errorf("profiling %v: got %d", on, code)
		}
	}
}

// A request that is in flight during shutdown gets a response.
func TestShutdownWaitsForRequests(t *testing.T) {
	in, out := make(chan struct{}), make(chan struct{})
	s := serve(t, "127.0.0.1:0", func(o *status.Options) {
		o.Detail = func() any { close(in); <-out; return nil }
	})
	answer := make(chan string, 1)
	go func() {
		resp, err := s.client.Get("http://" + s.addr + "/debug/status")
		if err == nil {
			resp.Body.Close()
			err = fmt.Errorf("%s", resp.Status)
		}
		answer <- err.Error()
	}()
	<-in
	s.cancel()
	for { // until shutdown has begun
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			break
		}
		c.Close()
	}
	close(out)
	if got := <-answer; got != "200 OK" {
		t.Errorf("got %s", got)
	}
}

// While a child that is not live has the admin interface, readiness is that of its parent.
func TestReadinessInAHandover(t *testing.T) {
	starts := map[string]uint64{"server.state": 2, "listener_manager.workers_started": 0}
	for name, c := range map[string]struct {
		envoy status.Envoy
		stats map[string]uint64
		err   error
		want  int
	}{
		"a child responds":              {status.Envoy{Running: true, Live: true, Handover: true}, starts, nil, 200},
		"no response":                   {status.Envoy{Running: true, Live: true, Handover: true}, nil, errors.New("connection refused"), 200},
		"the first epoch starts":        {status.Envoy{Running: true}, starts, nil, 503},
		"the agent shuts down":          {status.Envoy{Running: true, Live: true, Handover: true, Ending: true}, starts, nil, 503},
		"a child is live":               {status.Envoy{Running: true, Live: true, Epoch: 1}, map[string]uint64{"server.state": 0, "listener_manager.workers_started": 1}, nil, 200},
		"a live one without a handover": {status.Envoy{Running: true, Live: true}, nil, errors.New("connection refused"), 503},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, "127.0.0.1:0", nil)
			f := *s.facts.Load()
			f.Envoy = c.envoy
			s.facts.Store(&f)
			s.proxy.stats, s.proxy.err = c.stats, c.err
			if code, body := s.request(http.MethodGet, "/healthz/ready"); code != c.want {
				t.Errorf("%d %s, want %d", code, body, c.want)
			}
		})
	}
}

func TestRestart(t *testing.T) {
	restarts := 0
	s := serve(t, "127.0.0.1:0", func(o *status.Options) { o.Restart = func() { restarts++ } })
	if code, _ := s.request(http.MethodGet, "/restart"); code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", code)
	}
	if code, body := s.request(http.MethodPost, "/restart"); code != http.StatusOK || body != "OK" || restarts != 1 {
		t.Errorf("POST: %d %q, %d restarts", code, body, restarts)
	}
}
