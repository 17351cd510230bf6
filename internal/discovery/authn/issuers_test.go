package authn

import (
	"context"
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

const someIssuer = "https://issuer.example"

// oidcKey is a key of an OIDC issuer.
type oidcKey struct {
	id  string
	key crypto.Signer
}

func newOIDC(t testing.TB, id string) oidcKey {
	t.Helper()
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	return oidcKey{id, key}
}

func public(_ testing.TB, keys ...oidcKey) jose.JSONWebKeySet {
	var s jose.JSONWebKeySet
	for _, k := range keys {
		s.Keys = append(s.Keys, jose.JSONWebKey{KeyID: k.id, Key: k.key.Public(), Use: "sig"})
	}
	return s
}

func keysJSON(t testing.TB, s jose.JSONWebKeySet) []byte {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// sign signs claims over those of a valid token for alice; a nil value removes a claim.
func (k oidcKey) sign(t testing.TB, now time.Time, changes map[string]any) string {
	t.Helper()
	c := map[string]any{"iss": someIssuer, "sub": subject + "shop:alice", "aud": []string{"istio-ca"}, "exp": now.Unix() + 3600}
	for name, v := range changes {
		if c[name] = v; v == nil {
			delete(c, name)
		}
	}
	opts := &jose.SignerOptions{}
	if k.id != "" {
		opts = opts.WithHeader("kid", k.id)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: k.key}, opts)
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.Signed(signer).Claims(c).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// site is the web site of an issuer, without a network.
type site struct {
	mu       sync.Mutex
	pages    map[string]string
	err      error
	hang     bool
	requests int
}

func (s *site) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *site) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

func (s *site) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	s.requests++
	page, found := s.pages[r.URL.String()]
	err, hang := s.err, s.hang
	s.mu.Unlock()
	switch {
	case hang:
		<-r.Context().Done()
		return nil, r.Context().Err()
	case err != nil:
		return nil, err
	case !found:
		return &http.Response{StatusCode: 404, Body: io.NopCloser(strings.NewReader("none"))}, nil
	}
	if to, ok := strings.CutPrefix(page, "redirect "); ok {
		return &http.Response{StatusCode: 302, Header: http.Header{"Location": {to}}, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
	}
	return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(page))}, nil
}

// serve runs the issuers of a rule until the test ends, and returns what authenticates by them.
func (s *site) serve(t *testing.T, rule string, log ...io.Writer) (*Authenticator, func()) {
	t.Helper()
	rules, err := ParseRules(rule, nil)
	if err != nil {
		t.Fatal(err)
	}
	issuers := NewIssuers(rules, s, slog.New(slog.NewTextHandler(io.MultiWriter(log...), nil)))
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- issuers.Run(ctx) }()
	return New("cluster.local", nil, WithIssuers(issuers)), func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// expect authenticates with a token.
func expect(t *testing.T, what string, a *Authenticator, token string, code codes.Code, why string) {
	t.Helper()
	id, err := a.Authenticate(call(noTLS, "Bearer "+token))
	if status.Code(err) != code || code == codes.OK && id != alice || err != nil && !strings.Contains(err.Error(), why) {
		t.Errorf("%s: %v, %v; want %s %q", what, id, err, code, why)
	}
}

func TestKeysAreFetchedKeptAndRefreshed(t *testing.T) {
	first, second, third := newOIDC(t, "1"), newOIDC(t, "2"), newOIDC(t, "3")
	synctest.Test(t, func(t *testing.T) {
		const at = "https://keys.example/jwks"
		s := &site{err: errors.New("connection refused")}
		a, stop := s.serve(t, `{"issuer": "https://issuer.example", "jwks_uri": "https://keys.example/jwks"}`)
		defer stop()
		token := func(k oidcKey) string { return k.sign(t, time.Now(), nil) }
		pass := func(d time.Duration) {
			<-time.After(d)
			synctest.Wait()
		}

		synctest.Wait()
		expect(t, "the issuer is down at the start", a, token(first), codes.Unavailable, "could not be fetched")
		s.set(func() { s.err, s.pages = nil, map[string]string{at: string(keysJSON(t, public(t, first)))} })
		pass(2 * time.Second)
		expect(t, "the issuer is back", a, token(first), codes.OK, "")
		n := s.count()
		expect(t, "cached", a, token(first), codes.OK, "")
		for range 1000 {
			expect(t, "unknown keys just after a fetch", a, token(second), codes.Unauthenticated, `no key "2"`)
		}
		if s.count() != n {
			t.Errorf("%d fetches because of unknown keys within the gap", s.count()-n)
		}

		pass(fetchGap)
		s.set(func() { s.pages[at] = string(keysJSON(t, public(t, first, second))) })
		expect(t, "a new key is fetched at once", a, token(second), codes.OK, "")
		if s.count() != n+1 {
			t.Errorf("%d fetches for a new key, want 1", s.count()-n)
		}

		pass(fetchGap)
		n = s.count()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { expect(t, "an unknown key", a, token(third), codes.Unauthenticated, `no key "3"`) })
		}
		wg.Wait()
		if s.count() != n+1 {
			t.Errorf("%d fetches for 100 tokens with an unknown key, want 1", s.count()-n)
		}

		for _, broken := range []struct {
			what string
			do   func()
		}{
			{"down", func() { s.err = errors.New("connection refused") }},
			{"hanging", func() { s.err, s.hang = nil, true }},
			{"empty", func() { s.hang, s.pages[at] = false, `{"keys": []}` }},
			{"garbled", func() { s.pages[at] = "<html>" }},
			{"huge", func() { s.pages[at] = strings.Repeat(" ", maxKeySet+1) }},
			{"gone", func() { delete(s.pages, at) }},
		} {
			s.set(broken.do)
			pass(2 * time.Hour)
			expect(t, "the last good keys are kept while the issuer is "+broken.what, a, token(first), codes.OK, "")
			expect(t, "an unknown key while the issuer is "+broken.what, a, token(third), codes.Unavailable, "could not be fetched")
		}

		s.set(func() { s.pages[at] = string(keysJSON(t, public(t, third))) })
		pass(refreshInterval + time.Minute)
		expect(t, "after the refresh", a, token(third), codes.OK, "")
		expect(t, "a key that the issuer has removed", a, token(first), codes.Unauthenticated, `no key "1"`)
	})
}

