package listener

import (
	"fmt"
	"slices"
	"strconv"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/authz"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"google.golang.org/protobuf/proto"
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
	// Host and Namespace are those of the service in metrics; empty for ports that belong to none.
	Host, Namespace string
	// Routes are the port's HTTP routes; not used if the protocol is TCP.
	Routes *routev3.RouteConfiguration
	TCP    TCP
	// Bind is the address of the port's own listener; empty for ports of virtualInbound.
	Bind string
	// TLS ends TLS of clients outside the mesh, where the mesh's own mutual TLS is not required; nil for none.
	TLS *networking.ServerTLSSettings
}

// name is that of the port's filter chains.
func (p InboundPort) name(caps mesh.Capability) string {
	address := p.Bind
	if address == "" {
		address = Wildcard(caps)
	}
	return address + "_" + strconv.FormatUint(uint64(p.Port), 10)
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
	ends      tlsEnd
}

// tlsEnd says which TLS a chain ends.
type tlsEnd uint8

const (
	endsNone tlsEnd = iota // connections are plaintext, or TLS of the application
	endsMesh
	endsOwn // InboundPort.TLS
)

// chains returns the chains of a port. A port with TLS of its own has it in place of plaintext: for clients outside the mesh, while
// those in the mesh come with the mesh's mutual TLS, if the port's mode accepts it. What is in the TLS of an HTTPS port is HTTP.
// [control-plane 1.9.23]
func (e Env) chains(p InboundPort) []chain {
	if p.TLS == nil || p.Mode == mesh.Strict {
		return e.table(p.Mode, p.Protocol)
	}
	kind := asTCP
	if p.Protocol == mesh.HTTPS {
		kind = asHTTP
	}
	own := chain{transport: "tls", as: kind, ends: endsOwn}
	if p.Mode == mesh.Disable {
		return []chain{own}
	}
	return []chain{{transport: "tls", alpn: meshAny, as: asTCP, ends: endsMesh}, own}
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
			{"tls", meshHTTP, asHTTP, endsMesh},
			{"raw_buffer", e.plainHTTP(), asHTTP, endsNone},
			{"tls", meshTCP, asTCP, endsMesh},
			{"raw_buffer", nil, asTCP, endsNone},
			{"tls", nil, asTCP, endsNone},
		}
	case mode == mesh.Permissive && kind == asHTTP:
		return []chain{{"tls", meshOrGRPC, asHTTP, endsMesh}, {"raw_buffer", nil, asHTTP, endsNone}}
	case mode == mesh.Permissive:
		return []chain{{"tls", meshAny, asTCP, endsMesh}, {"tls", nil, asTCP, endsNone}, {"raw_buffer", nil, asTCP, endsNone}}
	case mode == mesh.Strict && auto:
		return []chain{{"tls", meshHTTP, asHTTP, endsMesh}, {"tls", nil, asTCP, endsMesh}}
	case mode == mesh.Strict:
		return []chain{{"tls", nil, kind, endsMesh}}
	case auto:
		// Istio has no chain for TLS here. TLS is looked for because of the first chain, and without a chain for what is found
		// Envoy closes the connection: an application's own TLS would not get through.
		return []chain{{"raw_buffer", e.plainHTTP(), asHTTP, endsNone}, {"raw_buffer", nil, asTCP, endsNone}, {"tls", nil, asTCP, endsNone}}
	}
	return []chain{{"raw_buffer", nil, kind, endsNone}}
}

// Frame is what the listeners of the inbound connections of many workloads have in common: all but what a workload's own ports decide. It
// is made once for them, and what of it makes up most of a listener is encoded. It is immutable.
type Frame struct {
	// In is without ports.
	In  Inbound
	Env Env
	// Head is the beginning of an encoded virtualInbound, up to the filter chains of the workload's own ports.
	Head []byte
	// HTTP has the encoded connection managers for connections without mutual TLS and with it, without prefix and routes. They are nil if
	// they have metrics, which differ by service.
	HTTP [2][]byte
	// MutualTLS ends the mesh's mutual TLS.
	MutualTLS *corev3.TransportSocket
	// Log is that of a listener's connections that no filter chain takes.
	Log []*accesslogv3.AccessLog
}

