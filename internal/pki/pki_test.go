package pki

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

var (
	now   = time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	alice = mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "alice"}
)

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func newKey(t testing.TB) crypto.Signer {
	return must[crypto.Signer](t)(GenerateKey(ECDSAP256))
}

func newRoot(t testing.TB, term Validity) (*x509.Certificate, crypto.Signer) {
	key := newKey(t)
	return must[*x509.Certificate](t)(Sign(RootTemplate("cluster.local", term), nil, key.Public(), key)), key
}

func newLeaf(t testing.TB, root *x509.Certificate, rootKey crypto.Signer, term Validity) (*x509.Certificate, crypto.Signer) {
	key := newKey(t)
	tmpl := must[*x509.Certificate](t)(WorkloadTemplate(alice, term))
	return must[*x509.Certificate](t)(Sign(tmpl, root, key.Public(), rootKey)), key
}

func term(before, after time.Duration) Validity {
	return Validity{NotBefore: now.Add(-before), NotAfter: now.Add(after)}
}

func TestEncodeKey(t *testing.T) {
	for _, kind := range []KeyKind{"", ECDSAP256, ECDSAP384, RSA2048} {
		for _, pkcs8 := range []bool{false, true} {
			key := must[crypto.Signer](t)(GenerateKey(kind))
			text := must[[]byte](t)(EncodeKey(key, pkcs8))
			back := must[crypto.Signer](t)(ParseKey(append([]byte("-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"), text...)))
			if !back.Public().(interface{ Equal(crypto.PublicKey) bool }).Equal(key.Public()) {
				t.Errorf("%s pkcs8=%v: parsed another key", kind, pkcs8)
			}
			if bytes.Contains(text, []byte("BEGIN PRIVATE KEY")) != pkcs8 {
				t.Errorf("%s pkcs8=%v: form is %s", kind, pkcs8, text[:30])
			}
		}
	}
	for _, bad := range []string{"", "nonsense", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"} {
		if _, err := ParseKey([]byte(bad)); err == nil {
			t.Errorf("ParseKey(%q) returned no error", bad)
		}
	}
}

func TestChooseKeyKind(t *testing.T) {
	for _, tt := range []struct {
		alg, curve string
		bits       int
		want       KeyKind
	}{
		{"", "", 0, ECDSAP256}, {"ECDSA", "", 2048, ECDSAP256}, {"ECDSA", "P384", 0, ECDSAP384},
		{"", "", 4096, RSA4096}, {"RSA", "", 0, RSA2048}, {"RSA", "", 1024, ""}, {"ED25519", "", 0, ""}, {"ECDSA", "P521", 0, ""},
	} {
		if got, err := ChooseKeyKind(tt.alg, tt.curve, tt.bits); got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("ChooseKeyKind(%q, %q, %d) = %q, %v; want %q", tt.alg, tt.curve, tt.bits, got, err, tt.want)
		}
	}
}

func TestParseCSR(t *testing.T) {
	good := must[[]byte](t)(MakeCSR(newKey(t), alice))
	csr := must[*x509.CertificateRequest](t)(ParseCSR(good))
	if len(csr.URIs) != 1 || csr.URIs[0].String() != alice.SPIFFE() {
		t.Errorf("URIs = %v", csr.URIs)
	}
	block, _ := pem.Decode(good)
	broken := bytes.Clone(block.Bytes)
	broken[len(broken)-1] ^= 1
	_, ed, _ := ed25519.GenerateKey(rand.Reader)
	for _, tt := range []struct {
		name, why string
		in        []byte
	}{
		{"empty", "no PEM block", nil},
		{"text", "no PEM block", []byte("hello")},
		{"too long", "at most 16384", bytes.Repeat([]byte("x"), MaxCSR+1)},
		{"a certificate", "want \"CERTIFICATE REQUEST\"", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes})},
		{"two", "unexpected data", append(bytes.Clone(good), good...)},
		{"not DER", "certificate request:", pem.EncodeToMemory(&pem.Block{Type: typeRequest, Bytes: []byte("zz")})},
		{"another signature", "signature", pem.EncodeToMemory(&pem.Block{Type: typeRequest, Bytes: broken})},
		{"Ed25519", "want ECDSA or RSA", must[[]byte](t)(MakeCSR(ed, alice))},
	} {
		if _, err := ParseCSR(tt.in); err == nil || !strings.Contains(err.Error(), tt.why) {
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.why)
		}
	}
}

