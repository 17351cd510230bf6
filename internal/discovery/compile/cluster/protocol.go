package cluster

import (
	"math"
	"slices"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	commonmatcherv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/matcher/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	upstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// optionsName is the key of a cluster's HTTP options.
const optionsName = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

// upstream is the HTTP version of connections to endpoints.
type upstream uint8

const (
	http1 upstream = iota // Envoy's default
	http2
	client // that of the client's connection
)

// options collects the HTTP options of a cluster.
type options struct {
	version upstream
	h2      *corev3.Http2ProtocolOptions
	common  *corev3.HttpProtocolOptions
	auto    *corev3.UpstreamHttpProtocolOptions
	// outliers says which responses count as errors of an endpoint, nil for those with status 5xx.
	outliers *upstreamv3.HttpProtocolOptions_OutlierDetection
}

func protocolOptions(in Input) *options {
	pool := in.Policy.GetConnectionPool()
	o := pooled(version(in.Protocol, pool.GetHttp(), in.Mesh, in.Router), pool)
	if codes := in.Policy.GetOutlierDetection().GetOutlierDetectionHttpErrorCodes(); len(codes) > 0 && (in.Protocol.IsHTTP() || in.Protocol == mesh.Auto) {
		o.outliers = &upstreamv3.HttpProtocolOptions_OutlierDetection{ErrorMatcher: statusIn(codes)}
	}
	return o
}

// statusIn matches responses with one of the status codes.
func statusIn(codes []uint32) *commonmatcherv3.MatchPredicate {
	var list []string
	for _, code := range codes {
		list = append(list, strconv.FormatUint(uint64(code), 10))
	}
	slices.Sort(list)
	return &commonmatcherv3.MatchPredicate{Rule: &commonmatcherv3.MatchPredicate_HttpResponseHeadersMatch{HttpResponseHeadersMatch: &commonmatcherv3.HttpHeadersMatch{
		Headers: []*routev3.HeaderMatcher{{Name: ":status", HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: strings.Join(slices.Compact(list), "|")}},
		}}}},
	}}}
}

// pooled returns the options of a connection pool.
func pooled(v upstream, pool *networking.ConnectionPoolSettings) *options {
	http, tcp := pool.GetHttp(), pool.GetTcp()
	o := &options{version: v, h2: &corev3.Http2ProtocolOptions{}}
	if n := http.GetMaxConcurrentStreams(); n > 0 {
		o.h2.MaxConcurrentStreams = wrapperspb.UInt32(uint32(min(n, math.MaxInt32)))
	}
	if k := http.GetHttp2KeepAlive(); k.GetInterval().AsDuration() > 0 && k.GetTimeout().AsDuration() > 0 {
		o.h2.ConnectionKeepalive = &corev3.KeepaliveSettings{Interval: k.GetInterval(), Timeout: k.GetTimeout()}
	}
	common := &corev3.HttpProtocolOptions{}
	used := false
	if t := http.GetIdleTimeout(); t != nil {
		common.IdleTimeout, used = t, true
	}
	if n := http.GetMaxRequestsPerConnection(); n > 0 {
		common.MaxRequestsPerConnection, used = wrapperspb.UInt32(uint32(n)), true
	}
	if t := tcp.GetMaxConnectionDuration(); t != nil {
		common.MaxConnectionDuration, used = t, true
	}
	if used {
		o.common = common
	}
	return o
}

// version returns HTTP/2 if it is declared or upgraded to, and the client's version if the rule requires it, or if the port declares no
// protocol and the client is a workload of the mesh. Gateways use HTTP/1.1 then: browsers speak HTTP/2 to them, which says nothing about
// the server. [control-plane 1.8.8]
func version(p mesh.Protocol, http *networking.ConnectionPoolSettings_HTTPSettings, m *meshv1.MeshConfig, router bool) upstream {
	switch {
	case (p.IsHTTP() || p == mesh.Auto) && http.GetUseClientProtocol():
		return client
	case p.IsHTTP2():
		return http2
	case p == mesh.Auto && !router:
		return client
	case p == mesh.HTTP && upgraded(http.GetH2UpgradePolicy(), m):
		return http2
	}
	return http1
}

func upgraded(p networking.ConnectionPoolSettings_HTTPSettings_H2UpgradePolicy, m *meshv1.MeshConfig) bool {
	if p == networking.ConnectionPoolSettings_HTTPSettings_DEFAULT {
		return m.GetH2UpgradePolicy() == meshv1.MeshConfig_UPGRADE
	}
	return p == networking.ConnectionPoolSettings_HTTPSettings_UPGRADE
}

// attach sets the options of c, unless they are Envoy's defaults.
func (o *options) attach(c *clusterv3.Cluster) {
	if o.version == http1 && o.common == nil && o.auto == nil && o.outliers == nil {
		return
	}
	m := &upstreamv3.HttpProtocolOptions{CommonHttpProtocolOptions: o.common, UpstreamHttpProtocolOptions: o.auto, OutlierDetection: o.outliers}
	switch o.version {
	case http2:
		m.UpstreamProtocolOptions = &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: o.h2},
			},
		}
	case client:
		m.UpstreamProtocolOptions = &upstreamv3.HttpProtocolOptions_UseDownstreamProtocolConfig{
			UseDownstreamProtocolConfig: &upstreamv3.HttpProtocolOptions_UseDownstreamHttpConfig{
				HttpProtocolOptions: &corev3.Http1ProtocolOptions{}, Http2ProtocolOptions: o.h2,
			},
		}
	case http1:
		m.UpstreamProtocolOptions = &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{HttpProtocolOptions: &corev3.Http1ProtocolOptions{}},
			},
		}
	}
	c.TypedExtensionProtocolOptions = map[string]*anypb.Any{optionsName: marshal.MustAny(m)}
}

// idle returns options with the client's protocol and an idle timeout.
func idle(d *durationpb.Duration) *options {
	return &options{version: client, h2: &corev3.Http2ProtocolOptions{}, common: &corev3.HttpProtocolOptions{IdleTimeout: d}}
}
