// Package token issues JSON Web Tokens for tests.
package token

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"maps"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Issuer signs tokens with a key of its own.
type Issuer struct {
	Name string
	key  *ecdsa.PrivateKey
}

// New returns an issuer with a new key.
func New(t testing.TB, name string) *Issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &Issuer{name, key}
}

// Keys returns the issuer's public keys, a JWK set.
func (i *Issuer) Keys(t testing.TB) string {
	t.Helper()
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &i.key.PublicKey, KeyID: i.Name, Algorithm: "ES256", Use: "sig"}}})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Sign returns a token with these claims, and with the issuer's iss and an end in an hour where they have none.
func (i *Issuer) Sign(t testing.TB, claims map[string]any) string {
	t.Helper()
	all := map[string]any{"iss": i.Name, "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(all, claims)
	body, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.key, KeyID: i.Name}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(body)
	if err != nil {
		t.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}
