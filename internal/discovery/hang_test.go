package discovery

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/internal/discovery/source/multi"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

// hanging starts a control plane whose commits hang once its handler is armed, and go on when the test ends.
func hanging(t *testing.T, change ...func(*Server)) (p *plane, h *blocking, log *wait.Output) {
	t.Helper()
	log = &wait.Output{}
	h = &blocking{Handler: slog.NewTextHandler(log, nil), release: make(chan struct{})}
	t.Cleanup(func() { close(h.release) })
	any := "127.0.0.1:0"
	o := Options{
		StateDir: wait.Folder(t), Names: Names{Domain: "cluster.local", TrustDomain: "cluster.local", Namespace: "istio-system"}, Version: "test",
		Ports: Ports{HTTP: any, GRPC: any, SecureGRPC: any, Monitoring: any}, HTTP: HTTPOptions{Shutdown: time.Second}, Log: slog.New(h),
	}
	p = &plane{t: t, source: &script{batches: make(chan object.Batch)}}
	srv, err := newServer(t.Context(), o, multi.Options{First: p.source}, openKeeper(o.StateDir, o.ConfigDir, o.Log))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(srv)
	}
	p.server, p.addr = srv, srv.Addresses()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(ctx) }()
	p.stop = func() error {
		stop()
		select {
		case err := <-ended:
			return err
		case <-time.After(wait.Bound):
			return errors.New("the control plane does not end")
		}
	}
	t.Cleanup(stop)
	return p, h, log
}

// hang has the loop hang in a commit.
func (p *plane) hang(h *blocking) {
	p.t.Helper()
	h.armed.Store(true)
	p.source.batches <- object.Batch{Problems: []object.Problem{{Text: "hang"}}}
	wait.Until(p.t, "the loop hangs", func() bool { return h.waiting.Load() })
}

// A loop that hangs for ever keeps neither the streams from being told to go nor the process alive.
func TestStopDoesNotWaitForALoopThatHangs(t *testing.T) {
	p, h, log := hanging(t, func(s *Server) { s.loopLimit = 50 * time.Millisecond })
	p.emit(shop, true)
	c := p.dial("", "").open()
	c.expect("RDS", "9080")
	p.hang(h)
	joining := p.dial("", "") // it waits for the loop
	ended := make(chan error, 1)
	go func() { ended <- p.stop() }()
	for _, one := range []*client{c, joining} {
		if err := one.refusal(); status.Code(err) != codes.Unavailable {
			t.Errorf("a stream ended with %v, want Unavailable", err)
		}
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "commit") || !strings.Contains(err.Error(), "has not ended") {
		t.Errorf("run: %v, want an error that names what hangs", err)
	}
	if n := strings.Count(log.String(), "the loop has not ended: stopping without it"); n != 1 {
		t.Errorf("logged %d times, want once:\n%s", n, log.String())
	}
}

// While the loop is busy, streams end, and those that go on are served, also after a refusal.
func TestStreamsDoNotWaitForTheLoop(t *testing.T) {
	p, h, _ := hanging(t, func(s *Server) { s.loopLimit = 50 * time.Millisecond })
	p.emit(shop+"---\n"+route("{name: first, route: [{destination: {host: reviews}}]}"), true)
	ends, goes := p.dial("", "").open(), p.dial("", "").open()
	ends.until("9080", "first")
	goes.until("9080", "first")
	p.emit(route("{name: second, route: [{destination: {host: reviews}}]}"), false)
	var nonce string
	for nonce == "" {
		select {
		case r := <-goes.got:
			if r.TypeUrl == xds.RDS.URL() {
				nonce = r.Nonce
			} else {
				goes.take(r)
			}
		case err := <-goes.err:
			t.Fatal(err)
		}
	}
	p.hang(h)
	goes.nack(nonce, "9080: it is bad")
	answered := false
	goes.refuses = func(r *discoveryv3.DeltaDiscoveryResponse) string {
		answered = answered || r.TypeUrl == xds.EDS.URL()
		return ""
	}
	goes.ask(xds.EDS, "outbound|9999||nobody.shop.svc.cluster.local")
	goes.wait("an answer after a refusal", func() bool { return answered })
	if err := ends.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for ended := false; !ended; {
		select {
		case <-ends.got:
		case err := <-ends.err:
			if ended = true; !errors.Is(err, io.EOF) {
				t.Errorf("the stream ended with %v, want its end", err)
			}
		case <-time.After(wait.Bound):
			t.Fatal("the stream does not end")
		}
	}
	_ = p.stop() // TestStopDoesNotWaitForALoopThatHangs has the error
}

// nack refuses a response.
func (c *client) nack(nonce, message string) {
	_ = c.stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.RDS.URL(), ResponseNonce: nonce, ErrorDetail: &rpcstatus.Status{Message: message}}) // Recv returns the error
}
