package pki

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Bounds on a bundle of certificates.
const (
	maxBundle      = 4 << 20 // bytes
	maxBundleCerts = 2048
)

// Term is the time during which something is valid.
type Term struct {
	NotBefore, NotAfter time.Time
}

// TermOf is the time during which every one of the certificates is valid: an intermediate
// or a root that ends before the leaf ends the whole. Zero for no certificates.
func TermOf(certs []*x509.Certificate) Term {
	var t Term
	for i, c := range certs {
		if i == 0 || c.NotBefore.After(t.NotBefore) {
			t.NotBefore = c.NotBefore
		}
		if i == 0 || c.NotAfter.Before(t.NotAfter) {
			t.NotAfter = c.NotAfter
		}
	}
	return t
}

// RootTemplate is what a self-signed root is made from: good for signing leaves and
// intermediates, named after its organisation (the trust domain).
func RootTemplate(organisation string, term Term) *x509.Certificate {
	return &x509.Certificate{
		Subject:               pkix.Name{Organization: []string{organisation}, CommonName: "Root CA of " + organisation},
		NotBefore:             term.NotBefore,
		NotAfter:              term.NotAfter,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
}

// WorkloadTemplate is what a workload's leaf is made from: one URI SAN, its SPIFFE name,
// an empty subject (which makes the SAN critical), and use at both ends of mutual TLS.
func WorkloadTemplate(id mesh.Identity, term Term) (*x509.Certificate, error) {
	uri, err := spiffeURL(id)
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{
		URIs:                  []*url.URL{uri},
		NotBefore:             term.NotBefore,
		NotAfter:              term.NotAfter,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}, nil
}

// ServerTemplate is what a server's leaf is made from. Names that read as IP addresses
// become IP SANs. It carries no client usage, so that it authenticates nobody.
func ServerTemplate(names []string, term Term) *x509.Certificate {
	t := &x509.Certificate{
		NotBefore:             term.NotBefore,
		NotAfter:              term.NotAfter,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	for _, n := range names {
		if ip, err := netip.ParseAddr(n); err == nil {
			t.IPAddresses = append(t.IPAddresses, ip.AsSlice())
		} else {
			t.DNSNames = append(t.DNSNames, n)
		}
	}
	return t
}

// Sign makes a certificate for pub from a template. A nil parent means self-signed.
func Sign(template, parent *x509.Certificate, pub crypto.PublicKey, signer crypto.Signer) (*x509.Certificate, error) {
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, signer)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	return x509.ParseCertificate(der)
}

// EncodeCerts writes certificates as PEM, in order.
func EncodeCerts(certs ...*x509.Certificate) []byte {
	var b bytes.Buffer
	for _, c := range certs {
		// Writing to a buffer fails for bad headers only, and there are none.
		_ = pem.Encode(&b, &pem.Block{Type: typeCertificate, Bytes: c.Raw})
	}
	return b.Bytes()
}

// ParseBundle reads every certificate of a PEM text, in order; other blocks and text
// between blocks are passed over. At least one certificate must be there.
func ParseBundle(text []byte) ([]*x509.Certificate, error) {
	if len(text) > maxBundle {
		return nil, fmt.Errorf("certificates: %d bytes, at most %d are taken", len(text), maxBundle)
	}
	var certs []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != typeCertificate {
			continue
		}
		if len(certs) == maxBundleCerts {
			return nil, fmt.Errorf("certificates: more than %d", maxBundleCerts)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(certs)+1, err)
		}
		certs = append(certs, c)
	}
	if len(certs) == 0 {
		return nil, errors.New("certificates: no PEM block of a certificate")
	}
	return certs, nil
}

// NormaliseBundles joins PEM bundles into one text that depends only on the set of
// certificates: parsed, each once, sorted by content. [agent S13]
func NormaliseBundles(texts ...[]byte) ([]byte, error) {
	var all []*x509.Certificate
	for _, t := range texts {
		certs, err := ParseBundle(t)
		if err != nil {
			return nil, err
		}
		all = append(all, certs...)
	}
	slices.SortFunc(all, func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) })
	all = slices.CompactFunc(all, func(a, b *x509.Certificate) bool { return bytes.Equal(a.Raw, b.Raw) })
	return EncodeCerts(all...), nil
}

// SelfSigned says whether the certificate is signed with its own key.
func SelfSigned(c *x509.Certificate) bool {
	return bytes.Equal(c.RawIssuer, c.RawSubject) && c.CheckSignatureFrom(c) == nil
}

// VerifyChain checks that the chain (leaf first) leads to one of the roots at the time
// now, for the usage.
func VerifyChain(chain, roots []*x509.Certificate, usage x509.ExtKeyUsage, now time.Time) error {
	if len(chain) == 0 {
		return errors.New("certificate chain: empty")
	}
	opts := x509.VerifyOptions{
		Roots:         Pool(roots),
		Intermediates: Pool(chain[1:]),
		CurrentTime:   now,
		KeyUsages:     []x509.ExtKeyUsage{usage},
	}
	if _, err := chain[0].Verify(opts); err != nil {
		return fmt.Errorf("certificate chain: %w", err)
	}
	return nil
}

// Pool gathers certificates for the verifiers of the standard library.
func Pool(certs []*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range certs {
		p.AddCert(c)
	}
	return p
}

// Fingerprint is the SHA-256 of the certificate, in hexadecimal.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}
