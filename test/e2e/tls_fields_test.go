package e2e_test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
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

const tlsFields = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: fields, namespace: travel}
spec:
  selector: {istio: egressgateway}
  servers:
  - {port: {number: 7443, name: a, protocol: HTTPS}, hosts: [default.example.com], tls: {mode: SIMPLE, serverCertificate: CERTS/s.pem, privateKey: CERTS/s.key}}
  - {port: {number: 7443, name: b, protocol: HTTPS}, hosts: [max12.example.com], tls: {mode: SIMPLE, serverCertificate: CERTS/s.pem, privateKey: CERTS/s.key, minProtocolVersion: TLSV1_2, maxProtocolVersion: TLSV1_2}}
  - {port: {number: 7443, name: c, protocol: HTTPS}, hosts: [old.example.com], tls: {mode: SIMPLE, serverCertificate: CERTS/s.pem, privateKey: CERTS/s.key, minProtocolVersion: TLSV1_0, maxProtocolVersion: TLSV1_1, cipherSuites: [ECDHE-ECDSA-AES128-SHA]}}
  - {port: {number: 7443, name: d, protocol: HTTPS}, hosts: [suite.example.com], tls: {mode: SIMPLE, tlsCertificates: [{serverCertificate: CERTS/s.pem, privateKey: CERTS/s.key}], minProtocolVersion: TLSV1_2, maxProtocolVersion: TLSV1_2, cipherSuites: [TLS_AES_128_GCM_SHA256, ECDHE-ECDSA-AES128-GCM-SHA256]}}
  - {port: {number: 7443, name: e, protocol: HTTPS}, hosts: [spki.example.com], tls: {mode: MUTUAL, serverCertificate: CERTS/s.pem, privateKey: CERTS/s.key, caCertificates: CERTS/ca.pem, verifyCertificateSpki: ["SPKI"]}}
  - {port: {number: 7443, name: f, protocol: HTTPS}, hosts: [hash.example.com], tls: {mode: MUTUAL, serverCertificate: CERTS/s.pem, privateKey: CERTS/s.key, caCertificates: CERTS/ca.pem, verifyCertificateHash: ["HASH"]}}
  - {port: {number: 7443, name: g, protocol: HTTPS}, hosts: [crl.example.com], tls: {mode: MUTUAL, serverCertificate: CERTS/s.pem, privateKey: CERTS/s.key, caCertificates: CERTS/ca.pem, caCrl: CERTS/crl.pem}}
  - {port: {number: 7443, name: h, protocol: HTTPS}, hosts: [maybe.example.com], tls: {mode: OPTIONAL_MUTUAL, serverCertificate: CERTS/s.pem, privateKey: CERTS/s.key, caCertificates: CERTS/ca.pem}}
  - {port: {number: 7443, name: i, protocol: HTTPS}, hosts: [named.example.com], tls: {mode: OPTIONAL_MUTUAL, serverCertificate: CERTS/s.pem, privateKey: CERTS/s.key, caCertificates: CERTS/ca.pem, subjectAltNames: [one.example.com]}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: fields, namespace: travel}
