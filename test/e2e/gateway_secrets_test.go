package e2e_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io/fs"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

const secretsGateway = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: tls, namespace: gateway}
spec:
  selector: {istio: ingressgateway}
  servers:
  - {port: {number: 8443, name: https-a, protocol: HTTPS}, hosts: [a.example.com], tls: {mode: SIMPLE, credentialName: a}}
  - {port: {number: 8443, name: https-b, protocol: HTTPS}, hosts: [b.example.com], tls: {mode: MUTUAL, credentialName: b}}
  - {port: {number: 8443, name: https-c, protocol: HTTPS}, hosts: [c.example.com], tls: {mode: SIMPLE, credentialName: missing}}
  - {port: {number: 8443, name: https-d, protocol: HTTPS}, hosts: [d.example.com], tls: {mode: SIMPLE, credentialName: kubernetes://gateway/foreign}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: tls, namespace: gateway}
spec:
  gateways: [tls]
  hosts: ["*.example.com"]
  http: [{route: [{destination: {host: echo, port: {number: 9080}}}]}]
`

// secretText is a Secret in YAML.
func secretText(namespace, name string, data map[string][]byte) string {
	var out strings.Builder
	fmt.Fprintf(&out, "---\napiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: %s}\ndata:\n", name, namespace)
	for k, v := range data {
		fmt.Fprintf(&out, "  %s: %s\n", k, base64.StdEncoding.EncodeToString(v))
	}
	return out.String()
}

// TestSecretsOfAGateway makes requests by TLS, which the router ends with certificates from Secrets of its namespace. A server whose
// Secret does not exist, or is of another namespace, serves nobody, and the others do. A certificate is replaced under new connections, and a
// broken one is not used. The keys are in no page of the control plane, and not in what it saves.
func TestSecretsOfAGateway(t *testing.T) {
	m, config := start(t, "gateway")
	ca := newAuthority(t)
	root := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
	var keys [][]byte
	issue := func(name string) (*big.Int, map[string][]byte) {
		cert, files, _ := ca.issue(t, name)
		keys = append(keys, files[1])
		return cert.SerialNumber, map[string][]byte{"tls.crt": files[0], "tls.key": files[1]}
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
	_, a := issue("a.example.com")
	_, b := issue("b.example.com")
	b["ca.crt"] = root
	_, foreign := issue("d.example.com")
	write("secrets.yaml", secretText("istio-system", "b", b)+secretText("gateway", "foreign", foreign))
	write("a.yaml", secretText("istio-system", "a", a))
	write("tls.yaml", secretsGateway)

	client := func(name string) []tls.Certificate {
		t.Helper()
		_, files, _ := ca.issue(t, name)
		pair, err := tls.X509KeyPair(files[0], files[1])
		if err != nil {
			t.Fatal(err)
		}
		return []tls.Certificate{pair}
	}
	get := func(ctx context.Context, host string, with []tls.Certificate) (*tls.ConnectionState, error) {
		return getTLS(ctx, m, ca.pool, host, with)
	}
	await := func(what string, cond func(ctx context.Context) error) {
		t.Helper()
		if err := meshup.Await(t.Context(), time.Minute, what, cond); err != nil {
			t.Fatal(err)
		}
	}
	await("the router serves a.example.com", func(ctx context.Context) error { _, err := get(ctx, "a.example.com", nil); return err })
	with := client("client.example.com")
	await("the router serves b.example.com to its client", func(ctx context.Context) error { _, err := get(ctx, "b.example.com", with); return err })
	for what, host := range map[string]string{
		"a client without a certificate is served": "b.example.com", "a server without a Secret serves": "c.example.com", "a Secret of another namespace is used": "d.example.com",
	} {
		if _, err := get(t.Context(), host, nil); err == nil {
			t.Error(what)
		}
	}

	serial, a := issue("a.example.com")
	write("a.yaml", secretText("istio-system", "a", a))
	requests := 0
	began := time.Now()
	await("the new certificate is served, without a failed request", func(ctx context.Context) error {
		// As fast as they go: the condition is asked at intervals only.
		for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); requests++ {
			state, err := get(ctx, "a.example.com", nil)
			if err != nil {
				return meshup.Final(err)
			}
			if state.PeerCertificates[0].SerialNumber.Cmp(serial) == 0 {
				return nil
			}
		}
		return fmt.Errorf("the old certificate is served")
	})
	t.Logf("%d connections in %v until the new certificate was served, none failed", requests, time.Since(began).Round(time.Millisecond))

	a["tls.key"] = []byte("no key")
	write("a.yaml", secretText("istio-system", "a", a))
	await("the broken Secret is reported", func(ctx context.Context) error {
		page, err := m.Get(ctx, m.Net.Host(), m.DiscoveryURL()+"/debug/objectz")
		if err == nil && !bytes.Contains(page, []byte("tls.crt and tls.key: want a certificate in PEM and its private key")) {
			err = fmt.Errorf("%s", page)
		}
		return err
	})
	state, err := get(t.Context(), "a.example.com", nil)
	if err != nil || state.PeerCertificates[0].SerialNumber.Cmp(serial) != 0 {
		t.Errorf("with a broken Secret the last good certificate is not served: %v", err)
	}
	write("e.yaml", secretText("istio-system", "missing", func() map[string][]byte { _, c := issue("c.example.com"); return c }()))
	await("the server is served once its Secret is there", func(ctx context.Context) error { _, err := get(ctx, "c.example.com", nil); return err })

	assertNoKeys(t, m, keys)
}

// TestListenersOfTheGatewayAPIEndTLS makes requests by TLS to listeners of the Gateway API: with a Secret of the Gateway's namespace, and
// with one of another namespace, which a ReferenceGrant there permits.
func TestListenersOfTheGatewayAPIEndTLS(t *testing.T) {
	m, config := start(t, "gateway")
	ca := newAuthority(t)
	var keys [][]byte
	issue := func(name string) map[string][]byte {
		_, files, _ := ca.issue(t, name)
		keys = append(keys, files[1])
		return map[string][]byte{"tls.crt": files[0], "tls.key": files[1]}
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(config, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	await := func(what string, cond func(ctx context.Context) error) {
		t.Helper()
		if err := meshup.Await(t.Context(), time.Minute, what, cond); err != nil {
			t.Fatal(err)
		}
	}
	get := func(ctx context.Context, host string) error {
		_, err := getTLS(ctx, m, ca.pool, host, nil)
		return err
	}
	write("secrets.yaml", secretText("istio-system", "k", issue("k.example.com"))+secretText("gateway", "foreign", issue("d.k.example.com"))+kubernetesTLS)
	await("a listener serves", func(ctx context.Context) error { return get(ctx, "k.example.com") })
	await("an object says that a reference is not permitted", func(context.Context) error {
		if _, out, _ := pilotctl(t, m, "objects"); !strings.Contains(out, "ReferenceGrant") {
			return fmt.Errorf("the objects are\n%s", out)
		}
		return nil
	})
	if err := get(t.Context(), "d.k.example.com"); err == nil {
		t.Error("a Secret of another namespace is used without a ReferenceGrant")
	}
	write("grant.yaml", secretGrant)
	await("the other listener serves with a ReferenceGrant", func(ctx context.Context) error { return get(ctx, "d.k.example.com") })
	assertNoKeys(t, m, keys)
}

const secretGrant = `
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: edge, namespace: gateway}
spec:
  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: istio-system}]
  to: [{group: "", kind: Secret, name: foreign}]
