package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/token"
)

const strictOrder = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: order}\nspec: {mtls: {mode: STRICT}}\n"

// inboundModes says which requests an echo Pod answers: in plaintext from outside the mesh, and by mutual TLS.
func (m *orderMesh) inboundModes(ctx context.Context) (plaintext, mutual bool) {
	_, err := m.Get(ctx, m.Net.Host(), "http://"+m.Pod("echo-v1-1.order").Spec.IP.String()+":9080/")
	plaintext = err == nil
	client := meshup.Client(m.client.Net, 0)
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://echo:9080/", nil)
	if err != nil {
		m.t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		return plaintext, false
	}
	_ = res.Body.Close() // the status is enough
	return plaintext, res.StatusCode == http.StatusOK
}

// awaitModes waits until echo Pods answer these requests.
func (m *orderMesh) awaitModes(what string, plaintext, mutual bool) {
	m.t.Helper()
	if err := meshup.Await(m.t.Context(), time.Minute, what, func(ctx context.Context) error {
		if p, tls := m.inboundModes(ctx); p != plaintext || tls != mutual {
			return fmt.Errorf("plaintext is answered: %v, mutual TLS: %v", p, tls)
		}
		return nil
	}); err != nil {
		m.t.Fatal(err)
	}
}

// TestRefusedStricterPolicyClosesInbound has every Envoy refuse its listeners, by an access log that only Envoy knows it cannot
// write. Inbound connections are accepted as before, until the policy becomes stricter: the listener with it
// is refused, too, so that one takes its place that accepts none.
func TestRefusedStricterPolicyClosesInbound(t *testing.T) {
	m := startOrder(t)
	m.awaitModes("PERMISSIVE", true, true)
	text, err := os.ReadFile(filepath.Join(m.config, "mesh.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	m.write("mesh.yaml", strings.Replace(string(text), "  mesh: |\n", "  mesh: |\n    accessLogFile: /no-such-folder/log\n", 1))
	refused := func() {
		t.Helper()
		if err := meshup.Await(t.Context(), time.Minute, "the listener is refused", func(context.Context) error {
			_, out, _ := pilotctl(t, m.Mesh, "proxies", "-o", "json")
			var all []struct {
				Proxy       string
				Quarantined []string
				Types       map[string]struct{ Nack string }
			}
			if err := json.Unmarshal([]byte(out), &all); err != nil {
				return err
			}
			n := 0
			for _, p := range all {
				if strings.HasPrefix(p.Proxy, "echo-") && (slices.Contains(p.Quarantined, "LDS virtualInbound") || strings.Contains(p.Types["LDS"].Nack, "virtualInbound")) {
					n++
				}
			}
			if n != 2 {
				return errors.New("it is not yet:\n" + out)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	refused()
	m.awaitModes("what was accepted stays", true, true)
	m.write("policy.yaml", strictOrder)
	m.awaitModes("everything is denied", false, false)
	refused()
	for _, p := range []string{"echo-v1-1.order", "echo-v2-1.order"} {
		dump, err := m.Pod(p).Admin(t.Context(), "/listeners")
		if err != nil || !strings.Contains(string(dump), "virtualInbound") {
			t.Errorf("the listeners of %s are %s, %v: want one for inbound connections, which are captured", p, dump, err)
		}
	}
	m.write("mesh.yaml", string(text))
	m.awaitModes("STRICT", false, true)
}

// TestRefusedListenerWithANewPolicyDenies has the Envoys of a server and of a router refuse their listeners, and then adds a DENY for one path,
// or a RequestAuthentication: what was accepted stays until then, and denies everything after it, since the listener with the policy is
// refused as well. When the listeners are accepted again, the policy decides.
func TestRefusedListenerWithANewPolicyDenies(t *testing.T) {
	m, config := start(t, "tokens")
	text, err := os.ReadFile(filepath.Join(config, "mesh.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	serveHeaders(t, m, "server-1.tokens", ":9090")
	keys := token.New(t, "a.example").Keys(t)
	const deny = `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: deny, namespace: NS}
spec: {selector: {matchLabels: LABELS}, action: DENY, rules: [{to: [{operation: {paths: [/denied]}}]}]}
`
	const tokens = `
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: NS}
spec: {selector: {matchLabels: LABELS}, jwtRules: [{issuer: a.example, jwks: 'KEYS'}]}
`
	sidecar := func(path string) func(context.Context) (seen, error) {
		return func(ctx context.Context) (seen, error) {
			return ask(ctx, m, "client-1.tokens", "", "http://server.tokens:9090"+path, nil)
		}
	}
	router := func(path string) func(context.Context) (seen, error) {
		return func(ctx context.Context) (seen, error) {
			return ask(ctx, m, "outside-1.tokens", "shop.example.com", "http://10.99.0.9:8080"+path, nil)
		}
	}
	closed := func(got seen, err error) error {
		if err == nil && got.Status != http.StatusServiceUnavailable { // which the client's sidecar answers
			return fmt.Errorf("status %d, want a closed connection", got.Status)
		}
		return nil
	}
	check := func(what string, of func(string) func(context.Context) (seen, error), want map[string]func(seen, error) error) {
		t.Helper()
		steady(t, what, func(ctx context.Context) error {
			for path, is := range want {
				if err := is(of(path)(ctx)); err != nil {
					return fmt.Errorf("%s: %w", path, err)
				}
			}
			return nil
		})
	}
	both := func(a, b func(seen, error) error) map[string]func(seen, error) error {
		return map[string]func(seen, error) error{"/open": a, "/denied": b}
	}
	for name, c := range map[string]struct {
		of             func(string) func(context.Context) (seen, error)
		ns, labels     string
		proxy, refused string
	}{
		"sidecar": {sidecar, "tokens", "{app: server}", "server-1", "virtualInbound"},
		"router":  {router, "istio-system", "{istio: ingressgateway}", "ingress", "8080"},
	} {
		for kind, policy := range map[string]string{"AuthorizationPolicy": deny, "RequestAuthentication": tokens} {
			what := name + ", " + kind + ": "
			policy = strings.NewReplacer("NS", c.ns, "LABELS", c.labels, "KEYS", keys).Replace(policy)
			check(what+"open", c.of, both(wantStatus(http.StatusOK), wantStatus(http.StatusOK)))
			put(t, config, "mesh.yaml", strings.Replace(string(text), "  mesh: |\n", "  mesh: |\n    accessLogFile: /no-such-folder/log\n", 1))
			await(t, what+"the listener is refused", func(context.Context) error {
				_, out, _ := pilotctl(t, m, "proxies", "-o", "json")
				var all []struct {
					Proxy string
					Types map[string]struct{ Nack string }
				}
				if err := json.Unmarshal([]byte(out), &all); err != nil {
					return err
				}
				for _, p := range all {
					if strings.HasPrefix(p.Proxy, c.proxy) && strings.Contains(p.Types["LDS"].Nack, c.refused) {
						return nil
					}
				}
				return errors.New("it is not yet:\n" + out)
			})
			check(what+"what was accepted stays", c.of, both(wantStatus(http.StatusOK), wantStatus(http.StatusOK)))
			put(t, config, "policies.yaml", policy)
			check(what+"everything is denied", c.of, both(closed, closed))
			put(t, config, "mesh.yaml", string(text))
			denied := http.StatusForbidden
			if kind == "RequestAuthentication" {
				denied = http.StatusOK // without a token
			}
			check(what+"the policy decides", c.of, both(wantStatus(http.StatusOK), wantStatus(denied)))
			put(t, config, "policies.yaml", "")
		}
	}
}
