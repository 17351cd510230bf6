package config

import (
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"

	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// curves are the names that Envoy knows. With another name it would reject every resource with the setting.
var curves = []string{"P-256", "P-384", "P-521", "X25519", "X25519MLKEM768"}

// tlsConfig checks the parameters of TLS in mesh configuration.
func (c *check) tlsConfig(at string, t *meshv1.MeshConfig_TLSConfig) {
	for i, s := range t.GetCipherSuites() {
		if !mesh.IsCipherSuites(s) {
			c.fail(item(at+".cipherSuites", i), "invalid cipher suite %q: want one of %s", s, strings.Join(mesh.CipherSuites, ", "))
		}
	}
	for i, s := range t.GetEcdhCurves() {
		if !slices.Contains(curves, s) {
			c.fail(item(at+".ecdhCurves", i), "invalid curve %q: want one of %s", s, strings.Join(curves, ", "))
		}
	}
	once(t.GetEcdhCurves(), func(i int, s string) {
		c.fail(item(at+".ecdhCurves", i), "duplicate %q, which Envoy rejects; remove one", s)
	})
}

// serverParams checks the versions and cipher suites of a server. A suite that Envoy does not know is left out, since those that it
// knows are narrower; a list of which nothing is left would permit all.
func (c *check) serverParams(at string, t *networking.ServerTLSSettings) {
	lo, hi := t.GetMinProtocolVersion(), t.GetMaxProtocolVersion()
	if hi != networking.ServerTLSSettings_TLS_AUTO && lo > hi {
		c.fail(at+".minProtocolVersion", "is above maxProtocolVersion")
	}
	known := mesh.KnownCipherSuites(t.GetCipherSuites())
	if len(t.GetCipherSuites()) > 0 && len(known) == 0 {
		c.fail(at+".cipherSuites", "has no suite that Envoy knows: want some of %s; suites of TLS 1.3 cannot be chosen", strings.Join(mesh.CipherSuites, ", "))
		return
	}
	for i, s := range t.GetCipherSuites() {
		if !mesh.IsCipherSuites(s) {
			c.warn(item(at+".cipherSuites", i), "not applied: Envoy knows no suite %q for TLS 1.2 and below, and those of TLS 1.3 cannot be chosen; remove it", s)
		}
	}
	if len(known) > 0 && lo == networking.ServerTLSSettings_TLSV1_3 {
		c.warn(at+".cipherSuites", "has no effect with minProtocolVersion TLSV1_3: suites of TLS 1.3 cannot be chosen")
	}
	field, old := "minProtocolVersion", lo
	if old == networking.ServerTLSSettings_TLS_AUTO {
		field, old = "maxProtocolVersion", hi
	}
	isOld := old == networking.ServerTLSSettings_TLSV1_0 || old == networking.ServerTLSSettings_TLSV1_1
	if isOld && !slices.ContainsFunc(known, func(s string) bool { return strings.Contains(s+"|", "-SHA|") || strings.HasSuffix(s, "-SHA]") }) {
		c.warn(at+"."+field, "versions below TLS 1.2 need one of their cipher suites: add cipherSuites with such as ECDHE-RSA-AES128-SHA, or no client can use them")
	}
}

// serverPins checks which certificates and names of clients a server accepts.
func (c *check) serverPins(at string, t *networking.ServerTLSSettings) {
	for i, s := range t.GetVerifyCertificateSpki() {
		if b, err := base64.StdEncoding.DecodeString(s); err != nil || len(b) != sha256Size {
			c.fail(item(at+".verifyCertificateSpki", i), "invalid hash %q: want the SHA-256 hash of a public key in base64, of 44 characters", s)
		}
	}
	for i, s := range t.GetVerifyCertificateHash() {
		if b, err := hex.DecodeString(withoutColons(s)); err != nil || len(b) != sha256Size {
			c.fail(item(at+".verifyCertificateHash", i), "invalid hash %q: want the SHA-256 hash of a certificate in hexadecimal, of 64 characters, or with a colon between bytes", s)
		}
	}
	c.names(at+".subjectAltNames", t.GetSubjectAltNames())
	if t.GetMode() != networking.ServerTLSSettings_OPTIONAL_MUTUAL {
		return
	}
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"subjectAltNames", len(t.GetSubjectAltNames()) > 0}, {"verifyCertificateSpki", len(t.GetVerifyCertificateSpki()) > 0}, {"verifyCertificateHash", len(t.GetVerifyCertificateHash()) > 0},
	} {
		if f.set {
			c.warn(at+"."+f.name, "with it Envoy requires a certificate of every client, as with mode MUTUAL; remove it to serve clients without one")
		}
	}
}

