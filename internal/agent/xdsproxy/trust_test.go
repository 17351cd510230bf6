package xdsproxy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// bundler is a control plane that answers requests for trust bundles with a list of bundles, one
// after the other, and notes them. Other requests are answered with their type.
type bundler struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	bundles [][]string

	mu  sync.Mutex
	log []string
}

func (b *bundler) note(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.log = append(b.log, text)
}

func (b *bundler) noted() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.log)
}

// config is the n-th bundle. Its field proxy_metadata comes before ca_certificates_pem on the wire, among others.
func (b *bundler) config(n int) *anypb.Any {
	m := &meshv1.ProxyConfig{BinaryPath: "x", StatNameLength: 7, CaCertificatesPem: b.bundles[n],
		ProxyMetadata: map[string]string{"A": "b", mesh.CARootsKey: "one,two"}}
	text, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return &anypb.Any{TypeUrl: mesh.TrustBundleType, Value: text}
}

func (b *bundler) DeltaAggregatedResources(g discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	next := 0
	for {
		m, err := g.Recv()
		if err != nil {
			return err
		}
		r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: m.GetTypeUrl(), Nonce: "n"}
		if m.GetTypeUrl() == mesh.TrustBundleType {
			b.note(fmt.Sprintf("%s %s", m.GetResponseNonce(), m.GetErrorDetail().GetMessage()))
			if next == len(b.bundles) {
				continue
			}
			next++
			r.Nonce = fmt.Sprint("bundle-", next)
			r.Resources = []*discoveryv3.Resource{{Version: "v", Resource: b.config(next - 1)}}
		} else {
			b.note(m.GetTypeUrl())
		}
		if err := g.Send(r); err != nil {
			return err
		}
	}
}

func (b *bundler) StreamAggregatedResources(g discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	next := 0
	for {
		m, err := g.Recv()
		if err != nil {
			return err
		}
		r := &discoveryv3.DiscoveryResponse{TypeUrl: m.GetTypeUrl(), Nonce: "n", VersionInfo: "v"}
		if m.GetTypeUrl() == mesh.TrustBundleType {
			b.note(fmt.Sprintf("%s %s", m.GetResponseNonce(), m.GetErrorDetail().GetMessage()))
			if (m.GetVersionInfo() == "v") != (m.GetResponseNonce() != "" && m.GetErrorDetail() == nil) {
				b.note(fmt.Sprintf("version %q", m.GetVersionInfo()))
			}
			if next == len(b.bundles) {
				continue
			}
			next++
			r.Nonce, r.Resources = fmt.Sprint("bundle-", next), []*anypb.Any{b.config(next - 1)}
		} else {
			b.note(m.GetTypeUrl())
		}
		if err := g.Send(r); err != nil {
			return err
		}
	}
}

// store is a Trust that rejects what contains "bad".
type store struct {
	mu  sync.Mutex
	has string
}

func (s *store) SetBundle(certificates, own []string) error {
	if slices.Contains(certificates, "bad") {
		return errors.New("not a certificate" + strings.Repeat("é", maxProblem))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.has = strings.Join(certificates, " ") + " of " + strings.Join(own, " ")
	return nil
}

func (s *store) get() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.has
}

func trusting(t *testing.T, b discoveryv3.AggregatedDiscoveryServiceServer, trust Trust, adjust ...func(*Config)) *Proxy {
	t.Helper()
	return proxyOf(t, b, func(c *Config) {
		c.Trust = trust
		for _, f := range adjust {
			f(c)
		}
	})
}

const clusterType = "type.googleapis.com/envoy.config.cluster.v3.Cluster"

