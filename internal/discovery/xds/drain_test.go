package xds

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Streams end within the time, not all at once; until then each is served.
func TestDrainSpreadsTheEndsOfStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const within = 10 * time.Second
		latest := NewLatestView(meshView(1, "one"))
		s := New(&oneClass{latest: latest}, quiet(t), nil)
		c := dial(t, s, nil)
		ends := make(chan time.Time, 32)
		for range cap(ends) {
			g := open(t, c)
			ask(t, g, first(node(nil)))
			if _, err := g.Recv(); err != nil {
				t.Fatal(err)
			}
			go func() {
				var err error
				for err == nil {
					_, err = g.Recv()
				}
				if status.Code(err) != codes.Unavailable {
					t.Errorf("ended with %v, want Unavailable", err)
				}
				ends <- time.Now()
			}()
		}
		silent := open(t, c)
		synctest.Wait()
		began := time.Now()
		s.Drain(within)
		if _, err := silent.Recv(); status.Code(err) != codes.Unavailable || !time.Now().Equal(began) {
			t.Errorf("a stream without a request ended with %v after %s, want Unavailable at once", err, time.Since(began))
		}
		if _, err := open(t, c).Recv(); status.Code(err) != codes.Unavailable || !time.Now().Equal(began) {
			t.Errorf("a new stream ended with %v after %s, want Unavailable at once", err, time.Since(began))
		}
		times := map[time.Time]bool{}
		for range cap(ends) {
			end := <-ends
			times[end] = true
			if end.Sub(began) > within {
				t.Errorf("ended after %s, want at most %s", end.Sub(began), within)
			}
		}
		if len(times) < cap(ends)/2 {
			t.Errorf("%d streams ended at %d different times", cap(ends), len(times))
		}
	})
}

// A connection that never spoke would keep gRPC from telling the others to go until its handshake times out.
func TestDrainClosesConnectionsThatHaveNotSpoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(&oneClass{latest: NewLatestView(&View{})}, quiet(t), nil)
		l := bufconn.Listen(1 << 20)
		server := grpc.NewServer(serverOptions(s)...)
		s.Register(server, nil)
		served := make(chan error, 1)
		go func() { served <- server.Serve(s.Listen(l)) }()
		conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		g := open(t, discoveryv3.NewAggregatedDiscoveryServiceClient(conn))
		ask(t, g, first(node(nil)))
		if _, err := g.Recv(); err != nil {
			t.Fatal(err)
		}
		for _, said := range []string{"", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x06"} {
			mute, err := l.Dial()
			if err != nil {
				t.Fatal(err)
			}
			defer mute.Close()
			go func() {
				_, _ = mute.Write([]byte(said))
				for b := make([]byte, 64); ; { // until it is closed
					if _, err := mute.Read(b); err != nil {
						return
					}
				}
			}()
		}
		synctest.Wait()
		began := time.Now()
		s.Drain(0)
		server.GracefulStop()
		if d := time.Since(began); d >= handshakeLimit {
			t.Errorf("stopped after %s", d)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		if _, err := g.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("the stream ended with %v, want Unavailable", err)
		}
	})
}

// A client that reads nothing can delay neither the end of the server nor that of its certificate.
func TestStreamsOfClientsThatDoNotReadEnd(t *testing.T) {
	web := mesh.Identity{TrustDomain: "td", Namespace: "shop", ServiceAccount: "web"}
	for name, drain := range map[string]bool{"when the server stops": true, "when the certificate has expired": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				s := New(&oneClass{latest: NewLatestView(meshView(1, strings.Repeat("x", 1<<20)))}, quiet(t), nil)
				g := open(t, dial(t, s, func(context.Context) (mesh.Identity, time.Time, error) { return web, began.Add(time.Hour), nil }))
				ask(t, g, first(node(nil)))
				ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: EDS.URL(), ResourceNamesSubscribe: []string{"*"}})
				synctest.Wait()
				end := began.Add(time.Hour)
				if drain {
					end = began.Add(10 * time.Second)
					s.Drain(10 * time.Second)
				}
				<-time.After(time.Until(end))
				synctest.Wait()
				for len(s.Connections()) > 0 && time.Since(end) < time.Hour {
					<-time.After(time.Second)
					synctest.Wait()
				}
				if late := time.Since(end); late > endingLimit+time.Second {
					t.Errorf("ended %s after its time", late)
				}
			})
		})
	}
}
