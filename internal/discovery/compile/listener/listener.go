// Package listener translates planned listeners to Envoy's.
//
// It consists of pure functions of values: equal values give equal messages. Names, filter chain
// matches and their order are those of an Istio sidecar [control-plane 1.12, C1, C5], because a mesh has
// both during a migration. What stock Envoy lacks is replaced: the ALPN of upstream connections is set
// by the filter set_filter_state.
package listener

import (
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	httpinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	originalsrcv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_src/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	mongoproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/mongo_proxy/v3"
	redisproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/redis_proxy/v3"
	snidynamicv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/sni_dynamic_forward_proxy/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"
)

// Env has what all listeners of a proxy depend on.
type Env struct {
	Caps mesh.Capability
	Mesh *meshv1.MeshConfig
	Logs Logs
	// Metrics are those of requests and connections.
	Metrics Metrics
	// Tracing is that of HTTP; nil for none.
	Tracing *Tracing
	// Protocols are those of mesh.MongoFilter and RedisFilter that are used.
	Protocols mesh.Capability
	// Sessions is set if all outbound listeners have the filter that keeps the requests of a session at one endpoint, for the routes that say how.
	Sessions bool
}

// The application protocols that filter chains match [control-plane C5]: those that the client offers,
// not the negotiated one.
var (
	plainHTTP   = []string{"http/1.1", "h2c"}
	plainHTTP10 = []string{"http/1.0", "http/1.1", "h2c"}
	meshHTTP    = []string{"istio-http/1.0", "istio-http/1.1", "istio-h2"}
	meshTCP     = []string{"istio-peer-exchange", "istio"}
	meshAny     = []string{"istio", "istio-peer-exchange", "istio-http/1.0", "istio-http/1.1", "istio-h2"}
	// meshOrGRPC adds what gRPC libraries offer, which have the mesh's certificates but not its ALPN. At a port that is declared as
	// HTTP nothing else could be meant by it: other TLS is accepted there in no mode.
	meshOrGRPC = append(slices.Clone(meshAny), "h2")
)

func (e Env) plainHTTP() []string {
	if e.Caps.Has(mesh.HTTP10) {
		return plainHTTP10
	}
	return plainHTTP
}

// Wildcard returns the unspecified address: that of IPv4 if the proxy has it, else that of IPv6.
func Wildcard(caps mesh.Capability) string {
	if caps.Has(mesh.IPv4) {
		return "0.0.0.0"
	}
	return "::"
}

// additional returns the IPv6 wildcard if ip is that of IPv4 and the proxy has both families, else nil.
func (e Env) additional(ip string, port uint32) []*listenerv3.AdditionalAddress {
	if ip != "0.0.0.0" || !e.Caps.Has(mesh.IPv4|mesh.IPv6) {
		return nil
	}
	return []*listenerv3.AdditionalAddress{{Address: address("::", port)}}
}

// address is that of a listener: an IP address and a port, or a Unix socket ("unix://PATH"), to which every user of the Pod may connect,
// as every user's connections are captured. One in the abstract namespace has no permissions, and Envoy refuses a mode for it.
func address(ip string, port uint32) *corev3.Address {
	if path, ok := strings.CutPrefix(ip, mesh.UnixSocket); ok {
		pipe := &corev3.Pipe{Path: path, Mode: 0o666}
		if mesh.IsAbstractSocket(path) {
			pipe.Mode = 0
		}
		return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: pipe}}
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: ip, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

func networkFilter(name string, m proto.Message) *listenerv3.Filter {
	return &listenerv3.Filter{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: marshal.MustAny(m)}}
}

func listenerFilter(name string, m proto.Message) *listenerv3.ListenerFilter {
	return &listenerv3.ListenerFilter{Name: name, ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: marshal.MustAny(m)}}
}

func originalDst() *listenerv3.ListenerFilter {
	return listenerFilter("envoy.filters.listener.original_dst", &originaldstv3.OriginalDst{})
}

// transparent is whether a listener takes connections to addresses that are not the machine's, as TPROXY delivers them; nil for no.
// Envoy needs CAP_NET_ADMIN for it. [control-plane 1.5.16]
func (e Env) transparent() *wrapperspb.BoolValue {
	if !e.Caps.Has(mesh.Transparent) {
		return nil
	}
	return wrapperspb.Bool(true)
}

