package pki

import (
	"bytes"
	"crypto/x509"
	"strings"
	"testing"
	"time"
)

// FuzzPEM: whatever a text has, parsing it ends without a panic, what was parsed can be encoded and parsed
// again, and no error has a part of the text, which may be a key.
func FuzzPEM(f *testing.F) {
	root, key := newRoot(f, term(time.Hour, time.Hour))
	for _, kind := range []KeyKind{ECDSAP256, ECDSAP384, RSA2048} {
		k, err := GenerateKey(kind)
		if err != nil {
			f.Fatal(err)
		}
		for _, pkcs8 := range []bool{false, true} {
			text, err := EncodeKey(k, pkcs8)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text)
			f.Add(append(EncodeCerts(root, root), text...))
		}
	}
	csr, err := MakeCSR(key, alice)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(csr)
	f.Add(append([]byte("text between\n"), EncodeCerts(root)...))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if certs, err := ParseBundle(text); err == nil {
			again, err := ParseBundle(EncodeCerts(certs...))
			if err != nil || !bytes.Equal(EncodeCerts(again...), EncodeCerts(certs...)) {
				t.Fatalf("%d certificates are %d after encoding them: %v", len(certs), len(again), err)
			}
			if set := Normalize(append(certs, certs...)); len(set) > len(certs) || !bytes.Equal(EncodeCerts(Normalize(set)...), EncodeCerts(set...)) {
				t.Fatalf("%d certificates, each twice, are normalized to %d", len(certs), len(set))
			}
		}
		if k, err := ParseKey(text); err == nil {
			if encoded, err := EncodeKey(k, true); err == nil {
				if again, err := ParseKey(encoded); err != nil || !KeyMatches(again, &x509.Certificate{PublicKey: k.Public()}) {
					t.Fatalf("a key is another one after encoding it: %v", err)
				}
			}
		} else if len(text) > 64 && strings.Contains(err.Error(), string(text[27:64])) {
			t.Fatalf("the error has a part of the text: %v", err)
		}
		if r, err := ParseCSR(text); err == nil && (len(text) > MaxCSR || r.CheckSignature() != nil) {
			t.Fatal("an invalid request was accepted")
		}
	})
}
