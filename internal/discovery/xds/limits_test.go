package xds

import (
	"fmt"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// big is a view of 7,000 clusters with endpoints.
func big() (*View, []string) {
	var cds, eds []*Resource
	var names []string
	for i := range 7000 {
		n := fmt.Sprintf("outbound|8080|subset-%04d|service-%04d.namespace-with-a-long-name-%d.svc.cluster.local", i, i, i%20)
		names = append(names, n)
		cds = append(cds, NewCluster(n, []byte("c"), n))
		eds = append(eds, NewResource(EDS, n, []byte("e")))
	}
	return (&View{Generation: 1}).With(CDS, cds, nil).With(EDS, eds, nil), names
}

func annotated() *corev3.Node {
	return node(map[string]any{"NAMESPACE": "shop", "LABELS": map[string]any{"app": "web"}, "ANNOTATIONS": map[string]any{"a": strings.Repeat("x", 256<<10)}})
}

// An Envoy with 7,000 clusters and all annotations that Kubernetes allows reconnects, and
// its successor of a hot restart with it on the same connection: first to what they have,
// then to a server that has something else under every name, then to one that has none.
func TestAnEnvoyAtTheLimitsReconnects(t *testing.T) {
	view, names := big()
	claims := func(of *View, typ Type) map[string]string {
		out := map[string]string{}
		for r := range of.Of(typ).All() {
			out[r.Name] = r.Version
		}
		return out
	}
	changed := &View{Generation: 2}
	for _, typ := range []Type{CDS, EDS} {
		var other []*Resource
		for r := range view.Of(typ).All() {
			c := NewResource(typ, r.Name, []byte("other"))
			c.Needs = r.Needs
			other = append(other, c)
		}
		changed = changed.With(typ, other, nil)
	}
	for what, c := range map[string]struct {
		view             *View
		envoys           int
		updates, removed int // of each type
	}{
		"nothing changed":    {view.put(NewCluster("one", nil, "")), 2, 1, 0},
		"everything changed": {changed, 2, 7000, 0},
		"nothing is left":    {(&View{Generation: 2}).put(NewCluster("one", nil, "")), 1, 1, 7000},
	} {
		t.Run(what, func(t *testing.T) {
			client := dial(t, New(everybody{NewLatestView(c.view)}, quiet(t), nil), nil)
			for range c.envoys {
				g := open(t, client)
				// One goroutine sends, as gRPC requires: it may have to wait until responses are read.
				requests := make(chan *discoveryv3.DeltaDiscoveryRequest, 10_000)
				defer close(requests)
				go func() {
					for r := range requests {
						_ = g.Send(r) // Recv returns the error
					}
				}()
				requests <- &discoveryv3.DeltaDiscoveryRequest{Node: annotated(), TypeUrl: CDS.URL(), InitialResourceVersions: claims(view, CDS)}
				requests <- &discoveryv3.DeltaDiscoveryRequest{Node: annotated(), TypeUrl: EDS.URL(), ResourceNamesSubscribe: names, InitialResourceVersions: claims(view, EDS)}
				updates, removed := 0, 0
				for updates < c.updates || removed < c.removed {
					m, err := g.Recv()
					if err != nil {
						t.Fatal(err)
					}
					if m.GetTypeUrl() == CDS.URL() {
						updates += len(m.GetResources())
						removed += len(m.GetRemovedResources())
					}
					requests <- &discoveryv3.DeltaDiscoveryRequest{TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce()}
				}
			}
		})
	}
}

// An application with grpc-go has a stream for each target: through an agent on one
// connection, without one on a connection for each, always with one node id.
func TestApplicationsWithManyTargets(t *testing.T) {
	_, names := big()
	for _, connections := range []bool{false, true} {
		t.Run(fmt.Sprintf("a connection each %v", connections), func(t *testing.T) {
			v := newVictim(t)
			c := v.connect()
			for i := range maxStreamsPerNode - 1 {
				if connections {
					c = v.connect()
				}
				s := v.stream(c)
				s.say(&discoveryv3.DeltaDiscoveryRequest{Node: annotated(), TypeUrl: LDS.URL(), ResourceNamesSubscribe: []string{fmt.Sprintf("service-%d:8080", i)}})
				s.say(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: EDS.URL(), ResourceNamesSubscribe: names[:20]})
				if err := s.settled(CDS); err != nil {
					t.Fatalf("stream %d: %v", i, err)
				}
			}
		})
	}
}

