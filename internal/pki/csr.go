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

// MaxCSR bounds a certificate request, in bytes of PEM.
const MaxCSR = 16 << 10

// MakeCSR asks for a certificate for id, signed with key. The CA decides the identity
// from who asks, not from the request; the name is there for people and other CAs. [agent S1]
func MakeCSR(key crypto.Signer, id mesh.Identity) ([]byte, error) {
	uri, err := spiffeURL(id)
	if err != nil {
		return nil, fmt.Errorf("make certificate request: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{URIs: []*url.URL{uri}}, key)
	if err != nil {
		return nil, fmt.Errorf("make certificate request for %s: %w", id, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: typeRequest, Bytes: der}), nil
}

// ParseCSR reads exactly one PEM certificate request of at most MaxCSR bytes, whose
// signature its own key made, and whose key is ECDSA P-256 or P-384 or RSA of 2048 to
// 8192 bits. Names in it prove nothing.
func ParseCSR(text []byte) (*x509.CertificateRequest, error) {
	if len(text) > MaxCSR {
		return nil, fmt.Errorf("certificate request: %d bytes, at most %d are taken", len(text), MaxCSR)
	}
	block, rest := pem.Decode(text)
	if block == nil {
		return nil, errors.New("certificate request: no PEM block")
	}
	if block.Type != typeRequest && block.Type != typeOldRequest {
		return nil, fmt.Errorf("certificate request: PEM block %q, want %q", block.Type, typeRequest)
	}
	if len(bytes.TrimSpace(rest)) != 0 {
		return nil, errors.New("certificate request: something follows its PEM block")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	// The key is checked first, so that no signature of absurd size is ever verified.
	if err := checkPublicKey(csr.PublicKey); err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("certificate request: signature: %w", err)
	}
	return csr, nil
}
