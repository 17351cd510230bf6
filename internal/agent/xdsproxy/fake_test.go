package xdsproxy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/pilothouse/pilothouse/internal/agent/upstream"
	"github.com/pilothouse/pilothouse/test/wait"
)

// authority is a certificate authority for one test.
type authority struct {
	t    testing.TB
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t testing.TB) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, key: key}
	a.cert = a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "root"}, IsCA: true, BasicConstraintsValid: true}, &key.PublicKey)
	return a
}

func (a *authority) sign(c *x509.Certificate, pub *ecdsa.PublicKey) *x509.Certificate {
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	c.NotBefore = time.Now().Add(-2 * time.Hour)
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(time.Hour)
	}
	parent := a.cert
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, pub, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	out, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return out
}

func (a *authority) leaf(name string, notAfter time.Time) *tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c := a.sign(&x509.Certificate{DNSNames: []string{name}, NotAfter: notAfter}, &key.PublicKey)
	return &tls.Certificate{Certificate: [][]byte{c.Raw}, PrivateKey: key, Leaf: c}
}

func (a *authority) writeTo(path string) {
	b := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
	if err := os.WriteFile(path, b, 0o600); err != nil {
		a.t.Fatal(err)
	}
}

// envoyType begins the types that pass.
const envoyType = "type.googleapis.com/envoy."

// plane is a control plane that answers each request with its nonce and remembers how
// it was called.
type plane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	mu    sync.Mutex
	calls []call
	// end ends a stream when a request has that type URL; payload is the version sent.
	end     map[string]error
	payload string
}

type call struct {
	headers   metadata.MD
	certified bool
}

func (u *plane) note(ctx context.Context) {
	u.mu.Lock()
	defer u.mu.Unlock()
	md, _ := metadata.FromIncomingContext(ctx)
	c := call{headers: md}
	if p, ok := peer.FromContext(ctx); ok {
		if i, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			c.certified = len(i.State.PeerCertificates) > 0
		}
	}
	u.calls = append(u.calls, c)
}

func (u *plane) last() call {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.calls[len(u.calls)-1]
}

func (u *plane) DeltaAggregatedResources(g discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	u.note(g.Context())
	for {
		m, err := g.Recv()
		if err != nil {
			return err
		}
		if err, ok := u.end[m.GetTypeUrl()]; ok {
			return err
		}
		if err := g.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: m.GetTypeUrl(), Nonce: m.GetResponseNonce(), SystemVersionInfo: u.payload}); err != nil {
			return err
		}
	}
}

func (u *plane) StreamAggregatedResources(g discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	u.note(g.Context())
	for {
		m, err := g.Recv()
		if err != nil {
			return err
		}
		if err := g.Send(&discoveryv3.DiscoveryResponse{TypeUrl: m.GetTypeUrl(), Nonce: m.GetResponseNonce()}); err != nil {
			return err
		}
	}
}

// serve runs u until the test ends; a nil cert is plaintext.
func (u *plane) serve(t testing.TB, address string, cert *tls.Certificate) (at string) {
	var l net.Listener
	wait.Until(t, "the port", func() bool {
		var err error
		l, err = net.Listen("tcp", address)
		return err == nil
	})
	opts := []grpc.ServerOption{grpc.WaitForHandlers(true)}
	if cert != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*cert}, ClientAuth: tls.RequestClientCert})))
	}
	g := grpc.NewServer(opts...)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, u)
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(l) }()
	t.Cleanup(func() { g.Stop(); <-done })
	return l.Addr().String()
}

// start runs a proxy to a control plane until the function is called or the test ends.
func start(t testing.TB, o upstream.Options) (p *Proxy, stop func()) {
	t.Helper()
	server, err := upstream.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return run(t, Config{Socket: filepath.Join(t.TempDir(), "XDS"), Upstream: server})
}

// proxyWith runs a proxy to a control plane with other options.
func proxyWith(t testing.TB, o upstream.Options, change func(*Config)) *Proxy {
	t.Helper()
	server, err := upstream.New(o)
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Socket: filepath.Join(t.TempDir(), "XDS"), Upstream: server}
	change(&c)
	p, _ := run(t, c)
	return p
}

// proxyOf runs a proxy to any control plane.
func proxyOf(t testing.TB, s discoveryv3.AggregatedDiscoveryServiceServer, change func(*Config)) *Proxy {
	t.Helper()
	return proxyBy(t, s, func(c credentials.TransportCredentials) credentials.TransportCredentials { return c }, change)
}

// proxyBy is proxyOf for a control plane with wrapped credentials.
func proxyBy(t testing.TB, s discoveryv3.AggregatedDiscoveryServiceServer, wrap func(credentials.TransportCredentials) credentials.TransportCredentials, change func(*Config)) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := newAuthority(t)
	root := filepath.Join(t.TempDir(), "root.pem")
	a.writeTo(root)
	g := grpc.NewServer(grpc.WaitForHandlers(true), grpc.Creds(wrap(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*a.leaf("localhost", time.Time{})}}))))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, s)
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(l) }()
	t.Cleanup(func() { g.Stop(); <-done })
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return proxyWith(t, upstream.Options{Name: "control plane", Address: "localhost:" + port, ClusterID: "Kubernetes", RootFile: root, Token: func(context.Context) (string, error) { return "t", nil }}, change)
}

func run(t testing.TB, c Config) (p *Proxy, stop func()) {
	t.Helper()
	if c.Log == nil {
		c.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return p, stop
}

// envoy is a client on the socket.
func envoy(t testing.TB, p *Proxy) discoveryv3.AggregatedDiscoveryServiceClient {
	t.Helper()
	c, err := grpc.NewClient("unix:"+p.config.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return discoveryv3.NewAggregatedDiscoveryServiceClient(c)
}

// exchange opens a delta stream, sends one request and returns the stream and the answer.
func exchange(t testing.TB, p *Proxy, m *discoveryv3.DeltaDiscoveryRequest) (discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient, *discoveryv3.DeltaDiscoveryResponse, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	g, err := envoy(t, p).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Send(m); err != nil {
		t.Fatal(err)
	}
	r, err := g.Recv()
	return g, r, err
}
