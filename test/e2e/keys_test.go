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

// TestKeysThatProxiesFetch has proxies fetch the keys of an issuer by a service of the mesh with STRICT mutual TLS, where pilot-discovery could
// not: its tokens are refused while there are no keys, and accepted when there are, at a sidecar and at a router. The keys of an issuer outside
// of the mesh are fetched by pilot-discovery in mode hybrid, and by nobody in mode envoy, which the object says.
func TestKeysThatProxiesFetch(t *testing.T) {
	const policies = `
apiVersion: v1
kind: Service
metadata: {name: keys, namespace: tokens}
spec: {clusterIP: 10.96.40.7, selector: {app: canary}, ports: [{name: http, port: 9000}]}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: server, namespace: tokens}
spec: {workloadSelector: {labels: {app: server}}, egress: [{hosts: ["none/*"]}]}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: server, namespace: tokens}
spec:
  selector: {matchLabels: {app: server}}
  jwtRules:
  - {issuer: a.example, jwksUri: "http://keys.tokens.svc.cluster.local:9000/keys"}
  - {issuer: b.example, jwksUri: "http://10.99.0.10:9000/keys", fromHeaders: [{name: x-token}]}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: ingress, namespace: istio-system}
spec:
  selector: {matchLabels: {istio: ingressgateway}}
  jwtRules: [{issuer: a.example, jwksUri: "http://keys.tokens.svc.cluster.local:9000/keys", forwardOriginalToken: true}]
`
	claims := strings.SplitAfterN(keyPolicies, "---\n", 2)[1]
	for _, mode := range []string{"hybrid", "envoy"} {
		t.Run(mode, func(t *testing.T) {
			m, config := startWith(t, "tokens", func(o *meshup.Options) {
				o.DiscoveryEnv = append(o.DiscoveryEnv, "PILOT_JWT_PUB_KEY_REFRESH_INTERVAL=1s", "PILOT_JWT_ENABLE_REMOTE_JWKS="+mode)
			})
			serveHeaders(t, m, "server-1.tokens", ":9090")
			inside, outside := serveKeys(t, m, "canary-1.tokens"), serveKeys(t, m, "outside-1.tokens")
			a, b := token.New(t, "a.example"), token.New(t, "b.example")
			outside.sets[0].Store(b.Keys(t))
			put(t, config, "policies.yaml", policies+"---\n"+claims)
			bearer := "Bearer " + a.Sign(t, map[string]any{"sub": "ann"})
			want := func(what, path, header, tok string, status int) {
				t.Helper()
				await(t, what, func(ctx context.Context) error {
					h := http.Header{}
					if tok != "" {
						h.Set(header, tok)
					}
					return wantStatus(status)(ask(ctx, m, "client-1.tokens", "", "http://server.tokens:9090"+path, h))
				})
			}
			want("without a token a policy decides: no", "/x", "", "", http.StatusForbidden)
			want("without a token a policy decides: yes", "/open", "", "", http.StatusOK)
			want("a token is refused while there are no keys", "/open", "authorization", bearer, http.StatusUnauthorized)
			inside.sets[0].Store(a.Keys(t))
			want("a token is accepted by the keys that the proxy has fetched", "/x", "authorization", bearer, http.StatusOK)
			want("a token with another key is refused", "/open", "authorization", "Bearer "+token.New(t, "a.example").Sign(t, map[string]any{"sub": "ann"}), http.StatusUnauthorized)
			await(t, "the router accepts the token", func(ctx context.Context) error {
				return wantStatus(http.StatusOK)(ask(ctx, m, "outside-1.tokens", "shop.example.com", "http://10.99.0.9:8080/x", http.Header{"Authorization": {bearer}}))
			})
			says := []string{"proxies fetch the keys themselves, by the cluster outbound|9000||keys.tokens.svc.cluster.local"}
			if mode == "envoy" {
				says = append(says, `namespace tokens sees no Service or ServiceEntry with the host \"10.99.0.10\"`)
				want("nobody fetches the other keys", "/open", "x-token", b.Sign(t, map[string]any{"sub": "bob"}), http.StatusUnauthorized)
			} else {
				says = append(says, "1 keys were fetched from http://10.99.0.10:9000/keys")
				want("pilot-discovery fetches the other keys", "/x", "x-token", b.Sign(t, map[string]any{"sub": "bob"}), http.StatusOK)
			}
			await(t, "the object says where the keys are from", func(ctx context.Context) error {
				text, err := m.Get(ctx, m.Net.Host(), m.DiscoveryURL()+"/debug/objectz")
				for _, part := range says {
					if err == nil && !strings.Contains(string(text), part) {
						err = fmt.Errorf("no %q in %s", part, text)
					}
				}
				return err
			})
		})
	}
}
