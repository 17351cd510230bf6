package ca

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/statefile"
)

// DefaultRootTTL is the default lifetime of the self-signed root (CITADEL_SELF_SIGNED_CA_CERT_TTL).
const DefaultRootTTL = settings.DefaultRootTTL

// Backdate is how long before its creation a certificate becomes valid, to allow for clock skew.
const Backdate = policy.Backdate

// Names in the state folder.
const (
	rootFolder = "ca"
	rootCert   = "ca-cert.pem"
	rootKey    = "ca-key.pem"
)

// Options say where the CA's key and certificates are.
type Options struct {
	// Directory is a directory with the files of a CA (ROOT_CA_DIR), which is used if it has one; empty
	// for none.
	Directory string
	// StateDir is the state folder, which has the self-signed root if no CA is plugged in.
	StateDir string
	// TrustDomain is the organization of a self-signed root that is created, RootTTL its lifetime (0
	// means DefaultRootTTL), and RootKey its kind of key.
	TrustDomain string
	RootTTL     time.Duration
	RootKey     pki.KeyKind
	Limits      policy.Limits
	Log         *slog.Logger
}

// Open returns the authority with the CA that is plugged in, or else with the self-signed root. Run of
// the Directory follows the files; it is nil without o.Directory.
func Open(o Options) (*Authority, *Directory, error) {
	if o.Directory == "" {
		a, err := OpenRoot(o.StateDir, o.TrustDomain, o.RootTTL, o.RootKey)
		return a, nil, err
	}
	d, plugged, err := OpenDirectory(o.Directory, o.Limits, o.Log)
	if err != nil {
		return nil, nil, err
	}
	var a *Authority
	if plugged != nil {
		a, err = NewAuthority(plugged.Issuer, plugged.Roots...)
	} else {
		a, err = OpenRoot(o.StateDir, o.TrustDomain, o.RootTTL, o.RootKey)
	}
	if err != nil {
		return nil, nil, err
	}
	if plugged != nil {
		c := plugged.Issuer.Certificate()
		o.Log.Info("the CA is plugged in", "directory", o.Directory, "issuer", c.Subject, "serial", c.SerialNumber, "until", plugged.Issuer.Validity().NotAfter, "root", pki.Fingerprint(plugged.Issuer.Root())[:16])
	}
	return a, d, nil
}

// OpenRoot loads the self-signed root from the state folder, or creates it if there is none, with a
// key of the kind ("" means ECDSA P-256), valid for ttl (0 means DefaultRootTTL), with the trust domain as organization. Processes
// that start concurrently get the same root. It returns an error if others can access the key, if
// anything in the folder is of another user or can be written by others, if key and certificate do not
// match, and if the root is not a self-signed CA or has expired.
func OpenRoot(stateDir, organization string, ttl time.Duration, kind pki.KeyKind) (*Authority, error) {
	now := time.Now()
	statefile.Sweep(stateDir, rootFolder)
	dir, err := signerFolder(stateDir, now)
	if err != nil {
		return nil, err
	}
	// An empty folder is as good as none, such as one that was created to mount something there.
	if entries, err := os.ReadDir(dir); filepath.Base(dir) == rootFolder && (os.IsNotExist(err) || err == nil && len(entries) == 0) {
		if err := createRoot(stateDir, organization, ttl, kind, now); err != nil {
			return nil, err
		}
	}
	return loadRoot(dir, now)
}

func createRoot(stateDir, organization string, ttl time.Duration, kind pki.KeyKind, now time.Time) error {
	if ttl <= 0 {
		ttl = DefaultRootTTL
	}
	root, err := policy.NewRoot(organization, kind, pki.Validity{NotBefore: now.Add(-Backdate), NotAfter: now.Add(ttl)})
	if err != nil {
		return err
	}
	key, err := root.KeyPEM()
	if err != nil {
		return fmt.Errorf("create root key: %w", err)
	}
	return statefile.CreateOnce(stateDir, rootFolder, map[string][]byte{rootCert: pki.EncodeCerts(root.Root()), rootKey: key})
}

func loadRoot(dir string, now time.Time) (*Authority, error) {
	issuer, err := loadIssuer(dir, now)
	if err != nil {
		return nil, err
	}
	return NewAuthority(issuer)
}

// loadIssuer loads the self-signed root in a folder.
func loadIssuer(dir string, now time.Time) (*policy.Issuer, error) {
	certPath, keyPath := filepath.Join(dir, rootCert), filepath.Join(dir, rootKey)
	text, err := statefile.ReadPublic(certPath)
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
		return nil, fmt.Errorf("read root certificate %s: not a self-signed CA certificate", certPath)
	case !pki.KeyMatches(key, cert):
		return nil, fmt.Errorf("read root key %s: does not match %s; restore both files, or remove %s to create a new root", keyPath, certPath, dir)
	case !now.Before(cert.NotAfter):
		return nil, fmt.Errorf("read root certificate %s: expired at %s; remove %s to create a new root", certPath, cert.NotAfter.UTC().Format(time.RFC3339), dir)
	}
	issuer, err := policy.NewIssuer(key, certs, now)
	if err != nil {
		return nil, fmt.Errorf("read root certificate %s: %w", certPath, err)
	}
	return issuer, nil
}
