package e2e_test

import (
	"context"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// backendTLS has a listener that ends TLS, at which another one's route arrives as at any other server.
const backendTLS = kubernetesTLS + `---
apiVersion: v1
kind: Service
metadata: {name: server, namespace: istio-system}
spec: {clusterIP: 10.96.40.9, selector: {istio: ingressgateway}, ports: [{name: http, port: 8443}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front, namespace: istio-system}
spec:
  gatewayClassName: istio
  addresses: [{type: Hostname, value: ingress.istio-system.svc.cluster.local}]
  listeners: [{name: http, port: 80, protocol: HTTP, hostname: front.example.com}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: front, namespace: istio-system}
spec:
  parentRefs: [{name: front}]
  rules:
  - filters: [{type: URLRewrite, urlRewrite: {hostname: k.example.com}}]
    backendRefs: [{name: server, port: 8443}]
`

const backendTLSPolicy = `---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: server, namespace: istio-system}
spec:
  targetRefs: [{group: "", kind: Service, name: server}]
  validation: {hostname: k.example.com, subjectAltNames: [{type: Hostname, hostname: NAME}], caCertificateRefs: [{group: "", kind: ConfigMap, name: roots}]}
`

// TestTLSToBackends makes requests through a gateway to a server that takes TLS only. They succeed with a BackendTLSPolicy whose name and
// certificates are the server's, follow each change of it and of its ConfigMap, and get 503 while one of them is wrong.
func TestTLSToBackends(t *testing.T) {
	m, config := start(t, "gateway")
	ca := newAuthority(t)
	_, files, _ := ca.issue(t, "k.example.com")
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(config, name)
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	policy := func(name string) { write("policy.yaml", strings.ReplaceAll(backendTLSPolicy, "NAME", name)) }
	roots := func(text string) {
		write("roots.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: roots, namespace: istio-system}\ndata:\n  ca.crt: |\n    "+strings.ReplaceAll(text, "\n", "\n    ")+"\n")
	}
	own := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw}))
	other := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: newAuthority(t).cert.Raw}))
	write("secrets.yaml", secretText("istio-system", "k", map[string][]byte{"tls.crt": files[0], "tls.key": files[1]})+backendTLS)
	gets := func(what string, status int) {
		t.Helper()
		err := meshup.Await(t.Context(), time.Minute, fmt.Sprintf("%s: requests get %d", what, status), func(ctx context.Context) error {
			_, res, err := throughGateway(ctx, m, "front.example.com", "/")
			switch {
			case res == nil:
				return err
			case res.StatusCode != status:
				return fmt.Errorf("status %d", res.StatusCode)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	roots(own)
	policy("k.example.com")
	gets("with a policy", 200)
	policy("other.example.com")
	gets("with another name", 503)
	policy("k.example.com")
	gets("with the name again", 200)
	roots(other)
	gets("with certificates of another authority", 503)
	roots("none")
	gets("without certificates", 503)
	if err := os.Remove(filepath.Join(config, "roots.yaml")); err != nil {
		t.Fatal(err)
	}
	gets("without the ConfigMap", 503)
	roots(own)
	gets("with the ConfigMap again", 200)
}