`

const kubernetesTLS = `
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: tls, namespace: istio-system}
spec:
  gatewayClassName: istio
  addresses: [{type: Hostname, value: ingress.istio-system.svc.cluster.local}]
  listeners:
  - {name: k, port: 8443, protocol: HTTPS, hostname: k.example.com, tls: {certificateRefs: [{name: k}]}}
  - {name: d, port: 8443, protocol: HTTPS, hostname: d.k.example.com, tls: {certificateRefs: [{name: foreign, namespace: gateway}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: tls, namespace: istio-system}
spec:
  parentRefs: [{name: tls}]
  rules: [{backendRefs: [{name: echo, namespace: gateway, port: 9080}]}]
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: routes, namespace: gateway}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: istio-system}]
  to: [{group: "", kind: Service}]
`

// getTLS makes a request by TLS to port 8443 of the router from outside the mesh, and returns the state of the connection.
func getTLS(ctx context.Context, m *meshup.Mesh, roots *x509.CertPool, host string, with []tls.Certificate) (*tls.ConnectionState, error) {
	return getTLSAt(ctx, m, roots, 8443, host, with)
}

// getTLSAt is getTLS at any port. Without an answer the state is nil.
func getTLSAt(ctx context.Context, m *meshup.Mesh, roots *x509.CertPool, port int, host string, with []tls.Certificate) (*tls.ConnectionState, error) {
	c := meshup.Client(m.Pod("outside-1.gateway").Net, 0)
	c.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: roots, ServerName: host, Certificates: with, MinVersion: tls.VersionTLS12}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://10.99.0.9:%d/", port), http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Host = host
	res, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	answer, err := meshup.ReadAnswer(res)
	if err == nil && (answer.Status != http.StatusOK || answer.Peer != ingressIdentity) {
		err = fmt.Errorf("status %d, caller %q", answer.Status, answer.Peer)
	}
	return res.TLS, err
}

// assertNoKeys looks for private keys in the pages of the control plane, in what it saves and logs, and in the gateway's directory.
func assertNoKeys(t *testing.T, m *meshup.Mesh, keys [][]byte) {
	t.Helper()
	leaks := func(where string, text []byte) {
		t.Helper()
		for _, key := range keys {
			block, _ := pem.Decode(key)
			for _, secret := range [][]byte{key[40:80], block.Bytes[20:50], []byte(base64.StdEncoding.EncodeToString(key)[60:100])} {
				if bytes.Contains(text, secret) {
					t.Errorf("%s has a private key", where)
				}
			}
		}
	}
	for _, page := range []string{
		"/debug/config_dump?proxyID=ingress-1.istio-system", "/debug/objectz", "/debug/syncz", "/debug/configz", "/debug/adsz", "/debug/classz", "/debug/registryz",
	} {
		text, err := m.Get(t.Context(), m.Net.Host(), m.DiscoveryURL()+page)
		if err != nil {
			t.Errorf("%s: %v", page, err)
		}
		leaks(page, text)
	}
	for _, dir := range []string{m.StateDir(), filepath.Join(filepath.Dir(m.StateDir()), "log"), m.Pod("ingress-1.istio-system").Dir} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			text, err := os.ReadFile(path)
			leaks(path, text)
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}
