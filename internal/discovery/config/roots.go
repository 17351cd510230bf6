package config

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// Limits of caCertificates, in bytes of PEM and in certificates. Agents accept 4 MiB and 256
// certificates, among them the roots of the mesh's CA.
const (
	maxRootsText = 1 << 20
	maxRoots     = 128
)

// MeshRoots returns the root certificates in mesh configuration's caCertificates, in the order of
// pki.Normalize. Entries for certain signers are left out, and those that do not hold for all trust domains
// of the mesh: a proxy has one set of roots, which it uses for all peers. [control-plane 1.4.5]
func MeshRoots(m *meshv1.MeshConfig) []*x509.Certificate {
	var out []*x509.Certificate
	for _, e := range m.GetCaCertificates() {
		if e.GetPem() == "" || len(e.CertSigners) > 0 || leftOut(e, m) != "" {
			continue
		}
		// It was parsed when it was validated.
		if certs, err := parseRoots(e.GetPem()); err == nil {
			out = append(out, certs...)
		}
	}
	return pki.Normalize(out)
}

// leftOut returns the first trust domain of the mesh for which an entry's roots do not hold, "" if there is none.
func leftOut(e *meshv1.MeshConfig_CertificateData, m *meshv1.MeshConfig) string {
	if len(e.TrustDomains) == 0 {
		return ""
	}
	for _, d := range append([]string{m.TrustDomain}, m.TrustDomainAliases...) {
		if !slices.Contains(e.TrustDomains, d) {
			return d
		}
	}
	return ""
}

// parseRoots parses certificates as agents do: they refuse a whole trust bundle for one of them.
func parseRoots(text string) ([]*x509.Certificate, error) {
	certs, err := pki.ParseBundle([]byte(text))
	if err != nil {
		return nil, err
	}
	for i, c := range certs {
		if !c.IsCA {
			return nil, fmt.Errorf("certificate %d (%s) is not a CA certificate", i+1, c.Subject)
		}
	}
	return certs, nil
}

// caCertificates checks the field of that name.
func (c *check) caCertificates(entries []*meshv1.MeshConfig_CertificateData) {
	size, count := 0, 0
	for i, e := range entries {
		at := item("caCertificates", i)
		for j, d := range e.TrustDomains {
			if !isDomain(d) {
				c.fail(item(at+".trustDomains", j), "invalid trust domain %q: want a DNS name", d)
			}
		}
		if _, url := e.CertificateData.(*meshv1.MeshConfig_CertificateData_SpiffeBundleUrl); url {
			continue // it has no effect, which is reported
		}
		if size += len(e.GetPem()); size > maxRootsText {
			c.fail("caCertificates", "more than %d bytes of PEM", maxRootsText)
			return
		}
		certs, err := parseRoots(e.GetPem())
		if e.GetPem() == "" {
			err = errors.New("is empty")
		}
		if err != nil {
			c.fail(at+".pem", "%s; want root certificates in PEM", err)
		}
		if count += len(certs); count > maxRoots {
			c.fail("caCertificates", "more than %d certificates", maxRoots)
			return
		}
	}
}

// unusedRoots warns of entries that MeshRoots leaves out because of their trust domains.
func (t trust) unusedRoots(o *object.Object) []Verdict {
	text := meshText(o)
	if text == "" {
		return nil // as nearly all objects
	}
	m, _ := MeshConfig(text)
	if m == nil {
		return nil
	}
	if t.domain != "" {
		m.TrustDomain = t.domain
	}
	c := &check{key: o.Key, origin: o.Origin}
	for i, e := range m.CaCertificates {
		if d := leftOut(e, m); d != "" && e.GetPem() != "" {
			c.warn("data."+MeshKey+"."+item("caCertificates", i)+".trustDomains",
				"not applied: the roots are trusted by no proxy, since %q is missing: a proxy has one set of roots for the trust domain of the mesh and all its aliases; name all of these, or leave trustDomains out", d)
		}
	}
	return c.out
}
