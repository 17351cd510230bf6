package bootstrap

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// Names of the static clusters of collectors; what a control plane sends refers to them. [agent B13]
const (
	zipkinCluster    = "zipkin"
	datadogCluster   = "datadog_agent"
	lightstepCluster = "lightstep"
	metricsCluster   = "envoy_metrics_service"
)

// collectors adds what sends traces, statistics and access logs to somebody outside of the mesh. Its errors name the field. [agent B13, B18, B19]
func (p *packer) collectors(s *spec.Spec, fam family, b *bootstrapv3.Bootstrap) error {
	c := s.Config
	if err := p.tracer(s, fam, b); err != nil {
		return fmt.Errorf("tracing: %w", err)
	}
	if text := c.GetStatsdUdpAddress(); text != "" {
		to, err := statsdAddress(text)
		if err != nil {
			return fmt.Errorf("statsdUdpAddress: %w", err)
		}
		b.StatsSinks = append(b.StatsSinks, p.sink("envoy.stat_sinks.statsd", &metricsv3.StatsdSink{
			StatsdSpecifier: &metricsv3.StatsdSink_Address{Address: to},
		}))
	}
	for _, service := range []struct {
		field, cluster string
		remote         *meshv1.RemoteService
	}{{"envoyMetricsService", metricsCluster, c.GetEnvoyMetricsService()}, {"envoyAccessLogService", mesh.AccessLogServiceCluster, c.GetEnvoyAccessLogService()}} {
		if service.remote.GetAddress() == "" {
			continue
		}
		to, err := p.collector(fam, service.cluster, service.remote.GetAddress(), service.remote.GetTlsSettings(), s.TLS)
		if err != nil {
			return fmt.Errorf("%s: %w", service.field, err)
		}
		p.http2(to, nil)
		keepAlive(to, service.remote.GetTcpKeepalive())
		b.StaticResources.Clusters = append(b.StaticResources.Clusters, to)
		if service.cluster == metricsCluster {
			b.StatsSinks = append(b.StatsSinks, p.sink("envoy.stat_sinks.metrics_service", &metricsv3.MetricsServiceConfig{
				TransportApiVersion: corev3.ApiVersion_V3,
				GrpcService: &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
					EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: metricsCluster},
				}},
			}))
		}
	}
	return nil
}

// tracer adds Envoy's tracer, of which the control plane says what is traced. Envoy has none for the other collectors that the field can
// name. For Lightstep it is that of OpenTelemetry, which its collectors take, since Envoy has none of its own any more.
func (p *packer) tracer(s *spec.Spec, fam family, b *bootstrapv3.Bootstrap) error {
	tracing := s.Config.GetTracing()
	name, address := zipkinCluster, tracing.GetZipkin().GetAddress()
	tracer := &tracev3.Tracing_Http{Name: "envoy.tracers.zipkin"}
	switch {
	case tracing.GetZipkin() != nil:
		tracer.ConfigType = &tracev3.Tracing_Http_TypedConfig{TypedConfig: p.pack(&tracev3.ZipkinConfig{
			CollectorCluster: zipkinCluster, CollectorEndpoint: "/api/v2/spans", CollectorEndpointVersion: tracev3.ZipkinConfig_HTTP_JSON,
			TraceId_128Bit: true, SharedSpanContext: wrapperspb.Bool(false),
		})}
	case tracing.GetDatadog() != nil:
		name, address, tracer.Name = datadogCluster, tracing.GetDatadog().GetAddress(), "envoy.tracers.datadog"
		tracer.ConfigType = &tracev3.Tracing_Http_TypedConfig{TypedConfig: p.pack(&tracev3.DatadogConfig{
			CollectorCluster: datadogCluster, ServiceName: s.Node.Cluster,
		})}
	case tracing.GetLightstep() != nil:
		lightstep := tracing.GetLightstep()
		name, address, tracer.Name = lightstepCluster, lightstep.GetAddress(), "envoy.tracers.opentelemetry"
		service := &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: lightstepCluster}}}
		if token := lightstep.GetAccessToken(); token != "" {
			service.InitialMetadata = []*corev3.HeaderValue{{Key: mesh.LightstepToken, Value: token}}
		}
		tracer.ConfigType = &tracev3.Tracing_Http_TypedConfig{TypedConfig: p.pack(&tracev3.OpenTelemetryConfig{GrpcService: service, ServiceName: s.Node.Cluster})}
	default:
		return nil
	}
	to, err := p.collector(fam, name, address, tracing.GetTlsSettings(), s.TLS)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if name == lightstepCluster {
		p.http2(to, nil)
	}
	b.StaticResources.Clusters = append(b.StaticResources.Clusters, to)
	b.Tracing = &tracev3.Tracing{Http: tracer} //nolint:staticcheck // a control plane that sends no provider relies on it
	return nil
}

func (p *packer) sink(name string, config proto.Message) *metricsv3.StatsSink {
	return &metricsv3.StatsSink{Name: name, ConfigType: &metricsv3.StatsSink_TypedConfig{TypedConfig: p.pack(config)}}
}

// collector returns a cluster of one host and port, which is looked up in DNS if it is a name. Envoy starts whether it can be or not.
func (p *packer) collector(fam family, name, address string, tls *networking.ClientTLSSettings, policy pki.TLSPolicy) (*clusterv3.Cluster, error) {
	host, port, err := splitAddress(address)
	if err != nil {
		return nil, err
	}
	const connect = time.Second
	c := cluster(name, connect, socket(host, port))
	if _, err := netip.ParseAddr(host); err != nil {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
		c.DnsLookupFamily = clusterv3.Cluster_V4_ONLY
		if fam.loopback == "::1" {
			c.DnsLookupFamily = clusterv3.Cluster_V6_ONLY
		}
	}
	c.TransportSocket, err = p.clientTLS(tls, policy)
	return c, err
}