// The bundle is requested after the first request for listeners, given to the store, and acknowledged
// or rejected; Envoy gets only what it has requested.
func TestTrustBundle(t *testing.T) {
	for _, delta := range []bool{true, false} {
		b := &bundler{bundles: [][]string{{"old"}, {"bad"}, {"new", "old"}}}
		trust := &store{}
		p := trusting(t, b, trust)
		var send func(typ string) (answer string)
		if delta {
			g, err := envoy(t, p).DeltaAggregatedResources(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			send = func(typ string) string {
				if err := g.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ}); err != nil {
					t.Fatal(err)
				}
				m, err := g.Recv()
				if err != nil {
					t.Fatal(err)
				}
				return m.GetTypeUrl()
			}
		} else {
			g, err := envoy(t, p).StreamAggregatedResources(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			send = func(typ string) string {
				if err := g.Send(&discoveryv3.DiscoveryRequest{TypeUrl: typ}); err != nil {
					t.Fatal(err)
				}
				m, err := g.Recv()
				if err != nil {
					t.Fatal(err)
				}
				return m.GetTypeUrl()
			}
		}
		for _, typ := range []string{clusterType, listenerType, listenerType, clusterType} {
			if got := send(typ); got != typ {
				t.Errorf("delta %v: Envoy got %s, want %s", delta, got, typ)
			}
		}
		wait.Until(t, "the last bundle is acknowledged", func() bool { return slices.Contains(b.noted(), "bundle-3 ") })
		if got, want := trust.get(), "new old of one two"; got != want {
			t.Errorf("delta %v: the store has %q, want %q", delta, got, want)
		}
		var own []string
		log := b.noted()
		for _, text := range log {
			if text != clusterType && text != listenerType {
				own = append(own, text[:min(len(text), 26)])
			}
		}
		if want := []string{" ", "bundle-1 ", "bundle-2 not a certificate", "bundle-3 "}; !slices.Equal(own, want) {
			t.Errorf("delta %v: the agent sent %q, want %q", delta, own, want)
		}
		if !slices.Equal(log[:3], []string{clusterType, listenerType, " "}) {
			t.Errorf("delta %v: the first requests are %q", delta, log[:3])
		}
		if s := p.State(); s.Responses != 4 || s.Requests != 4 {
			t.Errorf("delta %v: %d requests and %d responses are counted, want Envoy's 4", delta, s.Requests, s.Responses)
		}
	}
}

func TestWithoutATrustStoreNoBundleIsRequested(t *testing.T) {
	b := &bundler{bundles: [][]string{{"old"}}}
	g, err := envoy(t, trusting(t, b, nil)).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, typ := range []string{listenerType, clusterType, mesh.TrustBundleType} { // the agent answers the last
		if err := g.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ}); err != nil {
			t.Fatal(err)
		}
		if m, err := g.Recv(); err != nil || m.GetTypeUrl() != typ {
			t.Fatalf("%v, %v", m, err)
		}
	}
	if got := b.noted(); !slices.Equal(got, []string{listenerType, clusterType}) {
		t.Errorf("requested were %q", got)
	}
}

// The type of a message is found in buffers of any size, and nothing is found in what is not a message.
func TestTopField(t *testing.T) {
	text, err := proto.Marshal(&discoveryv3.DeltaDiscoveryResponse{SystemVersionInfo: "v", Nonce: "n", TypeUrl: mesh.TrustBundleType,
		Resources: []*discoveryv3.Resource{{Name: strings.Repeat("x", 300)}}})
	if err != nil {
		t.Fatal(err)
	}
	split := func(text []byte, size int) (out mem.BufferSlice) {
		for part := range slices.Chunk(text, size) {
			out = append(out, mem.SliceBuffer(part))
		}
		return out
	}
	for _, size := range []int{1, 2, 7, 4096} {
		if got := topType(split(text, size), len(mesh.TrustBundleType)); got != mesh.TrustBundleType {
			t.Errorf("in buffers of %d: %q", size, got)
		}
		if got := topType(split(text, size), len(listenerType)); got != "" {
			t.Errorf("a field of another length: %q", got)
		}
		for n := range text {
			_ = topType(split(text[:n], size), len(mesh.TrustBundleType))
		}
	}
	if got := topType(split([]byte{0x12, 0xff, 0xff, 0xff, 0xff, 0x0f}, 3), 1); got != "" {
		t.Errorf("a length beyond the message: %q", got)
	}
}

func FuzzReadBundle(f *testing.F) {
	b := &bundler{bundles: [][]string{{"a", "b"}}}
	for _, m := range []proto.Message{
		&discoveryv3.DeltaDiscoveryResponse{TypeUrl: mesh.TrustBundleType, Resources: []*discoveryv3.Resource{{Resource: b.config(0)}}},
		&discoveryv3.DiscoveryResponse{TypeUrl: mesh.TrustBundleType, Resources: []*anypb.Any{b.config(0)}},
	} {
		text, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, true)
		f.Add(text, false)
	}
	f.Fuzz(func(t *testing.T, text []byte, delta bool) {
		if got, err := readBundle(text, delta); err == nil && len(got.certificates) > len(text) {
			t.Errorf("%d certificates in %d bytes", len(got.certificates), len(text))
		}
		_ = topType(mem.BufferSlice{mem.SliceBuffer(text)}, len(mesh.TrustBundleType))
	})
}