func TestIdentityOf(t *testing.T) {
	u := func(s string) *url.URL { return must[*url.URL](t)(url.Parse(s)) }
	for _, tt := range []struct {
		uris []*url.URL
		want mesh.Identity
	}{
		{[]*url.URL{u("spiffe://cluster.local/ns/shop/sa/alice")}, alice},
		{nil, mesh.Identity{}},
		{[]*url.URL{u(alice.SPIFFE()), u(alice.SPIFFE())}, mesh.Identity{}},
		{[]*url.URL{u("https://cluster.local/ns/shop/sa/alice")}, mesh.Identity{}},
		{[]*url.URL{u("spiffe://me@cluster.local/ns/shop/sa/alice")}, mesh.Identity{}},
		{[]*url.URL{u("spiffe://cluster.local/ns/shop/sa/alice?x=y")}, mesh.Identity{}},
		{[]*url.URL{u("spiffe://cluster.local/ns/sh%2fop/sa/alice")}, mesh.Identity{}},
	} {
		got, err := IdentityOf(&x509.Certificate{URIs: tt.uris})
		if (err == nil) != (tt.want != mesh.Identity{}) || err == nil && got != tt.want {
			t.Errorf("%v: %v, %v; want %v", tt.uris, got, err, tt.want)
		}
	}
}

func TestVerifyChain(t *testing.T) {
	root, rootKey := newRoot(t, term(time.Hour, 1000*time.Hour))
	other, _ := newRoot(t, term(time.Hour, 1000*time.Hour))
	leaf, _ := newLeaf(t, root, rootKey, term(time.Hour, time.Hour))
	server := must[*x509.Certificate](t)(Sign(ServerTemplate([]string{"istiod", "127.0.0.1"}, term(time.Hour, time.Hour)), root, newKey(t).Public(), rootKey))
	for _, tt := range []struct {
		name  string
		leaf  *x509.Certificate
		root  *x509.Certificate
		usage x509.ExtKeyUsage
		at    time.Time
		ok    bool
	}{
		{"a client", leaf, root, x509.ExtKeyUsageClientAuth, now, true},
		{"a server", server, root, x509.ExtKeyUsageServerAuth, now, true},
		{"a server as a client", server, root, x509.ExtKeyUsageClientAuth, now, false},
		{"another root", leaf, other, x509.ExtKeyUsageClientAuth, now, false},
		{"expired", leaf, root, x509.ExtKeyUsageClientAuth, now.Add(2 * time.Hour), false},
		{"not yet valid", leaf, root, x509.ExtKeyUsageClientAuth, now.Add(-2 * time.Hour), false},
	} {
		err := VerifyChain([]*x509.Certificate{tt.leaf}, []*x509.Certificate{tt.root}, tt.usage, tt.at)
		if (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if server.VerifyHostname("127.0.0.1") != nil || server.VerifyHostname("istiod") != nil {
		t.Errorf("server's names: %v %v", server.DNSNames, server.IPAddresses)
	}
}

func TestNewSecret(t *testing.T) {
	root, rootKey := newRoot(t, term(time.Hour, 10*time.Hour))
	leaf, key := newLeaf(t, root, rootKey, term(time.Minute, 24*time.Hour))
	keyPEM := must[[]byte](t)(EncodeKey(key, false))
	s := must[*Secret](t)(NewSecret(keyPEM, EncodeCerts(leaf, root), EncodeCerts(root), now))
	if !bytes.Equal(s.Chain, EncodeCerts(leaf)) {
		t.Error("the chain contains the root")
	}
	if !s.NotAfter.Equal(root.NotAfter) || !s.NotBefore.Equal(leaf.NotBefore) {
		t.Errorf("valid %s to %s; the root ends at %s", s.NotBefore, s.NotAfter, root.NotAfter)
	}
	if strings.Contains(s.GoString(), "KEY") {
		t.Error("GoString contains the key")
	}
	again := must[*Secret](t)(NewSecret(keyPEM, EncodeCerts(leaf), EncodeCerts(root), now))
	if again.Version != s.Version {
		t.Error("the same content has two versions")
	}
	otherKey := must[[]byte](t)(EncodeKey(newKey(t), false))
	if _, err := NewSecret(otherKey, EncodeCerts(leaf, root), EncodeCerts(root), now); err == nil || !strings.Contains(err.Error(), "does not match the private key") {
		t.Errorf("another key: %v", err)
	}
	if _, err := NewSecret(keyPEM, EncodeCerts(leaf), EncodeCerts(root), now.Add(11*time.Hour)); err == nil {
		t.Error("an expired chain is accepted")
	}
}

func FuzzParseCSR(f *testing.F) {
	good := must[[]byte](f)(MakeCSR(newKey(f), alice))
	f.Add(good)
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----"))
	block, _ := pem.Decode(good)
	f.Add(block.Bytes)
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, text := range [][]byte{in, pem.EncodeToMemory(&pem.Block{Type: typeRequest, Bytes: in})} {
			csr, err := ParseCSR(text)
			if err != nil {
				continue
			}
			if checkPublicKey(csr.PublicKey) != nil || csr.CheckSignature() != nil {
				t.Fatal("a request with an invalid key or signature is accepted")
			}
		}
	})
}
