package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// maxName limits each part of an identity, in bytes, as Kubernetes and DNS do.
const maxName = 253

// IdentityOf returns the identity in a certificate. The SPIFFE X.509-SVID specification requires
// exactly one URI SAN.
func IdentityOf(c *x509.Certificate) (mesh.Identity, error) {
	switch len(c.URIs) {
	case 0:
		return mesh.Identity{}, errors.New("certificate has no URI SAN: want one, the SPIFFE ID")
	case 1:
		id, err := mesh.ParseSPIFFE(c.URIs[0].String())
		if err != nil {
			return mesh.Identity{}, err
		}
		return id, CheckIdentity(id)
	}
	return mesh.Identity{}, fmt.Errorf("certificate has %d URI SANs: want one, the SPIFFE ID", len(c.URIs))
}

// CheckIdentity validates an identity for a certificate. Each part must consist of lower-case
// letters, digits, '-', '.' and, in a trust domain, '_', so that the SPIFFE ID is unambiguous.
func CheckIdentity(id mesh.Identity) error {
	if err := checkName("trust domain", id.TrustDomain, true); err != nil {
		return err
	}
	if err := CheckName("namespace", id.Namespace); err != nil {
		return err
	}
	return CheckName("service account", id.ServiceAccount)
}

// CheckName validates the name of a Kubernetes namespace or service account: 1 to 253 lower-case
// letters, digits, '-' and '.'. Errors begin with what ("namespace").
func CheckName(what, name string) error { return checkName(what, name, false) }

func checkName(what, name string, underscore bool) error {
	if name == "" {
		return fmt.Errorf("%s is empty", what)
	}
	if len(name) > maxName {
		return fmt.Errorf("invalid %s: %d bytes, want at most %d", what, len(name), maxName)
	}
	for _, c := range []byte(name) {
		ok := c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.' || underscore && c == '_'
		if !ok {
			return fmt.Errorf("invalid %s %q: want lower-case letters, digits, '-' and '.' only", what, name)
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
