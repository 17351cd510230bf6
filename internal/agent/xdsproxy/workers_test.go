package xdsproxy

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/pilothouse/pilothouse/test/wait"
)

// script is a control plane that sends what it is told to, and passes on what it gets.
type script struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	send chan *discoveryv3.DeltaDiscoveryResponse
	got  chan *discoveryv3.DeltaDiscoveryRequest
}

func (s *script) DeltaAggregatedResources(g discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	go func() {
		for {
			select {
			case r := <-s.send:
				if g.Send(r) != nil {
					return
				}
			case <-g.Context().Done():
				return
			}
		}
	}()
	for {
		m, err := g.Recv()
		if err != nil {
			return err
		}
		s.got <- m
	}
}

// counters are those of an Envoy, which the test changes.
type counters struct {
	mu    sync.Mutex
	stats map[string]uint64
	asked int
}

// twoWorkers is an Envoy with two workers, which have the same listeners as the main thread.
func twoWorkers() *counters {
	return &counters{stats: map[string]uint64{
		"server.concurrency": 2, "listener_manager.workers_started": 1, "listener_manager.listener_added": 3, "listener_manager.listener_modified": 1,
		"listener_manager.listener_create_success": 8, "listener_manager.listener_create_failure": 0, "listener_manager.total_listeners_warming": 0,
	}}
}

func (c *counters) add(name string, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats["listener_manager."+name] += n
}

func (c *counters) read(context.Context, string) (map[string]uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	if c.stats == nil {
		return nil, errors.New("no Envoy")
	}
	return maps.Clone(c.stats), nil
}

func (c *counters) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked
}

// conversation is one between a control plane and an Envoy.
type conversation struct {
	t     *testing.T
	plane *script
	envoy discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
}

func converse(t *testing.T, stats Stats, limit time.Duration) *conversation {
	t.Helper()
	s := &script{send: make(chan *discoveryv3.DeltaDiscoveryResponse), got: make(chan *discoveryv3.DeltaDiscoveryRequest, 100)}
	p := proxyOf(t, s, func(c *Config) { c.Stats = stats })
	p.workersLimit = limit
	g, err := envoy(t, p).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return &conversation{t, s, g}
}

// gets sends a response that brings a listener to Envoy.
func (c *conversation) gets(nonce, listener string) {
	c.t.Helper()
	r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: listenerType, Nonce: nonce, Resources: []*discoveryv3.Resource{
		{Name: "0.0.0.0_80", Version: "1", Resource: &anypb.Any{TypeUrl: listenerType, Value: []byte("first")}},
		{Name: listener, Version: "1", Resource: &anypb.Any{TypeUrl: listenerType, Value: []byte("second")}},
	}}
	select {
	case c.plane.send <- r:
	case <-c.t.Context().Done():
		c.t.Fatal("the control plane has no stream")
	}
	if got, err := c.envoy.Recv(); err != nil || got.GetNonce() != nonce {
		c.t.Fatalf("Envoy got %v, error %v: want the response %s", got, err, nonce)
	}
}

// says sends a request of Envoy.
func (c *conversation) says(m *discoveryv3.DeltaDiscoveryRequest) {
	c.t.Helper()
	if err := c.envoy.Send(m); err != nil {
		c.t.Fatal(err)
	}
}

func (c *conversation) acknowledges(nonce string) {
	c.t.Helper()
	c.says(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType, ResponseNonce: nonce})
}

// marks sends a request of another type, and wants the control plane to get that next.
func (c *conversation) marks(typ string) {
	c.t.Helper()
	c.says(request(envoyType + typ))
	c.hears(envoyType+typ, "n")
}

// hears wants the next request that the control plane gets to be of a type, with a nonce.
func (c *conversation) hears(typ, nonce string) {
	c.t.Helper()
	var m *discoveryv3.DeltaDiscoveryRequest
	wait.Until(c.t, "a request", func() bool {
		select {
		case m = <-c.plane.got:
			return true
		default:
			return false
		}
	})
	if m.GetTypeUrl() != typ || m.GetResponseNonce() != nonce {
		c.t.Fatalf("the control plane got %v: want a request of %s with nonce %q", m, typ, nonce)
	}
}

// begin opens the conversation.
func (c *conversation) begin() {
	c.t.Helper()
	c.acknowledges("")
	c.hears(listenerType, "")
}

// An inbound listener is acknowledged when each worker has taken it over. Requests about listeners that follow wait behind that, in
// their order, and others do not.
func TestAcknowledgementWaitsForWorkers(t *testing.T) {
	stats := twoWorkers()
	c := converse(t, stats.read, time.Minute)
	c.begin()
	c.gets("1", "virtualInbound")
	stats.add("listener_modified", 1)
	c.acknowledges("1")
	c.says(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType, ResourceNamesSubscribe: []string{"more"}})
	c.marks("a")
	stats.add("listener_create_success", 1) // of the first worker
	asked := stats.count()
	wait.Until(t, "questions after the first worker has the listener", func() bool { return stats.count() > asked+1 })
	c.marks("b")
	stats.add("listener_create_success", 1)
	c.hears(listenerType, "1")
	c.hears(listenerType, "")

	// One that is warming is not given to the workers yet.
	c.gets("2", "virtualInbound")
	stats.add("listener_modified", 1)
	stats.add("total_listeners_warming", 1)
	c.acknowledges("2")
	asked = stats.count()
	wait.Until(t, "questions while the listener is warming", func() bool { return stats.count() > asked+1 })
	c.marks("c")
	stats.add("listener_create_success", 2)
	stats.add("total_listeners_warming", ^uint64(0))
	c.hears(listenerType, "2")
}

