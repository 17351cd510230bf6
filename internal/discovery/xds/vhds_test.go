package xds

import (
	"encoding/json"
	"strings"
	"testing"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/test/wait"
)

// A state-of-the-world client gets whole route configurations whatever its metadata says, and no
// virtual hosts.
func TestVirtualHostsAreForDeltaOnly(t *testing.T) {
	separate := (&View{}).put(separateRoutes(t, "80"), hostResource(t, answers("80/a.test:80", "a", "a.test")))
	whole := (&View{}).put(wholeRoutes(t, "80", answers("a.test:80", "a", "a.test")))
	c := dial(t, New(&classes{whole: NewLatestView(whole), separate: NewLatestView(separate), offer: true}, quiet(t), nil), nil)
	who := node(map[string]any{"VIRTUAL_HOST_DISCOVERY": "true"})

	sotw, err := c.StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []*discoveryv3.DiscoveryRequest{{Node: who, TypeUrl: VHDS.URL()}, {TypeUrl: RDS.URL(), ResourceNames: []string{"80"}}} {
		if err := sotw.Send(q); err != nil {
			t.Fatal(err)
		}
	}
	m, err := sotw.Recv()
	if err != nil || m.GetTypeUrl() != VHDS.URL() || len(m.GetResources()) > 0 {
		t.Fatalf("got %v, %v, want no virtual hosts", m, err)
	}
	m, err = sotw.Recv()
	if err != nil || m.GetTypeUrl() != RDS.URL() || len(m.GetResources()) != 1 {
		t.Fatalf("got %v, %v, want a route configuration", m, err)
	}
	config := &routev3.RouteConfiguration{}
	if err := m.GetResources()[0].UnmarshalTo(config); err != nil || config.GetVhds() != nil || len(config.GetVirtualHosts()) != 2 {
		t.Errorf("route configuration %v (%v), want a whole one", config, err)
	}

	g := open(t, c)
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: who, TypeUrl: RDS.URL(), ResourceNamesSubscribe: []string{"80"}})
	d, err := g.Recv()
	if err != nil || len(d.GetResources()) != 1 {
		t.Fatalf("got %v, %v, want a route configuration", d, err)
	}
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: RDS.URL(), ResponseNonce: d.GetNonce()})
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: VHDS.URL()})
	if d, err = g.Recv(); err != nil || d.GetTypeUrl() != VHDS.URL() || len(d.GetResources()) != 1 || d.GetResources()[0].GetName() != "80/a.test:80" {
		t.Errorf("got %v, %v, want a virtual host", d, err)
	}
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: VHDS.URL(), ResponseNonce: d.GetNonce(), ResourceNamesSubscribe: []string{"80/b.test"}})
	d, err = g.Recv()
	want := &discoveryv3.Resource{Name: "80/b.test", Aliases: []string{"80/b.test"}}
	if err != nil || len(d.GetResources()) != 1 || !proto.Equal(d.GetResources()[0], want) || len(d.GetRemovedResources()) > 0 {
		t.Errorf("got %v, %v for a virtual host that is not there, want %v", d, err, want)
	}
}

// A client that comes back with whole route configurations gets the views of one that does not take virtual hosts.
func TestAClientWithWholeRoutesKeepsThem(t *testing.T) {
	separate := (&View{}).put(separateRoutes(t, "80"), hostResource(t, answers("80/a.test:80", "a", "a.test")))
	reg := &classes{separate: NewLatestView(separate), offer: true}
	reg.whole = NewLatestView((&View{}).put(wholeRoutes(t, "80", answers("a.test:80", "a", "a.test"))))
	s := New(reg, quiet(t), nil)
	g := open(t, dial(t, s, nil))
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{
		Node: node(map[string]any{"VIRTUAL_HOST_DISCOVERY": "true"}), TypeUrl: RDS.URL(), ResourceNamesSubscribe: []string{"80"},
		InitialResourceVersions: map[string]string{"80": "0123456789abcdef0123456789abcdef"},
	})
	for _, text := range []string{"a", "b"} {
		d, err := g.Recv()
		if err != nil || len(d.GetResources()) != 1 {
			t.Fatalf("got %v, %v, want a route configuration", d, err)
		}
		config := &routev3.RouteConfiguration{}
		if err := d.GetResources()[0].GetResource().UnmarshalTo(config); err != nil || config.GetVhds() != nil || len(config.GetVirtualHosts()) != 2 ||
			config.GetVirtualHosts()[0].GetRoutes()[0].GetDirectResponse().GetBody().GetInlineString() != text {
			t.Errorf("route configuration %v (%v), want a whole one that answers %s", config, err, text)
		}
		ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: RDS.URL(), ResponseNonce: d.GetNonce()})
		wait.Until(t, "the acknowledgement", func() bool {
			st := s.Connections()[0].Types[RDS]
			return st.SentNonce == st.AckedNonce && st.AckedNonce == d.GetNonce()
		})
		reg.separate.Publish(separate.put(hostResource(t, answers("80/a.test:80", "b", "a.test"))))
		reg.whole.Publish((&View{}).put(wholeRoutes(t, "80", answers("a.test:80", "b", "a.test"))).At(2))
	}
}

// In the dump of a view virtual hosts are in their route configurations, with the names that they have there.
func TestDumpHasTheVirtualHostsOfRoutes(t *testing.T) {
	v := (&View{}).put(separateRoutes(t, "80"), separateRoutes(t, "90"),
		hostResource(t, answers("80/a.test:80", "a", "a.test")), hostResource(t, answers("80/b.test:80", "b", "b.test")), hostResource(t, answers("90/a.test:90", "c", "a.test")))
	got := map[string]string{}
	for _, part := range Dump(v).GetConfigs() {
		routes := &adminv3.RoutesConfigDump{}
		if part.UnmarshalTo(routes) != nil {
			continue
		}
		for _, d := range routes.GetDynamicRouteConfigs() {
			config := &routev3.RouteConfiguration{}
			if err := d.GetRouteConfig().UnmarshalTo(config); err != nil {
				t.Fatal(err)
			}
			var hosts []string
			for _, h := range config.GetVirtualHosts() {
				hosts = append(hosts, h.GetName())
			}
			got[config.GetName()] = strings.Join(hosts, " ")
		}
	}
	want := map[string]string{"80": "a.test:80 b.test:80 all", "90": "a.test:90 all"}
	a, _ := json.Marshal(got)
	b, _ := json.Marshal(want)
	if string(a) != string(b) {
		t.Errorf("virtual hosts %s, want %s", a, b)
	}
}
