package status_test

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/agent/status"
	"github.com/pilothouse/pilothouse/test/wait"
)

const openMetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8"

// target serves an application's metrics.
func target(t *testing.T, handler http.HandlerFunc) spec.Target {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	a, err := netip.ParseAddrPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return spec.Target{Port: int(a.Port()), Path: "/metrics"}
}

// fixed serves a fixed page.
func fixed(t *testing.T, contentType, text string) spec.Target {
	return target(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, text)
	})
}

func withTargets(targets ...spec.Target) func(*status.Options) {
	return func(o *status.Options) { o.Targets = targets }
}

// scrape requests the metrics with header fields, name and value in turn.
func (s *harness) scrape(header ...string) (*http.Response, string) {
	s.t.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://"+s.addr+"/stats/prometheus", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
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
	return resp, string(body)
}

// failures is how often the application could not be scraped.
func (s *harness) failures(n int) {
	s.t.Helper()
	if _, page := s.scrape(); !strings.Contains(page, fmt.Sprintf("istio_agent_scrape_failures_total{type=\"application\"} %d\n", n)) {
		s.t.Errorf("want %d failures of the application:\n%s", n, page)
	}
}

func TestMergedMetricsAreOnePage(t *testing.T) {
	var seen http.Header
	first := target(t, func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header
		_, _ = io.WriteString(w, "# HELP go_goroutines Goroutines\n# TYPE go_goroutines gauge\ngo_goroutines 1\nshop_orders 3\n")
	})
	second := fixed(t, "text/plain", "# HELP go_goroutines Others\n# TYPE go_goroutines gauge\ngo_goroutines{of=\"2\"} 2\n# EOF\n")
	s := serve(t, "127.0.0.1:0", withTargets(first, second))
	resp, page := s.scrape("Accept", "text/plain;version=0.0.4;q=0.5,*/*;q=0.1", "User-Agent", "Prometheus/3", "X-Prometheus-Scrape-Timeout-Seconds", "40")
	if got := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || got != "text/plain; version=0.0.4; charset=utf-8" {
		t.Errorf("%s, %s", resp.Status, got)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(page))
	if err != nil {
		t.Fatalf("%v\n%s", err, page)
	}
	if len(families["go_goroutines"].GetMetric()) != 2 || families["shop_orders"] == nil || families["envoy_server_live"] == nil || families["istio_agent_scrapes_total"] == nil {
		t.Errorf("not all metrics are there:\n%s", page)
	}
	if a, e, b := strings.Index(page, "istio_agent_scrapes_total"), strings.Index(page, "envoy_server_live"), strings.Index(page, "\ngo_goroutines 1"); a > e || e > b {
		t.Errorf("the order is not agent, Envoy, application:\n%s", page)
	}
	if seen.Get("Accept") != "text/plain;version=0.0.4;q=0.5,text/plain;version=0.0.4;q=0.1" || seen.Get("User-Agent") != "Prometheus/3" || seen.Get("X-Prometheus-Scrape-Timeout-Seconds") == "" {
		t.Errorf("the application got %v", seen)
	}
	s.failures(0)
}

func TestMergedOpenMetrics(t *testing.T) {
	s := serve(t, "127.0.0.1:0", withTargets(fixed(t, openMetrics, "# TYPE orders counter\norders_total 1 # {trace_id=\"7\"} 1\n# EOF\n")))
	s.proxy.page = "# TYPE istio_requests_total counter\nistio_requests_total{} 1\n# TYPE envoy_cx counter\nenvoy_cx 1\n"
	resp, page := s.scrape("Accept", "application/openmetrics-text;version=1.0.0,text/plain;q=0.1")
	if got := resp.Header.Get("Content-Type"); got != openMetrics {
		t.Errorf("Content-Type %q", got)
	}
	for _, want := range []string{"# TYPE istio_requests counter\nistio_requests_total{} 1\n", "# TYPE envoy_cx unknown\n", "# TYPE istio_agent_scrapes counter\n", "orders_total 1 # {trace_id=\"7\"} 1\n"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if strings.Count(page, "# EOF") != 1 || !strings.HasSuffix(page, "\n# EOF\n") {
		t.Errorf("want one # EOF at the end:\n%s", page)
	}
}

// Targets that disagree about the format are all scraped as text.
func TestDifferentFormats(t *testing.T) {
	either := target(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.Header.Get("Accept"), "application/openmetrics-text") {
			_, _ = io.WriteString(w, "either 1\n")
			return
		}
		w.Header().Set("Content-Type", openMetrics)
		_, _ = io.WriteString(w, "# TYPE either unknown\neither 2\n# EOF\n")
	})
	stubborn := fixed(t, openMetrics, "# TYPE stubborn unknown\nstubborn 1\n# EOF\n")
	s := serve(t, "127.0.0.1:0", withTargets(either, stubborn, fixed(t, "", "plain 1\n")))
	resp, page := s.scrape("Accept", "application/openmetrics-text;version=1.0.0,text/plain;q=0.1")
	if got := resp.Header.Get("Content-Type"); got != "text/plain; version=0.0.4; charset=utf-8" || !strings.Contains(page, "either 1\n") || !strings.Contains(page, "plain 1\n") || strings.Contains(page, "stubborn") {
		t.Errorf("Content-Type %q:\n%s", got, page)
	}
	s.cancel()
	if err := <-s.ended; err != nil {
		t.Error(err)
	}
	s.ended <- nil
	if log := s.log.String(); !strings.Contains(log, "the response is OpenMetrics though only text is accepted") {
		t.Errorf("log:\n%s", log)
	}
}

