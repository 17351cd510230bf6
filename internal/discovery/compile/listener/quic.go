package listener

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	quicv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/quic/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
)

// buildQUIC returns a listener of a router that serves HTTP/3: the hosts, certificates and routes of those of HTTPS. QUIC needs TLS 1.3, whatever
// versions the server has. [control-plane 1.2.34]
func buildQUIC(g Gateway, e Env) *listenerv3.Listener {
	l := &listenerv3.Listener{
		Name: g.Name, Address: datagrams(address(g.Address, g.Port)), TrafficDirection: corev3.TrafficDirection_OUTBOUND,
		UdpListenerConfig: &listenerv3.UdpListenerConfig{QuicOptions: &listenerv3.QuicProtocolOptions{}},
	}
	for _, a := range e.additional(g.Address, g.Port) {
		a.Address = datagrams(a.Address)
		l.AdditionalAddresses = append(l.AdditionalAddresses, a)
	}
	for _, c := range g.Chains {
		h := e.gatewayManager("outbound_"+g.Name+";", c.Routes, g)
		h.CodecType, h.Http3ProtocolOptions = hcmv3.HttpConnectionManager_HTTP3, &corev3.Http3ProtocolOptions{}
		t := e.serverTLS(c, g.TrustDomains)
		t.CommonTlsContext.AlpnProtocols = []string{"h3"}
		t.CommonTlsContext.TlsParams.TlsMaximumProtocolVersion = tlsv3.TlsParameters_TLSv1_3
		t.CommonTlsContext.TlsParams.TlsMinimumProtocolVersion = tlsv3.TlsParameters_TLSv1_3
		l.FilterChains = append(l.FilterChains, &listenerv3.FilterChain{
			FilterChainMatch: &listenerv3.FilterChainMatch{ServerNames: c.ServerNames, TransportProtocol: "quic"},
			Filters:          []*listenerv3.Filter{networkFilter("envoy.filters.network.http_connection_manager", h)},
			TransportSocket: &corev3.TransportSocket{
				Name: "envoy.transport_sockets.quic", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: marshal.MustAny(&quicv3.QuicDownstreamTransport{DownstreamTlsContext: t})},
			},
		})
	}
	return l
}
