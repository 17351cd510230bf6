package xds

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/metadata"

	"github.com/pilothouse/pilothouse/test/wait"
)

// hostileNode is a node with an id of its own and so many bytes of metadata that nothing
// reads.
func hostileNode(i, bytes int) *corev3.Node {
	n := node(map[string]any{"ANNOTATIONS": map[string]any{"a": strings.Repeat("x", bytes)}})
	n.Id = fmt.Sprintf("sidecar~10.1.2.3~web-%d.shop~shop.svc.cluster.local", i)
	return n
}

// refusalsOf are the errors that are none.
func refusalsOf(errs []error) []error {
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

// each opens streams, says on each what its number calls for, and waits until all is taken.
func each(v *victim, streams int, connections bool, fence Type, say func(i int, s *attackStream)) []error {
	c := v.connect()
	var open []*attackStream
	for i := range streams {
		if connections {
			c = v.connect()
		}
		s := v.stream(c)
		open = append(open, s)
		say(i, s)
	}
	var errs []error
	for _, s := range open {
		errs = append(errs, s.settled(fence))
	}
	return refusalsOf(errs)
}

func TestMuchMetadata(t *testing.T) {
	withstands(t, func(v *victim) []error {
		return each(v, 200, true, CDS, func(i int, s *attackStream) {
			s.say(&discoveryv3.DeltaDiscoveryRequest{Node: hostileNode(i, 3_500_000), TypeUrl: "none"})
		})
	})
}

// Just below the bound of a node, what nothing reads is not kept.
func TestMetadataBelowTheBound(t *testing.T) {
	withstands(t, func(v *victim) []error {
		errs := each(v, 100, true, CDS, func(i int, s *attackStream) {
			s.say(&discoveryv3.DeltaDiscoveryRequest{Node: hostileNode(i, 1_000_000), TypeUrl: "none"})
		})
		if len(errs) > 0 {
			t.Errorf("refused: %v", errs[0])
		}
		return errs
	})
}

func TestHugeLabels(t *testing.T) {
	withstands(t, func(v *victim) []error {
		return each(v, 100, true, CDS, func(i int, s *attackStream) {
			n := node(map[string]any{"LABELS": map[string]any{"app": strings.Repeat("x", 900_000)}})
			n.Id = hostileNode(i, 0).Id
			s.say(&discoveryv3.DeltaDiscoveryRequest{Node: n, TypeUrl: "none"})
		})
	})
}

func TestHugeNames(t *testing.T) {
	withstands(t, func(v *victim) []error {
		s := v.stream(v.connect())
		s.say(first(node(nil)))
		for i := 0; i < 200 && !s.over(); i++ {
			s.say(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: EDS.URL(), ResourceNamesSubscribe: []string{strings.Repeat("x", 3_900_000) + fmt.Sprint(i)}})
		}
		return refusalsOf([]error{s.settled(RDS)})
	})
}

// Many names that are each within bounds, on many streams of one connection.
func TestManyLongNames(t *testing.T) {
	withstands(t, func(v *victim) []error {
		return each(v, 40, false, CDS, func(i int, s *attackStream) {
			s.say(&discoveryv3.DeltaDiscoveryRequest{Node: hostileNode(i, 0), TypeUrl: "none"})
			for b := range 8 {
				s.say(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: EDS.URL(), ResourceNamesSubscribe: longNames(250, 4000, b)})
			}
		})
	})
}

func longNames(n, size, salt int) []string {
	var out []string
	tail := strings.Repeat("x", size)
	for i := range n {
		out = append(out, strconv.Itoa(salt)+"-"+strconv.Itoa(i)+"-"+tail)
	}
	return out
}

// The same from many connections that give one node id.
func TestManyConnectionsOfOneNode(t *testing.T) {
	withstands(t, func(v *victim) []error {
		return each(v, 150, true, CDS, func(_ int, s *attackStream) {
			s.say(&discoveryv3.DeltaDiscoveryRequest{Node: node(nil), TypeUrl: "none"})
			s.say(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: EDS.URL(), ResourceNamesSubscribe: longNames(250, 4000, 0)})
		})
	})
}

func TestUnsubscribingNamesNeverSubscribed(t *testing.T) {
	withstands(t, func(v *victim) []error {
		s := v.stream(v.connect())
		s.say(first(node(nil)))
		tail := strings.Repeat("0", 80)
		for b := 0; b < 100 && !s.over(); b++ {
			names := make([]string, 1<<15)
			for i := range names {
				names[i] = "never-" + strconv.Itoa(b) + "-" + strconv.Itoa(i) + "-" + tail
			}
			s.say(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: CDS.URL(), ResourceNamesUnsubscribe: names})
		}
		return refusalsOf([]error{s.settled(EDS)})
	})
}

