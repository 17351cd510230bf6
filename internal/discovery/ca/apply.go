package ca

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/rotation"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// apply loads the roots of a state, has them distributed, and replaces the issuer.
func (r *Rotator) apply(ctx context.Context, s rotation.State, now time.Time) error {
	loaded := map[string]*loadedRoot{}
	var certs []*x509.Certificate
	for _, t := range s.Trusted() {
		r.mu.Lock()
		l := r.roots[t.ID]
		r.mu.Unlock()
		if l == nil {
			var err error
			if l, err = r.load(ctx, t, now); err != nil {
				return err
			}
		}
		loaded[t.ID] = l
		certs = append(certs, l.cert)
	}
	issuer := r.findIssuer(loaded)
	signer, serves := choose(s, issuer, now)
	if signer == nil {
		return fmt.Errorf("root %.16s cannot sign: %w", s.Signer.ID, errNoKey)
	}
	serving := issuer(serves)
	if serving == nil {
		serving = signer
	}
	if err := r.replace(applied{signer: signer, serving: serving, roots: string(pki.EncodeCerts(pki.Normalize(certs)...))}, certs); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !sameKeys(r.roots, loaded) {
		r.clear = time.Time{}
	}
	r.state, r.roots, r.serves = s, loaded, pki.Fingerprint(serving.Root())
	for id := range r.issuers {
		if loaded[id] == nil && !(r.pending && id == pki.Fingerprint(r.files.Issuer.Root())) {
			delete(r.issuers, id)
		}
	}
	if got := pki.Fingerprint(signer.Root()); got != s.Signer.ID {
		return fmt.Errorf("root %.16s signs elsewhere, and this instance signs by root %.16s: %w; replace the files of its CA too", s.Signer.ID, got, errNoKey)
	}
	return nil
}

// load returns a root of a state. One in the files need not be read from the store.
func (r *Rotator) load(ctx context.Context, root rotation.Root, now time.Time) (*loadedRoot, error) {
	if c := r.pluggedCert(root); c != nil {
		return &loadedRoot{cert: c}, nil
	}
	stored, err := r.store.Root(ctx, root)
	if err != nil {
		return nil, err
	}
	return stored.load(root, now)
}

// applied is what the authorities have.
type applied struct {
	signer, serving *policy.Issuer
	roots           string // in PEM
}

// replace has the roots distributed, and gives the authorities what they do not have yet. The caller holds r.cycling, or is the only one.
func (r *Rotator) replace(next applied, roots []*x509.Certificate) error {
	if next == r.applied {
		return nil
	}
	r.options.Distribute(pki.Normalize(roots))
	before := r.authority.State().Issuer
	if err := errors.Join(r.serving.Replace(next.serving, roots), r.authority.Replace(next.signer, roots)); err != nil {
		return err
	}
	r.applied = next
	if c := next.signer.Certificate(); !c.Equal(before.Certificate()) {
		r.options.Log.Info("certificates are signed by another CA certificate", "issuer", c.Subject, "serial", c.SerialNumber, "until", next.signer.Validity().NotAfter, "root", pki.Fingerprint(next.signer.Root())[:16])
	}
	return nil
}

// errNoKey says that this instance does not have the key of the CA below the root that signs.
var errNoKey = errors.New("this instance has no key for it that is valid")

// findIssuer returns a function that returns the issuer below a root, nil if there is none.
func (r *Rotator) findIssuer(loaded map[string]*loadedRoot) func(id string) *policy.Issuer {
	r.mu.Lock()
	defer r.mu.Unlock()
	plugged := maps.Clone(r.issuers)
	return func(id string) *policy.Issuer {
		if i := plugged[id]; i != nil {
			return i
		}
		if l := loaded[id]; l != nil {
			return l.issuer
		}
		return nil
	}
}

// choose returns the issuer that signs, nil for none, and the ID of the root that issues the control plane's own certificates.
func choose(s rotation.State, issuer func(id string) *policy.Issuer, now time.Time) (signer *policy.Issuer, serves string) {
	for _, root := range s.Signers() {
		if i := issuer(root.ID); i != nil {
			signer = i
			break
		}
	}
	until := func(id string) time.Time {
		if i := issuer(id); i != nil {
			return i.Validity().NotAfter
		}
		return time.Time{}
	}
	return signer, s.Serving(now, until).ID
}

func sameKeys(a, b map[string]*loadedRoot) bool {
	for id := range a {
		if b[id] == nil {
			return false
		}
	}
	return len(a) == len(b)
}