// What is not an acknowledgement of the inbound listener, or cannot be watched, is sent at once.
func TestOtherAnswersDoNotWaitForWorkers(t *testing.T) {
	stats := twoWorkers()
	c := converse(t, stats.read, time.Minute)
	c.begin()
	c.gets("1", "0.0.0.0_9080")
	stats.add("listener_modified", 1)
	c.acknowledges("1")
	c.hears(listenerType, "1")
	stats.add("listener_create_success", 2)

	c.gets("2", "virtualInbound")
	stats.add("listener_modified", 1)
	c.says(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType, ResponseNonce: "2", ErrorDetail: &rpcstatus.Status{Message: "no"}})
	c.hears(listenerType, "2")
	stats.add("listener_create_success", 2)

	stats.mu.Lock()
	stats.stats["listener_manager.workers_started"] = 0
	stats.mu.Unlock()
	c.gets("3", "virtualInbound")
	stats.add("listener_modified", 1)
	c.acknowledges("3")
	c.hears(listenerType, "3")

	stats.mu.Lock()
	stats.stats = nil
	stats.mu.Unlock()
	c.gets("4", "virtualInbound")
	c.acknowledges("4")
	c.hears(listenerType, "4")
}

// When the workers have not taken over a listener for long, it is acknowledged all the same. The next one waits for its own change only.
func TestAcknowledgementWaitsForALimitedTime(t *testing.T) {
	stats := twoWorkers()
	c := converse(t, stats.read, 50*time.Millisecond)
	c.begin()
	c.gets("1", "virtualInbound")
	stats.add("listener_modified", 1) // and it is replaced while it is warming: no worker gets it
	c.acknowledges("1")
	c.hears(listenerType, "1")
	asked := stats.count()
	c.gets("2", "virtualInbound")
	stats.add("listener_modified", 1)
	stats.add("listener_create_success", 2)
	c.acknowledges("2")
	c.hears(listenerType, "2")
	if n := stats.count() - asked; n != 2 {
		t.Errorf("%d questions about the second listener: want one before it and one after", n)
	}
}

func TestBringsInbound(t *testing.T) {
	r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: listenerType, Nonce: "virtualInbound", SystemVersionInfo: "virtualInbound", RemovedResources: []string{"virtualInbound"},
		Resources: []*discoveryv3.Resource{{Name: "virtualinbound", Aliases: []string{"virtualInbound"}, Version: "virtualInbound"}, {Version: "1"}, {Name: "virtualInbound2"}}}
	without, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	r.Resources = append(r.Resources, &discoveryv3.Resource{Version: "1", Name: "virtualInbound", Resource: &anypb.Any{Value: []byte("x")}})
	with, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(with) {
		// In pieces, and broken off.
		if !bringsInbound(mem.BufferSlice{mem.SliceBuffer(with[:cut]), mem.SliceBuffer(with[cut:])}) {
			t.Errorf("not found in pieces of %d and %d bytes", cut, len(with)-cut)
		}
		_ = bringsInbound(mem.BufferSlice{mem.SliceBuffer(with[:cut])})
	}
	if bringsInbound(mem.BufferSlice{mem.SliceBuffer(without)}) {
		t.Error("found where it is not the name of a resource")
	}
}

func TestReadListeners(t *testing.T) {
	for _, c := range []struct {
		name   string
		change map[string]uint64
		want   listeners
		ok     bool
	}{
		{"the same everywhere", nil, listeners{}, true},
		{"one worker has not a listener that was modified", map[string]uint64{"listener_manager.listener_modified": 2, "listener_manager.listener_create_success": 9}, listeners{behind: 1}, true},
		{"a worker that cannot take a listener is not waited for", map[string]uint64{"listener_manager.listener_create_success": 7, "listener_manager.listener_create_failure": 1}, listeners{}, true},
		{"one is warming", map[string]uint64{"listener_manager.listener_added": 4, "listener_manager.total_listeners_warming": 1}, listeners{warming: 1}, true},
		{"before the start of the workers", map[string]uint64{"listener_manager.workers_started": 0}, listeners{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			stats := twoWorkers().stats
			maps.Copy(stats, c.change)
			if got, ok := readListeners(stats); got != c.want || ok != c.ok {
				t.Errorf("%+v, %v: want %+v, %v", got, ok, c.want, c.ok)
			}
		})
	}
	for name := range twoWorkers().stats {
		stats := twoWorkers().stats
		delete(stats, name)
		if _, ok := readListeners(stats); ok != (name == "listener_manager.listener_create_failure") {
			t.Errorf("without %s: %v", name, ok)
		}
	}
}
