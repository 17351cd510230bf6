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
	"github.com/pilothouse/pilothouse/test/wait"
)

// singleServices are the services of single types, and what their methods are called after.
var singleServices = map[Type]struct{ name, things string }{
	CDS:  {"envoy.service.cluster.v3.ClusterDiscoveryService", "Clusters"},
	EDS:  {"envoy.service.endpoint.v3.EndpointDiscoveryService", "Endpoints"},
	ECDS: {"envoy.service.extension.v3.ExtensionConfigDiscoveryService", "ExtensionConfigs"},
	LDS:  {"envoy.service.listener.v3.ListenerDiscoveryService", "Listeners"},
	RDS:  {"envoy.service.route.v3.RouteDiscoveryService", "Routes"},
}

// dialConn is dial for clients of any service.
func dialConn(t testing.TB, s *Server, auth Authenticate, more ...grpc.ServerOption) *grpc.ClientConn {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	stop := serveOn(t, l, s, auth, more...)
	c, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(); stop() })
	return c
}

// dialIntercepted is dial with an interceptor of the server's streams.
func dialIntercepted(t testing.TB, s *Server, intercept grpc.StreamServerInterceptor) discoveryv3.AggregatedDiscoveryServiceClient {
	t.Helper()
	return discoveryv3.NewAggregatedDiscoveryServiceClient(dialConn(t, s, nil, grpc.StreamInterceptor(intercept)))
}

// openSingle opens a stream of one type.
func openSingle(t testing.TB, c *grpc.ClientConn, of Type, delta bool) grpc.ClientStream {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	flavour := "Stream"
	if delta {
		flavour = "Delta"
	}
	service := singleServices[of]
	g, err := c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/"+service.name+"/"+flavour+service.things)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func sendTo(t testing.TB, g grpc.ClientStream, m any) {
	t.Helper()
	if err := g.SendMsg(m); err != nil {
		t.Fatal(err)
	}
}

// meshView has a resource of each type, and refers to it from the one before.
func meshView(generation uint64, content string) *View {
	v := &View{}
	for _, r := range []*Resource{NewCluster("c", []byte(content), "c"), NewResource(EDS, "c", []byte(content)), NewResource(ECDS, "e", []byte(content)), NewResource(LDS, "l", []byte(content)), NewResource(RDS, "r", []byte(content))} {
		v = v.With(r.Type, []*Resource{r}, nil)
	}
	return v.At(generation)
}

var singleNames = map[Type]string{CDS: "c", EDS: "c", ECDS: "e", LDS: "l", RDS: "r"}

// A stream of one type is served at once whatever other types there are, from the start, after a
// reconnection and after changes. The clock stands still.
func TestStreamsOfOneTypeWaitForNoOther(t *testing.T) {
	for of := range VHDS { // which has no service of its own
		name := singleNames[of]
		t.Run(of.String()+" delta", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				latest := NewLatestView(meshView(1, "one"))
				s := New(&oneClass{latest: latest}, quiet(t), nil)
				g := openSingle(t, dialConn(t, s, nil), of, true)
				var subscribe []string
				if !types[of].wildcard {
					subscribe = []string{name}
				}
				// It comes back with something that has changed, and something that is gone.
				sendTo(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), ResourceNamesSubscribe: subscribe, InitialResourceVersions: map[string]string{name: "old"}})
				for generation := uint64(2); generation < 5; generation++ {
					var m discoveryv3.DeltaDiscoveryResponse
					if err := g.RecvMsg(&m); err != nil {
						t.Fatal(err)
					}
					if m.TypeUrl != of.URL() || len(m.Resources) != 1 || m.Resources[0].Name != name {
						t.Fatalf("got %v, want %s of %s", &m, name, of)
					}
					sendTo(t, g, &discoveryv3.DeltaDiscoveryRequest{ResponseNonce: m.Nonce})
					synctest.Wait()
					if c := s.Connections()[0]; c.Applied != generation-1 || c.Only != of.String() {
						t.Errorf("applied %d of %q, want %d of %s", c.Applied, c.Only, generation-1, of)
					}
					latest.Publish(meshView(generation, strings.Repeat("x", int(generation))))
				}
				if d := time.Since(began); d != 0 {
					t.Errorf("something waited: %s", d)
				}
			})
		})
		t.Run(of.String()+" state of the world", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				latest := NewLatestView(meshView(1, "one"))
				g := openSingle(t, dialConn(t, New(&oneClass{latest: latest}, quiet(t), nil), nil), of, false)
				r := &discoveryv3.DiscoveryRequest{Node: node(nil), TypeUrl: of.URL()}
				if !types[of].wildcard {
					r.ResourceNames = []string{name}
				}
				for generation := uint64(2); generation < 5; generation++ {
					sendTo(t, g, r)
					var m discoveryv3.DiscoveryResponse
					if err := g.RecvMsg(&m); err != nil {
						t.Fatal(err)
					}
					if m.TypeUrl != of.URL() || len(m.Resources) != 1 {
						t.Fatalf("got %v, want one resource of %s", &m, of)
					}
					r.ResponseNonce, r.VersionInfo, r.Node = m.Nonce, m.VersionInfo, nil
					latest.Publish(meshView(generation, strings.Repeat("x", int(generation))))
				}
				if d := time.Since(began); d != 0 {
					t.Errorf("something waited: %s", d)
				}
			})
		})
	}
}