func TestFetchesAreRareWhileNobodyAsks(t *testing.T) {
	key := newOIDC(t, "1")
	synctest.Test(t, func(t *testing.T) {
		s := &site{pages: map[string]string{"https://keys.example/jwks": string(keysJSON(t, public(t, key)))}}
		_, stop := s.serve(t, `{"issuer": "https://issuer.example", "jwks_uri": "https://keys.example/jwks"}`)
		defer stop()
		<-time.After(10 * time.Hour)
		if n := s.count(); n < 30 || n > 35 {
			t.Errorf("%d fetches in 10 h, want one each 18–20 min", n)
		}
		s.set(func() { s.err = errors.New("connection refused") })
		before := s.count()
		<-time.After(10 * time.Hour)
		if n := s.count() - before; n < 500 || n > 700 {
			t.Errorf("%d fetches of an issuer that is down in 10 h, want one a minute", n)
		}
	})
}

func TestOIDCDiscovery(t *testing.T) {
	key := newOIDC(t, "")
	keys := string(keysJSON(t, public(t, key)))
	const doc, at = someIssuer + discoveryPath, "https://keys.example/jwks"
	for what, tt := range map[string]struct {
		pages map[string]string
		why   string // empty: accepted
	}{
		"found":              {map[string]string{doc: `{"issuer": "https://issuer.example", "jwks_uri": "https://keys.example/jwks"}`, at: keys}, ""},
		"redirected":         {map[string]string{doc: `{"issuer": "https://issuer.example", "jwks_uri": "https://keys.example/old"}`, "https://keys.example/old": "redirect " + at, at: keys}, ""},
		"another issuer":     {map[string]string{doc: `{"issuer": "https://evil.example", "jwks_uri": "https://keys.example/jwks"}`, at: keys}, "the document is of issuer"},
		"keys in plaintext":  {map[string]string{doc: `{"issuer": "https://issuer.example", "jwks_uri": "http://keys.example/jwks"}`, "http://keys.example/jwks": keys}, "want https"},
		"to plaintext":       {map[string]string{doc: `{"issuer": "https://issuer.example", "jwks_uri": "https://keys.example/jwks"}`, at: "redirect http://keys.example/", "http://keys.example/": keys}, "want https"},
		"redirected forever": {map[string]string{doc: "redirect " + doc}, "redirections"},
		"no document":        {nil, "status 404"},
		"garbled document":   {map[string]string{doc: "<html>"}, "invalid JSON"},
		"huge document":      {map[string]string{doc: strings.Repeat(" ", maxDocument+1)}, "more than 65536 bytes"},
		"no keys":            {map[string]string{doc: `{"issuer": "https://issuer.example", "jwks_uri": "https://keys.example/jwks"}`}, "status 404"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &site{pages: tt.pages}
			var log wait.Output
			a, stop := s.serve(t, fmt.Sprintf(`{"issuer": %q}`, someIssuer), &log)
			defer stop()
			synctest.Wait()
			if tt.why == "" {
				expect(t, what, a, key.sign(t, time.Now(), nil), codes.OK, "")
				return
			}
			expect(t, what, a, key.sign(t, time.Now(), nil), codes.Unavailable, `the keys of issuer "https://issuer.example" could not be fetched`)
			if !strings.Contains(log.String(), tt.why) {
				t.Errorf("%s: want %q in the log\n%s", what, tt.why, log.String())
			}
		})
	}
}

// A token must not make its caller wait for longer than a fetch may take.
func TestWaitingForKeysIsBounded(t *testing.T) {
	key := newOIDC(t, "")
	synctest.Test(t, func(t *testing.T) {
		s := &site{hang: true}
		a, stop := s.serve(t, `{"issuer": "https://issuer.example", "timeout": "7s"}`)
		defer stop()
		synctest.Wait()
		start := time.Now()
		expect(t, "hanging", a, key.sign(t, time.Now(), nil), codes.Unavailable, "")
		if took := time.Since(start); took > 7*time.Second {
			t.Errorf("took %s, want at most the rule's timeout", took)
		}
	})
}

