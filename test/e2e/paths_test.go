package e2e_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// pathPolicies deny paths at the server, and route them elsewhere at the gateway. The server accepts plaintext, so that requests reach its sidecar
// as they were written.
const pathPolicies = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: server, namespace: tokens}
spec: {selector: {matchLabels: {app: server}}, mtls: {mode: PERMISSIVE}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: admin, namespace: tokens}
spec:
  selector: {matchLabels: {app: server}}
  action: DENY
  rules:
  - to: [{operation: {paths: ["/admin*"]}}]
  - to: [{operation: {hosts: [secret.example.com, "secret.example.com:*"]}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: tokens}
spec:
  gateways: [http]
  hosts: [shop.example.com]
  http:
  - match: [{uri: {prefix: /admin}}]
    directResponse: {status: 403}
  - route: [{destination: {host: server, port: {number: 9090}}}]
`

// serveTargets answers in a Pod with the target of each request, in the header x-target. admin counts those that a policy should have denied.
func serveTargets(t *testing.T, m *meshup.Mesh, pod, addr string) (admin *atomic.Int64) {
	t.Helper()
	l, err := m.Pod(pod).Net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	admin = &atomic.Int64{}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.RequestURI, "/admin") {
			admin.Add(1)
		}
		w.Header().Set("x-target", r.RequestURI)
		w.Header().Set("x-host", r.Host)
	})}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), <-done); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return admin
}

// askRaw sends a request from a Pod as it is written, and returns its status, and the target and host that the server has seen.
func askRaw(ctx context.Context, m *meshup.Mesh, from, addr, target, host string) (status int, seenTarget, seenHost string, err error) {
	conn, err := m.Pod(from).Net.Dial(ctx, "tcp", addr)
	if err != nil {
		return 0, "", "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return 0, "", "", err
	}
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", target, host); err != nil {
		return 0, "", "", err
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, "", "", err
	}
	defer res.Body.Close()
	return res.StatusCode, res.Header.Get("x-target"), res.Header.Get("x-host"), nil
}

// TestPathsAreMatchedAsTheyAreForwarded sends targets in forms that stand for others, with each normalization of paths, to a server that denies
// /admin* and through a gateway that routes /admin elsewhere: whatever is matched is what the server sees.
func TestPathsAreMatchedAsTheyAreForwarded(t *testing.T) {
	m, config := start(t, "tokens")
	admin := serveTargets(t, m, "server-1.tokens", ":9090")
	mesh, err := os.ReadFile(filepath.Join(config, "mesh.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	// The VirtualService of the directory has routes by claims, which this test does not need.
	objects, _, found := strings.Cut(string(mesh), "---\napiVersion: networking.istio.io/v1\nkind: VirtualService")
	if !found {
		t.Fatal("the directory has no VirtualService at its end")
	}
	put(t, config, "policies.yaml", pathPolicies)
	steady(t, "the policies are in force", func(ctx context.Context) error {
		for _, addr := range []string{"10.99.0.12:9090", "10.99.0.9:8080"} {
			if status, _, _, err := askRaw(ctx, m, "outside-1.tokens", addr, "/admin", "shop.example.com"); err != nil || status != http.StatusForbidden {
				return fmt.Errorf("%s: status %d, want 403, error %w", addr, status, err)
			}
		}
		return nil
	})
	admin.Store(0)
	modes := []string{"NONE", "BASE", "MERGE_SLASHES", "DECODE_AND_MERGE_SLASHES"}
	const denied = "403"
	// What the server sees by mode; denied if it must not see the request.
	targets := map[string][4]string{
		"/admin":                             {denied, denied, denied, denied},
		"/admin/x?y":                         {denied, denied, denied, denied},
		"/admin;x":                           {denied, denied, denied, denied},
		"/ADMIN":                             {"/ADMIN", "/ADMIN", "/ADMIN", "/ADMIN"},
		"/x?/admin":                          {"/x?/admin", "/x?/admin", "/x?/admin", "/x?/admin"},
		"/x?a=../admin//%2F":                 {"/x?a=../admin//%2F", "/x?a=../admin//%2F", "/x?a=../admin//%2F", "/x?a=../admin//%2F"},
		"http://shop.example.com/admin":      {denied, denied, denied, denied},
		"http://shop.example.com/x/../admin": {"/x/../admin", denied, denied, denied},
		"/x/../admin":                        {"/x/../admin", denied, denied, denied},
		"/../admin":                          {"/../admin", denied, denied, denied},
		"/./admin":                           {"/./admin", denied, denied, denied},
		"/x/%2e%2E/admin":                    {"/x/%2e%2E/admin", denied, denied, denied},
		"/x/.%2e/admin":                      {"/x/.%2e/admin", denied, denied, denied},
		"/%61dmin":                           {"/%61dmin", denied, denied, denied},
		`/x\..\admin`:                        {`/x\..\admin`, denied, denied, denied},
		"/admin/../x":                        {denied, "/x", "/x", "/x"},
		"//admin":                            {"//admin", "//admin", denied, denied},
		"///admin":                           {"///admin", "///admin", denied, denied},
		"/x//../admin":                       {"/x//../admin", "/x/admin", "/x/admin", "/x/admin"}, // slashes are merged afterwards
		"/x//admin":                          {"/x//admin", "/x//admin", "/x/admin", "/x/admin"},
		"/%2Fadmin":                          {"/%2Fadmin", "/%2Fadmin", "/%2Fadmin", denied},
		"/%2fadmin":                          {"/%2fadmin", "/%2fadmin", "/%2fadmin", denied},
		"/x%2F..%2Fadmin":                    {"/x%2F..%2Fadmin", "/x%2F..%2Fadmin", "/x%2F..%2Fadmin", denied},
		"/x/..%2fadmin":                      {"/x/..%2fadmin", "/x/..%2fadmin", "/x/..%2fadmin", denied},
		"/x%5C..%5Cadmin":                    {"/x%5C..%5Cadmin", "/x%5C..%5Cadmin", "/x%5C..%5Cadmin", denied},
		"/x/%252e%252e/admin":                {"/x/%252e%252e/admin", "/x/%252e%252e/admin", "/x/%252e%252e/admin", "/x/%252e%252e/admin"},
	}
	for i, mode := range modes {
		put(t, config, "mesh.yaml", strings.Replace(objects, "    defaultHttpRetryPolicy", "    pathNormalization: {normalization: "+mode+"}\n    defaultHttpRetryPolicy", 1))
		await(t, "paths are normalized by "+mode, func(ctx context.Context) error {
			var wrong []error
			for target, by := range targets {
				for name, way := range map[string]struct{ from, addr, host string }{
					"at the sidecar":          {"outside-1.tokens", "10.99.0.12:9090", "server.tokens"},
					"at the gateway":          {"outside-1.tokens", "10.99.0.9:8080", "shop.example.com"},
					"from a client's sidecar": {"client-1.tokens", "10.96.40.2:9090", "server.tokens:9090"},
				} {
					if strings.HasPrefix(target, "http:") && name != "at the gateway" {
						continue
					}
					want := by[i]
					status, seen, _, err := askRaw(ctx, m, way.from, way.addr, target, way.host)
					if status == http.StatusForbidden {
						seen = denied
					}
					if err != nil || seen != want {
						wrong = append(wrong, fmt.Errorf("%s %s: status %d, the server sees %q, want %q, error %s", target, name, status, seen, want, fmt.Sprint(err)))
					}
				}
			}
			return errors.Join(wrong...)
		})
	}
	if n := admin.Load(); n != 0 {
		t.Errorf("the server has seen %d requests for /admin", n)
	}
	// Hosts are compared without case; a port is a part of a host. The server sees the host as it was compared.
	for host, want := range map[string]int{
		"secret.example.com": 403, "SECRET.Example.com": 403, "secret.example.com:9090": 403, "Secret.example.com:1": 403,
		"a.secret.example.com": 200, "secret.example.com.evil.example": 200,
	} {
		status, _, seen, err := askRaw(t.Context(), m, "outside-1.tokens", "10.99.0.12:9090", "/x", host)
		if err != nil || status != want || status == http.StatusOK && seen != host {
			t.Errorf("host %s: status %d, the server sees %q, want %d, error %v", host, status, seen, want, err)
		}
	}
	for host, want := range map[string]int{"shop.example.com": 200, "SHOP.Example.com": 200, "shop.example.com:80": 200, "Shop.example.com:8080": 200, "other.example.com": 404} {
		if status, _, _, err := askRaw(t.Context(), m, "outside-1.tokens", "10.99.0.9:8080", "/x", host); err != nil || status != want {
			t.Errorf("host %s at the gateway: status %d, want %d, error %v", host, status, want, err)
		}
		if status, _, _, err := askRaw(t.Context(), m, "outside-1.tokens", "10.99.0.9:8080", "/x/../admin", host); err != nil || status == http.StatusOK {
			t.Errorf("host %s at the gateway: status %d of /admin, error %v", host, status, err)
		}
	}
}