// Resources are removed at once, since nothing is known of what refers to them; but not those that last.
func TestStreamsOfOneTypeAreToldOfRemovals(t *testing.T) {
	for of := range VHDS {
		if types[of].lasting {
			continue
		}
		t.Run(of.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				latest := NewLatestView(meshView(1, "one"))
				g := openSingle(t, dialConn(t, New(&oneClass{latest: latest}, quiet(t), nil), nil), of, true)
				sendTo(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), ResourceNamesSubscribe: []string{"*"}})
				var m discoveryv3.DeltaDiscoveryResponse
				if err := g.RecvMsg(&m); err != nil {
					t.Fatal(err)
				}
				sendTo(t, g, &discoveryv3.DeltaDiscoveryRequest{ResponseNonce: m.Nonce})
				latest.Publish((&View{}).At(2))
				m.Reset()
				if err := g.RecvMsg(&m); err != nil || len(m.RemovedResources) != 1 || m.RemovedResources[0] != singleNames[of] {
					t.Errorf("got %v, %v, want the removal of %s", &m, err, singleNames[of])
				}
				if d := time.Since(began); d != 0 {
					t.Errorf("something waited: %s", d)
				}
			})
		})
	}
}

// The rules of admission are those of the aggregated service.
func TestStreamsOfOneTypeAreAdmittedLikeOthers(t *testing.T) {
	shop := as(mesh.Identity{TrustDomain: "td", Namespace: "shop", ServiceAccount: "web"})
	for of, service := range singleServices {
		s := New(&oneClass{latest: NewLatestView(meshView(1, "one"))}, quiet(t), nil)
		conn := dialConn(t, s, shop)
		code := func(delta bool, m any) error {
			g := openSingle(t, conn, of, delta)
			_ = g.SendMsg(m) // the receiver gets the error
			return g.RecvMsg(&discoveryv3.DiscoveryResponse{})
		}
		if err := code(true, &discoveryv3.DeltaDiscoveryRequest{}); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "without a node") {
			t.Errorf("%s without a node: %v", of, err)
		}
		if err := code(false, &discoveryv3.DiscoveryRequest{Node: node(map[string]any{"NAMESPACE": "bank"})}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s as another namespace: %v", of, err)
		}
		other := (of + 1) % VHDS
		if err := code(true, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), TypeUrl: other.URL()}); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), of.URL()) {
			t.Errorf("%s asked for %s: %v", of, other, err)
		}
		if err := code(true, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), TypeUrl: debugSyncURL}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s asked for %s: %v", of, debugSyncURL, err)
		}
		err := conn.Invoke(t.Context(), "/"+service.name+"/Fetch"+service.things, &discoveryv3.DiscoveryRequest{Node: node(nil)}, &discoveryv3.DiscoveryResponse{})
		if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "Delta"+service.things) {
			t.Errorf("Fetch%s: %v, want Unimplemented and what to use", service.things, err)
		}
	}
}

func TestStreamsOfOneTypeEndWithTheirCertificateAndCountInTheQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		web := mesh.Identity{TrustDomain: "td", Namespace: "shop", ServiceAccount: "web"}
		s := New(&oneClass{latest: NewLatestView(meshView(1, "one"))}, quiet(t), nil)
		conn := dialConn(t, s, func(context.Context) (mesh.Identity, time.Time, error) { return web, began.Add(time.Hour), nil })
		var last grpc.ClientStream
		for i := range maxStreamsPerNode {
			last = openSingle(t, conn, Type(i%int(VHDS)), true)
			sendTo(t, last, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), ResourceNamesSubscribe: []string{"*"}})
			if err := last.RecvMsg(&discoveryv3.DeltaDiscoveryResponse{}); err != nil {
				t.Fatal(err)
			}
		}
		more := openSingle(t, conn, CDS, true)
		_ = more.SendMsg(&discoveryv3.DeltaDiscoveryRequest{Node: node(nil)}) // the receiver gets the error
		if err := more.RecvMsg(&discoveryv3.DeltaDiscoveryResponse{}); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("one stream more: %v, want ResourceExhausted", err)
		}
		if err := last.RecvMsg(&discoveryv3.DeltaDiscoveryResponse{}); status.Code(err) != codes.Unauthenticated || time.Since(began) < time.Hour {
			t.Errorf("after %s: %v, want Unauthenticated when the certificate has expired", time.Since(began), err)
		}
		wait.Until(t, "all streams have ended", func() bool { return len(s.Connections()) == 0 })
	})
}
