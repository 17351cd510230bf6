package e2e_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

const misdirectedGateway = `---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: hosts, namespace: istio-system}
spec:
  gatewayClassName: istio
  addresses: [{type: Hostname, value: ingress.istio-system.svc.cluster.local}]
  listeners:
  - {name: any, port: 8443, protocol: HTTPS, tls: {certificateRefs: [{name: k}]}}
  - {name: second, port: 8443, protocol: HTTPS, hostname: second-example.org, tls: {certificateRefs: [{name: k}]}}
  - {name: wildcard, port: 8443, protocol: HTTPS, hostname: "*.wildcard.org", tls: {certificateRefs: [{name: k}]}}
  - {name: fourth, port: 8443, protocol: HTTPS, hostname: fourth.wildcard.org, tls: {certificateRefs: [{name: k}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: any, namespace: istio-system}
spec:
  parentRefs: [{name: hosts, sectionName: any}]
  hostnames: [example.org]
  rules: [{backendRefs: [{name: echo, namespace: gateway, port: 9080}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: others, namespace: istio-system}
spec:
  parentRefs: [{name: hosts, sectionName: second}, {name: hosts, sectionName: wildcard}, {name: hosts, sectionName: fourth}]
  rules: [{backendRefs: [{name: unnamed, namespace: gateway, port: 80}]}]
---
apiVersion: v1
kind: Service
metadata: {name: unnamed, namespace: gateway}
spec: {clusterIP: 10.96.40.77, selector: {app: echo}, ports: [{port: 80, targetPort: 9080}]}
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: routes, namespace: gateway}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: istio-system}]
  to: [{group: "", kind: Service}]
`

// TestRequestsAtTheWrongListener makes requests for hosts of one listener on connections for the server name of another one at the same port.
func TestRequestsAtTheWrongListener(t *testing.T) {
	m, config := start(t, "gateway")
	_, files, _ := newAuthority(t).issue(t, "k.example.com")
	text := misdirectedGateway + secretText("istio-system", "k", map[string][]byte{"tls.crt": files[0], "tls.key": files[1]})
	if err := os.WriteFile(filepath.Join(config, "hosts.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		server, host string
		want         int
	}{
		{"example.org", "example.org", 200},
		{"example.org", "second-example.org", 421},
		{"example.org", "unknown.org", 404},
		{"second-example.org", "second-example.org", 200},
		{"second-example.org", "example.org", 421},
		{"second-example.org", "unknown.org", 421},
		{"third.wildcard.org", "third.wildcard.org", 200},
		{"third.wildcard.org", "fifth.wildcard.org", 200},
		{"third.wildcard.org", "fourth.wildcard.org", 421},
		{"third.wildcard.org", "second-example.org", 421},
		{"third.wildcard.org", "unknown.org", 421},
		{"fourth.wildcard.org", "fourth.wildcard.org", 200},
		{"fourth.wildcard.org", "fifth.wildcard.org", 421},
		{"unknown.org", "example.org", 200},
		{"unknown.org", "unknown.org", 404},
	} {
		err := meshup.Await(t.Context(), 15*time.Second, fmt.Sprintf("status %d for %s at the listener of %s", c.want, c.host, c.server), func(ctx context.Context) error {
			client := meshup.Client(m.Pod("outside-1.gateway").Net, 0)
			transport := client.Transport.(*http.Transport)
			// What is tried is which listener answers; its certificate has another name.
			transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true, ServerName: c.server} // #nosec G402
			transport.ForceAttemptHTTP2 = true
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://10.99.0.9:8443/", http.NoBody)
			if err != nil {
				return err
			}
			req.Host = c.host
			res, err := client.Do(req)
			if err != nil {
				return err
			}
			defer res.Body.Close()
			if res.StatusCode != c.want {
				return fmt.Errorf("status %d, by %s", res.StatusCode, res.Proto)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}
