package xdsproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/goleak"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/test/wait"
)

// secured is an upstream with a certificate for localhost and the credentials to reach it.
func secured(t *testing.T, u *upstream) (*authority, Config, func()) {
	a := newAuthority(t)
	root := filepath.Join(t.TempDir(), "root.pem")
	a.writeTo(root)
	at, stop := u.serve(t, "127.0.0.1:0", a.leaf("localhost", time.Time{}))
	_, port, _ := net.SplitHostPort(at)
	return a, Config{Address: "localhost:" + port, ClusterID: "Kubernetes", Credentials: Credentials{RootFile: root}}, stop
}

func request(typ string) *discoveryv3.DeltaDiscoveryRequest {
	return &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, ResponseNonce: "n"}
}

func TestFramesPassBothWaysInBothFlavours(t *testing.T) {
	others := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, others) })
	u := &upstream{payload: strings.Repeat("x", 9<<20)}
	_, c, _ := secured(t, u)
	p, _ := start(t, c)
	for range 3 { // at once
		_, r, err := exchange(t, p, request("a"))
		if err != nil || r.GetTypeUrl() != "a" || r.GetNonce() != "n" || len(r.GetSystemVersionInfo()) != 9<<20 {
			t.Fatalf("got %.100v, %v", r, err)
		}
	}
	g, err := envoy(t, p).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Send(&discoveryv3.DiscoveryRequest{TypeUrl: "b", ResponseNonce: "m"}); err != nil {
		t.Fatal(err)
	}
	if r, err := g.Recv(); err != nil || r.GetTypeUrl() != "b" || r.GetNonce() != "m" {
		t.Fatalf("got %v, %v", r, err)
	}
	if s := p.State(); s.Streams != 4 || s.Requests != 4 || s.Responses != 4 || !s.Connected() {
		t.Errorf("state %+v", s)
	}
	if h := u.last().headers; len(h["clusterid"]) != 1 || h["clusterid"][0] != "Kubernetes" {
		t.Errorf("headers %v", h)
	}
}

func TestEndUpstreamEndsTheStreamWithItsStatus(t *testing.T) {
	u := &upstream{end: map[string]error{"denied": status.Error(codes.PermissionDenied, "not you"), "over": nil}}
	_, c, _ := secured(t, u)
	p, _ := start(t, c)
	if _, _, err := exchange(t, p, request("denied")); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "not you") {
		t.Errorf("ended with %v, want PermissionDenied: not you", err)
	}
	if _, _, err := exchange(t, p, request("over")); !errors.Is(err, io.EOF) {
		t.Errorf("ended with %v, want an ordinary end", err)
	}
	wait.Until(t, "no stream", func() bool { return !p.State().Connected() })
}

func TestTokenIsReadForEachStreamAndNotSentWithACertificate(t *testing.T) {
	u := &upstream{}
	a, c, stop := secured(t, u)
	var n atomic.Int32
	var own atomic.Pointer[tls.Certificate]
	own.Store(a.leaf("old", time.Now().Add(-time.Minute))) // expired: as good as none
	c.Credentials.Token = func() (string, error) { return fmt.Sprint("t", n.Add(1)), nil }
	c.Credentials.Certificate = own.Load
	p, _ := start(t, c)
	for _, want := range []string{"Bearer t1", "Bearer t2"} {
		if _, _, err := exchange(t, p, request("a")); err != nil {
			t.Fatal(err)
		}
		if l := u.last(); l.certified || len(l.headers["authorization"]) != 1 || l.headers["authorization"][0] != want {
			t.Errorf("called with %v, certificate %v, want %s", l.headers["authorization"], l.certified, want)
		}
	}
	// A new connection shows the certificate that there is by then.
	own.Store(a.leaf("me", time.Time{}))
	stop()
	u.serve(t, "127.0.0.1"+c.Address[strings.LastIndex(c.Address, ":"):], a.leaf("localhost", time.Time{}))
	wait.Until(t, "a stream with the certificate", func() bool {
		_, _, err := exchange(t, p, request("a"))
		return err == nil && u.last().certified
	})
	if h := u.last().headers["authorization"]; len(h) != 0 {
		t.Errorf("sent %v beside a certificate", h)
	}
}

