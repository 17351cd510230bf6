package e2e_test

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// dynamicNames are entries whose names proxies resolve: *.via.example.org and *.bank.example.org through the gateway, which originates TLS
// for the second; *.side.example.org and *.probe.example.org from the sidecar, the last at a port at which something listens on loopback
// only.
const dynamicNames = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: via, namespace: istio-system}
spec:
  hosts: ["*.via.example.org"]
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 443, name: tls, protocol: TLS}]
  resolution: DYNAMIC_DNS
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: bank, namespace: istio-system}
spec:
  hosts: ["*.bank.example.org"]
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 443}]
  resolution: DYNAMIC_DNS
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: probe, namespace: istio-system}
spec:
  hosts: ["*.probe.example.org"]
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 7777}, {number: 443, name: tls, protocol: TLS, targetPort: 7777}]
  resolution: DYNAMIC_DNS
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: bank, namespace: istio-system}
spec: {host: "*.bank.example.org", trafficPolicy: {tls: {mode: SIMPLE, caCertificates: GATEWAY/ca.pem}}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: side, namespace: travel}
spec:
  hosts: ["*.side.example.org"]
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 443, name: tls, protocol: TLS}]
  resolution: DYNAMIC_DNS
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: side-probe, namespace: travel}
spec:
  hosts: ["*.sideprobe.example.org"]
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 7777}]
  resolution: DYNAMIC_DNS
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: egress, namespace: istio-system}
spec:
  selector: {istio: egressgateway}
  servers:
  - {port: {number: 80, name: http, protocol: HTTP}, hosts: ["*.via.example.org", "*.bank.example.org", "*.probe.example.org"]}
  - {port: {number: 443, name: tls, protocol: TLS}, hosts: ["*.via.example.org", "*.probe.example.org"], tls: {mode: PASSTHROUGH}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: via, namespace: istio-system}
