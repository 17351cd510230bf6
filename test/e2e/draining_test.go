package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// sticky is a service of both versions of the echo, whose clients stay at one of them. The conditions are those of version 1.
const sticky = `apiVersion: v1
kind: Service
metadata: {name: sticky, namespace: gateway, labels: {istio.io/persistent-session: sticky}}
spec: {clusterIP: 10.96.40.9, ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: sticky-1, namespace: gateway, labels: {kubernetes.io/service-name: sticky}}
addressType: IPv4
ports: [{name: http, port: 9080}]
endpoints:
- {addresses: [10.99.0.11], conditions: {CONDITIONS}, targetRef: {kind: Pod, name: echo-v1-1}}
- {addresses: [10.99.0.12], conditions: {ready: true}, targetRef: {kind: Pod, name: echo-v2-1}}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: sticky, namespace: gateway}
spec: {selector: {istio: ingressgateway}, servers: [{port: {number: 80, name: http-sticky, protocol: HTTP}, hosts: [sticky.example.com]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: sticky, namespace: gateway}
spec: {gateways: [sticky], hosts: [sticky.example.com], http: [{route: [{destination: {host: sticky}}]}]}
`

// TestSessionsStayAtDrainingEndpoints ends a Pod in the steps of Kubernetes: while it is terminating and serves, the sessions that it has stay and all
// others go to the other Pod; when it serves no more, its sessions go there, too.
func TestSessionsStayAtDrainingEndpoints(t *testing.T) {
	m, config := startWith(t, "gateway", func(o *meshup.Options) { o.DiscoveryEnv = []string{"PILOT_ENABLE_PERSISTENT_SESSION_FILTER=true"} })
	write := func(conditions string) {
		t.Helper()
		path := filepath.Join(config, "sticky.yaml")
		text := strings.Replace(sticky, "CONDITIONS", conditions, 1)
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(ctx context.Context, cookie *http.Cookie) (version string, session *http.Cookie, err error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://10.99.0.9:8080/", http.NoBody)
		if err != nil {
			return "", nil, err
		}
		req.Host = "sticky.example.com"
		if cookie != nil {
			req.AddCookie(&http.Cookie{Name: cookie.Name, Value: cookie.Value})
		}
		res, err := meshup.Client(m.Pod("outside-1.gateway").Net, 0).Do(req)
		if err != nil {
			return "", nil, err
		}
		defer res.Body.Close()
		a, err := meshup.ReadAnswer(res)
		for _, c := range res.Cookies() {
			if c.Name == "sticky" && c.Path == "/" {
				session = c
			}
		}
		return a.Version, session, err
	}
	await := func(what string, check func(context.Context) error) {
		t.Helper()
		if err := meshup.Await(t.Context(), time.Minute, what, check); err != nil {
			t.Fatal(err)
		}
	}
	// all has many requests with a session, or without one, answered by a version.
	all := func(ctx context.Context, session *http.Cookie, want string) error {
		for range 20 {
			if version, _, err := ask(ctx, session); err != nil || version != want {
				return fmt.Errorf("with the session %v version %q answers, want %s (%w)", session, version, want, err)
			}
		}
		return nil
	}
	var old *http.Cookie
	write("ready: true, serving: true")
	await("a session at version 1", func(ctx context.Context) error {
		version, session, err := ask(ctx, nil)
		if err != nil || version != "v1" || session == nil {
			return fmt.Errorf("version %q, session %v (%w)", version, session, err)
		}
		old = session
		return nil
	})
	write("ready: false, serving: true, terminating: true")
	await("new requests leave version 1", func(ctx context.Context) error { return all(ctx, nil, "v2") })
	if err := all(t.Context(), old, "v1"); err != nil {
		t.Fatal(err)
	}
	write("ready: false, serving: false, terminating: true")
	await("the session leaves version 1", func(ctx context.Context) error {
		version, session, err := ask(ctx, old)
		if err != nil || version != "v2" {
			return fmt.Errorf("version %q (%w)", version, err)
		}
		if session == nil {
			return errors.New("the answer has no new session")
		}
		return all(ctx, session, "v2")
	})
}
