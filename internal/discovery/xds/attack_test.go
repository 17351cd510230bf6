package xds

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/require"
	"github.com/pilothouse/pilothouse/test/wait"
)

// maxDamage is what a hostile client may cost a server beyond an honest one, in bytes.
const maxDamage = 20 << 20

// roleServer, as this test binary's first argument, makes the process a server to be
// attacked: in a process of its own only what the server holds is measured.
const roleServer = "role=server"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == roleServer {
		serveAlone()
		return
	}
	require.Envoy()
	os.Exit(m.Run())
}

// everybody is a registry that keeps nothing of who joins.
type everybody struct{ latest *LatestView }

func (r everybody) Join(context.Context, mesh.Node, mesh.Identity, string) (*LatestView, func(), error) {
	return r.latest, func() {}, nil
}

// counter counts what is written to it.
type counter struct{ n atomic.Int64 }

func (c *counter) Write(p []byte) (int, error) { c.n.Add(int64(len(p))); return len(p), nil }

// attackedView has one cluster with endpoints, and a second one from generation 2 on.
func attackedView(generation uint64) *View {
	v := (&View{Generation: generation}).put(NewCluster("first", []byte("c"), "first"), NewResource(EDS, "first", []byte("e")))
	if generation > 1 {
		v = v.put(NewCluster("second", []byte("c"), "second"), NewResource(EDS, "second", []byte("e")))
	}
	return v.At(generation)
}

// serveAlone is the server's process: it says its address, and then answers one command
// a line until its input ends.
func serveAlone() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stdout, "error", err)
		return
	}
	latest, logged, reg := NewLatestView(attackedView(1)), &counter{}, prometheus.NewRegistry()
	s := New(everybody{latest}, slog.New(slog.NewTextHandler(logged, nil)), reg)
	// However busy the machine is, connections are closed for their number only, not for their age.
	s.quota.idle, s.quota.waiting = time.Hour, time.Hour
	g := grpc.NewServer(append(serverOptions(s), grpc.ConnectionTimeout(time.Hour))...)
	s.Register(g, nil)
	go func() { _ = g.Serve(s.Listen(l)) }()
	fmt.Fprintln(os.Stdout, l.Addr())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch in.Text() {
		case "live":
			fmt.Fprintln(os.Stdout, live())
		case "logged":
			fmt.Fprintln(os.Stdout, logged.n.Load())
		case "streams":
			fmt.Fprintln(os.Stdout, s.count())
		case "connections":
			fmt.Fprintln(os.Stdout, s.connections())
		case "refused":
			fmt.Fprintln(os.Stdout, total(reg, "pilothouse_xds_refused_total"))
		case "publish":
			latest.Publish(attackedView(2))
			fmt.Fprintln(os.Stdout, "ok")
		}
	}
	g.Stop()
}

// live is what the process holds after garbage collection: a pool's buffers go with the
// second one.
func live() uint64 {
	for range 3 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// total is the sum of a counter over its labels.
func total(reg *prometheus.Registry, name string) (sum float64) {
	families, _ := reg.Gather()
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// victim is a server in a process of its own.
type victim struct {
	t    *testing.T
	addr string
	in   io.Writer
	out  *bufio.Scanner
}

func newVictim(t *testing.T) *victim {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, roleServer)
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	v := &victim{t: t, in: in, out: bufio.NewScanner(out)}
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the server's process: %v", err)
		}
	})
	v.addr = v.line()
	return v
}

func (v *victim) line() string {
	v.t.Helper()
	if !v.out.Scan() {
		v.t.Fatal("the server's process is gone")
	}
	return v.out.Text()
}

func (v *victim) tell(command string) string {
	v.t.Helper()
	fmt.Fprintln(v.in, command)
	return v.line()
}

func (v *victim) number(command string) int {
	v.t.Helper()
	n, err := strconv.ParseFloat(v.tell(command), 64)
	if err != nil {
		v.t.Fatal(err)
	}
	return int(n)
}

// connect makes one connection to the server.
func (v *victim) connect() *grpc.ClientConn {
	v.t.Helper()
	c, err := grpc.NewClient("passthrough:///"+v.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() { _ = c.Close() })
	return c
}

// stream opens a stream that lives as long as the test.
func (v *victim) stream(c *grpc.ClientConn) *attackStream {
	v.t.Helper()
	g, err := discoveryv3.NewAggregatedDiscoveryServiceClient(c).DeltaAggregatedResources(v.t.Context())
	if err != nil {
		v.t.Fatal(err)
	}
	s := &attackStream{t: v.t, g: g, seen: map[string]bool{}, news: make(chan struct{}, 1)}
	go s.receive()
	return s
}

