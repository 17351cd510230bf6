package listener

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Gateway is the plan of one listener of a router.
type Gateway struct {
	Name, Address string
	Port          uint32
	// Routes is the RDS name of the HTTP chain.
	Routes string
}

// BuildGateway translates the plan of a router's listener, which binds to its address. [control-plane 1.9.2, 1.12.16]
func BuildGateway(g Gateway, e Env) *listenerv3.Listener {
	return &listenerv3.Listener{
		Name:                g.Name,
		Address:             address(g.Address, g.Port),
		AdditionalAddresses: e.additional(g.Address, g.Port),
		TrafficDirection:    corev3.TrafficDirection_OUTBOUND,
		FilterChains: []*listenerv3.FilterChain{{
			Filters:                       []*listenerv3.Filter{e.gatewayHTTP("outbound_"+g.Name+";", g.Routes)},
			TransportSocketConnectTimeout: connectTimeout,
		}},
		MaxConnectionsToAcceptPerSocketEvent: wrapperspb.UInt32(1),
	}
}

// gatewayHTTP returns the connection manager of a router. Its clients are outside the mesh: their address is that of the
// connection, and what they send in x-forwarded-client-cert is replaced.
func (e Env) gatewayHTTP(statPrefix, routes string) *listenerv3.Filter {
	h := e.manager(statPrefix, true)
	h.RouteSpecifier = rds(routes)
	h.UseRemoteAddress = wrapperspb.Bool(true)
	h.ServerName = "istio-envoy"
	h.ForwardClientCertDetails = hcmv3.HttpConnectionManager_SANITIZE_SET
	h.SetCurrentClientCertDetails = &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{
		Subject: wrapperspb.Bool(true), Cert: true, Dns: true, Uri: true,
	}
	return networkFilter("envoy.filters.network.http_connection_manager", h)
}
