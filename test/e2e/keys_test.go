package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/token"
)

const keyPolicies = `
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: server, namespace: tokens}
spec:
  selector: {matchLabels: {app: server}}
  jwtRules:
  - {issuer: a.example, jwksUri: "http://10.99.0.10:9000/keys"}
  - {issuer: "http://10.99.0.10:9000", fromHeaders: [{name: x-token}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: claims, namespace: tokens}
spec:
  selector: {matchLabels: {app: server}}
  rules:
  - from: [{source: {requestPrincipals: ["*"]}}]
  - to: [{operation: {paths: [/open]}}]
`

// keyServer answers in a Pod without a sidecar with key sets by path, and with status 500 while there is none.
type keyServer struct {
	sets [2]atomic.Value
}

func serveKeys(t *testing.T, m *meshup.Mesh, pod string) *keyServer {
	t.Helper()
	l, err := m.Pod(pod).Net.Listen("tcp", ":9000")
	if err != nil {
		t.Fatal(err)
	}
	k := &keyServer{}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, set := "", 0
		switch r.URL.Path {
		case "/.well-known/openid-configuration":
			text = `{"issuer": "http://10.99.0.10:9000", "jwks_uri": "http://10.99.0.10:9000/jwks"}`
		case "/jwks":
			set = 1
			fallthrough
		case "/keys":
			text, _ = k.sets[set].Load().(string)
		}
		if text == "" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		fmt.Fprint(w, text)
	})}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), <-done); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return k
}

// TestKeysOfTokensAreFetched has pilot-discovery fetch the keys of two issuers, one by its URL and one by its discovery document, and calls a
// server with their tokens: while the keys cannot be fetched, when they can, after they were rotated, while the issuer is down, and after a
// restart of pilot-discovery meanwhile.
func TestKeysOfTokensAreFetched(t *testing.T) {
	m, config := startWith(t, "tokens", func(o *meshup.Options) {
		o.DiscoveryEnv = append(o.DiscoveryEnv, "PILOT_JWT_PUB_KEY_REFRESH_INTERVAL=1s")
	})
	serveHeaders(t, m, "server-1.tokens", ":9090")
	k := serveKeys(t, m, "outside-1.tokens")
	put(t, config, "policies.yaml", keyPolicies)
	call := func(ctx context.Context, path, header, tok string) (seen, error) {
		h := http.Header{}
		if tok != "" {
			h.Set(header, tok)
		}
		return ask(ctx, m, "client-1.tokens", "", "http://server.tokens:9090"+path, h)
	}
	bearer := func(i *token.Issuer) string { return "Bearer " + i.Sign(t, map[string]any{"sub": "ann"}) }
	want := func(what, path, header, tok string, status int) {
		t.Helper()
		await(t, what, func(ctx context.Context) error { return wantStatus(status)(call(ctx, path, header, tok)) })
	}
	says := func(part string) {
		t.Helper()
		await(t, "the object says: "+part, func(ctx context.Context) error {
			text, err := m.Get(ctx, m.Net.Host(), m.DiscoveryURL()+"/debug/objectz")
			if err == nil && !strings.Contains(string(text), part) {
				err = fmt.Errorf("%s", text)
			}
			return err
		})
	}
	a, b := token.New(t, "a.example"), token.New(t, "http://10.99.0.10:9000")

	says("every token is refused")
	want("without a token a policy decides: no", "/x", "", "", http.StatusForbidden)
	want("without a token a policy decides: yes", "/open", "", "", http.StatusOK)
	want("a token is refused while no keys are known", "/open", "authorization", bearer(a), http.StatusUnauthorized)

	k.sets[0].Store(a.Keys(t))
	want("a token is accepted when its keys are fetched", "/x", "authorization", bearer(a), http.StatusOK)
	want("another issuer's is still refused", "/open", "x-token", b.Sign(t, map[string]any{"sub": "bob"}), http.StatusUnauthorized)
	k.sets[1].Store(b.Keys(t))
	want("a token is accepted by the keys of a discovery document", "/x", "x-token", b.Sign(t, map[string]any{"sub": "bob"}), http.StatusOK)

	next := token.New(t, "a.example")
	k.sets[0].Store(next.Keys(t))
	want("rotated keys are taken over", "/x", "authorization", bearer(next), http.StatusOK)
	want("the former key is refused", "/open", "authorization", bearer(a), http.StatusUnauthorized)

	k.sets[0].Store("")
	says("stay in force")
	steady(t, "the last good keys stay", func(ctx context.Context) error {
		return wantStatus(http.StatusOK)(call(ctx, "/x", "authorization", bearer(next)))
	})
	if err := m.KillDiscovery(); err != nil {
		t.Fatal(err)
	}
	if err := m.StartDiscovery(t.Context()); err != nil {
		t.Fatal(err)
	}
	says("stay in force")
	await(t, "the proxies are connected again", func(ctx context.Context) error {
		text, err := m.Get(ctx, m.Net.Host(), m.DiscoveryURL()+"/debug/syncz")
		if err == nil && !strings.Contains(string(text), "server-1.tokens") {
			err = fmt.Errorf("%s", text)
		}
		return err
	})
	for range 20 {
		if got, err := call(t.Context(), "/x", "authorization", bearer(next)); err != nil || got.Status != http.StatusOK {
			t.Fatalf("after a restart: status %d, error %v", got.Status, err)
		}
	}
	k.sets[0].Store(a.Keys(t))
	want("keys are fetched again", "/x", "authorization", bearer(a), http.StatusOK)
}
