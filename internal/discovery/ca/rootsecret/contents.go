package rootsecret

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"maps"
	"regexp"
	"slices"
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
	// signer is the self-signed root under the names of Istio or of kubernetes.io/tls; empty if there is none.
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
	text, ok := data[ca.RotationKey]
	if ok {
		state, err := ca.DecodeRotation(text)
		if err != nil {
			return contents{}, fmt.Errorf("read the state of the root's rotation: %s of %s: %w; remove the key to go on with the root alone that signs", ca.RotationKey, name, err)
		}
		out.state, out.found = state, true
	}
	add := func(cert, key string) (ca.StoredRoot, error) {
		root := ca.StoredRoot{
			Cert: data[cert], Key: data[key], CertAt: cert + " of " + name, KeyAt: key + " of " + name,
			Remedy: "remove " + name,
		}
		if len(root.Cert) == 0 || len(root.Key) == 0 && !out.plugged(cert) {
			return root, fmt.Errorf("%s: want both %s and %s: restore what is missing, or remove the Secret to create a new root", name, cert, key)
		}
		certs, err := pki.ParseBundle(root.Cert)
		if err != nil {
			return root, fmt.Errorf("read root certificate %s: %w", root.CertAt, err)
		}
		out.roots[pki.Fingerprint(certs[0])] = root
		return root, nil
	}
	if names, ok := namesIn(data); ok && (!out.found || len(data[names.Cert]) > 0 || len(data[names.Key]) > 0) {
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
	return out, nil
}

// plugged reports whether a certificate's name is that of the root of a CA that is plugged in, whose key is not stored.
func (c contents) plugged(cert string) bool {
	return c.found && slices.ContainsFunc(c.state.Trusted(), func(r rotation.Root) bool { return r.Plugged && cert == otherCertName(r.ID) })
}

// otherCert matches the names of the certificates of the other roots.
var otherCert = regexp.MustCompile(`^ca-cert-([0-9a-f]{16})\.pem$`)

// otherKey matches those of their keys.
var otherKey = regexp.MustCompile(`^ca-key-[0-9a-f]{16}\.pem$`)

func otherCertName(id string) string { return "ca-cert-" + short(id) + ".pem" }
func otherKeyName(id string) string  { return "ca-key-" + short(id) + ".pem" }

func short(id string) string { return id[:min(len(id), idDigits)] }

// namesIn returns the names of the first root, and false if there are none.
func namesIn(data map[string][]byte) (policy.FileNames, bool) {
	return policy.ChooseNames(func(name string) bool { return len(data[name]) > 0 })
}

// namesFor returns the names for the first root. They are in a Secret of the type kubernetes.io/tls also if they are empty.
func namesFor(old map[string][]byte) policy.FileNames {
	if names, ok := namesIn(old); ok {
		return names
	}
	if _, ok := old[policy.TLSNames.Cert]; ok {
		return policy.TLSNames
	}
	return policy.IstioNames
}

// root returns a root by ID.
func (c contents) root(id, name string) (ca.StoredRoot, error) {
	root, ok := c.roots[id]
	if !ok {
		return ca.StoredRoot{}, fmt.Errorf("%s has no root %.16s, which its key %s names: restore it, or remove that key to go on with the root alone that signs", name, id, ca.RotationKey)
	}
	return root, nil
}

// first returns the self-signed root that signs at the time now, or would without a CA that is plugged in; an empty one if there is none.
func (c contents) first(name string, now time.Time) (ca.StoredRoot, error) {
	if c.found {
		if root, ok := ca.FirstOf(c.state, now); ok {
			return c.root(root.ID, name)
		}
	} else if len(c.signer.Cert) == 0 && len(c.roots) > 0 {
		return ca.StoredRoot{}, fmt.Errorf("%s has roots, and its key %s is missing, which says which of them signs: restore it", name, ca.RotationKey)
	}
	return c.signer, nil
}

// with returns the contents with roots that are added.
func (c contents) with(added []ca.StoredRoot) (contents, error) {
	roots := maps.Clone(c.roots)
	if roots == nil {
		roots = map[string]ca.StoredRoot{}
	}
	for _, root := range added {
		certs, err := pki.ParseBundle(root.Cert)
		if err != nil {
			return c, fmt.Errorf("store a root: %w", err)
		}
		if id := pki.Fingerprint(certs[0]); len(roots[id].Key) == 0 {
			roots[id] = root
		}
	}
	c.roots = roots
	return c, nil
}

// firstOf returns the ID of the root that has the names without an ID: of those whose keys are stored, the one that signs or has signed
// last. It is empty if no key is stored.
func (c contents) firstOf(s rotation.State) string {
	for _, root := range s.Signers() {
		if len(c.roots[root.ID].Key) > 0 {
			return root.ID
		}
	}
	return ""
}

// render returns the data of a Secret with a state and the roots that it trusts, of which some may have been
// added. Other keys stay as they are in old. The names of the first root are those that old has.
func (c contents) render(old map[string][]byte, change ca.StoreChange, name string) (map[string][]byte, error) {
	out := map[string][]byte{}
	for key, text := range old {
		if !otherCert.MatchString(key) && !otherKey.MatchString(key) {
			out[key] = text
		}
	}
	names := namesFor(old)
	for _, name := range []string{names.Cert, names.Key} {
		if delete(out, name); names == policy.TLSNames {
			out[name] = []byte{} // Kubernetes requires them
		}
	}
	c, err := c.with(change.Added)
	if err != nil {
		return nil, err
	}
	first := c.firstOf(change.State)
	var bundle []*x509.Certificate
	for _, trusted := range change.State.Trusted() {
		root, err := c.root(trusted.ID, name)
		if err != nil {
			return nil, err
		}
		certs, err := pki.ParseBundle(root.Cert)
		if err != nil {
			return nil, fmt.Errorf("read root certificate %s: %w", root.CertAt, err)
		}
		bundle = append(bundle, certs[0])
		cert, key := names.Cert, names.Key
		if id := trusted.ID; id != first {
			cert, key = otherCertName(id), otherKeyName(id)
		}
		out[cert] = root.Cert
		if len(root.Key) > 0 {
			out[key] = root.Key
		}
	}
	out[names.Roots] = pki.EncodeCerts(pki.Normalize(bundle)...)
	state, err := ca.EncodeRotation(change.State)
	if err != nil {
		return nil, err
	}
	out[ca.RotationKey] = state
	return out, nil
}

// withFirst returns the data of a Secret to which a first root is added.
func withFirst(old map[string][]byte, root ca.StoredRoot) map[string][]byte {
	out := map[string][]byte{}
	for key, text := range old {
		out[key] = text
	}
	n := namesFor(old)
	out[n.Cert], out[n.Key] = root.Cert, root.Key
	if _, ok := old[ca.RotationKey]; !ok {
		out[n.Roots] = root.Cert
	}
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