const sha256Size = 32

// withoutColons removes the colons of "ab:cd:…"; other text with colons stays as it is, and is no number.
func withoutColons(s string) string {
	pairs := strings.Split(s, ":")
	if len(pairs) == sha256Size && !slices.ContainsFunc(pairs, func(p string) bool { return len(p) != 2 }) {
		return strings.Join(pairs, "")
	}
	return s
}

// names checks the names that certificates may have.
func (c *check) names(at string, list []string) {
	for i, name := range list {
		if strings.TrimSpace(name) == "" {
			c.fail(item(at, i), "is empty; remove it")
		}
	}
}

// clientTLS checks how TLS to a service is originated.
func (c *check) clientTLS(at string, t *networking.ClientTLSSettings) {
	files := t.ClientCertificate != "" || t.PrivateKey != ""
	switch t.Mode {
	case networking.ClientTLSSettings_DISABLE:
		for _, f := range setFields(t.ProtoReflect(), nil) {
			c.warn(at+"."+f.JSONName(), "not applied: mode DISABLE sends plaintext")
		}
		return
	case networking.ClientTLSSettings_MUTUAL:
		if t.CredentialName == "" && (t.ClientCertificate == "" || t.PrivateKey == "") {
			c.fail(at, "mode MUTUAL needs clientCertificate and privateKey, or credentialName")
		}
	case networking.ClientTLSSettings_ISTIO_MUTUAL:
		if files || t.CaCertificates != "" || t.CredentialName != "" {
			c.fail(at, "mode ISTIO_MUTUAL uses the mesh's certificates; remove the others, or use MUTUAL")
		}
		if t.CaCrl != "" {
			c.fail(at+".caCrl", "mode ISTIO_MUTUAL uses the mesh's roots, without a revocation list: remove it, or use MUTUAL")
		}
		if t.InsecureSkipVerify.GetValue() {
			c.warn(at+".insecureSkipVerify", "not applied: with mode ISTIO_MUTUAL certificates are always verified")
		}
	case networking.ClientTLSSettings_SIMPLE:
		for _, f := range []struct{ name, file string }{{"clientCertificate", t.ClientCertificate}, {"privateKey", t.PrivateKey}} {
			if f.file != "" {
				c.warn(at+"."+f.name, "not applied: mode SIMPLE sends no client certificate; use MUTUAL for that")
			}
		}
	}
	if t.CredentialName != "" && (files || t.CaCertificates != "") {
		c.fail(at+".credentialName", "files are set too; remove one of the two")
	}
	if t.InsecureSkipVerify.GetValue() && (t.CaCertificates != "" || t.CaCrl != "" || len(t.SubjectAltNames) > 0) {
		c.fail(at+".insecureSkipVerify", "conflicts with caCertificates, caCrl and subjectAltNames, which would be ignored; remove one of the two")
	}
	if !isServerName(t.Sni) {
		c.fail(at+".sni", "invalid server name %q: want at most %d letters, digits and other visible characters of ASCII", t.Sni, maxServerName)
	}
	c.names(at+".subjectAltNames", t.SubjectAltNames)
}

// maxServerName is the length of the longest server name that Envoy takes.
const maxServerName = 255

// isServerName reports whether Envoy sends a text as the server name of TLS. There are no rules for what it has, except those of TLS: it may be the
// name of a cluster in the mesh's own form.
func isServerName(s string) bool {
	return len(s) <= maxServerName && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}
