package e2e_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// authority signs certificates outside the mesh.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool()}
	cert, _, key := a.issue(t, "root")
	a.cert, a.key = cert, key
	a.pool.AddCert(cert)
	return a
}

// issue returns a certificate for a name, as PEM with its key, too; the first one is the authority's own.
func (a *authority) issue(t testing.TB, name string) (*x509.Certificate, [2][]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true, IsCA: a.key == nil,
	}
	parent, signer := a.cert, a.key
	if signer == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	text, keyErr := x509.MarshalECPrivateKey(key)
	cert, certErr := x509.ParseCertificate(der)
	if err := errors.Join(keyErr, certErr); err != nil {
		t.Fatal(err)
	}
	return cert, [2][]byte{
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: text}),
	}, key
}

const tlsGateway = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: tls, namespace: gateway}
spec:
  selector: {istio: ingressgateway}
  servers:
  - {port: {number: 8443, name: https-a, protocol: HTTPS}, hosts: [a.example.com], tls: {mode: SIMPLE, serverCertificate: DIR/a.pem, privateKey: DIR/a.key}}
  - {port: {number: 8443, name: https-b, protocol: HTTPS}, hosts: [b.example.com], tls: {mode: MUTUAL, serverCertificate: DIR/b.pem, privateKey: DIR/b.key, caCertificates: DIR/ca.pem, subjectAltNames: [client.example.com]}}
  - {port: {number: 9000, name: tcp, protocol: TCP}, hosts: ["*"]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: tls, namespace: gateway}
spec:
  gateways: [tls]
  hosts: [a.example.com, b.example.com]
  http: [{route: [{destination: {host: echo, port: {number: 9080}}}]}]
  tcp: [{route: [{destination: {host: echo, port: {number: 9100}}}]}]
`

// TestTLSThroughAGateway makes requests by TLS, which the router ends with the certificates of the hosts, from files: one for
// anybody, one for clients with a certificate. Then the certificate of one is replaced while requests are made. TCP is forwarded.
func TestTLSThroughAGateway(t *testing.T) {
	m, config := start(t, "gateway")
	router := m.Pod("ingress-1.istio-system")
	ca := newAuthority(t)
	write := func(name string, text []byte) {
		t.Helper()
		if err := router.Write("certs/"+name, text); err != nil {
			t.Fatal(err)
		}
	}
	serial := map[string]*big.Int{}
	renew := func(name string) {
		t.Helper()
		cert, files, _ := ca.issue(t, name+".example.com")
		serial[name] = cert.SerialNumber
		write(name+".key", files[1])
		write(name+".pem", files[0])
	}
	renew("a")
	renew("b")
	write("ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw}))
	text := strings.ReplaceAll(tlsGateway, "DIR", filepath.Join(router.Dir, "certs"))
	if err := os.WriteFile(filepath.Join(config, "tls.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	client := func(name string) []tls.Certificate {
		t.Helper()
		_, files, _ := ca.issue(t, name)
		pair, err := tls.X509KeyPair(files[0], files[1])
		if err != nil {
			t.Fatal(err)
		}
		return []tls.Certificate{pair}
	}
	from := m.Pod("outside-1.gateway").Net
	get := func(ctx context.Context, host string, with []tls.Certificate) (*tls.ConnectionState, error) {
		c := meshup.Client(from, 0)
		c.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: ca.pool, ServerName: host, Certificates: with, MinVersion: tls.VersionTLS12}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://10.99.0.9:8443/", http.NoBody)
		if err != nil {
			return nil, err
		}
		req.Host = host
		res, err := c.Do(req)
		if err != nil {
			return nil, err
		}
		defer res.Body.Close()
		a, err := meshup.ReadAnswer(res)
		if err == nil && (a.Status != http.StatusOK && res.StatusCode != http.StatusOK || a.Peer != ingressIdentity) {
			err = fmt.Errorf("status %d, caller %q", res.StatusCode, a.Peer)
		}
		return res.TLS, err
	}
	await := func(what string, cond func(ctx context.Context) error) {
		t.Helper()
		if err := meshup.Await(t.Context(), time.Minute, what, cond); err != nil {
			t.Fatal(err)
		}
	}
	await("the router serves a.example.com", func(ctx context.Context) error { _, err := get(ctx, "a.example.com", nil); return err })
	await("the router serves b.example.com to its client", func(ctx context.Context) error {
		_, err := get(ctx, "b.example.com", client("client.example.com"))
		return err
	})
	for name, with := range map[string][]tls.Certificate{"no certificate": nil, "another name": client("other.example.com")} {
		if _, err := get(t.Context(), "b.example.com", with); err == nil {
			t.Errorf("b.example.com answers a client with %s", name)
		}
	}
	if _, err := get(t.Context(), "c.example.com", nil); err == nil {
		t.Error("a host without a server is served")
	}
	await("TCP is forwarded", func(ctx context.Context) error {
		got, err := meshup.Line(ctx, from, "10.99.0.9:9000", "hello")
		if err == nil && !strings.Contains(got, "hello") {
			err = fmt.Errorf("answer %q", got)
		}
		return err
	})
	renew("a")
	requests := 0
	await("the new certificate is served, without a failed request", func(ctx context.Context) error {
		state, err := get(ctx, "a.example.com", nil)
		if err != nil {
			return meshup.Final(err)
		}
		requests++
		if got := state.PeerCertificates[0].SerialNumber; got.Cmp(serial["a"]) != 0 {
			return fmt.Errorf("serial number %v, want %v", got, serial["a"])
		}
		return nil
	})
	t.Logf("%d requests until the new certificate was served", requests)
}