// splitAddress splits host:port; the host may be an IPv6 address in brackets.
func splitAddress(address string) (host string, port uint32, err error) {
	i := strings.LastIndexByte(address, ':')
	if i <= 0 {
		return "", 0, fmt.Errorf("invalid address %q: want host:port", address)
	}
	host, text := address[:i], address[i+1:]
	if inner, bracketed := strings.CutPrefix(host, "["); bracketed {
		host, bracketed = strings.CutSuffix(inner, "]")
		if ip, err := netip.ParseAddr(host); !bracketed || err != nil || !ip.Is6() {
			host = ""
		}
	} else if strings.Contains(host, ":") {
		host = "" // an IPv6 address without brackets
	}
	if host == "" {
		return "", 0, fmt.Errorf("invalid address %q: want host:port", address)
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return "", 0, fmt.Errorf("invalid address %q: invalid port %q: want 1–65535", address, text)
	}
	return host, uint32(n), nil
}

// statsdAddress is an address of UDP. Envoy looks no name up for it.
func statsdAddress(text string) (*corev3.Address, error) {
	host, port, err := splitAddress(text)
	if err != nil {
		return nil, err
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return nil, fmt.Errorf("invalid address %q: want an IP address and a port: Envoy looks no names up for statsd", text)
	}
	to := socket(host, port)
	to.GetSocketAddress().Protocol = corev3.SocketAddress_UDP
	return to, nil
}

// keepAlive sets the probes of idle connections.
func keepAlive(c *clusterv3.Cluster, k *networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive) {
	if k == nil {
		return
	}
	out := &corev3.TcpKeepalive{}
	if k.GetProbes() > 0 {
		out.KeepaliveProbes = wrapperspb.UInt32(k.GetProbes())
	}
	if t := k.GetTime().AsDuration(); t > 0 {
		out.KeepaliveTime = wrapperspb.UInt32(uint32(max(1, t/time.Second)))
	}
	if t := k.GetInterval().AsDuration(); t > 0 {
		out.KeepaliveInterval = wrapperspb.UInt32(uint32(max(1, t/time.Second)))
	}
	c.UpstreamConnectionOptions = &clusterv3.UpstreamConnectionOptions{TcpKeepalive: out}
}

// clientTLS returns the transport socket for a mode of TLS, nil for plaintext. What would protect less than it says is an error.
func (p *packer) clientTLS(t *networking.ClientTLSSettings, policy pki.TLSPolicy) (*corev3.TransportSocket, error) {
	common := &tlsv3.CommonTlsContext{TlsParams: params(policy)}
	switch mode := t.GetMode(); {
	case mode == networking.ClientTLSSettings_DISABLE:
		return nil, nil
	case t.GetCredentialName() != "":
		return nil, fmt.Errorf("tlsSettings: credentialName %q: want caCertificates, clientCertificate and privateKey: the bootstrap reads files", t.GetCredentialName())
	case mode == networking.ClientTLSSettings_ISTIO_MUTUAL:
		common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{agentSecret(mesh.SecretDefault)}
		common.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext:         &tlsv3.CertificateValidationContext{MatchTypedSubjectAltNames: names(t.GetSubjectAltNames(), tlsv3.SubjectAltNameMatcher_URI)},
				ValidationContextSdsSecretConfig: agentSecret(mesh.SecretRoot),
			},
		}
	case t.GetCaCertificates() == "" && !t.GetInsecureSkipVerify().GetValue():
		return nil, fmt.Errorf("tlsSettings: caCertificates is missing: want the file with the roots that sign the collector's certificate")
	default:
		validation := &tlsv3.CertificateValidationContext{MatchTypedSubjectAltNames: names(t.GetSubjectAltNames(), tlsv3.SubjectAltNameMatcher_DNS)}
		if t.GetInsecureSkipVerify().GetValue() {
			validation.TrustChainVerification = tlsv3.CertificateValidationContext_ACCEPT_UNTRUSTED
		} else {
			validation.TrustedCa = file(t.GetCaCertificates())
		}
		if t.GetCaCrl() != "" {
			validation.Crl = file(t.GetCaCrl())
		}
		common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: validation}
		if mode == networking.ClientTLSSettings_MUTUAL {
			if t.GetClientCertificate() == "" || t.GetPrivateKey() == "" {
				return nil, fmt.Errorf("tlsSettings: clientCertificate and privateKey are required in mode MUTUAL")
			}
			common.TlsCertificates = []*tlsv3.TlsCertificate{{CertificateChain: file(t.GetClientCertificate()), PrivateKey: file(t.GetPrivateKey())}}
		}
	}
	return &corev3.TransportSocket{
		Name:       "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: p.pack(&tlsv3.UpstreamTlsContext{CommonTlsContext: common, Sni: t.GetSni()})},
	}, nil
}

func file(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}

// names are matchers of exact names of a kind.
func names(list []string, kind tlsv3.SubjectAltNameMatcher_SanType) (out []*tlsv3.SubjectAltNameMatcher) {
	for _, n := range list {
		out = append(out, &tlsv3.SubjectAltNameMatcher{SanType: kind, Matcher: &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_Exact{Exact: n},
		}})
	}
	return out
}