func TestClaimsOfOIDCTokens(t *testing.T) {
	key, other := newOIDC(t, "k"), newOIDC(t, "k")
	now := time.Now()
	rules, err := ParseRules(fmt.Sprintf(`{"issuer": %q, "audiences": ["mesh", "istio-ca"], "jwks": %q}`, someIssuer, keysJSON(t, public(t, key))), nil)
	if err != nil {
		t.Fatal(err)
	}
	a := New("cluster.local", testIssuer(t), WithIssuers(NewIssuers(rules, nil, slog.New(slog.DiscardHandler))))
	type claim = map[string]any
	for what, tt := range map[string]struct {
		token string
		code  codes.Code
		why   string
	}{
		"good":                      {key.sign(t, now, nil), codes.OK, ""},
		"one audience as text":      {key.sign(t, now, claim{"aud": "mesh"}), codes.OK, ""},
		"the Pod's account":         {key.sign(t, now, claim{"kubernetes.io": claim{"namespace": "shop", "serviceaccount": claim{"name": "alice"}, "pod": claim{"name": "p", "uid": "u"}}}), codes.OK, ""},
		"without a key id":          {oidcKey{"", key.key}.sign(t, now, nil), codes.OK, ""},
		"another key of this id":    {other.sign(t, now, nil), codes.Unauthenticated, "signature: not signed by issuer"},
		"an unknown key":            {oidcKey{"x", key.key}.sign(t, now, nil), codes.Unauthenticated, `no key "x"`},
		"another issuer":            {key.sign(t, now, claim{"iss": "https://evil.example"}), codes.Unauthenticated, "wrong issuer"},
		"no issuer":                 {key.sign(t, now, claim{"iss": nil}), codes.Unauthenticated, "wrong issuer"},
		"this program as issuer":    {key.sign(t, now, claim{"iss": TokenIssuer}), codes.Unauthenticated, "not signed by this mesh"},
		"another audience":          {key.sign(t, now, claim{"aud": "bank"}), codes.Unauthenticated, "wrong audience"},
		"no audience":               {key.sign(t, now, claim{"aud": nil}), codes.Unauthenticated, "wrong audience"},
		"expired":                   {key.sign(t, now, claim{"exp": now.Unix() - 61}), codes.Unauthenticated, "expired"},
		"without an end":            {key.sign(t, now, claim{"exp": nil}), codes.Unauthenticated, "no exp claim"},
		"of the future":             {key.sign(t, now, claim{"nbf": now.Unix() + 120}), codes.Unauthenticated, "not yet valid"},
		"a user":                    {key.sign(t, now, claim{"sub": "alice"}), codes.Unauthenticated, "malformed: subject"},
		"another account in a Pod":  {key.sign(t, now, claim{"kubernetes.io": claim{"namespace": "shop", "serviceaccount": claim{"name": "bob"}}}), codes.PermissionDenied, "conflicting claims"},
		"claims of an invalid type": {key.sign(t, now, claim{"exp": "soon"}), codes.Unauthenticated, "malformed"},
	} {
		expect(t, what, a, tt.token, tt.code, tt.why)
	}
}

// FuzzToken: only what an issuer has signed is accepted, whatever comes.
func FuzzToken(f *testing.F) {
	key, own := newOIDC(f, "k"), testIssuer(f)
	rules, err := ParseRules(fmt.Sprintf(`{"issuer": %q, "jwks": %q}`, someIssuer, keysJSON(f, public(f, key))), nil)
	if err != nil {
		f.Fatal(err)
	}
	a := New("cluster.local", own, WithIssuers(NewIssuers(rules, nil, slog.New(slog.DiscardHandler))), WithReviewers(noCluster{}, slog.New(slog.DiscardHandler)))
	now := time.Now()
	good := key.sign(f, now, nil)
	parts := strings.Split(good, ".")
	for _, seed := range []string{
		good, issue(f, own, "", 0, now), key.sign(f, now, map[string]any{"iss": TokenIssuer}), key.sign(f, now, map[string]any{"iss": "https://kubernetes.default.svc"}),
		parts[0] + "." + parts[1] + ".", "eyJhbGciOiJub25lIn0." + parts[1] + ".", "..", "", strings.Repeat("a", maxToken+1), `{"payload":"","signatures":[{},{}]}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		id, err := a.Authenticate(call(noTLS, "Bearer "+token))
		if err == nil && id != alice {
			t.Fatalf("%v", id)
		}
		if err != nil && (len(err.Error()) > 4096 || len(token) > 40 && strings.Contains(err.Error(), token)) {
			t.Fatalf("the error is long or has the token: %v", err)
		}
	})
}

// noCluster knows no cluster.
type noCluster struct{}

func (noCluster) Reviewer(string) Reviewer { return nil }
