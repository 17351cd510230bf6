package discovery

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/authn"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

// token returns a token of a service account, signed by the control plane's issuer.
func (p *plane) token(namespace, account string) string {
	p.t.Helper()
	issuer, err := authn.OpenIssuer(p.server.opts.StateDir)
	if err != nil {
		p.t.Fatal(err)
	}
	tok, err := issuer.Issue(namespace, account, "", time.Hour, time.Now())
	if err != nil {
		p.t.Fatal(err)
	}
	return tok
}

func (p *plane) root() string {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(p.server.opts.StateDir, "root-cert.pem"))
	if err != nil {
		p.t.Fatal(err)
	}
	return string(b)
}

func TestSecurePortChecksTheIdentity(t *testing.T) {
	p := start(t)
	p.emit(shop, true)
	p.dial(p.token("shop", "default"), p.root()).open().expect("RDS", "9080")
	for name, tok := range map[string]string{
		"another namespace":       p.token("other", "default"),
		"another service account": p.token("shop", "else"),
	} {
		if err := p.dial(tok, p.root()).refusal(); !strings.Contains(err.Error(), "PermissionDenied") {
			t.Errorf("%s: %v, want PermissionDenied", name, err)
		}
	}
	if err := p.dial("no.such.token", p.root()).refusal(); !strings.Contains(err.Error(), "Unauthenticated") {
		t.Errorf("a token of nobody's: %v, want Unauthenticated", err)
	}
}

// clientTLS is what a client of the secure port needs.
func (p *plane) clientTLS() *tls.Config {
	p.t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(p.root()))
	return &tls.Config{RootCAs: pool, ServerName: "istiod.istio-system.svc"}
}

// certificate is one that the plane's authority signs for shop/default, with that life, and what
// a client needs to present it.
func (p *plane) certificate(life time.Duration) (*x509.Certificate, credentials.TransportCredentials) {
	p.t.Helper()
	config := p.clientTLS()
	conn, err := grpc.NewClient(p.addr.SecureGRPC, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		p.t.Fatal(err)
	}
	csr, err := pki.MakeCSR(key, mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "default"})
	if err != nil {
		p.t.Fatal(err)
	}
	ctx := metadata.AppendToOutgoingContext(p.t.Context(), "authorization", "Bearer "+p.token("shop", "default"))
	answer, err := securityv1.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx, &securityv1.IstioCertificateRequest{Csr: string(csr), ValidityDuration: int64(life.Seconds())})
	if err != nil {
		p.t.Fatal(err)
	}
	certs, err := pki.ParseBundle([]byte(answer.CertChain[0]))
	if err != nil {
		p.t.Fatal(err)
	}
	leaf := tls.Certificate{Certificate: [][]byte{certs[0].Raw}, PrivateKey: key}
	return certs[0], credentials.NewTLS(&tls.Config{RootCAs: config.RootCAs, ServerName: config.ServerName, Certificates: []tls.Certificate{leaf}})
}

func TestSecurePortAcceptsCertificatesOfTheCA(t *testing.T) {
	p := start(t)
	p.emit(shop, true)
	cert, creds := p.certificate(time.Hour)
	if id, err := pki.IdentityOf(cert); err != nil || id.SPIFFE() != "spiffe://cluster.local/ns/shop/sa/default" {
		t.Fatalf("signed for %v (%v), want the caller", id, err)
	}
	p.connect(p.addr.SecureGRPC, creds, "").open().expect("RDS", "9080")
}

// TestAStreamEndsWithItsCertificate: one with a token goes on.
func TestAStreamEndsWithItsCertificate(t *testing.T) {
	p := start(t)
	p.emit(shop, true)
	cert, c := p.served(2 * time.Second)
	other := p.dial(p.token("shop", "default"), p.root()).open()
	other.expect("RDS", "9080")
	if err := c.refusal(); !strings.Contains(err.Error(), "Unauthenticated") || !strings.Contains(err.Error(), "certificate expired") || time.Now().Before(cert.NotAfter) {
		t.Errorf("before %s: %v, want Unauthenticated then", cert.NotAfter, err)
	}
	p.emit(route("{timeout: 7s, route: [{destination: {host: reviews}}]}"), true)
	other.until("9080", "\x08\x07") // a duration of 7 s
}

// served is a stream that has routes, opened with a certificate of that life, or of a longer one where the machine is so
// busy that the certificate has ended by then.
func (p *plane) served(life time.Duration) (*x509.Certificate, *client) {
	p.t.Helper()
	for ; life < wait.Bound; life *= 2 {
		cert, creds := p.certificate(life)
		c, err := p.tryConnect("reviews", p.addr.SecureGRPC, creds, "")
		if err != nil {
			continue
		}
		for c.open(); err == nil; {
			select {
			case r := <-c.got:
				if c.take(r); c.have["9080"] != "" {
					return cert, c
				}
			case err = <-c.err:
			}
		}
	}
	p.t.Fatal("no stream has got routes before its certificate has ended")
	return nil, nil
}

