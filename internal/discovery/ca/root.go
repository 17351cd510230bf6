package ca

import (
	"crypto"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/statefile"
)

// DefaultRootTTL is the life of a self-signed root (CITADEL_SELF_SIGNED_CA_CERT_TTL).
const DefaultRootTTL = settings.DefaultRootTTL

// The names in a state folder.
const (
	rootFolder = "ca"
	rootCert   = "ca-cert.pem"
	rootKey    = "ca-key.pem"
)

// RootPath is where OpenRoot keeps the root certificate below a state folder, for those
// who hand it to workloads.
func RootPath(stateDir string) string { return filepath.Join(stateDir, rootFolder, rootCert) }

// Authority signs. It is immutable; any goroutine may use it.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// OpenRoot loads the self-signed root from the state folder, and makes it there first
// where there is none: ECDSA P-256, valid for ttl (0: DefaultRootTTL), named after the
// organisation, which is the trust domain. Processes that start at once get one and the
// same. It refuses a key that others may read, one that is not the certificate's, and a
// root that has ended.
func OpenRoot(stateDir, organisation string, ttl time.Duration) (*Authority, error) {
	now := time.Now()
	if _, err := os.Stat(filepath.Join(stateDir, rootFolder)); os.IsNotExist(err) {
		if err := createRoot(stateDir, organisation, ttl, now); err != nil {
			return nil, err
		}
	}
	return loadRoot(filepath.Join(stateDir, rootFolder), now)
}

func createRoot(stateDir, organisation string, ttl time.Duration, now time.Time) error {
	if ttl <= 0 {
		ttl = DefaultRootTTL
	}
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		return fmt.Errorf("make root key: %w", err)
	}
	term := pki.Term{NotBefore: now.Add(-Backdate), NotAfter: now.Add(ttl)}
	cert, err := pki.Sign(pki.RootTemplate(organisation, term), nil, key.Public(), key)
	if err != nil {
		return fmt.Errorf("make root certificate: %w", err)
	}
	keyPEM, err := pki.EncodeKey(key, true)
	if err != nil {
		return fmt.Errorf("make root key: %w", err)
	}
	return statefile.CreateOnce(stateDir, rootFolder, map[string][]byte{rootCert: pki.EncodeCerts(cert), rootKey: keyPEM})
}

func loadRoot(dir string, now time.Time) (*Authority, error) {
	certPath, keyPath := filepath.Join(dir, rootCert), filepath.Join(dir, rootKey)
	text, err := os.ReadFile(certPath)
	if err != nil {
		return nil, fmt.Errorf("read root certificate: %w", err)
	}
	certs, err := pki.ParseBundle(text)
	if err != nil {
		return nil, fmt.Errorf("read root certificate %s: %w", certPath, err)
	}
	if text, err = statefile.ReadPrivate(keyPath); err != nil {
		return nil, fmt.Errorf("read root key: %w", err)
	}
	key, err := pki.ParseKey(text)
	if err != nil {
		return nil, fmt.Errorf("read root key %s: %w", keyPath, err)
	}
	cert := certs[0]
	switch {
	case len(certs) != 1:
		return nil, fmt.Errorf("read root certificate %s: %d certificates, want one", certPath, len(certs))
	case !cert.IsCA || !pki.SelfSigned(cert):
		return nil, fmt.Errorf("read root certificate %s: it is no self-signed CA", certPath)
	case !pki.KeyMatches(key, cert):
		return nil, fmt.Errorf("read root key %s: it is not the key of %s; restore the pair, or remove %s to make a new root", keyPath, certPath, dir)
	case !now.Before(cert.NotAfter):
		return nil, fmt.Errorf("read root certificate %s: it ended at %s; remove %s to make a new root", certPath, cert.NotAfter.UTC().Format(time.RFC3339), dir)
	}
	return &Authority{cert: cert, key: key}, nil
}

// RootPEM is the root certificate, PEM; what every workload must trust.
func (a *Authority) RootPEM() []byte { return pki.EncodeCerts(a.cert) }

// Root is the root certificate; read only.
func (a *Authority) Root() *x509.Certificate { return a.cert }

// sign makes the certificate that the policy approved.
func (a *Authority) sign(ok approved) (*x509.Certificate, error) {
	return pki.Sign(ok.template, a.cert, ok.public, a.key)
}
