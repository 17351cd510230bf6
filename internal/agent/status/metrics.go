package status

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// collect adds the metrics of this package [agent M12].
func (s *Server) collect(p *Page, f Facts) {
	// As Istio's agent names its component.
	p.Gauge("istio_build", "The version of each component.", 1, "component", "citadel_agent", "tag", s.o.Version)
	if d := s.startup.Load(); d > 0 {
		p.Gauge("startup_duration_seconds", "The time from the agent's start until it was ready.", time.Duration(d).Seconds())
	}
	p.Counter("scrapes_total", "Requests for metrics.", float64(s.scrapes.Load()))
	p.Counter("scrape_failures_total", "Sources that could not be scraped.", float64(s.envoy.failures.Load()), "type", "envoy")
	p.Counter("scrape_failures_total", "", float64(s.app.failures.Load()), "type", "application")
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