func TestSecurePortHasTheConfiguredMinimumTLSVersion(t *testing.T) {
	for least, taken := range map[uint16]map[uint16]bool{
		0:                {tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true},
		tls.VersionTLS13: {tls.VersionTLS12: false, tls.VersionTLS13: true},
	} {
		p := start(t, func(o *Options) { o.CA.MinTLS = least })
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM([]byte(p.root()))
		for version, want := range taken {
			conn, err := tls.Dial("tcp", p.addr.SecureGRPC, &tls.Config{
				RootCAs: pool, ServerName: "istiod.istio-system.svc", MinVersion: tls.VersionTLS10, MaxVersion: version, NextProtos: []string{"h2"},
			})
			if err == nil {
				_ = conn.Close()
			}
			if (err == nil) != want {
				t.Errorf("at least %#x: a client of %#x is taken: %v, want %v (%v)", least, version, err == nil, want, err)
			}
		}
	}
}

// When connections end at an age, proxies are spread over replicas that have been added.
func TestOldConnectionsAreClosed(t *testing.T) {
	p := start(t, func(o *Options) { o.Keepalive.MaxAge = 50 * time.Millisecond })
	p.emit(shop, true)
	conn, err := grpc.NewClient(p.addr.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Bound)
	defer cancel()
	// A stream keeps the connection from being idle, so that only its age ends it.
	if _, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx); err != nil {
		t.Fatal(err)
	}
	for s := conn.GetState(); s != connectivity.Idle; s = conn.GetState() {
		if !conn.WaitForStateChange(ctx, s) {
			t.Fatalf("the connection is still %v", s)
		}
	}
}

// The requests come from an address of another host.
func TestDebugPagesRequireThisHostOrTheNamespace(t *testing.T) {
	p := start(t)
	p.emit(shop, true)
	ask := func(path, from, token string) int {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.RemoteAddr, r.Host = from, "10.9.9.9:8080"
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(&net.TCPAddr{IP: net.IPv4(10, 9, 9, 9), Port: 8080})))
		w := httptest.NewRecorder()
		p.server.debugMux().ServeHTTP(w, r)
		return w.Code
	}
	for _, c := range []struct {
		name, path, from, token string
		want                    int
	}{
		{"loopback", "/debug/syncz", "127.0.0.1:1", "", 200},
		{"this host by its own address", "/debug/objectz", "10.9.9.9:1", "", 200},
		{"another host", "/debug/syncz", "10.9.9.8:1", "", 401},
		{"another host, dump", "/debug/config_dump?proxyID=x", "10.9.9.8:1", "", 401},
		{"a workload", "/debug/classz", "10.9.9.8:1", p.token("shop", "default"), 403},
		{"the control plane's namespace", "/debug/classz", "10.9.9.8:1", p.token("istio-system", "istiod"), 200},
		{"another host by Envoy", "/debug/syncz", "127.0.0.6:1", "", 401},
		{"another host by Envoy, as a workload", "/debug/syncz", "127.0.0.6:1", p.token("shop", "default"), 403},
		{"another host by Envoy, as the control plane's namespace", "/debug/syncz", "127.0.0.6:1", p.token("istio-system", "istiod"), 200},
		{"readiness is for all", "/ready", "10.9.9.8:1", "", 200},
	} {
		if got := ask(c.path, c.from, c.token); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// A browser on this host is on this host, too: what a page of another origin may have asked for needs a
// token. Forwarded ports have localhost or an address as Host.
func TestDebugPagesAreNotForWebPages(t *testing.T) {
	p := start(t)
	p.emit(shop, true)
	token := p.token("istio-system", "istiod")
	for name, mux := range map[string]http.Handler{"HTTP": p.server.debugMux(), "monitoring": p.server.monitoringMux()} {
		for _, c := range []struct {
			host, origin, token string
			want                int
		}{
			{"localhost:8080", "", "", 200}, {"127.0.0.1:34567", "", "", 200}, {"[::1]:8080", "", "", 200}, {"10.9.9.9:8080", "", "", 200},
			{"localhost:8080", "http://localhost:8080", "", 200},
			{"rebound.example:8080", "", "", 401}, {"rebound.example:8080", "http://rebound.example:8080", "", 401}, {"localhost:8080", "http://evil.example", "", 401},
			{"istiod.istio-system.svc:8080", "", token, 200}, {"localhost:8080", "http://evil.example", token, 200},
			{"rebound.example:8080", "", p.token("shop", "default"), 403},
		} {
			r := httptest.NewRequest(http.MethodGet, "/debug/configz", nil)
			r.RemoteAddr, r.Host = "127.0.0.1:1", c.host
			if c.origin != "" {
				r.Header.Set("Origin", c.origin)
			}
			if c.token != "" {
				r.Header.Set("Authorization", "Bearer "+c.token)
			}
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, r)
			if w.Code != c.want {
				t.Errorf("%s: Host %q, Origin %q, a token %v: %d, want %d: %s", name, c.host, c.origin, c.token != "", w.Code, c.want, w.Body)
			}
		}
	}
}