// Proxies behind a load balancer that come at once, as after a restart, are all served.
func TestManyProxiesBehindOneAddressComeAtOnce(t *testing.T) {
	v := newVictim(t)
	const proxies = 3 * maxIdlePerHost
	errs := make(chan error, proxies)
	for i := range proxies {
		c := v.connect()
		go func() {
			g, err := discoveryv3.NewAggregatedDiscoveryServiceClient(c).DeltaAggregatedResources(t.Context())
			if err == nil {
				err = g.Send(first(hostileNode(i, 0)))
			}
			if err == nil {
				_, err = g.Recv()
			}
			errs <- err
		}()
	}
	for range proxies {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
}

// A state-of-the-world client names everything each time.
func TestASotWEnvoyAtTheLimits(t *testing.T) {
	view, names := big()
	client := dial(t, New(everybody{NewLatestView(view)}, quiet(t), nil), nil)
	g, err := client.StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	nonces := map[string]string{}
	for _, r := range []*discoveryv3.DiscoveryRequest{
		{Node: annotated(), TypeUrl: CDS.URL()}, {Node: annotated(), TypeUrl: EDS.URL(), ResourceNames: names},
		{Node: annotated(), TypeUrl: EDS.URL(), ResourceNames: append(names[1:len(names):len(names)], "new")},
	} {
		r.ResponseNonce = nonces[r.TypeUrl]
		if err := g.Send(r); err != nil {
			t.Fatal(err)
		}
		m, err := g.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if len(m.GetResources()) != 7000 {
			t.Errorf("%s: %d resources, want 7000", m.GetTypeUrl(), len(m.GetResources()))
		}
		nonces[m.GetTypeUrl()] = m.GetNonce()
	}
}

// Under a wildcard a client cannot know whether what it unsubscribes from is covered, so
// it is told; but not of what it never had and never asked for.
func TestOnlyWhatWasThereIsAnsweredWhenUnsubscribed(t *testing.T) {
	s := NewSub(true, nil)
	s.Step(Moved{View: attackedView(1)})
	sent := func(r *Request) (out []string) {
		r.Type = CDS
		for _, e := range s.Step(r) {
			if e, ok := e.(Send); ok {
				out = append(out, e.Removed...)
				for _, u := range e.Upserts {
					out = append(out, u.Name)
				}
				out = append(out, sentAgain(s, e)...)
			}
		}
		return out
	}
	sent(&Request{})
	for _, c := range []struct {
		subscribe, unsubscribe, want string
	}{
		{"", "never", "[]"}, {"", "first", "[first]"}, {"absent", "", "[absent]"}, {"", "absent", "[absent]"}, {"", "absent", "[]"},
	} {
		var r Request
		if c.subscribe != "" {
			r.Names = namesOf(c.subscribe)
		}
		if c.unsubscribe != "" {
			r.Unsubscribe = namesOf(c.unsubscribe)
		}
		if got := fmt.Sprint(sent(&r)); got != c.want {
			t.Errorf("%+v: answered with %s, want %s", c, got, c.want)
		}
	}
	if n := s.Size(); n != 0 {
		t.Errorf("%d bytes are held of nothing", n)
	}
}

// sentAgain acknowledges a response and returns what comes then, which is nothing.
func sentAgain(s *Sub, e Send) (out []string) {
	for _, e := range s.Step(&Request{Type: e.Type, Nonce: e.Nonce}) {
		if e, ok := e.(Send); ok {
			out = append(out, e.Nonce)
		}
	}
	return out
}
