package bootstrap

import (
	"crypto/tls"
	"slices"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	filelogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	brotliv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/compression/brotli/compressor/v3"
	gzipv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/compression/gzip/compressor/v3"
	zstdv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/compression/zstd/compressor/v3"
	compressorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/compressor/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

type accessLog = accesslogv3.AccessLog

// Names of the static clusters; control planes and users depend on them. [agent B13]
const (
	xdsCluster        = mesh.XDSCluster
	sdsCluster        = mesh.SDSCluster
	agentCluster      = "agent"
	prometheusCluster = "prometheus_stats"
	localCluster      = mesh.LocalCluster
)

// xdsLimit is so high that a circuit breaker never rejects the ADS stream.
const xdsLimit = 100000

func socket(address string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       address,
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

func pipe(path string) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
}

func (p *packer) discardLog() *accessLog {
	return &accessLog{
		Name:       "envoy.access_loggers.file",
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: p.pack(&filelogv3.FileAccessLog{Path: "/dev/null"})},
	}
}

// static makes the clusters and listeners that work without a control plane.
func (p *packer) static(s *spec.Spec, fam family) *bootstrapv3.Bootstrap_StaticResources {
	const quick, patient = 250 * time.Millisecond, time.Second
	sds := p.http2(cluster(sdsCluster, patient, pipe(s.Paths.SDSSocket)), nil)
	secrets := []*clusterv3.Cluster{sds}
	if !s.Certificates.Own {
		secrets = append(secrets, p.http2(cluster(mesh.SDSFilesCluster, patient, pipe(s.Paths.FilesSocket)), nil))
	}
	xds := p.http2(cluster(xdsCluster, patient, pipe(s.Paths.XDSSocket)),
		// Every new stream gets its own connection, so that it reaches the agent
		// that listens now and not one that has exited.
		&corev3.HttpProtocolOptions{MaxRequestsPerConnection: wrapperspb.UInt32(1)})
	limit := func(p corev3.RoutingPriority) *clusterv3.CircuitBreakers_Thresholds {
		n := wrapperspb.UInt32(xdsLimit)
		return &clusterv3.CircuitBreakers_Thresholds{Priority: p, MaxConnections: n, MaxPendingRequests: n, MaxRequests: n}
	}
	xds.CircuitBreakers = &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{
		limit(corev3.RoutingPriority_DEFAULT), limit(corev3.RoutingPriority_HIGH),
	}}
	xds.UpstreamConnectionOptions = &clusterv3.UpstreamConnectionOptions{
		TcpKeepalive: &corev3.TcpKeepalive{KeepaliveTime: wrapperspb.UInt32(300)},
	}
	var own []*clusterv3.Cluster
	if s.Envoy.SelfDiscovery {
		own = append(own, self())
	}
	var compress []*hcmv3.HttpFilter
	if c := s.Config.GetStatsCompression(); c == nil || c.GetValue() {
		compress = p.compressors()
	}
	return &bootstrapv3.Bootstrap_StaticResources{
		Clusters: slices.Concat([]*clusterv3.Cluster{
			cluster(prometheusCluster, quick, socket(fam.loopback, uint32(s.Envoy.AdminPort))),
			cluster(agentCluster, quick, socket(fam.loopback, uint32(s.Status.Port))),
		}, secrets, []*clusterv3.Cluster{xds}, own),
		Listeners: p.listeners(s, fam, compress),
	}
}

// metricsPath is the path of metrics in Envoy's listeners.
const metricsPath = "/stats/prometheus"

// listeners are those of metrics and of readiness, and those of metrics over mutual TLS that are asked for. [agent B14]
func (p *packer) listeners(s *spec.Spec, fam family, compress []*hcmv3.HttpFilter) []*listenerv3.Listener {
	health := p.listener(fam, uint32(s.Envoy.HealthPort), "agent", "/healthz/ready", agentCluster, nil)
	if s.Envoy.HealthProxyProtocol {
		// The kubelet's probes come without it.
		health.ListenerFilters = []*listenerv3.ListenerFilter{{
			Name: "envoy.filters.listener.proxy_protocol",
			ConfigType: &listenerv3.ListenerFilter_TypedConfig{
				TypedConfig: p.pack(&proxyprotocolv3.ProxyProtocol{AllowRequestsWithoutProxyProtocol: true}),
			},
		}}
	}
	out := []*listenerv3.Listener{p.listener(fam, uint32(s.Envoy.PrometheusPort), "stats", metricsPath, prometheusCluster, compress), health}
	for _, secure := range []struct {
		port       int
		stat, from string
	}{
		{s.Envoy.SecureMetricsPort, "secure_stats", prometheusCluster},
		{s.Envoy.SecureMergedMetricsPort, "secure_merged_stats", agentCluster},
	} {
		if secure.port == 0 {
			continue
		}
		// The agent compresses its own page.
		filters := compress
		if secure.from == agentCluster {
			filters = nil
		}
		l := p.listener(fam, uint32(secure.port), secure.stat, metricsPath, secure.from, filters)
		l.FilterChains[0].TransportSocket = p.mutualTLS(s.TLS)
		out = append(out, l)
	}
	return out
}

