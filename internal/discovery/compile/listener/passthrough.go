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
	seen := map[string]bool{}
	for _, n := range serverNames {
		sent := strings.ToLower(n) // as Envoy has the name that a client has sent
		if seen[sent] {
			continue // subsets whose names differ in case only
		}
		seen[sent] = true
		l.FilterChains = append(l.FilterChains, &listenerv3.FilterChain{
			FilterChainMatch: &listenerv3.FilterChainMatch{ServerNames: []string{sent}, TransportProtocol: "tls", ApplicationProtocols: meshAny},
			Filters:          []*listenerv3.Filter{e.tcpProxy(n, TCP{Cluster: n}, clientSide())},
		})
	}
	return l
}
