package pki

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"time"
)

// Secret is a workload's whole identity at one moment: what Envoy serves and what it
// trusts. It is immutable; a renewal makes another.
type Secret struct {
	// Key is the private key, PEM. It is never logged.
	Key []byte
	// Chain is the leaf and its intermediates, PEM, leaf first.
	Chain []byte
	// Roots is the bundle of trusted roots, PEM.
	Roots []byte
	// Version is a hash of the three above: equal exactly where they are.
	Version string
	// NotBefore and NotAfter bound the time in which leaf, intermediates and the root
	// they lead to are all valid.
	NotBefore, NotAfter time.Time
}

// String names the version only, so that a secret that reaches a log tells nothing.
func (s Secret) String() string { return "secret " + s.Version }

// GoString is String.
func (s Secret) GoString() string { return s.String() }

// NewSecret checks that key, chain and roots belong together at the time now and makes
// them one. The chain may hold its root; a self-signed certificate is left out of what
// is sent to peers, who must have it already.
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
		return nil, errors.New("certificate is not for this private key")
	}
	if err := VerifyChain(certs, trusted, x509.ExtKeyUsageClientAuth, now); err != nil {
		return nil, err
	}
	own := certs[:1]
	for _, c := range certs[1:] {
		if !SelfSigned(c) {
			own = append(own, c)
		}
	}
	term := TermOf(own)
	if len(trusted) == 1 { // with several roots, which one matters is the peers' choice
		term = TermOf(append(own[:len(own):len(own)], trusted[0]))
	}
	s := &Secret{Key: key, Chain: EncodeCerts(own...), Roots: EncodeCerts(trusted...), NotBefore: term.NotBefore, NotAfter: term.NotAfter}
	s.Version = VersionOf(s.Key, s.Chain, s.Roots)
	return s, nil
}

// VersionOf hashes parts into a short text that differs where any part does.
func VersionOf(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		sum := sha256.Sum256(p)
		h.Write(sum[:])
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}
