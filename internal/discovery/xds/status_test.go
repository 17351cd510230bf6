package xds

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// metricValue is the value of a metric without labels.
func metricValue(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// Responses that are not acknowledged for 10 s are shown, counted, and logged once.
func TestAProxyThatDoesNotAcknowledgeIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said, reg := &record{}, prometheus.NewRegistry()
		s := New(&oneClass{latest: NewLatestView((&View{}).put(NewResource(CDS, "a", nil), naming(NewResource(LDS, "l", nil), "a")))}, slog.New(slog.NewTextHandler(said, nil)), reg)
		g := open(t, dial(t, s, nil))
		receive := func() string {
			m, err := g.Recv()
			if err != nil {
				t.Fatal(err)
			}
			return m.GetNonce()
		}
		lines := func(what string) int { return strings.Count(said.String(), what) }
		expect := func(when string, gone, back int, stuck float64, types ...Type) {
			t.Helper()
			synctest.Wait()
			if n, m := lines("proxy does not acknowledge"), lines("proxy acknowledges again"); n != gone || m != back {
				t.Errorf("%s: %d lines about a stuck proxy and %d about the end of that, want %d and %d:\n%s", when, n, m, gone, back, said)
			}
			if v := metricValue(t, reg, "pilothouse_xds_stuck"); v != stuck {
				t.Errorf("%s: pilothouse_xds_stuck is %v, want %v", when, v, stuck)
			}
			got := s.Connections()[0]
			for _, typ := range Types() {
				want := false
				for _, t := range types {
					want = want || t == typ
				}
				if got.Types[typ].Stuck.IsZero() == want {
					t.Errorf("%s: %s is stuck since %v, want stuck: %v", when, typ, got.Types[typ].Stuck, want)
				}
			}
		}
		ask(t, g, first(node(nil)))
		clusters := receive()
		ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: LDS.URL()})
		listeners := receive() // after 5 s
		<-time.After(stuckAfter - holdLimit - time.Millisecond)
		expect("just before", 0, 0, 0)
		<-time.After(2 * time.Millisecond)
		expect("after 10 s", 1, 0, 1, CDS)
		<-time.After(time.Minute)
		expect("after another minute", 1, 0, 1, CDS, LDS)
		ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: LDS.URL(), ResponseNonce: listeners})
		expect("with one of two", 1, 0, 1, CDS)
		ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: CDS.URL(), ResponseNonce: clusters, ErrorDetail: &rpcstatus.Status{Message: "a: no"}})
		expect("with both", 1, 1, 0)
		if c := s.Connections()[0]; c.Applied != 0 {
			t.Errorf("generation %d applied of what was refused", c.Applied)
		}
	})
}

// Of proxies that are all stuck at once, some are logged, and of these only that they acknowledge again.
func TestManyStuckProxiesDoNotFillTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const streams = 3 * logLimitLinesAll
		said, reg := &record{}, prometheus.NewRegistry()
		class := &oneClass{latest: NewLatestView((&View{}).put(NewResource(CDS, "a", nil)))}
		s := New(class, slog.New(slog.NewTextHandler(said, nil)), reg)
		type proxy struct {
			stream deltaStream
			nonce  string
		}
		var all []proxy
		receive := func(p *proxy) {
			m, err := p.stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			p.nonce = m.GetNonce()
		}
		answer := func(p proxy) {
			ask(t, p.stream, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: CDS.URL(), ResponseNonce: p.nonce})
		}
		var conn discoveryv3.AggregatedDiscoveryServiceClient
		for i := range streams {
			if i%50 == 0 { // there is a limit for each
				conn = dial(t, s, nil)
			}
			p := proxy{stream: open(t, conn)}
			n := node(nil)
			n.Id = fmt.Sprintf("sidecar~10.1.2.3~web-%d.shop~shop.svc.cluster.local", i)
			ask(t, p.stream, first(n))
			receive(&p)
			all = append(all, p)
		}
		expect := func(when string, gone, back int, stuck float64) {
			t.Helper()
			synctest.Wait()
			if n, m := strings.Count(said.String(), "proxy does not acknowledge"), strings.Count(said.String(), "proxy acknowledges again"); n != gone || m != back {
				t.Errorf("%s: %d lines about stuck proxies and %d about the end of that, want %d and %d", when, n, m, gone, back)
			}
			if v := metricValue(t, reg, "pilothouse_xds_stuck"); v != stuck {
				t.Errorf("%s: pilothouse_xds_stuck is %v, want %v", when, v, stuck)
			}
		}
		<-time.After(stuckAfter + time.Second)
		expect("all are stuck", logLimitLinesAll, 0, streams)
		for _, p := range all {
			answer(p)
		}
		expect("all acknowledge", logLimitLinesAll, logLimitLinesAll, 0)
		<-time.After(logLimitPeriod)
		class.latest.Publish((&View{}).put(NewResource(CDS, "a", []byte("1"))))
		receive(&all[0])
		<-time.After(stuckAfter + time.Second)
		synctest.Wait()
		if want := fmt.Sprintf("suppressed_of_all_proxies=%d", streams-logLimitLinesAll); !strings.Contains(said.String(), want) {
			t.Errorf("no line has %s", want)
		}
	})
}

// A refusal is shown until nothing that was refused is left.
func TestARefusalIsShownWhileItStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := (&View{}).put(NewResource(LDS, "l", []byte("1")))
		class := &oneClass{latest: NewLatestView(v)}
		s := New(class, quiet(t), nil)
		g := open(t, dial(t, s, nil))
		answer := func(r *discoveryv3.DeltaDiscoveryRequest) {
			m, err := g.Recv()
			if err != nil {
				t.Fatal(err)
			}
			r.TypeUrl, r.ResponseNonce = m.GetTypeUrl(), m.GetNonce()
			ask(t, g, r)
			synctest.Wait()
		}
		refused := func() string { return s.Connections()[0].Types[LDS].Message }
		ask(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), TypeUrl: LDS.URL()})
		answer(&discoveryv3.DeltaDiscoveryRequest{ErrorDetail: &rpcstatus.Status{Message: "l: bad"}})
		if refused() != "l: bad" {
			t.Errorf("refused because of %q", refused())
		}
		v = v.put(NewResource(LDS, "m", []byte("1")))
		class.latest.Publish(v)
		answer(&discoveryv3.DeltaDiscoveryRequest{})
		if refused() != "l: bad" {
			t.Errorf("with another listener accepted, refused because of %q", refused())
		}
		v = v.put(NewResource(LDS, "l", []byte("2")))
		class.latest.Publish(v)
		answer(&discoveryv3.DeltaDiscoveryRequest{})
		if c := s.Connections()[0]; refused() != "" || c.Types[LDS].Rejects != 1 || c.Applied != v.Generation {
			t.Errorf("with everything accepted: %+v", c)
		}
	})
}

// The last refusal stays known when the proxy has accepted a later version.
func TestTheLastRefusalIsKept(t *testing.T) {
	c := newConnection(t.Context(), "a-1", mesh.Node{}, mesh.Identity{}, true)
	at := time.Unix(1, 0)
	c.nacked(Nacked{Type: LDS, Nonce: "1", Names: []string{"bad"}, Message: "no such filter"}, at)
	c.acked(Acked{Type: LDS, Nonce: "2"})
	if s := c.types[LDS]; s.Message != "" || s.LastMessage != "no such filter" || !s.LastRejected.Equal(at) {
		t.Errorf("%+v", s)
	}
}
