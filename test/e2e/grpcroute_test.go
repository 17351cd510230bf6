package e2e_test

import (
	"fmt"
	"testing"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/wait"
)

// TestGRPCRouteToPortsWithoutProtocol makes calls of gRPC through a gateway to Services whose ports declare no protocol: the route says that
// they speak HTTP/2, with mutual TLS and without.
func TestGRPCRouteToPortsWithoutProtocol(t *testing.T) {
	g := startGRPCIn(t, "grpcroute", func(*meshup.Options) {})
	for header, want := range map[string]grpcAnswer{
		"":          {Server: "side-1", Client: "spiffe://cluster.local/ns/grpc/sa/edge"},
		"plain=yes": {Server: "plain-1"},
	} {
		var got grpcAnswer
		wait.Until(t, fmt.Sprintf("a call with header %q gets %v", header, want), func() bool {
			if now := g.ask("plain-1", "dns:///10.99.0.65:8080", 1, header)[0]; now != got {
				t.Logf("%+v", now)
				got = now
			}
			return got == want
		})
	}
}
