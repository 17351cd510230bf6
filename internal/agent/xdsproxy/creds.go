package xdsproxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc/credentials"
)

// SystemRoots as a root file means the operating system's certificates. [agent E11]
const SystemRoots = "SYSTEM"

// Credentials are how the two sides of the upstream connection know each other. They are
// read anew at each handshake, so that a change of any needs no restart.
type Credentials struct {
	// RootFile holds the PEM certificates that the control plane's must chain to.
	RootFile string
	// ServerName is what the control plane's certificate must be for, by default the
	// host of the address.
	ServerName string
	// Certificate is the workload's own, nil while there is none; the function may be
	// nil, and is called from any goroutine.
	Certificate func() *tls.Certificate
	// Token is the bearer token for connections without a client certificate; empty if
	// there is none. The function may be nil, and is called from any goroutine.
	Token func() (string, error)
}

// transport performs handshakes.
type transport struct {
	c      Credentials
	failed func(error)
}

// authInfo tells the calls of a connection whether a client certificate was shown.
type authInfo struct {
	credentials.TLSInfo
	certified bool
}

// ClientHandshake implements credentials.TransportCredentials.
func (t *transport) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := t.handshake(ctx, authority, c)
	if err != nil {
		t.failed(err)
	}
	return conn, info, err
}

func (t *transport) handshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.c.ServerName}
	if t.c.RootFile != SystemRoots {
		pem, err := os.ReadFile(t.c.RootFile)
		if err != nil {
			return nil, nil, fmt.Errorf("read root certificate: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, nil, fmt.Errorf("read root certificate %s: no PEM certificate in it", t.c.RootFile)
		}
	}
	var own *tls.Certificate
	if t.c.Certificate != nil {
		if own = t.c.Certificate(); own != nil && !expired(own, time.Now()) {
			config.Certificates = []tls.Certificate{*own}
		}
	}
	conn, info, err := credentials.NewTLS(config).ClientHandshake(ctx, authority, c)
	if err != nil {
		return nil, nil, fmt.Errorf("TLS with the control plane: %w", err)
	}
	return conn, authInfo{info.(credentials.TLSInfo), len(config.Certificates) > 0}, nil
}

// expired says that a certificate would only get the connection refused. [agent S8]
func expired(c *tls.Certificate, now time.Time) bool {
	leaf := c.Leaf
	if leaf == nil && len(c.Certificate) > 0 {
		leaf, _ = x509.ParseCertificate(c.Certificate[0])
	}
	return leaf == nil || now.After(leaf.NotAfter)
}

// ServerHandshake is not for clients.
func (t *transport) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, fmt.Errorf("server handshake with client credentials")
}

// Info implements credentials.TransportCredentials.
func (t *transport) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (t *transport) Clone() credentials.TransportCredentials { c := *t; return &c }

// OverrideServerName implements credentials.TransportCredentials.
func (t *transport) OverrideServerName(name string) error { t.c.ServerName = name; return nil }

// token adds the bearer token to calls on connections that showed no certificate.
type token struct{ read func() (string, error) }

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (t token) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	if t.read == nil {
		return nil, nil
	}
	info, _ := credentials.RequestInfoFromContext(ctx)
	if a, ok := info.AuthInfo.(authInfo); ok && a.certified {
		return nil, nil
	}
	s, err := t.read()
	if err != nil {
		return nil, fmt.Errorf("read token: %w", err)
	}
	if s == "" {
		return nil, nil
	}
	return map[string]string{"authorization": "Bearer " + s}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (token) RequireTransportSecurity() bool { return true }
