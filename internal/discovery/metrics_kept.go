package discovery

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	descReady        = prometheus.NewDesc("pilothouse_ready", "1 once proxies are served, 0 while streams are refused.", nil, nil)
	descRestored     = prometheus.NewDesc("pilothouse_restored_objects", "Objects in force as they were saved, because their source cannot say them now.", nil, nil)
	descRestoredAge  = prometheus.NewDesc("pilothouse_restored_age_seconds", "Seconds since the oldest of these was saved; 0 where there is none.", nil, nil)
	descBroken       = prometheus.NewDesc("pilothouse_broken_policies", "Security policies that are broken and of which no good value is known.", nil, nil)
	descSaveFailures = prometheus.NewDesc("pilothouse_save_failures_total", "Attempts to save the configuration that failed.", nil, nil)
	descSaveFailing  = prometheus.NewDesc("pilothouse_save_failing", "1 while the configuration cannot be saved, else 0.", nil, nil)
	descSavedBytes   = prometheus.NewDesc("pilothouse_saved_bytes", "Size of the configuration as it was saved last; 0 where it was not since start.", nil, nil)
	descSavedAt      = prometheus.NewDesc("pilothouse_saved_timestamp_seconds", "When the configuration was saved last, in seconds since 1970; 0 where it was not since start.", nil, nil)
)

// collectKept gives the numbers that need no answer of the loop.
func (s *stats) collectKept(gauge, counter func(*prometheus.Desc, float64, ...string)) {
	number := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	k := &s.loop.kept.stats
	n := s.loop.gate.notes.Load()
	gauge(descRestored, float64(n.restored))
	age := 0.0
	if n.restored > 0 {
		age = time.Since(n.oldest).Seconds()
	}
	gauge(descRestoredAge, age)
	gauge(descBroken, float64(n.broken))
	gauge(descReady, number(s.loop.gate.open.Load()))
	gauge(descSaveFailing, number(k.failing.Load()))
	counter(descSaveFailures, float64(k.failures.Load()))
	gauge(descSavedBytes, float64(k.size.Load()))
	gauge(descSavedAt, float64(k.written.Load()))
}
