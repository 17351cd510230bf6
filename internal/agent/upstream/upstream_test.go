package upstream

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/pilothouse/pilothouse/internal/pki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// authority is a certificate authority for one test.
type authority struct {
	t    *testing.T
	root *x509.Certificate
	key  crypto.Signer
}

func newAuthority(t *testing.T) *authority { return authorityFor(t, "cluster.local") }

// authorityFor returns a certificate authority of a trust domain.
func authorityFor(t *testing.T, domain string) *authority {
	t.Helper()
	key, err := pki.GenerateKey("")
	if err != nil {
		t.Fatal(err)
	}
	root, err := pki.Sign(pki.RootTemplate(domain, pki.Validity{NotBefore: time.Now().Add(-3 * time.Hour), NotAfter: time.Now().Add(time.Hour)}), nil, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{t: t, root: root, key: key}
}

// leaf returns a certificate for a name that expires after a time, which may be negative.
func (a *authority) leaf(name string, left time.Duration) *tls.Certificate {
	a.t.Helper()
	key, err := pki.GenerateKey("")
	if err != nil {
		a.t.Fatal(err)
	}
	c, err := pki.Sign(pki.ServerTemplate([]string{name}, pki.Validity{NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(left)}), a.root, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{c.Raw}, PrivateKey: key, Leaf: c}
}

func write(t *testing.T, path string, text []byte) string {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// server is a gRPC server that records its last call.
type server struct {
	healthv1.UnimplementedHealthServer
	addr string

	mu        sync.Mutex
	headers   metadata.MD
	presented int // certificates
}

func (s *server) Check(ctx context.Context, _ *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.headers, _ = metadata.FromIncomingContext(ctx)
	s.presented = 0
	if p, ok := peer.FromContext(ctx); ok {
		if i, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			s.presented = len(i.State.PeerCertificates)
		}
	}
	return &healthv1.HealthCheckResponse{}, nil
}

// serve runs a server for localhost until the test ends; a nil config is plaintext.
func serve(t *testing.T, address string, config *tls.Config) *server {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	s := &server{addr: "localhost:" + port}
	var opts []grpc.ServerOption
	if config != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(config)))
	}
	g := grpc.NewServer(opts...)
	healthv1.RegisterHealthServer(g, s)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		<-done
	})
	return s
}

// call makes a connection and one call on it, and returns what the server saw.
func call(t *testing.T, s *server, o Options) (token string, presented int, err error) {
	t.Helper()
	o.Name = "server"
	if o.Address == "" {
		o.Address = s.addr
	}
	u, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	c, err := u.Connect(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s.mu.Lock()
	s.headers, s.presented = nil, -1
	s.mu.Unlock()
	_, err = healthv1.NewHealthClient(c).Check(t.Context(), &healthv1.HealthCheckRequest{})
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.headers.Get("authorization"), "|"), s.presented, err
}

// The token is sent if no certificate was presented, also if the server did not request it, such as a
// load balancer that terminates TLS.
func TestTokenIsSentWithoutAPresentedCertificate(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	root := write(t, filepath.Join(dir, "root"), pki.EncodeCerts(a.root))
	token := write(t, filepath.Join(dir, "token"), []byte("one\n"))
	valid, expired := a.leaf("me", time.Hour), a.leaf("me", -time.Minute)
	config := func(auth tls.ClientAuthType, version uint16) *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{*a.leaf("localhost", time.Hour)}, ClientAuth: auth, MaxVersion: version}
	}
	requesting, tls12, notRequesting := serve(t, "127.0.0.1:0", config(tls.RequestClientCert, 0)), serve(t, "127.0.0.1:0", config(tls.RequestClientCert, tls.VersionTLS12)), serve(t, "127.0.0.1:0", config(tls.NoClientCert, 0))
	others := config(tls.VerifyClientCertIfGiven, 0)
	others.ClientCAs = pki.Pool([]*x509.Certificate{authorityFor(t, "other.example").root})
	elsewhere := serve(t, "127.0.0.1:0", others)
	none := filepath.Join(dir, "none")
	for _, tt := range []struct {
		name      string
		server    *server
		own       *tls.Certificate
		token     string // file
		want      string
		presented int
		fails     string
	}{
		{name: "no certificate", server: requesting, token: token, want: "Bearer one"},
		{name: "presented", server: requesting, own: valid, token: token, presented: 1},
		{name: "presented in TLS 1.2", server: tls12, own: valid, token: token, presented: 1},
		{name: "expired", server: requesting, own: expired, token: token, want: "Bearer one"},
		{name: "not requested", server: notRequesting, own: valid, token: token, want: "Bearer one"},
		{name: "of another authority", server: elsewhere, own: valid, token: token, want: "Bearer one"},
		{name: "an empty certificate", server: requesting, own: &tls.Certificate{}, token: token, want: "Bearer one"},
		{name: "not requested, no token", server: notRequesting, own: valid, token: none},
		{name: "presented, no token", server: requesting, own: valid, token: none, presented: 1},
		{name: "neither", server: requesting, token: none, fails: "read token: open " + none},
		{name: "no file name", server: requesting, fails: "the file name is empty"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := Options{RootFile: root, Token: TokenFile(tt.token), Certificate: func() *tls.Certificate { return tt.own }}
			got, presented, err := call(t, tt.server, o)
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Fatalf("called with %q, error %v, want %q", got, err, tt.fails)
				}
				return
			}
			if err != nil || got != tt.want || presented != tt.presented {
				t.Errorf("called with %q and %d certificates, %v; want %q and %d", got, presented, err, tt.want, tt.presented)
			}
		})
	}
}

