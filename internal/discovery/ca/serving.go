package ca

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/pki"
)

// servingTTL is the lifetime of pilot-discovery's own certificate. It is renewed after half of it.
const servingTTL = 24 * time.Hour

// ServingNames returns the names of pilot-discovery's Services in a namespace, the loopback names
// and more, which are host names or IP addresses. [control-plane 1.14.10]
func ServingNames(namespace string, more ...string) []string {
	var names []string
	for _, service := range []string{"istiod", "istiod-remote", "istio-pilot"} {
		names = append(names, service+"."+namespace+".svc")
	}
	return append(append(names, "localhost", "127.0.0.1", "::1"), more...)
}

// Serving is pilot-discovery's own certificate. The first handshake after half of its lifetime
// renews it, so that no goroutine is needed. It is safe for concurrent use.
type Serving struct {
	authority *Authority
	names     []string

	mu   sync.Mutex // guards cert and due
	cert *tls.Certificate
	due  time.Time
}

// ServerCertificate creates a serving certificate for the names, which are host names or IP
// addresses. It issues the first certificate, so that errors occur at the start.
func (a *Authority) ServerCertificate(names []string) (*Serving, error) {
	s := &Serving{authority: a, names: names}
	_, err := s.Get(nil)
	return s, err
}

// Get returns the current certificate, renewing it if due. It is a tls.Config.GetCertificate.
func (s *Serving) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.cert != nil && now.Before(s.due) {
		return s.cert, nil
	}
	cert, err := s.issue(now)
	if err != nil {
		return nil, fmt.Errorf("issue serving certificate: %w", err)
	}
	s.cert, s.due = cert, now.Add(cert.Leaf.NotAfter.Sub(now)/2)
	return cert, nil
}

func (s *Serving) issue(now time.Time) (*tls.Certificate, error) {
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		return nil, err
	}
	term := pki.Validity{NotBefore: now.Add(-Backdate), NotAfter: now.Add(servingTTL)}
	if end := s.authority.cert.NotAfter; term.NotAfter.After(end) {
		term.NotAfter = end
	}
	leaf, err := pki.Sign(pki.ServerTemplate(s.names, term), s.authority.cert, key.Public(), s.authority.key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key.(crypto.PrivateKey), Leaf: leaf}, nil
}

// TLSConfig returns a new configuration for the secure gRPC port: TLS 1.2 or later, and optional
// client certificates, which must be signed by the authority. [control-plane 1.1.4]
func (s *Serving) TLSConfig() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: s.Get,
		ClientAuth:     tls.VerifyClientCertIfGiven,
		ClientCAs:      pki.Pool([]*x509.Certificate{s.authority.cert}),
		NextProtos:     []string{"h2"},
	}
}
