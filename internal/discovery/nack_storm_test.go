package discovery

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

// crowd is many proxies of one application, each with a node of its own.
type crowd struct {
	t *testing.T
	// refuses is part of every resource that the proxies refuse; empty for none.
	refuses string
	members []*member
}

// member is a proxy of a crowd, which receives until its stream ends.
type member struct {
	mu      sync.Mutex
	have    map[string]string // name → body
	refused map[string]int    // how many responses with such a body it has refused, by what is bad in it
}

// streamsPerConnection is how many proxies of a crowd share a connection.
const streamsPerConnection = 50

// joinMany adds proxies to the plane, all of one application.
func (p *plane) joinMany(app string, n int, refuses string) *crowd {
	p.t.Helper()
	c := &crowd{t: p.t, refuses: refuses}
	var conn *grpc.ClientConn
	for i := range n {
		if i%streamsPerConnection == 0 {
			var err error
			if conn, err = grpc.NewClient(p.addr.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
				p.t.Fatal(err)
			}
			p.t.Cleanup(func() { _ = conn.Close() })
		}
		g, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(p.t.Context())
		if err != nil {
			p.t.Fatal(err)
		}
		m := &member{have: map[string]string{}, refused: map[string]int{}}
		c.members = append(c.members, m)
		for _, r := range c.subscriptions(app, i) {
			if err := g.Send(r); err != nil {
				p.t.Fatal(err)
			}
		}
		go c.receive(g, m)
	}
	return c
}

// subscriptions are the first requests of a proxy.
func (c *crowd) subscriptions(app string, number int) []*discoveryv3.DeltaDiscoveryRequest {
	c.t.Helper()
	meta, err := structpb.NewStruct(map[string]any{"NAMESPACE": "shop", "LABELS": map[string]any{"app": app}, "SERVICE_ACCOUNT": "default"})
	if err != nil {
		c.t.Fatal(err)
	}
	node := &corev3.Node{Id: fmt.Sprintf("sidecar~10.98.%d.%d~%s-%d.shop~shop.svc.cluster.local", number/250, number%250+1, app, number), Metadata: meta}
	return []*discoveryv3.DeltaDiscoveryRequest{
		{TypeUrl: xds.CDS.URL(), ResourceNamesSubscribe: []string{"*"}, Node: node},
		{TypeUrl: xds.EDS.URL(), ResourceNamesSubscribe: []string{"outbound|9080||reviews.shop.svc.cluster.local"}},
		{TypeUrl: xds.LDS.URL(), ResourceNamesSubscribe: []string{"*"}},
		{TypeUrl: xds.RDS.URL(), ResourceNamesSubscribe: []string{"9080"}},
	}
}

func (c *crowd) receive(g grpc.BidiStreamingClient[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse], m *member) {
	for {
		r, err := g.Recv()
		if err != nil {
			return
		}
		if g.Send(c.answer(r, m)) != nil {
			return
		}
	}
}

// answer takes a response as Envoy does: it takes what is good in what it refuses, too.
func (c *crowd) answer(r *discoveryv3.DeltaDiscoveryResponse, m *member) *discoveryv3.DeltaDiscoveryRequest {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce}
	for _, res := range r.Resources {
		body := string(res.Resource.Value)
		if at := strings.Index(body, c.refuses); c.refuses != "" && at >= 0 {
			bad := body[at:][:len(c.refuses)+2]
			m.refused[bad]++
			out.ErrorDetail = &rpcstatus.Status{Message: res.Name + ": " + bad + " is not valid"}
			continue
		}
		m.have[res.Name] = body
	}
	return out
}

// all says whether something holds for all proxies.
func (c *crowd) all(ok func(*member) bool) bool {
	for _, m := range c.members {
		m.mu.Lock()
		good := ok(m)
		m.mu.Unlock()
		if !good {
			return false
		}
	}
	return true
}

// await waits until all proxies have a resource with a text.
func (c *crowd) await(name, text string) {
	c.t.Helper()
	wait.Until(c.t, "all have "+name+" with "+text, func() bool {
		return c.all(func(m *member) bool { return strings.Contains(m.have[name], text) })
	})
}

