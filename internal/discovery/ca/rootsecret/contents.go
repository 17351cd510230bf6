package rootsecret

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"regexp"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/rotation"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// idDigits is how many digits of a root's ID are in the names of its keys.
const idDigits = 16

// contents is what a Secret has.
type contents struct {
	// signer is the root under the names of Istio or of kubernetes.io/tls; empty if there is none.
	signer ca.StoredRoot
	// state is that of the rotation; found says whether there is one.
	state rotation.State
	found bool
	// roots are all roots by ID.
	roots map[string]ca.StoredRoot
}

// parse reads the data of a Secret, whose name is for messages.
func parse(data map[string][]byte, name string) (contents, error) {
	out := contents{roots: map[string]ca.StoredRoot{}}
	add := func(cert, key string) (ca.StoredRoot, error) {
		root := ca.StoredRoot{
			Cert: data[cert], Key: data[key], CertAt: cert + " of " + name, KeyAt: key + " of " + name,
			Remedy: "remove " + name,
		}
		if len(root.Cert) == 0 || len(root.Key) == 0 {
			return root, fmt.Errorf("%s: want both %s and %s: restore what is missing, or remove the Secret to create a new root", name, cert, key)
		}
		certs, err := pki.ParseBundle(root.Cert)
		if err != nil {
			return root, fmt.Errorf("read root certificate %s: %w", root.CertAt, err)
		}
		out.roots[pki.Fingerprint(certs[0])] = root
		return root, nil
	}
	if names, ok := namesIn(data); ok {
		var err error
		if out.signer, err = add(names.Cert, names.Key); err != nil {
			return contents{}, err
		}
	}
	for key := range data {
		if id := otherCert.FindStringSubmatch(key); id != nil {
			if _, err := add(key, otherKeyName(id[1])); err != nil {
				return contents{}, err
			}
		}
	}
	text, ok := data[ca.RotationKey]
	if !ok {
		return out, nil
	}
	state, err := ca.DecodeRotation(text)
	if err != nil {
		return contents{}, fmt.Errorf("read the state of the root's rotation: %s of %s: %w; remove the key to go on with the root alone that signs", ca.RotationKey, name, err)
	}
	out.state, out.found = state, true
	return out, nil
}

// otherCert matches the names of the certificates of the roots that do not sign.
var otherCert = regexp.MustCompile(`^ca-cert-([0-9a-f]{16})\.pem$`)

// otherKey matches those of their keys.
var otherKey = regexp.MustCompile(`^ca-key-[0-9a-f]{16}\.pem$`)

func otherCertName(id string) string { return "ca-cert-" + id + ".pem" }
func otherKeyName(id string) string  { return "ca-key-" + id + ".pem" }

// namesIn returns the names of the root that signs, and false if there is none.
func namesIn(data map[string][]byte) (policy.FileNames, bool) {
	return policy.ChooseNames(func(name string) bool { return len(data[name]) > 0 })
}

// root returns a root by ID.
func (c contents) root(id, name string) (ca.StoredRoot, error) {
	root, ok := c.roots[id]
	if !ok {
		return ca.StoredRoot{}, fmt.Errorf("%s has no root %.16s, which its key %s names: restore it, or remove that key to go on with the root alone that signs", name, id, ca.RotationKey)
	}
	return root, nil
}

// signs returns the root that signs at the time now.
func (c contents) signs(name string, now time.Time) (ca.StoredRoot, error) {
	if !c.found {
		return c.signer, nil
	}
	signer := c.state.Signer
	if c.state.Next != nil && !now.Before(signer.NotAfter) {
		signer = c.state.Next.Root
	}
	return c.root(signer.ID, name)
}

// empty reports whether there is no root.
func (c contents) empty() bool { return len(c.roots) == 0 && !c.found }

// render returns the data of a Secret with a state and the roots that it trusts, of which one may have been
// added. Other keys stay as they are in old. The names of the root that signs are those that old has.
func (c contents) render(old map[string][]byte, change ca.StoreChange, name string) (map[string][]byte, error) {
	out := map[string][]byte{}
	for key, text := range old {
		if !otherCert.MatchString(key) && !otherKey.MatchString(key) {
			out[key] = text
		}
	}
	names, ok := namesIn(old)
	if !ok {
		names = policy.IstioNames
	}
	var bundle []*x509.Certificate
	for _, trusted := range change.State.Trusted() {
		root, known := c.roots[trusted.ID]
		if next := change.State.Next; !known && change.Added != nil && next != nil && next.ID == trusted.ID {
			root, known = *change.Added, true
		}
		if !known {
			_, err := c.root(trusted.ID, name)
			return nil, err
		}
		certs, err := pki.ParseBundle(root.Cert)
		if err != nil {
			return nil, fmt.Errorf("read root certificate %s: %w", root.CertAt, err)
		}
		bundle = append(bundle, certs[0])
		cert, key := names.Cert, names.Key
		if id := trusted.ID; id != change.State.Signer.ID {
			cert, key = otherCertName(id[:idDigits]), otherKeyName(id[:idDigits])
		}
		out[cert], out[key] = root.Cert, root.Key
	}
	out[names.Roots] = pki.EncodeCerts(pki.Normalize(bundle)...)
	state, err := ca.EncodeRotation(change.State)
	if err != nil {
		return nil, err
	}
	out[ca.RotationKey] = state
	return out, nil
}

// first returns the data of a Secret with a root alone.
func first(old map[string][]byte, root ca.StoredRoot) map[string][]byte {
	out := map[string][]byte{}
	for key, text := range old {
		out[key] = text
	}
	n := policy.IstioNames
	out[n.Cert], out[n.Key], out[n.Roots] = root.Cert, root.Key, root.Cert
	return out
}

// same reports whether two Secrets have the same data.
func same(a, b map[string][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for key, text := range a {
		other, ok := b[key]
		if !ok || !bytes.Equal(text, other) {
			return false
		}
	}
	return true
}
