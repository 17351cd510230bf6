package webhook

import (
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/admit"
	"github.com/pilothouse/pilothouse/internal/object"
)

// metrics are those of the admission requests, with Istio's names. [control-plane 1.13]
type metrics struct {
	passed, failed, httpErrors *prometheus.CounterVec

	injections, injected, injectionFailures prometheus.Counter
	skipped                                 *prometheus.CounterVec
	injectionTime                           prometheus.Histogram
}

func newMetrics() metrics {
	kind := []string{"group", "version", "resource"}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	return metrics{
		passed:     counter("galley_validation_passed", "Objects that were admitted; of kinds that are not checked, the labels are \"other\".", kind...),
		failed:     counter("galley_validation_failed", "Objects that were refused.", append(kind, "reason")...),
		httpErrors: counter("galley_validation_http_error", "Requests for validation that could not be answered.", "status"),
		injections: prometheus.NewCounter(prometheus.CounterOpts{Name: "sidecar_injection_requests_total", Help: "Requests for injection."}),
		injected:   prometheus.NewCounter(prometheus.CounterOpts{Name: "sidecar_injection_success_total", Help: "Pods that got a proxy."}),
		injectionFailures: prometheus.NewCounter(prometheus.CounterOpts{Name: "sidecar_injection_failure_total",
			Help: "Requests for injection that failed, so that the Pod was not created."}),
		skipped: counter("sidecar_injection_skip_total", "Pods that were left without a proxy.", "reason"),
		injectionTime: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "sidecar_injection_time_seconds", Help: "Seconds that the answer to a request for injection took.",
			Buckets: []float64{.001, .0025, .005, .01, .02, .05, .1, .25, 1, 5}}),
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.passed, m.failed, m.httpErrors, m.injections, m.injected, m.injectionFailures, m.skipped, m.injectionTime}
}

// validated counts a decision. Only kinds that are known become labels: who sends the request chooses the others.
func (m *metrics) validated(q *admissionv1.AdmissionRequest, d admit.Decision) {
	group, version, resource := kindOf(q)
	if d.Allowed {
		m.passed.WithLabelValues(group, version, resource).Inc()
		return
	}
	m.failed.WithLabelValues(group, version, resource, "invalid").Inc()
}

// kindOf returns the labels of a request's kind, which are those of a kind that the control plane reads.
func kindOf(q *admissionv1.AdmissionRequest) (group, version, resource string) {
	r := q.Resource
	_, err := object.ParseKind(r.Resource)
	if err != nil || !slices.Contains([]string{"networking.istio.io", "security.istio.io", "discovery.k8s.io", ""}, r.Group) ||
		!slices.Contains([]string{"v1", "v1beta1", "v1alpha3"}, r.Version) || strings.ContainsAny(r.Resource, ".") || strings.ToLower(r.Resource) != r.Resource {
		return "other", "other", "other"
	}
	return r.Group, r.Version, r.Resource
}

func (m *metrics) validationError(status int) {
	m.httpErrors.WithLabelValues(strconv.Itoa(status)).Inc()
}

// injectionError counts a request that could not be answered, most of which never reach the injector.
func (m *metrics) injectionError(int) { m.injectionFailures.Inc() }
