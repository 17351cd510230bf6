package pki

import (
	"crypto/ecdh"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
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

// publicMembers are the members of a JWK with which a public key is chosen and used; x5c and the like only make sets longer.
var publicMembers = []string{"kty", "kid", "alg", "use", "key_ops", "n", "e", "crv", "x", "y"}

// PublicKeySet returns the public keys of a JWK set that was fetched, as a text that is equal for sets with equal keys in any order, and
// how many there are. Keys that a proxy could not use are left out: those of unknown types, numbers that are no key, and symmetric keys,
// which nobody may publish. It is an error if none is left. The limits are those of KeySet.
func PublicKeySet(text string) (public string, number int, err error) {
	if len(text) > MaxKeySet {
		return "", 0, fmt.Errorf("key set of %d bytes: want at most %d", len(text), MaxKeySet)
	}
	var set struct {
		Keys []map[string]json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal([]byte(text), &set); err != nil || set.Keys == nil {
		return "", 0, errors.New(`invalid key set: want a JWK set in JSON, {"keys": […]}`)
	}
	if len(set.Keys) > maxKeys {
		return "", 0, fmt.Errorf("key set of %d keys: want at most %d", len(set.Keys), maxKeys)
	}
	var keys []string
	symmetric := 0
	for _, k := range set.Keys {
		if jsonText(k["kty"]) == "oct" {
			symmetric++
		}
		if !isPublicKey(k) {
			continue
		}
		kept := map[string]json.RawMessage{}
		for _, name := range publicMembers {
			if v, ok := k[name]; ok {
				kept[name] = v
			}
		}
		one, err := json.Marshal(kept)
		if err != nil {
			return "", 0, err
		}
		keys = append(keys, string(one))
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	switch {
	case len(keys) == 0 && symmetric > 0:
		return "", 0, errors.New("the key set has symmetric keys only, with which whoever can fetch it could sign tokens: want public keys")
	case len(keys) == 0:
		return "", 0, fmt.Errorf("none of %d keys can be used: want public keys for signatures, RSA of at least 1024 bits, EC of P-256, P-384 or P-521, or Ed25519", len(set.Keys))
	}
	return `{"keys":[` + strings.Join(keys, ",") + `]}`, len(keys), nil
}

// jsonText returns a text in JSON; empty if it is none.
func jsonText(v json.RawMessage) (s string) {
	if json.Unmarshal(v, &s) != nil {
		return ""
	}
	return s
}

// isPublicKey reports whether a key is a public one for signatures, whose numbers are a key of its type.
func isPublicKey(k map[string]json.RawMessage) bool {
	if use := jsonText(k["use"]); use != "" && use != "sig" {
		return false
	}
	for _, name := range publicMembers {
		// A member of another type makes proxies refuse the key, or the set.
		if v, ok := k[name]; ok && name != "key_ops" && jsonText(v) == "" && string(v) != `""` {
			return false
		}
	}
	number := func(name string) []byte {
		b, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(jsonText(k[name]), "="))
		if err != nil {
			return nil
		}
		return b
	}
	switch jsonText(k["kty"]) {
	case "RSA":
		n, e := new(big.Int).SetBytes(number("n")), new(big.Int).SetBytes(number("e"))
		return n.BitLen() >= 1024 && n.BitLen() <= 16384 && n.Bit(0) == 1 && e.BitLen() >= 2 && e.BitLen() <= 32 && e.Bit(0) == 1
	case "EC":
		curve, size := ecdh.P256(), 32
		switch jsonText(k["crv"]) {
		case "P-256":
		case "P-384":
			curve, size = ecdh.P384(), 48
		case "P-521":
			curve, size = ecdh.P521(), 66
		default:
			return false
		}
		x, y := number("x"), number("y")
		if len(x) > size || len(y) > size {
			return false
		}
		point := make([]byte, 1+2*size)
		point[0] = 4 // uncompressed
		copy(point[1+size-len(x):], x)
		copy(point[1+2*size-len(y):], y)
		_, err := curve.NewPublicKey(point)
		return err == nil
	case "OKP":
		return jsonText(k["crv"]) == "Ed25519" && len(number("x")) == ed25519.PublicKeySize
	}
	return false
}
