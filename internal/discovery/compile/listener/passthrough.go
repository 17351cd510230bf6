package listener

import (
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// BuildPassthrough returns a router's listener that forwards the mesh's mutual TLS without ending it: a connection with
// one of the server names goes to the cluster of that name. Others are closed, those too that do not offer the mesh's
// protocols: the TLS of other clients is not authenticated by the servers. [control-plane 1.9.5, 1.12.11]
func BuildPassthrough(name string, port uint32, serverNames []string, topology mesh.Topology, e Env) *listenerv3.Listener {
	l := &listenerv3.Listener{
		Name:                name,
		Address:             address(Wildcard(e.Caps), port),
		AdditionalAddresses: e.additional(Wildcard(e.Caps), port),
		ListenerFilters:     append(topologyFilters(topology), tlsInspector()),
		TrafficDirection:    corev3.TrafficDirection_OUTBOUND,
	}
	for _, c := range PassthroughChains(serverNames) {
		l.FilterChains = append(l.FilterChains, e.passthroughChain(c))
	}
	return l
}

// PassthroughChains returns the chains that forward the mesh's mutual TLS, each to the cluster of its server name.
func PassthroughChains(serverNames []string) (out []GatewayChain) {
	seen := map[string]bool{}
	for _, n := range serverNames {
		sent := strings.ToLower(n) // as Envoy has the name that a client has sent
		if seen[sent] {
			continue // subsets whose names differ in case only
		}
		seen[sent] = true
		out = append(out, GatewayChain{ServerNames: []string{sent}, Mesh: true, TCP: TCP{Cluster: n}})
	}
	return out
}

// passthroughChain has no policies: those of the endpoints hold, which know who the client is.
func (e Env) passthroughChain(c GatewayChain) *listenerv3.FilterChain {
	return &listenerv3.FilterChain{
		FilterChainMatch: &listenerv3.FilterChainMatch{
			ServerNames: c.ServerNames, PrefixRanges: ranges(c.Prefixes), SourcePrefixRanges: ranges(c.Sources), TransportProtocol: "tls", ApplicationProtocols: meshAny,
		},
		Filters: []*listenerv3.Filter{e.tcpProxy(c.TCP.Cluster, c.TCP, clientSide())},
	}
}