// NewFrame returns the frame of listeners; the ports of in do not count.
func NewFrame(in Inbound, e Env) *Frame {
	in.Ports = nil
	f := &Frame{In: in, Env: e}
	if !in.Closed {
		f.MutualTLS = e.terminate(in.TrustDomains)
		f.Log = e.listenerLog() // not of a closed one, which replaces a listener that Envoy has refused, maybe for its log
		if !e.measured() {
			f.HTTP = [2][]byte{marshal.Must(f.manager(in.Unknown, false)), marshal.Must(f.manager(in.Unknown, true))}
		}
	}
	f.Head = marshal.Must(f.head())
	return f
}

// VirtualInbound returns the listener for all captured inbound connections.
func VirtualInbound(in Inbound, e Env) *listenerv3.Listener {
	f := NewFrame(in, e)
	l := f.head()
	proto.Merge(l, f.rest(in.Ports))
	return l
}

// EncodedVirtualInbound returns VirtualInbound for a workload with these ports, encoded as a google.protobuf.Any.
func (f *Frame) EncodedVirtualInbound(ports []InboundPort) []byte {
	return marshal.MustContinuedAny(f.Head, f.rest(ports))
}

// head is the beginning of virtualInbound: the fields up to the filter chains, and the first of these.
func (f *Frame) head() *listenerv3.Listener {
	e := f.Env
	port := e.inboundPort()
	l := &listenerv3.Listener{
		Name:         mesh.VirtualInbound,
		Address:      address(Wildcard(e.Caps), port),
		FilterChains: []*listenerv3.FilterChain{e.blackhole(mesh.VirtualInbound+"-blackhole", port)},
	}
	if !f.In.Closed { // Envoy closes a connection for which it has no filter chain
		l.FilterChains = append(l.FilterChains, f.chains(f.In.Unknown)...)
	}
	return l
}

// rest is what follows head: the filter chains of a workload's ports, and the fields after these.
func (f *Frame) rest(ports []InboundPort) *listenerv3.Listener {
	e := f.Env
	port := e.inboundPort()
	l := &listenerv3.Listener{
		AdditionalAddresses:                  e.additional(Wildcard(e.Caps), port),
		ListenerFiltersTimeout:               e.detectionTimeout(),
		ContinueOnListenerFiltersTimeout:     true,
		TrafficDirection:                     corev3.TrafficDirection_INBOUND,
		MaxConnectionsToAcceptPerSocketEvent: wrapperspb.UInt32(1),
		AccessLog:                            f.Log,
		Transparent:                          e.transparent(),
	}
	noTLS, noHTTP := []uint32{port}, []uint32{port}
	for _, p := range ports {
		if p.Port == port || f.In.Closed {
			continue // the blackhole: connections to it would be forwarded to the listener itself
		}
		l.FilterChains = append(l.FilterChains, f.chains(p)...)
		if p.Protocol != mesh.Auto || p.Mode == mesh.Strict {
			noHTTP = append(noHTTP, p.Port) // no filter chain depends on the detected HTTP version
		}
		if p.Mode == mesh.Disable && p.Protocol != mesh.Auto && p.TLS == nil {
			noTLS = append(noTLS, p.Port)
		}
	}
	l.ListenerFilters = append(e.originalAddresses(), tlsInspector(noTLS...))
	if e.Caps.Has(mesh.HTTPInspector) {
		l.ListenerFilters = append(l.ListenerFilters, httpInspector(noHTTP...))
	}
	return l
}

