package xdsproxy

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

const (
	nameTableType = "type.googleapis.com/istio.networking.nds.v1.NameTable"
	healthType    = "type.googleapis.com/istio.v1.HealthInformation"
)

func TestWhichTypesPass(t *testing.T) {
	for url, want := range map[string]bool{
		"type.googleapis.com/envoy.config.cluster.v3.Cluster":                  true,
		"type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret": true,
		"type.googleapis.com/istio.workload.Workload":                          true,
		"type.googleapis.com/istio.workload.Address":                           true,
		"istio.io/debug":                  true,
		"istio.io/debug/config_dump":      true,
		"istio.io/connections":            true,
		"istio.io/debugger":               false,
		"istio.io/other":                  false,
		nameTableType:                     false,
		healthType:                        false,
		mesh.TrustBundleType:              false,
		mesh.BootstrapType:                false,
		"type.googleapis.com/envoyx":      false,
		"envoy.config.cluster.v3.Cluster": false,
		"":                                false,
	} {
		if got := passes(url); got != want {
			t.Errorf("%q passes: %v, want %v", url, got, want)
		}
	}
}

// echo is a control plane that notes the types of requests, answers each once with its own type, and sends a type of its own
// before.
type echo struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	asked chan string
	first string
}

func (e *echo) DeltaAggregatedResources(g discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	if err := g.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: e.first, Nonce: "unasked"}); err != nil {
		return err
	}
	for {
		m, err := g.Recv()
		if err != nil {
			return err
		}
		e.asked <- m.GetTypeUrl()
		if err := g.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: m.GetTypeUrl(), Nonce: "n"}); err != nil {
			return err
		}
	}
}

// What a client on the socket asks for of the agent's types does not reach the control plane, and is answered: nothing is
// there. Unknown types of the control plane do not reach Envoy.
func TestOnlyTypesOfEnvoyPass(t *testing.T) {
	e := &echo{asked: make(chan string, 10), first: "type.googleapis.com/istio.unknown"}
	log := &wait.Output{}
	p := proxyOf(t, e, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(log, nil)) })
	g, err := envoy(t, p).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send := func(r *discoveryv3.DeltaDiscoveryRequest) {
		t.Helper()
		if err := g.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	receive := func(url string, removed ...string) *discoveryv3.DeltaDiscoveryResponse {
		t.Helper()
		m, err := g.Recv()
		if err != nil || m.GetTypeUrl() != url || len(m.GetResources()) > 0 || !slices.Equal(m.GetRemovedResources(), removed) || m.GetNonce() == "" {
			t.Fatalf("got %v, %v, want a response of %s without %v", m, err, url, removed)
		}
		return m
	}
	send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: healthType, ErrorDetail: &rpcstatus.Status{Message: "forged"}})
	receive(healthType)
	send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: nameTableType, ResourceNamesSubscribe: []string{"a", "*", "b"}})
	m := receive(nameTableType, "a", "b")
	send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: nameTableType, ResponseNonce: m.GetNonce()})
	send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: nameTableType, ResourceNamesUnsubscribe: []string{"a"}})
	send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: "istio.io/debug/syncz"})
	receive("istio.io/debug/syncz")
	send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: envoyType + "x"})
	receive(envoyType + "x")
	for _, want := range []string{"istio.io/debug/syncz", envoyType + "x"} {
		if got := <-e.asked; got != want {
			t.Errorf("the control plane was asked for %s, want %s", got, want)
		}
	}
	if s := p.State(); s.Refused != 0 || s.Requests != 2 || s.Responses != 2 {
		t.Errorf("state %+v, want two requests and responses that passed, and no refusal", s)
	}
	for text, want := range map[string]int{"istio.unknown": 1, "NameTable": 1, "HealthInformation": 1} {
		if got := strings.Count(log.String(), text); got != want {
			t.Errorf("%d lines about %s, want %d:\n%s", got, text, want, log)
		}
	}
}

