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

// Limits on a bundle of certificates.
const (
	maxBundle      = 4 << 20 // bytes
	maxBundleCerts = 2048
)

// Validity is a period of validity.
type Validity struct {
	NotBefore, NotAfter time.Time
}

// ValidityOf returns the period in which all of the certificates are valid: a chain expires with its
// first certificate. It returns the zero Validity for no certificates.
func ValidityOf(certs []*x509.Certificate) Validity {
	var t Validity
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

// RootTemplate returns the template of a self-signed root that can sign leaves and
// intermediates. The organization is the trust domain.
func RootTemplate(organization string, term Validity) *x509.Certificate {
	return &x509.Certificate{
		Subject:               pkix.Name{Organization: []string{organization}, CommonName: "Root CA of " + organization},
		NotBefore:             term.NotBefore,
		NotAfter:              term.NotAfter,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
}

// WorkloadTemplate returns the template of a workload's certificate: the SPIFFE ID as its only
// SAN, an empty subject (which makes the SAN critical), usable by client and server. It returns
// an error if the identity is invalid.
func WorkloadTemplate(id mesh.Identity, term Validity) (*x509.Certificate, error) {
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

// ServerTemplate returns the template of a server's certificate. Names that are IP addresses
// become IP SANs, others DNS SANs. It cannot be used as a client certificate.
func ServerTemplate(names []string, term Validity) *x509.Certificate {
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

// Sign issues a certificate for pub, signed by parent with its key signer. A nil parent means
// self-signed.
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

// EncodeCerts encodes certificates as PEM, in order.
func EncodeCerts(certs ...*x509.Certificate) []byte {
	var b bytes.Buffer
	for _, c := range certs {
		// Encode fails only for invalid headers and a writer's errors.
		_ = pem.Encode(&b, &pem.Block{Type: typeCertificate, Bytes: c.Raw})
	}
	return b.Bytes()
}

// ParseBundle parses all certificates of a PEM text of at most 4 MiB, in order: 1 to 2048 of
// them. It ignores other blocks and text between blocks.
func ParseBundle(text []byte) ([]*x509.Certificate, error) {
	if len(text) > maxBundle {
		return nil, fmt.Errorf("certificates: %d bytes, want at most %d", len(text), maxBundle)
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
		return nil, errors.New("certificates: found no PEM block of a certificate")
	}
	return certs, nil
}

// Normalize returns the certificates without duplicates, in an order that depends on nothing but the
// certificates. It is for sets, such as trust bundles, not for chains.
func Normalize(certs []*x509.Certificate) []*x509.Certificate {
	compare := func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) }
	certs = slices.SortedFunc(slices.Values(certs), compare)
	return slices.CompactFunc(certs, func(a, b *x509.Certificate) bool { return a.Equal(b) })
}

// SelfSigned reports whether the certificate is signed with its own key.
func SelfSigned(c *x509.Certificate) bool {
	return bytes.Equal(c.RawIssuer, c.RawSubject) && c.CheckSignatureFrom(c) == nil
}

// VerifyChain verifies the chain, leaf first, against the roots for the usage at the time now.
func VerifyChain(chain, roots []*x509.Certificate, usage x509.ExtKeyUsage, now time.Time) error {
	_, err := verify(chain, roots, usage, now)
	return err
}

// verify returns the chains from the first certificate to a root: at least one.
func verify(chain, roots []*x509.Certificate, usage x509.ExtKeyUsage, now time.Time) ([][]*x509.Certificate, error) {
	if len(chain) == 0 {
		return nil, errors.New("certificate chain is empty")
	}
	opts := x509.VerifyOptions{
		Roots:         Pool(roots),
		Intermediates: Pool(chain[1:]),
		CurrentTime:   now,
		KeyUsages:     []x509.ExtKeyUsage{usage},
	}
	verified, err := chain[0].Verify(opts)
	if err != nil {
		return nil, fmt.Errorf("certificate chain: %w", err)
	}
	return verified, nil
}

// Pool returns a pool of the certificates.
func Pool(certs []*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range certs {
		p.AddCert(c)
	}
	return p
}

// Fingerprint returns the SHA-256 of the certificate in hexadecimal.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}