// No source that fails takes the others' metrics, and each failure is counted; what is logged is what changes.
func TestSourcesFailAlone(t *testing.T) {
	for name, bad := range map[string]spec.Target{
		"html": fixed(t, "text/html", "<html>\n"), "refused": {Port: wait.FreePort(t), Path: "/"},
		"error":      target(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }),
		"compressed": target(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Encoding", "br") }),
		"elsewhere": target(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://localhost:15000/stats", http.StatusFound)
		}),
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, "127.0.0.1:0", withTargets(bad, fixed(t, "", "good 1\n")))
			for range 2 {
				s.withoutBad()
			}
			if page := s.withoutBad(); !strings.Contains(page, "istio_agent_scrape_failures_total{type=\"application\"} 2\n") {
				t.Errorf("the failures are not counted:\n%s", page)
			}
			s.loggedOnce(bad)
		})
	}
}

// A source that hangs is given up, before its response and within it. The timeout leaves the others time on a busy machine.
func TestHungSources(t *testing.T) {
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	hung := func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-done:
		}
	}
	for name, handler := range map[string]http.HandlerFunc{"hung": hung, "hung within the body": func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "half 1\nhal")
		_ = http.NewResponseController(w).Flush()
		hung(w, r)
	}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad := target(t, handler)
			s := serve(t, "127.0.0.1:0", withTargets(bad, fixed(t, "", "good 1\n")))
			s.withoutBad("X-Prometheus-Scrape-Timeout-Seconds", "12")
			s.loggedOnce(bad)
		})
	}
}

// withoutBad scrapes, and wants the pages of Envoy and of the good target.
func (s *harness) withoutBad(header ...string) string {
	s.t.Helper()
	resp, page := s.scrape(header...)
	if resp.StatusCode != 200 || !strings.Contains(page, "envoy_server_live{} 1\n") || !strings.HasSuffix(page, "\ngood 1\n") || strings.Contains(page, "hal\n") {
		s.t.Errorf("%s:\n%s", resp.Status, page)
	}
	return page
}

// loggedOnce ends the server, and wants one line about a target in its log.
func (s *harness) loggedOnce(bad spec.Target) {
	s.t.Helper()
	s.cancel()
	if err := <-s.ended; err != nil {
		s.t.Error(err)
	}
	s.ended <- nil // for the cleanup
	if log := s.log.String(); strings.Count(log, "the metrics of the application are missing") != 1 || !strings.Contains(log, fmt.Sprintf(":%d/", bad.Port)) {
		s.t.Errorf("log:\n%s", log)
	}
}

func TestAFailingEnvoyLeavesTheApplication(t *testing.T) {
	s := serve(t, "127.0.0.1:0", withTargets(fixed(t, "", "good 1\n")))
	s.proxy.page, s.proxy.err = "envoy_half 1\nenvoy_other_ha", errors.New("connection reset")
	_, page := s.scrape()
	if !strings.Contains(page, "envoy_half 1\ngood 1\n") {
		t.Errorf("page:\n%s", page)
	}
	if _, page = s.scrape(); !strings.Contains(page, "istio_agent_scrape_failures_total{type=\"envoy\"} 1\n") {
		t.Errorf("the failure is not counted:\n%s", page)
	}
}

// An application that answers in gzip though it was not asked to.
func TestCompressedTarget(t *testing.T) {
	app := target(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "" {
			t.Errorf("gzip is requested of the application: %v", r.Header)
		}
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, "zipped 1\n")
		_ = z.Close()
	})
	s := serve(t, "127.0.0.1:0", withTargets(app))
	if _, page := s.scrape(); !strings.Contains(page, "zipped 1\n") {
		t.Errorf("page:\n%s", page)
	}
}

func TestCompressedResponse(t *testing.T) {
	s := serve(t, "127.0.0.1:0", withTargets(fixed(t, "", "good 1\n")))
	s.client.Transport.(*http.Transport).DisableCompression = true
	resp, body := s.scrape("Accept-Encoding", "gzip")
	z, err := gzip.NewReader(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(z)
	if err != nil || resp.Header.Get("Content-Encoding") != "gzip" || !strings.HasSuffix(string(page), "good 1\n") {
		t.Errorf("%v, %v:\n%s", err, resp.Header, page)
	}
	if resp, page := s.scrape(); resp.Header.Get("Content-Encoding") != "" || !strings.HasSuffix(page, "good 1\n") {
		t.Errorf("%v:\n%s", resp.Header, page)
	}
}

// endless is an Envoy whose page goes on when the client has read its beginning.
type endless struct {
	*proxy
	read chan struct{}
}

func (e endless) Scrape(ctx context.Context, _ string, w io.Writer) error {
	line := strings.Repeat("x", 99) + " 1\n"
	for range 1 << 10 {
		if _, err := io.WriteString(w, line); err != nil {
			return err
		}
	}
	select {
	case <-e.read:
	case <-ctx.Done():
		return ctx.Err()
	}
	_, err := io.WriteString(w, "last 1\n")
	return err
}

// A page is passed on while it arrives, and not gathered.
func TestMetricsAreStreamed(t *testing.T) {
	read := make(chan struct{})
	s := serve(t, "127.0.0.1:0", func(o *status.Options) { o.Proxy = endless{o.Proxy.(*proxy), read} })
	s.client.Transport.(*http.Transport).DisableCompression = true
	resp, err := s.client.Get("http://" + s.addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for n := 0; n < 100; {
		if !lines.Scan() {
			t.Fatal("the page ended")
		}
		if strings.HasPrefix(lines.Text(), "xxx") {
			n++
		}
	}
	close(read)
	last := ""
	for lines.Scan() {
		last = lines.Text()
	}
	if last != "last 1" {
		t.Errorf("the last line is %q", last)
	}
}