// An acknowledgement of the state of the world is not answered, further names are.
func TestStateOfTheWorldOfATypeThatDoesNotPass(t *testing.T) {
	p, _ := start(t, secured(t, &plane{}))
	g, err := envoy(t, p).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send := func(typ, nonce string, names ...string) {
		t.Helper()
		if err := g.Send(&discoveryv3.DiscoveryRequest{TypeUrl: typ, ResourceNames: names, ResponseNonce: nonce}); err != nil {
			t.Fatal(err)
		}
	}
	receive := func(typ string) string {
		t.Helper()
		m, err := g.Recv()
		if err != nil || m.GetTypeUrl() != typ || len(m.GetResources()) > 0 || m.GetNonce() == "" {
			t.Fatalf("got %v, %v, want an empty response of %s", m, err, typ)
		}
		return m.GetNonce()
	}
	send(nameTableType, "", "a")
	one := receive(nameTableType)
	send(nameTableType, one, "a")
	send(nameTableType, one, "a", "b")
	two := receive(nameTableType)
	send(nameTableType, two, "a", "b")
	send(envoyType+"x", "m")
	receive(envoyType + "x")
	if one == two {
		t.Error("other names were answered with the same nonce")
	}
}

// A message whose first type passes and whose last, which counts, does not, is withheld; what cannot be parsed too.
func TestTheLastTypeCounts(t *testing.T) {
	text := appendField(nil, deltaType, envoyType+"x")
	text = appendField(text, deltaType, healthType)
	h, err := readHead(mem.BufferSlice{mem.SliceBuffer(text)}, requestFields(true))
	if err != nil || h.url != healthType {
		t.Errorf("type %q, %v, want the last one", h.url, err)
	}
	for name, text := range map[string][]byte{
		"cut":       text[:len(text)-1],
		"long type": appendField(nil, deltaType, envoyType+strings.Repeat("x", maxType)),
		"group":     protowire.AppendTag(nil, 9, protowire.StartGroupType),
		"fixed":     protowire.AppendTag(nil, 9, protowire.Fixed64Type),
	} {
		if h, err := readHead(mem.BufferSlice{mem.SliceBuffer(text)}, requestFields(true)); err == nil {
			t.Errorf("%s: read %+v, want an error", name, h)
		}
	}
}

// Messages have a maximum size in both directions.
func TestMessagesAreBounded(t *testing.T) {
	o := secured(t, &plane{payload: strings.Repeat("x", 2<<20)})
	p := proxyWith(t, o, func(c *Config) { c.MaxResponse = 1 << 20 })
	if _, _, err := exchange(t, p, request(envoyType+"a")); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a response of 2 MiB: %v, want ResourceExhausted", err)
	}
	large := request(envoyType + "a")
	large.ResourceNamesSubscribe = []string{strings.Repeat("x", maxRequest)}
	g, err := envoy(t, p).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = g.Send(large) // the answer says what is wrong
	if _, err := g.Recv(); status.Code(err) != codes.ResourceExhausted && status.Code(err) != codes.Canceled {
		t.Errorf("a request of more than 16 MiB: %v, want ResourceExhausted", err)
	}
}

// FuzzReadHead: agrees with protobuf where that reads a message, and never panics.
func FuzzReadHead(f *testing.F) {
	b, err := proto.Marshal(&discoveryv3.DiscoveryRequest{TypeUrl: "t", VersionInfo: "v", ResponseNonce: "n", ErrorDetail: &rpcstatus.Status{Message: "m"}, ResourceNames: []string{"a"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		data := mem.BufferSlice{mem.SliceBuffer(b)}
		h, err := readHead(data, requestFields(false))
		_ = nothing(data, h, false)
		if d, err := readHead(data, requestFields(true)); err == nil {
			_ = nothing(data, d, true)
		}
		var m discoveryv3.DiscoveryRequest
		if err != nil || proto.Unmarshal(b, &m) != nil {
			return
		}
		version, nonce := m.GetVersionInfo(), m.GetResponseNonce()
		if len(version) > maxVersion {
			version = ""
		}
		if len(nonce) > maxNonce {
			nonce = ""
		}
		want := head{m.GetTypeUrl(), version, nonce, m.GetErrorDetail() != nil, len(m.GetResourceNames()) > 0, false}
		if h != want {
			t.Errorf("read %+v of %v, want %+v", h, &m, want)
		}
	})
}
