package e2e_test

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// egressSamples are the configurations of Istio's tasks about egress: HTTP through the gateway, TLS that the gateway originates, with
// and without a certificate, TLS that passes through, a wildcard whose hosts one server serves, and TLS that the sidecar originates.
const egressSamples = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: news, namespace: travel}
spec:
  hosts: [news.example.org]
  ports: [{number: 80, name: http-port, protocol: HTTP}, {number: 443, name: https, protocol: HTTPS}]
  resolution: DNS
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: istio-egressgateway, namespace: travel}
spec:
  selector: {istio: egressgateway}
  servers:
  - {port: {number: 80, name: http, protocol: HTTP}, hosts: [news.example.org]}
  - {port: {number: 443, name: tls, protocol: TLS}, hosts: [news.example.org], tls: {mode: PASSTHROUGH}}
  - {port: {number: 443, name: tls-wiki, protocol: TLS}, hosts: ["*.wiki.example.org"], tls: {mode: PASSTHROUGH}}
  - {port: {number: 443, name: https-bank, protocol: HTTPS}, hosts: [bank.example.org], tls: {mode: ISTIO_MUTUAL}}
  - {port: {number: 443, name: https-club, protocol: HTTPS}, hosts: [club.example.org], tls: {mode: ISTIO_MUTUAL}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: egressgateway-for-news, namespace: travel}
spec:
  host: istio-egressgateway.istio-system.svc.cluster.local
  subsets:
  - name: news
  - name: bank
    trafficPolicy:
      loadBalancer: {simple: ROUND_ROBIN}
      portLevelSettings: [{port: {number: 443}, tls: {mode: ISTIO_MUTUAL, sni: bank.example.org}}]
  - name: club
    trafficPolicy:
      loadBalancer: {simple: ROUND_ROBIN}
      portLevelSettings: [{port: {number: 443}, tls: {mode: ISTIO_MUTUAL, sni: club.example.org}}]
  - name: wiki
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: direct-news-through-egress-gateway, namespace: travel}
spec:
  hosts: [news.example.org]
  gateways: [istio-egressgateway, mesh]
  http:
  - match: [{gateways: [mesh], port: 80}]
    route: [{destination: {host: istio-egressgateway.istio-system.svc.cluster.local, subset: news, port: {number: 80}}, weight: 100}]
  - match: [{gateways: [istio-egressgateway], port: 80}]
    route: [{destination: {host: news.example.org, port: {number: 80}}, weight: 100}]
  tls:
  - match: [{gateways: [mesh], port: 443, sniHosts: [news.example.org]}]
    route: [{destination: {host: istio-egressgateway.istio-system.svc.cluster.local, subset: news, port: {number: 443}}}]
  - match: [{gateways: [istio-egressgateway], port: 443, sniHosts: [news.example.org]}]
    route: [{destination: {host: news.example.org, port: {number: 443}}, weight: 100}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: bank, namespace: travel}
spec:
  hosts: [bank.example.org]
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 443, name: https, protocol: HTTPS}]
  resolution: DNS
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: direct-bank-through-egress-gateway, namespace: travel}
spec:
  hosts: [bank.example.org]
  gateways: [istio-egressgateway, mesh]
  http:
  - match: [{gateways: [mesh], port: 80}]
    route: [{destination: {host: istio-egressgateway.istio-system.svc.cluster.local, subset: bank, port: {number: 443}}, weight: 100}]
  - match: [{gateways: [istio-egressgateway], port: 443}]
    route: [{destination: {host: bank.example.org, port: {number: 443}}, weight: 100}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: originate-tls-for-bank, namespace: travel}
spec:
  host: bank.example.org
  trafficPolicy:
    loadBalancer: {simple: ROUND_ROBIN}
    portLevelSettings: [{port: {number: 443}, tls: {mode: SIMPLE, caCertificates: GATEWAY/ca.pem, sni: bank.example.org}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: club, namespace: travel}
spec:
  hosts: [club.example.org]
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 443, name: https, protocol: HTTPS}]
  resolution: DNS
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: direct-club-through-egress-gateway, namespace: travel}
spec:
  hosts: [club.example.org]
  gateways: [istio-egressgateway, mesh]
  http:
  - match: [{gateways: [mesh], port: 80}]
    route: [{destination: {host: istio-egressgateway.istio-system.svc.cluster.local, subset: club, port: {number: 443}}, weight: 100}]
  - match: [{gateways: [istio-egressgateway], port: 443}]
    route: [{destination: {host: club.example.org, port: {number: 443}}, weight: 100}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: originate-mtls-for-club, namespace: travel}
