package e2e_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/token"
)

// seen are the headers that an application saw.
type seen struct {
	Status int
	Header http.Header
}

// serveHeaders answers in a Pod with the headers of each request.
func serveHeaders(t *testing.T, m *meshup.Mesh, pod, addr string) {
	t.Helper()
	l, err := m.Pod(pod).Net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(r.Header) // an error means that the caller has gone
	})}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), <-done); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
}

// ask makes one request from a Pod.
func ask(ctx context.Context, m *meshup.Mesh, from, host, url string, header http.Header) (seen, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return seen{}, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	req.Host = host
	res, err := meshup.Client(m.Pod(from).Net, 0).Do(req)
	if err != nil {
		return seen{}, err
	}
	defer res.Body.Close()
	out := seen{Status: res.StatusCode}
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode == http.StatusOK {
		err = json.Unmarshal(text, &out.Header)
	}
	return out, err
}

// put writes a file of a mesh's configuration by a rename.
func put(t *testing.T, config, name, text string) {
	t.Helper()
	path := filepath.Join(config, name)
	if err := errors.Join(os.WriteFile(path+".next", []byte(text), 0o644), os.Rename(path+".next", path)); err != nil {
		t.Fatal(err)
	}
}

const tokenPolicies = `
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: server, namespace: tokens}
spec:
  selector: {matchLabels: {app: server}}
  jwtRules:
  - issuer: a.example
    jwks: 'KEYS-A'
    audiences: [shop]
    forwardOriginalToken: true
    outputPayloadToHeader: x-payload
    outputClaimToHeaders: [{header: x-sub, claim: sub}, {header: x-group, claim: realm.group}]
  - issuer: b.example
    jwks: 'KEYS-B'
    fromHeaders: [{name: x-token, prefix: "Tok "}]
    fromParams: [tok]
    fromCookies: [session]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: claims, namespace: tokens}
spec:
  selector: {matchLabels: {app: server}}
  rules:
  - from: [{source: {requestPrincipals: ["a.example/*"]}}]
  - from: [{source: {requestPrincipals: ["b.example/*"]}}]
    when: [{key: "request.auth.claims[groups]", values: [dev]}]
  - to: [{operation: {paths: [/open]}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: banned, namespace: tokens}
spec:
  selector: {matchLabels: {app: server}}
  action: DENY
  rules: [{when: [{key: "request.auth.claims[realm][banned]", values: ["*"]}]}]
`

// TestTokensAtASidecar calls a server with tokens in each place that its sidecar looks at: what is valid and allowed by its
// claims passes, with the claims in headers that a client cannot forge.
func TestTokensAtASidecar(t *testing.T) {
	m, config := start(t, "tokens")
	serveHeaders(t, m, "server-1.tokens", ":9090")
	a, b, impostor := token.New(t, "a.example"), token.New(t, "b.example"), token.New(t, "a.example")
	const url = "http://server.tokens:9090"
	call := func(ctx context.Context, path string, header http.Header) (seen, error) {
		return ask(ctx, m, "client-1.tokens", "", url+path, header)
	}
	header := func(name, value string) http.Header { return http.Header{http.CanonicalHeaderKey(name): {value}} }
	bearer := func(i *token.Issuer, claims map[string]any) http.Header {
		return header("authorization", "Bearer "+i.Sign(t, claims))
	}
	put(t, config, "policies.yaml", strings.NewReplacer("KEYS-A", a.Keys(t), "KEYS-B", b.Keys(t)).Replace(tokenPolicies))
	steady(t, "the policies are in force", func(ctx context.Context) error {
		return wantStatus(http.StatusForbidden)(call(ctx, "/x", nil))
	})
	ann := map[string]any{"sub": "ann", "aud": "shop", "realm": map[string]any{"group": "testers"}}
	dev := map[string]any{"sub": "bob", "groups": []string{"ops", "dev"}}
	for name, c := range map[string]struct {
		path   string
		header http.Header
		want   int
	}{
		"no token, an open path":  {"/open", nil, 200},
		"no token":                {"/x", nil, 403},
		"a bearer":                {"/x", bearer(a, ann), 200},
		"access_token":            {"/x?access_token=" + a.Sign(t, ann), nil, 200},
		"another header":          {"/x", header("x-token", "Tok "+b.Sign(t, dev)), 200},
		"a parameter":             {"/x?tok=" + b.Sign(t, dev), nil, 200},
		"a cookie":                {"/x", header("cookie", "session="+b.Sign(t, dev)), 200},
		"a cookie, another group": {"/x", header("cookie", "session="+b.Sign(t, map[string]any{"sub": "bob", "groups": "guest"})), 403},
		"a banned bearer":         {"/x", bearer(a, map[string]any{"sub": "eve", "aud": "shop", "realm": map[string]any{"banned": "yes"}}), 403},
		"another audience":        {"/open", bearer(a, map[string]any{"sub": "ann", "aud": "other"}), 403},
		"expired":                 {"/open", bearer(a, map[string]any{"sub": "ann", "aud": "shop", "exp": time.Now().Add(-time.Hour).Unix()}), 401},
		"another's key":           {"/open", bearer(impostor, ann), 401},
		"no token at all":         {"/open", header("authorization", "Bearer x.y.z"), 401},
		"the wrong place":         {"/open", bearer(b, dev), 401},
	} {
		if got, err := call(t.Context(), c.path, c.header); err != nil || got.Status != c.want {
			t.Errorf("%s: status %d, want %d, error %v", name, got.Status, c.want, err)
		}
	}
	forged := bearer(a, ann)
	forged["X-Sub"], forged["X-Payload"] = []string{"root"}, []string{"forged"}
	got, err := call(t.Context(), "/x", forged)
	payload, _ := base64.RawURLEncoding.DecodeString(got.Header.Get("x-payload"))
	if err != nil || got.Header.Get("x-sub") != "ann" || got.Header.Get("x-group") != "testers" || !strings.Contains(string(payload), `"sub":"ann"`) || got.Header.Get("authorization") == "" {
		t.Errorf("the application sees %v, payload %q, error %v", got.Header, payload, err)
	}
	got, err = call(t.Context(), "/open", http.Header{"X-Sub": {"root"}, "X-Payload": {"forged"}, "X-Group": {"x"}})
	if err != nil || got.Header.Get("x-sub")+got.Header.Get("x-payload")+got.Header.Get("x-group") != "" {
		t.Errorf("without a token the application sees %v, error %v", got.Header, err)
	}
	if got, err = call(t.Context(), "/x", header("x-token", "Tok "+b.Sign(t, dev))); err != nil || got.Header.Get("x-token") != "" {
		t.Errorf("a token that is not to be forwarded arrives: %v, error %v", got.Header, err)
	}
}

