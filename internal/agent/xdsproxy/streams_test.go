package xdsproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// ear is a control plane that answers types of Envoy and notes all requests, in order, as "TYPE CODE MESSAGE".
type ear struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	mu    sync.Mutex
	heard []string
}

func (e *ear) note(typ string, detail *rpcstatus.Status) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard = append(e.heard, strings.TrimSpace(fmt.Sprintf("%s %d %s", typ[strings.LastIndexByte(typ, '.')+1:], detail.GetCode(), detail.GetMessage())))
	return strings.HasPrefix(typ, envoyType)
}

func (e *ear) get() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.heard)
}

func (e *ear) DeltaAggregatedResources(g discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	for {
		m, err := g.Recv()
		if err != nil {
			return err
		}
		if e.note(m.GetTypeUrl(), m.GetErrorDetail()) {
			if err := g.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: m.GetTypeUrl(), Nonce: "n", SystemVersionInfo: "v7"}); err != nil {
				return err
			}
		}
	}
}

func (e *ear) StreamAggregatedResources(g discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	for {
		m, err := g.Recv()
		if err != nil {
			return err
		}
		if e.note(m.GetTypeUrl(), m.GetErrorDetail()) {
			if err := g.Send(&discoveryv3.DiscoveryResponse{TypeUrl: m.GetTypeUrl(), Nonce: "n", VersionInfo: "v7"}); err != nil {
				return err
			}
		}
	}
}

// The health is reported on each stream after its request for listeners, whenever it changes, and on the next stream again.
func TestHealthReports(t *testing.T) {
	for _, delta := range []bool{true, false} {
		e := &ear{}
		p := proxyOf(t, e, func(*Config) {})
		send, end := speaks(t, p, delta)
		send(clusterType)
		p.SetHealth(Health{Message: "no database"})
		want := []string{"Cluster 0"}
		hears := func(more ...string) {
			t.Helper()
			want = append(want, more...)
			wait.Until(t, fmt.Sprintf("requests %q", want), func() bool { return slices.Equal(e.get(), want) })
		}
		hears()
		send(listenerType)
		hears("Listener 0", "HealthInformation 13 no database")
		send(listenerType)
		hears("Listener 0")
		p.SetHealth(Health{Healthy: true})
		hears("HealthInformation 0")
		end()
		wait.Until(t, "the end of the stream", func() bool { return p.State().Streams == 0 })
		p.SetHealth(Health{Message: strings.Repeat("é", maxProblem)})
		send, _ = speaks(t, p, delta)
		send(listenerType)
		hears("Listener 0", "HealthInformation 13 "+strings.Repeat("é", maxProblem/2))
	}
}

// Reports on capture are sent when Envoy has asked for listeners, and on later streams again.
func TestCaptureReports(t *testing.T) {
	for _, delta := range []bool{true, false} {
		e := &ear{}
		p := proxyOf(t, e, func(*Config) {})
		send, end := speaks(t, p, delta)
		send(listenerType)
		want := []string{"Listener 0", "CaptureReport 13 restored"}
		p.SetCapture("restored")
		wait.Until(t, fmt.Sprintf("requests %q", want), func() bool { return slices.Equal(e.get(), want) })
		end()
		wait.Until(t, "the end of the stream", func() bool { return p.State().Streams == 0 })
		send, _ = speaks(t, p, delta)
		send(listenerType)
		want = append(want, want...)
		wait.Until(t, fmt.Sprintf("requests %q", want), func() bool { return slices.Equal(e.get(), want) })
	}
}

// speaks opens a stream, and returns what sends a request of a type and waits for the answer.
func speaks(t *testing.T, p *Proxy, delta bool) (send func(typ string), end func()) {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	t.Cleanup(end)
	if delta {
		g, err := envoy(t, p).DeltaAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return func(typ string) {
			t.Helper()
			if err := g.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ}); err != nil {
				t.Fatal(err)
			}
			if m, err := g.Recv(); err != nil || m.GetTypeUrl() != typ {
				t.Fatalf("%v, %v", m, err)
			}
		}, end
	}
	g, err := envoy(t, p).StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return func(typ string) {
		t.Helper()
		if err := g.Send(&discoveryv3.DiscoveryRequest{TypeUrl: typ}); err != nil {
			t.Fatal(err)
		}
		if m, err := g.Recv(); err != nil || m.GetTypeUrl() != typ {
			t.Fatalf("%v, %v", m, err)
		}
	}, end
}

