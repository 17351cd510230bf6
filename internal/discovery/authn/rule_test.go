package authn

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"
)

func TestParseRules(t *testing.T) {
	keys := keysJSON(t, public(t, newOIDC(t, "k")))
	for text, want := range map[string]string{
		"": "[]", "  ": "[]",
		`{"issuer": "https://a.example"}`:                                                                                 "[https://a.example [istio-ca]  5s]",
		`{"issuer": "me", "jwks_uri": "https://a.example/k", "audiences": ["x", "y"]}`:                                    "[me [x y] https://a.example/k 5s]",
		`{"issuer": "me", "jwksUri": "http://127.0.0.1:1/k", "timeout": "30s"}`:                                           "[me [istio-ca] http://127.0.0.1:1/k 30s]",
		fmt.Sprintf(`[{"issuer": "https://a.example/x"}, {"issuer": "b", "audiences": ["z"], "jwks": %q}]`, string(keys)): "[https://a.example/x [istio-ca]  5s b [z]  5s]",
	} {
		rules, err := ParseRules(text, nil)
		var got []string
		for _, r := range rules {
			got = append(got, fmt.Sprint(r.issuer, " ", r.audiences, " ", r.keysURL, " ", r.timeout))
		}
		if err != nil || fmt.Sprint(got) != want {
			t.Errorf("%s: %v, %v; want %s", text, got, err, want)
		}
	}
	if r, err := ParseRules(`{"issuer": "https://a.example"}`, []string{"mesh"}); err != nil || !slices.Equal(r[0].audiences, []string{"mesh"}) {
		t.Errorf("audiences %v, %v; want those given", r, err)
	}
	for text, why := range map[string]string{
		"x":                              "invalid rule",
		"[x]":                            "invalid rules",
		`{"issuers": "a"}`:               `unknown field "issuers"`,
		`{}`:                             "no issuer",
		`{"issuer": "me"}`:               "want https://HOST/PATH",
		`{"issuer": "http://a.example"}`: "want https",
		`{"issuer": "a", "jwks_uri": "ftp://a/k"}`:                               "want https",
		`{"issuer": "a", "jwks_uri": "https://u:secret@a/k"}`:                    "without a user and a password",
		`{"issuer": "a", "jwks_uri": "https://a/k", "jwks": "{}"}`:               "want one of them",
		`{"issuer": "a", "jwks": "{}"}`:                                          "none of 0 keys",
		`{"issuer": "a", "jwks": "no JSON"}`:                                     "invalid JSON",
		`{"issuer": "https://a", "timeout": "0s"}`:                               "invalid timeout 0s",
		`{"issuer": "https://a", "timeout": "61s"}`:                              "invalid timeout 1m1s",
		`{"issuer": "https://a", "audiences": [""]}`:                             "invalid audience",
		`{"issuer": "https://a", "fromParams": ["t"]}`:                           "from_params has no effect",
		`{"issuer": "https://a", "forwardOriginalToken": true}`:                  "forward_original_token has no effect",
		`{"issuer": "pilothouse", "jwks_uri": "https://a/k"}`:                    "needs no rule",
		`[{"issuer": "https://a"}, {"issuer": "https://a", "audiences": ["x"]}]`: `rule 2: issuer "https://a" has two rules`,
	} {
		if _, err := ParseRules(text, nil); err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), "\u00a0", " "), why) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %q", text, err, why)
		}
	}
}

func TestParseKeysLeavesOutWhatCannotSignTokens(t *testing.T) {
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	long, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ed, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	set := map[string][]any{"keys": {
		jose.JSONWebKey{KeyID: "short", Key: short.Public()}, jose.JSONWebKey{KeyID: "rsa", Key: long.Public()},
		jose.JSONWebKey{KeyID: "enc", Key: long.Public(), Use: "enc"}, jose.JSONWebKey{KeyID: "private", Key: ec},
		jose.JSONWebKey{KeyID: "secret", Key: []byte("secret")}, jose.JSONWebKey{KeyID: "ec", Key: ec.Public(), Algorithm: "ES256", Use: "sig"},
		jose.JSONWebKey{KeyID: "ed", Key: ed}, map[string]string{"kty": "new"}, 7,
	}}
	text, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	s, err := parseKeys(text)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, k := range s.keys {
		ids = append(ids, k.KeyID)
	}
	if !slices.Equal(ids, []string{"rsa", "ec", "ed"}) {
		t.Errorf("keys %v", ids)
	}
	for _, tt := range []struct {
		id, alg string
		want    int
	}{{"rsa", "RS256", 1}, {"rsa", "PS512", 1}, {"rsa", "ES256", 0}, {"ec", "ES256", 1}, {"ec", "ES384", 0}, {"", "EdDSA", 1}, {"", "RS256", 1}, {"x", "RS256", 0}, {"rsa", "HS256", 0}} {
		if got := s.find(tt.id, tt.alg); len(got) != tt.want {
			t.Errorf("%+v: %d keys", tt, len(got))
		}
	}
	for why, text := range map[string]string{
		"at most 1048576": strings.Repeat(" ", maxKeySet+1), "at most 64": `{"keys": [` + strings.Repeat("1,", 64) + "1]}",
		"none of 1 keys": `{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}`,
	} {
		if _, err := parseKeys([]byte(text)); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%.50s: %v, want %q", text, err, why)
		}
	}
}