spec:
  host: club.example.org
  trafficPolicy:
    loadBalancer: {simple: ROUND_ROBIN}
    portLevelSettings: [{port: {number: 443}, tls: {mode: MUTUAL, credentialName: club-credential, sni: club.example.org}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: wiki, namespace: travel}
spec:
  hosts: ["*.wiki.example.org"]
  ports: [{number: 443, name: https, protocol: HTTPS}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: www-wiki, namespace: travel}
spec:
  hosts: [www.wiki.example.org]
  ports: [{number: 443, name: https, protocol: HTTPS}]
  resolution: DNS
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: direct-wiki-through-egress-gateway, namespace: travel}
spec:
  hosts: ["*.wiki.example.org"]
  gateways: [mesh, istio-egressgateway]
  tls:
  - match: [{gateways: [mesh], port: 443, sniHosts: ["*.wiki.example.org"]}]
    route: [{destination: {host: istio-egressgateway.istio-system.svc.cluster.local, subset: wiki, port: {number: 443}}, weight: 100}]
  - match: [{gateways: [istio-egressgateway], port: 443, sniHosts: ["*.wiki.example.org"]}]
    route: [{destination: {host: www.wiki.example.org, port: {number: 443}}, weight: 100}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop, namespace: travel}
spec:
  hosts: [shop.example.org]
  ports: [{number: 80, name: http-port, protocol: HTTP, targetPort: 443}, {number: 443, name: https-port, protocol: HTTPS}]
  resolution: DNS
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: shop, namespace: travel}
spec:
  host: shop.example.org
  trafficPolicy:
    portLevelSettings: [{port: {number: 80}, tls: {mode: SIMPLE, caCertificates: CLIENT/ca.pem}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: fake, namespace: travel}
spec:
  hosts: [fake.example.org]
  ports: [{number: 80, name: http-port, protocol: HTTP, targetPort: 443}]
  resolution: DNS
  subjectAltNames: [genuine.example.org]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: fake, namespace: travel}
