package pki

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Bounds of a key set.
const (
	// MaxKeySet is the length of a key set, in bytes.
	MaxKeySet = 1 << 20
	maxKeys   = 256
)

// NoKeys is a key set for which no token is valid: its key is a point of P-256 whose coordinate is the hash of a sentence,
// so that nobody can know the private key. A proxy with it refuses every token.
const NoKeys = `{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","use":"sig","x":"ubWb3rKJ3GDSHgOLgRz9We03X9tkJKqyy-C2MQWiV0s","y":"hmovJEM71xnro8wvi5--_idQvH23j5CWivMJyjFlFJ4"}]}`

// privateFields are the members of a JWK that only its owner must have.
var privateFields = []string{"d", "p", "q", "dp", "dq", "qi", "oth"}

// KeySet checks a JWK set, with which proxies validate tokens (RFC 7517), and returns it without the private parts of
// keys; private reports whether there were any. It is an error if no key can be used: RSA, EC, OKP (Ed25519) and oct keys
// can. Keys of other types are left to the proxy, which ignores them. The set has at most MaxKeySet bytes and 256 keys.
func KeySet(text string) (public string, private bool, err error) {
	if len(text) > MaxKeySet {
		return "", false, fmt.Errorf("key set of %d bytes: want at most %d", len(text), MaxKeySet)
	}
	var set map[string]json.RawMessage
	var keys []map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &set); err != nil || json.Unmarshal(set["keys"], &keys) != nil {
		return "", false, errors.New(`invalid key set: want a JWK set in JSON, {"keys": […]}`)
	}
	if len(keys) > maxKeys {
		return "", false, fmt.Errorf("key set of %d keys: want at most %d", len(keys), maxKeys)
	}
	usable := 0
	for _, k := range keys {
		if usableKey(k) {
			usable++
		}
		for _, f := range privateFields {
			if _, ok := k[f]; ok {
				private = true
				delete(k, f)
			}
		}
	}
	if usable == 0 {
		return "", private, fmt.Errorf("none of %d keys can be used: want RSA keys with n and e, EC keys with crv, x and y, OKP keys with crv and x, or oct keys with k", len(keys))
	}
	if !private {
		return text, false, nil
	}
	if set["keys"], err = json.Marshal(keys); err != nil {
		return "", true, err
	}
	out, err := json.Marshal(set)
	return string(out), true, err
}

// usableKey reports whether a key has the members that its type needs.
func usableKey(k map[string]json.RawMessage) bool {
	member := func(name string) string {
		var s string
		if json.Unmarshal(k[name], &s) != nil {
			return ""
		}
		return s
	}
	number := func(name string) bool {
		b, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(member(name), "="))
		return err == nil && len(b) > 0
	}
	switch member("kty") {
	case "RSA":
		return number("n") && number("e")
	case "EC":
		return member("crv") != "" && number("x") && number("y")
	case "OKP":
		return member("crv") != "" && number("x")
	case "oct":
		return number("k")
	}
	return false
}