// attackStream is a delta stream of a hostile client, which reads everything and
// acknowledges nothing.
type attackStream struct {
	t    *testing.T
	g    deltaStream
	news chan struct{}

	mu    sync.Mutex
	seen  map[string]bool // types of responses
	nonce string          // the last one
	err   error
}

func (s *attackStream) receive() {
	for {
		m, err := s.g.Recv()
		s.mu.Lock()
		if err == nil {
			s.seen[m.GetTypeUrl()], s.nonce = true, m.GetNonce()
		} else {
			s.err = err
		}
		s.mu.Unlock()
		select {
		case s.news <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// say sends a request; a stream that was refused is found out by settled.
func (s *attackStream) say(r *discoveryv3.DeltaDiscoveryRequest) { _ = s.g.Send(r) }

// over reports whether the stream has ended, so that what is said on it goes nowhere.
func (s *attackStream) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err != nil
}

// settled waits until all that was said before has been taken, or the stream has been
// refused, and returns why. The type must not have been asked for on this stream.
func (s *attackStream) settled(typ Type) error {
	s.t.Helper()
	r := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ.URL()}
	if typ != CDS && typ != LDS {
		r.ResourceNamesSubscribe = []string{"settled"}
	}
	s.say(r)
	return s.await(typ)
}

// await waits for a response of a type, or the stream's end.
func (s *attackStream) await(typ Type) error {
	s.t.Helper()
	patience := time.After(wait.Bound)
	for {
		s.mu.Lock()
		err, seen := s.err, s.seen[typ.URL()]
		s.mu.Unlock()
		if errors.Is(err, io.EOF) {
			s.t.Fatal("the server ended the stream without a reason")
		}
		if err != nil || seen {
			return err
		}
		select {
		case <-s.news:
		case <-patience:
			s.t.Fatalf("no answer to %s, and no refusal", typ)
		}
	}
}

// honest is a proxy that has taken the first view.
func (v *victim) honest() deltaStream {
	v.t.Helper()
	g, err := discoveryv3.NewAggregatedDiscoveryServiceClient(v.connect()).DeltaAggregatedResources(v.t.Context())
	if err != nil {
		v.t.Fatal(err)
	}
	n := node(nil)
	n.Id = "sidecar~10.9.9.9~honest-1.shop~shop.svc.cluster.local"
	ask(v.t, g, first(n))
	v.receive(g, CDS, "first")
	ask(v.t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: EDS.URL(), ResourceNamesSubscribe: []string{"first"}})
	v.receive(g, EDS, "first")
	return g
}

// receive takes and acknowledges a response with one resource.
func (v *victim) receive(g deltaStream, typ Type, name string) {
	v.t.Helper()
	m, err := g.Recv()
	if err != nil {
		v.t.Fatal(err)
	}
	if m.GetTypeUrl() != typ.URL() || len(m.GetResources()) != 1 || m.GetResources()[0].GetName() != name {
		v.t.Fatalf("got %v, want %s %s", m, typ, name)
	}
	ask(v.t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce()})
}

// withstands plays an attack and checks what it cost, that what was refused is counted
// and said in few words, and that an honest proxy is served on.
func withstands(t *testing.T, attack func(*victim) (refusals []error)) {
	t.Helper()
	v := newVictim(t)
	honest := v.honest()
	before := v.number("live")
	refusals := attack(v)
	cost := v.number("live") - before
	t.Logf("cost %.1f MB, refused %d times", float64(cost)/1e6, len(refusals))
	if cost > maxDamage {
		t.Errorf("the server holds %.1f MB more than before, at most %.1f are allowed", float64(cost)/1e6, maxDamage/1e6)
	}
	for _, err := range refusals {
		checkRefusal(t, err)
	}
	// On a busy machine the client may see the end of its stream before the server has counted it.
	wait.Until(t, fmt.Sprintf("%d refusals are counted", len(refusals)), func() bool { return v.number("refused") >= len(refusals) })
	if n := v.number("logged"); n > 256<<10 {
		t.Errorf("%d bytes were logged", n)
	}
	v.tell("publish")
	v.receive(honest, CDS, "second")
}

func checkRefusal(t *testing.T, err error) {
	t.Helper()
	text := err.Error()
	if !strings.Contains(text, "ResourceExhausted") && !strings.Contains(text, "InvalidArgument") {
		t.Errorf("refused with %.300q, want ResourceExhausted or InvalidArgument", text)
	}
	if !strings.Contains(text, "at most") && !strings.Contains(text, "larger than max") && !strings.Contains(text, "within") {
		t.Errorf("the refusal %.300q does not say the limit", text)
	}
	if len(text) > 2048 {
		t.Errorf("the refusal has %d bytes", len(text))
	}
}

// connections is how many the quota counts.
func (s *Server) connections() int {
	s.quota.mu.Lock()
	defer s.quota.mu.Unlock()
	return s.quota.conns
}
