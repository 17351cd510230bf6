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

// mutualBackend is a server that verifies the certificates of its clients: a listener of an Istio Gateway of the same router.
const mutualBackend = `---
apiVersion: v1
kind: Service
metadata: {name: server, namespace: istio-system}
spec: {clusterIP: 10.96.40.9, selector: {istio: ingressgateway}, ports: [{name: http, port: 8443}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: server, namespace: istio-system}
spec:
  selector: {istio: ingressgateway}
  servers: [{port: {number: 8443, name: https, protocol: HTTPS}, hosts: [k.example.com], tls: {mode: MUTUAL, credentialName: server}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: server, namespace: istio-system}
spec:
  gateways: [server]
  hosts: [k.example.com]
  http: [{route: [{destination: {host: echo.gateway.svc.cluster.local, port: {number: 9080}}}]}]
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

const mutualFront = `---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front, namespace: istio-system}
spec:
  gatewayClassName: istio
  addresses: [{type: Hostname, value: ingress.istio-system.svc.cluster.local}]
  TLS
  listeners: [{name: http, port: 80, protocol: HTTP, hostname: front.example.com}]
`

// TestCertificateForBackends makes requests through a Gateway to a server that wants a certificate of its clients. They succeed with a certificate of
// the server's authority, one of the Gateway's namespace or a permitted one of another namespace, and fail with any other, with one that is not
// permitted, which is not replaced by none, and without one.
func TestCertificateForBackends(t *testing.T) {
	m, config := start(t, "gateway")
	ca, clients, others := newAuthority(t), newAuthority(t), newAuthority(t)
	root := func(a *authority) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
	}
	var keys [][]byte
	issue := func(of *authority, name string) map[string][]byte {
		_, files, _ := of.issue(t, name)
		keys = append(keys, files[1])
		return map[string][]byte{"tls.crt": files[0], "tls.key": files[1]}
	}
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
	front := func(ref string) {
		t.Helper()
		tls := "tls: {backend: {clientCertificateRef: {" + ref + "}}}"
		if ref == "" {
			tls = "allowedListeners: {}"
		}
		write("front.yaml", strings.Replace(mutualFront, "TLS", tls, 1))
	}
	server := issue(ca, "k.example.com")
	server["ca.crt"] = root(clients)
	write("secrets.yaml", secretText("istio-system", "server", server)+secretText("istio-system", "client", issue(clients, "client.example.com"))+
		secretText("istio-system", "other", issue(others, "client.example.com"))+secretText("gateway", "foreign", issue(clients, "foreign.example.com"))+
		rootsText("roots", string(root(ca)))+strings.ReplaceAll(backendTLSPolicy, "NAME", "k.example.com")+mutualBackend)
	front("name: client")
	gets("with a certificate of the authority", 200)
	front("name: other")
	gets("with one of another authority", 503)
	front("name: client")
	gets("with the former again", 200)
	front("")
	gets("without one", 503)
	front("name: foreign, namespace: gateway")
	gets("with one of another namespace, which nothing permits", 503)
	write("grant.yaml", secretGrant)
	gets("with one of another namespace, which a ReferenceGrant permits", 200)
	if err := os.Remove(filepath.Join(config, "grant.yaml")); err != nil {
		t.Fatal(err)
	}
	gets("without the ReferenceGrant", 503)
	front("name: absent")
	err := meshup.Await(t.Context(), time.Minute, "a Secret that does not exist is reported", func(context.Context) error {
		if _, out, _ := pilotctl(t, m, "objects"); !strings.Contains(out, "InvalidClientCertificateRef: Secret absent in namespace istio-system") {
			return fmt.Errorf("the objects are\n%s", out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	gets("with one that does not exist", 503)
	front("name: client")
	gets("with the first again", 200)
	assertNoKeys(t, m, keys)
}
