package xds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

const nodeID = "sidecar~10.1.2.3~web-1.shop~shop.svc.cluster.local"

type deltaStream = discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient

// dial serves s in memory and returns a client of it.
func dial(t testing.TB, s *Server, auth Authenticate) discoveryv3.AggregatedDiscoveryServiceClient {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	stop := serveOn(t, l, s, auth)
	c, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(); stop() })
	return discoveryv3.NewAggregatedDiscoveryServiceClient(c)
}

func open(t testing.TB, c discoveryv3.AggregatedDiscoveryServiceClient) deltaStream {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	g, err := c.DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func node(metadata map[string]any) *corev3.Node {
	md, err := structpb.NewStruct(metadata)
	if err != nil {
		panic(err)
	}
	return &corev3.Node{Id: nodeID, Metadata: md, UserAgentName: "envoy", UserAgentVersionType: &corev3.Node_UserAgentVersion{UserAgentVersion: "1.40.0"},
		Locality: &corev3.Locality{Region: "r", Zone: "z"}, Extensions: []*corev3.Extension{{Name: "envoy.filters.http.fault"}}}
}

func ask(t testing.TB, g deltaStream, r *discoveryv3.DeltaDiscoveryRequest) {
	t.Helper()
	if err := g.Send(r); err != nil {
		t.Fatal(err)
	}
}

// refusedWith is the status that ends a stream whose first request is r.
func refusedWith(t *testing.T, s *Server, auth Authenticate, r *discoveryv3.DeltaDiscoveryRequest) *status.Status {
	t.Helper()
	g := open(t, dial(t, s, auth))
	_ = g.Send(r) // a stream that has been refused already says so to its reader
	m, err := g.Recv()
	if err == nil {
		t.Fatalf("got an answer: %v", m)
	}
	return status.Convert(err)
}

func first(n *corev3.Node) *discoveryv3.DeltaDiscoveryRequest {
	return &discoveryv3.DeltaDiscoveryRequest{Node: n, TypeUrl: CDS.URL()}
}

func TestStreamIsRefusedWithAReason(t *testing.T) {
	shop := as(mesh.Identity{TrustDomain: "td", Namespace: "shop", ServiceAccount: "web"})
	unsynced := status.Error(codes.Unavailable, "sources have not synced")
	tooMany := first(node(nil))
	tooMany.ResourceNamesSubscribe = slices.Repeat([]string{"x"}, maxRequestNames+1)
	for _, c := range []struct {
		name string
		auth Authenticate
		join error
		req  *discoveryv3.DeltaDiscoveryRequest
		code codes.Code
		says []string
	}{
		{"no node", nil, nil, first(nil), codes.InvalidArgument, []string{"without a node"}},
		{"bad node id", nil, nil, first(&corev3.Node{Id: "web-1"}), codes.InvalidArgument, []string{"web-1", "four parts"}},
		{"bad metadata", nil, nil, first(node(map[string]any{"INSTANCE_IPS": "nonsense"})), codes.InvalidArgument, []string{"INSTANCE_IPS", nodeID}},
		{"too many names", nil, nil, tooMany, codes.InvalidArgument, []string{"at most"}},
		{"not synced", nil, unsynced, first(node(nil)), codes.Unavailable, []string{"have not synced"}},
		{"other error", nil, errors.New("no class"), first(node(nil)), codes.Unavailable, []string{"no class"}},
		{"nobody", func(context.Context) (mesh.Identity, time.Time, error) {
			return mesh.Identity{}, time.Time{}, errors.New("no token")
		}, nil,
			first(node(nil)), codes.Unauthenticated, []string{"no token"}},
		{"other namespace", shop, nil, first(node(map[string]any{"NAMESPACE": "bank"})), codes.PermissionDenied, []string{`"bank"`, "spiffe://td/ns/shop/sa/web"}},
		{"id of another namespace", shop, nil, first(&corev3.Node{Id: "sidecar~10.1.2.3~web-1.bank~shop.svc.cluster.local", Metadata: node(map[string]any{"NAMESPACE": "shop"}).Metadata}),
			codes.PermissionDenied, []string{`"web-1.bank"`, "spiffe://td/ns/shop/sa/web"}},
		{"other account", shop, nil, first(node(map[string]any{"SERVICE_ACCOUNT": "root"})), codes.PermissionDenied, []string{`"root"`, "spiffe://td/ns/shop/sa/web"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := New(&oneClass{latest: NewLatestView(&View{}), err: c.join}, quiet(t), nil)
			st := refusedWith(t, s, c.auth, c.req)
			if st.Code() != c.code {
				t.Errorf("ended with %s, want %s", st, c.code)
			}
			for _, w := range c.says {
				if !strings.Contains(st.Message(), w) {
					t.Errorf("message %q does not say %q", st.Message(), w)
				}
			}
		})
	}
}

func TestRegistryLearnsTheNodeAndItsEnd(t *testing.T) {
	others := goleak.IgnoreCurrent()
	t.Cleanup(func() { wait.NoError(t, "all goroutines have ended", func() error { return goleak.Find(others) }) })
	reg := &oneClass{latest: NewLatestView((&View{}).At(4))}
	s := New(reg, quiet(t), nil)
	web := mesh.Identity{TrustDomain: "td", Namespace: "shop", ServiceAccount: "web"}
	g := open(t, dial(t, s, as(web)))
	ask(t, g, first(node(map[string]any{"SERVICE_ACCOUNT": "web", "DNS_CAPTURE": "true"})))
	if _, err := g.Recv(); err != nil {
		t.Fatal(err)
	}
	reg.mu.Lock()
	n := reg.seen[0]
	reg.mu.Unlock()
	if n.String() != nodeID || !n.Metadata.DNSCapture || !n.Extensions["envoy.filters.http.fault"] || n.UserAgent != "envoy/1.40.0" || n.Locality.String() != "r/z" {
		t.Errorf("joined as %+v", n)
	}
	c := s.Connections()
	if len(c) != 1 || c[0].ID != "web-1.shop-1" || c[0].Identity != web || c[0].Sent != 4 || !c[0].Delta {
		t.Errorf("connections %+v", c)
	}
	if err := g.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the client's end got %v, want the end", err)
	}
	wait.Until(t, "the connection forgotten", func() bool {
		reg.mu.Lock()
		defer reg.mu.Unlock()
		return reg.gone == 1 && len(s.Connections()) == 0
	})
}

