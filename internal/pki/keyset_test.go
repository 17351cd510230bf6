package pki_test

import (
	"bytes"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/pki"
)

const rsaKey = `{"kty":"RSA","n":"xAE7","e":"AQAB","kid":"a"}`

func TestKeySet(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`{"keys":[` + rsaKey + `]}`, ""},
		{`{"keys":[{"kty":"new"}, ` + rsaKey + `]}`, ""},
		{`{"keys":[{"kty":"EC","crv":"P-256","x":"AQ","y":"AQ"}]}`, ""},
		{`{"keys":[{"kty":"OKP","crv":"Ed25519","x":"AQ=="}]}`, ""},
		{`{"keys":[{"kty":"oct","k":"AQ"}]}`, ""},
		{`{"keys":[{"kty":"RSA","n":"xAE7"}, {"kty":"new"}]}`, "none of 2 keys can be used"},
		{`{"keys":[]}`, "none of 0 keys"},
		{`{"keys":[{"kty":"RSA","n":"!","e":"AQAB"}]}`, "none of 1 keys"},
		{`{"keys":{}}`, "invalid key set"}, {`{}`, "invalid key set"}, {`[]`, "invalid key set"}, {`null`, "invalid key set"}, {`not json`, "invalid key set"}, {``, "invalid key set"},
		{`{"keys":[` + strings.Repeat(rsaKey+",", 256) + rsaKey + `]}`, "key set of 257 keys"},
		{strings.Repeat(" ", pki.MaxKeySet+1), "want at most 1048576"},
	} {
		got, private, err := pki.KeySet(c.text)
		if c.want == "" && (err != nil || got != c.text || private) {
			t.Errorf("%.60s: %q, %v, %v", c.text, got, private, err)
		}
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%.60s: error %v, want %q", c.text, err, c.want)
		}
	}
}

// A set that was published with its private keys does not reach the proxies with them.
func TestPrivateKeysAreLeftOut(t *testing.T) {
	got, private, err := pki.KeySet(`{"a":1,"keys":[{"kty":"RSA","n":"xAE7","e":"AQAB","d":"secret","p":"secret","oth":["secret"]}]}`)
	if err != nil || !private || strings.Contains(got, "secret") {
		t.Fatalf("%s, %v, %v", got, private, err)
	}
	if again, private, err := pki.KeySet(got); err != nil || private || again != got || !strings.Contains(got, `"a":1`) {
		t.Errorf("%s: %v, %v", again, private, err)
	}
}

// Nobody has the key of NoKeys: its point is made of a hash, not of a private key.
func TestNobodyHasTheKeyOfNoKeys(t *testing.T) {
	var set struct{ Keys []struct{ X, Y string } }
	if err := json.Unmarshal([]byte(pki.NoKeys), &set); err != nil || len(set.Keys) != 1 {
		t.Fatal(err)
	}
	number := func(s string) *big.Int {
		b, err := base64.RawURLEncoding.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return new(big.Int).SetBytes(b)
	}
	x, y := number(set.Keys[0].X), number(set.Keys[0].Y)
	hash := sha256.Sum256([]byte("pilothouse: a key that nobody has, 1"))
	if new(big.Int).SetBytes(hash[:]).Cmp(x) != 0 {
		t.Error("x is not the hash")
	}
	c := elliptic.P256().Params() // y² = x³ - 3x + b
	right := new(big.Int).Exp(x, big.NewInt(3), c.P)
	right.Sub(right, new(big.Int).Mul(x, big.NewInt(3))).Add(right, c.B).Mod(right, c.P)
	if new(big.Int).Exp(y, big.NewInt(2), c.P).Cmp(right) != 0 {
		t.Error("the point is not on the curve: a proxy would have no key")
	}
	if _, _, err := pki.KeySet(pki.NoKeys); err != nil {
		t.Error(err)
	}
}

