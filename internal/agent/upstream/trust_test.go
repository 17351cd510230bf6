package upstream

import (
	"crypto/tls"
	"crypto/x509"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/pki"
)

// The roots of each handshake are those that Trust makes of the file's; a server by the operating
// system's roots is not verified with others.
func TestTrustOfARotatedRoot(t *testing.T) {
	old, rotated := newAuthority(t), newAuthority(t)
	s := serve(t, "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{*rotated.leaf("localhost", time.Hour)}})
	file := write(t, filepath.Join(t.TempDir(), "root"), pki.EncodeCerts(old.root))
	trust := func(roots []*x509.Certificate) []*x509.Certificate {
		if len(roots) != 1 || !roots[0].Equal(old.root) {
			t.Errorf("got %d roots, want that of the file", len(roots))
		}
		return append(roots, rotated.root)
	}
	if _, _, err := call(t, s, Options{RootFile: file}); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("with the file alone: %v", err)
	}
	if _, _, err := call(t, s, Options{RootFile: file, Trust: trust}); err != nil && strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("with the rotated root: %v", err)
	}
	if _, _, err := call(t, s, Options{RootFile: SystemRoots, Trust: trust}); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("with the system's roots: %v", err)
	}
}

// A policy limits the handshake with a server: one that permits nothing of it gets no connection.
func TestAPolicyLimitsTheHandshake(t *testing.T) {
	ca := newAuthority(t)
	file := write(t, filepath.Join(t.TempDir(), "root"), pki.EncodeCerts(ca.root))
	s := serve(t, "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*ca.leaf("localhost", time.Hour)}})
	if _, _, err := call(t, s, Options{RootFile: file, TLS: pki.FIPS1402}); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.2 and a server with TLS 1.3: %v", err)
	}
	if _, _, err := call(t, s, Options{RootFile: file, TLS: pki.PQC}); err != nil && strings.Contains(err.Error(), "handshake") {
		t.Errorf("TLS 1.3: %v", err)
	}
}
