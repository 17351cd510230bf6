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

// servingTTL is the life of pilot-discovery's own certificate; it is renewed at half.
const servingTTL = 24 * time.Hour

// ServingNames are the names under which workloads know pilot-discovery in a namespace,
// loopback, and any more (host names or IP addresses). [control-plane 1.14.10]
func ServingNames(namespace string, more ...string) []string {
	var names []string
	for _, service := range []string{"istiod", "istiod-remote", "istio-pilot"} {
		names = append(names, service+"."+namespace+".svc")
	}
	return append(append(names, "localhost", "127.0.0.1", "::1"), more...)
}

// Serving is pilot-discovery's own certificate. It renews itself at a handshake when half
// of its life is over, so it needs no goroutine. Safe for concurrent use.
type Serving struct {
	authority *Authority
	names     []string

	mu   sync.Mutex // guards the two below; a handshake costs far more than the lock
	cert *tls.Certificate
	due  time.Time
}

// ServerCertificate makes the serving certificate for these names. The first one is made
// at once, so that what could fail fails here.
func (a *Authority) ServerCertificate(names []string) (*Serving, error) {
	s := &Serving{authority: a, names: names}
	_, err := s.Get(nil)
	return s, err
}

// Get has the signature of tls.Config.GetCertificate.
func (s *Serving) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.cert != nil && now.Before(s.due) {
		return s.cert, nil
	}
	cert, err := s.make(now)
	if err != nil {
		return nil, fmt.Errorf("make serving certificate: %w", err)
	}
	s.cert, s.due = cert, now.Add(cert.Leaf.NotAfter.Sub(now)/2)
	return cert, nil
}

func (s *Serving) make(now time.Time) (*tls.Certificate, error) {
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		return nil, err
	}
	term := pki.Term{NotBefore: now.Add(-Backdate), NotAfter: now.Add(servingTTL)}
	if end := s.authority.cert.NotAfter; term.NotAfter.After(end) {
		term.NotAfter = end
	}
	leaf, err := pki.Sign(pki.ServerTemplate(s.names, term), s.authority.cert, key.Public(), s.authority.key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key.(crypto.PrivateKey), Leaf: leaf}, nil
}

// TLSConfig is for the secure gRPC port: this certificate, and client certificates that
// the authority signed are verified where given. [control-plane 1.1.4]
func (s *Serving) TLSConfig() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: s.Get,
		ClientAuth:     tls.VerifyClientCertIfGiven,
		ClientCAs:      pki.Pool([]*x509.Certificate{s.authority.cert}),
		NextProtos:     []string{"h2"},
	}
}