// 200 proxies of a class refuse the same resource at once, again and again. What that costs the loop, the log and
// everybody else does not grow with their number.
func TestManyProxiesRefuseAtOnce(t *testing.T) {
	const proxies, rounds, linesAMinute = 200, 4, 100
	var log wait.Output
	var told, traced atomic.Int64
	p := start(t, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	p.emit(shop+"---\n"+route("{name: first, route: [{destination: {host: reviews}}]}"), true)
	l := p.server.loop
	l.ask(func() {
		tell, why := l.views.onRefusal, l.why
		l.views.onRefusal = func(id string) { told.Add(1); tell(id) }
		l.why = func(k compile.Key, most int) []object.Key { traced.Add(1); return why(k, most) }
	})
	bad := p.joinMany("reviews", proxies, "bad-")
	good := p.joinMany("other", 20, "")
	bad.await("9080", "first")
	good.await("9080", "first")
	generation := func() (g uint64) { l.ask(func() { g = l.views.generation }); return g }
	began, logged := time.Now(), 0
	for round := range rounds {
		before := generation()
		version := fmt.Sprintf("bad-%02d", round)
		p.emit(route("{name: "+version+", route: [{destination: {host: reviews}}]}"), false)
		wait.Until(t, "the quarantine", func() bool {
			_, body := p.get(p.addr.Monitoring, "/metrics") // which asks what the cause is
			return strings.Contains(body, `pilothouse_quarantined_resources{type="rds"} 1`)
		})
		good.await("9080", version)
		// Everything else goes on, for those that refuse too.
		address := fmt.Sprintf("10.99.7.%d", round+1)
		p.emit("apiVersion: v1\nkind: Pod\nmetadata: {name: reviews-1, namespace: shop, labels: {app: reviews}}\nstatus: {phase: Running, podIP: "+address+"}\n", false)
		for _, c := range []*crowd{bad, good} {
			c.await("outbound|9080||reviews.shop.svc.cluster.local", address)
		}
		reported := p.objects()
		if len(reported) != 1 || reported[0].Object != "VirtualService shop/reviews" || !strings.Contains(reported[0].Text, version) {
			t.Errorf("round %d: reported %+v, want the VirtualService once", round, reported)
		}
		// The route, the endpoint, and the quarantine.
		if n := generation() - before; n != 3 {
			t.Errorf("round %d: %d generations, want 3", round, n)
		}
		refused := 0
		for _, m := range bad.members {
			m.mu.Lock()
			if m.refused[version] > 1 {
				t.Errorf("round %d: a proxy was sent what it refuses %d times", round, m.refused[version])
			}
			refused += m.refused[version]
			m.mu.Unlock()
		}
		if logged += refused; refused < 2 {
			t.Errorf("round %d: %d proxies have refused what is in quarantine", round, refused)
		}
		// Of each refusal, once when it begins and once when the proxy has something else in its place, which may be
		// later than this round.
		if n := int(told.Load()); n > 2*logged {
			t.Errorf("round %d: the loop has been told %d times of %d refusals", round, n, logged)
		}
	}
	if n := traced.Load(); n > rounds {
		t.Errorf("traced %d times, want once for each of %d versions", n, rounds)
	}
	most := linesAMinute * (1 + int(time.Since(began)/time.Minute))
	if n := strings.Count(log.String(), "proxy refused configuration"); n == 0 || n > min(logged, most) {
		t.Errorf("%d lines about %d refusals, want at most %d", n, logged, most)
	}
	l.ask(func() {
		for _, c := range l.views.classes {
			if len(c.refused) > 1 {
				t.Errorf("%d refused resources are kept, want 1", len(c.refused))
			}
		}
		if len(l.traces) > 1 || len(l.views.layers.held) > 1 {
			t.Errorf("%d traces and %d layers are kept, want 1", len(l.traces), len(l.views.layers.held))
		}
	})
	p.emit(route("{name: mended, route: [{destination: {host: reviews}}]}"), false)
	bad.await("9080", "mended")
	good.await("9080", "mended")
	wait.Until(t, "the end of the quarantine", func() bool {
		code, body := p.get(p.addr.Monitoring, "/metrics")
		return code == http.StatusOK && strings.Contains(body, `pilothouse_quarantined_resources{type="rds"} 0`)
	})
	wait.Until(t, "nothing is reported", func() bool { return len(p.objects()) == 0 })
	l.ask(func() {
		for _, c := range l.views.classes {
			if len(c.refused) > 0 {
				t.Errorf("%d refused resources are kept after the end", len(c.refused))
			}
		}
		if len(l.traces) > 0 {
			t.Errorf("%d traces are kept after the end", len(l.traces))
		}
		for _, m := range l.views.proxies {
			if len(m.refuses) > 0 {
				t.Errorf("a proxy is listed with %d refusals after the end", len(m.refuses))
				break
			}
		}
	})
}