// mutualTLS serves with the workload's certificate, to clients with one that the mesh's roots have signed. Envoy waits for the
// certificate for a bounded time, and refuses connections without it.
func (p *packer) mutualTLS(policy pki.TLSPolicy) *corev3.TransportSocket {
	return &corev3.TransportSocket{
		Name: "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: p.pack(&tlsv3.DownstreamTlsContext{
			CommonTlsContext: &tlsv3.CommonTlsContext{
				TlsParams:                      params(policy),
				AlpnProtocols:                  []string{"h2", "http/1.1"},
				TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{agentSecret(mesh.SecretDefault)},
				ValidationContextType: &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{
					ValidationContextSdsSecretConfig: agentSecret(mesh.SecretRoot),
				},
			},
			RequireClientCertificate: wrapperspb.Bool(true),
		})},
	}
}

// params are the limits of a policy; nil if there are none. [agent E34]
func params(policy pki.TLSPolicy) *tlsv3.TlsParameters {
	l, limited := policy.Limits()
	if !limited {
		return nil
	}
	version := map[uint16]tlsv3.TlsParameters_TlsProtocol{tls.VersionTLS12: tlsv3.TlsParameters_TLSv1_2, tls.VersionTLS13: tlsv3.TlsParameters_TLSv1_3}
	out := &tlsv3.TlsParameters{
		TlsMinimumProtocolVersion: version[l.Min], TlsMaximumProtocolVersion: version[l.Max], CipherSuites: l.EnvoyCiphers, EcdhCurves: l.EnvoyCurves,
	}
	if policy == pki.FIPS1403 {
		// Only so can suites of TLS 1.3 be left out.
		out.CompliancePolicies = []tlsv3.TlsParameters_CompliancePolicy{tlsv3.TlsParameters_FIPS_202205}
	}
	return out
}

// agentSecret is a secret of the workload, which the agent or another server of its socket has.
func agentSecret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
			ApiType:             corev3.ApiConfigSource_GRPC,
			TransportApiVersion: corev3.ApiVersion_V3,
			GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: sdsCluster},
			}}},
			SetNodeOnFirstMessageOnly: true,
		}},
		InitialFetchTimeout: durationpb.New(secretTimeout),
		ResourceApiVersion:  corev3.ApiVersion_V3,
	}}
}

// secretTimeout is how long the start of Envoy waits for the workload's certificate for what is static: traffic must not
// wait for long until somebody can ask for metrics.
const secretTimeout = time.Second

// cluster returns a static cluster with one endpoint. The ";" marks the end of the name for the tag
// rule that extracts the cluster's name from the name of a statistic.
func cluster(name string, connect time.Duration, to *corev3.Address) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		AltStatName:          name + ";",
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(connect),
		LoadAssignment: &endpointv3.ClusterLoadAssignment{
			ClusterName: name,
			Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: to}},
			}}}},
		},
	}
}

// http2 makes a cluster use HTTP/2, which gRPC requires.
func (p *packer) http2(c *clusterv3.Cluster, common *corev3.HttpProtocolOptions) *clusterv3.Cluster {
	c.TypedExtensionProtocolOptions = map[string]*anypb.Any{
		"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": p.pack(&httpv3.HttpProtocolOptions{
			CommonHttpProtocolOptions: common,
			UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
				ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
					ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
						Http2ProtocolOptions: &corev3.Http2ProtocolOptions{},
					},
				},
			},
		}),
	}
	return c
}

// listener forwards one path to one cluster. It has no traffic direction, so that a drain of inbound listeners does not close
// it, and is exempt from every limit: an overloaded proxy must still answer health checks.
func (p *packer) listener(fam family, port uint32, stat, path, to string, filters []*hcmv3.HttpFilter) *listenerv3.Listener {
	filters = append(filters, p.httpFilter("envoy.filters.http.router", &routerv3.Router{}))
	manager := &hcmv3.HttpConnectionManager{
		StatPrefix:  stat,
		HttpFilters: filters,
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			VirtualHosts: []*routev3.VirtualHost{{
				Name:    "backend",
				Domains: []string{"*"},
				Routes: []*routev3.Route{{
					Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: path}},
					Action: &routev3.Route_Route{Route: &routev3.RouteAction{
						ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: to},
					}},
				}},
			}},
		}},
	}
	l := &listenerv3.Listener{
		Name:                  fam.wildcard + "_" + digits(port),
		Address:               socket(fam.wildcard, port),
		IgnoreGlobalConnLimit: true,
		BypassOverloadManager: true,
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name:       "envoy.filters.network.http_connection_manager",
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: p.pack(manager)},
		}}}},
	}
	if fam.also != "" {
		l.AdditionalAddresses = []*listenerv3.AdditionalAddress{{Address: socket(fam.also, port)}}
	}
	return l
}

func (p *packer) httpFilter(name string, config proto.Message) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: p.pack(config)}}
}

// compressors compress metrics with the best encoding that the client accepts.
func (p *packer) compressors() []*hcmv3.HttpFilter {
	var out []*hcmv3.HttpFilter
	for _, c := range []struct {
		name    string
		library proto.Message
	}{{"brotli", &brotliv3.Brotli{}}, {"zstd", &zstdv3.Zstd{}}, {"gzip", &gzipv3.Gzip{}}} {
		out = append(out, p.httpFilter("envoy.filters.http.compressor."+c.name, &compressorv3.Compressor{
			CompressorLibrary: &corev3.TypedExtensionConfig{Name: "stats_" + c.name, TypedConfig: p.pack(c.library)},
			ResponseDirectionConfig: &compressorv3.Compressor_ResponseDirectionConfig{
				CommonConfig: &compressorv3.Compressor_CommonDirectionConfig{ContentTypeMatcher: []*matcherv3.StringMatcher{
					prefix("text/plain"), prefix("application/vnd.google.protobuf"), prefix("application/openmetrics-"),
				}},
			},
		}))
	}
	return out
}
