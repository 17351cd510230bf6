package authn

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/go-jose/go-jose/v4"
)

// Bounds of a set of keys.
const (
	maxKeys    = 64
	maxKeySet  = 1 << 20 // bytes
	minRSABits = 2048
	maxRSABits = 8192
)

// algorithms are those that issuers may sign with. All are asymmetric: the keys are public.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// keySet is an issuer's public keys. It is immutable.
type keySet struct{ keys []jose.JSONWebKey }

// parseKeys parses a JWK set in JSON of at most 1 MiB with at most 64 keys. Keys that cannot sign tokens,
// such as those for encryption, are left out. It is an error if none is left.
func parseKeys(text []byte) (*keySet, error) {
	if len(text) > maxKeySet {
		return nil, fmt.Errorf("key set: %d bytes, want at most %d", len(text), maxKeySet)
	}
	var raw struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &raw); err != nil {
		return nil, errors.New("key set: invalid JSON: want an object with a list of keys")
	}
	if len(raw.Keys) > maxKeys {
		return nil, fmt.Errorf("key set: %d keys, want at most %d", len(raw.Keys), maxKeys)
	}
	var s keySet
	for _, one := range raw.Keys {
		var k jose.JSONWebKey
		// A set may have keys of types that are not known here.
		if k.UnmarshalJSON(one) == nil && signsTokens(k) {
			s.keys = append(s.keys, k)
		}
	}
	if len(s.keys) == 0 {
		return nil, fmt.Errorf("key set: none of %d keys can be used: want public keys for signatures, RSA of %d–%d bits, ECDSA or Ed25519", len(raw.Keys), minRSABits, maxRSABits)
	}
	return &s, nil
}

func signsTokens(k jose.JSONWebKey) bool {
	if k.Use != "" && k.Use != "sig" || !k.IsPublic() || !k.Valid() {
		return false
	}
	switch pub := k.Key.(type) {
	case *rsa.PublicKey:
		n := pub.N.BitLen()
		return n >= minRSABits && n <= maxRSABits
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return true
	}
	return false
}

// find returns the keys that may have signed a token with these headers: those with the key id, or all
// if the token has none. A nil set has no keys.
func (s *keySet) find(keyID, algorithm string) []any {
	if s == nil {
		return nil
	}
	var out []any
	for _, k := range s.keys {
		if (keyID == "" || k.KeyID == keyID) && (k.Algorithm == "" || k.Algorithm == algorithm) && fits(k.Key, algorithm) {
			out = append(out, k.Key)
		}
	}
	return out
}

// fits reports whether a key is of the type that an algorithm needs.
func fits(key any, algorithm string) bool {
	var family string
	switch key.(type) {
	case *rsa.PublicKey:
		return strings.HasPrefix(algorithm, "RS") || strings.HasPrefix(algorithm, "PS")
	case *ecdsa.PublicKey:
		family = "ES"
	case ed25519.PublicKey:
		family = "EdDSA"
	}
	return family != "" && strings.HasPrefix(algorithm, family)
}
