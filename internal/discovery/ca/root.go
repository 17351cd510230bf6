package ca

import (
	"context"
	"log/slog"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/settings"
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
	// Store has the self-signed root, which is used if no CA is plugged in.
	Store Store
	// TrustDomain is the organization of a self-signed root that is created, RootTTL its lifetime (0
	// means DefaultRootTTL), and RootKey its kind of key.
	TrustDomain string
	RootTTL     time.Duration
	RootKey     pki.KeyKind
	Limits      policy.Limits
	Log         *slog.Logger
}

// Open returns the authority with the CA that is plugged in, or else with the self-signed root. Run of
// the Directory follows the files; it is nil without o.Directory. It ends early, with an error, if ctx does.
func Open(ctx context.Context, o Options) (*Authority, *Directory, error) {
	if o.Directory == "" {
		a, err := OpenStore(ctx, o.Store, o.TrustDomain, o.RootTTL, o.RootKey)
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
		a, err = OpenStore(ctx, o.Store, o.TrustDomain, o.RootTTL, o.RootKey)
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

// OpenRoot is OpenStore with a state folder. It returns an error, too, if others can access the key, and if anything in the folder
// is of another user or can be written by others.
func OpenRoot(stateDir, organization string, ttl time.Duration, kind pki.KeyKind) (*Authority, error) {
	return OpenStore(context.Background(), NewFolder(stateDir), organization, ttl, kind)
}
