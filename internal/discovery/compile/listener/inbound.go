package listener

import (
	"fmt"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/authz"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// InboundPort is one port of a workload, or, if Port is 0, all ports that belong to no service.
type InboundPort struct {
	Port     uint32
	Protocol mesh.Protocol
	Mode     mesh.MTLSMode
	// Cluster is mesh.InboundPassthroughCluster for ports that belong to no service.
	Cluster string
	// Routes are the port's HTTP routes; not used if the protocol is TCP.
	Routes *routev3.RouteConfiguration
	TCP    TCP
}

// Inbound is the plan of virtualInbound.
type Inbound struct {
	Unknown InboundPort
	Ports   []InboundPort // sorted by port, each once
	// Authorization are the filters that decide who is let in, in all filter chains.
	Authorization authz.Filters
	// TrustDomains are those whose certificates are accepted, the mesh's first.
	TrustDomains []string
	// Closed leaves out every filter chain: no captured connection is accepted.
	Closed bool
}

type handling uint8

const (
	asHTTP handling = iota
	asTCP
)

// chain is a row of the inbound filter chain table [control-plane C1].
type chain struct {
	transport string
	alpn      []string
	as        handling
	terminate bool
}

// table returns the chains of a port, in the order of [control-plane C1].
func (e Env) table(mode mesh.MTLSMode, p mesh.Protocol) []chain {
	if mode > mesh.Disable {
		panic(fmt.Sprintf("listener: unknown mTLS mode %d", uint8(mode)))
	}
	auto, kind := p == mesh.Auto && e.Caps.Has(mesh.HTTPInspector), asTCP
	if p.IsHTTP() {
		kind = asHTTP
	}
	switch {
	case mode == mesh.Permissive && auto:
		return []chain{
			{"tls", meshHTTP, asHTTP, true},
			{"raw_buffer", e.plainHTTP(), asHTTP, false},
			{"tls", meshTCP, asTCP, true},
			{"raw_buffer", nil, asTCP, false},
			{"tls", nil, asTCP, false},
		}
	case mode == mesh.Permissive && kind == asHTTP:
		return []chain{{"tls", meshOrGRPC, asHTTP, true}, {"raw_buffer", nil, asHTTP, false}}
	case mode == mesh.Permissive:
		return []chain{{"tls", meshAny, asTCP, true}, {"tls", nil, asTCP, false}, {"raw_buffer", nil, asTCP, false}}
	case mode == mesh.Strict && auto:
		return []chain{{"tls", meshHTTP, asHTTP, true}, {"tls", nil, asTCP, true}}
	case mode == mesh.Strict:
		return []chain{{"tls", nil, kind, true}}
	case auto:
		// Istio has no chain for TLS here. TLS is looked for because of the first chain, and without a chain for what is found
		// Envoy closes the connection: an application's own TLS would not get through.
		return []chain{{"raw_buffer", e.plainHTTP(), asHTTP, false}, {"raw_buffer", nil, asTCP, false}, {"tls", nil, asTCP, false}}
	}
	return []chain{{"raw_buffer", nil, kind, false}}
}

// VirtualInbound returns the listener for all captured inbound connections.
func VirtualInbound(in Inbound, e Env) *listenerv3.Listener {
	port := e.inboundPort()
	l := &listenerv3.Listener{
		Name:                                 mesh.VirtualInbound,
		Address:                              address(Wildcard(e.Caps), port),
		AdditionalAddresses:                  e.additional(Wildcard(e.Caps), port),
		ListenerFiltersTimeout:               e.detectionTimeout(),
		ContinueOnListenerFiltersTimeout:     true,
		TrafficDirection:                     corev3.TrafficDirection_INBOUND,
		MaxConnectionsToAcceptPerSocketEvent: wrapperspb.UInt32(1),
		FilterChains:                         []*listenerv3.FilterChain{e.blackhole(mesh.VirtualInbound+"-blackhole", port)},
	}
	noTLS, noHTTP := []uint32{port}, []uint32{port}
	ports := append([]InboundPort{in.Unknown}, in.Ports...)
	if in.Closed {
		ports = nil // Envoy closes a connection for which it has no filter chain
	} else {
		l.AccessLog = e.listenerLog() // not of a closed one, which replaces a listener that Envoy has refused, maybe for its log
	}
	for _, p := range ports {
		if p.Port == port {
			continue // the blackhole: connections to it would be forwarded to the listener itself
		}
		for _, c := range e.table(p.Mode, p.Protocol) {
			l.FilterChains = append(l.FilterChains, e.inboundChain(in, p, c))
		}
		if p.Port == 0 {
			continue
		}
		if p.Protocol != mesh.Auto || p.Mode == mesh.Strict {
			noHTTP = append(noHTTP, p.Port) // no filter chain depends on the detected HTTP version
		}
		if p.Mode == mesh.Disable && p.Protocol != mesh.Auto {
			noTLS = append(noTLS, p.Port)
		}
	}
	l.ListenerFilters = []*listenerv3.ListenerFilter{originalDst(), tlsInspector(noTLS...)}
	if e.Caps.Has(mesh.HTTPInspector) {
		l.ListenerFilters = append(l.ListenerFilters, httpInspector(noHTTP...))
	}
	return l
}

func (e Env) inboundChain(in Inbound, p InboundPort, c chain) *listenerv3.FilterChain {
	match := &listenerv3.FilterChainMatch{TransportProtocol: c.transport, ApplicationProtocols: c.alpn}
	name, prefix := mesh.VirtualInbound, mesh.InboundPassthroughCluster
	if c.as == asHTTP {
		name, prefix = mesh.VirtualInbound+"-catchall-http", mesh.InboundPassthroughCluster+";"
	}
	if p.Port != 0 {
		match.DestinationPort = wrapperspb.UInt32(p.Port)
	}
	if p.Cluster != mesh.InboundPassthroughCluster {
		name = fmt.Sprintf("%s_%d", Wildcard(e.Caps), p.Port)
		prefix = p.Cluster
		if c.as == asHTTP {
			prefix = "inbound_" + name + ";"
		}
	}
	out := &listenerv3.FilterChain{Name: name, FilterChainMatch: match}
	if c.as == asHTTP {
		out.Filters = []*listenerv3.Filter{e.inboundHTTP(prefix, p.Routes, in.Authorization.HTTP)}
	} else {
		t := p.TCP
		t.Cluster = p.Cluster
		out.Filters = append(slices.Clone(in.Authorization.TCP), e.tcpProxy(prefix, t))
	}
	if c.terminate {
		out.TransportSocket = e.terminate(in.TrustDomains)
	}
	return out
}

// ciphers are the cipher suites of inbound TLS 1.2 if mesh configuration has none.
var ciphers = []string{
	"ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-ECDSA-AES128-GCM-SHA256",
	"ECDHE-RSA-AES128-GCM-SHA256", "AES256-GCM-SHA384", "AES128-GCM-SHA256",
}

// terminate returns the server side of the mesh's mutual TLS: the workload's certificate, and a required
// client certificate of the mesh.
func (e Env) terminate(trustDomains []string) *corev3.TransportSocket {
	var sans []*matcherv3.StringMatcher
	for _, td := range trustDomains {
		sans = append(sans, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: "spiffe://" + td + "/"}})
	}
	params := cluster.TLSParams(e.Mesh.GetMeshMTLS(), e.Caps)
	if len(params.CipherSuites) == 0 && e.Caps.CompliancePolicy() == "" {
		params.CipherSuites = ciphers
	}
	return &corev3.TransportSocket{
		Name: "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: marshal.MustAny(&tlsv3.DownstreamTlsContext{
			RequireClientCertificate: wrapperspb.Bool(true),
			CommonTlsContext: &tlsv3.CommonTlsContext{
				TlsParams:                      params,
				AlpnProtocols:                  []string{"h2", "http/1.1"},
				TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: mesh.SecretDefault, SdsConfig: agentSDS()}},
				ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{
					CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
						DefaultValidationContext:         &tlsv3.CertificateValidationContext{MatchSubjectAltNames: sans}, //nolint:staticcheck // deprecated, but the only field that Istio's proxies and stock Envoy both read
						ValidationContextSdsSecretConfig: &tlsv3.SdsSecretConfig{Name: mesh.SecretRoot, SdsConfig: agentSDS()},
					},
				},
			},
		})},
	}
}

// agentSDS refers to the agent's SDS server by its cluster in the bootstrap.
func agentSDS() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		InitialFetchTimeout: durationpb.New(0),
		ResourceApiVersion:  corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
			ApiType:                   corev3.ApiConfigSource_GRPC,
			TransportApiVersion:       corev3.ApiVersion_V3,
			SetNodeOnFirstMessageOnly: true,
			GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: mesh.SDSCluster},
			}}},
		}},
	}
}
