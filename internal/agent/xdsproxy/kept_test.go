package xdsproxy

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilothouse/pilothouse/internal/agent/lastgood"
	"github.com/pilothouse/pilothouse/internal/agent/upstream"
	"github.com/pilothouse/pilothouse/test/wait"
)

// giver is a control plane that gives each type once, one resource with a version, or opens streams and is silent.
type giver struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	mu      sync.Mutex
	version string
	silent  bool
	// asked are the first requests for clusters of each stream.
	asked []*discoveryv3.DeltaDiscoveryRequest
}

func (g *giver) set(version string, silent bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.version, g.silent = version, silent
}

// last is the last first request for clusters.
func (g *giver) last() *discoveryv3.DeltaDiscoveryRequest {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.asked) == 0 {
		return nil
	}
	return g.asked[len(g.asked)-1]
}

func (g *giver) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	given := map[string]bool{}
	for {
		r, err := s.Recv()
		if err != nil {
			return err
		}
		typ := r.GetTypeUrl()
		g.mu.Lock()
		version, silent := g.version, g.silent
		if typ == clusterType && !given[typ] {
			g.asked = append(g.asked, r)
		}
		g.mu.Unlock()
		if silent || given[typ] {
			continue
		}
		given[typ] = true
		m := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typ, Nonce: "1"}
		if r.GetInitialResourceVersions()["one"] != version {
			m.Resources = []*discoveryv3.Resource{one(typ, version)}
		}
		if err := s.Send(m); err != nil {
			return err
		}
	}
}

func one(typ, version string) *discoveryv3.Resource {
	if typ == extensionType {
		return &discoveryv3.Resource{Name: "one", Version: version, Resource: extension("one")}
	}
	m := proto.Message(&clusterv3.Cluster{Name: "one", AltStatName: version})
	if typ == listenerType {
		m = &listenerv3.Listener{Name: "one", StatPrefix: version}
	}
	a, err := anypb.New(m)
	if err != nil {
		panic(err)
	}
	return &discoveryv3.Resource{Name: "one", Version: version, Resource: a}
}

// serve runs g at an address until the function is called.
func (g *giver) serve(t *testing.T, address string) (stop func()) {
	t.Helper()
	var l net.Listener
	wait.Until(t, "the port", func() (ok bool) {
		var err error
		l, err = net.Listen("tcp", address)
		return err == nil
	})
	s := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, g)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	stop = sync.OnceFunc(func() { s.Stop(); <-done })
	t.Cleanup(stop)
	return stop
}

// plaintextAddress is the port of plaintext control planes, at a loopback address of a test's own.
func plaintextAddress(n int) string {
	return fmt.Sprintf("127.%d.%d.%d:15010", 100+os.Getpid()%100, os.Getpid()/100%256, n)
}

// kept starts a proxy that keeps what is acknowledged in a folder.
func kept(t *testing.T, dir, address string, more ...func(*Config)) (*Proxy, *lastgood.Store, func()) {
	t.Helper()
	server, err := upstream.New(upstream.Options{Name: "control plane", Address: address})
	if err != nil {
		t.Fatal(err)
	}
	store := lastgood.New(lastgood.Options{Dir: dir, MaxAge: time.Hour, MaxSize: 1 << 20, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = store.Run(ctx) }()
	config := Config{Socket: t.TempDir() + "/XDS", Upstream: server, Copy: store}
	for _, f := range more {
		f(&config)
	}
	p, stop := run(t, config)
	all := sync.OnceFunc(func() { stop(); cancel(); <-done })
	t.Cleanup(all)
	return p, store, all
}

// client is an Envoy without configuration, which asks for clusters and listeners and acknowledges what it gets.
type client struct {
	t      *testing.T
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
}

func newClient(t *testing.T, p *Proxy) *client {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	g, err := envoy(t, p).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return &client{t: t, stream: g}
}

// get returns the version of the resource that it gets, "none" if it gets none.
func (c *client) get(typ string, initial map[string]string) string {
	c.t.Helper()
	if err := c.stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, InitialResourceVersions: initial}); err != nil {
		c.t.Fatal(err)
	}
	r, err := c.stream.Recv()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := c.stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, ResponseNonce: r.GetNonce()}); err != nil {
		c.t.Fatal(err)
	}
	if len(r.GetResources()) == 0 {
		return "none"
	}
	return r.GetResources()[0].GetVersion()
}

func (c *client) expect(version string, initial map[string]string) {
	c.t.Helper()
	for _, typ := range []string{clusterType, listenerType} {
		if got := c.get(typ, initial); got != version {
			c.t.Errorf("got version %s of %s, want %s", got, typ, version)
		}
	}
}

// fill has an Envoy acknowledge version 1.
func fill(t *testing.T, dir, address string) *giver {
	t.Helper()
	g := &giver{version: "1"}
	away := g.serve(t, address)
	p, store, stop := kept(t, dir, address)
	newClient(t, p).expect("1", nil)
	wait.Until(t, "the copy", func() bool { return store.State().Resources == 2 })
	stop()
	away()
	return g
}

