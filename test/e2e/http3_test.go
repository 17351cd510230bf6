package e2e_test

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

const http3Gateway = `apiVersion: v1
kind: Service
metadata: {name: ingress-quic, namespace: istio-system}
spec: {clusterIP: 10.96.40.9, selector: {istio: ingressgateway}, ports: [{name: https, port: 8443}, {name: quic, port: 8443, protocol: UDP}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: tls, namespace: gateway}
spec:
  selector: {istio: ingressgateway}
  servers:
  - {port: {number: 8443, name: https-a, protocol: HTTPS}, hosts: [a.example.com], tls: {mode: SIMPLE, serverCertificate: DIR/a.pem, privateKey: DIR/a.key}}
  - {port: {number: 8443, name: https-b, protocol: HTTPS}, hosts: [b.example.com], tls: {mode: MUTUAL, serverCertificate: DIR/b.pem, privateKey: DIR/b.key, caCertificates: DIR/ca.pem}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: tls, namespace: gateway}
spec:
  hosts: [a.example.com, b.example.com]
  gateways: [tls]
  http: [{route: [{destination: {host: echo, port: {number: 9080}, subset: v1}}]}]
`

// TestHTTP3AtAGateway has a client learn of HTTP/3 from an answer by HTTP/2, and use it; there is none for a host whose clients need certificates.
func TestHTTP3AtAGateway(t *testing.T) {
	m, config := startWith(t, "gateway", func(o *meshup.Options) { o.DiscoveryEnv = append(o.DiscoveryEnv, "PILOT_ENABLE_QUIC_LISTENERS=true") })
	router, ca := m.Pod("ingress-1.istio-system"), newAuthority(t)
	files := map[string][]byte{"ca.pem": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})}
	for _, name := range []string{"a", "b"} {
		_, pair, _ := ca.issue(t, name+".example.com")
		files[name+".pem"], files[name+".key"] = pair[0], pair[1]
	}
	for name, text := range files {
		if err := router.Write("certs/"+name, text); err != nil {
			t.Fatal(err)
		}
	}
	put(t, config, "tls.yaml", strings.ReplaceAll(http3Gateway, "DIR", filepath.Join(router.Dir, "certs")))
	from := m.Pod("outside-1.gateway").Net
	get := func(ctx context.Context, c *http.Client, host string) (*http.Response, meshup.Answer, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+":8443/", http.NoBody)
		if err != nil {
			return nil, meshup.Answer{}, err
		}
		res, err := c.Do(req)
		if err != nil {
			return nil, meshup.Answer{}, err
		}
		defer res.Body.Close()
		a, err := meshup.ReadAnswer(res)
		return res, a, err
	}
	by2 := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		ForceAttemptHTTP2: true, DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: ca.pool, MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return from.Dial(ctx, "tcp", "10.99.0.9:8443")
		},
	}}
	err := meshup.Await(t.Context(), time.Minute, "HTTP/2 tells of HTTP/3", func(ctx context.Context) error {
		res, _, err := get(ctx, by2, "a.example.com")
		if err == nil && (res.StatusCode != http.StatusOK || res.Header.Get("alt-svc") != `h3=":8443"; ma=86400`) {
			err = fmt.Errorf("status %d, alt-svc %q", res.StatusCode, res.Header.Get("alt-svc"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	packets, err := from.ListenPacket("udp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	over := &quic.Transport{Conn: packets}
	by3 := &http3.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.pool, MinVersion: tls.VersionTLS13}, Dial: func(ctx context.Context, _ string, c *tls.Config, q *quic.Config) (*quic.Conn, error) {
		return over.DialEarly(ctx, &net.UDPAddr{IP: net.IPv4(10, 99, 0, 9), Port: 8443}, c, q)
	}}
	t.Cleanup(func() {
		if err := errors.Join(by3.Close(), over.Close(), packets.Close()); err != nil {
			t.Error(err)
		}
	})
	client := &http.Client{Timeout: 10 * time.Second, Transport: by3}
	err = meshup.Await(t.Context(), time.Minute, "the gateway answers by HTTP/3", func(ctx context.Context) error {
		res, a, err := get(ctx, client, "a.example.com")
		if err == nil && (res.ProtoMajor != 3 || res.StatusCode != http.StatusOK || a.Peer != ingressIdentity || a.Version != "v1") {
			err = fmt.Errorf("%s, status %d, version %q, caller %q", res.Proto, res.StatusCode, a.Version, a.Peer)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if res, _, err := get(t.Context(), client, "b.example.com"); err == nil {
		t.Errorf("a host whose clients need certificates answers one without by HTTP/3, with status %d", res.StatusCode)
	}
}
