package cluster

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	proxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/proxy_protocol/v3"
	rawv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

const proxyProtocolSocket = "envoy.transport_sockets.upstream_proxy_protocol"

// setProxyProtocol wraps the transport sockets, so that connections begin with the client's address. It returns false if the
// proxy cannot: the server would take the first bytes of a connection for the header. [control-plane 1.8.13]
func setProxyProtocol(c *clusterv3.Cluster, in Input) bool {
	p := in.Policy.GetProxyProtocol()
	if p == nil {
		return true
	}
	if !in.Caps.Has(mesh.ProxyProtocol) {
		return false
	}
	config := &corev3.ProxyProtocolConfig{Version: corev3.ProxyProtocolConfig_V1}
	if p.Version == networking.TrafficPolicy_ProxyProtocol_V2 {
		config.Version = corev3.ProxyProtocolConfig_V2
	}
	wrap := func(s *corev3.TransportSocket) *corev3.TransportSocket {
		return &corev3.TransportSocket{Name: proxyProtocolSocket, ConfigType: &corev3.TransportSocket_TypedConfig{
			TypedConfig: marshal.MustAny(&proxyv3.ProxyProtocolUpstreamTransport{Config: config, TransportSocket: s}),
		}}
	}
	for _, m := range c.TransportSocketMatches {
		m.TransportSocket = wrap(m.TransportSocket)
	}
	switch {
	case c.TransportSocket != nil:
		c.TransportSocket = wrap(c.TransportSocket)
	case len(c.TransportSocketMatches) == 0:
		c.TransportSocket = wrap(&corev3.TransportSocket{Name: rawSocket, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: marshal.MustAny(&rawv3.RawBuffer{})}})
	}
	return true
}
