package policy

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/pki"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// authority is a CA certificate with its key.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func (a authority) pem() []byte { return pki.EncodeCerts(a.cert) }

func (a authority) keyPEM(t testing.TB, pkcs8 bool) []byte {
	t.Helper()
	text, err := pki.EncodeKey(a.key, pkcs8)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// newCA creates a CA certificate that parent signs, or itself if parent is the zero authority.
func newCA(t testing.TB, name string, parent authority, change ...func(*x509.Certificate)) authority {
	t.Helper()
	return newCAWithKey(t, name, parent, pki.ECDSAP256, change...)
}

func newCAWithKey(t testing.TB, name string, parent authority, kind pki.KeyKind, change ...func(*x509.Certificate)) authority {
	t.Helper()
	key, err := pki.GenerateKey(kind)
	if err != nil {
		t.Fatal(err)
	}
	template := pki.RootTemplate(name, pki.Validity{NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(1000 * time.Hour)})
	for _, f := range change {
		f(template)
	}
	signer, issuer := key, (*x509.Certificate)(nil)
	if parent.cert != nil {
		signer, issuer = parent.key, parent.cert
	}
	cert, err := pki.Sign(template, issuer, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert, key}
}

func pems(all ...authority) []byte {
	var out []byte
	for _, a := range all {
		out = append(out, a.pem()...)
	}
	return out
}

func TestLoadFiles(t *testing.T) {
	root := newCA(t, "root", authority{})
	upper := newCA(t, "upper", root)
	lower := newCA(t, "lower", upper)
	rsaRoot := newCAWithKey(t, "rsa", authority{}, pki.RSA2048)
	mixed := newCAWithKey(t, "mixed", rsaRoot, pki.ECDSAP384)
	expired := newCA(t, "expired", authority{}, func(c *x509.Certificate) { c.NotAfter = noon })
	for _, tt := range []struct {
		name  string
		f     Files
		chain []authority
		roots int
	}{
		{"a self-signed root", Files{Cert: root.pem(), Key: root.keyPEM(t, true), Roots: root.pem()}, []authority{root}, 1},
		{"a key in SEC 1", Files{Cert: root.pem(), Key: root.keyPEM(t, false), Roots: root.pem()}, []authority{root}, 1},
		{"an RSA key in PKCS #1", Files{Cert: rsaRoot.pem(), Key: rsaRoot.keyPEM(t, false), Roots: rsaRoot.pem()}, []authority{rsaRoot}, 1},
		{"ECDSA below RSA", Files{Cert: mixed.pem(), Key: mixed.keyPEM(t, true), Roots: rsaRoot.pem()}, []authority{mixed, rsaRoot}, 1},
		{"an intermediate without a chain", Files{Cert: upper.pem(), Key: upper.keyPEM(t, true), Roots: root.pem()}, []authority{upper, root}, 1},
		{"two intermediates", Files{Cert: lower.pem(), Key: lower.keyPEM(t, true), Chain: upper.pem(), Roots: root.pem()}, []authority{lower, upper, root}, 1},
		{"a chain with everything, in another order", Files{Cert: lower.pem(), Key: lower.keyPEM(t, true), Chain: pems(root, upper, lower), Roots: root.pem()}, []authority{lower, upper, root}, 1},
		{"intermediates in the file of the certificate", Files{Cert: pems(lower, upper), Key: lower.keyPEM(t, true), Roots: root.pem()}, []authority{lower, upper, root}, 1},
		{"a blank chain", Files{Cert: upper.pem(), Key: upper.keyPEM(t, true), Chain: []byte("\n"), Roots: root.pem()}, []authority{upper, root}, 1},
		{"several roots, one twice", Files{Cert: upper.pem(), Key: upper.keyPEM(t, true), Roots: pems(rsaRoot, root, rsaRoot)}, []authority{upper, root}, 2},
		{"an expired root that is left over", Files{Cert: upper.pem(), Key: upper.keyPEM(t, true), Roots: pems(expired, root)}, []authority{upper, root}, 1},
		{"an intermediate as the root", Files{Cert: lower.pem(), Key: lower.keyPEM(t, true), Roots: upper.pem()}, []authority{lower, upper}, 1},
	} {
		got, err := LoadFiles(tt.f, IstioNames, Limits{}, noon)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		var want []*x509.Certificate
		for _, a := range tt.chain {
			want = append(want, a.cert)
		}
		if !slices.EqualFunc(got.Issuer.chain, want, (*x509.Certificate).Equal) || len(got.Roots) != tt.roots {
			t.Errorf("%s: chain of %d, %d roots; want %d, %d", tt.name, len(got.Issuer.chain), len(got.Roots), len(want), tt.roots)
		}
		verifyLeaf(t, tt.name, got)
	}
}

// verifyLeaf checks that peers accept what the CA issues.
func verifyLeaf(t *testing.T, name string, p Plugged) {
	t.Helper()
	approval, err := Workload(Request{Caller: alice, CSR: csrFor(t, alice)}, Limits{}, p.Issuer.Validity(), noon)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	leaf, err := p.Issuer.Sign(approval)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if err := pki.VerifyChain(append([]*x509.Certificate{leaf}, p.Issuer.Intermediates()...), p.Roots, x509.ExtKeyUsageClientAuth, noon); err != nil {
		t.Errorf("%s: a leaf: %v", name, err)
	}
}

func TestLoadFilesErrors(t *testing.T) {
	root := newCA(t, "root", authority{})
	other := newCA(t, "root", authority{}) // with the same name
	upper := newCA(t, "upper", root)
	lower := newCA(t, "lower", upper)
	ends := func(at time.Duration) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.NotAfter = noon.Add(at) }
	}
	short := newCA(t, "short", authority{}, ends(59*time.Minute))
	long := newCA(t, "long", short)
	pathed := newCA(t, "pathed", authority{}, func(c *x509.Certificate) { c.MaxPathLenZero = true })
	tooDeep := newCA(t, "deep", pathed)
	weak := weakCA(t)
	notCA := newCA(t, "leaf", root, func(c *x509.Certificate) { c.IsCA = false })
	noSign := newCA(t, "nosign", root, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature })
	for _, tt := range []struct {
		name string
		f    Files
		why  string
	}{
		{"no key", Files{Cert: root.pem(), Roots: root.pem()}, "ca-key.pem: private key: found no PEM block of a private key"},
		{"a certificate as the key", Files{Cert: root.pem(), Key: root.pem(), Roots: root.pem()}, "ca-key.pem: private key: found no PEM block of a private key"},
		{"a huge key", Files{Cert: root.pem(), Key: bytes.Repeat([]byte("x"), 65<<10), Roots: root.pem()}, "ca-key.pem: private key: 66560 bytes, want at most 65536"},
		{"no certificate", Files{Key: root.keyPEM(t, true), Roots: root.pem()}, "ca-cert.pem: certificates: found no PEM block"},
		{"no root", Files{Cert: root.pem(), Key: root.keyPEM(t, true)}, "root-cert.pem: certificates: found no PEM block"},
		{"a malformed chain", Files{Cert: root.pem(), Key: root.keyPEM(t, true), Chain: []byte("x"), Roots: root.pem()}, "cert-chain.pem: certificates: found no PEM block"},
		{"another key", Files{Cert: root.pem(), Key: upper.keyPEM(t, true), Roots: root.pem()}, `ca-key.pem: not the key of the first certificate of ca-cert.pem, "CN=Root CA of root,O=root": replace both files together`},
		{"another root", Files{Cert: upper.pem(), Key: upper.keyPEM(t, true), Roots: other.pem()}, `certificate "CN=Root CA of upper,O=upper" is not signed by any certificate of cert-chain.pem or root-cert.pem: want the one of "CN=Root CA of root,O=root" there`},
		{"a missing intermediate", Files{Cert: lower.pem(), Key: lower.keyPEM(t, true), Roots: root.pem()}, `is not signed by any certificate of cert-chain.pem or root-cert.pem: want the one of "CN=Root CA of upper`},
		{"a self-signed certificate that is no root", Files{Cert: other.pem(), Key: other.keyPEM(t, true), Roots: root.pem()}, "is not signed by any certificate"},
		{"a leaf", Files{Cert: notCA.pem(), Key: notCA.keyPEM(t, true), Roots: root.pem()}, "not a CA certificate"},
		{"a key usage without signing", Files{Cert: noSign.pem(), Key: noSign.keyPEM(t, true), Roots: root.pem()}, "key usage does not allow signing certificates"},
		{"a path that is too long", Files{Cert: tooDeep.pem(), Key: tooDeep.keyPEM(t, true), Roots: pathed.pem()}, "1 intermediates below it, its path length allows 0"},
		{"a weak key", Files{Cert: weak.pem(), Key: weak.keyPEM(t, true), Roots: weak.pem()}, "invalid RSA key of 1024 bits: want 2048–8192"},
		{"a certificate that ends too soon", Files{Cert: short.pem(), Key: short.keyPEM(t, true), Roots: short.pem()}, "ends too soon, at 2026-11-21T12:59:00Z: want it valid for at least 1h0m0s; renew it"},
		{"a root that ends too soon", Files{Cert: long.pem(), Key: long.keyPEM(t, true), Roots: short.pem()}, `"CN=Root CA of short,O=short" ends too soon`},
		{"a root that is a leaf", Files{Cert: root.pem(), Key: root.keyPEM(t, true), Roots: pems(root, notCA)}, `root-cert.pem: certificate "CN=Root CA of leaf,O=leaf": not a CA certificate`},
	} {
		_, err := LoadFiles(tt.f, IstioNames, Limits{}, noon)
		if err == nil || !strings.Contains(err.Error(), tt.why) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.why)
		}
	}
	for name, at := range map[string]time.Duration{"expired at": -time.Second, "not valid before": -2 * time.Hour} {
		a := newCA(t, "root", authority{}, ends(-time.Second))
		if _, err := NewIssuer(a.key, []*x509.Certificate{a.cert}, noon.Add(at+time.Second)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want %q", err, name)
		}
	}
	if _, err := LoadFiles(Files{Cert: short.pem(), Key: short.keyPEM(t, true), Roots: short.pem()}, TLSNames, Limits{DefaultTTL: time.Minute}, noon); err != nil {
		t.Errorf("a CA that outlives the certificates that it signs: %v", err)
	}
}

