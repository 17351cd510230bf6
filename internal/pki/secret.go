package pki

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"time"
)

// Secret is a workload's key, certificate chain and trusted roots. It is immutable: a renewal
// creates a new Secret.
type Secret struct {
	// Key is the private key in PEM. It must never be logged.
	Key []byte
	// Chain is the leaf, followed by its intermediates, in PEM.
	Chain []byte
	// Roots are the trusted roots in PEM.
	Roots []byte
	// Version is a hash of Key, Chain and Roots.
	Version string
	// NotBefore and NotAfter are the period in which leaf, intermediates and root are all valid. Of several
	// roots that the chain leads to, the one that ends last counts.
	NotBefore, NotAfter time.Time
	// IssuerNotAfter is when the first of the intermediates and the root ends. If it is not after
	// NotAfter, the certificate cannot be renewed beyond it by the same issuers.
	IssuerNotAfter time.Time
	// RootsNotAfter is when the first of the trusted roots ends.
	RootsNotAfter time.Time
}

// EndsWithIssuer reports whether the secret ends because one of its issuers ends.
func (s Secret) EndsWithIssuer() bool {
	return !s.IssuerNotAfter.IsZero() && !s.IssuerNotAfter.After(s.NotAfter)
}

// String returns only the version, so that logging a Secret does not leak the key.
func (s Secret) String() string { return "secret " + s.Version }

// GoString returns String().
func (s Secret) GoString() string { return s.String() }

// NewSecret builds a Secret from PEM texts. It returns an error unless the leaf is for the key,
// and the chain is valid at the time now and leads to one of the roots. Self-signed certificates
// are dropped from the chain: a peer must have the root already.
func NewSecret(key, chain, roots []byte, now time.Time) (*Secret, error) {
	signer, err := ParseKey(key)
	if err != nil {
		return nil, err
	}
	certs, err := ParseBundle(chain)
	if err != nil {
		return nil, err
	}
	trusted, err := ParseBundle(roots)
	if err != nil {
		return nil, err
	}
	if !KeyMatches(signer, certs[0]) {
		return nil, errors.New("certificate does not match the private key")
	}
	verified, err := verify(certs, trusted, x509.ExtKeyUsageClientAuth, now)
	if err != nil {
		return nil, err
	}
	own := certs[:1]
	for _, c := range certs[1:] {
		if !SelfSigned(c) {
			own = append(own, c)
		}
	}
	issuers := append(own[1:len(own):len(own)], lastRoot(verified))
	term := ValidityOf(append(issuers[:len(issuers):len(issuers)], own[0]))
	s := &Secret{
		Key: key, Chain: EncodeCerts(own...), Roots: EncodeCerts(trusted...), NotBefore: term.NotBefore, NotAfter: term.NotAfter,
		IssuerNotAfter: ValidityOf(issuers).NotAfter, RootsNotAfter: ValidityOf(trusted).NotAfter,
	}
	s.Version = VersionOf(s.Key, s.Chain, s.Roots)
	return s, nil
}

// lastRoot returns the root that ends last of those that verified chains lead to.
func lastRoot(chains [][]*x509.Certificate) *x509.Certificate {
	var last *x509.Certificate
	for _, chain := range chains {
		if root := chain[len(chain)-1]; last == nil || root.NotAfter.After(last.NotAfter) {
			last = root
		}
	}
	return last
}

// VersionOf returns a hash of the parts, 24 hexadecimal digits.
func VersionOf(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		sum := sha256.Sum256(p)
		h.Write(sum[:])
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}