// What is subscribed and unsubscribed in turns is owed an answer each time.
func TestSubscribingAndUnsubscribingInTurns(t *testing.T) {
	withstands(t, func(v *victim) []error {
		s := v.stream(v.connect())
		s.say(first(node(nil)))
		for b := 0; b < 100 && !s.over(); b++ {
			names := longNames(8000, 80, b)
			s.say(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: CDS.URL(), ResourceNamesSubscribe: names})
			s.say(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: CDS.URL(), ResourceNamesUnsubscribe: names})
		}
		return refusalsOf([]error{s.settled(EDS)})
	})
}

func TestHugeInitialVersions(t *testing.T) {
	withstands(t, func(v *victim) []error {
		return each(v, 40, false, CDS, func(i int, s *attackStream) {
			initial := map[string]string{}
			for _, n := range longNames(900, 4000, i) {
				initial[n] = "1"
			}
			s.say(&discoveryv3.DeltaDiscoveryRequest{Node: hostileNode(i, 0), TypeUrl: EDS.URL(), InitialResourceVersions: initial})
		})
	})
}

func TestHugeErrorDetails(t *testing.T) {
	withstands(t, func(v *victim) []error {
		return each(v, 40, false, EDS, func(i int, s *attackStream) {
			s.say(&discoveryv3.DeltaDiscoveryRequest{Node: hostileNode(i, 0), TypeUrl: CDS.URL()})
			if err := s.await(CDS); err != nil {
				t.Fatal(err)
			}
			s.say(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: CDS.URL(), ResponseNonce: s.nonce,
				ErrorDetail: &rpcstatus.Status{Message: strings.Repeat("first ", 600_000)}})
			if err := s.settled(EDS); err != nil {
				t.Fatal(err)
			}
		})
	})
}

func TestNodesOnEveryRequest(t *testing.T) {
	withstands(t, func(v *victim) []error {
		return each(v, 20, false, CDS, func(i int, s *attackStream) {
			for range 5 {
				s.say(&discoveryv3.DeltaDiscoveryRequest{Node: hostileNode(i, 1_000_000), TypeUrl: "none"})
			}
		})
	})
}

func TestHugeNoncesUserAgentsAndTypes(t *testing.T) {
	huge := strings.Repeat("x", 900_000)
	withstands(t, func(v *victim) []error {
		var errs []error
		for name, change := range map[string]func(*discoveryv3.DeltaDiscoveryRequest){
			"nonce":      func(r *discoveryv3.DeltaDiscoveryRequest) { r.ResponseNonce = huge },
			"type":       func(r *discoveryv3.DeltaDiscoveryRequest) { r.TypeUrl = huge },
			"user agent": func(r *discoveryv3.DeltaDiscoveryRequest) { r.Node.UserAgentName = huge },
			"version": func(r *discoveryv3.DeltaDiscoveryRequest) {
				r.Node.UserAgentVersionType = &corev3.Node_UserAgentVersion{UserAgentVersion: huge}
			},
			"locality": func(r *discoveryv3.DeltaDiscoveryRequest) { r.Node.Locality.Zone = huge },
			"address's zone": func(r *discoveryv3.DeltaDiscoveryRequest) {
				r.Node.Metadata = node(map[string]any{"INSTANCE_IPS": "fe80::1%" + huge}).Metadata
			},
			"no address": func(r *discoveryv3.DeltaDiscoveryRequest) {
				r.Node.Metadata = node(map[string]any{"INSTANCE_IPS": huge}).Metadata
			},
			"account": func(r *discoveryv3.DeltaDiscoveryRequest) {
				r.Node.Metadata = node(map[string]any{"SERVICE_ACCOUNT": huge}).Metadata
			},
		} {
			t.Log(name)
			errs = append(errs, each(v, 30, false, CDS, func(i int, s *attackStream) {
				r := &discoveryv3.DeltaDiscoveryRequest{Node: hostileNode(i, 0), TypeUrl: "none"}
				change(r)
				s.say(r)
			})...)
		}
		return errs
	})
}