// weakCA is a root with an RSA key of 1024 bits.
func weakCA(t *testing.T) authority {
	t.Helper()
	t.Setenv("GODEBUG", "rsa1024min=0")
	key, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := pki.Sign(pki.RootTemplate("weak", pki.Validity{NotBefore: noon, NotAfter: noon.Add(time.Hour * 24)}), nil, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert, key}
}

func TestChooseNames(t *testing.T) {
	for _, tt := range []struct {
		have string
		want FileNames
		ok   bool
	}{
		{"", FileNames{}, false},
		{"istio-generated README", FileNames{}, false},
		{"ca-cert.pem ca-key.pem cert-chain.pem root-cert.pem", IstioNames, true},
		{"root-cert.pem", IstioNames, true},
		{"tls.crt tls.key ca.crt", TLSNames, true},
		{"ca.crt", TLSNames, true},
		{"tls.crt tls.key ca.crt ca-cert.pem ca-key.pem root-cert.pem", TLSNames, true},
		{"ca.crt ca-cert.pem ca-key.pem root-cert.pem", IstioNames, true},
	} {
		have := strings.Fields(tt.have)
		got, ok := ChooseNames(func(name string) bool { return slices.Contains(have, name) })
		if got != tt.want || ok != tt.ok {
			t.Errorf("%q: %v, %v", tt.have, got, ok)
		}
	}
}

func TestOnlyApprovalsAreSigned(t *testing.T) {
	a := newCA(t, "root", authority{})
	issuer, err := NewIssuer(a.key, []*x509.Certificate{a.cert}, noon)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := issuer.Sign(Approval{}); err == nil {
		t.Errorf("signed %v without an approval", c.Subject)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewIssuer(key, []*x509.Certificate{a.cert}, noon); err == nil || !strings.Contains(err.Error(), "does not match") {
		t.Errorf("an issuer with another key: %v", err)
	}
	text := issuer.String() + issuer.GoString()
	if strings.Contains(text, "PRIVATE") || !strings.Contains(text, "CN=Root CA of root") {
		t.Errorf("text %q", text)
	}
}
