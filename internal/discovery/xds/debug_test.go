package xds

import (
	"context"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

func introspection(open bool) Introspection {
	return Introspection{
		Namespace: "istio-system", Open: open, Instance: "{}", View: func(string) *View { return &View{} },
		Page: func(_ context.Context, name string) []byte { return []byte("page " + name) },
	}
}

func TestWhoMayAskForDebugTypes(t *testing.T) {
	system, shop := mesh.Identity{Namespace: "istio-system", ServiceAccount: "a"}, mesh.Identity{Namespace: "shop", ServiceAccount: "a"}
	for _, c := range []struct {
		name string
		who  caller
		open bool
		want codes.Code
	}{
		{"the control plane's namespace", caller{identity: system, proven: true, address: "10.0.0.1"}, false, codes.OK},
		{"another namespace", caller{identity: shop, proven: true, address: "10.0.0.1"}, false, codes.PermissionDenied},
		{"another namespace, this host", caller{identity: shop, proven: true, address: "127.0.0.1"}, false, codes.PermissionDenied},
		{"plaintext, this host", caller{address: "127.0.0.1"}, false, codes.OK},
		{"plaintext, this host, IPv6", caller{address: "::1"}, false, codes.OK},
		{"plaintext, another host by Envoy", caller{address: "127.0.0.6"}, false, codes.PermissionDenied},
		{"plaintext, another host", caller{address: "10.0.0.1"}, false, codes.PermissionDenied},
		{"plaintext, no address", caller{address: "pipe"}, false, codes.PermissionDenied},
		{"plaintext, another host, open to all", caller{address: "10.0.0.1"}, true, codes.OK},
	} {
		i := introspection(c.open)
		if got := status.Code(i.allow(c.who)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	if got := status.Code((&Introspection{}).allow(caller{address: "127.0.0.1"})); got != codes.Unimplemented {
		t.Errorf("without introspection: %s, want Unimplemented", got)
	}
}

// A tool may ask for several pages on one stream, and acknowledge; a proxy's types are for proxies' streams.
func TestDebugStreamAnswersEachRequestOnce(t *testing.T) {
	s := New(&oneClass{latest: NewLatestView(&View{})}, quiet(t), nil)
	s.Introspect(introspection(true))
	g := open(t, dial(t, s, nil))
	page := func(name, nonce string) {
		ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: debugPageURL, ResourceNamesSubscribe: []string{name}, ResponseNonce: nonce})
	}
	received := func(want string) string {
		m, err := g.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Resources) != 1 || string(m.Resources[0].Resource.Value) != want {
			t.Fatalf("got %v, want %q", m, want)
		}
		return m.Nonce
	}
	page("a", "mine")
	nonce := received("page a")
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: debugPageURL, ResponseNonce: nonce})
	page("b", nonce)
	received("page b")
	page("b", "")
	received("page b")
	if n := len(s.Connections()); n != 0 {
		t.Errorf("%d proxies are connected, want none", n)
	}
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), TypeUrl: CDS.URL()})
	if _, err := g.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("clusters on such a stream: %v, want InvalidArgument", err)
	}
}

// A proxy's stream answers the same questions, which agents pass on, to the same callers.
func TestProxiesAskForDebugTypes(t *testing.T) {
	for namespace, want := range map[string]codes.Code{"istio-system": codes.OK, "shop": codes.PermissionDenied} {
		s := New(&oneClass{latest: NewLatestView(&View{})}, quiet(t), nil)
		s.Introspect(introspection(false))
		g := open(t, dial(t, s, as(mesh.Identity{Namespace: namespace, ServiceAccount: "a"})))
		n := node(map[string]any{"NAMESPACE": namespace})
		n.Id = "sidecar~10.1.2.3~web-1." + namespace + "~x"
		ask(t, g, first(n))
		if _, err := g.Recv(); err != nil {
			t.Fatal(err)
		}
		ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: debugSyncURL})
		if m, err := g.Recv(); status.Code(err) != want || err == nil && (m.TypeUrl != debugSyncURL || len(m.Resources) != 1) {
			t.Errorf("%s: %v, %v, want %s", namespace, m, err, want)
		}
	}
}