spec: {host: fake.example.org, trafficPolicy: {tls: {mode: SIMPLE, caCertificates: CLIENT/ca.pem}}}
`

const (
	egressIP  = "10.99.0.20"
	clientIP  = "10.99.0.21"
	outsideIP = "10.99.0.22"
)

// TestSamplesOfEgress makes requests to servers outside the mesh as in Istio's tasks about egress, and looks at what the servers see: from
// which address, with TLS or without, and with which certificate.
func TestSamplesOfEgress(t *testing.T) {
	m, config := start(t, "egress")
	ca := newAuthority(t)
	root := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
	gateway, client := m.Pod("egress-1.istio-system"), m.Pod("client-1.travel")
	for _, p := range []*meshup.Pod{gateway, client} {
		if err := p.Write("certs/ca.pem", root); err != nil {
			t.Fatal(err)
		}
	}
	serveNames(t, m, outsideIP)
	serveOutside(t, m, ca, "news", "bank", "club", "shop", "fake", "de.wiki")
	_, member, _ := ca.issue(t, "member.example.org")
	text := strings.NewReplacer("GATEWAY", filepath.Join(gateway.Dir, "certs"), "CLIENT", filepath.Join(client.Dir, "certs")).Replace(egressSamples)
	replace(t, filepath.Join(config, "samples.yaml"), text+secretText("istio-system", "club-credential", map[string][]byte{"tls.crt": member[0], "tls.key": member[1], "ca.crt": root}))

	for _, one := range []struct{ what, url, want string }{
		{"HTTP through the gateway", "http://news.example.org/", "news.example.org from " + egressIP + " in plaintext"},
		{"TLS through the gateway", "https://news.example.org/", "news.example.org from " + egressIP + " by TLS to news.example.org"},
		{"TLS that the gateway originates", "http://bank.example.org/", "bank.example.org from " + egressIP + " by TLS to bank.example.org"},
		{"mutual TLS that the gateway originates", "http://club.example.org/", "club.example.org from " + egressIP + " by TLS to club.example.org as member.example.org"},
		{"a host of a wildcard", "https://de.wiki.example.org/", "de.wiki.example.org from " + egressIP + " by TLS to de.wiki.example.org"},
		{"TLS that the sidecar originates", "http://shop.example.org/", "shop.example.org from " + clientIP + " by TLS to shop.example.org"},
		{"a server with another name than that of the ServiceEntry", "http://fake.example.org/", "status 503"},
		{"a host that nothing declares", "http://other.example.org/", "status 502"},
	} {
		if err := meshup.Await(t.Context(), time.Minute, one.what, func(ctx context.Context) error {
			got, err := seenOutside(ctx, client.Net, ca, one.url)
			if err == nil && got != one.want {
				err = fmt.Errorf("the server answers %q, want %q", got, one.want)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
}

// serveNames answers all queries of names of the Pods with one address.
func serveNames(t *testing.T, m *meshup.Mesh, address string) {
	t.Helper()
	serveDNS(t, m, func(q *dns.Msg) *dns.Msg {
		r := new(dns.Msg).SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			r.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.ParseIP(address)}}
		}
		return r
	})
}

// serveDNS answers all queries of names of the Pods.
func serveDNS(t *testing.T, m *meshup.Mesh, answer func(*dns.Msg) *dns.Msg) {
	t.Helper()
	conn, err := m.Net.Host().ListenPacket("udp", ":53")
	if err != nil {
		t.Fatal(err)
	}
	s := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) { _ = w.WriteMsg(answer(q)) })}
	done := make(chan error, 1)
	go func() { done <- s.ActivateAndServe() }()
	t.Cleanup(func() {
		_ = conn.Close()
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Error("the DNS server does not end")
		}
	})
}

// serveOutside serves all hosts outside the mesh, at 80 and 7777 in plaintext, at 443 by TLS with certificates for names below example.org. Answers say what the server sees. club.example.org is
// for clients with a certificate.
func serveOutside(t *testing.T, m *meshup.Mesh, ca *authority, names ...string) {
	t.Helper()
	var list []tls.Certificate
	for _, name := range names {
		_, files, _ := ca.issue(t, name+".example.org")
		pair, err := tls.X509KeyPair(files[0], files[1])
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, pair)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, _, _ := net.SplitHostPort(r.RemoteAddr)
		how := "in plaintext"
		if r.TLS != nil {
			how = "by TLS to " + r.TLS.ServerName
			if len(r.TLS.PeerCertificates) > 0 {
				how += " as " + r.TLS.PeerCertificates[0].DNSNames[0]
			}
		}
		_, _ = fmt.Fprintf(w, "%s from %s %s", r.Host, from, how)
	})
	plain, mutual := &tls.Config{Certificates: list}, &tls.Config{Certificates: list, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.pool}
	for _, port := range []string{":80", ":443", ":7777"} {
		l, err := m.Pod("outside-1.elsewhere").Net.Listen("tcp", port)
		if err != nil {
			t.Fatal(err)
		}
		if port == ":443" {
			l = tls.NewListener(l, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
				if h.ServerName == "club.example.org" {
					return mutual, nil
				}
				return plain, nil
			}})
		}
		s := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)} // clients end handshakes on purpose
		done := make(chan error, 1)
		go func() { done <- s.Serve(l) }()
		t.Cleanup(func() {
			_ = s.Close()
			select {
			case <-done:
			case <-time.After(time.Minute):
				t.Error("a server does not end")
			}
		})
	}
}

// seenOutside makes a request from a Pod, to the address that its names have, and returns what the server says that it sees, or the status.
func seenOutside(ctx context.Context, from meshup.Dialer, ca *authority, url string) (string, error) {
	c := meshup.Client(from, 0)
	transport := c.Transport.(*http.Transport)
	transport.TLSClientConfig = &tls.Config{RootCAs: ca.pool}
	transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		return from.Dial(ctx, network, net.JoinHostPort(outsideIP, port))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	res, err := c.Do(req)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err == nil && res.StatusCode != http.StatusOK {
		return fmt.Sprintf("status %d", res.StatusCode), nil
	}
	return string(text), err
}
