package store

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/credentials"
	"github.com/pilothouse/pilothouse/internal/mesh"
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

func TestOnlyTheNamespacesOwnProxiesGetSecrets(t *testing.T) {
	cert, key := pair(t, "a")
	c, err := credentials.Parse(map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": cert})
	if err != nil {
		t.Fatal(err)
	}
	own := mesh.Identity{TrustDomain: "td", Namespace: "shop", ServiceAccount: "gw"}
	s := New()
	changed := s.Changed()
	s.Put("shop", "a", c)
	select {
	case <-changed:
	default:
		t.Error("nobody is told of a new Secret")
	}
	for _, tc := range []struct {
		who  mesh.Identity
		name credentials.Name
		want credentials.State
	}{
		{own, credentials.Name{Namespace: "shop", Secret: "a"}, credentials.Found},
		{own, credentials.Name{Namespace: "shop", Secret: "a", CA: true}, credentials.Found},
		{own, credentials.Name{Namespace: "shop", Secret: "b"}, credentials.Missing},
		{own, credentials.Name{Namespace: "other", Secret: "a"}, credentials.Forbidden},
		{mesh.Identity{Namespace: "other"}, credentials.Name{Namespace: "shop", Secret: "a"}, credentials.Forbidden},
		{mesh.Identity{}, credentials.Name{Secret: "a"}, credentials.Forbidden},
	} {
		if got := s.Get(credentials.Caller{Identity: tc.who}, tc.name); got.State != tc.want || (got.Credential != nil) != (got.State == credentials.Found) {
			t.Errorf("%v asks for %+v: %+v, want %v", tc.who, tc.name, got, tc.want)
		}
	}
	// A Gateway of the Gateway API may refer to other namespaces, and those in its own may use what it refers to.
	ref := credentials.Name{Namespace: "shop", Secret: "a", Reference: true}
	edge := credentials.Caller{Identity: mesh.Identity{TrustDomain: "td", Namespace: "edge", ServiceAccount: "gw"}}
	for _, who := range []credentials.Caller{edge, {Identity: own}} {
		if got := s.Get(who, ref); got.State != credentials.Forbidden || got.Why == "" {
			t.Errorf("%v, without a reference: %+v", who, got)
		}
	}
	changed = s.Changed()
	s.Refer(map[credentials.Reference]bool{{From: "edge", Namespace: "shop", Secret: "a"}: true})
	select {
	case <-changed:
	default:
		t.Error("nobody is told of a new reference")
	}
	for _, tc := range []struct {
		who  credentials.Caller
		name credentials.Name
		want credentials.State
	}{
		{edge, ref, credentials.Found}, {credentials.Caller{Identity: own}, ref, credentials.Forbidden},
		{edge, credentials.Name{Namespace: "shop", Secret: "a"}, credentials.Forbidden},
		{edge, credentials.Name{Namespace: "shop", Secret: "b", Reference: true}, credentials.Forbidden},
	} {
		if got := s.Get(tc.who, tc.name); got.State != tc.want {
			t.Errorf("%v asks for %+v: %+v, want %v", tc.who, tc.name, got, tc.want)
		}
	}
	s.Put("shop", "a", nil)
	if got := s.Get(credentials.Caller{Identity: own}, credentials.Name{Namespace: "shop", Secret: "a"}); got.State != credentials.Missing {
		t.Errorf("a Secret that was removed: %+v", got)
	}
}
