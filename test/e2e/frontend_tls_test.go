package e2e_test

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// frontendTLS verifies the certificates of clients at all ports, with other certificates at the second one, and not at the third.
const frontendTLS = `
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: clients, namespace: istio-system}
spec:
  gatewayClassName: istio
  addresses: [{type: Hostname, value: ingress.istio-system.svc.cluster.local}]
  tls:
    frontend:
      default: {validation: {mode: MODE, caCertificateRefs: [{group: "", kind: ConfigMap, name: first}]}}
      perPort:
      - {port: 443, tls: {validation: {caCertificateRefs: [{group: "", kind: ConfigMap, name: second}]}}}
      - {port: 9443, tls: {}}
  listeners:
  - {name: default, port: 8443, protocol: HTTPS, tls: {certificateRefs: [{name: k}]}}
  - {name: other, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: k}]}}
  - {name: open, port: 9443, protocol: HTTPS, tls: {certificateRefs: [{name: k}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: clients, namespace: istio-system}
spec:
  parentRefs: [{name: clients}]
  rules: [{backendRefs: [{name: echo, namespace: gateway, port: 9080}]}]
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: routes, namespace: gateway}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: istio-system}]
  to: [{group: "", kind: Service}]
`

// rootsText is a ConfigMap with certificates in YAML.
func rootsText(name, text string) string {
	return "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: istio-system}\ndata:\n  ca.crt: |\n    " + strings.ReplaceAll(text, "\n", "\n    ") + "\n"
}

// TestCertificatesOfClientsAtAGateway makes requests by TLS to listeners of the Gateway API that verify the certificates of their clients: those that
// have none, or one of another authority, are refused, each port by its own settings. With AllowInsecureFallback clients without a certificate
// are let in. A listener without any certificate to verify with serves nobody.
func TestCertificatesOfClientsAtAGateway(t *testing.T) {
	m, config := start(t, "gateway")
	server, first, second := newAuthority(t), newAuthority(t), newAuthority(t)
	root := func(a *authority) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
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
	client := func(a *authority) []tls.Certificate {
		t.Helper()
		_, files, _ := a.issue(t, "client.example.com")
		pair, err := tls.X509KeyPair(files[0], files[1])
		if err != nil {
			t.Fatal(err)
		}
		return []tls.Certificate{pair}
	}
	ofFirst, ofSecond := client(first), client(second)
	// The ports of the Pod: its Service has 443 with another target.
	const byDefault, other, open = 8443, 8444, 9443
	get := func(ctx context.Context, port int, with []tls.Certificate) error {
		_, err := getTLSAt(ctx, m, server.pool, port, "k.example.com", with)
		return err
	}
	served := func(what string, port int, with []tls.Certificate) {
		t.Helper()
		if err := meshup.Await(t.Context(), time.Minute, what+" is served", func(ctx context.Context) error { return get(ctx, port, with) }); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(what string, port int, with []tls.Certificate) {
		t.Helper()
		err := meshup.Await(t.Context(), time.Minute, what+" is refused", func(ctx context.Context) error {
			state, err := getTLSAt(ctx, m, server.pool, port, "k.example.com", with)
			if state != nil || err == nil {
				return errors.New("there is an answer")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	gateway := func(mode string) { write("gateway-clients.yaml", strings.Replace(frontendTLS, "MODE", mode, 1)) }

	_, files, _ := server.issue(t, "k.example.com")
	write("secrets.yaml", secretText("istio-system", "k", map[string][]byte{"tls.crt": files[0], "tls.key": files[1]}))
	write("first.yaml", rootsText("first", root(first)))
	write("second.yaml", rootsText("second", root(second)))
	gateway("AllowValidOnly")

	served("a client with a certificate", byDefault, ofFirst)
	served("a client with a certificate of the port's authority", other, ofSecond)
	served("a client without a certificate at a port without verification", open, nil)
	refused("a client without a certificate", byDefault, nil)
	refused("a client with a certificate of another authority", byDefault, ofSecond)
	refused("a client without a certificate at the second port", other, nil)
	refused("a client with a certificate of the default authority at the second port", other, ofFirst)

	gateway("AllowInsecureFallback")
	served("with AllowInsecureFallback a client without a certificate", byDefault, nil)
	served("with AllowInsecureFallback a client with a certificate", byDefault, ofFirst)
	refused("with AllowInsecureFallback a client with a certificate of another authority", byDefault, ofSecond)
	refused("without AllowInsecureFallback at the second port a client without a certificate", other, nil)

	gateway("AllowValidOnly")
	refused("a client without a certificate, as before,", byDefault, nil)
	write("first.yaml", rootsText("first", root(second)))
	served("a client with a certificate of the authority that is now in the ConfigMap", byDefault, ofSecond)
	refused("a client with a certificate of the former authority", byDefault, ofFirst)
	if err := os.Remove(filepath.Join(config, "first.yaml")); err != nil {
		t.Fatal(err)
	}
	refused("without the ConfigMap every client", byDefault, ofSecond)
	served("a client of the other listeners, as before,", other, ofSecond)
	_, out, _ := pilotctl(t, m, "objects")
	if !strings.Contains(out, "there is no ConfigMap first with the key ca.crt in namespace istio-system") {
		t.Errorf("no object says that the ConfigMap is missing:\n%s", out)
	}
}
