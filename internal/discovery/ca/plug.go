package ca

import (
	"context"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/rotation"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// leftOver is the self-signed root in the store, which may have signed before a CA was plugged in; nil if there is none that can be used.
type leftOver struct {
	root *rotation.Root
	err  error // why it cannot be used
}

// leftOver looks for the self-signed root.
func (r *Rotator) leftOver(ctx context.Context, now time.Time) leftOver {
	stored, err := r.store.First(ctx, nil)
	if err != nil || len(stored.Cert) == 0 {
		return leftOver{err: err}
	}
	issuer, err := stored.issuer(now)
	if err != nil {
		return leftOver{err: err}
	}
	root := rootOf(issuer.Root())
	return leftOver{root: &root}
}

func pluggedRoot(c *x509.Certificate) rotation.Root {
	root := rootOf(c)
	root.Plugged = true
	return root
}

// setFiles notes the CA that is plugged in, for the next cycle.
func (r *Rotator) setFiles(p policy.Plugged) error {
	if limit := maxRoots - rotation.MaxTrusted; len(p.Roots) > limit {
		return fmt.Errorf("the CA in files: %d roots, want at most %d", len(p.Roots), limit)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files, r.pending = &p, true
	id := pki.Fingerprint(p.Issuer.Root())
	if old := r.issuers[id]; old == nil || !old.Equal(p.Issuer) {
		r.issuers[id] = p.Issuer
	}
	return nil
}

// Plug makes the CA of changed files the one to sign: at once if the mesh trusts its root, else when all have got it. An error says why the
// files cannot be used. Problems of the store are in Status, and tried again.
func (r *Rotator) Plug(ctx context.Context, p policy.Plugged) error {
	if err := r.setFiles(p); err != nil {
		return err
	}
	_, err := r.cycle(ctx)
	r.tellCycle(ctx, err)
	r.wakeUp()
	return nil
}

// pendingFiles returns the CA that is plugged in and that the state does not have yet, nil if there is none.
func (r *Rotator) pendingFiles() *policy.Plugged {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.pending {
		return nil
	}
	return r.files
}

// hasPlugged notes that the state has a CA. Another one may have been plugged in meanwhile.
func (r *Rotator) hasPlugged(p *policy.Plugged) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.files == p {
		r.pending = false
	}
}

// plug returns the state with the CA in files, and its roots, which are to be stored.
func (r *Rotator) plug(s rotation.State, files *policy.Plugged, now time.Time) (rotation.State, []string, []StoredRoot, error) {
	root := files.Issuer.Root()
	roots := []rotation.Root{pluggedRoot(root)}
	for _, c := range files.Roots {
		roots = append(roots, pluggedRoot(c))
	}
	next, changes, err := s.Plug(roots[0], roots[1:], now)
	if err != nil {
		return s, nil, nil, err
	}
	var added []StoredRoot
	for _, c := range append([]*x509.Certificate{root}, files.Roots...) {
		added = append(added, StoredRoot{Cert: pki.EncodeCerts(c)})
	}
	return next, changes, added, nil
}

// pluggedCert returns the certificate of a root that the CA in files has, nil if it has not.
func (r *Rotator) pluggedCert(root rotation.Root) *x509.Certificate {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !root.Plugged || r.files == nil {
		return nil
	}
	for _, c := range append([]*x509.Certificate{r.files.Issuer.Root()}, r.files.Roots...) {
		if pki.Fingerprint(c) == root.ID {
			return c
		}
	}
	return nil
}
