package authn

import (
	"crypto"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/pilothouse/pilothouse/internal/pki"

	"github.com/pilothouse/pilothouse/internal/printable"
	"github.com/pilothouse/pilothouse/test/wait"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func testIssuer(t testing.TB) *Issuer {
	t.Helper()
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	i, err := newIssuer(key)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func issue(t testing.TB, i *Issuer, audience string, ttl time.Duration, at time.Time) string {
	t.Helper()
	token, err := i.Issue("shop", "alice", audience, ttl, at)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestVerify(t *testing.T) {
	i, other := testIssuer(t), testIssuer(t)
	good := issue(t, i, "", 0, noon)
	parts := strings.Split(good, ".")
	for _, tt := range []struct {
		name, token string
		at          time.Time
		want        Reason
	}{
		{"good", good, noon, ""},
		{"valid, last second", good, noon.Add(DefaultTokenTTL - time.Second), ""},
		{"expired within the skew", good, noon.Add(DefaultTokenTTL + 59*time.Second), ""},
		{"expired", good, noon.Add(DefaultTokenTTL + 61*time.Second), Expired},
		{"not yet valid within the skew", good, noon.Add(-59 * time.Second), ""},
		{"not yet valid", good, noon.Add(-61 * time.Second), NotYetValid},
		{"another audience", issue(t, i, "bank", 0, noon), noon, WrongAudience},
		{"another issuer's key", issue(t, other, "", 0, noon), noon, BadSignature},
		{"empty", "", noon, Malformed},
		{"not a JWT", "x y", noon, Malformed},
		{"too long", good + strings.Repeat("x", maxToken), noon, Malformed},
		{"no signature", parts[0] + "." + parts[1] + ".", noon, BadSignature},
		{"alg none", "eyJhbGciOiJub25lIn0." + parts[1] + ".", noon, Malformed},
		{"another payload", parts[0] + "." + strings.Split(issue(t, other, "", 1, noon), ".")[1] + "." + parts[2], noon, BadSignature},
	} {
		s, err := i.Verify(tt.token, tt.at)
		var refused *TokenError
		switch {
		case tt.want == "" && (err != nil || s != Subject{Namespace: "shop", ServiceAccount: "alice"}):
			t.Errorf("%s: %v, %v", tt.name, s, err)
		case tt.want != "" && (!errors.As(err, &refused) || refused.Reason != tt.want):
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		case err != nil && len(tt.token) > 20 && strings.Contains(err.Error(), tt.token[:20]):
			t.Errorf("%s: the message contains the token", tt.name)
		}
	}
}

// A token must not be accepted that is signed with the public key as HMAC secret.
func TestVerifyRequiresES256(t *testing.T) {
	i := testIssuer(t)
	secret, err := (&jose.JSONWebKey{Key: i.key.Public()}).MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: secret}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(jwt.Claims{Issuer: TokenIssuer, Subject: subject + "shop:alice"}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	_, err = i.Verify(token, noon)
	if refused := (*TokenError)(nil); !errors.As(err, &refused) || refused.Reason != Malformed {
		t.Errorf("an HS256 token: %v, want it rejected before its signature is verified", err)
	}
}

func TestVerifyClaims(t *testing.T) {
	i := testIssuer(t)
	base := func() map[string]any {
		return map[string]any{"iss": TokenIssuer, "sub": subject + "shop:alice", "aud": []string{"istio-ca"}, "exp": noon.Unix() + 60}
	}
	for _, tt := range []struct {
		key   string
		value any
		want  Reason
	}{
		{"aud", "istio-ca", ""},
		{"iss", "someone", WrongIssuer},
		{"aud", []string{}, WrongAudience},
		{"exp", nil, Malformed},
		{"exp", "soon", Malformed},
		{"sub", "alice", Malformed},
		{"sub", subject + "shop", Malformed},
		{"sub", subject + "shop:a:b", Malformed},
		{"sub", subject + "sh/op:alice", Malformed},
		{"kubernetes.io", map[string]any{"namespace": "shop", "serviceaccount": map[string]any{"name": "alice"}}, ""},
		{"kubernetes.io", map[string]any{"namespace": "bank", "serviceaccount": map[string]any{"name": "alice"}}, ConflictingClaims},
	} {
		c := base()
		if c[tt.key] = tt.value; tt.value == nil {
			delete(c, tt.key)
		}
		token, err := jwt.Signed(i.signer).Claims(c).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		_, err = i.Verify(token, noon)
		var refused *TokenError
		if tt.want == "" && err != nil || tt.want != "" && (!errors.As(err, &refused) || refused.Reason != tt.want) {
			t.Errorf("%s = %v: %v, want %q", tt.key, tt.value, err, tt.want)
		}
	}
}

// Errors go to logs and statuses: what a token says in them is bounded and printable.
func TestTextsOfATokenAreBoundedAndPrintable(t *testing.T) {
	i := testIssuer(t)
	long := "\x1b[2J" + strings.Repeat("x", 2500)
	for name, change := range map[string]func(c map[string]any){
		"issuer":   func(c map[string]any) { c["iss"] = long },
		"audience": func(c map[string]any) { c["aud"] = []string{long, long} },
		"subject":  func(c map[string]any) { c["sub"] = long },
		"kubernetes.io": func(c map[string]any) {
			c["kubernetes.io"] = map[string]any{"namespace": long, "serviceaccount": map[string]any{"name": long}}
		},
	} {
		c := map[string]any{"iss": TokenIssuer, "sub": subject + "shop:alice", "aud": []string{"istio-ca"}, "exp": noon.Unix() + 60}
		change(c)
		token, err := jwt.Signed(i.signer).Claims(c).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		if _, err = i.Verify(token, noon); err == nil || len(err.Error()) > 1024 || !printable.Is(err.Error()) {
			t.Errorf("%s: %.2000q, want a short error that is printable", name, err)
		}
	}
}

func TestIssueErrors(t *testing.T) {
	i := testIssuer(t)
	for _, names := range [][2]string{{"", "a"}, {"a", ""}, {"a:b", "c"}, {"a/../b", "c"}, {"A", "c"}} {
		if _, err := i.Issue(names[0], names[1], "", 0, noon); err == nil {
			t.Errorf("a token for %q was issued", names)
		}
	}
	if _, err := i.Issue("a", "b", "", -1, noon); err == nil {
		t.Error("a negative lifetime is accepted")
	}
}

func TestOpenIssuerConcurrently(t *testing.T) {
	dir := filepath.Join(wait.Folder(t), "state")
	ids := make([]string, 8)
	var wg sync.WaitGroup
	for n := range ids {
		wg.Go(func() {
			if i, err := OpenIssuer(dir); err != nil {
				t.Error(err)
			} else {
				ids[n] = i.keyID
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("several keys: %v", ids)
		}
	}
	path := filepath.Join(dir, issuerFolder, issuerKey)
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenIssuer(dir); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key that others can read: %v", err)
	}
}

func TestNewIssuerRequiresP256(t *testing.T) {
	key, err := pki.GenerateKey(pki.ECDSAP384)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newIssuer(crypto.Signer(key)); err == nil {
		t.Error("a P-384 key is accepted")
	}
}

func FuzzVerify(f *testing.F) {
	i := testIssuer(f)
	good := issue(f, i, "", 0, noon)
	f.Add(good)
	f.Add(strings.ToUpper(good))
	f.Add("..")
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Fuzz(func(t *testing.T, token string) {
		s, err := i.Verify(token, noon)
		if err == nil && (s != Subject{Namespace: "shop", ServiceAccount: "alice"}) {
			t.Fatalf("Verify returned %v", s)
		}
	})
}
