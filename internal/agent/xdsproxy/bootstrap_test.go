package xdsproxy

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// booter is a control plane that gives one bootstrap, unless it is silent, and notes who asks and what is answered.
type booter struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	text   string
	none   bool
	silent bool

	mu  sync.Mutex
	log []string
}

func (b *booter) note(line string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.log = append(b.log, line)
}

func (b *booter) lines() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.log)
}

func (b *booter) StreamAggregatedResources(g discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	m, err := g.Recv()
	if err != nil {
		return err
	}
	b.note(m.GetTypeUrl() + " of " + m.GetNode().GetId())
	if b.silent {
		<-g.Context().Done() // the client's deadline is the server's too, and either may be first
		return status.FromContextError(g.Context().Err()).Err()
	}
	r := &discoveryv3.DiscoveryResponse{TypeUrl: m.GetTypeUrl(), Nonce: "n", VersionInfo: "7"}
	if !b.none {
		r.Resources = []*anypb.Any{{TypeUrl: mesh.BootstrapType, Value: []byte(b.text)}}
	}
	return g.Send(r)
}

func (b *booter) DeltaAggregatedResources(g discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	for {
		m, err := g.Recv()
		if err != nil {
			return err
		}
		r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: m.GetTypeUrl(), Nonce: "n"}
		if m.GetTypeUrl() == mesh.BootstrapType {
			b.note("bootstrap " + m.GetResponseNonce() + " " + m.GetErrorDetail().GetMessage())
			if m.GetResponseNonce() != "" {
				continue
			}
			r.Nonce, r.SystemVersionInfo = "b", "8"
			r.Resources = []*discoveryv3.Resource{{Resource: &anypb.Any{TypeUrl: mesh.BootstrapType, Value: []byte(b.text)}}}
		}
		if err := g.Send(r); err != nil {
			return err
		}
	}
}

// boots is a Bootstraps that refuses "bad".
type boots struct {
	mu  sync.Mutex
	has []string
}

func (b *boots) SetBootstrap(version string, text []byte) error {
	if string(text) == "bad" {
		return errors.New("it is bad")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.has = append(b.has, version+" "+string(text))
	return nil
}

func TestAskBootstrap(t *testing.T) {
	node, err := proto.Marshal(&corev3.Node{Id: "sidecar~x"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		from *booter
		want string // an error
		has  []string
	}{
		{"one", &booter{text: "one"}, "", []string{"7 one"}},
		{"nothing is changed", &booter{}, "", []string{"7 "}},
		{"none", &booter{none: true}, "the control plane has none", nil},
		{"bad", &booter{text: "bad"}, "it is bad", nil},
		{"no answer", &booter{silent: true}, "deadline", nil},
		{"too large", &booter{text: strings.Repeat("x", maxBootstrap)}, "larger than max", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			has := &boots{}
			p := trusting(t, tt.from, nil, func(c *Config) { c.Bootstraps = has })
			limit := wait.Bound
			if tt.from.silent {
				limit = time.Second / 4
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			err := p.AskBootstrap(ctx, node)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(strings.ToLower(err.Error()), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if !slices.Equal(has.has, tt.has) {
				t.Errorf("has %.100q, want %q", has.has, tt.has)
			}
			if got := tt.from.lines(); !tt.from.silent && !slices.Equal(got, []string{mesh.BootstrapType + " of sidecar~x"}) {
				t.Errorf("asked: %q", got)
			}
		})
	}
}

// On Envoy's stream the bootstrap is requested after the first request for listeners, and acknowledged or rejected. What a client on the socket
// asks for of its type does not reach the control plane.
func TestBootstrapsOnEnvoysStream(t *testing.T) {
	for text, want := range map[string][]string{"one": {"bootstrap  ", "bootstrap b "}, "bad": {"bootstrap  ", "bootstrap b it is bad"}} {
		from, has := &booter{text: text}, &boots{}
		p := trusting(t, from, nil, func(c *Config) { c.Bootstraps = has })
		g, err := envoy(t, p).DeltaAggregatedResources(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, typ := range []string{mesh.BootstrapType, listenerType, clusterType} {
			if err := g.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ}); err != nil {
				t.Fatal(err)
			}
			if m, err := g.Recv(); err != nil || m.GetTypeUrl() != typ || len(m.GetResources()) > 0 {
				t.Errorf("%s: Envoy got %v, %v", typ, m, err)
			}
		}
		wait.Until(t, "the bootstrap is answered", func() bool { return len(from.lines()) == len(want) })
		if got := from.lines(); !slices.Equal(got, want) {
			t.Errorf("the agent sent %q, want %q", got, want)
		}
	}
}
