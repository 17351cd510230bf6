package xdsproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
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

	"github.com/pilothouse/pilothouse/internal/agent/upstream"
	"github.com/pilothouse/pilothouse/test/wait"
)

// secured is a control plane with a certificate for localhost and the options to reach it.
func secured(t *testing.T, u *plane) upstream.Options {
	a := newAuthority(t)
	root := filepath.Join(t.TempDir(), "root.pem")
	a.writeTo(root)
	at := u.serve(t, "127.0.0.1:0", a.leaf("localhost", time.Time{}))
	_, port, _ := net.SplitHostPort(at)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("t"), 0o600); err != nil {
		t.Fatal(err)
	}
	return upstream.Options{Name: "control plane", Address: "localhost:" + port, ClusterID: "Kubernetes", RootFile: root, Token: upstream.TokenFile(token)}
}

func request(typ string) *discoveryv3.DeltaDiscoveryRequest {
	return &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, ResponseNonce: "n"}
}

func TestForwardsBothVariants(t *testing.T) {
	others := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, others) })
	u := &plane{payload: strings.Repeat("x", 9<<20)}
	c := secured(t, u)
	p, _ := start(t, c)
	for range 3 { // at once
		_, r, err := exchange(t, p, request(envoyType+"a"))
		if err != nil || r.GetTypeUrl() != envoyType+"a" || r.GetNonce() != "n" || len(r.GetSystemVersionInfo()) != 9<<20 {
			t.Fatalf("got %.100v, %v", r, err)
		}
	}
	g, err := envoy(t, p).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Send(&discoveryv3.DiscoveryRequest{TypeUrl: envoyType + "b", ResponseNonce: "m"}); err != nil {
		t.Fatal(err)
	}
	if r, err := g.Recv(); err != nil || r.GetTypeUrl() != envoyType+"b" || r.GetNonce() != "m" {
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
	u := &plane{end: map[string]error{envoyType + "denied": status.Error(codes.PermissionDenied, "not you"), envoyType + "over": nil}}
	c := secured(t, u)
	p, _ := start(t, c)
	if _, _, err := exchange(t, p, request(envoyType+"denied")); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "not you") {
		t.Errorf("ended with %v, want PermissionDenied: not you", err)
	}
	if _, _, err := exchange(t, p, request(envoyType+"over")); !errors.Is(err, io.EOF) {
		t.Errorf("ended with %v, want an ordinary end", err)
	}
	wait.Until(t, "no stream", func() bool { return !p.State().Connected() })
	if s := p.State(); s.Terminations != 2 || s.Failures != 0 || s.Departures != 0 {
		t.Errorf("state %+v, want two streams that the control plane ended", s)
	}
}

func TestEndOfEnvoysStreamIsCounted(t *testing.T) {
	p, _ := start(t, secured(t, &plane{}))
	ctx, leave := context.WithCancel(t.Context())
	g, err := envoy(t, p).DeltaAggregatedResources(ctx)
	if err == nil {
		err = g.Send(request(envoyType + "a"))
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Recv(); err != nil {
		t.Fatal(err)
	}
	leave()
	wait.Until(t, "the end of the stream", func() bool { return p.State().Departures == 1 })
	if s := p.State(); s.Terminations != 0 || s.Failures != 0 {
		t.Errorf("state %+v, want one stream that Envoy ended", s)
	}
}

func TestReasonOfAFailedConnection(t *testing.T) {
	o := secured(t, &plane{})
	root := o.RootFile
	o.RootFile = filepath.Join(t.TempDir(), "none.pem")
	p, _ := start(t, o)
	wait.Until(t, "the reason", func() bool { s := p.State(); return strings.Contains(s.LastError, "none.pem") && s.Failures > 0 })
	p.patience = 10 * time.Millisecond
	if _, _, err := exchange(t, p, request(envoyType+"a")); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "none.pem") {
		t.Errorf("ended with %v, want Unavailable and none.pem", err)
	}
	// A root that arrives later is taken without a restart.
	p, _ = start(t, o)
	b, err := os.ReadFile(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(o.RootFile, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := exchange(t, p, request(envoyType+"a")); err != nil {
		t.Error(err)
	}
}

func TestStreamWaitsForTheControlPlane(t *testing.T) {
	// The port of plaintext control planes, at a loopback address of this test's own.
	address := fmt.Sprintf("127.%d.%d.1:15010", 100+os.Getpid()%100, os.Getpid()/100%256)
	p, _ := start(t, upstream.Options{Name: "control plane", Address: address})
	wait.Until(t, "an attempt", func() bool { return p.State().LastError != "" })
	answered := make(chan error, 1)
	g, err := envoy(t, p).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Send(request(envoyType + "a")); err != nil {
		t.Fatal(err)
	}
	go func() { _, err := g.Recv(); answered <- err }()
	u := &plane{}
	u.serve(t, address, nil)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	if h := u.last().headers["authorization"]; len(h) != 0 {
		t.Error("a token was sent in plaintext")
	}
}

func TestRefusalsAreRemembered(t *testing.T) {
	c := secured(t, &plane{})
	p, _ := start(t, c)
	g, _, err := exchange(t, p, request(envoyType+"a"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		if err := g.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: envoyType + "lds", ErrorDetail: &rpcstatus.Status{Code: 13, Message: fmt.Sprint("bad ", i)}}); err != nil {
			t.Fatal(err)
		}
	}
	wait.Until(t, "60 refusals", func() bool { return p.State().Refused == 60 })
	s := p.State()
	if len(s.Nacks) != 50 || s.Nacks[0].Message != "bad 10" || s.Nacks[49].Message != "bad 59" || s.Nacks[0].Type != envoyType+"lds" || s.Nacks[0].At.IsZero() {
		t.Errorf("remembered %d refusals: %+v", len(s.Nacks), s.Nacks)
	}
}

func TestSocketModeAndRemoval(t *testing.T) {
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
	server, err := upstream.New(upstream.Options{Name: "control plane", Address: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	_, stop := run(t, Config{Socket: path, Upstream: server})
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o666 {
		t.Errorf("socket %v, %v, want mode 0666", st, err)
	}
	stop()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("socket after the end: %v", err)
	}
	if _, err := New(Config{Socket: "/proc/no/XDS", Upstream: server}); err == nil {
		t.Error("New accepts a socket that cannot be created")
	}
}

func TestOtherServicesAreNotReached(t *testing.T) {
	c := secured(t, &plane{})
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
