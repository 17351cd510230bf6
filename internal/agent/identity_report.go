package agent

import (
	"crypto/x509"
	"fmt"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/agent/upstream"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// IdentityReport says which certificate the agent holds, from where, until when, and what it does next. It has no key
// and no token. pilot-agent identity prints it; /debug/status has it as "certificate".
type IdentityReport struct {
	// Held is the certificate, nil if there is none.
	Held *HeldCertificate `json:"held,omitempty"`
	// Source is where certificates come from.
	Source string `json:"source"`
	// Problem is why the last request failed, empty after a success.
	Problem string `json:"problem,omitempty"`
	// Failures counts failed requests since the last success. Next is when the next request is made; zero if the source does not depend on requests.
	Failures int       `json:"failures,omitempty"`
	Next     time.Time `json:"next,omitzero"`
	// Token is the token that authenticates requests without a certificate; nil if none are made.
	Token *TokenReport `json:"token,omitempty"`
	// Copy is the copy for the next agent; nil if there is none.
	Copy *CopyReport `json:"copy,omitempty"`
}

// HeldCertificate describes the current certificate.
type HeldCertificate struct {
	// ID is the SPIFFE ID, or empty. Serial is hexadecimal.
	ID      string      `json:"id,omitempty"`
	Serial  string      `json:"serial"`
	Version string      `json:"version"`
	KeyKind pki.KeyKind `json:"key_kind"`
	// NotBefore and NotAfter are the period in which the whole chain is valid. EndsWithIssuer says that it ends with an intermediate
	// or root certificate.
	NotBefore      time.Time `json:"not_before"`
	NotAfter       time.Time `json:"not_after"`
	EndsWithIssuer bool      `json:"ends_with_issuer,omitempty"`
	// Received is when it was requested; zero if it is from files. Restored says that an earlier agent requested it.
	Received time.Time `json:"received,omitzero"`
	Restored bool      `json:"restored,omitempty"`
	// Intermediates and Roots are the other certificates.
	Intermediates []IssuerReport `json:"intermediates,omitempty"`
	Roots         []IssuerReport `json:"roots"`
}

// IssuerReport describes a certificate of an issuer.
type IssuerReport struct {
	Subject  string    `json:"subject"`
	NotAfter time.Time `json:"not_after"`
	// SHA256 is the fingerprint, hexadecimal.
	SHA256 string `json:"sha256"`
}

// TokenReport describes a token.
type TokenReport struct {
	Source string `json:"source"`
	// NotAfter is when it ends; zero if that is not known.
	NotAfter time.Time `json:"not_after,omitzero"`
	Problem  string    `json:"problem,omitempty"`
}

// CopyReport describes the copy of the certificate.
type CopyReport struct {
	Path string `json:"path"`
	// Written is when this agent wrote it; zero if it has not.
	Written time.Time `json:"written,omitzero"`
	Problem string    `json:"problem,omitempty"`
}

// report collects the report. The certificate was parsed before it was published, so errors of parsing are left out.
func (c *certificates) report(s *spec.Spec) IdentityReport {
	r := IdentityReport{Held: c.held()}
	if err := c.value.Problem(); err != nil {
		r.Problem = err.Error()
	}
	later := c.sources.Mounted()
	switch {
	case later != nil:
		r.Source = "files " + later.Chain
	case c.requests != nil && c.requests.keeper != nil:
		state := c.requests.keeper.State()
		r.Source, r.Failures, r.Next = "CA "+c.requests.ca.Address(), state.Failures, state.Next
		if r.Held != nil {
			r.Held.Received, r.Held.Restored = state.Received, state.Restored
		}
		r.Token = c.tokenReport(s)
		if c.requests.copy != nil {
			written, problem := c.requests.copy.State()
			r.Copy = &CopyReport{Path: c.requests.copy.Path(), Written: written}
			if problem != nil {
				r.Copy.Problem = problem.Error()
			}
		}
	case c.plan.Mounted != nil:
		r.Source = "files " + c.plan.Mounted.Chain
	default:
		r.Source = "SDS server at " + s.Paths.SDSSocket
	}
	return r
}

func (c *certificates) held() *HeldCertificate {
	s, _ := c.value.Current()
	if s == nil {
		return nil
	}
	h := &HeldCertificate{Version: s.Version, NotBefore: s.NotBefore, NotAfter: s.NotAfter, EndsWithIssuer: s.EndsWithIssuer()}
	if key, err := pki.ParseKey(s.Key); err == nil {
		h.KeyKind = pki.KindOf(key)
	}
	if chain, err := pki.ParseBundle(s.Chain); err == nil {
		h.Serial = fmt.Sprintf("%x", chain[0].SerialNumber)
		if id, err := pki.IdentityOf(chain[0]); err == nil {
			h.ID = id.SPIFFE()
		}
		h.Intermediates = issuers(chain[1:])
	}
	if roots, err := pki.ParseBundle(s.Roots); err == nil {
		h.Roots = issuers(roots)
	}
	return h
}

func issuers(certs []*x509.Certificate) []IssuerReport {
	var out []IssuerReport
	for _, c := range certs {
		out = append(out, IssuerReport{Subject: c.Subject.String(), NotAfter: c.NotAfter, SHA256: pki.Fingerprint(c)})
	}
	return out
}

// tokenReport describes the token without a request to another machine.
func (c *certificates) tokenReport(s *spec.Spec) *TokenReport {
	if gce := c.requests.token.gce; gce != nil {
		return &TokenReport{Source: "metadata server " + s.Upstream.MetadataServer, NotAfter: gce.Until()}
	}
	r := &TokenReport{Source: "file " + s.Upstream.TokenFile}
	token, err := upstream.ReadTokenFile(s.Upstream.TokenFile)
	if err != nil {
		r.Problem = err.Error()
	}
	r.NotAfter = upstream.TokenExpiry(token)
	return r
}
