package ca

import "sync/atomic"

// metrics count what the CA did.
type metrics struct {
	requests, unauthenticated, parseErrors, signErrors, issued atomic.Int64
}

// Metric is one number for whoever exposes metrics.
type Metric struct {
	Name, Help string
	// Counter is set where the value only grows; else it is a gauge.
	Counter bool
	Value   float64
}

// Metrics reads the CA's numbers, named as Istio's CA names them so that dashboards keep
// working. [control-plane 1.14.8]
func (s *Server) Metrics() []Metric {
	counter := func(name, help string, n *atomic.Int64) Metric {
		return Metric{Name: name, Help: help, Counter: true, Value: float64(n.Load())}
	}
	m := &s.metrics
	return []Metric{
		counter("citadel_server_csr_count", "Certificate requests received.", &m.requests),
		counter("citadel_server_authentication_failure_count", "Certificate requests whose caller could not be told.", &m.unauthenticated),
		counter("citadel_server_csr_parsing_err_count", "Certificate requests that were not usable.", &m.parseErrors),
		counter("citadel_server_csr_sign_err_count", "Certificate requests that could not be signed.", &m.signErrors),
		counter("citadel_server_success_cert_issuance_count", "Certificates issued.", &m.issued),
		{
			Name: "citadel_server_root_cert_expiry_timestamp", Help: "When the root certificate ends, in seconds since 1970.",
			Value: float64(s.authority.cert.NotAfter.Unix()),
		},
	}
}
