package policy

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/pki"
)

func uris(t testing.TB, all ...string) (out []*url.URL) {
	t.Helper()
	for _, text := range all {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, u)
	}
	return out
}

func requestPEM(t testing.TB, template *x509.CertificateRequest, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func extension(t testing.TB, id asn1.ObjectIdentifier, value any) []pkix.Extension {
	t.Helper()
	raw, ok := value.([]byte)
	if !ok {
		var err error
		if raw, err = asn1.Marshal(value); err != nil {
			t.Fatal(err)
		}
	}
	return []pkix.Extension{{Id: id, Critical: true, Value: raw}}
}

// basicConstraints is the extension's value.
type basicConstraints struct {
	IsCA       bool `asn1:"optional"`
	MaxPathLen int  `asn1:"optional,default:-1"`
}

// Whatever a request says: the certificate is for the caller, for no more than the usages of workloads, or
// there is none.
func TestRequests(t *testing.T) {
	t.Setenv("GODEBUG", "rsa1024min=0")
	key := generate(t, func() (crypto.Signer, error) { return pki.GenerateKey("") })
	weak := generate(t, func() (crypto.Signer, error) { return rsa.GenerateKey(rand.Reader, 1024) })
	strange := generate(t, func() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P521(), rand.Reader) })
	small := generate(t, func() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P224(), rand.Reader) })
	edwards := generate(t, func() (crypto.Signer, error) {
		_, k, err := ed25519.GenerateKey(rand.Reader)
		return k, err
	})
	with := func(key crypto.Signer, change func(*x509.CertificateRequest)) []byte {
		r := &x509.CertificateRequest{URIs: uris(t, "spiffe://cluster.local/ns/shop/sa/alice")}
		if change != nil {
			change(r)
		}
		return requestPEM(t, r, key)
	}
	named := func(all ...string) []byte {
		return with(key, func(r *x509.CertificateRequest) { r.URIs = uris(t, all...) })
	}
	extended := func(id asn1.ObjectIdentifier, value any) []byte {
		return with(key, func(r *x509.CertificateRequest) { r.ExtraExtensions = extension(t, id, value) })
	}
	good := with(key, nil)
	forged := forge(t, good)
	for _, tt := range []struct {
		name string
		csr  []byte
		want error // nil: signed
		why  string
	}{
		{"the caller's identity", good, nil, ""},
		{"no names", named(), nil, ""},
		{"another trust domain", named("spiffe://former.domain/ns/shop/sa/alice"), ErrNames, "former.domain"},
		{"an agent that does not know its account", named("spiffe://cluster.local/ns/shop/sa/"), nil, ""},
		{"a subject", with(key, func(r *x509.CertificateRequest) {
			r.Subject = pkix.Name{CommonName: "admin", Organization: []string{"x"}}
		}), nil, ""},
		{"constraints without CA", extended(oidBasicConstraints, basicConstraints{MaxPathLen: -1}), nil, ""},
		{"usage for signatures", extended(oidKeyUsage, asn1.BitString{Bytes: []byte{0x80}, BitLength: 1}), nil, ""},
		{"any extended usage", extended(asn1.ObjectIdentifier{2, 5, 29, 37}, []asn1.ObjectIdentifier{{2, 5, 29, 37, 0}}), ErrNames, "extended key usage"},

		{"another account", named("spiffe://cluster.local/ns/shop/sa/bob"), ErrNames, `it has the name "spiffe://cluster.local/ns/shop/sa/bob": want spiffe://cluster.local/ns/shop/sa/alice or none`},
		{"another namespace", named("spiffe://cluster.local/ns/bank/sa/alice"), ErrNames, "/ns/bank/sa/alice"},
		{"the control plane", named("spiffe://cluster.local/ns/istio-system/sa/istiod"), ErrNames, "istiod"},
		{"the own one and another", named("spiffe://cluster.local/ns/shop/sa/alice", "spiffe://cluster.local/ns/bank/sa/boss"), ErrNames, "boss"},
		{"more of a path", named("spiffe://cluster.local/ns/shop/sa/alice/x"), ErrNames, "alice/x"},
		{"a path that is encoded", named("spiffe://cluster.local/ns/shop/sa/alice%2fbob"), ErrNames, "or none"},
		{"a query", named("spiffe://cluster.local/ns/shop/sa/alice?x"), ErrNames, "or none"},
		{"a user", named("spiffe://root@cluster.local/ns/shop/sa/alice"), ErrNames, "or none"},
		{"another scheme", named("https://cluster.local/ns/shop/sa/alice"), ErrNames, "https"},
		{"a host name", with(key, func(r *x509.CertificateRequest) { r.DNSNames = []string{"istiod.istio-system.svc"} }), ErrNames, "1 DNS names"},
		{"an address", with(key, func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{{10, 0, 0, 1}} }), ErrNames, "1 addresses"},
		{"a mail address", with(key, func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"root@example"} }), ErrNames, "1 others"},

		{"a CA", extended(oidBasicConstraints, basicConstraints{IsCA: true, MaxPathLen: -1}), ErrRequest, "asks for a CA certificate"},
		{"a CA with a path length", extended(oidBasicConstraints, basicConstraints{IsCA: true, MaxPathLen: 1}), ErrRequest, "asks for a CA certificate"},
		{"malformed constraints", extended(oidBasicConstraints, []byte{1}), ErrRequest, "invalid basic constraints"},
		{"usage for signing certificates", extended(oidKeyUsage, asn1.BitString{Bytes: []byte{0x04}, BitLength: 6}), ErrRequest, "key usage of CAs"},
		{"usage for revocation lists", extended(oidKeyUsage, asn1.BitString{Bytes: []byte{0x02}, BitLength: 7}), ErrRequest, "key usage of CAs"},
		{"malformed usage", extended(oidKeyUsage, []byte{9}), ErrRequest, "invalid key usage"},
		{"a weak RSA key", with(weak, nil), ErrRequest, "invalid RSA key of 1024 bits: want 2048–8192"},
		{"a weak ECDSA key", with(small, nil), ErrRequest, "invalid ECDSA key on curve P-224"},
		{"another curve", with(strange, nil), ErrRequest, "invalid ECDSA key on curve P-521"},
		{"another algorithm", with(edwards, nil), ErrRequest, "want ECDSA or RSA"},
		{"another key than the signature's", forged, ErrRequest, "signature"},
		{"a certificate", pki.EncodeCerts(newCA(t, "x", authority{}).cert), ErrRequest, `PEM block "CERTIFICATE"`},
		{"two requests", append(append([]byte{}, good...), good...), ErrRequest, "unexpected data after"},
		{"nothing", nil, ErrRequest, "no PEM block"},
		{"16 KiB and a byte", append(good, make([]byte, pki.MaxCSR)...), ErrRequest, "at most 16384"},
	} {
		approval, err := Workload(Request{Caller: alice, CSR: tt.csr}, Limits{}, pki.Validity{NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(time.Hour)}, noon)
		if !errors.Is(err, tt.want) || err != nil && !strings.Contains(err.Error(), tt.why) {
			t.Errorf("%s: %v, want %v %q", tt.name, err, tt.want, tt.why)
		}
		if err != nil {
			if approval.template != nil {
				t.Errorf("%s: an approval with the error %v", tt.name, err)
			}
			continue
		}
		checkLeaf(t, tt.name, approval)
	}
}

