package ca

import (
	"sync/atomic"
	"time"
)

// metrics are the CA's counters.
type metrics struct {
	requests, unauthenticated, idErrors, parseErrors, signErrors, issued atomic.Int64
}

// Metric is one sample, for the package that exposes metrics.
type Metric struct {
	Name, Help string
	// Counter says that the metric is a counter; else it is a gauge.
	Counter bool
	Value   float64
}

// Metrics returns the CA's metrics, with the names of Istio's CA. It is safe for concurrent use.
// [control-plane 1.14.8]
func (s *Server) Metrics() []Metric {
	counter := func(name, help string, n *atomic.Int64) Metric {
		return Metric{Name: name, Help: help, Counter: true, Value: float64(n.Load())}
	}
	m := &s.metrics
	state := s.authority.State()
	root, chain := state.Issuer.Root(), state.Issuer.Validity()
	return []Metric{
		counter("citadel_server_csr_count", "Certificate requests received.", &m.requests),
		counter("citadel_server_authentication_failure_count", "Certificate requests whose caller was not authenticated.", &m.unauthenticated),
		counter("citadel_server_id_extraction_failure_count", "Certificate requests that named another identity than the caller's.", &m.idErrors),
		counter("citadel_server_csr_parsing_err_count", "Certificate requests that were not valid.", &m.parseErrors),
		counter("citadel_server_csr_sign_err_count", "Certificate requests that could not be signed.", &m.signErrors),
		counter("citadel_server_success_cert_issuance_count", "Certificates issued.", &m.issued),
		{
			Name: "citadel_server_root_cert_expiry_timestamp", Help: "Expiry of the root certificate that certificates chain to, in seconds since 1970.",
			Value: float64(root.NotAfter.Unix()),
		},
		{
			Name: "citadel_server_root_cert_expiry_seconds", Help: "Seconds until the root certificate expires.",
			Value: time.Until(root.NotAfter).Seconds(),
		},
		{
			Name: "citadel_server_cert_chain_expiry_timestamp", Help: "When the first certificate of the CA's chain expires, in seconds since 1970: certificates do not live longer.",
			Value: float64(chain.NotAfter.Unix()),
		},
		{
			Name: "citadel_server_cert_chain_expiry_seconds", Help: "Seconds until the first certificate of the CA's chain expires.",
			Value: time.Until(chain.NotAfter).Seconds(),
		},
		{Name: "pilothouse_ca_roots", Help: "Root certificates that the mesh trusts; more than one during a rotation.", Value: float64(len(state.Roots))},
	}
}
