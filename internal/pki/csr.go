package pki

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// MaxCSR limits a certificate request, in bytes of PEM.
const MaxCSR = 16 << 10

// MakeCSR creates a certificate request for id in PEM, signed with key. Our CA issues for the
// authenticated caller and ignores the identity in the request; other CAs may need it. [agent S1]
func MakeCSR(key crypto.Signer, id mesh.Identity) ([]byte, error) {
	uri, err := spiffeURL(id)
	if err != nil {
		return nil, fmt.Errorf("create certificate request: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{URIs: []*url.URL{uri}}, key)
	if err != nil {
		return nil, fmt.Errorf("create certificate request for %s: %w", id, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: typeRequest, Bytes: der}), nil
}

// ParseCSR parses one certificate request in PEM of at most MaxCSR bytes. It checks the
// signature, which must not be with SHA-1, and that the key is ECDSA P-256 or P-384, or RSA of 2048 to 8192 bits. The names in
// the request are not authenticated.
func ParseCSR(text []byte) (*x509.CertificateRequest, error) {
	if len(text) > MaxCSR {
		return nil, fmt.Errorf("certificate request: %d bytes, want at most %d", len(text), MaxCSR)
	}
	block, rest := pem.Decode(text)
	if block == nil {
		return nil, errors.New("certificate request: found no PEM block")
	}
	if block.Type != typeRequest && block.Type != typeOldRequest {
		return nil, fmt.Errorf("certificate request: PEM block %.100q, want %q", block.Type, typeRequest)
	}
	if len(bytes.TrimSpace(rest)) != 0 {
		return nil, errors.New("certificate request: unexpected data after the PEM block")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	// The key is checked first: verifying a signature of a huge key is expensive.
	if err := checkPublicKey(csr.PublicKey); err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	// CheckSignature accepts SHA-1 in requests.
	if a := csr.SignatureAlgorithm; a == x509.SHA1WithRSA || a == x509.ECDSAWithSHA1 {
		return nil, fmt.Errorf("certificate request: signature: invalid algorithm %s: want SHA-256 or better", a)
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("certificate request: signature: %w", err)
	}
	return csr, nil
}