func FuzzKeySet(f *testing.F) {
	f.Add(`{"keys":[` + rsaKey + `,{"kty":"EC","d":"AQ"}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		got, private, err := pki.KeySet(text)
		if err != nil {
			return
		}
		if again, p, err := pki.KeySet(got); err != nil || p || again != got || !private && got != text {
			t.Errorf("%q becomes %q, then %q, %v, %v", text, got, again, p, err)
		}
	})
}

// A set that was fetched is equal to one with the same keys in another order and form, and has nothing but public keys.
func TestPublicKeySet(t *testing.T) {
	const (
		ec   = `{"kty":"EC","crv":"P-256","kid":"e","x":"ubWb3rKJ3GDSHgOLgRz9We03X9tkJKqyy-C2MQWiV0s","y":"hmovJEM71xnro8wvi5--_idQvH23j5CWivMJyjFlFJ4"}`
		okp  = `{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`
		want = `{"keys":[{"crv":"Ed25519","kty":"OKP","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},{"crv":"P-256","kid":"e","kty":"EC","x":"ubWb3rKJ3GDSHgOLgRz9We03X9tkJKqyy-C2MQWiV0s","y":"hmovJEM71xnro8wvi5--_idQvH23j5CWivMJyjFlFJ4"}]}`
	)
	n := base64.RawURLEncoding.EncodeToString(bytes.Repeat([]byte{0xff}, 256))
	for _, text := range []string{
		`{"keys":[` + ec + `,` + okp + `]}`,
		`{"keys":[` + okp + `, ` + strings.Replace(ec, `"crv"`, `"d":"AQ","x5c":["abc"],"crv"`, 1) + `], "more": 1}`,
		`{"keys":[` + okp + `,` + ec + `,` + okp + `,{"kty":"oct","k":"AQ"},{"kty":"new"},{"kty":"RSA","n":"AQ","e":"AQAB"},` + strings.Replace(ec, "hmov", "hmow", 1) + `,` +
			strings.Replace(okp, `"kty"`, `"use":"enc","kty"`, 1) + `,` + strings.Replace(okp, `"kty"`, `"kid":7,"kty"`, 1) + `]}`,
	} {
		got, number, err := pki.PublicKeySet(text)
		if err != nil || got != want || number != 2 {
			t.Errorf("%s:\n%s, %d, %v", text, got, number, err)
		}
		if again, _, err := pki.PublicKeySet(got); err != nil || again != got {
			t.Errorf("not the same again: %s, %v", again, err)
		}
	}
	if got, number, err := pki.PublicKeySet(`{"keys":[{"kty":"RSA","alg":"RS256","use":"sig","key_ops":["verify"],"n":"` + n + `","e":"AQAB"}]}`); err != nil || number != 1 || !strings.Contains(got, `"key_ops":["verify"]`) {
		t.Errorf("%s, %d, %v", got, number, err)
	}
	for text, want := range map[string]string{
		``: "invalid key set", `[]`: "invalid key set", `{}`: "invalid key set", `{"keys":{}}`: "invalid key set", `{"keys":[1]}`: "invalid key set", `<html>`: "invalid key set",
		`{"keys":[]}`: "none of 0 keys", `{"keys":[{"kty":"oct","k":"AQ"}]}`: "symmetric", `{"keys":[null]}`: "none of 1",
		`{"keys":[` + strings.Repeat(`{},`, 256) + `{}]}`: "257 keys",
		strings.Repeat(" ", pki.MaxKeySet) + `{}`:         "bytes",
	} {
		if got, _, err := pki.PublicKeySet(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.50s: %.50s, %v, want %q", text, got, err, want)
		}
	}
}

func FuzzPublicKeySet(f *testing.F) {
	f.Add(pki.NoKeys)
	f.Add(`{"keys":[{"kty":"RSA","n":"AQ","e":"AQAB","d":"AQ"},{"kty":"oct","k":"AQ"}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		got, number, err := pki.PublicKeySet(text)
		if err != nil {
			if got != "" || number != 0 {
				t.Errorf("%q beside an error", got)
			}
			return
		}
		again, n, err := pki.PublicKeySet(got)
		if err != nil || again != got || n != number || number < 1 {
			t.Errorf("%q: again %q, %d and %d, %v", got, again, number, n, err)
		}
		public, private, err := pki.KeySet(got)
		if err != nil || private || public != got {
			t.Errorf("%q: %v, private %v", got, err, private)
		}
	})
}
