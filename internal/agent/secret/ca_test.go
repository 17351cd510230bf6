package secret

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/agent/upstream"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// caServer is a CA that serves TLS over TCP.
type caServer struct {
	securityv1.UnimplementedIstioCertificateServiceServer
	ca   *fakeCA
	addr string

	mu    sync.Mutex
	short bool // the response has too short a chain
	md    metadata.MD
	asked *securityv1.IstioCertificateRequest
	peers []*x509.Certificate
}

func (s *caServer) CreateCertificate(ctx context.Context, r *securityv1.IstioCertificateRequest) (*securityv1.IstioCertificateResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.md, _ = metadata.FromIncomingContext(ctx)
	s.asked = r
	p, _ := peer.FromContext(ctx)
	s.peers = p.AuthInfo.(credentials.TLSInfo).State.PeerCertificates
	chain, roots, err := s.ca.Sign(ctx, []byte(r.GetCsr()), time.Duration(r.GetValidityDuration())*time.Second)
	if err != nil {
		return nil, err
	}
	certs, _ := pki.ParseBundle(chain)
	answer := []string{string(pki.EncodeCerts(certs[0])), string(roots)}
	if s.short {
		answer = answer[:1]
	}
	return &securityv1.IstioCertificateResponse{CertChain: answer}, nil
}

func serveCA(t *testing.T) *caServer {
	t.Helper()
	s := &caServer{ca: newFakeCA(t)}
	key, err := pki.GenerateKey("")
	if err != nil {
		t.Fatal(err)
	}
	tmpl := pki.ServerTemplate([]string{"istiod.test"}, pki.Validity{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)})
	leaf, err := pki.Sign(tmpl, s.ca.root, key.Public(), s.ca.key)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = ln.Addr().String()
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: crypto.PrivateKey(key)}},
		ClientAuth:   tls.VerifyClientCertIfGiven, ClientCAs: pki.Pool([]*x509.Certificate{s.ca.root}),
	})))
	securityv1.RegisterIstioCertificateServiceServer(g, s)
	done := make(chan error, 1)
	go func() { done <- g.Serve(ln) }()
	t.Cleanup(func() {
		g.Stop()
		<-done
	})
	return s
}

// dialer makes upstream servers from one set of options.
type dialer struct{ options upstream.Options }

func (d dialer) with(t *testing.T, change func(*upstream.Options)) *upstream.Server {
	t.Helper()
	if change != nil {
		change(&d.options)
	}
	u, err := upstream.New(d.options)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// dialer returns valid options for the server, with files in dir.
func (s *caServer) dialer(t *testing.T, dir string) dialer {
	t.Helper()
	put(t, dir, map[string][]byte{"root.pem": pki.EncodeCerts(s.ca.root), "token": []byte("first\n")})
	return dialer{upstream.Options{
		Name: "CA", Address: s.addr, RootFile: filepath.Join(dir, "root.pem"), ServerName: "istiod.test", Token: upstream.TokenFile(filepath.Join(dir, "token")),
		ClusterID: "east", Headers: map[string]string{"X-Team": "shop"},
	}}
}

func TestCARequest(t *testing.T) {
	s, dir := serveCA(t), t.TempDir()
	v := NewValue()
	u := s.dialer(t, dir).with(t, func(o *upstream.Options) { o.Certificate = v.ClientCertificate })
	k := NewKeeper(v, Options{Identity: alice, TTL: time.Hour}, NewCA([]Upstream{u}, "signer"), quiet)
	first, err := k.renew(t.Context(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"authorization": "Bearer first", "clusterid": "east", "x-team": "shop"} {
		if got := strings.Join(s.md.Get(key), "|"); got != want {
			t.Errorf("header %s = %q, want %q", key, got, want)
		}
	}
	if s.asked.GetValidityDuration() != 3600 || s.asked.GetMetadata().AsMap()["CertSigner"] != "signer" || len(s.peers) != 0 {
		t.Errorf("asked %v with %d certificates", s.asked, len(s.peers))
	}
	// The certificate that was signed is presented from then on, and the token is not needed.
	k.publish(first)
	if err := os.Remove(filepath.Join(dir, "token")); err != nil {
		t.Fatal(err)
	}
	if _, err := k.renew(t.Context(), time.Now()); err != nil || len(s.md.Get("authorization")) != 0 || len(s.peers) == 0 {
		t.Errorf("with a certificate: %v, %v, %d certificates", err, s.md, len(s.peers))
	}
}

func TestCAErrors(t *testing.T) {
	s := serveCA(t)
	for _, tt := range []struct {
		name, why string
		change    func(*upstream.Options)
		short     bool
	}{
		{"no root file", "read the root certificate of the CA: open /nowhere", func(o *upstream.Options) { o.RootFile = "/nowhere" }, false},
		{"no token", "read token: open /nowhere", func(o *upstream.Options) { o.Token = upstream.TokenFile("/nowhere") }, false},
		{"another server", "not istiod.other", func(o *upstream.Options) { o.ServerName = "istiod.other" }, false},
		{"no listener", "connection refused", func(o *upstream.Options) { o.Address = "127.0.0.1:1" }, false},
		{"a chain of one", "invalid chain of 1 certificates: want at least leaf and root", nil, true},
	} {
		u := s.dialer(t, t.TempDir()).with(t, tt.change)
		s.short = tt.short
		_, err := NewKeeper(NewValue(), Options{Identity: alice}, NewCA([]Upstream{u}, ""), quiet).renew(t.Context(), time.Now())
		if err == nil || !strings.Contains(err.Error(), tt.why) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.why)
		}
	}
}

