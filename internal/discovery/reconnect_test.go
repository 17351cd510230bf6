package discovery

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/test/wait"
)

// returning is a proxy that keeps the versions of what it was sent, and comes back with them.
type returning struct {
	p        *plane
	versions map[xds.Type]map[string]string
}

// stream opens a stream, asks for everything with what the proxy has, and accepts what comes until the answer to fence,
// a name that it asks for last. It returns the size of the responses, in bytes, and how many resources were in them
// apart from fence.
func (r *returning) stream(t *testing.T, fence string) (bytes, resources int) {
	t.Helper()
	conn, err := grpc.NewClient(r.p.addr.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	send := func(q *discoveryv3.DeltaDiscoveryRequest) {
		q.Node = &corev3.Node{Id: "sidecar~10.99.0.1~s0-1.shop~shop.svc.cluster.local"}
		if err := stream.Send(q); err != nil {
			t.Fatal(err)
		}
	}
	for _, typ := range xds.Types() {
		q := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ.URL(), InitialResourceVersions: r.versions[typ]}
		if typ == xds.EDS || typ == xds.RDS {
			for n := range r.versions[typ] {
				q.ResourceNamesSubscribe = append(q.ResourceNamesSubscribe, n)
			}
		}
		send(q)
	}
	asked := map[string]bool{}
	for n := range r.versions[xds.EDS] {
		asked[n] = true
	}
	fenced := asked[fence]
	if fenced {
		send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.EDS.URL(), ResourceNamesSubscribe: []string{fence}})
	}
	for done := false; ; {
		m, err := stream.Recv()
		if err != nil {
			t.Fatalf("after %d resources: %v", resources, err)
		}
		bytes += proto.Size(m)
		var names []string
		typ, _ := xds.ParseType(m.GetTypeUrl())
		ack := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce()}
		for _, res := range m.GetResources() {
			r.versions[typ][res.GetName()] = res.GetVersion()
			if typ == xds.EDS && res.GetName() == fence {
				done = true
				continue
			}
			resources++
			if typ == xds.CDS && strings.HasPrefix(res.GetName(), "outbound|") && !asked[res.GetName()] {
				asked[res.GetName()] = true
				names = append(names, res.GetName())
			}
		}
		if len(names) > 0 {
			send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.EDS.URL(), ResourceNamesSubscribe: names})
		}
		send(ack)
		if done && (fenced || len(r.versions[xds.LDS]) > 0) {
			return bytes, resources
		}
	}
}

// All proxies leave and come back: nothing is compiled, and a proxy that has everything is sent next to nothing. What
// has changed while nobody was connected is what they are sent, and no more.
func TestProxiesComeBackForLittle(t *testing.T) {
	p := start(t)
	var mesh strings.Builder
	const services = 100
	for i := range services {
		fmt.Fprintf(&mesh, "apiVersion: v1\nkind: Service\nmetadata: {name: s%d, namespace: shop}\nspec: {clusterIP: 10.96.1.%d, selector: {app: s%d}, ports: [{name: http, port: 8080}]}\n---\n", i, i+1, i)
		fmt.Fprintf(&mesh, "apiVersion: v1\nkind: Pod\nmetadata: {name: s%d-1, namespace: shop, labels: {app: s%d}}\nstatus: {phase: Running, podIP: 10.99.0.%d}\n---\n", i, i, i+1)
	}
	p.emit(mesh.String(), true)
	const fence = "outbound|8080||s1.shop.svc.cluster.local"
	proxy := &returning{p: p, versions: map[xds.Type]map[string]string{}}
	for _, typ := range xds.Types() {
		proxy.versions[typ] = map[string]string{}
	}
	empty := func() {
		wait.Until(t, "nobody is connected", func() bool {
			v, _ := p.server.loop.viewsSnapshot()
			return len(v.proxies) == 0
		})
	}
	for len(proxy.versions[xds.EDS]) < services || len(proxy.versions[xds.LDS]) == 0 {
		proxy.stream(t, fence) // until it has got everything
		empty()
	}
	before, _ := p.server.loop.numbers()
	if bytes, n := proxy.stream(t, fence); n > 0 || bytes > 10<<10 {
		t.Errorf("a proxy that has everything is sent %d resources, %d bytes", n, bytes)
	}
	empty()
	after, _ := p.server.loop.numbers()
	for rule, s := range after.rules {
		if n := s.Runs - before.rules[rule].Runs; n > 0 && rule != "class" && rule != "claims" {
			t.Errorf("rule %q has run %d times for a proxy that came back", rule, n)
		}
	}
	p.emit("apiVersion: v1\nkind: Pod\nmetadata: {name: s7-2, namespace: shop, labels: {app: s7}}\nstatus: {phase: Running, podIP: 10.99.1.1}\n", false)
	old := proxy.versions[xds.EDS]["outbound|8080||s7.shop.svc.cluster.local"]
	if bytes, n := proxy.stream(t, fence); n != 1 || bytes > 10<<10 || proxy.versions[xds.EDS]["outbound|8080||s7.shop.svc.cluster.local"] == old {
		t.Errorf("after a change while nobody was connected %d resources of %d bytes are sent, want the changed assignment", n, bytes)
	}
}
