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

// sessions has a listener of a team on another one's Gateway, with a route to both versions of the echo.
const sessions = `apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front, namespace: istio-system}
spec:
  gatewayClassName: istio
  addresses: [{type: Hostname, value: ingress.istio-system.svc.cluster.local}]
  allowedListeners: {namespaces: {from: ALLOWED}}
  listeners: [{name: http, port: 80, protocol: HTTP, hostname: front.example.com}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: team, namespace: gateway}
spec:
  parentRef: {name: front, namespace: istio-system}
  listeners: [{name: http, port: 80, protocol: HTTP, hostname: session.example.com}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: team, namespace: gateway}
spec:
  parentRefs: [{kind: ListenerSet, name: team}]
  rules: [{sessionPersistence: {SESSION}, backendRefs: [{name: echo, port: 9080}]}]
`

// TestSessionsAtAListenerSet makes requests through the listener of a ListenerSet. Those with the cookie or the header of a session reach one Pod, the
// others both; without permission of the Gateway there is no such listener.
func TestSessionsAtAListenerSet(t *testing.T) {
	m, config := start(t, "gateway")
	write := func(allowed, session string) {
		t.Helper()
		path := filepath.Join(config, "sessions.yaml")
		if err := os.WriteFile(path+".new", []byte(strings.NewReplacer("ALLOWED", allowed, "SESSION", session).Replace(sessions)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(ctx context.Context, header http.Header) (meshup.Answer, *http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://10.99.0.9:8080/", http.NoBody)
		if err != nil {
			return meshup.Answer{}, nil, err
		}
		req.Host, req.Header = "session.example.com", header
		res, err := meshup.Client(m.Pod("outside-1.gateway").Net, 0).Do(req)
		if err != nil {
			return meshup.Answer{}, nil, err
		}
		defer res.Body.Close()
		a, err := meshup.ReadAnswer(res)
		return a, res, err
	}
	// keeps has requests with what a first answer says be those of one session.
	keeps := func(what string, of func(*http.Response) http.Header) {
		t.Helper()
		const requests = 20
		err := meshup.Await(t.Context(), time.Minute, what+": a session stays at one Pod", func(ctx context.Context) error {
			first := map[string]bool{}
			for range requests {
				a, res, err := ask(ctx, http.Header{})
				if err != nil {
					return err
				}
				first[a.Version] = true
				header := of(res)
				if header == nil {
					return errors.New("the answer has no session")
				}
				if again, _, err := ask(ctx, header); err != nil || again.Version != a.Version {
					return fmt.Errorf("after %s of version %s, version %s answers (%w)", header, a.Version, again.Version, err)
				}
			}
			if len(first) != 2 {
				return fmt.Errorf("%d requests without a session were all for %v", requests, first)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	write("All", "sessionName: cart")
	keeps("with a cookie", func(res *http.Response) http.Header {
		for _, c := range res.Cookies() {
			if c.Name == "cart" && c.Path == "/" {
				return http.Header{"Cookie": {c.Name + "=" + c.Value}}
			}
		}
		return nil
	})
	write("All", "type: Header, sessionName: x-session")
	keeps("with a header", func(res *http.Response) http.Header {
		if v := res.Header.Get("x-session"); v != "" {
			return http.Header{"X-Session": {v}}
		}
		return nil
	})
	write("Same", "type: Header, sessionName: x-session")
	err := meshup.Await(t.Context(), time.Minute, "the listener is gone", func(ctx context.Context) error {
		_, res, err := ask(ctx, http.Header{})
		switch {
		case res == nil:
			return err
		case res.StatusCode != http.StatusNotFound:
			return fmt.Errorf("status %d", res.StatusCode)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
