package pki

import (
	"crypto/tls"
	"fmt"
	"slices"
)

// TLSPolicy limits TLS, by the names of Istio's COMPLIANCE_POLICY. The zero value limits nothing. [agent E34]
type TLSPolicy string

// The policies.
const (
	// FIPS1402 is TLS 1.2 with AES-GCM and P-256.
	FIPS1402 TLSPolicy = "fips-140-2"
	// FIPS1403 is TLS 1.2 and 1.3 with AES-GCM, P-256 and P-384.
	FIPS1403 TLSPolicy = "fips-140-3"
	// PQC is TLS 1.3 with a key exchange that quantum computers do not break.
	PQC TLSPolicy = "pqc"
)

// TLSLimits are the limits of a policy. Envoy's names of ciphers and curves are those of OpenSSL.
type TLSLimits struct {
	// Min and Max are versions of crypto/tls.
	Min, Max uint16
	// Ciphers are those of TLS 1.2, EnvoyCiphers their names; empty if there is no TLS 1.2.
	Ciphers      []uint16
	EnvoyCiphers []string
	Curves       []tls.CurveID
	EnvoyCurves  []string
}

// gcm are the suites of TLS 1.3 with AES-GCM, which are all that a policy permits.
var gcm = []uint16{tls.TLS_AES_128_GCM_SHA256, tls.TLS_AES_256_GCM_SHA384}

// Limits returns the limits; ok is false if there are none.
func (p TLSPolicy) Limits() (l TLSLimits, ok bool) {
	fips := TLSLimits{
		Min: tls.VersionTLS12, Max: tls.VersionTLS12,
		Ciphers: []uint16{
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
		},
		EnvoyCiphers: []string{"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"},
		Curves:       []tls.CurveID{tls.CurveP256}, EnvoyCurves: []string{"P-256"},
	}
	switch p {
	case FIPS1402:
		return fips, true
	case FIPS1403:
		fips.Max = tls.VersionTLS13
		fips.Curves, fips.EnvoyCurves = append(fips.Curves, tls.CurveP384), append(fips.EnvoyCurves, "P-384")
		return fips, true
	case PQC:
		return TLSLimits{
			Min: tls.VersionTLS13, Max: tls.VersionTLS13,
			Curves: []tls.CurveID{tls.X25519MLKEM768}, EnvoyCurves: []string{"X25519MLKEM768"},
		}, true
	}
	return TLSLimits{}, false
}

// Apply limits a configuration. It must not have a VerifyConnection: crypto/tls cannot leave out a suite of TLS 1.3, so a connection
// with one that the policy does not permit ends with the handshake.
func (p TLSPolicy) Apply(c *tls.Config) {
	l, ok := p.Limits()
	if !ok {
		return
	}
	c.MinVersion, c.MaxVersion, c.CipherSuites, c.CurvePreferences = l.Min, l.Max, l.Ciphers, l.Curves
	permitted := slices.Concat(l.Ciphers, gcm)
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if !slices.Contains(permitted, s.CipherSuite) {
			return fmt.Errorf("the peer has chosen %s, which COMPLIANCE_POLICY %s does not permit", tls.CipherSuiteName(s.CipherSuite), p)
		}
		return nil
	}
}
