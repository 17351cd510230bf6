package xds

import (
	"errors"
	"fmt"
	"reflect"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

func bundle(names ...string) TrustBundle {
	return TrustBundle{Certificates: names, CARoots: []string{"ab", "cd"}}
}

func setTrust(t *testing.T, s *Server, names ...string) {
	t.Helper()
	if err := s.SetTrust(bundle(names...)); err != nil {
		t.Fatal(err)
	}
}

// hasBundle checks what Istio's agent makes of a response: its first resource is a ProxyConfig.
func hasBundle(t *testing.T, resource *anypb.Any, names ...string) {
	t.Helper()
	var m meshv1.ProxyConfig
	if err := resource.UnmarshalTo(&m); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(m.GetCaCertificatesPem(), names) || m.GetProxyMetadata()[mesh.CARootsKey] != "ab,cd" {
		t.Errorf("got %v, want %q", &m, names)
	}
}

// recvTrust receives the next response, which must be a bundle, and returns its nonce.
func recvTrust(t *testing.T, g deltaStream, names ...string) string {
	t.Helper()
	m, err := g.Recv()
	if err != nil || m.GetTypeUrl() != mesh.TrustBundleType || len(m.GetResources()) != 1 {
		t.Fatalf("%v (%v), want a trust bundle", m, err)
	}
	hasBundle(t, m.GetResources()[0].GetResource(), names...)
	return m.GetNonce()
}

// awaitTrust waits until the named proxies, and no others, have not acknowledged the bundle.
func awaitTrust(t *testing.T, s *Server, waiting ...string) {
	t.Helper()
	wait.NoError(t, fmt.Sprintf("%q have not acknowledged the bundle", waiting), func() error {
		if got := s.Trust().Waiting; !reflect.DeepEqual(got, waiting) {
			return fmt.Errorf("waiting are %q", got)
		}
		return nil
	})
}

func trustRequest(nonce string) *discoveryv3.DeltaDiscoveryRequest {
	return &discoveryv3.DeltaDiscoveryRequest{TypeUrl: mesh.TrustBundleType, ResponseNonce: nonce}
}

// A bundle is sent when there is one, and again when it changes; one response is in flight. The
// acknowledgement of the newest counts.
func TestTrustBundle(t *testing.T) {
	s := New(&oneClass{latest: NewLatestView((&View{}).At(1))}, quiet(t), nil)
	g := open(t, dial(t, s, nil))
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), TypeUrl: mesh.TrustBundleType})
	awaitTrust(t, s, "web-1.shop")
	setTrust(t, s, "old")
	one := recvTrust(t, g, "old")
	setTrust(t, s, "old", "new") // not sent before the first is answered
	setTrust(t, s, "old", "newer")
	if got := s.Trust(); got.Connected != 1 || len(got.Waiting) != 1 {
		t.Errorf("nothing is acknowledged: %+v", got)
	}
	ask(t, g, trustRequest(one))
	two := recvTrust(t, g, "old", "newer")
	awaitTrust(t, s, "web-1.shop")
	ask(t, g, trustRequest(one)) // repeats an old acknowledgement
	ask(t, g, trustRequest(two))
	awaitTrust(t, s)
	setTrust(t, s, "old", "newer") // the same
	setTrust(t, s, "newer")
	three := recvTrust(t, g, "newer")
	refusal := trustRequest(three)
	refusal.ErrorDetail = &rpcstatus.Status{Message: "no"}
	ask(t, g, refusal) // it is not sent again until it changes
	setTrust(t, s, "newest")
	ask(t, g, trustRequest(recvTrust(t, g, "newest")))
	awaitTrust(t, s)
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: mesh.TrustBundleType, ResourceNamesUnsubscribe: []string{"*"}})
	for _, typ := range []Type{CDS, LDS} {
		ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ.URL()})
		if m, err := g.Recv(); err != nil || m.GetTypeUrl() != typ.URL() {
			t.Errorf("%v (%v): sent to an agent that has unsubscribed", m, err)
		}
		setTrust(t, s, "last")
	}
	awaitTrust(t, s, "web-1.shop")
}

