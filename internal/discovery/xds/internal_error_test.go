package xds

import (
	"context"
	"net"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// The gRPC server lacks the options that it must have been made with.
func TestInternalErrorsAreCounted(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := New(&oneClass{latest: NewLatestView(&View{})}, quiet(t), reg)
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	s.Register(server, nil)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := open(t, discoveryv3.NewAggregatedDiscoveryServiceClient(conn)).Recv(); status.Code(err) != codes.Internal {
		t.Fatalf("ended with %v, want Internal", err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "pilot_total_xds_internal_errors" && f.GetMetric()[0].GetCounter().GetValue() == 1 {
			return
		}
	}
	t.Error("it is not counted")
}