// Bound returns the listener of one port that binds to an address, to which clients connect. Who is let in is decided as in
// virtualInbound. [control-plane 1.9.23]
func (f *Frame) Bound(p InboundPort) *listenerv3.Listener {
	e := f.Env
	l := &listenerv3.Listener{
		Name:                                 p.name(e.Caps),
		Address:                              address(p.Bind, p.Port),
		ListenerFiltersTimeout:               e.detectionTimeout(),
		ContinueOnListenerFiltersTimeout:     true,
		TrafficDirection:                     corev3.TrafficDirection_INBOUND,
		MaxConnectionsToAcceptPerSocketEvent: wrapperspb.UInt32(1),
	}
	if f.In.Closed {
		chain := e.blackhole(l.Name+"-blackhole", p.Port)
		chain.FilterChainMatch = nil
		l.FilterChains = []*listenerv3.FilterChain{chain}
		return l
	}
	l.AccessLog = f.Log
	l.FilterChains = f.chains(p)
	if p.Protocol == mesh.Auto || p.Mode != mesh.Disable || p.TLS != nil {
		l.ListenerFilters = append(l.ListenerFilters, tlsInspector())
	}
	if p.Protocol == mesh.Auto && p.Mode != mesh.Strict && e.Caps.Has(mesh.HTTPInspector) {
		l.ListenerFilters = append(l.ListenerFilters, httpInspector())
	}
	return l
}

// chains returns the filter chains of a port. Those with equal filters share them.
func (f *Frame) chains(p InboundPort) []*listenerv3.FilterChain {
	rows := f.Env.chains(p)
	out := make([]*listenerv3.FilterChain, 0, len(rows))
	var made [2][2][]*listenerv3.Filter // by handling and side
	for _, c := range rows {
		side := 0
		if c.ends == endsMesh && (f.Env.measured() || f.Env.tells()) {
			side = 1
		}
		filters := &made[c.as][side]
		if *filters == nil {
			*filters = f.filters(p, c)
		}
		out = append(out, f.chain(p, c, *filters))
	}
	return out
}

// filters returns the filters of a chain.
func (f *Frame) filters(p InboundPort, c chain) []*listenerv3.Filter {
	mutual := c.ends == endsMesh
	prefix := p.Cluster
	if c.as == asHTTP {
		prefix = mesh.InboundPassthroughCluster + ";"
		if p.Cluster != mesh.InboundPassthroughCluster {
			prefix = "inbound_" + p.name(f.Env.Caps) + ";"
		}
		return []*listenerv3.Filter{f.http(prefix, p, mutual)}
	}
	t := p.TCP
	t.Cluster, t.Protocol = p.Cluster, p.Protocol
	return slices.Concat(f.In.Authorization.TCP, f.Env.tcpFilters(prefix, t, p.side(mutual, false)))
}

func (f *Frame) chain(p InboundPort, c chain, filters []*listenerv3.Filter) *listenerv3.FilterChain {
	match := &listenerv3.FilterChainMatch{TransportProtocol: c.transport, ApplicationProtocols: c.alpn}
	if p.Port != 0 {
		match.DestinationPort = wrapperspb.UInt32(p.Port)
	}
	name := mesh.VirtualInbound
	switch {
	case p.Cluster != mesh.InboundPassthroughCluster:
		name = p.name(f.Env.Caps)
	case c.as == asHTTP:
		name += "-catchall-http"
	}
	out := &listenerv3.FilterChain{Name: name, FilterChainMatch: match, Filters: filters}
	switch c.ends {
	case endsOwn:
		of := GatewayChain{TLS: p.TLS}
		if c.as == asHTTP {
			of.Routes = p.Cluster // what of HTTP is offered
		}
		out.TransportSocket = f.Env.endTLS(of, nil)
	case endsMesh:
		out.TransportSocket = f.MutualTLS
	case endsNone:
	}
	return out
}

// side is what the metrics of the port's requests or connections say, with mutual TLS or without.
func (p InboundPort) side(mutual, http bool) side {
	service := p.Host + ";" + p.Namespace
	switch {
	case p.Cluster == mesh.InboundPassthroughCluster:
		service = p.Cluster + ";"
	case p.Host == "":
		service = ""
	}
	return serverSide(service, mutual, http)
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
