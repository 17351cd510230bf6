package policy

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pilothouse/pilothouse/internal/pki"
)

// Issuer is a CA certificate with its private key and its chain to a root. It is immutable and safe
// for concurrent use.
type Issuer struct {
	key   crypto.Signer
	chain []*x509.Certificate // the issuer's own certificate first, the root last
	term  pki.Validity        // of the chain
}

// NewIssuer creates an issuer from its key and its chain: its own certificate, intermediates in
// order, and the root, which is its own certificate if that is self-signed. It returns an error if the
// key is not that of the first certificate or too weak, if a certificate is not a CA's or not signed by
// the next one, if a path length is exceeded, or if one of them is not valid at the time now.
func NewIssuer(key crypto.Signer, chain []*x509.Certificate, now time.Time) (*Issuer, error) {
	if len(chain) == 0 {
		return nil, errors.New("CA certificate: none given")
	}
	if !pki.KeyMatches(key, chain[0]) {
		return nil, fmt.Errorf("CA key: does not match the CA certificate %q", chain[0].Subject)
	}
	for i, c := range chain {
		if err := checkCA(c, i, now); err != nil {
			return nil, err
		}
		if i+1 == len(chain) {
			break
		}
		if err := c.CheckSignatureFrom(chain[i+1]); err != nil {
			return nil, fmt.Errorf("CA certificate %q: not signed by the next certificate of its chain, %q: %w", c.Subject, chain[i+1].Subject, err)
		}
	}
	return &Issuer{key: key, chain: slices.Clone(chain), term: pki.ValidityOf(chain)}, nil
}

// checkCA returns an error unless the certificate can sign others at the time now, with the given
// number of intermediates below it.
func checkCA(c *x509.Certificate, below int, now time.Time) error {
	if err := pki.CheckCAKey(c.PublicKey); err != nil {
		return fmt.Errorf("CA certificate %q: %w", c.Subject, err)
	}
	switch {
	case !c.BasicConstraintsValid || !c.IsCA:
		return fmt.Errorf("certificate %q: not a CA certificate: want basic constraints with CA true", c.Subject)
	case c.KeyUsage != 0 && c.KeyUsage&x509.KeyUsageCertSign == 0:
		return fmt.Errorf("CA certificate %q: its key usage does not allow signing certificates", c.Subject)
	case (c.MaxPathLen > 0 || c.MaxPathLenZero) && below > c.MaxPathLen:
		return fmt.Errorf("CA certificate %q: %d intermediates below it, its path length allows %d", c.Subject, below, c.MaxPathLen)
	case now.Before(c.NotBefore):
		return fmt.Errorf("CA certificate %q: not valid before %s", c.Subject, c.NotBefore.UTC().Format(time.RFC3339))
	case !now.Before(c.NotAfter):
		return fmt.Errorf("CA certificate %q: expired at %s", c.Subject, c.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

// NewRoot creates a key of the kind and a self-signed root certificate for it. The organization is
// the trust domain.
func NewRoot(organization string, kind pki.KeyKind, term pki.Validity) (*Issuer, error) {
	key, err := pki.GenerateKey(kind)
	if err != nil {
		return nil, fmt.Errorf("create root key: %w", err)
	}
	cert, err := pki.Sign(pki.RootTemplate(organization, term), nil, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("create root certificate: %w", err)
	}
	return &Issuer{key: key, chain: []*x509.Certificate{cert}, term: term}, nil
}

// ParseIssuer is NewIssuer for PEM texts. Errors never quote the key.
func ParseIssuer(key, chain []byte, now time.Time) (*Issuer, error) {
	signer, err := pki.ParseKey(key)
	if err != nil {
		return nil, err
	}
	certs, err := pki.ParseBundle(chain)
	if err != nil {
		return nil, err
	}
	return NewIssuer(signer, certs, now)
}

// Sign signs what the policy has approved.
func (i *Issuer) Sign(a Approval) (*x509.Certificate, error) {
	if a.template == nil {
		return nil, errors.New("sign certificate: not approved")
	}
	return pki.Sign(a.template, i.chain[0], a.public, i.key)
}

// Equal reports whether both issuers have the same chain, and so the same key.
func (i *Issuer) Equal(o *Issuer) bool {
	return slices.EqualFunc(i.chain, o.chain, (*x509.Certificate).Equal)
}

// Certificate is the issuer's own certificate, which signs others.
func (i *Issuer) Certificate() *x509.Certificate { return i.chain[0] }

// Root is the last certificate of the issuer's chain.
func (i *Issuer) Root() *x509.Certificate { return i.chain[len(i.chain)-1] }

// Intermediates are the certificates that a peer needs between a signed certificate and the root, in
// that order: none if the root signs.
func (i *Issuer) Intermediates() []*x509.Certificate { return slices.Clone(i.chain[:len(i.chain)-1]) }

// Validity is when all certificates of the issuer's chain are valid.
func (i *Issuer) Validity() pki.Validity { return i.term }

// KeyPEM returns the private key in PEM, to be stored. It must never be logged.
func (i *Issuer) KeyPEM() ([]byte, error) { return pki.EncodeKey(i.key, true) }

// String returns the name of the issuer's certificate, so that logging an Issuer does not show the key.
func (i *Issuer) String() string { return "issuer " + i.chain[0].Subject.String() }

// GoString returns String().
func (i *Issuer) GoString() string { return i.String() }
