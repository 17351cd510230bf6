package authz_test

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	security "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/authz"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/jwt"
	keys "github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/envoytest"
	"github.com/pilothouse/pilothouse/test/policytest"
	"github.com/pilothouse/pilothouse/test/token"
)

// tokenSets are policies about tokens.
var tokenSets = []string{
	`{action: AUDIT, rules: [{}]}`,
	`{rules: [{from: [{source: {requestPrincipals: [a.example/me]}}]}]}`, `{rules: [{from: [{source: {requestPrincipals: ["a.example/*", "*/you"]}}]}]}`,
	`{rules: [{from: [{source: {requestPrincipals: ["*"]}}]}]}`, `{action: DENY, rules: [{from: [{source: {notRequestPrincipals: ["*"]}}], to: [{operation: {notPaths: [/open]}}]}]}`,
	`{rules: [{from: [{source: {notRequestPrincipals: [a.example/me]}}]}]}`, `{rules: [{from: [{source: {requestPrincipals: ["*"], notRequestPrincipals: ["b*"]}}]}]}`,
	`{rules: [{when: [{key: request.auth.principal, values: [b.example/you, "*/me"]}]}]}`,
	`{rules: [{when: [{key: request.auth.audiences, values: ["one", "th*"]}]}]}`, `{action: DENY, rules: [{when: [{key: request.auth.audiences, notValues: [one]}]}]}`,
	`{rules: [{when: [{key: request.auth.presenter, values: [app]}]}]}`, `{rules: [{when: [{key: request.auth.presenter, values: ["*"]}]}]}`,
	`{rules: [{when: [{key: "request.auth.claims[groups]", values: [admin, "dev*"], notValues: [guest]}]}]}`,
	`{action: DENY, rules: [{when: [{key: "request.auth.claims[groups]", notValues: [admin]}]}]}`,
	`{rules: [{when: [{key: "request.auth.claims[a][b]", values: ["*"]}]}]}`, `{rules: [{when: [{key: "request.auth.claims[a][b]", values: [x], notValues: [y]}]}]}`,
	`{rules: [{when: [{key: "request.auth.claims[https://c.example/d.e]", values: [z]}]}]}`,
	`{rules: [{when: [{key: "request.auth.claims[scope]", values: [write]}]}]}`, `{rules: [{when: [{key: "request.auth.claims[perms]", values: [p2]}]}]}`,
	`{rules: [{when: [{key: "request.auth.claims[iss]", values: [b.example]}]}]}`,
	`{rules: [{from: [{source: {requestPrincipals: ["a.example/*"]}}], to: [{operation: {methods: [GET]}}]}, {to: [{operation: {paths: [/open]}}]}]}`,
	`{rules: [{from: [{source: {requestPrincipals: ["*"]}}]}]} | {action: DENY, rules: [{when: [{key: "request.auth.claims[groups]", values: [guest]}]}]}`,
	// Only the first or the last character is a wildcard.
	`{rules: [{from: [{source: {requestPrincipals: ["*/*"]}}]}]}`, `{action: DENY, rules: [{from: [{source: {notRequestPrincipals: ["*/*"]}}]}]}`, `{rules: [{from: [{source: {requestPrincipals: ["*.example/me", "*/"]}}]}]}`,
	`{rules: [{from: [{source: {requestPrincipals: ["*.example/m*", "a.*/me"]}}]}]}`, `{rules: [{from: [{source: {requestPrincipals: ["a.example/m*"]}}]}]}`, `{rules: [{from: [{source: {requestPrincipals: ["*me", "b.*"]}}]}]}`,
	`{rules: [{when: [{key: request.auth.principal, notValues: ["*/me", "b.example/*"]}]}]}`,
	`{rules: [{when: [{key: "request.auth.claims[groups]", values: ["*"]}]}]}`, `{rules: [{when: [{key: "request.auth.claims[groups]", notValues: ["*"]}]}]}`, `{action: DENY, rules: [{when: [{key: request.auth.audiences, notValues: ["*"]}]}]}`,
	`{rules: [{when: [{key: "request.auth.claims[a][none]", notValues: ["*"]}]}]}`, `{rules: [{when: [{key: "request.auth.claims[a]", values: ["*"]}]}]}`, `{rules: [{when: [{key: "request.auth.claims[groups]", values: ["*s", "g*"], notValues: ["dev*"]}]}]}`,
}

