package status

import (
	"context"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// scrapeTimeout bounds a scrape whose request has no timeout header.
const scrapeTimeout = 10 * time.Second

// metrics serves the agent's metrics and then Envoy's [agent M1, M5, M8, M9]. If Envoy's cannot be
// scraped, that is counted, and the status is still 200.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	s.scrapes.Add(1)
	ctx, cancel := context.WithTimeout(r.Context(), timeout(r))
	defer cancel()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	f := s.o.Facts()
	var page Page
	s.collect(&page, f)
	for _, collect := range s.o.Collect {
		collect(&page)
	}
	if _, err := w.Write(page.Bytes()); err != nil || !f.Envoy.Running {
		return
	}
	if err := s.o.Proxy.Scrape(ctx, r.URL.RawQuery, w); err != nil {
		s.failures.Add(1)
		s.o.Log.Warn("scrape Envoy's metrics", "error", err)
	}
}

// timeout returns the timeout that a Prometheus server sends.
func timeout(r *http.Request) time.Duration {
	seconds, err := strconv.ParseFloat(r.Header.Get("X-Prometheus-Scrape-Timeout-Seconds"), 64)
	if err != nil || seconds <= 0 || seconds > 3600 {
		return scrapeTimeout
	}
	return time.Duration(seconds * float64(time.Second))
}

// collect adds the metrics of this package [agent M12].
func (s *Server) collect(p *Page, f Facts) {
	// As Istio's agent names its component.
	p.Gauge("istio_build", "The version of each component.", 1, "component", "citadel_agent", "tag", s.o.Version)
	if d := s.startup.Load(); d > 0 {
		p.Gauge("startup_duration_seconds", "The time from the agent's start until it was ready.", time.Duration(d).Seconds())
	}
	p.Counter("scrapes_total", "Requests for metrics.", float64(s.scrapes.Load()))
	p.Counter("scrape_failures_total", "Sources that could not be scraped.", float64(s.failures.Load()), "type", "envoy")
	p.Counter("envoy_restarts_total", "Restarts of Envoy after crashes.", float64(f.Envoy.Restarts))
	p.Gauge("envoy_live", "Whether Envoy runs and has been found live.", BoolValue(f.Envoy.Live))
	p.Gauge("envoy_draining", "Whether Envoy is draining.", BoolValue(f.Envoy.Draining))
	if f.Upstream.Wanted {
		p.Gauge("istiod_connected", "Whether the stream to discovery is open.", BoolValue(f.Upstream.Connected))
	}
	if f.Certificate.Present {
		p.Gauge("cert_expiry_seconds", "The time until the workload's certificate ends; below 0 once it has.",
			time.Until(f.Certificate.NotAfter).Seconds(), "resource_name", mesh.SecretDefault)
		if end := f.Certificate.RootsNotAfter; !end.IsZero() {
			p.Gauge("cert_expiry_seconds", "", time.Until(end).Seconds(), "resource_name", mesh.SecretRoot)
		}
		p.Gauge("cert_ends_with_issuer", "Whether the workload's certificate ends because one that signed it ends.", BoolValue(f.Certificate.EndsWithIssuer))
	}
	p.Gauge("go_goroutines", "Goroutines of the agent.", float64(runtime.NumGoroutine()))
	if resident, ok := residentBytes(); ok {
		p.Gauge("process_resident_memory_bytes", "Resident memory of the agent.", float64(resident))
	}
}

// BoolValue returns 1 for true and 0 for false.
func BoolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// residentBytes returns this process's resident memory.
func residentBytes() (int64, bool) {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0, false
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err == nil
}