func TestTypesThatAreNotServedDoNoHarm(t *testing.T) {
	s := New(&oneClass{latest: NewLatestView(&View{})}, quiet(t), nil)
	g := open(t, dial(t, s, nil))
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), TypeUrl: "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig"})
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: LDS.URL()})
	if m, err := g.Recv(); err != nil || m.GetTypeUrl() != LDS.URL() {
		t.Errorf("got %v, %v, want listeners", m, err)
	}
}

func TestRefusalsAndPushesAreCounted(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := New(&oneClass{latest: NewLatestView(&View{})}, quiet(t), reg)
	g := open(t, dial(t, s, nil))
	ask(t, g, first(node(nil)))
	m, err := g.Recv()
	if err != nil {
		t.Fatal(err)
	}
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: CDS.URL(), ResponseNonce: "stale"})
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: CDS.URL(), ResponseNonce: m.GetNonce(), ErrorDetail: &rpcstatus.Status{Message: strings.Repeat("x", 5000)}})
	wait.Until(t, "the refusal", func() bool { return s.Connections()[0].Types[CDS].Rejects == 1 })
	if n := len(s.Connections()[0].Types[CDS].Message); n != maxMessage {
		t.Errorf("kept %d bytes of a message, want %d", n, maxMessage)
	}
	wait.NoError(t, "everything is counted", func() error {
		fs, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range fs {
			for _, m := range f.GetMetric() {
				got[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
		for _, name := range []string{"pilot_xds", "pilot_xds_pushes", "pilot_xds_cds_reject", "pilot_total_xds_rejects", "pilot_xds_expired_nonce"} {
			if got[name] != 1 {
				return fmt.Errorf("%s = %v, want 1", name, got[name])
			}
		}
		return nil
	})
}

// A client that never acknowledges clusters is sent listeners after 5 s all the same.
func TestHoldEndsByTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := (&View{}).put(NewResource(CDS, "a", nil), naming(NewResource(LDS, "l", nil), "a"))
		s := New(&oneClass{latest: NewLatestView(v)}, quiet(t), nil)
		g := open(t, dial(t, s, nil))
		began := time.Now()
		ask(t, g, first(node(nil)))
		ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: LDS.URL()})
		for _, want := range []Type{CDS, LDS} {
			if m, err := g.Recv(); err != nil || m.GetTypeUrl() != want.URL() {
				t.Fatalf("got %v, %v, want %s", m, err, want)
			}
		}
		if d := time.Since(began); d < holdLimit || d > holdLimit+time.Second {
			t.Errorf("listeners after %s, want %s", d, holdLimit)
		}
	})
}
