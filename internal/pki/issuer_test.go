package pki

import (
	"crypto"
	"crypto/x509"
	"testing"
	"time"
)

// The end of a secret is the earliest in its chain, and it is known whether that is an issuer's.
func TestEndOfTheWholeChain(t *testing.T) {
	root, rootKey := newRoot(t, term(time.Hour, 1000*time.Hour))
	// The same name and key, renewed, as an authority does before its root ends.
	renewed := must[*x509.Certificate](t)(Sign(RootTemplate("cluster.local", term(time.Hour, 5000*time.Hour)), nil, rootKey.Public(), rootKey))
	ending := must[*x509.Certificate](t)(Sign(RootTemplate("cluster.local", term(time.Hour, 10*time.Hour)), nil, rootKey.Public(), rootKey))
	other, _ := newRoot(t, term(time.Hour, 2*time.Hour))
	middleKey := newKey(t)
	middle := must[*x509.Certificate](t)(Sign(RootTemplate("middle", term(time.Hour, 20*time.Hour)), root, middleKey.Public(), rootKey))
	leaf, key := newLeaf(t, root, rootKey, term(time.Minute, 24*time.Hour))
	under, underKey := newLeaf(t, middle, middleKey, term(time.Minute, 24*time.Hour))
	for _, tt := range []struct {
		name                string
		chain, roots        []*x509.Certificate
		end, issuers, first *x509.Certificate // whose ends they are
		alarm               bool
	}{
		{"a long root", []*x509.Certificate{leaf}, []*x509.Certificate{root}, leaf, root, root, false},
		{"a root that ends first", []*x509.Certificate{leaf}, []*x509.Certificate{ending}, ending, ending, ending, true},
		{"an intermediate that ends first", []*x509.Certificate{under, middle}, []*x509.Certificate{root}, middle, middle, root, true},
		{"the renewed root is trusted too", []*x509.Certificate{leaf}, []*x509.Certificate{ending, renewed}, leaf, renewed, ending, false},
		{"another root ends first", []*x509.Certificate{leaf}, []*x509.Certificate{other, root}, leaf, root, other, false},
	} {
		k := key
		if tt.chain[0] == under {
			k = underKey
		}
		s, err := NewSecret(must[[]byte](t)(EncodeKey(k, false)), EncodeCerts(tt.chain...), EncodeCerts(tt.roots...), now)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if !s.NotAfter.Equal(tt.end.NotAfter) || !s.IssuerNotAfter.Equal(tt.issuers.NotAfter) || !s.RootsNotAfter.Equal(tt.first.NotAfter) || s.EndsWithIssuer() != tt.alarm {
			t.Errorf("%s: ends at %s, its issuers at %s, the first root at %s, with an issuer: %v", tt.name, s.NotAfter, s.IssuerNotAfter, s.RootsNotAfter, s.EndsWithIssuer())
		}
	}
}

func TestKindOf(t *testing.T) {
	for _, kind := range []KeyKind{ECDSAP256, ECDSAP384, RSA2048, RSA3072, RSA4096} {
		if got := KindOf(must[crypto.Signer](t)(GenerateKey(kind))); got != kind {
			t.Errorf("%s is taken for %q", kind, got)
		}
	}
}
