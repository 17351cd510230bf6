package listener

import (
	"net/netip"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Outbound is the plan of one outbound listener; it does not bind, virtualOutbound hands
// connections over by their original destination.
type Outbound struct {
	Name    string // 0.0.0.0_PORT or VIP_PORT
	Address string
	Port    uint32
	// Routes is the RDS name of the HTTP chain; empty where the listener accepts no HTTP.
	Routes string
	// SNI chains go by the TLS server name, CIDR chains by the original destination.
	SNI  []SNIChain
	CIDR []CIDRChain
	// TCP is for what no chain matches; an empty Cluster treats it as unknown traffic.
	TCP TCP
	// AllowAny sends unknown traffic to its original destination; without it, it is dropped.
	AllowAny bool
}

// SNIChain hands TLS connections for some server names to a cluster.
type SNIChain struct {
	Hosts []string
	TCP   TCP
}

// CIDRChain hands connections to some destinations to a cluster.
type CIDRChain struct {
	Prefixes []netip.Prefix
	TCP      TCP
}

// connectTimeout bounds a transport handshake on outbound chains.
var connectTimeout = durationpb.New(15e9)

// BuildOutbound translates a plan. Chains come in the order SNI, HTTP, CIDR, fall-through.
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
	for _, c := range o.SNI {
		l.FilterChains = append(l.FilterChains, &listenerv3.FilterChain{
			FilterChainMatch:              &listenerv3.FilterChainMatch{ServerNames: c.Hosts},
			Filters:                       []*listenerv3.Filter{e.tcpProxy(c.TCP.Cluster, c.TCP)},
			TransportSocketConnectTimeout: connectTimeout,
		})
	}
	if len(o.SNI) > 0 {
		l.ListenerFilters = append(l.ListenerFilters, tlsInspector())
	}
	if o.Routes != "" && e.Caps.Has(mesh.HTTPInspector) {
		l.ListenerFilters = append(l.ListenerFilters, httpInspector())
		l.FilterChains = append(l.FilterChains, e.httpChain(o, &listenerv3.FilterChainMatch{
			TransportProtocol: "raw_buffer", ApplicationProtocols: e.plainHTTP(),
		}))
	}
	for _, c := range o.CIDR {
		l.FilterChains = append(l.FilterChains, &listenerv3.FilterChain{
			FilterChainMatch:              &listenerv3.FilterChainMatch{PrefixRanges: ranges(c.Prefixes)},
			Filters:                       []*listenerv3.Filter{e.tcpProxy(c.TCP.Cluster, c.TCP)},
			TransportSocketConnectTimeout: connectTimeout,
		})
	}
	last := e.fallThrough(o)
	if len(l.FilterChains) == 0 {
		l.FilterChains = []*listenerv3.FilterChain{last}
	} else {
		l.DefaultFilterChain = last
	}
	return l
}

func (e Env) httpChain(o Outbound, match *listenerv3.FilterChainMatch) *listenerv3.FilterChain {
	return &listenerv3.FilterChain{
		FilterChainMatch:              match,
		Filters:                       []*listenerv3.Filter{e.outboundHTTP("outbound_"+o.Name+";", o.Routes)},
		TransportSocketConnectTimeout: connectTimeout,
	}
}

// fallThrough is the chain for what no other matched. A proxy that cannot sniff takes all
// that comes to a listener as HTTP where only HTTP is declared there, else as bytes.
func (e Env) fallThrough(o Outbound) *listenerv3.FilterChain {
	switch {
	case o.Routes != "" && o.TCP.Cluster == "" && !e.Caps.Has(mesh.HTTPInspector):
		return e.httpChain(o, nil)
	case o.TCP.Cluster != "":
		return &listenerv3.FilterChain{
			Filters:                       []*listenerv3.Filter{e.tcpProxy(o.TCP.Cluster, o.TCP)},
			TransportSocketConnectTimeout: connectTimeout,
		}
	}
	return &listenerv3.FilterChain{Name: "PassthroughFilterChain", Filters: []*listenerv3.Filter{e.unknown(o.AllowAny)}}
}

func (e Env) unknown(allowAny bool) *listenerv3.Filter {
	cluster := mesh.BlackHoleCluster
	if allowAny {
		cluster = mesh.PassthroughCluster
	}
	return e.tcpProxy(cluster, TCP{Cluster: cluster})
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

// VirtualOutbound is the listener that receives all captured outbound connections and
// hands them to the listener of their destination, or treats them as unknown.
func VirtualOutbound(e Env, allowAny bool) *listenerv3.Listener {
	port := e.outboundPort()
	return &listenerv3.Listener{
		Name:                mesh.VirtualOutbound,
		Address:             address(Wildcard(e.Caps), port),
		AdditionalAddresses: e.additional(Wildcard(e.Caps), port),
		UseOriginalDst:      wrapperspb.Bool(true),
		TrafficDirection:    corev3.TrafficDirection_OUTBOUND,
		FilterChains: []*listenerv3.FilterChain{
			e.blackhole(mesh.VirtualOutbound+"-blackhole", port),
			{Name: mesh.VirtualOutbound + "-catchall-tcp", Filters: []*listenerv3.Filter{e.unknown(allowAny)}},
		},
		MaxConnectionsToAcceptPerSocketEvent: wrapperspb.UInt32(1),
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