// TestTokensInEnvoy compares what a real Envoy lets in with an evaluation of the policies by the claims of the request: with
// tokens in each place, with none, and with tokens that are not valid, which no policy lets in.
func TestTokensInEnvoy(t *testing.T) {
	a, b, keyless, stranger := token.New(t, "a.example"), token.New(t, "b.example"), token.New(t, "none.example"), token.New(t, "other.example")
	impostor := token.New(t, "a.example")
	filter := jwt.Build([]jwt.Rule{
		{Spec: &security.JWTRule{Issuer: b.Name, FromHeaders: []*security.JWTHeader{{Name: "x-b", Prefix: "Tok "}}, FromParams: []string{"tok"}, FromCookies: []string{"ck"}, SpaceDelimitedClaims: []string{"perms"}}, Keys: b.Keys(t)},
		{Spec: &security.JWTRule{Issuer: keyless.Name}, Keys: keys.NoKeys},
		{Spec: &security.JWTRule{Issuer: a.Name, Audiences: []string{"one", "two"}}, Keys: a.Keys(t)},
	}, false)
	claims := func(sub string, more map[string]any) map[string]any {
		c := map[string]any{"sub": sub, "aud": "one"}
		maps.Copy(c, more)
		return c
	}
	rich := map[string]any{
		"aud": []string{"two", "three"}, "azp": "app", "groups": []string{"developers", "guest"}, "a": map[string]any{"b": "x"}, "https://c.example/d.e": "z", "scope": "read write",
	}
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"a.example","sub":"me","aud":"one"}`)) + "."
	type sent struct {
		issuer *token.Issuer
		claims map[string]any
		in     string // a header, with its value; or a query; %s is the token
		status int    // of tokens that are not valid
		raw    string // instead of a token of the issuer
	}
	const bearer = "authorization: Bearer %s"
	var requests []request
	bad := map[int]int{}
	for _, s := range []sent{
		{},
		{issuer: a, claims: claims("me", nil), in: bearer},
		{issuer: a, claims: claims("you", rich), in: bearer},
		{issuer: a, claims: claims("me", map[string]any{"groups": "admin", "a": map[string]any{"b": []string{"x", "y"}}}), in: "?access_token=%s"},
		{issuer: b, claims: claims("you", map[string]any{"groups": []string{"admin"}, "perms": "p1 p2"}), in: "x-b: Tok %s"},
		{issuer: b, claims: claims("me", rich), in: "?x=1&tok=%s"},
		{issuer: b, claims: claims("me", map[string]any{"groups": "guest"}), in: "cookie: x=y; ck=%s"},
		{issuer: b, claims: map[string]any{"aud": "any"}, in: "cookie: ck=%s"}, // without a subject
		{issuer: a, claims: claims("me", nil), in: "x-b: Tok %s", status: 401}, // another issuer's place
		{issuer: b, claims: claims("me", nil), in: bearer, status: 401},
		{issuer: a, claims: claims("me", nil), in: "x-c: %s"}, // nobody's place
		{issuer: a, claims: claims("me", map[string]any{"aud": "three"}), in: bearer, status: 403},
		{issuer: a, claims: map[string]any{"sub": "me"}, in: bearer, status: 403},
		{issuer: a, claims: claims("me", map[string]any{"exp": time.Now().Add(-time.Hour).Unix()}), in: bearer, status: 401},
		{issuer: a, claims: claims("me", map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}), in: bearer, status: 401},
		{issuer: impostor, claims: claims("me", nil), in: bearer, status: 401},
		{issuer: stranger, claims: claims("me", nil), in: bearer, status: 401},
		{issuer: keyless, claims: claims("me", nil), in: bearer, status: 401},
		{raw: none, in: bearer, status: 401},
		{raw: "x.y.z", in: bearer, status: 401},
		{raw: tampered(a.Sign(t, claims("me", nil))), in: bearer, status: 401},
		{raw: tampered(b.Sign(t, claims("me", nil))), in: "x-b: Tok %s", status: 401},
		{raw: "", in: bearer}, // "Bearer" alone is no token
		{raw: "x", in: "?tok=%s", status: 401},
	} {
		for _, path := range []string{"/x", "/open"} {
			r := request{identity: client, method: "GET", host: "c", path: path, headers: map[string]string{}}
			text := s.raw
			if s.issuer != nil {
				text = s.issuer.Sign(t, s.claims)
			}
			if query, ok := strings.CutPrefix(s.in, "?"); ok {
				r.path += "?" + fmt.Sprintf(query, text)
			} else if name, value, ok := strings.Cut(s.in, ": "); ok {
				r.headers[name] = fmt.Sprintf(value, text)
			}
			if s.issuer != nil && !strings.HasPrefix(s.in, "x-c") {
				r.claims = maps.Clone(s.claims)
				r.claims["iss"] = s.issuer.Name
			}
			r.seen = r.path
			if s.status != 0 {
				bad[len(requests)] = s.status
			}
			requests = append(requests, r)
		}
	}
	ca, boot := policytest.NewPKI(t), envoytest.Bootstrap()
	for i, set := range tokenSets {
		boot.StaticResources.Listeners = append(boot.StaticResources.Listeners,
			ca.Listener(t, fmt.Sprintf("http-%d", i), policytest.Manager(t, authz.Build(policiesOf(t, set), trustDomains, nil, filter).HTTP, nil)))
	}
	at := envoytest.Start(t, boot)
	for i, set := range tokenSets {
		policies, address := policiesOf(t, set), at[fmt.Sprintf("http-%d", i)]
		c := ca.Dial(t, address, client)
		for n, r := range requests {
			_, r.port, _ = net.SplitHostPort(address)
			status, _ := c.Ask(t, r.sent())
			want := bad[n]
			if want == 0 {
				if want = http.StatusForbidden; allowed(policies, r) {
					want = http.StatusOK
				}
			}
			if status != want {
				t.Errorf("%s\n%s %.60v, claims %v: status %d, want %d", set, r.path, r.headers, r.claims, status, want)
			}
		}
	}
}

// tampered returns a token with another signature.
func tampered(text string) string { return text[:len(text)-8] + "AAAAAAAA" }