// While one address does not answer, another one does, and it is asked first from then on. A refusal is final.
func TestCAAtSeveralAddresses(t *testing.T) {
	t.Parallel()
	s := serveCA(t)
	d := s.dialer(t, t.TempDir())
	silent := silentListener(t)
	away := d.with(t, func(o *upstream.Options) { o.Address = "127.0.0.1:1" })
	hanging := &counted{Upstream: d.with(t, func(o *upstream.Options) { o.Address = silent })}
	refusing := d.with(t, func(o *upstream.Options) { o.Token = upstream.TokenFile("/nowhere") })
	answering := d.with(t, nil)
	ca := NewCA([]Upstream{away, hanging, answering}, "")
	k := NewKeeper(NewValue(), Options{Identity: alice}, ca, quiet)
	for range 2 {
		if _, err := k.renew(t.Context(), time.Now()); err != nil || ca.Address() != s.addr {
			t.Fatalf("answered by %s: %v", ca.Address(), err)
		}
	}
	if n := hanging.calls.Load(); n != 1 {
		t.Errorf("the address that does not answer was called %d times, want 1", n)
	}
	_, err := NewKeeper(NewValue(), Options{Identity: alice}, NewCA([]Upstream{away, d.with(t, func(o *upstream.Options) { o.Address = "127.0.0.1:2" })}, ""), quiet).renew(t.Context(), time.Now())
	if err == nil || !strings.Contains(err.Error(), "CA 127.0.0.1:1:") || !strings.Contains(err.Error(), "CA 127.0.0.1:2:") {
		t.Errorf("%v, want the reasons of both addresses", err)
	}
	last := &counted{Upstream: answering}
	_, err = NewKeeper(NewValue(), Options{Identity: alice}, NewCA([]Upstream{refusing, last}, ""), quiet).renew(t.Context(), time.Now())
	if err == nil || last.calls.Load() != 0 {
		t.Errorf("after a refusal: %v, and %d calls of the next address", err, last.calls.Load())
	}
}

// counted counts the connections of an Upstream.
type counted struct {
	Upstream
	calls atomic.Int64
}

func (c *counted) Connect(failed func(error), opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	c.calls.Add(1)
	return c.Upstream.Connect(failed, opts...)
}

// silentListener accepts connections and says nothing.
func silentListener(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln.Addr().String()
}