func TestCopyIsServedUntilDiscoveryIsBack(t *testing.T) {
	dir, address := t.TempDir(), plaintextAddress(2)
	g := fill(t, dir, address)
	p, store, _ := kept(t, dir, address)
	c := newClient(t, p)
	c.expect("1", nil)
	if s := store.State(); s.Streams != 1 || s.Served != 1 || p.State().Connected() {
		t.Errorf("state %+v", s)
	}
	g.set("2", false)
	g.serve(t, address)
	if _, err := c.stream.Recv(); err == nil {
		t.Error("the stream goes on although discovery is back")
	}
	wait.Until(t, "the end of the stream", func() bool { return store.State().Streams == 0 })
	c = newClient(t, p)
	c.expect("2", map[string]string{"one": "1"})
	if got := g.last().GetInitialResourceVersions()["one"]; got != "1" {
		t.Errorf("discovery was told that Envoy has version %q", got)
	}
	wait.Until(t, "the new version in the copy", func() bool {
		a, err := store.Answer(true)
		if err != nil {
			return false
		}
		defer a.Close()
		text, err := proto.Marshal(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType})
		if err != nil {
			t.Fatal(err)
		}
		frames, err := a.Request(sentFrame(text).data)
		var m discoveryv3.DeltaDiscoveryResponse
		return err == nil && len(frames) == 1 && proto.Unmarshal(frames[0].Materialize(), &m) == nil && m.GetResources()[0].GetVersion() == "2"
	})
}

// A control plane that opens the stream and says nothing is as good as none, for some time.
func TestCopyIsServedIfDiscoveryIsSilent(t *testing.T) {
	dir, address := t.TempDir(), plaintextAddress(3)
	g := fill(t, dir, address)
	g.set("2", true)
	g.serve(t, address)
	p, store, _ := kept(t, dir, address)
	p.waits = copyWaits{open: time.Minute, answer: 50 * time.Millisecond, again: 50 * time.Millisecond}
	c := newClient(t, p)
	c.expect("1", nil)
	if s := store.State(); s.Served != 1 {
		t.Errorf("state %+v", s)
	}
	g.set("2", false)
	if _, err := c.stream.Recv(); err == nil {
		t.Error("the stream goes on although discovery may be asked again")
	}
	newClient(t, p).expect("2", map[string]string{"one": "1"})
}

// An Envoy with configuration is not served from the copy, which may be older.
func TestCopyIsNotForAnEnvoyWithConfiguration(t *testing.T) {
	dir, address := t.TempDir(), plaintextAddress(4)
	g := fill(t, dir, address)
	p, store, _ := kept(t, dir, address)
	wait.Until(t, "an attempt", func() bool { return p.State().LastError != "" })
	c := newClient(t, p)
	g.set("3", false)
	done := make(chan struct{})
	go func() { defer close(done); c.expect("3", map[string]string{"one": "2"}) }()
	g.serve(t, address)
	<-done
	if s := store.State(); s.Served != 0 {
		t.Errorf("state %+v", s)
	}
}

func sentFrame(text []byte) *frame {
	return &frame{data: mem.BufferSlice{mem.SliceBuffer(text)}}
}

// Other processes than Envoy decide nothing about the copy.
func TestOtherProcessesAreNotRecorded(t *testing.T) {
	for what, c := range map[string]struct {
		pid  int
		want bool
	}{"this process": {os.Getpid(), true}, "a parent": {os.Getppid(), false}, "init": {1, false}, "not known": {0, false}} {
		ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: peerInfo{pid: c.pid}})
		if got := isEnvoy(ctx); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
	if !isEnvoy(peer.NewContext(t.Context(), &peer.Peer{AuthInfo: peerInfo{pid: child.Process.Pid}})) {
		t.Error("a child is not Envoy")
	}
	if isEnvoy(t.Context()) {
		t.Error("a process that is not known is Envoy")
	}
}

// Extensions are in the copy as the control plane sent them, and converted again when they are served from it: what they were
// converted to may be gone by then.
func TestExtensionsOfTheCopyAreConverted(t *testing.T) {
	dir, address := t.TempDir(), plaintextAddress(6)
	k := kitchen{make(chan struct{})}
	close(k.open)
	convert := func(c *Config) { c.Extensions = k }
	away := (&giver{version: "1"}).serve(t, address)
	expect := func(p *Proxy) {
		t.Helper()
		c := newClient(t, p)
		c.expect("1", nil)
		if err := c.stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: extensionType, ResourceNamesSubscribe: []string{"one"}}); err != nil {
			t.Fatal(err)
		}
		r, err := c.stream.Recv()
		if err != nil || r.GetTypeUrl() != extensionType || len(r.GetResources()) != 1 || string(r.GetResources()[0].GetResource().GetValue()) != "done one" {
			t.Fatalf("got %v, %v, want the extension, converted", r, err)
		}
		if err := c.stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: extensionType, ResponseNonce: r.GetNonce()}); err != nil {
			t.Fatal(err)
		}
	}
	p, store, stop := kept(t, dir, address, convert)
	expect(p)
	wait.Until(t, "the copy", func() bool { return store.State().Resources == 3 })
	stop()
	away()
	p, store, _ = kept(t, dir, address, convert)
	expect(p)
	if s := store.State(); s.Served != 1 {
		t.Errorf("state %+v", s)
	}
}