// originalAddresses restore where a captured connection was to go and, under TPROXY, make the application see the address of its
// client. The capture rules know Envoy's connections to the application by their mark.
func (e Env) originalAddresses() []*listenerv3.ListenerFilter {
	out := []*listenerv3.ListenerFilter{originalDst()}
	if e.Caps.Has(mesh.Transparent | mesh.OriginalSource) {
		out = append(out, listenerFilter("envoy.filters.listener.original_src", &originalsrcv3.OriginalSrc{Mark: mesh.TPROXYMark}))
	}
	return out
}

func tlsInspector(except ...uint32) *listenerv3.ListenerFilter {
	f := listenerFilter("envoy.filters.listener.tls_inspector", &tlsinspectorv3.TlsInspector{
		InitialReadBufferSize: wrapperspb.UInt32(512),
	})
	f.FilterDisabled = onPorts(except)
	return f
}

func httpInspector(except ...uint32) *listenerv3.ListenerFilter {
	f := listenerFilter("envoy.filters.listener.http_inspector", &httpinspectorv3.HttpInspector{})
	f.FilterDisabled = onPorts(except)
	return f
}

// onPorts returns a predicate for the original destination port; nil for no ports.
func onPorts(ports []uint32) *listenerv3.ListenerFilterChainMatchPredicate {
	var rules []*listenerv3.ListenerFilterChainMatchPredicate
	ports = slices.Clone(ports)
	slices.Sort(ports)
	for _, p := range slices.Compact(ports) {
		rules = append(rules, &listenerv3.ListenerFilterChainMatchPredicate{
			Rule: &listenerv3.ListenerFilterChainMatchPredicate_DestinationPortRange{
				DestinationPortRange: &typev3.Int32Range{Start: int32(p), End: int32(p) + 1},
			},
		})
	}
	switch len(rules) {
	case 0:
		return nil
	case 1:
		return rules[0]
	}
	return &listenerv3.ListenerFilterChainMatchPredicate{Rule: &listenerv3.ListenerFilterChainMatchPredicate_OrMatch{
		OrMatch: &listenerv3.ListenerFilterChainMatchPredicate_MatchSet{Rules: rules},
	}}
}

// TCP has the settings of a TCP proxy.
type TCP struct {
	Cluster string
	// Protocol is what is declared of the port.
	Protocol mesh.Protocol
	// Weighted are used instead of Cluster if there are any, with Prefix in statistics.
	Weighted []WeightedCluster
	Prefix   string
	// IdleTimeout is how long a connection may be idle; nil means Envoy's default of one hour.
	IdleTimeout *durationpb.Duration
	// MaxDuration is the maximum age of a connection; nil means no limit.
	MaxDuration *durationpb.Duration
	// TunnelTo is the host and port that the cluster, an HTTP proxy, is asked to connect to, empty for none; by CONNECT, or by POST.
	TunnelTo     string
	TunnelByPost bool
	// Dynamic says how the server name is resolved, nil if the clusters do not need that.
	Dynamic *cluster.DynamicName
}

// WeightedCluster is one of several clusters of connections.
type WeightedCluster struct {
	Cluster string
	Weight  uint32
}

// none reports whether there is no cluster.
func (t TCP) none() bool { return t.Cluster == "" && len(t.Weighted) == 0 }

