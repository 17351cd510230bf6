package ca

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/rotation"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// Store keeps the self-signed roots of the mesh and the state of their rotation, for all instances of the
// control plane that use it. NewFolder returns one that is a folder. It must be safe for concurrent use.
type Store interface {
	// First returns the self-signed root that signs, or that signs if no CA is plugged in. If there is
	// none, it stores the one that create makes; if create is nil, it returns an empty StoredRoot.
	// Instances that start concurrently get the same.
	First(ctx context.Context, create func() (StoredRoot, error)) (StoredRoot, error)
	// Root returns a root which the stored state trusts, without a key if it is plugged in.
	Root(ctx context.Context, root rotation.Root) (StoredRoot, error)
	// Change replaces the state by what f makes of it. No other instance changes it between the two; for
	// that, f may be called more than once, so that it must have no other effect. A nil result keeps the
	// state; found is false if there is none, and an error of f that wraps ErrNotStored says that there must
	// be one. Roots that the state does not trust are removed, with their keys.
	Change(ctx context.Context, f func(old rotation.State, found bool) (*StoreChange, error)) error
	// Report replaces the report of this instance, and gives it the instance's name. Leave removes it;
	// Report has no effect after it.
	Report(ctx context.Context, r rotation.Report) error
	Leave(ctx context.Context) error
	// Reports returns the reports of all instances, also of some that have ended. A report that cannot be
	// read is an error: the state of that instance is not known.
	Reports(ctx context.Context, now time.Time) ([]rotation.Report, error)
	// String names the place, for messages.
	String() string
}

// StoreChange is a new state of the rotation, and roots that it trusts and that the Store may not have.
type StoreChange struct {
	State rotation.State
	Added []StoredRoot
}

// StoredRoot is a root in PEM: a self-signed one with its key, or that of a CA that is plugged in, without one.
type StoredRoot struct {
	Cert, Key []byte
	// CertAt and KeyAt say where they are, and Remedy how to have another root made, for messages. They
	// are empty for a root that has not been stored.
	CertAt, KeyAt, Remedy string
}

// newStoredRoot makes a root with a key of the kind ("" means ECDSA P-256), valid for ttl (0 means DefaultRootTTL).
func newStoredRoot(organization string, kind pki.KeyKind, ttl time.Duration, now time.Time) (*policy.Issuer, StoredRoot, error) {
	if kind == "" {
		kind = pki.ECDSAP256
	}
	if ttl <= 0 {
		ttl = DefaultRootTTL
	}
	root, err := policy.NewRoot(organization, kind, pki.Validity{NotBefore: now.Add(-Backdate), NotAfter: now.Add(ttl)})
	if err != nil {
		return nil, StoredRoot{}, err
	}
	key, err := root.KeyPEM()
	if err != nil {
		return nil, StoredRoot{}, fmt.Errorf("create root key: %w", err)
	}
	return root, StoredRoot{Cert: pki.EncodeCerts(root.Root()), Key: key}, nil
}

// issuer returns the issuer of a stored root. It returns an error if key and certificate do not match, and
// if the root is not a self-signed CA or has expired.
func (s StoredRoot) issuer(now time.Time) (*policy.Issuer, error) {
	certs, err := pki.ParseBundle(s.Cert)
	if err != nil {
		return nil, fmt.Errorf("read root certificate %s: %w", s.CertAt, err)
	}
	key, err := pki.ParseKey(s.Key)
	if err != nil {
		return nil, fmt.Errorf("read root key %s: %w", s.KeyAt, err)
	}
	cert := certs[0]
	switch {
	case len(certs) != 1:
		return nil, fmt.Errorf("read root certificate %s: %d certificates, want one", s.CertAt, len(certs))
	case !cert.IsCA || !pki.SelfSigned(cert):
		return nil, fmt.Errorf("read root certificate %s: not a self-signed CA certificate", s.CertAt)
	case !pki.KeyMatches(key, cert):
		return nil, fmt.Errorf("read root key %s: does not match %s; restore both files, or %s to create a new root", s.KeyAt, s.CertAt, s.Remedy)
	case !now.Before(cert.NotAfter):
		return nil, fmt.Errorf("read root certificate %s: expired at %s; %s to create a new root", s.CertAt, cert.NotAfter.UTC().Format(time.RFC3339), s.Remedy)
	}
	issuer, err := policy.NewIssuer(key, certs, now)
	if err != nil {
		return nil, fmt.Errorf("read root certificate %s: %w", s.CertAt, err)
	}
	return issuer, nil
}

// load returns the root of a state, with its issuer unless the root has expired or is plugged in.
func (s StoredRoot) load(root rotation.Root, now time.Time) (*loadedRoot, error) {
	certs, err := pki.ParseBundle(s.Cert)
	if err != nil {
		return nil, fmt.Errorf("read root certificate %s: %w", s.CertAt, err)
	}
	if got := pki.Fingerprint(certs[0]); got != root.ID {
		return nil, fmt.Errorf("read root certificate %s: it is root %.16s, and the state of the rotation (%s) names %.16s: restore the one that belongs to the other", s.CertAt, got, RotationKey, root.ID)
	}
	if root.Plugged || !now.Before(certs[0].NotAfter) {
		return &loadedRoot{cert: certs[0]}, nil
	}
	issuer, err := s.issuer(now)
	if err != nil {
		return nil, err
	}
	return &loadedRoot{cert: certs[0], issuer: issuer}, nil
}

// OpenStore returns the authority with the root that signs, which is made if there is none, with a key of
// the kind ("" means ECDSA P-256), valid for ttl (0 means DefaultRootTTL), with the trust domain as
// organization. It returns an error if key and certificate do not match, and if the root is not a
// self-signed CA or has expired.
func OpenStore(ctx context.Context, store Store, organization string, ttl time.Duration, kind pki.KeyKind) (*Authority, error) {
	now := time.Now()
	var made StoredRoot
	root, err := store.First(ctx, func() (_ StoredRoot, err error) {
		_, made, err = newStoredRoot(organization, kind, ttl, now)
		return made, err
	})
	if err != nil {
		return nil, err
	}
	issuer, err := root.issuer(now)
	if err != nil {
		return nil, err
	}
	a, err := NewAuthority(issuer)
	if err == nil {
		a.created = bytes.Equal(root.Cert, made.Cert)
	}
	return a, err
}

// RotationKey is the name of the state of the rotation in a Store.
const RotationKey = rotationFile

// ErrNotStored is returned if there is no state any more.
var ErrNotStored = errors.New("has been removed: restart to continue with the root that signs")
