package xds

import (
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// emptyTable checks what an agent of Istio makes of a response: its first resource is a NameTable,
// whatever it is called, and its map has no entries.
func emptyTable(t *testing.T, tables []*anypb.Any) {
	t.Helper()
	if len(tables) != 1 || tables[0].GetTypeUrl() != mesh.NameTableType || len(tables[0].GetValue()) != 0 {
		t.Errorf("%v, want one empty table", tables)
	}
}

// TestNameTable plays Istio's agent, of a class without a table, which asks for the table after Envoy has
// asked for listeners, and waits for it: incrementally and as the state of the world. What it says
// to the table is not answered: the next response is that for clusters.
func TestNameTable(t *testing.T) {
	s := New(&oneClass{latest: NewLatestView((&View{}).At(1))}, quiet(t), nil)
	c := dial(t, s, nil)
	refusal := &rpcstatus.Status{Message: "no"}

	t.Run("delta", func(t *testing.T) {
		g := open(t, c)
		for _, r := range []*discoveryv3.DeltaDiscoveryRequest{
			{Node: node(nil), TypeUrl: LDS.URL()},
			{TypeUrl: mesh.NameTableType},
			{TypeUrl: mesh.NameTableType, ResponseNonce: "nds-1"},
			{TypeUrl: mesh.NameTableType, ResponseNonce: "nds-1", ErrorDetail: refusal},
			{TypeUrl: mesh.NameTableType, ResourceNamesUnsubscribe: []string{"*"}},
			{TypeUrl: CDS.URL()},
		} {
			ask(t, g, r)
		}
		for _, url := range []string{LDS.URL(), mesh.NameTableType, CDS.URL()} {
			m, err := g.Recv()
			if err != nil || m.GetTypeUrl() != url || m.GetNonce() == "" {
				t.Fatalf("%v (%v), want a response of %s", m, err, url)
			}
			if url == mesh.NameTableType {
				var tables []*anypb.Any
				for _, r := range m.GetResources() {
					tables = append(tables, r.GetResource())
				}
				emptyTable(t, tables)
			}
		}
	})
	t.Run("state of the world", func(t *testing.T) {
		g, err := c.StreamAggregatedResources(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range []*discoveryv3.DiscoveryRequest{
			{Node: node(nil), TypeUrl: mesh.NameTableType},
			{TypeUrl: mesh.NameTableType, ResponseNonce: "nds-1", VersionInfo: "empty"},
			{TypeUrl: mesh.NameTableType, ResponseNonce: "nds-1", ErrorDetail: refusal},
			{TypeUrl: CDS.URL()},
		} {
			if err := g.Send(r); err != nil {
				t.Fatal(err)
			}
		}
		for _, url := range []string{mesh.NameTableType, CDS.URL()} {
			m, err := g.Recv()
			if err != nil || m.GetTypeUrl() != url || m.GetNonce() == "" {
				t.Fatalf("%v (%v), want a response of %s", m, err, url)
			}
			if url == mesh.NameTableType {
				emptyTable(t, m.GetResources())
			}
		}
	})
}

// Nobody is sent the table who does not ask for it: Envoy would not know what it is.
func TestNameTableOnlyWhereAskedFor(t *testing.T) {
	s := New(&oneClass{latest: NewLatestView((&View{}).At(1))}, quiet(t), nil)
	g := open(t, dial(t, s, nil))
	for i, typ := range []Type{CDS, LDS} {
		r := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ.URL()}
		if i == 0 {
			r.Node = node(map[string]any{"DNS_CAPTURE": "true"})
		}
		ask(t, g, r)
		for {
			m, err := g.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if m.GetTypeUrl() == mesh.NameTableType {
				t.Error("the table was sent unasked")
			}
			ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce()})
			if m.GetTypeUrl() == typ.URL() {
				break
			}
		}
	}
}
