// Package trust keeps the root certificates that a workload trusts: those of the CA's answer and those of the mesh's trust bundle, merged.
//
// The result is one set for Envoy, without duplicates and in one order, so that it changes only if its
// content does. The control plane's own servers are verified with the roots in a file, and with the
// roots of the mesh's CA if the file has one of these, or had one before a rotation: a rotated root is
// used for new connections at once, and a file of another CA stays alone. All methods are safe for concurrent use.
package trust

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/pki"
)

// maxRoots is the maximum number of roots in a trust bundle, and of those that are remembered.
const maxRoots = 256

// Source has the workload's secret with the roots of the CA's answer; secret.Value is one.
type Source interface {
	Current() (*pki.Secret, <-chan struct{})
}

// Options configure a Store.
type Options struct {
	// Source has the workload's secret.
	Source Source
	// AnswerVerified says that the roots of Source came from the mesh's CA over a verified connection, BundleVerified that
	// trust bundles do. Only then they verify the control plane.
	AnswerVerified, BundleVerified bool
	// Replaced reports, from before its first secret on, that another source than the mesh's CA has taken over Source. Its
	// roots never verify the control plane. Nil means that none ever does.
	Replaced func() bool
}

// Store keeps the trusted roots.
type Store struct {
	options Options

	mu     sync.Mutex
	bundle []*x509.Certificate
	// own are the roots of the mesh's CA that the bundle names.
	own []*x509.Certificate
	// lineage are the roots that the mesh's CA has had, each next to one that was known before.
	lineage []*x509.Certificate
	answer  *pki.Secret
	// verified are the roots of the last answer of the mesh's CA, if it is verified. replaced says that there are no more.
	verified []*x509.Certificate
	replaced bool
	merged   *pki.Secret
	changed  chan struct{} // closed when merged changes
}

// New makes a store. Current is what Source has until the first bundle.
func New(o Options) *Store {
	s := &Store{options: o, changed: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read()
	return s
}

// Run follows Source until ctx ends, then returns nil. Call it once.
func (s *Store) Run(ctx context.Context) error {
	for {
		s.mu.Lock()
		next := s.read()
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		}
	}
}

// Current returns the workload's secret with all trusted roots, nil before the first, and a channel that
// is closed when there is a newer one.
func (s *Store) Current() (*pki.Secret, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.merged, s.changed
}

// Root is a trusted root, for people.
type Root struct {
	// SHA256 is the digest of the certificate in hexadecimal.
	SHA256   string    `json:"sha256"`
	Subject  string    `json:"subject"`
	NotAfter time.Time `json:"not_after"`
	// Bundle says that the mesh's trust bundle has it, Certificate that it came with the certificate.
	Bundle      bool `json:"bundle"`
	Certificate bool `json:"certificate"`
}

// Roots lists the roots of Current.
func (s *Store) Roots() []Root {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := parse(s.answer)
	var out []Root
	for _, c := range parse(s.merged) {
		out = append(out, Root{SHA256: pki.Fingerprint(c), Subject: c.Subject.String(), NotAfter: c.NotAfter, Bundle: contains(s.bundle, c), Certificate: contains(answer, c)})
	}
	return out
}

// SetBundle replaces the trust bundle of the mesh: certificates in PEM, of which those with a SHA-256 in
// own (hexadecimal) are of the mesh's CA. Current has them when SetBundle returns. An error changes
// nothing: a certificate cannot be parsed, or there are too many.
func (s *Store) SetBundle(certificates, own []string) error {
	var all []*x509.Certificate
	for i, text := range certificates {
		certs, err := pki.ParseBundle([]byte(text))
		if err != nil {
			return fmt.Errorf("trust bundle: certificate %d: %w", i+1, err)
		}
		if all = append(all, certs...); len(all) > maxRoots {
			return fmt.Errorf("trust bundle: more than %d certificates", maxRoots)
		}
	}
	if slices.ContainsFunc(all, func(c *x509.Certificate) bool { return !c.IsCA }) {
		return errors.New("trust bundle: a certificate is not a CA certificate")
	}
	all = pki.Normalize(all)
	mine := slices.DeleteFunc(slices.Clone(all), func(c *x509.Certificate) bool { return !slices.Contains(own, pki.Fingerprint(c)) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bundle, s.own = all, mine
	s.read()
	return nil
}

// read takes the source's value, and merges. Callers hold mu.
func (s *Store) read() (next <-chan struct{}) {
	s.answer, next = s.options.Source.Current()
	s.replaced = s.options.Replaced != nil && s.options.Replaced() // asked after the secret was read
	if s.options.AnswerVerified && !s.replaced {
		s.verified = parse(s.answer)
	}
	s.remember()
	merged := s.merge()
	if merged != nil && (s.merged == nil || s.merged.Version != merged.Version) {
		s.merged = merged
		close(s.changed)
		s.changed = make(chan struct{})
	}
	return next
}

// merge returns the secret of the source with all roots.
func (s *Store) merge() *pki.Secret {
	if s.answer == nil {
		return nil
	}
	roots := pki.EncodeCerts(pki.Normalize(slices.Concat(s.bundle, parse(s.answer)))...)
	if bytes.Equal(roots, s.answer.Roots) {
		return s.answer
	}
	merged := *s.answer
	merged.Roots = roots
	merged.Version = pki.VersionOf(merged.Key, merged.Chain, merged.Roots)
	return &merged
}

// parse returns the roots of a secret, which pki.NewSecret has parsed before.
func parse(secret *pki.Secret) []*x509.Certificate {
	if secret == nil {
		return nil
	}
	certs, err := pki.ParseBundle(secret.Roots)
	if err != nil {
		return nil
	}
	return certs
}

// ca returns the current roots of the mesh's CA that were received over a verified connection. When there are no more answers,
// those of the last one count until a bundle has newer ones.
func (s *Store) ca() []*x509.Certificate {
	var out []*x509.Certificate
	if s.options.BundleVerified {
		out = append(out, s.own...)
	}
	if !s.replaced || len(out) == 0 {
		out = append(out, s.verified...)
	}
	return pki.Normalize(out)
}

// remember adds the CA's roots to its lineage. If none of them is in it, a new lineage begins.
func (s *Store) remember() {
	now := s.ca()
	if len(now) == 0 {
		return
	}
	if !intersect(s.lineage, now) || len(s.lineage) > maxRoots {
		s.lineage = nil
	}
	s.lineage = pki.Normalize(append(s.lineage, now...))
}

// ControlPlane returns the roots that verify the control plane's servers, for the roots in the file that
// the settings name: these, and those of the mesh's CA if the file is of this CA. Roots in the file that the CA
// has retired are left out.
func (s *Store) ControlPlane(file []*x509.Certificate) []*x509.Certificate {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !intersect(file, s.lineage) {
		return file
	}
	now := s.ca()
	kept := slices.DeleteFunc(slices.Clone(file), func(c *x509.Certificate) bool { return contains(s.lineage, c) && !contains(now, c) })
	return pki.Normalize(append(kept, now...))
}

func contains(set []*x509.Certificate, c *x509.Certificate) bool {
	return slices.ContainsFunc(set, c.Equal)
}

func intersect(a, b []*x509.Certificate) bool {
	return slices.ContainsFunc(a, func(c *x509.Certificate) bool { return contains(b, c) })
}