// TestTokensAtAGateway validates tokens at a router, which decides and routes by their claims.
func TestTokensAtAGateway(t *testing.T) {
	m, config := start(t, "tokens")
	serveHeaders(t, m, "server-1.tokens", ":9090")
	a := token.New(t, "a.example")
	const denied = `
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: ingress, namespace: istio-system}
spec:
  selector: {matchLabels: {istio: ingressgateway}}
  jwtRules: [{issuer: a.example, jwks: 'KEYS', fromHeaders: [{name: x-token}], fromParams: [tok], fromCookies: [session]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: ingress, namespace: istio-system}
spec:
  selector: {matchLabels: {istio: ingressgateway}}
  action: DENY
  rules: [{from: [{source: {notRequestPrincipals: ["*"]}}], to: [{operation: {notPaths: [/open, /only-ann]}}]}]
`
	call := func(ctx context.Context, path string, header http.Header) (seen, error) {
		return ask(ctx, m, "outside-1.tokens", "shop.example.com", "http://10.99.0.9:8080"+path, header)
	}
	put(t, config, "policies.yaml", strings.Replace(denied, "KEYS", a.Keys(t), 1))
	steady(t, "the policies are in force", func(ctx context.Context) error {
		if err := wantStatus(http.StatusOK)(call(ctx, "/open", nil)); err != nil {
			return err
		}
		return wantStatus(http.StatusForbidden)(call(ctx, "/x", nil))
	})
	ann, bob := a.Sign(t, map[string]any{"sub": "ann"}), a.Sign(t, map[string]any{"sub": "bob"})
	for name, c := range map[string]struct {
		path   string
		header http.Header
		want   int
	}{
		"a header":             {"/x", http.Header{"X-Token": {ann}}, 200},
		"a parameter":          {"/x?tok=" + bob, nil, 200},
		"a cookie":             {"/x", http.Header{"Cookie": {"session=" + ann}}, 200},
		"no token":             {"/x", nil, 403},
		"not valid":            {"/open", http.Header{"X-Token": {ann[:len(ann)-8] + "AAAAAAAA"}}, 401},
		"routed by a claim":    {"/only-ann", http.Header{"X-Token": {ann}}, 200},
		"another's claim":      {"/only-ann", http.Header{"X-Token": {bob}}, 418},
		"routed without token": {"/only-ann", nil, 418},
	} {
		if got, err := call(t.Context(), c.path, c.header); err != nil || got.Status != c.want {
			t.Errorf("%s: status %d, want %d, error %v", name, got.Status, c.want, err)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://10.99.0.9:8080/x", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "shop.example.com"
	req.Header.Set("x-token", a.Sign(t, map[string]any{"sub": "ann", "realm": map[string]any{"group": "testers"}}))
	res, err := meshup.Client(m.Pod("outside-1.tokens").Net, 0).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if answer, err := meshup.ReadAnswer(res); err != nil || answer.Version != "v2" {
		t.Errorf("a claim of testers leads to %+v, error %v", answer, err)
	}
}

// wantStatus returns an error for another status.
func wantStatus(want int) func(seen, error) error {
	return func(got seen, err error) error {
		if err == nil && got.Status != want {
			err = fmt.Errorf("status %d, want %d", got.Status, want)
		}
		return err
	}
}