func TestControlPlaneMustBeWhoItShouldBe(t *testing.T) {
	u := &upstream{}
	_, c, _ := secured(t, u)
	other := newAuthority(t)
	wrongName, wrongRoot, noRoot := c, c, c
	wrongName.Credentials.ServerName = "istiod.istio-system.svc"
	wrongRoot.Credentials.RootFile = filepath.Join(t.TempDir(), "other.pem")
	other.writeTo(wrongRoot.Credentials.RootFile)
	noRoot.Credentials.RootFile = filepath.Join(t.TempDir(), "none.pem")
	for says, c := range map[string]Config{"istiod.istio-system.svc": wrongName, "unknown authority": wrongRoot, "none.pem": noRoot} {
		p, _ := start(t, c)
		wait.Until(t, "the reason "+says, func() bool { return strings.Contains(p.State().LastError, says) })
		p.patience = 10 * time.Millisecond
		if _, _, err := exchange(t, p, request("a")); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), says) {
			t.Errorf("ended with %v, want Unavailable and %q", err, says)
		}
	}
	// A root that arrives later is taken without a restart.
	p, _ := start(t, noRoot)
	b, err := os.ReadFile(c.Credentials.RootFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(noRoot.Credentials.RootFile, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := exchange(t, p, request("a")); err != nil {
		t.Error(err)
	}
}

func TestStreamWaitsForAControlPlaneThatComes(t *testing.T) {
	// The port of plaintext control planes, at a loopback address of this test's own.
	address := fmt.Sprintf("127.%d.%d.1:15010", 100+os.Getpid()%100, os.Getpid()/100%256)
	p, _ := start(t, Config{Address: address, Credentials: Credentials{Token: func() (string, error) { return "", errors.New("read in plaintext") }}})
	wait.Until(t, "an attempt", func() bool { return p.State().LastError != "" })
	answered := make(chan error, 1)
	g, err := envoy(t, p).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Send(request("a")); err != nil {
		t.Fatal(err)
	}
	go func() { _, err := g.Recv(); answered <- err }()
	u := &upstream{}
	u.serve(t, address, nil)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	if h := u.last().headers["authorization"]; len(h) != 0 {
		t.Error("a token was sent in plaintext")
	}
}

func TestRefusalsAreRemembered(t *testing.T) {
	_, c, _ := secured(t, &upstream{})
	p, _ := start(t, c)
	g, _, err := exchange(t, p, request("a"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		if err := g.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: "lds", ErrorDetail: &rpcstatus.Status{Code: 13, Message: fmt.Sprint("bad ", i)}}); err != nil {
			t.Fatal(err)
		}
	}
	wait.Until(t, "60 refusals", func() bool { return p.State().Refused == 60 })
	s := p.State()
	if len(s.Nacks) != 50 || s.Nacks[0].Message != "bad 10" || s.Nacks[49].Message != "bad 59" || s.Nacks[0].Type != "lds" || s.Nacks[0].At.IsZero() {
		t.Errorf("remembered %d refusals: %+v", len(s.Nacks), s.Nacks)
	}
}

func TestSocketIsMadeOpenAndTakenAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "er", "XDS")
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	_ = stale.Close()
	_, stop := start(t, Config{Socket: path, Address: "127.0.0.1:1"})
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o666 {
		t.Errorf("socket %v, %v, want mode 0666", st, err)
	}
	stop()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("socket after the end: %v", err)
	}
	for _, bad := range []Config{{Socket: path, Address: "no port"}, {Socket: "/proc/no/XDS", Address: "a:1"}} {
		if _, err := New(bad); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

func TestOtherServicesAreNotReached(t *testing.T) {
	_, c, _ := secured(t, &upstream{})
	p, _ := start(t, c)
	conn, err := grpc.NewClient("unix:"+p.config.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	err = conn.Invoke(context.Background(), "/istio.v1.auth.IstioCertificateService/CreateCertificate", &rpcstatus.Status{}, &rpcstatus.Status{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("got %v, want Unimplemented", err)
	}
}

// FuzzRefusal: what protobuf reads, and anything else, never panics and agrees with it.
func FuzzRefusal(f *testing.F) {
	b, err := proto.Marshal(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: "t", ErrorDetail: &rpcstatus.Status{Message: "m"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		n, ok := refusal(mem.BufferSlice{mem.SliceBuffer(b)}, true)
		_, _ = refusal(mem.BufferSlice{mem.SliceBuffer(b)}, false)
		var m discoveryv3.DeltaDiscoveryRequest
		if proto.Unmarshal(b, &m) == nil && ok && n.Type != m.GetTypeUrl() {
			t.Errorf("read %+v of %v", n, &m)
		}
	})
}
