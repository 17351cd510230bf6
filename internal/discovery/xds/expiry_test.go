package xds

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// A stream ends with the certificate that authenticated it, whether it has had its first
// request or not.
func TestStreamsEndWithTheirCertificate(t *testing.T) {
	web := mesh.Identity{TrustDomain: "td", Namespace: "shop", ServiceAccount: "web"}
	for name, c := range map[string]struct {
		life  time.Duration
		first bool
	}{
		"in use":                   {time.Hour, true},
		"before its first request": {silenceLimit / 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				auth := func(context.Context) (mesh.Identity, time.Time, error) { return web, began.Add(c.life), nil }
				s := New(&oneClass{latest: NewLatestView(&View{})}, quiet(t), nil)
				g := open(t, dial(t, s, auth))
				if c.first {
					ask(t, g, first(node(nil)))
					if _, err := g.Recv(); err != nil {
						t.Fatal(err)
					}
					ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: CDS.URL(), ResponseNonce: "1"})
				}
				ended := make(chan error, 1)
				go func() { _, err := g.Recv(); ended <- err }()
				select {
				case err := <-ended:
					if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "certificate expired") {
						t.Errorf("ended with %v, want Unauthenticated and why", err)
					}
				case <-time.After(2 * c.life):
					t.Fatal("the stream outlives its certificate")
				}
				if d := time.Since(began); d < c.life || d > c.life+time.Second {
					t.Errorf("ended after %s, want %s", d, c.life)
				}
			})
		})
	}
}

// A connection whose certificate has expired cannot authenticate any more calls by it: it is
// closed when one is refused, so that the client connects with the new certificate.
func TestConnectionsOfExpiredCertificatesAreClosed(t *testing.T) {
	for name, c := range map[string]struct {
		until  time.Time
		closed bool
	}{
		"expired certificate": {time.Now().Add(-time.Minute), true},
		"no certificate":      {time.Time{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			auth := func(context.Context) (mesh.Identity, time.Time, error) {
				return mesh.Identity{}, c.until, status.Error(codes.Unauthenticated, "no")
			}
			l := bufconn.Listen(1 << 20)
			stop := serveOn(t, l, New(&oneClass{latest: NewLatestView(&View{})}, quiet(t), nil), auth)
			conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close(); stop() })
			if _, err := open(t, discoveryv3.NewAggregatedDiscoveryServiceClient(conn)).Recv(); status.Code(err) != codes.Unauthenticated {
				t.Fatalf("ended with %v", err)
			}
			if c.closed {
				wait.Until(t, "the connection is closed", func() bool { return conn.GetState() != connectivity.Ready })
				return
			}
			if _, err := open(t, discoveryv3.NewAggregatedDiscoveryServiceClient(conn)).Recv(); status.Code(err) != codes.Unauthenticated {
				t.Errorf("the next call ended with %v", err)
			}
		})
	}
}
