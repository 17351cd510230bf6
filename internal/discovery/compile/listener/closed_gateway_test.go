package listener_test

import (
	"net/netip"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/listener"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/envoytest"
)

// TestClosedListenersOfRoutersAreAccepted: a real Envoy accepts what takes the place of a router's listener, which has the address of that and
// nothing that may be the reason of its refusal.
func TestClosedListenersOfRoutersAreAccepted(t *testing.T) {
	b := envoytest.Bootstrap()
	for i, g := range []listener.Gateway{
		{Chains: []listener.GatewayChain{{Routes: "http.80"}}},
		{TLS: true, Topology: mesh.Topology{ProxyProtocol: true}, Chains: []listener.GatewayChain{{
			ServerNames: []string{"a.example"}, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
			TLS: &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE, CredentialName: "none"}, Routes: "https",
		}}},
		{QUIC: true, TLS: true, Chains: []listener.GatewayChain{{Routes: "https"}}},
		{UDP: true, Chains: []listener.GatewayChain{{TCP: listener.TCP{Cluster: "x"}}}},
	} {
		g.Name, g.Address, g.Port = string(rune('a'+i)), "127.0.0.1", 0
		l := listener.ClosedGateway(g, listener.Env{Caps: ^mesh.Capability(0), Mesh: &meshv1.MeshConfig{AccessLogFile: "/no-such-folder/log"}})
		if len(l.GetAccessLog()) > 0 || !g.UDP && !g.QUIC && (len(l.GetListenerFilters()) > 0 || len(l.GetFilterChains()) != 1 || l.GetFilterChains()[0].GetTransportSocket() != nil || l.GetFilterChains()[0].GetFilterChainMatch() != nil) {
			t.Errorf("%v has more than one filter chain that closes", l)
		}
		if udp := l.GetAddress().GetSocketAddress().GetProtocol() == corev3.SocketAddress_UDP; udp != (g.UDP || g.QUIC) {
			t.Errorf("%v is at an address of UDP: %v", l, udp)
		}
		b.StaticResources.Listeners = append(b.StaticResources.Listeners, l)
	}
	envoytest.Start(t, b)
}
