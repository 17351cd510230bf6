package listener

import (
	"net/netip"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Outbound is the plan of one outbound listener. It does not bind, unless Binds is set; virtualOutbound hands over
// connections by their original destination.
type Outbound struct {
	Name    string // 0.0.0.0_PORT or VIP_PORT
	Address string
	// Binds is set if clients connect to the listener's own address: their destination is no other.
	Binds bool
	Port  uint32
	// Routes is the RDS name of the HTTP chain; empty if the listener accepts no HTTP.
	Routes string
	// SNI chains match the TLS server name, and may match the original destination, too; CIDR chains match only that.
	SNI, CIDR []Chain
	// TCP is for connections that no chain matches; without clusters they are treated as unknown traffic. Config is as in Chain.
	TCP    TCP
	Config string
	// Unknown is the cluster for unknown traffic.
	Unknown string
}

// Chain sends connections that match to clusters.
type Chain struct {
	// ServerNames and Prefixes are those that it matches, any if there are none.
	ServerNames []string
	Prefixes    []netip.Prefix
	TCP         TCP
	// Config is the path of the VirtualService that the chain is made from, empty for none.
	Config string
}

// connectTimeout is the timeout of the transport socket's handshake on outbound chains.
var connectTimeout = durationpb.New(15 * time.Second)

// BuildOutbound translates a plan. The order of chains is SNI, HTTP, CIDR, default.
func BuildOutbound(o Outbound, e Env) *listenerv3.Listener {
	l := &listenerv3.Listener{
		Name:                             o.Name,
		Address:                          address(o.Address, o.Port),
		AdditionalAddresses:              e.additional(o.Address, o.Port),
		BindToPort:                       wrapperspb.Bool(false),
		ListenerFiltersTimeout:           e.detectionTimeout(),
		ContinueOnListenerFiltersTimeout: true,
		TrafficDirection:                 corev3.TrafficDirection_OUTBOUND,
	}
	if o.Binds {
		l.BindToPort = nil
		l.MaxConnectionsToAcceptPerSocketEvent = wrapperspb.UInt32(1)
	}
	for _, c := range o.SNI {
		l.FilterChains = append(l.FilterChains, e.tcpChain(c))
	}
	if len(o.SNI) > 0 {
		l.ListenerFilters = append(l.ListenerFilters, tlsInspector())
	}
	if o.Routes != "" && e.Caps.Has(mesh.HTTPInspector) && !o.onlyHTTP() {
		l.ListenerFilters = append(l.ListenerFilters, httpInspector())
		l.FilterChains = append(l.FilterChains, e.httpChain(o, &listenerv3.FilterChainMatch{
			TransportProtocol: "raw_buffer", ApplicationProtocols: e.plainHTTP(),
		}))
	}
	for _, c := range o.CIDR {
		l.FilterChains = append(l.FilterChains, e.tcpChain(c))
	}
	last := e.defaultChain(o)
	if len(l.FilterChains) == 0 {
		l.FilterChains = []*listenerv3.FilterChain{last}
	} else {
		l.DefaultFilterChain = last
	}
	return l
}

// onlyHTTP reports whether whatever connects is HTTP: there is nothing else that a connection to the listener itself could be for.
func (o Outbound) onlyHTTP() bool { return o.Binds && o.Routes != "" && o.TCP.none() }

// tcpChain returns a filter chain without HTTP.
func (e Env) tcpChain(c Chain) *listenerv3.FilterChain {
	f := &listenerv3.FilterChain{
		Filters:                       e.tcpFilters(c.TCP.Cluster, c.TCP, clientSide()),
		TransportSocketConnectTimeout: connectTimeout,
	}
	if len(c.ServerNames) > 0 || len(c.Prefixes) > 0 {
		f.FilterChainMatch = &listenerv3.FilterChainMatch{ServerNames: c.ServerNames, PrefixRanges: ranges(c.Prefixes)}
	}
	if c.Config != "" {
		f.Metadata = cluster.ConfigMetadata(c.Config)
	}
	return f
}

func (e Env) httpChain(o Outbound, match *listenerv3.FilterChainMatch) *listenerv3.FilterChain {
	return &listenerv3.FilterChain{
		FilterChainMatch:              match,
		Filters:                       []*listenerv3.Filter{e.outboundHTTP("outbound_"+o.Name+";", o.Routes)},
		TransportSocketConnectTimeout: connectTimeout,
	}
}

// defaultChain returns the chain for connections that no other one matches. A proxy without protocol
// detection treats all connections as HTTP if only HTTP is declared, otherwise as TCP.
func (e Env) defaultChain(o Outbound) *listenerv3.FilterChain {
	switch {
	case o.Routes != "" && o.TCP.none() && (o.Binds || !e.Caps.Has(mesh.HTTPInspector)):
		return e.httpChain(o, nil)
	case !o.TCP.none():
		return e.tcpChain(Chain{TCP: o.TCP, Config: o.Config})
	}
	return &listenerv3.FilterChain{Name: "PassthroughFilterChain", Filters: []*listenerv3.Filter{e.tcpProxy(o.Unknown, TCP{Cluster: o.Unknown}, clientSide())}}
}

func (e Env) detectionTimeout() *durationpb.Duration {
	if t := e.Mesh.GetProtocolDetectionTimeout(); t != nil {
		return t
	}
	return durationpb.New(0)
}

func ranges(prefixes []netip.Prefix) []*corev3.CidrRange {
	var out []*corev3.CidrRange
	for _, p := range prefixes {
		out = append(out, &corev3.CidrRange{AddressPrefix: p.Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(p.Bits()))})
	}
	return out
}

// VirtualOutbound returns the listener for all captured outbound connections. It hands them over to the
// listener of their destination, or to the cluster for unknown traffic.
func VirtualOutbound(e Env, unknown string) *listenerv3.Listener {
	port := e.outboundPort()
	return &listenerv3.Listener{
		Name:                mesh.VirtualOutbound,
		Address:             address(Wildcard(e.Caps), port),
		AdditionalAddresses: e.additional(Wildcard(e.Caps), port),
		UseOriginalDst:      wrapperspb.Bool(true),
		Transparent:         e.transparent(),
		TrafficDirection:    corev3.TrafficDirection_OUTBOUND,
		FilterChains: []*listenerv3.FilterChain{
			e.blackhole(mesh.VirtualOutbound+"-blackhole", port),
			{Name: mesh.VirtualOutbound + "-catchall-tcp", Filters: []*listenerv3.Filter{e.tcpProxy(unknown, TCP{Cluster: unknown}, clientSide())}},
		},
		MaxConnectionsToAcceptPerSocketEvent: wrapperspb.UInt32(1),
		AccessLog:                            e.listenerLog(),
	}
}

func (e Env) outboundPort() uint32 {
	if p := e.Mesh.GetProxyListenPort(); p > 0 {
		return uint32(p)
	}
	return mesh.OutboundPort
}

func (e Env) inboundPort() uint32 {
	if p := e.Mesh.GetProxyInboundListenPort(); p > 0 {
		return uint32(p)
	}
	return mesh.InboundPort
}
