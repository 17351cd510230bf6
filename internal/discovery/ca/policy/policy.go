// Package policy decides which certificates the CA signs, and has the only code that signs with the CA's key.
//
// An [Issuer] holds the key and signs an [Approval], and only the functions of this package create
// Approvals. So no other code can have a certificate signed that the policy has not approved. The
// package is pure apart from crypto/rand: times are arguments.
package policy

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
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

// Request is a workload's request for a certificate.
type Request struct {
	// Caller is the authenticated identity of the caller.
	Caller mesh.Identity
	// CSR is the certificate request in PEM as it was received.
	CSR []byte
	// TTL is the requested lifetime; 0 or less means the default.
	TTL time.Duration
	// TrustDomains are those that names in the CSR may have, further to the caller's and the default.
	TrustDomains []string
}

// Approval is a certificate that may be signed. The zero value is not an approval, and cannot be
// signed.
type Approval struct {
	template *x509.Certificate
	public   crypto.PublicKey
}

// PublicKey returns the key of the certificate in the form that certificates have it (SubjectPublicKeyInfo).
func (a Approval) PublicKey() ([]byte, error) { return x509.MarshalPKIXPublicKey(a.public) }

// The classes of errors of Workload.
var (
	// ErrRequest is an invalid request.
	ErrRequest = errors.New("invalid request")
	// ErrIssuer is an issuer that cannot sign at this time.
	ErrIssuer = errors.New("CA certificate expired")
)

// Workload approves the certificate of a workload at the time now, or returns an error that wraps
// ErrRequest or ErrIssuer. The certificate is for the caller's own identity, and a request for another
// one, or for a CA, is an ErrNames. Its lifetime is what was requested, limited by lim and by the validity of
// the issuer's chain.
func Workload(r Request, lim Limits, issuer pki.Validity, now time.Time) (Approval, error) {
	csr, err := pki.ParseCSR(r.CSR)
	if err != nil {
		return Approval{}, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	term, err := within(issuer, lifetime(r.TTL, lim), now)
	if err != nil {
		return Approval{}, err
	}
	template, err := pki.WorkloadTemplate(r.Caller, term)
	if err != nil {
		return Approval{}, fmt.Errorf("%w: identity of the caller: %w", ErrRequest, err)
	}
	if err := checkRequested(csr, r.Caller, r.TrustDomains); err != nil {
		return Approval{}, err
	}
	return Approval{template: template, public: csr.PublicKey}, nil
}

// Serving approves a certificate of the control plane's own, for names that are host names or IP
// addresses. Its lifetime is ttl, limited by the validity of the issuer's chain.
func Serving(names []string, public crypto.PublicKey, ttl time.Duration, issuer pki.Validity, now time.Time) (Approval, error) {
	term, err := within(issuer, ttl, now)
	if err != nil {
		return Approval{}, err
	}
	return Approval{template: pki.ServerTemplate(names, term), public: public}, nil
}

// within returns the validity of a certificate that is issued now for ttl.
func within(issuer pki.Validity, ttl time.Duration, now time.Time) (pki.Validity, error) {
	if !now.Before(issuer.NotAfter) {
		return pki.Validity{}, fmt.Errorf("%w at %s", ErrIssuer, issuer.NotAfter.UTC().Format(time.RFC3339))
	}
	t := pki.Validity{NotBefore: now.Add(-Backdate), NotAfter: now.Add(ttl)}
	if t.NotBefore.Before(issuer.NotBefore) {
		t.NotBefore = issuer.NotBefore
	}
	if t.NotAfter.After(issuer.NotAfter) {
		t.NotAfter = issuer.NotAfter
	}
	return t, nil
}

// Lifetime is the default lifetime within the limits.
func (lim Limits) Lifetime() time.Duration { return lifetime(0, lim) }

// Longest is the longest lifetime of a workload's certificate.
func (lim Limits) Longest() time.Duration { return lifetime(math.MaxInt64, lim) }

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
