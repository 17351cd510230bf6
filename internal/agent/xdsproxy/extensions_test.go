package xdsproxy

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilothouse/pilothouse/test/wait"
)

// shop is a control plane that answers requests for extensions with two of them, and others with nothing.
type shop struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	mu   sync.Mutex
	said []string // answers of clients about extensions
}

func (s *shop) note(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said = append(s.said, text)
}

func (s *shop) get() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.said)
}

func extension(text string) *anypb.Any {
	return &anypb.Any{TypeUrl: extensionType, Value: []byte(text)}
}

func (s *shop) DeltaAggregatedResources(g discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	for {
		m, err := g.Recv()
		if err != nil {
			return err
		}
		r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: m.GetTypeUrl(), Nonce: "n", SystemVersionInfo: "v", RemovedResources: []string{"gone"}}
		if m.GetTypeUrl() == extensionType {
			if m.GetResponseNonce() != "" {
				s.note(m.GetResponseNonce() + " " + m.GetErrorDetail().GetMessage())
				continue
			}
			r.Resources = []*discoveryv3.Resource{{Name: "a", Version: "1", Resource: extension("one")}, {Name: "b", Aliases: []string{"b"}}, {Name: "c", Resource: extension(m.GetResourceNamesSubscribe()[0])}}
		}
		if err := g.Send(r); err != nil {
			return err
		}
	}
}

func (s *shop) StreamAggregatedResources(g discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	m, err := g.Recv()
	if err == nil {
		err = g.Send(&discoveryv3.DiscoveryResponse{TypeUrl: m.GetTypeUrl(), Nonce: "n", VersionInfo: "v", Resources: []*anypb.Any{extension("one"), extension(m.GetResourceNames()[0])}})
	}
	if err == nil {
		if m, err = g.Recv(); err == nil {
			s.note(m.GetResponseNonce() + " " + m.GetErrorDetail().GetMessage())
		}
	}
	return err
}

// kitchen converts extensions when it is open.
type kitchen struct{ open chan struct{} }

func (k kitchen) Convert(ctx context.Context, config []byte) ([]byte, error) {
	select {
	case <-k.open:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if string(config) == "bad" {
		return nil, errors.New("spoilt")
	}
	return append([]byte("done "), config...), nil
}

// Extensions are converted before Envoy gets them; what else comes does not wait for that. What cannot be converted is rejected.
func TestExtensionsAreConverted(t *testing.T) {
	s, k := &shop{}, kitchen{make(chan struct{})}
	p := proxyOf(t, s, func(c *Config) { c.Extensions = k })
	g, err := envoy(t, p).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []*discoveryv3.DeltaDiscoveryRequest{
		{TypeUrl: extensionType, ResourceNamesSubscribe: []string{"two"}}, {TypeUrl: clusterType}, {TypeUrl: extensionType, ResourceNamesSubscribe: []string{"bad"}},
		{TypeUrl: extensionType, ResourceNamesSubscribe: []string{"three"}},
	} {
		if err := g.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	if m, err := g.Recv(); err != nil || m.GetTypeUrl() != clusterType {
		t.Fatalf("got %v, %v, want clusters although an extension is waited for", m, err)
	}
	close(k.open)
	for _, want := range []string{"done two", "done three"} {
		m, err := g.Recv()
		if err != nil || m.GetTypeUrl() != extensionType || m.GetNonce() != "n" || m.GetSystemVersionInfo() != "v" || len(m.GetResources()) != 3 || !slices.Equal(m.GetRemovedResources(), []string{"gone"}) {
			t.Fatalf("got %v, %v, want extensions", m, err)
		}
		r := m.GetResources()
		if string(r[0].GetResource().GetValue()) != "done one" || r[0].GetName() != "a" || r[0].GetVersion() != "1" || r[0].GetResource().GetTypeUrl() != extensionType ||
			r[1].GetResource() != nil || r[1].GetName() != "b" || string(r[2].GetResource().GetValue()) != want {
			t.Errorf("got %v, want done one and %s", r, want)
		}
	}
	wait.Until(t, "the rejection", func() bool { return slices.Equal(s.get(), []string{"n spoilt"}) })

	sotw, err := envoy(t, p).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := sotw.Send(&discoveryv3.DiscoveryRequest{TypeUrl: extensionType, ResourceNames: []string{"two"}}); err != nil {
		t.Fatal(err)
	}
	if m, err := sotw.Recv(); err != nil || len(m.GetResources()) != 2 || string(m.GetResources()[1].GetValue()) != "done two" {
		t.Errorf("got %v, %v, want done two", m, err)
	}
	sotw, err = envoy(t, p).StreamAggregatedResources(t.Context())
	if err == nil {
		err = sotw.Send(&discoveryv3.DiscoveryRequest{TypeUrl: extensionType, ResourceNames: []string{"bad"}})
	}
	if err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the second rejection", func() bool { return slices.Equal(s.get(), []string{"n spoilt", "n spoilt"}) })
}
