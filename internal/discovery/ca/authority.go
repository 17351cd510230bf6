package ca

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// maxRoots limits the trust bundle: each Envoy of the mesh has all of it.
const maxRoots = 64

// Authority is what the CA signs with and what the mesh trusts: the current issuer and the trust
// bundle. Both are replaced together while the CA serves. It is safe for concurrent use.
type Authority struct {
	mu      sync.Mutex // guards state, changed and issued
	state   State
	changed chan struct{}
	issued  func(root *x509.Certificate, until time.Time) // nil for nothing
	created bool
}

// Created reports whether OpenStore has made the root, since there was none.
func (a *Authority) Created() bool { return a.created }

// State is what an Authority has at one time. It is immutable.
type State struct {
	// Issuer signs certificates.
	Issuer *policy.Issuer
	// Roots is the trust bundle: each certificate once, sorted, with the issuer's root among them.
	Roots []*x509.Certificate
}

// RootsPEM returns the trust bundle in PEM. Equal bundles have equal texts.
func (s State) RootsPEM() []byte { return pki.EncodeCerts(s.Roots...) }

// newState returns the state with the issuer and the roots, to which the issuer's own is added.
func newState(issuer *policy.Issuer, roots []*x509.Certificate) (State, error) {
	roots = pki.Normalize(append(slices.Clone(roots), issuer.Root()))
	if len(roots) > maxRoots {
		return State{}, fmt.Errorf("trust bundle: %d certificates, want at most %d", len(roots), maxRoots)
	}
	return State{Issuer: issuer, Roots: roots}, nil
}

// NewAuthority returns an authority that signs with the issuer. The mesh trusts the issuer's root and
// the further roots.
func NewAuthority(issuer *policy.Issuer, roots ...*x509.Certificate) (*Authority, error) {
	state, err := newState(issuer, roots)
	if err != nil {
		return nil, err
	}
	return &Authority{state: state, changed: make(chan struct{})}, nil
}

// State returns the current issuer and trust bundle, which belong together.
func (a *Authority) State() State {
	state, _ := a.Watch()
	return state
}

// Watch returns the current state, and a channel that is closed when Replace has replaced it:
//
//	for {
//		state, changed := a.Watch()
//		… // use state
//		<-changed
//	}
func (a *Authority) Watch() (State, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state, a.changed
}

// onIssue has f called with the root and the end of each workload's certificate before it is handed out.
func (a *Authority) onIssue(f func(root *x509.Certificate, until time.Time)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.issued = f
}

// noteIssued calls the function of onIssue.
func (a *Authority) noteIssued(root *x509.Certificate, until time.Time) {
	a.mu.Lock()
	f := a.issued
	a.mu.Unlock()
	if f != nil {
		f(root, until)
	}
}

// Replace replaces issuer and trust bundle together and tells all watchers. The issuer's root is always
// trusted. From then on, certificates are signed by the issuer, and only client certificates that
// chain to the bundle are accepted in new connections. It changes nothing and returns an error if the
// bundle is too large (64 certificates). Nothing happens if the state is the same.
//
// Whoever replaces a root must keep the old one in the bundle until all certificates that it signed
// have expired, and must have the new one trusted by all workloads before it signs.
func (a *Authority) Replace(issuer *policy.Issuer, roots []*x509.Certificate) error {
	state, err := newState(issuer, roots)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state.Issuer == issuer && bytes.Equal(a.state.RootsPEM(), state.RootsPEM()) {
		return nil
	}
	a.state = state
	close(a.changed)
	a.changed = make(chan struct{})
	return nil
}
