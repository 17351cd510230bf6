package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// maxName bounds each part of an identity, in bytes; Kubernetes and DNS allow no more.
const maxName = 253

// IdentityOf reads the identity from a certificate. As SPIFFE says, a certificate has
// one URI SAN; with none, or several, it names nobody.
func IdentityOf(c *x509.Certificate) (mesh.Identity, error) {
	switch len(c.URIs) {
	case 0:
		return mesh.Identity{}, errors.New("certificate has no URI SAN, so no identity")
	case 1:
		id, err := mesh.ParseSPIFFE(c.URIs[0].String())
		if err != nil {
			return mesh.Identity{}, err
		}
		return id, CheckIdentity(id)
	}
	return mesh.Identity{}, fmt.Errorf("certificate has %d URI SANs, an identity has one", len(c.URIs))
}

// CheckIdentity says what is wrong with an identity that a certificate or a token would
// carry: each part must be there, and be lower-case letters, digits, '-', '.' and (in a
// trust domain) '_', so that no part can be read as another.
func CheckIdentity(id mesh.Identity) error {
	if err := checkName("trust domain", id.TrustDomain, true); err != nil {
		return err
	}
	if err := CheckName("namespace", id.Namespace); err != nil {
		return err
	}
	return CheckName("service account", id.ServiceAccount)
}

// CheckName says what is wrong with a Kubernetes name; what says whose name it is.
func CheckName(what, name string) error { return checkName(what, name, false) }

func checkName(what, name string, underscore bool) error {
	if name == "" {
		return fmt.Errorf("%s is empty", what)
	}
	if len(name) > maxName {
		return fmt.Errorf("%s of %d bytes: at most %d are taken", what, len(name), maxName)
	}
	for _, c := range []byte(name) {
		ok := c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.' || underscore && c == '_'
		if !ok {
			return fmt.Errorf("%s %q: only lower-case letters, digits, '-' and '.' are taken", what, name)
		}
	}
	return nil
}

func spiffeURL(id mesh.Identity) (*url.URL, error) {
	if err := CheckIdentity(id); err != nil {
		return nil, err
	}
	return &url.URL{
		Scheme: "spiffe",
		Host:   id.TrustDomain,
		Path:   "/ns/" + id.Namespace + "/sa/" + id.ServiceAccount,
	}, nil
}
