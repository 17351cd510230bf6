package discovery

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"

	"github.com/pilothouse/pilothouse/test/wait"
)

// greeter is a gRPC server whose answers have its name in a header. Of methods with status UNAVAILABLE it fails the first few.
type greeter struct {
	healthpb.UnimplementedHealthServer
	name  string
	fails chan struct{}
}

func (g greeter) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	select {
	case <-g.fails:
		return nil, status.Error(codes.Unavailable, "for this once")
	default:
	}
	return &healthpb.HealthCheckResponse{}, grpc.SetHeader(ctx, metadata.Pairs("server", g.name))
}

// serveGreeter starts one at an address of its own, and returns it with the port.
func serveGreeter(t *testing.T, name, address string) (greeter, int) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	g := greeter{name: name, fails: make(chan struct{}, 10)}
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, g)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return g, l.Addr().(*net.TCPAddr).Port
}

// proxylessBootstrap is the bootstrap of a gRPC library in the namespace shop.
func (p *plane) proxylessBootstrap(app string) []byte {
	return fmt.Appendf(nil, `{"xds_servers": [{"server_uri": %q, "channel_creds": [{"type": "insecure"}], "server_features": ["xds_v3"]}],
		"node": {"id": "sidecar~127.0.0.9~%[2]s-1.shop~shop.svc.cluster.local", "metadata": {"GENERATOR": "grpc", "NAMESPACE": "shop", "LABELS": {"app": %[2]q}}},
		"server_listener_resource_name_template": "xds.istio.io/grpc/lds/inbound/%%s"}`, "dns:///"+p.addr.GRPC, app)
}

// proxyless is a gRPC client in the namespace shop.
func (p *plane) proxyless(target string) healthpb.HealthClient {
	p.t.Helper()
	resolver, err := xds.NewXDSResolverWithConfigForTesting(p.proxylessBootstrap("client"))
	if err != nil {
		p.t.Fatal(err)
	}
	c, err := grpc.NewClient("xds:///"+target, grpc.WithResolvers(resolver), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = c.Close() })
	return healthpb.NewHealthClient(c)
}

// ask is the name of the server that answers, or the error's status.
func ask(t *testing.T, c healthpb.HealthClient, headers ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), headers...), wait.Bound)
	defer cancel()
	var header metadata.MD
	if _, err := c.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Header(&header)); err != nil {
		return status.Code(err).String()
	}
	return strings.Join(header.Get("server"), "")
}

const proxylessMesh = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, selector: {app: web}, ports: [{name: grpc, port: 7070, targetPort: %d}, {name: grpc-other, port: 7071, targetPort: %[1]d}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web, version: v1}}
status: {phase: Running, podIP: 127.0.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: web-2, namespace: shop, labels: {app: web, version: v2}}
status: {phase: Running, podIP: 127.0.0.2}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: shop}
spec: {host: web, subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]}
`

// TestProxylessClients has gRPC's own xDS client find services by all of their names, and follow routes, weights, retries and faults
// while they change, on one stream.
func TestProxylessClients(t *testing.T) {
	p := start(t)
	one, port := serveGreeter(t, "v1", "127.0.0.1:0")
	serveGreeter(t, "v2", "127.0.0.2:"+strconv.Itoa(port))
	p.emit(fmt.Sprintf(proxylessMesh, port), true)

	c := p.proxyless("web.shop.svc.cluster.local:7070")
	seen := map[string]bool{}
	wait.Until(t, "answers come from v1 and v2", func() bool {
		seen[ask(t, c)] = true
		return seen["v1"] && seen["v2"]
	})
	if len(seen) != 2 {
		t.Errorf("answers come from %v, want v1 and v2", seen)
	}
	for _, name := range []string{"web:7070", "web.shop:7070", "web.shop.svc:7071", "web.shop.svc.cluster.local:7071"} {
		if got := ask(t, p.proxyless(name)); got != "v1" && got != "v2" {
			t.Errorf("%s: %s", name, got)
		}
	}

	problems := func() (out string) {
		p.server.loop.ask(func() { out = fmt.Sprint(p.server.loop.allProblems()) })
		return out
	}
	if got := problems(); strings.Contains(got, "gRPC") {
		t.Errorf("problems before anything is not applied: %s", got)
	}
	began := time.Now()
	p.emit(`
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec:
  hosts: [web]
  http:
  - match: [{headers: {x-fault: {exact: "yes"}}}]
    fault: {abort: {percentage: {value: 100}, grpcStatus: RESOURCE_EXHAUSTED}}
    route: [{destination: {host: web}}]
  - match: [{headers: {x-version: {exact: v2}}}]
    route: [{destination: {host: web, subset: v2}}]
  - retries: {attempts: 3, retryOn: "unavailable,5xx"}
    headers: {request: {set: {x-a: b}}}
    route: [{destination: {host: web, subset: v1}, weight: 100}, {destination: {host: web, subset: v2}, weight: 0}]
`, true)
	wait.Until(t, "requests go to v1 only", func() bool {
		for range 10 {
			if ask(t, c) != "v1" {
				return false
			}
		}
		return true
	})
	t.Logf("new routes were in effect after %v", time.Since(began).Round(time.Millisecond))
	if got := problems(); !strings.Contains(got, "connected as proxies of their own: http.headers") {
		t.Errorf("problems: %s; want that http.headers is not applied", got)
	}
	if got := ask(t, c, "x-version", "v2"); got != "v2" {
		t.Errorf("by header: %s, want v2", got)
	}
	if got := ask(t, c, "x-fault", "yes"); got != "ResourceExhausted" {
		t.Errorf("with a fault: %s", got)
	}
	one.fails <- struct{}{}
	one.fails <- struct{}{}
	if got := ask(t, c); got != "v1" || len(one.fails) > 0 {
		t.Errorf("after two failures: %s, and %d failures are left", got, len(one.fails))
	}
	if got := ask(t, c, "x-version", "v2"); got != "v2" {
		t.Errorf("by header: %s, want v2", got)
	}
}
