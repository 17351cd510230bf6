package ca

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/settings"
)

// Backdate is how long before its creation a certificate becomes valid, to allow for clock skew. A
// certificate is never valid before its issuer's.
const Backdate = 2 * time.Minute

// Default lifetimes of workload certificates. [control-plane 1.14.6]
const (
	DefaultWorkloadTTL = settings.DefaultWorkloadTTL
	DefaultMaxTTL      = settings.DefaultMaxTTL
)

// Limits are the lifetimes of workload certificates. A field that is not positive has the default
// above.
type Limits struct {
	// DefaultTTL applies if the request has no lifetime. MaxTTL limits it too.
	DefaultTTL time.Duration
	// MaxTTL is the longest lifetime (MAX_WORKLOAD_CERT_TTL); a request for more gets MaxTTL.
	MaxTTL time.Duration
}

// request is a certificate request.
type request struct {
	caller mesh.Identity // authenticated
	csr    []byte        // PEM, not validated
	ttl    time.Duration // 0 or less: the default
}

// approved is a certificate to sign. Only decide creates values of it, so that nothing can be
// signed without the policy.
type approved struct {
	template *x509.Certificate
	public   crypto.PublicKey
}

var (
	errCSR    = errors.New("invalid request")
	errSigner = errors.New("CA certificate expired")
)

// decide returns the certificate to sign for a request at the time now. The certificate is for the
// caller's own identity: names in the request are ignored. Its lifetime is what was requested,
// limited by lim and by the validity of the issuer's certificate, signer.
func decide(r request, lim Limits, signer pki.Validity, now time.Time) (approved, error) {
	csr, err := pki.ParseCSR(r.csr)
	if err != nil {
		return approved{}, fmt.Errorf("%w: %w", errCSR, err)
	}
	if !now.Before(signer.NotAfter) {
		return approved{}, fmt.Errorf("%w at %s", errSigner, signer.NotAfter.UTC().Format(time.RFC3339))
	}
	t := pki.Validity{NotBefore: now.Add(-Backdate), NotAfter: now.Add(lifetime(r.ttl, lim))}
	if t.NotBefore.Before(signer.NotBefore) {
		t.NotBefore = signer.NotBefore
	}
	if t.NotAfter.After(signer.NotAfter) {
		t.NotAfter = signer.NotAfter
	}
	template, err := pki.WorkloadTemplate(r.caller, t)
	if err != nil {
		return approved{}, fmt.Errorf("%w: identity of the caller: %w", errCSR, err)
	}
	return approved{template: template, public: csr.PublicKey}, nil
}

func lifetime(requested time.Duration, lim Limits) time.Duration {
	if lim.DefaultTTL <= 0 {
		lim.DefaultTTL = DefaultWorkloadTTL
	}
	if lim.MaxTTL <= 0 {
		lim.MaxTTL = DefaultMaxTTL
	}
	if requested <= 0 {
		requested = lim.DefaultTTL
	}
	return min(requested, lim.MaxTTL)
}