// tcpProxy returns the filter that forwards connections, which are counted as those of a side. statPrefix is for those to one cluster;
// several have the prefix of t.
func (e Env) tcpProxy(statPrefix string, t TCP, s side) *listenerv3.Filter {
	p := &tcpproxyv3.TcpProxy{
		StatPrefix:                      statPrefix,
		ClusterSpecifier:                &tcpproxyv3.TcpProxy_Cluster{Cluster: t.Cluster},
		AccessLog:                       e.accessLog(tcpLogName),
		IdleTimeout:                     t.IdleTimeout,
		MaxDownstreamConnectionDuration: t.MaxDuration,
	}
	if stats := e.tcpStats(s); len(stats) > 0 {
		for _, l := range p.AccessLog {
			l.Filter = both(logTypes(true, connected), l.Filter)
		}
		p.AccessLog = append(p.AccessLog, stats...)
		p.AccessLogOptions = &tcpproxyv3.TcpProxy_TcpAccessLogOptions{FlushAccessLogOnConnected: true}
		if s.mutual {
			// Else the connection to the application is there, and counted, before the client has shown who it is.
			p.UpstreamConnectMode, p.MaxEarlyDataBytes = tcpproxyv3.UpstreamConnectMode_ON_DOWNSTREAM_TLS_HANDSHAKE, wrapperspb.UInt32(0)
		}
	}
	if t.TunnelTo != "" {
		p.TunnelingConfig = &tcpproxyv3.TcpProxy_TunnelingConfig{Hostname: t.TunnelTo, UsePost: t.TunnelByPost}
	}
	if len(t.Weighted) > 0 {
		w := &tcpproxyv3.TcpProxy_WeightedCluster{}
		for _, c := range t.Weighted {
			w.Clusters = append(w.Clusters, &tcpproxyv3.TcpProxy_WeightedCluster_ClusterWeight{Name: c.Cluster, Weight: c.Weight})
		}
		p.StatPrefix, p.ClusterSpecifier = t.Prefix, &tcpproxyv3.TcpProxy_WeightedClusters{WeightedClusters: w}
	}
	return networkFilter("envoy.filters.network.tcp_proxy", p)
}

// tcpFilters returns the filters that forward connections: the TCP proxy, after the filter that resolves their server name if the cluster
// needs that. The cluster has the same cache, and so connects to no other address than the filter has found.
func (e Env) tcpFilters(statPrefix string, t TCP, s side) []*listenerv3.Filter {
	if f := e.protocolFilter(statPrefix, t); f != nil && t.Protocol == mesh.Redis {
		return []*listenerv3.Filter{f}
	} else if f != nil {
		return []*listenerv3.Filter{f, e.tcpProxy(statPrefix, t, s)}
	}
	proxy := e.tcpProxy(statPrefix, t, s)
	if t.Dynamic == nil {
		return []*listenerv3.Filter{proxy}
	}
	return []*listenerv3.Filter{networkFilter("envoy.filters.network.sni_dynamic_forward_proxy", &snidynamicv3.FilterConfig{
		DnsCacheConfig: t.Dynamic.Cache(e.Caps), PortSpecifier: &snidynamicv3.FilterConfig_PortValue{PortValue: t.Dynamic.Port},
	}), proxy}
}

// protocolFilter returns the filter that knows the protocol of connections to one cluster; nil if there is none, or none is wanted. That of
// Redis forwards the commands itself. [control-plane 1.2.23]
func (e Env) protocolFilter(statPrefix string, t TCP) *listenerv3.Filter {
	uses := func(p mesh.Protocol, c mesh.Capability) bool {
		return t.Protocol == p && e.Protocols.Has(c) && e.Caps.Has(c) && len(t.Weighted) == 0 && t.Dynamic == nil && t.TunnelTo == ""
	}
	switch {
	case uses(mesh.Mongo, mesh.MongoFilter):
		return networkFilter("envoy.filters.network.mongo_proxy", &mongoproxyv3.MongoProxy{StatPrefix: statPrefix})
	case uses(mesh.Redis, mesh.RedisFilter):
		return networkFilter("envoy.filters.network.redis_proxy", &redisproxyv3.RedisProxy{
			StatPrefix: statPrefix, LatencyInMicros: true, Settings: &redisproxyv3.RedisProxy_ConnPoolSettings{OpTimeout: durationpb.New(redisTimeout)},
			PrefixRoutes: &redisproxyv3.RedisProxy_PrefixRoutes{CatchAllRoute: &redisproxyv3.RedisProxy_PrefixRoutes_Route{Cluster: t.Cluster}},
		})
	}
	return nil
}

// redisTimeout is how long a command of Redis may take.
const redisTimeout = 5 * time.Second

func (e Env) blackhole(name string, port uint32) *listenerv3.FilterChain {
	quiet := Env{Mesh: &meshv1.MeshConfig{}}
	return &listenerv3.FilterChain{
		Name:             name,
		FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: wrapperspb.UInt32(port)},
		Filters:          []*listenerv3.Filter{quiet.tcpProxy(mesh.BlackHoleCluster, TCP{Cluster: mesh.BlackHoleCluster}, side{})},
	}
}
