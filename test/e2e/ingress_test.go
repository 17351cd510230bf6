package e2e_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

const ingressObjects = `
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: istio}
spec: {controller: istio.io/ingress-controller}
---
apiVersion: v1
kind: Service
metadata: {name: echo-v1, namespace: gateway}
spec: {clusterIP: 10.96.40.5, selector: {app: echo, version: v1}, ports: [{name: http, port: 9080}]}
---
apiVersion: v1
kind: Service
metadata: {name: echo-v2, namespace: gateway}
spec: {clusterIP: 10.96.40.6, selector: {app: echo, version: v2}, ports: [{name: http, port: 9080}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: one, namespace: gateway}
spec:
  ingressClassName: istio
  tls: [{hosts: [one.ingress.example], secretName: one}]
  rules:
  - host: one.ingress.example
    http:
      paths:
      - {path: /, pathType: Prefix, backend: {service: {name: echo-v1, port: {number: 9080}}}}
      - {path: /two, pathType: Prefix, backend: {service: {name: echo-v2, port: {name: http}}}}
      - {path: /two/exact, pathType: Exact, backend: {service: {name: echo-v1, port: {number: 9080}}}}
      - {path: /resource, pathType: Prefix, backend: {resource: {apiGroup: a, kind: B, name: c}}}
      - {path: /gone, pathType: Prefix, backend: {service: {name: gone, port: {number: 80}}}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: two, namespace: gateway, annotations: {kubernetes.io/ingress.class: istio}}
spec:
  tls: [{hosts: ["*.two.ingress.example"], secretName: two}]
  defaultBackend: {service: {name: echo-v2, port: {number: 9080}}}
  rules:
  - {host: "*.two.ingress.example", http: {paths: [{path: /one/*, pathType: ImplementationSpecific, backend: {service: {name: echo-v1, port: {number: 9080}}}}]}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: other, namespace: gateway}
spec:
  ingressClassName: other
  rules: [{host: one.ingress.example, http: {paths: [{path: /other, pathType: Prefix, backend: {service: {name: gone, port: {number: 80}}}}]}}]
`

// TestRequestsByIngresses makes requests from outside through a router that serves Ingresses: by host and path of each type, to a default
// backend, and by TLS with the certificate of the server's name.
func TestRequestsByIngresses(t *testing.T) {
	m, config := start(t, "gateway")
	ca := newAuthority(t)
	text := ingressObjects
	for _, s := range []struct{ name, host string }{{"one", "one.ingress.example"}, {"two", "x.two.ingress.example"}} {
		_, files, _ := ca.issue(t, s.host)
		text += secretText("istio-system", s.name, map[string][]byte{"tls.crt": files[0], "tls.key": files[1]})
	}
	if err := os.WriteFile(filepath.Join(config, "ingress.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, one := range []struct {
		scheme, host, path, version string
		status                      int
	}{
		{"http", "one.ingress.example", "/", "v1", 200},
		{"http", "one.ingress.example", "/two", "v2", 200},
		{"http", "one.ingress.example", "/two/x", "v2", 200},
		{"http", "one.ingress.example", "/twofold", "v1", 200},
		{"http", "one.ingress.example", "/two/exact", "v1", 200},
		{"http", "one.ingress.example", "/two/exact/not", "v2", 200},
		{"http", "one.ingress.example", "/other", "v1", 200},
		{"http", "one.ingress.example", "/resource", "", 503},
		{"http", "one.ingress.example", "/gone", "", 503},
		{"http", "x.two.ingress.example", "/one/x", "v1", 200},
		{"http", "x.two.ingress.example", "/x", "v2", 200},
		{"http", "unknown.example", "/x", "v2", 200},
		{"https", "one.ingress.example", "/two", "v2", 200},
		{"https", "one.ingress.example", "/", "v1", 200},
		{"https", "x.two.ingress.example", "/one", "v1", 200},
		{"https", "x.two.ingress.example", "/", "v2", 200},
	} {
		what := fmt.Sprintf("%s://%s%s gets %d from %q", one.scheme, one.host, one.path, one.status, one.version)
		err := meshup.Await(t.Context(), time.Minute, what, func(ctx context.Context) error {
			a, res, err := byIngress(ctx, m, ca.pool, one.scheme, one.host, one.path)
			if res == nil {
				return err
			}
			if res.StatusCode != one.status || a.Version != one.version || one.version != "" && a.Peer != ingressIdentity {
				return fmt.Errorf("status %d, version %q, caller %q", res.StatusCode, a.Version, a.Peer)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// byIngress makes a request to the router from outside the mesh.
func byIngress(ctx context.Context, m *meshup.Mesh, roots *x509.CertPool, scheme, host, path string) (meshup.Answer, *http.Response, error) {
	c := meshup.Client(m.Pod("outside-1.gateway").Net, 0)
	c.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: roots, ServerName: host, MinVersion: tls.VersionTLS12}
	port := map[string]string{"http": "8080", "https": "8444"}[scheme]
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://10.99.0.9:"+port+path, http.NoBody)
	if err != nil {
		return meshup.Answer{}, nil, err
	}
	req.Host = host
	res, err := c.Do(req)
	if err != nil {
		return meshup.Answer{}, nil, err
	}
	defer res.Body.Close()
	a, err := meshup.ReadAnswer(res)
	return a, res, err
}