func TestTrustBundleStateOfTheWorld(t *testing.T) {
	s := New(&oneClass{latest: NewLatestView((&View{}).At(1))}, quiet(t), nil)
	setTrust(t, s, "old")
	g, err := dial(t, s, nil).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := &discoveryv3.DiscoveryRequest{Node: node(nil), TypeUrl: mesh.TrustBundleType}
	for _, names := range [][]string{{"old"}, {"new", "old"}} {
		setTrust(t, s, names...)
		if err := g.Send(r); err != nil {
			t.Fatal(err)
		}
		m, err := g.Recv()
		if err != nil || m.GetTypeUrl() != mesh.TrustBundleType || len(m.GetResources()) != 1 {
			t.Fatalf("%v (%v), want a trust bundle", m, err)
		}
		hasBundle(t, m.GetResources()[0], names...)
		r = &discoveryv3.DiscoveryRequest{TypeUrl: mesh.TrustBundleType, ResponseNonce: m.GetNonce(), VersionInfo: m.GetVersionInfo()}
	}
	if err := g.Send(r); err != nil {
		t.Fatal(err)
	}
	awaitTrust(t, s)
}

// An agent without PCDS is not sent a bundle, which Envoy would not know. It has not acknowledged it,
// neither while it is connected nor when it has left; its next stream may.
func TestTrustBundleOfOthers(t *testing.T) {
	s := New(&oneClass{latest: NewLatestView((&View{}).At(1))}, quiet(t), nil)
	setTrust(t, s, "old")
	c := dial(t, s, nil)
	g := open(t, c)
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), TypeUrl: CDS.URL()})
	if m, err := g.Recv(); err != nil || m.GetTypeUrl() != CDS.URL() {
		t.Fatalf("%v (%v), want clusters", m, err)
	}
	awaitTrust(t, s, "web-1.shop")
	if err := g.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Recv(); err == nil {
		t.Fatal("the stream goes on")
	}
	wait.NoError(t, "the proxy has left", func() error {
		if len(s.Connections()) > 0 {
			return errors.New("it is connected")
		}
		return nil
	})
	awaitTrust(t, s, "web-1.shop")
	if got := s.Trust(); got.Connected != 0 {
		t.Errorf("%d proxies are connected", got.Connected)
	}
	g = open(t, c)
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), TypeUrl: mesh.TrustBundleType})
	ask(t, g, trustRequest(recvTrust(t, g, "old")))
	awaitTrust(t, s)
	// With the next bundle, only proxies that are connected, or were since, count.
	if err := g.CloseSend(); err != nil {
		t.Fatal(err)
	}
	_, _ = g.Recv()
	wait.NoError(t, "the proxy has left", func() error {
		if len(s.Connections()) > 0 {
			return errors.New("it is connected")
		}
		return nil
	})
	setTrust(t, s, "new")
	awaitTrust(t, s)
}

// A bundle that differs in roots of others only does not excuse a proxy that left without one of the CA's roots.
func TestTrustBundleOfOtherRootsKeepsWhoLeft(t *testing.T) {
	s := New(&oneClass{latest: NewLatestView((&View{}).At(1))}, quiet(t), nil)
	setTrust(t, s, "old", "new")
	g := open(t, dial(t, s, nil))
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), TypeUrl: mesh.TrustBundleType})
	recvTrust(t, g, "old", "new")
	if err := g.CloseSend(); err != nil {
		t.Fatal(err)
	}
	_, _ = g.Recv()
	wait.Until(t, "the proxy has left", func() bool { return len(s.Connections()) == 0 })
	awaitTrust(t, s, "web-1.shop")
	setTrust(t, s, "old", "new", "of a peer")
	awaitTrust(t, s, "web-1.shop")
	if err := s.SetTrust(TrustBundle{Certificates: []string{"new"}, CARoots: []string{"cd"}}); err != nil {
		t.Fatal(err)
	}
	awaitTrust(t, s)
}
