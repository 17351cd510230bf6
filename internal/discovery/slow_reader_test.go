package discovery

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/test/wait"
)

// manyServices is the YAML of services whose clusters are more than a client that does not read can be sent.
func manyServices(n int) string {
	var out strings.Builder
	for i := range n {
		fmt.Fprintf(&out, "---\napiVersion: v1\nkind: Service\nmetadata: {name: s%d, namespace: shop}\nspec: {clusterIP: 10.97.%d.%d, ports: [{name: http, port: 9081}]}\n", i, i/250, i%250+1)
	}
	return out.String()
}

// One of 200 proxies reads nothing. All others get every change; for the one no more is held than one response of
// each type, whatever changes, and once it reads, it gets the newest.
func TestSlowReaderAmongManyDelaysNobody(t *testing.T) {
	const proxies, changes = 200, 10
	p := start(t)
	p.emit(shop+manyServices(150)+"---\n"+route("{name: first, route: [{destination: {host: reviews}}]}"), true)
	conn, err := grpc.NewClient(p.addr.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	slow, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	one := &crowd{t: t}
	for _, r := range one.subscriptions("reviews", proxies) {
		if err := slow.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	others := p.joinMany("reviews", proxies, "")
	others.await("9080", "first")
	state := func() (xds.Connection, bool) {
		for _, c := range p.server.xds.Connections() {
			if strings.Contains(c.Node.ID, fmt.Sprint("reviews-", proxies)) {
				return c, true
			}
		}
		return xds.Connection{}, false
	}
	wait.Until(t, "something is sent to the slow reader", func() bool { c, _ := state(); return c.Sent > 0 })
	for i := range changes {
		name, address := fmt.Sprintf("change-%02d", i), fmt.Sprintf("10.99.8.%d", i+1)
		p.emit(route("{name: "+name+", route: [{destination: {host: reviews}}]}"), false)
		p.emit("apiVersion: v1\nkind: Pod\nmetadata: {name: reviews-1, namespace: shop, labels: {app: reviews}}\nstatus: {phase: Running, podIP: "+address+"}\n", false)
		others.await("9080", name)
		others.await("outbound|9080||reviews.shop.svc.cluster.local", address)
		c, connected := state()
		if !connected {
			t.Fatal("the slow reader is not connected")
		}
		for typ, s := range c.Types {
			if s.AckedNonce != "" {
				t.Fatalf("the slow reader has answered %s", typ)
			}
		}
	}
	var responses atomic.Int64
	m := &member{have: map[string]string{}, refused: map[string]int{}}
	go func() {
		for {
			r, err := slow.Recv()
			if err != nil {
				return
			}
			// What was under way while it did not read.
			if c, connected := state(); connected && c.Types[xds.CDS].AckedNonce == "" {
				responses.Add(1)
			}
			if slow.Send(one.answer(r, m)) != nil {
				return
			}
		}
	}()
	one.members = []*member{m}
	one.await("9080", fmt.Sprintf("change-%02d", changes-1))
	one.await("outbound|9080||reviews.shop.svc.cluster.local", fmt.Sprintf("10.99.8.%d", changes))
	c, _ := state()
	if n := responses.Load(); n == 0 || n > int64(len(c.Types)) {
		t.Errorf("%d responses were under way, want at most one of each of %d types", n, len(c.Types))
	}
}
