package xds

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// A client that ends its stream is not told of an error, whether or not it has asked for something.
func TestAStreamThatTheClientEnds(t *testing.T) {
	for name, asks := range map[string]bool{"before a request": false, "after one": true} {
		t.Run(name, func(t *testing.T) {
			g := open(t, dial(t, New(&oneClass{latest: NewLatestView(meshView(1, "one"))}, quiet(t), nil), nil))
			if asks {
				ask(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), TypeUrl: CDS.URL()})
				if m, err := g.Recv(); err != nil {
					t.Fatalf("got %v, %v, want clusters", m, err)
				}
			}
			if err := g.CloseSend(); err != nil {
				t.Fatal(err)
			}
			if m, err := g.Recv(); !errors.Is(err, io.EOF) {
				t.Errorf("got %v, %v, want the end of the stream", m, err)
			}
		})
	}
}

// Which type a request on an aggregated stream is about is not guessed.
func TestARequestWithoutATypeIsRefused(t *testing.T) {
	for name, delta := range map[string]bool{"delta": true, "SotW": false} {
		t.Run(name, func(t *testing.T) {
			var log wait.Output
			c := dial(t, New(&oneClass{latest: NewLatestView(meshView(1, "one"))}, textLog(&log), nil), nil)
			var err error
			if delta {
				g := open(t, c)
				ask(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), ResourceNamesSubscribe: []string{"c"}})
				_, err = g.Recv()
			} else {
				g, streamErr := c.StreamAggregatedResources(t.Context())
				if streamErr != nil {
					t.Fatal(streamErr)
				}
				if err := g.Send(&discoveryv3.DiscoveryRequest{Node: node(nil), ResourceNames: []string{"c"}}); err != nil {
					t.Fatal(err)
				}
				_, err = g.Recv()
			}
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "type_url") {
				t.Errorf("got %v, want that a type_url is missing", err)
			}
			wait.Until(t, "the refusal is logged", func() bool { return strings.Contains(log.String(), "request without a type_url") })
		})
	}
}

// unreadable is a stream whose client sends what gRPC cannot take apart.
type unreadable struct{ grpc.ServerStream }

func (unreadable) RecvMsg(any) error {
	return status.Error(codes.Internal, "grpc: received unexpected payload format 127")
}

// What a client has sent is no error of the server: it is refused, and logged as other refusals are.
func TestAMessageThatGRPCCannotReadIsRefused(t *testing.T) {
	var log wait.Output
	c := dialIntercepted(t, New(&oneClass{latest: NewLatestView(&View{})}, textLog(&log), nil), func(srv any, g grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		return next(srv, unreadable{g})
	})
	for range 20 {
		if _, err := open(t, c).Recv(); status.Code(err) != codes.InvalidArgument {
			t.Fatalf("got %v, want that the message cannot be read", err)
		}
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "reason=request") {
		t.Errorf("want one line about a refusal, got\n%s", text)
	}
}

// A client that refuses the table of names and asks for it again does not fill the log, nor does one that refuses the trust bundle.
func TestRefusalsOfOtherTypesAreLoggedAtAPace(t *testing.T) {
	for _, url := range []string{mesh.NameTableType, mesh.TrustBundleType} {
		t.Run(url, func(t *testing.T) {
			var log wait.Output
			s := New(&oneClass{latest: NewLatestView((&View{}).At(1))}, textLog(&log), nil)
			if err := s.SetTrust(bundle()); err != nil {
				t.Fatal(err)
			}
			g := open(t, dial(t, s, nil))
			ask(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), TypeUrl: url})
			for range 3 * logLimitLines {
				m, err := g.Recv()
				if err != nil {
					t.Fatal(err)
				}
				ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: url, ResponseNonce: m.GetNonce(), ErrorDetail: &rpcstatus.Status{Message: "no"}})
				ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: url})
			}
			if m, err := g.Recv(); err != nil { // all refusals have been handled
				t.Fatalf("got %v, %v", m, err)
			}
			if n := strings.Count(log.String(), "msg=\"agent refused"); n != logLimitLines {
				t.Errorf("%d lines about refusals, want %d", n, logLimitLines)
			}
		})
	}
}

// A client that opens streams in a loop does not fill the log: as many streams as are served at a time are logged at once, and
// the others are counted.
func TestStreamsAreLoggedAtAPace(t *testing.T) {
	const served = 4
	var log wait.Output
	s := New(&oneClass{latest: NewLatestView(&View{})}, textLog(&log), nil)
	s.Limit(Limits{Streams: served})
	c := dial(t, s, nil)
	for range 5 * served {
		g := open(t, c)
		ask(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), TypeUrl: noSuchURL})
		if m, err := g.Recv(); err != nil {
			t.Fatalf("got %v, %v, want an answer", m, err)
		}
		if err := g.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if m, err := g.Recv(); !errors.Is(err, io.EOF) {
			t.Fatalf("got %v, %v, want the end of the stream", m, err)
		}
	}
	for _, line := range []string{"proxy connected", "proxy disconnected", "proxy asks for a type that is not served"} {
		if n := strings.Count(log.String(), "msg=\""+line+"\""); n != served {
			t.Errorf("%d lines %q, want %d", n, line, served)
		}
	}
}

func TestStreamLog(t *testing.T) {
	var l streamLog
	now := time.Unix(1e9, 0)
	logged := func(streams int) (n, suppressed int) {
		for range streams {
			if before, ok := l.allow(now, 1000); ok {
				n, suppressed = n+1, suppressed+before
			}
		}
		return n, suppressed
	}
	for _, want := range []struct {
		after                       time.Duration
		streams, logged, suppressed int
	}{
		{0, 1000, 1000, 0}, // all come at once
		{0, 500, 0, 0},
		{10 * time.Second, 500, 10, 500},
		{streamLogRecovery, 2000, 1000, 490}, // all come back
	} {
		now = now.Add(want.after)
		if n, suppressed := logged(want.streams); n != want.logged || suppressed != want.suppressed {
			t.Errorf("after %s: %d of %d streams are logged, %d suppressed before; want %d and %d", want.after, n, want.streams, suppressed, want.logged, want.suppressed)
		}
	}
}