spec:
  hosts: ["*.via.example.org"]
  gateways: [egress, mesh]
  http:
  - match: [{gateways: [mesh]}]
    route: [{destination: {host: istio-egressgateway.istio-system.svc.cluster.local, port: {number: 80}}}]
  - route: [{destination: {host: "*.via.example.org", port: {number: 80}}}]
  tls:
  - match: [{gateways: [mesh], port: 443, sniHosts: ["*.via.example.org"]}]
    route: [{destination: {host: istio-egressgateway.istio-system.svc.cluster.local, port: {number: 443}}}]
  - match: [{gateways: [egress], port: 443, sniHosts: ["*.via.example.org"]}]
    route: [{destination: {host: "*.via.example.org", port: {number: 443}}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: probe, namespace: istio-system}
spec:
  hosts: ["*.probe.example.org"]
  gateways: [egress, mesh]
  http:
  - match: [{gateways: [mesh]}]
    route: [{destination: {host: istio-egressgateway.istio-system.svc.cluster.local, port: {number: 80}}}]
  - route: [{destination: {host: "*.probe.example.org", port: {number: 80}}}]
  tls:
  - match: [{gateways: [mesh], port: 443, sniHosts: ["*.probe.example.org"]}]
    route: [{destination: {host: istio-egressgateway.istio-system.svc.cluster.local, port: {number: 443}}}]
  - match: [{gateways: [egress], port: 443, sniHosts: ["*.probe.example.org"]}]
    route: [{destination: {host: "*.probe.example.org", port: {number: 443}}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: bank, namespace: istio-system}
spec:
  hosts: ["*.bank.example.org"]
  gateways: [egress, mesh]
  http:
  - match: [{gateways: [mesh]}]
    route: [{destination: {host: istio-egressgateway.istio-system.svc.cluster.local, port: {number: 80}}}]
  - route: [{destination: {host: "*.bank.example.org", port: {number: 80}}}]
`

// TestDynamicDNS sends requests to names of wildcards, from addresses that say nothing, and looks at what servers outside the mesh see. Names
// that resolve to loopback or to a metadata service are refused, by sidecars and gateways, for HTTP and for TLS; a port in the Host
// header counts for nothing.
func TestDynamicDNS(t *testing.T) {
	m, config := start(t, "egress")
	ca := newAuthority(t)
	gateway, client := m.Pod("egress-1.istio-system"), m.Pod("client-1.travel")
	if err := gateway.Write("certs/ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})); err != nil {
		t.Fatal(err)
	}
	names := serveZone(t, m)
	serveOutside(t, m, ca, "a.via", "a.side", "a.bank")
	atGateway, atClient := countLoopback(t, gateway), countLoopback(t, client)
	replace(t, filepath.Join(config, "names.yaml"), strings.ReplaceAll(dynamicNames, "GATEWAY", filepath.Join(gateway.Dir, "certs")))

	check := func(list ...[3]string) {
		t.Helper()
		for _, one := range list {
			steady(t, one[0], func(ctx context.Context) error {
				got, err := seenAt(ctx, client.Net, ca, one[1])
				if err == nil && got != one[2] {
					err = fmt.Errorf("the answer is %q, want %q", got, one[2])
				}
				return err
			})
		}
	}
	check(
		[3]string{"HTTP through the gateway", "http://a.via.example.org/", "a.via.example.org from " + egressIP + " in plaintext"},
		[3]string{"HTTP with another port in the Host header", "http://b.via.example.org:15000/", "b.via.example.org:15000 from " + egressIP + " in plaintext"},
		[3]string{"TLS through the gateway", "https://a.via.example.org/", "a.via.example.org from " + egressIP + " by TLS to a.via.example.org"},
		[3]string{"TLS that the gateway originates", "http://a.bank.example.org/", "a.bank.example.org from " + egressIP + " by TLS to a.bank.example.org"},
		[3]string{"a server with a certificate for another name", "http://b.bank.example.org/", "status 503"},
		[3]string{"HTTP of the sidecar", "http://a.side.example.org/", "a.side.example.org from " + clientIP + " in plaintext"},
		[3]string{"TLS of the sidecar", "https://a.side.example.org/", "a.side.example.org from " + clientIP + " by TLS to a.side.example.org"},
		[3]string{"a name that does not exist", "http://none.via.example.org/", "status 503"},
	)
	for _, address := range []string{"127.0.0.1", "0.0.0.0", "169.254.169.254"} {
		names.set(address)
		evil := "evil-" + strings.ReplaceAll(address, ".", "-")
		check(
			[3]string{address + " at the gateway", "http://" + evil + ".probe.example.org/", "status 503"},
			[3]string{address + " at the sidecar", "http://" + evil + ".sideprobe.example.org/", "status 503"},
			[3]string{address + " by TLS at the gateway", "https://" + evil + ".probe.example.org/", "no answer"},
		)
	}
	if g, c := atGateway.Load(), atClient.Load(); g != 0 || c != 0 {
		t.Errorf("%d connections to loopback of the gateway, %d of the client: want none", g, c)
	}
	// The same names, at another address, are reached: what was refused is the address.
	names.set(outsideIP)
	check([3]string{"the name at another address", "http://evil-127-0-0-1.probe.example.org/", "evil-127-0-0-1.probe.example.org from " + egressIP + " in plaintext"})

	check([3]string{"a host that nothing declares", "http://a.example.net/", "status 502"})
	edit(t, config, "REGISTRY_ONLY", "ALLOW_ANY_DYNAMIC_DNS")
	names.set("127.0.0.1")
	check(
		[3]string{"any host", "http://a.example.net/", "a.example.net from " + clientIP + " in plaintext"},
		[3]string{"any host that resolves to loopback", "http://evil.example.net/", "status 503"},
		[3]string{"loopback as host", "http://127.0.0.1/", "status 503"},
		[3]string{"loopback as host, at a port", "http://127.0.0.1:7777/", "status 503"},
	)
	if c := atClient.Load(); c != 0 {
		t.Errorf("%d connections to loopback of the client: want none", c)
	}
}

// namesOutside has the address of names that begin with "evil". Others are at outsideIP, but those that begin with "none", which do not exist.
type namesOutside struct {
	mu   sync.Mutex
	evil string
}

func (z *namesOutside) set(address string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.evil = address
}

func (z *namesOutside) address(name string) net.IP {
	z.mu.Lock()
	defer z.mu.Unlock()
	switch {
	case strings.HasPrefix(name, "none"):
		return nil
	case strings.HasPrefix(name, "evil"):
		return net.ParseIP(z.evil)
	}
	return net.ParseIP(outsideIP)
}

// serveZone answers the queries of the Pods; addresses are valid for a second.
func serveZone(t *testing.T, m *meshup.Mesh) *namesOutside {
	z := &namesOutside{evil: outsideIP}
	serveDNS(t, m, func(q *dns.Msg) *dns.Msg {
		r := new(dns.Msg).SetReply(q)
		ip := z.address(q.Question[0].Name)
		switch {
		case ip == nil:
			r.Rcode = dns.RcodeNameError
		case q.Question[0].Qtype == dns.TypeA:
			r.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: ip}}
		}
		return r
	})
	return z
}

// countLoopback counts the connections to a port at a Pod's loopback address.
func countLoopback(t *testing.T, p *meshup.Pod) *atomic.Int64 {
	t.Helper()
	l, err := p.Net.Listen("tcp", "127.0.0.1:7777")
	if err != nil {
		t.Fatal(err)
	}
	n, done := &atomic.Int64{}, make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.Add(1)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Error("a listener does not end")
		}
	})
	return n
}

// seenAt makes a request to port 80 or 443 of an address at which there is nothing, and returns what the server says that it sees, the
// status, or that there is no answer to a TLS handshake.
func seenAt(ctx context.Context, from meshup.Dialer, ca *authority, url string) (string, error) {
	c := meshup.Client(from, 0)
	transport := c.Transport.(*http.Transport)
	transport.TLSClientConfig = &tls.Config{RootCAs: ca.pool}
	port := "80"
	if strings.HasPrefix(url, "https:") {
		port = "443"
	}
	var connected atomic.Bool
	transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		conn, err := from.Dial(ctx, network, net.JoinHostPort("10.99.0.99", port))
		connected.Store(err == nil)
		return conn, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	res, err := c.Do(req)
	if err != nil {
		if port == "443" && connected.Load() && (errors.Is(err, io.EOF) || strings.Contains(err.Error(), "reset")) {
			return "no answer", nil
		}
		return "", err
	}
	text, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err == nil && res.StatusCode != http.StatusOK {
		return fmt.Sprintf("status %d", res.StatusCode), nil
	}
	return string(text), err
}
