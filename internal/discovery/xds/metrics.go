package xds

import (
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics has the names that dashboards of Istio's control plane use. [control-plane 1.13]
type metrics struct {
	connected   prometheus.Collector
	stuck       prometheus.Collector
	pushes      *prometheus.CounterVec
	rejects     [numTypes]prometheus.Counter
	allRejects  *prometheus.CounterVec
	stale       *prometheus.CounterVec
	size        *prometheus.HistogramVec
	pushed      [numTypes]prometheus.Counter  // of pushes
	sizes       [numTypes]prometheus.Observer // of size
	sending     prometheus.Histogram
	convergence prometheus.Histogram
	queued      prometheus.Histogram
	internal    prometheus.Counter
	noSecret    prometheus.Counter
	received    prometheus.Collector
	largest     atomic.Int64           // request, in bytes
	refused     *prometheus.CounterVec // by reason
}

func newMetrics(connected, stuck func() int) *metrics {
	byType := []string{"type"}
	m := &metrics{
		connected: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "pilot_xds", Help: "Proxies connected over xDS."},
			func() float64 { return float64(connected()) }),
		stuck: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "pilothouse_xds_stuck", Help: "Proxies that have not acknowledged a response for 10 s or more."},
			func() float64 { return float64(stuck()) }),
		pushes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pilot_xds_pushes",
			Help: "Responses sent, and those that could not be (type with _senderr)."}, byType),
		allRejects: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pilot_total_xds_rejects",
			Help: "Responses that proxies refused."}, byType),
		stale: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pilot_xds_expired_nonce",
			Help: "Requests that answered no outstanding response."}, byType),
		size: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "pilot_xds_config_size_bytes",
			Help: "Bytes of resources in a response.", Buckets: prometheus.ExponentialBuckets(1024, 8, 7)}, byType),
		sending: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "pilot_xds_send_time",
			Help: "Seconds until a response was handed to the transport.", Buckets: []float64{.001, .01, .1, 1, 3, 5, 10, 20, 30}}),
		convergence: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "pilot_proxy_convergence_time",
			Help:    "Seconds from a view's publication, or the proxy's connecting, until the proxy accepted all of it.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 3, 5, 10, 20, 30}}),
		queued: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "pilot_proxy_queue_time",
			Help: "Seconds from a view's publication until the proxy's stream took it up.", Buckets: []float64{.001, .01, .1, .5, 1, 3, 5, 10, 20, 30}}),
		internal: prometheus.NewCounter(prometheus.CounterOpts{Name: "pilot_total_xds_internal_errors",
			Help: "Streams that ended because of an error of the server's own."}),
		noSecret: prometheus.NewCounter(prometheus.CounterOpts{Name: "pilot_sds_certificate_errors_total",
			Help: "Secrets that proxies asked for and did not get."}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pilothouse_xds_refused_total",
			Help: "Connections and streams refused because a client overstepped a bound (docs/limits.md)."}, []string{"reason"}),
	}
	m.received = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "pilot_xds_recv_max", Help: "Bytes of the largest request since start."},
		func() float64 { return float64(m.largest.Load()) })
	for _, reason := range reasons {
		m.refused.WithLabelValues(reason)
	}
	for t := range numTypes {
		m.rejects[t] = prometheus.NewCounter(prometheus.CounterOpts{Name: "pilot_xds_" + t.label() + "_reject",
			Help: t.String() + " responses that proxies refused."})
		m.pushed[t], m.sizes[t] = m.pushes.WithLabelValues(t.label()), m.size.WithLabelValues(t.label())
		// A counter that begins with 0 has a rate from its first increase.
		m.allRejects.WithLabelValues(t.label())
		m.stale.WithLabelValues(t.label())
	}
	return m
}

func (m *metrics) all() []prometheus.Collector {
	out := []prometheus.Collector{m.connected, m.stuck, m.pushes, m.allRejects, m.stale, m.size, m.sending, m.convergence, m.queued, m.internal, m.noSecret, m.received, m.refused}
	for _, r := range m.rejects {
		out = append(out, r)
	}
	return out
}

// receivedRequest notes the size of a request, in bytes.
func (m *metrics) receivedRequest(size int) {
	for old := m.largest.Load(); int64(size) > old && !m.largest.CompareAndSwap(old, int64(size)); old = m.largest.Load() {
	}
}

// label is the type's name in metrics.
func (t Type) label() string { return strings.ToLower(t.String()) }