func TestStreamsAreListed(t *testing.T) {
	p := proxyOf(t, &ear{}, func(*Config) {})
	if s := p.Streams(); s == nil || len(s) != 0 {
		t.Errorf("streams %+v, want an empty list", s)
	}
	g, err := envoy(t, p).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []*discoveryv3.DeltaDiscoveryRequest{
		{TypeUrl: listenerType}, {TypeUrl: listenerType, ResponseNonce: "n"}, {TypeUrl: clusterType, ErrorDetail: &rpcstatus.Status{Message: "no"}},
	} {
		if err := g.Send(r); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	send, end := speaks(t, p, false)
	for i := range maxStreamTypes + 5 {
		send(fmt.Sprint(envoyType, i))
	}
	s := p.Streams()
	if len(s) != 2 || !s[0].Delta || s[1].Delta || s[0].Since.IsZero() || len(s[1].Types) != maxStreamTypes {
		t.Fatalf("streams %+v, want a delta stream and one with %d types", s, maxStreamTypes)
	}
	for i := range s[0].Types {
		if s[0].Types[i].Received.IsZero() {
			t.Error("no time of the last response")
		}
		s[0].Types[i].Received = s[0].Since
	}
	want := []TypeState{
		{Type: clusterType, Requests: 1, Responses: 1, Refused: 1, Version: "v7", Nonce: "n", Received: s[0].Since},
		{Type: listenerType, Requests: 2, Responses: 2, Version: "v7", Nonce: "n", Answered: "n", Received: s[0].Since},
	}
	if !slices.Equal(s[0].Types, want) {
		t.Errorf("types %+v, want %+v", s[0].Types, want)
	}
	end()
	wait.Until(t, "one stream", func() bool { return len(p.Streams()) == 1 })
}

// library is a control plane with pages.
type library struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
}

func (library) StreamAggregatedResources(g discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	m, err := g.Recv()
	if err != nil {
		return err
	}
	namespace := m.GetNode().GetMetadata().GetFields()["NAMESPACE"].GetStringValue()
	if m.GetTypeUrl() != debugType || len(m.GetResourceNames()) != 1 || m.GetNode().GetId() != "sidecar~1.2.3.4~a.b~c" || namespace != "b" {
		return status.Errorf(codes.Internal, "asked %v", m)
	}
	r := &discoveryv3.DiscoveryResponse{TypeUrl: debugType}
	switch name := m.GetResourceNames()[0]; name {
	case "secret":
		return status.Error(codes.PermissionDenied, "not for you")
	case "end":
		return nil
	case "none":
	default:
		r.Resources = []*anypb.Any{{TypeUrl: debugType, Value: []byte("page " + name)}}
	}
	if err := g.Send(r); err != nil {
		return err
	}
	_, err = g.Recv()
	return err
}

// Pages of the control plane are asked for on streams of their own, so that a refusal does not end Envoy's.
func TestPagesOfTheControlPlane(t *testing.T) {
	p := proxyOf(t, library{}, func(c *Config) { c.Node = Node{ID: "sidecar~1.2.3.4~a.b~c", Namespace: "b"} })
	server := httptest.NewServer(p.Pages("/debug/xds/"))
	defer server.Close()
	for path, want := range map[string]string{
		"/debug/xds/syncz":                        "200 page syncz",
		"/debug/xds/config_dump?proxyID=a.b":      "200 page config_dump?proxyID=a.b",
		"/debug/xds/secret":                       "403 ask " + p.config.Upstream.Address() + ": not for you\n",
		"/debug/xds/end":                          "502 ask " + p.config.Upstream.Address() + ": the control plane ended the stream without an answer\n",
		"/debug/xds/none":                         "404 ask " + p.config.Upstream.Address() + ": the control plane has no page \"none\"\n",
		"/debug/xds/":                             "400 ",
		"/debug/xds/" + strings.Repeat("x", 2000): "400 ",
	} {
		resp, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if got := fmt.Sprint(resp.StatusCode, " ", string(body)); err != nil || got != want && (!strings.HasSuffix(want, " ") || !strings.HasPrefix(got, want)) {
			t.Errorf("%.40s: %q, %v, want %q", path, got, err, want)
		}
	}
	if resp, err := http.Post(server.URL+"/debug/xds/syncz", "", nil); err != nil || resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %v, %v, want 405", resp, err)
	}
	if s := p.State(); s.Streams != 0 || s.Requests != 0 || s.Connected() {
		t.Errorf("state %+v: a page counts as a stream", s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Ask(ctx, "syncz"); !errors.Is(err, context.Canceled) && status.Code(err) != codes.Canceled {
		t.Errorf("with a context that has ended: %v", err)
	}
}

// nodes remembers the node of each stream's first request.
type nodes struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	mu   sync.Mutex
	seen []*corev3.Node
}

func (n *nodes) add(node *corev3.Node) {
	if node != nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.seen = append(n.seen, node)
	}
}