func TestHugeSotWNames(t *testing.T) {
	withstands(t, func(v *victim) []error {
		var errs []error
		c := v.connect()
		for i := range 40 {
			g, err := discoveryv3.NewAggregatedDiscoveryServiceClient(c).StreamAggregatedResources(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_ = g.Send(&discoveryv3.DiscoveryRequest{Node: hostileNode(i, 0), TypeUrl: EDS.URL(), ResourceNames: longNames(900, 4000, i)})
			_ = g.Send(&discoveryv3.DiscoveryRequest{TypeUrl: CDS.URL()})
			for {
				m, err := g.Recv()
				if err != nil {
					errs = append(errs, err)
				}
				if err != nil || m.GetTypeUrl() == CDS.URL() {
					break
				}
			}
		}
		return errs
	})
}

func TestManyStreamsOnOneConnection(t *testing.T) {
	withstands(t, func(v *victim) []error {
		refusals := each(v, maxStreamsPerConn+40, false, CDS, func(i int, s *attackStream) {
			s.say(&discoveryv3.DeltaDiscoveryRequest{Node: hostileNode(i, 0), TypeUrl: "none"})
		})
		if len(refusals) != 40 {
			t.Errorf("%d streams were refused, want 40", len(refusals))
		}
		return refusals
	})
}

// One response is refused again and again.
func TestRefusingOverAndOver(t *testing.T) {
	withstands(t, func(v *victim) []error {
		s := v.stream(v.connect())
		s.say(first(node(nil)))
		if err := s.await(CDS); err != nil {
			t.Fatal(err)
		}
		for range 500 {
			s.mu.Lock()
			nonce := s.nonce
			delete(s.seen, CDS.URL())
			s.mu.Unlock()
			s.say(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: CDS.URL(), ResponseNonce: nonce, ResourceNamesSubscribe: []string{"first"},
				ErrorDetail: &rpcstatus.Status{Message: strings.Repeat("first ", 10_000)}})
			if err := s.await(CDS); err != nil {
				t.Fatal(err)
			}
		}
		return nil
	})
}

func TestHugeHeaders(t *testing.T) {
	v := newVictim(t)
	honest := v.honest()
	before := v.number("live")
	c := v.connect()
	for range 30 {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", strings.Repeat("x", 1<<20))
		g, err := discoveryv3.NewAggregatedDiscoveryServiceClient(c).DeltaAggregatedResources(ctx)
		if err != nil {
			continue // the client knows the server's limit and does not even send
		}
		if _, err := g.Recv(); err == nil {
			t.Error("headers of a megabyte are taken")
		}
	}
	if cost := v.number("live") - before; cost > maxDamage {
		t.Errorf("the server holds %d bytes more than before", cost)
	}
	v.tell("publish")
	v.receive(honest, CDS, "second")
}

// Requests without their last byte, one on each stream of a connection: gRPC tells of
// none, and would hold them all.
func TestUnfinishedRequests(t *testing.T) {
	v := newVictim(t)
	honest := v.honest()
	before := v.number("live")
	conn, err := net.Dial("tcp", v.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	f := newFrames(t, conn)
	for i := range 40 {
		f.open(uint32(2*i + 1))
		f.begin(uint32(2*i+1), 3_900_000)
	}
	go f.write()
	wait.Until(t, "the streams are refused", func() bool { return v.number("refused") > 0 })
	wait.Until(t, "little is held", func() bool { return v.number("live")-before < maxDamage })
	if status := f.status(); status != "8" {
		t.Errorf("grpc-status %s, want 8, ResourceExhausted", status)
	}
	v.tell("publish")
	v.receive(honest, CDS, "second")
}

// Connections that are made and on which nothing is ever said, as many as one address gets.
func TestManySilentConnections(t *testing.T) {
	v := newVictim(t)
	honest := v.honest()
	before := v.number("live")
	conns := make([]net.Conn, maxIdlePerHost+maxWaitingPerHost) // the honest one has a stream
	for i := range conns {
		c, err := net.Dial("tcp", v.addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.(*net.TCPConn).SetLinger(0) // so that its port is free again at once
		defer c.Close()
		conns[i] = c
	}
	wait.Until(t, "all are counted", func() bool { return v.number("connections") > len(conns) })
	cost := v.number("live") - before
	t.Logf("cost %.1f MB", float64(cost)/1e6)
	if cost > maxDamage {
		t.Errorf("the server holds %.1f MB more than before, at most %.1f are allowed", float64(cost)/1e6, maxDamage/1e6)
	}
	v.tell("publish")
	v.receive(honest, CDS, "second")
}