// A connection may outlive its client certificate.
func TestTokenIsSentAfterTheCertificateHasExpired(t *testing.T) {
	o := &Options{Token: TokenFile(write(t, filepath.Join(t.TempDir(), "token"), []byte("one")))}
	for name, tt := range map[string]struct {
		until time.Time
		want  string
	}{"none presented": {time.Time{}, "Bearer one"}, "valid": {time.Now().Add(time.Hour), ""}, "expired": {time.Now().Add(-time.Minute), "Bearer one"}} {
		ctx := credentials.NewContextWithRequestInfo(t.Context(), credentials.RequestInfo{AuthInfo: authInfo{presentedUntil: tt.until}})
		md, err := (&callCredentials{o: o}).GetRequestMetadata(ctx)
		if err != nil || md["authorization"] != tt.want {
			t.Errorf("%s: %v, %v, want %q", name, md, err, tt.want)
		}
	}
}

func TestTokenIsReadForEachCall(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	s := serve(t, "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{*a.leaf("localhost", time.Hour)}})
	token := write(t, filepath.Join(dir, "token"), []byte("one"))
	u, err := New(Options{Name: "server", Address: s.addr, RootFile: write(t, filepath.Join(dir, "root"), pki.EncodeCerts(a.root)), Token: TokenFile(token)})
	if err != nil {
		t.Fatal(err)
	}
	c, err := u.Connect(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, tt := range []struct{ text, want, fails string }{
		{"one", "Bearer one", ""}, {" two\n", "Bearer two", ""}, {"", "", "the file is empty"}, {"a\nb", "", "want one line"},
		{strings.Repeat("x", maxToken+1), "", "more than 65536 bytes"},
	} {
		write(t, token, []byte(tt.text))
		_, err := healthv1.NewHealthClient(c).Check(t.Context(), &healthv1.HealthCheckRequest{})
		if tt.fails != "" {
			if err == nil || !strings.Contains(err.Error(), tt.fails) {
				t.Errorf("token %.20q: %v, want %q", tt.text, err, tt.fails)
			}
		} else if got := s.headers.Get("authorization"); err != nil || len(got) != 1 || got[0] != tt.want {
			t.Errorf("token %q: called with %v, %v", tt.text, got, err)
		}
	}
}

func TestProvisionedCertificateIsPresentedFirst(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	s := serve(t, "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{*a.leaf("localhost", time.Hour)}, ClientAuth: tls.RequireAnyClientCert})
	provisioned := a.leaf("provisioned", time.Hour)
	key, err := pki.EncodeKey(provisioned.PrivateKey.(crypto.Signer), true)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "cert-chain.pem"), pki.EncodeCerts(provisioned.Leaf))
	write(t, filepath.Join(dir, "key.pem"), key)
	o := Options{RootFile: write(t, filepath.Join(dir, "root"), pki.EncodeCerts(a.root)), ProvisionedDir: dir}
	if _, presented, err := call(t, s, o); err != nil || presented != 1 {
		t.Errorf("without a workload certificate: %d presented, %v", presented, err)
	}
	own := a.leaf("own", time.Hour)
	o.Certificate = func() *tls.Certificate { return own }
	if got := (&o).certificate(time.Now()); got != own {
		t.Error("the provisioned certificate has precedence over the workload's")
	}
}

func TestServerIsVerified(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	s := serve(t, "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{*a.leaf("localhost", time.Hour)}})
	root := write(t, filepath.Join(dir, "root"), pki.EncodeCerts(a.root))
	other := write(t, filepath.Join(dir, "other"), pki.EncodeCerts(newAuthority(t).root))
	for _, tt := range []struct {
		why string
		o   Options
	}{
		{"--servingName of pilot-discovery", Options{RootFile: root, ServerName: "istiod.istio-system.svc"}},
		{"the roots are in " + other, Options{RootFile: other}},
		{"the roots are in the token", Options{RootFile: other, RootsFrom: "the token"}},
		{"not istiod.istio-system.svc", Options{RootFile: root, ServerName: "istiod.istio-system.svc"}},
		{"unknown authority", Options{RootFile: other}},
		{"unknown authority", Options{RootFile: SystemRoots}},
		{"read the root certificate of the server: open /nowhere", Options{RootFile: "/nowhere"}},
		{"read the root certificate of the server " + dir + "/empty", Options{RootFile: write(t, filepath.Join(dir, "empty"), nil)}},
		{"connection refused", Options{RootFile: root, Address: "127.0.0.1:1"}},
	} {
		if _, _, err := call(t, s, tt.o); err == nil || !strings.Contains(err.Error(), tt.why) {
			t.Errorf("%+v: %v, want %q", tt.o, err, tt.why)
		}
	}
}

func TestPlaintextHeadersAndToken(t *testing.T) {
	token := write(t, filepath.Join(t.TempDir(), "token"), []byte("one"))
	s := serve(t, "127.0.0.1:0", nil)
	o := Options{Token: TokenFile(token), ClusterID: "east", Headers: map[string]string{"X-Team": "shop"}}
	for _, tt := range []struct {
		send bool
		want string
	}{{false, ""}, {true, "Bearer one"}} {
		o.PlaintextToken = tt.send
		c := &callCredentials{o: &o, plaintext: true}
		md, err := c.GetRequestMetadata(t.Context())
		if err != nil || md["authorization"] != tt.want || md["clusterid"] != "east" || md["x-team"] != "shop" || c.RequireTransportSecurity() {
			t.Errorf("PlaintextToken %v: %v, %v", tt.send, md, err)
		}
	}
	// There is no fallback from TLS to plaintext.
	if _, _, err := call(t, s, Options{RootFile: SystemRoots, Token: TokenFile(token)}); err == nil {
		t.Error("a plaintext server on another port was called")
	}
	for address, want := range map[string]bool{"istiod:15010": true, "istiod:15012": false, "[::1]:15010": true, "istiod": false, "x15010:1": false} {
		if Plaintext(address) != want {
			t.Errorf("Plaintext(%q) = %v", address, !want)
		}
	}
}

func TestAddress(t *testing.T) {
	for address, fails := range map[string]bool{"istiod:15012": false, "[::1]:15012": false, "istiod": true, ":15012": true, "istiod:": true, "": true} {
		if _, err := New(Options{Name: "CA", Address: address}); (err != nil) != fails || fails && !strings.Contains(err.Error(), "address of the CA") {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// A connection is closed if the server does not respond to a keepalive probe. The shortest time that
// gRPC allows before a probe is 10 s.
func TestKeepalive(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{*a.leaf("localhost", time.Hour)}, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		if _, err := c.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}); err != nil { // HTTP/2 settings, then silence
			return
		}
		_, _ = io.Copy(io.Discard, c)
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	_, port, _ := net.SplitHostPort(l.Addr().String())
	dir := t.TempDir()
	o := Options{
		Address: "localhost:" + port, RootFile: write(t, filepath.Join(dir, "root"), pki.EncodeCerts(a.root)), Token: TokenFile(write(t, filepath.Join(dir, "token"), []byte("t"))),
		Keepalive: 10 * time.Second, KeepaliveTimeout: 100 * time.Millisecond,
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	u, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	c, err := u.Connect(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = healthv1.NewHealthClient(c).Check(ctx, &healthv1.HealthCheckRequest{})
	if err == nil || !strings.Contains(err.Error(), "keepalive") {
		t.Errorf("the call returned %v, want a keepalive timeout", err)
	}
}
