package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// ingressIdentity is that of the router in testdata/gateway.
const ingressIdentity = "spiffe://cluster.local/ns/istio-system/sa/ingress"

// throughGateway makes a request to the router of testdata/gateway from a Pod outside the mesh.
func throughGateway(ctx context.Context, m *meshup.Mesh, host, path string) (meshup.Answer, *http.Response, error) {
	client := meshup.Client(m.Pod("outside-1.gateway").Net, 0)
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://10.99.0.9:8080"+path, http.NoBody)
	if err != nil {
		return meshup.Answer{}, nil, err
	}
	req.Host = host
	res, err := client.Do(req)
	if err != nil {
		return meshup.Answer{}, nil, err
	}
	defer res.Body.Close()
	a, err := meshup.ReadAnswer(res)
	return a, res, err
}

// TestRequestsThroughAGateway calls services of the mesh, which accept mutual TLS only, from outside through a router: by
// host and path, with the router's identity, and after an edit by other routes.
func TestRequestsThroughAGateway(t *testing.T) {
	m, config := start(t, "gateway")
	await := func(what string, cond func(ctx context.Context) error) {
		t.Helper()
		if err := meshup.Await(t.Context(), time.Minute, what, cond); err != nil {
			t.Fatal(err)
		}
	}
	await("the router serves", func(ctx context.Context) error {
		for _, host := range []string{"echo.example.com", "api.example.com"} {
			if _, _, err := throughGateway(ctx, m, host, "/"); err != nil {
				return err
			}
		}
		return nil
	})
	for _, one := range []struct {
		host, path, version, location string
		status                        int
	}{
		{"echo.example.com", "/", "v1", "", 200},
		{"echo.example.com:80", "/v2/x", "v2", "", 200},
		{"canary.example.com", "/", "v2", "", 200},
		{"echo.example.com", "/teapot", "", "", 418},
		{"echo.example.com", "/moved", "", "http://echo.example.com/v2/", 301},
		{"echo.example.com", "/team/x", "v2", "", 200},
		{"echo.example.com", "/team/teapot", "", "", 418},
		{"secure.example.com", "/x", "", "https://secure.example.com/x", 301},
		{"other.example.com", "/", "", "", 404},
		{"api.example.com", "/", "v2", "", 200},
		{"api.example.com", "/one/x", "v1", "", 200},
		{"api.example.com", "/moved/x", "", "https://api.example.com/to/x", 302},
		{"api.example.com", "/closed", "", "", 500},
		{"api.example.com", "/gone", "", "", 500},
	} {
		a, res, err := throughGateway(t.Context(), m, one.host, one.path)
		if res == nil || one.version != "" && err != nil {
			t.Errorf("%s%s: %v", one.host, one.path, err)
			continue
		}
		if res.StatusCode != one.status || a.Version != one.version || res.Header.Get("Location") != one.location {
			t.Errorf("%s%s: status %d, version %q, location %q; want %+v", one.host, one.path, res.StatusCode, a.Version, res.Header.Get("Location"), one)
		}
		if one.version != "" && a.Peer != ingressIdentity {
			t.Errorf("%s%s: the service sees the caller %q, want the router", one.host, one.path, a.Peer)
		}
	}
	for path, want := range map[string]string{"/strip": "/", "/strip/": "/", "/strip/x": "/x", "/strip//x/?a=/strip/": "/x/", "/stripx": "/x", "/v2/x": "/x"} {
		if a, _, err := throughGateway(t.Context(), m, "echo.example.com", path); err != nil || a.Path != want {
			t.Errorf("%s: the service sees the path %q, want %q (%v)", path, a.Path, want, err)
		}
	}
	path := filepath.Join(config, "gateway.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	edited := strings.NewReplacer("prefix: /teapot", "prefix: /kettle", "prefix: /team/teapot", "prefix: /team/kettle").Replace(string(text))
	if err := os.WriteFile(path, []byte(edited), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/kettle", "/team/kettle"} { // of the root and of its delegate
		await("the edited route is in force: "+path, func(ctx context.Context) error {
			a, res, err := throughGateway(ctx, m, "echo.example.com", path)
			if res == nil || res.StatusCode != http.StatusTeapot {
				return fmt.Errorf("version %q: %w", a.Version, err)
			}
			return nil
		})
	}
}