// checkLeaf checks that a signed approval is a leaf for alice.
func checkLeaf(t *testing.T, name string, a Approval) {
	t.Helper()
	root := newCA(t, "root", authority{})
	issuer, err := NewIssuer(root.key, []*x509.Certificate{root.cert}, noon)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := issuer.Sign(a)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if id, err := pki.IdentityOf(leaf); err != nil || id != alice {
		t.Errorf("%s: identity %v, %v", name, id, err)
	}
	if leaf.IsCA || !leaf.BasicConstraintsValid || leaf.KeyUsage != x509.KeyUsageDigitalSignature|x509.KeyUsageKeyEncipherment || len(leaf.ExtKeyUsage) != 2 || len(leaf.UnknownExtKeyUsage) != 0 ||
		len(leaf.DNSNames)+len(leaf.IPAddresses)+len(leaf.EmailAddresses) != 0 || leaf.Subject.String() != "" || leaf.SerialNumber.BitLen() < 64 {
		t.Errorf("%s: CA %v, usage %b %v, names %v %v %v %q", name, leaf.IsCA, leaf.KeyUsage, leaf.ExtKeyUsage, leaf.DNSNames, leaf.IPAddresses, leaf.EmailAddresses, leaf.Subject)
	}
}

func generate(t *testing.T, f func() (crypto.Signer, error)) crypto.Signer {
	t.Helper()
	key, err := f()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// forge returns a request in which the last byte of the signature differs.
func forge(t *testing.T, text []byte) []byte {
	t.Helper()
	block, _ := pem.Decode(text)
	block.Bytes[len(block.Bytes)-1] ^= 1
	return pem.EncodeToMemory(block)
}

func FuzzWorkload(f *testing.F) {
	key, err := pki.GenerateKey("")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(requestPEM(f, &x509.CertificateRequest{URIs: uris(f, "spiffe://cluster.local/ns/shop/sa/alice")}, key))
	f.Add(requestPEM(f, &x509.CertificateRequest{URIs: uris(f, "spiffe://cluster.local/ns/shop/sa/bob"), DNSNames: []string{"a"}}, key))
	f.Add(requestPEM(f, &x509.CertificateRequest{ExtraExtensions: extension(f, oidBasicConstraints, basicConstraints{IsCA: true, MaxPathLen: -1})}, key))
	f.Add(requestPEM(f, &x509.CertificateRequest{ExtraExtensions: extension(f, oidKeyUsage, asn1.BitString{Bytes: []byte{0x04}, BitLength: 6})}, key))
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		approval, err := Workload(Request{Caller: alice, CSR: text}, Limits{}, pki.Validity{NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(time.Hour)}, noon)
		if (err == nil) != (approval.template != nil) {
			t.Fatalf("approval %v with the error %v", approval.template != nil, err)
		}
		if err == nil {
			checkLeaf(t, "fuzzed", approval)
		}
	})
}

func FuzzLoadFiles(f *testing.F) {
	root := newCA(f, "root", authority{})
	below := newCA(f, "below", root)
	key := below.keyPEM(f, true)
	f.Add(below.pem(), key, pems(below, root), root.pem())
	f.Add(root.pem(), root.keyPEM(f, false), []byte(nil), root.pem())
	f.Add(pems(below, below), key, pems(root, root), pems(below, root))
	f.Fuzz(func(t *testing.T, cert, key, chain, roots []byte) {
		p, err := LoadFiles(Files{Cert: cert, Key: key, Chain: chain, Roots: roots}, IstioNames, Limits{}, noon)
		if err != nil {
			return
		}
		verifyLeaf(t, "fuzzed", p)
	})
}