func (n *nodes) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	for {
		r, err := s.Recv()
		if err != nil {
			return err
		}
		n.add(r.GetNode())
		if err := s.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: r.GetTypeUrl(), Nonce: "n"}); err != nil {
			return err
		}
	}
}

func (n *nodes) StreamAggregatedResources(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	for {
		r, err := s.Recv()
		if err != nil {
			return err
		}
		n.add(r.GetNode())
		if err := s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: r.GetTypeUrl(), Nonce: "n"}); err != nil {
			return err
		}
	}
}

// The node of a stream has the epoch of its Envoy, if its process is known.
func TestTheNodeHasTheEpoch(t *testing.T) {
	node := &corev3.Node{Id: "a", Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"NAME": structpb.NewStringValue("x"), mesh.EpochKey: structpb.NewStringValue("99")}}}
	for _, known := range []bool{true, false} {
		n := &nodes{}
		p := proxyOf(t, n, func(*Config) {})
		p.SetEpochs(func(pid int) (int, bool) { return 3, known && pid == os.Getpid() })
		if _, _, err := exchange(t, p, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, Node: node}); err != nil {
			t.Fatal(err)
		}
		want := "99"
		if known {
			want = "3"
		}
		n.mu.Lock()
		if got := n.seen[0].GetMetadata().GetFields(); got[mesh.EpochKey].GetStringValue() != want || got["NAME"].GetStringValue() != "x" {
			t.Errorf("known %v: %v", known, got)
		}
		n.mu.Unlock()
	}
}

// What is added to the node is not a second node in the request, and other fields stay.
func TestARequestHasOneNode(t *testing.T) {
	request := &discoveryv3.DiscoveryRequest{TypeUrl: clusterType, VersionInfo: "v", ResourceNames: []string{"a", "b"}, Node: &corev3.Node{Id: "x"}}
	text, err := proto.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	more, err := proto.Marshal(&corev3.Node{Cluster: "c"})
	if err != nil {
		t.Fatal(err)
	}
	got, ok := addToNode(text, sotwNode, more)
	nodes := 0
	for rest := got; len(rest) > 0; {
		n, _, length := protowire.ConsumeField(rest)
		if n == sotwNode {
			nodes++
		}
		rest = rest[length:]
	}
	var read discoveryv3.DiscoveryRequest
	request.Node.Cluster = "c"
	if err := proto.Unmarshal(got, &read); err != nil || !ok || nodes != 1 || !proto.Equal(&read, request) {
		t.Errorf("%d nodes in %v, %v", nodes, &read, err)
	}
	if _, ok := addToNode([]byte{0xff}, sotwNode, more); ok {
		t.Error("a request that cannot be read is changed")
	}
}

// What is found out about the node later is added to what Envoy says of it, and streams that have told it without are ended.
func TestTheNodeIsAddedTo(t *testing.T) {
	node := &corev3.Node{Id: "a", Locality: &corev3.Locality{}, Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"NAME": structpb.NewStringValue("x")}}}
	want := proto.Clone(node).(*corev3.Node)
	want.Locality = &corev3.Locality{Region: "r", Zone: "z", SubZone: "s"}
	want.Metadata.Fields["P"] = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"k": structpb.NewStringValue("v"), "l": structpb.NewStringValue("w")}})
	for _, delta := range []bool{true, false} {
		n := &nodes{}
		p := proxyOf(t, n, func(*Config) {})
		open := func() (receive func() error) {
			client := envoy(t, p)
			if delta {
				s, err := client.DeltaAggregatedResources(t.Context())
				if err == nil {
					err = s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, Node: node})
				}
				if err != nil {
					t.Fatal(err)
				}
				return func() error { _, err := s.Recv(); return err }
			}
			s, err := client.StreamAggregatedResources(t.Context())
			if err == nil {
				err = s.Send(&discoveryv3.DiscoveryRequest{TypeUrl: clusterType, Node: node})
			}
			if err != nil {
				t.Fatal(err)
			}
			return func() error { _, err := s.Recv(); return err }
		}
		before := open()
		if err := before(); err != nil {
			t.Fatal(err)
		}
		p.SetNode(Addition{Region: "r", Zone: "z", SubZone: "s", Key: "P", Values: map[string]string{"k": "v", "l": "w"}})
		if err := before(); err == nil {
			t.Error("a stream that has told the node without goes on")
		}
		if err := open()(); err != nil {
			t.Fatal(err)
		}
		n.mu.Lock()
		if len(n.seen) != 2 || !proto.Equal(n.seen[0], node) || !proto.Equal(n.seen[1], want) {
			t.Errorf("delta %v: nodes %v, want %v and %v", delta, n.seen, node, want)
		}
		n.mu.Unlock()
	}
}