func TestParsePrefixes(t *testing.T) {
	got, err := ParsePrefixes([]string{"10.1.2.3/16", "fd00::1/64", "192.0.2.7/32"})
	if err != nil || fmt.Sprint(got) != "[10.1.0.0/16 fd00::/64 192.0.2.7/32]" {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "10.0.0.1", "10.0.0.0/33", "0.0.0.0/0", "::/0", "::ffff:10.0.0.0/104", "x/8"} {
		if _, err := ParsePrefixes([]string{bad}); err == nil || !strings.Contains(err.Error(), "invalid CIDR") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestForwardedIdentity(t *testing.T) {
	const id = "URI=spiffe://cluster.local/ns/shop/sa/alice"
	for _, tt := range []struct {
		values []string
		why    string // empty: alice
	}{
		{[]string{id}, ""},
		{[]string{`By=spiffe://cluster.local/ns/gw/sa/gw;Hash=0a;Subject="CN=a,O=\"b;c\"";` + id + ";DNS=a;DNS=b"}, ""},
		{[]string{`Cert="%2D"; uri="spiffe://cluster.local/ns/shop/sa/alice"`}, ""},
		{[]string{id, id}, "2 headers"},
		{[]string{id + "," + id}, "2 elements"},
		{[]string{id + "," + "By=spiffe://cluster.local/ns/gw/sa/gw"}, "2 elements"},
		{[]string{id + ";" + id}, "2 values of URI"},
		{[]string{"URI="}, "invalid identity"},
		{[]string{"Hash=1"}, "0 values of URI"},
		{[]string{""}, "invalid pair"},
		{[]string{id + ","}, "invalid pair"},
		{[]string{id + ";"}, "invalid pair"},
		{[]string{"Subject=\"a;" + id}, "does not end"},
		{[]string{"Subject=\"a\"b;" + id}, "text after"},
		{[]string{"Subject=a\"b;" + id}, "a quote within"},
		{[]string{"Evil=x;" + id}, "unknown key"},
		{[]string{"URI=https://cluster.local/ns/shop/sa/alice"}, "invalid identity"},
		{[]string{"URI=spiffe://cluster.local/ns/sh%2Fop/sa/alice"}, "invalid namespace"},
		{[]string{id + ";Hash=" + strings.Repeat("0", maxForwarded)}, "at most 16384"},
	} {
		got, err := forwardedIdentity(tt.values)
		if tt.why == "" && (err != nil || got != alice) || tt.why != "" && (err == nil || !strings.Contains(err.Error(), tt.why) || len(err.Error()) > 1024) {
			t.Errorf("%.200q: %v, %v; want %q", tt.values, got, err, tt.why)
		}
	}
}

func FuzzForwarded(f *testing.F) {
	f.Add(`By=spiffe://a/ns/b/sa/c;Subject="CN=\"x";URI=spiffe://cluster.local/ns/shop/sa/alice`)
	f.Add(`URI=a,URI=b;Hash="`)
	f.Fuzz(func(t *testing.T, text string) {
		id, err := forwardedIdentity([]string{text})
		if err == nil && !strings.Contains(text, id.SPIFFE()) && !strings.Contains(text, `\`) {
			t.Fatalf("%q gives %v", text, id)
		}
	})
}

func FuzzParseKeys(f *testing.F) {
	f.Add(keysJSON(f, public(f, newOIDC(f, "k"))))
	f.Add([]byte(`{"keys": [{"kty": "RSA", "n": "", "e": "AQAB"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := parseKeys(text)
		if (err == nil) != (s != nil && len(s.keys) > 0) {
			t.Fatalf("%v, %v", s, err)
		}
	})
}
