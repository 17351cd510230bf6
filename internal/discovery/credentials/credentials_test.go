package credentials

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"
)

// pair is a self-signed certificate and its key, in PEM.
func pair(t testing.TB, name string) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour), IsCA: true}
	der, err := x509.CreateCertificate(rand.Reader, of, of, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text})
}

func TestNamesOfSecrets(t *testing.T) {
	for resource, want := range map[string]Name{
		"kubernetes://a":                  {Namespace: "shop", Secret: "a"},
		"kubernetes://a-cacert":           {Namespace: "shop", Secret: "a", CA: true},
		"kubernetes://other/a":            {Namespace: "other", Secret: "a"},
		"kubernetes-gateway://other/a":    {Namespace: "other", Secret: "a", Reference: true},
		"kubernetes-gateway://o/a-cacert": {Namespace: "o", Secret: "a", CA: true, Reference: true},
		"kubernetes-gateway://without":    {},
		"kubernetes://":                   {},
		"kubernetes://a/b/c":              {},
		"kubernetes://-cacert":            {},
		"default":                         {},
		"file-cert:/etc/a.pem~/etc/k.pem": {},
		"kubernetes:/a":                   {},
		"kubernetes:///a":                 {},
		"kubernetes-gateway:///a":         {},
	} {
		got, ok := ParseName(resource, "shop")
		if ok != (want != Name{}) || ok && got != want {
			t.Errorf("%s: %+v, %v, want %+v", resource, got, ok, want)
		}
	}
}

func TestSecretsAreParsed(t *testing.T) {
	cert, key := pair(t, "a")
	other, otherKey := pair(t, "b")
	for name, tc := range map[string]struct {
		data map[string][]byte
		want string // an error
		ca   bool
	}{
		"TLS":                 {data: map[string][]byte{"tls.crt": cert, "tls.key": key}},
		"TLS with a CA":       {data: map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": other}, ca: true},
		"generic":             {data: map[string][]byte{"cert": cert, "key": key, "cacert": other}, ca: true},
		"CA only":             {data: map[string][]byte{"cacert": append(append([]byte{}, cert...), other...)}, ca: true},
		"other":               {data: map[string][]byte{"password": []byte("x")}, want: "none of the keys tls.crt, cert, ca.crt and cacert"},
		"no key":              {data: map[string][]byte{"tls.crt": cert}, want: "tls.crt without tls.key: want both"},
		"no certificate":      {data: map[string][]byte{"tls.key": key}, want: "tls.key without tls.crt: want both"},
		"another's key":       {data: map[string][]byte{"tls.crt": cert, "tls.key": otherKey}, want: "tls.crt and tls.key: want a certificate in PEM and its private key"},
		"no PEM":              {data: map[string][]byte{"cert": []byte("x"), "key": key}, want: "cert and key: want a certificate in PEM and its private key"},
		"a CA that is none":   {data: map[string][]byte{"ca.crt": key}, want: "ca.crt: want certificates in PEM"},
		"a list that is none": {data: map[string][]byte{"ca.crt": cert, "ca.crl": cert}, want: "ca.crl: want a list of revoked certificates in PEM"},
		"text around a CA":    {data: map[string][]byte{"ca.crt": append(append([]byte("# one\n"), cert...), "# end\n"...)}, ca: true},
		"a cut CA":            {data: map[string][]byte{"ca.crt": append(append([]byte{}, cert...), cert[:60]...)}, want: "ca.crt: want certificates in PEM"},
		"a cut chain":         {data: map[string][]byte{"tls.crt": append(append([]byte{}, cert...), cert[:60]...), "tls.key": key}, want: "tls.crt: want certificates in PEM"},
		"no staple":           {data: map[string][]byte{"tls.crt": cert, "tls.key": key, "tls.ocsp-staple": []byte("x")}, want: "tls.ocsp-staple: want a successful OCSP response in DER for the certificate of tls.crt"},
		"too much":            {data: map[string][]byte{"tls.crt": cert, "x": make([]byte, MaxBytes)}, want: "bytes: want at most 1048576"},
	} {
		c, err := Parse(tc.data)
		if tc.want != "" {
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %v, want %q", name, err, tc.want)
			}
			if IsOther(err) != (name == "other") {
				t.Errorf("%s: is it another's? %v", name, IsOther(err))
			}
			continue
		}
		if err != nil || len(c.CA) > 0 != tc.ca || c.Version == "" {
			t.Errorf("%s: %v, %v", name, c, err)
		}
		for _, text := range []string{fmt.Sprint(c), fmt.Sprintf("%+v", c), fmt.Sprintf("%#v", c)} {
			if strings.Contains(text, "BEGIN") || len(text) > 60 {
				t.Errorf("%s: printed as %s", name, text)
			}
		}
	}
}