spec: {hosts: ["*.example.com"], gateways: [fields], http: [{directResponse: {status: 204}}]}
`

// TestServersAcceptWhatTheirTLSSays has clients that offer one thing only at servers of a Gateway, one for each field of its TLS: the
// versions, cipher suites, certificates and names of clients. tlsDefaults of the mesh is in force where a server says nothing.
func TestServersAcceptWhatTheirTLSSays(t *testing.T) {
	m, config := start(t, "egress")
	ca, stranger := newAuthority(t), newAuthority(t)
	gateway := m.Pod("egress-1.istio-system")
	_, server, _ := ca.issue(t, "server.example.com")
	certificate := func(by *authority, name string) (*x509.Certificate, *tls.Certificate) {
		t.Helper()
		leaf, files, _ := by.issue(t, name)
		pair, err := tls.X509KeyPair(files[0], files[1])
		if err != nil {
			t.Fatal(err)
		}
		return leaf, &pair
	}
	leaf, one := certificate(ca, "one.example.com")
	revoked, two := certificate(ca, "two.example.com")
	_, other := certificate(stranger, "one.example.com")
	spki, hash := sha256.Sum256(leaf.RawSubjectPublicKeyInfo), sha256.Sum256(leaf.Raw)
	for name, text := range map[string][]byte{
		"s.pem": server[0], "s.key": server[1], "ca.pem": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw}), "crl.pem": ca.revoke(t, revoked.SerialNumber),
	} {
		if err := gateway.Write("certs/"+name, text); err != nil {
			t.Fatal(err)
		}
	}
	text := strings.NewReplacer(
		"CERTS", filepath.Join(gateway.Dir, "certs"), "SPKI", base64.StdEncoding.EncodeToString(spki[:]), "HASH", strings.ToUpper(hex.EncodeToString(hash[:])),
	).Replace(tlsFields)
	meshFile := filepath.Join(config, "mesh.yaml")
	was, err := os.ReadFile(meshFile)
	if err != nil {
		t.Fatal(err)
	}
	replace(t, meshFile, strings.Replace(string(was), "  mesh: |\n", "  mesh: |\n    tlsDefaults: {minProtocolVersion: TLSV1_3, ecdhCurves: [P-256]}\n", 1))
	replace(t, filepath.Join(config, "fields.yaml"), text)

	with := func(c *tls.Certificate) *tls.Config { return &tls.Config{Certificates: []tls.Certificate{*c}} }
	version := func(v, suite uint16) *tls.Config {
		c := &tls.Config{MinVersion: v, MaxVersion: v}
		if suite != 0 {
			c.CipherSuites = []uint16{suite}
		}
		return c
	}
	curve := func(id tls.CurveID) *tls.Config {
		return &tls.Config{MinVersion: tls.VersionTLS13, CurvePreferences: []tls.CurveID{id}}
	}
	offers := []struct {
		host     string
		offer    string
		config   *tls.Config
		accepted bool
	}{
		{"default", "TLS 1.2", version(tls.VersionTLS12, 0), false},
		{"default", "the mesh's curve", curve(tls.CurveP256), true},
		{"default", "another curve", curve(tls.X25519), false},
		{"max12", "TLS 1.2", version(tls.VersionTLS12, 0), true},
		{"max12", "TLS 1.3", version(tls.VersionTLS13, 0), false},
		{"old", "TLS 1.0", version(tls.VersionTLS10, tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA), true},
		{"old", "TLS 1.1", version(tls.VersionTLS11, tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA), true},
		{"old", "TLS 1.2", version(tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA), false},
		{"suite", "the suite", version(tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256), true},
		{"suite", "another suite", version(tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384), false},
		{"spki", "the key", with(one), true},
		{"spki", "another key", with(two), false},
		{"spki", "no certificate", &tls.Config{}, false},
		{"hash", "the certificate", with(one), true},
		{"hash", "another certificate", with(two), false},
		{"crl", "a certificate", with(one), true},
		{"crl", "a revoked certificate", with(two), false},
		{"crl", "a certificate of others", with(other), false},
		{"maybe", "no certificate", &tls.Config{}, true},
		{"maybe", "a certificate", with(two), true},
		{"maybe", "a certificate of others", with(other), false},
		{"named", "no certificate", &tls.Config{}, false}, // which a verdict says
		{"named", "a certificate with the name", with(one), true},
		{"named", "a certificate with another name", with(two), false},
	}
	from := m.Pod("outside-1.elsewhere").Net
	if err := meshup.Await(t.Context(), 2*time.Minute, "each server accepts what it should, and nothing else", func(ctx context.Context) error {
		for _, o := range offers {
			c := o.config.Clone()
			// The certificate is for one name; what is tested is what the server accepts.
			c.RootCAs, c.ServerName, c.InsecureSkipVerify = ca.pool, o.host+".example.com", true
			err := answers204(ctx, from, "https://10.99.0.20:7443/", c)
			if (err == nil) != o.accepted {
				return fmt.Errorf("%s.example.com, a client with %s: accepted %v, want %v (%v)", o.host, o.offer, err == nil, o.accepted, err) //nolint:errorlint // it may be nil
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// answers204 makes a request by TLS and returns an error unless the answer is 204.
func answers204(ctx context.Context, from meshup.Dialer, url string, c *tls.Config) error {
	client := meshup.Client(from, 0)
	client.Transport.(*http.Transport).TLSClientConfig = c
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	req.Host = c.ServerName
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusNoContent {
		err = fmt.Errorf("status %d", res.StatusCode)
	}
	return errors.Join(err, res.Body.Close())
}

// revoke returns a revocation list with a certificate of the authority, in PEM.
func (a *authority) revoke(t *testing.T, serial *big.Int) []byte {
	t.Helper()
	list, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(time.Hour),
		RevokedCertificateEntries: []x509.RevocationListEntry{{SerialNumber: serial, RevocationTime: time.Now().Add(-time.Hour)}},
	}, a.cert, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: list})
}

// replace writes a file of the configuration at once.
func replace(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}
