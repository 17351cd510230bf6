package xdsproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// namer is a control plane that answers requests for name tables with one after the other, and notes them. Other
// requests are answered with their type.
type namer struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	tables []string

	mu  sync.Mutex
	log []string
}

// next notes a request for a table, and returns the resource of the answer; false for no answer.
func (n *namer) next(i *int, nonce, problem string) (*anypb.Any, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.log = append(n.log, nonce+" "+problem)
	if *i == len(n.tables) {
		return nil, false
	}
	*i++
	return &anypb.Any{TypeUrl: mesh.NameTableType, Value: []byte(n.tables[*i-1])}, true
}

func (n *namer) DeltaAggregatedResources(g discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	i := 0
	for {
		m, err := g.Recv()
		if err != nil {
			return err
		}
		r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: m.GetTypeUrl(), Nonce: "n"}
		if m.GetTypeUrl() == mesh.NameTableType {
			table, ok := n.next(&i, m.GetResponseNonce(), m.GetErrorDetail().GetMessage())
			if !ok {
				continue
			}
			r.Nonce, r.Resources = fmt.Sprint("names-", i), []*discoveryv3.Resource{{Resource: table}}
		}
		if err := g.Send(r); err != nil {
			return err
		}
	}
}

func (n *namer) StreamAggregatedResources(g discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	i := 0
	for {
		m, err := g.Recv()
		if err != nil {
			return err
		}
		r := &discoveryv3.DiscoveryResponse{TypeUrl: m.GetTypeUrl(), Nonce: "n", VersionInfo: "v"}
		if m.GetTypeUrl() == mesh.NameTableType {
			table, ok := n.next(&i, m.GetResponseNonce(), m.GetErrorDetail().GetMessage())
			if !ok {
				continue
			}
			r.Nonce, r.Resources = fmt.Sprint("names-", i), []*anypb.Any{table}
		}
		if err := g.Send(r); err != nil {
			return err
		}
	}
}

// tables is a Names that refuses what contains "bad".
type tables struct {
	mu  sync.Mutex
	has []string
}

func (n *tables) SetNames(text []byte) error {
	if bytes.Contains(text, []byte("bad")) {
		return errors.New("invalid encoding")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.has = append(n.has, string(text))
	return nil
}

// The table is requested after the first request for listeners, and acknowledged or rejected; Envoy gets only what it has requested.
func TestNameTables(t *testing.T) {
	for _, delta := range []bool{true, false} {
		n, names := &namer{tables: []string{"one", "bad", "three"}}, &tables{}
		p := trusting(t, n, nil, func(c *Config) { c.Names = names })
		var send func(typ string) (answer string, err error)
		if delta {
			g, err := envoy(t, p).DeltaAggregatedResources(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			send = func(typ string) (string, error) {
				if err := g.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ}); err != nil {
					return "", err
				}
				m, err := g.Recv()
				return m.GetTypeUrl(), err
			}
		} else {
			g, err := envoy(t, p).StreamAggregatedResources(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			send = func(typ string) (string, error) {
				if err := g.Send(&discoveryv3.DiscoveryRequest{TypeUrl: typ}); err != nil {
					return "", err
				}
				m, err := g.Recv()
				return m.GetTypeUrl(), err
			}
		}
		for _, typ := range []string{clusterType, listenerType, listenerType, clusterType} {
			if got, err := send(typ); err != nil || got != typ {
				t.Errorf("delta %v: Envoy got %s, %v; want %s", delta, got, err, typ)
			}
		}
		want := []string{" ", "names-1 ", "names-2 invalid encoding", "names-3 "}
		wait.Until(t, "all tables are answered", func() bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return len(n.log) == len(want)
		})
		if !slices.Equal(n.log, want) || !slices.Equal(names.has, []string{"one", "three"}) {
			t.Errorf("delta %v: the agent sent %q and has %q", delta, n.log, names.has)
		}
	}
}

// Without a client, the agent's own stream gets the table, and acknowledges what else comes.
func TestOwnStreamGetsNames(t *testing.T) {
	n, names := &namer{tables: []string{"one", "two"}}, &tables{}
	p := trusting(t, n, nil, func(c *Config) { c.Names = names })
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.OwnStream(ctx) }()
	wait.Until(t, "both tables have come, and other responses are answered", func() bool {
		names.mu.Lock()
		defer names.mu.Unlock()
		return len(names.has) == 2 && p.State().Responses > 2
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
