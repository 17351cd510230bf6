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

// Backdate is how long before its making a certificate begins to be valid, because the
// clocks of a mesh do not agree; never before its signer.
const Backdate = 2 * time.Minute

// Defaults of Limits. [control-plane 1.14.6]
const (
	DefaultWorkloadTTL = settings.DefaultWorkloadTTL
	DefaultMaxTTL      = settings.DefaultMaxTTL
)

// Limits bound how long certificates live. Zero fields stand for the defaults above.
type Limits struct {
	// DefaultTTL is given where none is asked for.
	DefaultTTL time.Duration
	// MaxTTL caps what is asked for (MAX_WORKLOAD_CERT_TTL).
	MaxTTL time.Duration
}

// request is one question to the policy.
type request struct {
	caller mesh.Identity // authenticated
	csr    []byte        // PEM, as it came
	ttl    time.Duration // 0 or less: none asked for
}

// approved is what may be signed. Only decide makes one that sign accepts, so no path
// leads to a signature around the policy.
type approved struct {
	template *x509.Certificate
	public   crypto.PublicKey
}

var (
	errCSR    = errors.New("bad request")    // the caller's mistake
	errSigner = errors.New("signer is over") // ours
)

// decide says what, if anything, to sign for a request at the time now, with a signer
// that is valid for the given term. The certificate is for the caller's own identity:
// names in the request are not looked at. It lives as long as asked for, at most the
// limit, and never longer than the signer.
func decide(r request, lim Limits, signer pki.Term, now time.Time) (approved, error) {
	csr, err := pki.ParseCSR(r.csr)
	if err != nil {
		return approved{}, fmt.Errorf("%w: %w", errCSR, err)
	}
	if !now.Before(signer.NotAfter) {
		return approved{}, fmt.Errorf("%w: the CA's own certificate ended at %s", errSigner, signer.NotAfter.UTC().Format(time.RFC3339))
	}
	t := pki.Term{NotBefore: now.Add(-Backdate), NotAfter: now.Add(lifetime(r.ttl, lim))}
	if t.NotBefore.Before(signer.NotBefore) {
		t.NotBefore = signer.NotBefore
	}
	if t.NotAfter.After(signer.NotAfter) {
		t.NotAfter = signer.NotAfter
	}
	template, err := pki.WorkloadTemplate(r.caller, t)
	if err != nil {
		return approved{}, fmt.Errorf("%w: the caller's identity: %w", errCSR, err)
	}
	return approved{template: template, public: csr.PublicKey}, nil
}

func lifetime(asked time.Duration, lim Limits) time.Duration {
	if lim.DefaultTTL <= 0 {
		lim.DefaultTTL = DefaultWorkloadTTL
	}
	if lim.MaxTTL <= 0 {
		lim.MaxTTL = DefaultMaxTTL
	}
	if asked <= 0 {
		asked = lim.DefaultTTL
	}
	return min(asked, lim.MaxTTL)
}
