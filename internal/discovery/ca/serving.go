package ca

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"fmt"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// servingTTL is the lifetime of pilot-discovery's own certificate. It is renewed after half of it.
const servingTTL = 24 * time.Hour

// ServingNames returns the names of pilot-discovery's Services in a namespace, with that of a revision unless it is
// empty or "default", the loopback names and more, which are host names or IP addresses. [control-plane 1.14.10]
func ServingNames(namespace, revision string, more ...string) []string {
	services := []string{"istiod", "istiod-remote", "istio-pilot"}
	if revision != "" && revision != "default" {
		services = append(services, "istiod-"+revision)
	}
	var names []string
	for _, service := range services {
		names = append(names, service+"."+namespace+".svc")
	}
	return append(append(names, "localhost", "127.0.0.1", "::1"), more...)
}

// Serving is pilot-discovery's own certificate. The first handshake after half of its lifetime, or
// after the issuer was replaced, renews it, so that no goroutine is needed. Connections that exist keep
// theirs. It is safe for concurrent use.
type Serving struct {
	authority *Authority
	names     []string

	mu     sync.Mutex // guards cert, due and issuer
	cert   *tls.Certificate
	due    time.Time
	issuer *policy.Issuer // of cert
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
	issuer := s.authority.State().Issuer
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.cert != nil && s.issuer == issuer && now.Before(s.due) {
		return s.cert, nil
	}
	cert, err := issueServing(s.names, issuer, now)
	if err != nil {
		return nil, fmt.Errorf("issue serving certificate: %w", err)
	}
	s.cert, s.issuer, s.due = cert, issuer, now.Add(cert.Leaf.NotAfter.Sub(now)/2)
	return cert, nil
}

func issueServing(names []string, issuer *policy.Issuer, now time.Time) (*tls.Certificate, error) {
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		return nil, err
	}
	approval, err := policy.Serving(names, key.Public(), servingTTL, issuer.Validity(), now)
	if err != nil {
		return nil, err
	}
	leaf, err := issuer.Sign(approval)
	if err != nil {
		return nil, err
	}
	chain := [][]byte{leaf.Raw}
	for _, c := range issuer.Intermediates() {
		chain = append(chain, c.Raw)
	}
	return &tls.Certificate{Certificate: chain, PrivateKey: key.(crypto.PrivateKey), Leaf: leaf}, nil
}

// TLSConfig returns a new configuration for the secure gRPC port: the given version of TLS or later,
// but at least 1.2, and optional client certificates, which must chain to the authority's trust bundle
// at the time of the handshake. [control-plane 1.1.4]
func (s *Serving) TLSConfig(minVersion uint16) *tls.Config {
	c := &tls.Config{
		MinVersion:     max(minVersion, tls.VersionTLS12),
		GetCertificate: s.Get,
		ClientAuth:     tls.VerifyClientCertIfGiven,
		NextProtos:     []string{"h2"},
		// A session could be resumed although the root of its certificate is no longer trusted.
		SessionTicketsDisabled: true,
	}
	c.GetConfigForClient = (&clientCAs{authority: s.authority, base: c.Clone()}).get
	return c
}

// clientCAs adds the current trust bundle to a configuration.
type clientCAs struct {
	authority *Authority
	base      *tls.Config

	mu      sync.Mutex // guards current and roots
	current *tls.Config
	roots   []byte // the trust bundle of current
}

// get returns the configuration for a new connection. It is a tls.Config.GetConfigForClient.
func (c *clientCAs) get(*tls.ClientHelloInfo) (*tls.Config, error) {
	state := c.authority.State()
	roots := state.RootsPEM()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil || !bytes.Equal(c.roots, roots) {
		c.current, c.roots = c.base.Clone(), roots
		c.current.ClientCAs = pki.Pool(state.Roots)
	}
	return c.current, nil
}
