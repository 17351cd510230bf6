package listener

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	detectorsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/tracers/opentelemetry/resource_detectors/v3"
	samplersv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/tracers/opentelemetry/samplers/v3"
	metadatav3 "github.com/envoyproxy/go-control-plane/envoy/type/metadata/v3"
	tracingv3 "github.com/envoyproxy/go-control-plane/envoy/type/tracing/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Tracing says which requests connection managers trace, and to whom they report them.
type Tracing struct {
	// Provider is one of mesh.TraceProvider; nil for the tracer of the proxy's bootstrap.
	Provider *meshv1.MeshConfig_ExtensionProvider
	// Collector is the provider's service, and Sampler that of its sampler, without a name if that has none.
	Collector, Sampler Collector
	// Service is the name of the proxy's service in spans; empty if it has none, or its tracer takes it from Envoy's node.
	Service string
	// Sampling is the share of traced requests among those of which nobody has decided before, 0–100 percent.
	Sampling float64
	// MaxPathTagLength is the longest path in a span, in bytes, if the provider has none; 0 for Envoy's default.
	MaxPathTagLength uint32
	// Tags are added to spans, by name.
	Tags map[string]*telemetry.Tracing_CustomTag
	// WithoutIstioTags is set if spans have no tags about the proxy and about policies in dry run.
	WithoutIstioTags bool
	// IgnoreRequestID is set if x-request-id does not say whether a request is traced.
	IgnoreRequestID bool
	// NoPropagation is set if requests are forwarded without the headers of their trace.
	NoPropagation bool
}

// Collector is a service to which Envoy itself makes requests.
type Collector struct{ Cluster, Host string }

// Clusters are the names of the clusters that the tracer makes requests to.
func (t *Tracing) Clusters() []string {
	if t == nil || t.Provider == nil {
		return nil
	}
	out := []string{t.Collector.Cluster}
	if t.Sampler != (Collector{}) {
		out = append(out, t.Sampler.Cluster)
	}
	return out
}

// tracing returns the tracing of a connection manager, nil if nothing is traced or the proxy does not have the tracer.
// [control-plane 1.11.1]
func (e Env) tracing() *hcmv3.HttpConnectionManager_Tracing {
	t := e.Tracing
	if t == nil {
		return nil
	}
	out := &hcmv3.HttpConnectionManager_Tracing{
		ClientSampling: &typev3.Percent{Value: 100}, OverallSampling: &typev3.Percent{Value: 100},
		RandomSampling:       &typev3.Percent{Value: t.Sampling},
		NoContextPropagation: t.NoPropagation,
	}
	for _, name := range slices.Sorted(maps.Keys(t.Tags)) {
		if tag := customTag(name, t.Tags[name]); tag != nil && (tag.GetValue() == "" || e.Caps.Has(mesh.FormattedTags)) {
			out.CustomTags = append(out.CustomTags, tag)
		}
	}
	if !t.WithoutIstioTags {
		out.CustomTags = append(out.CustomTags, dryRunTags()...)
		if e.Caps.Has(mesh.FormattedTags) {
			out.CustomTags = append(out.CustomTags, nodeTags()...)
		}
	}
	slices.SortStableFunc(out.CustomTags, func(a, b *tracingv3.CustomTag) int { return cmp.Compare(a.Tag, b.Tag) })
	switch p := t.Provider.GetProvider().(type) {
	case nil:
		out.MaxPathTagLength = maxLength(t.MaxPathTagLength)
	case *meshv1.MeshConfig_ExtensionProvider_Zipkin:
		if !e.Caps.Has(mesh.Zipkin) {
			return nil
		}
		out.MaxPathTagLength = maxLength(cmp.Or(p.Zipkin.GetMaxTagLength(), t.MaxPathTagLength))
		out.Provider = tracer("envoy.tracers.zipkin", t.zipkin(p.Zipkin))
	case *meshv1.MeshConfig_ExtensionProvider_Skywalking:
		if !e.Caps.Has(mesh.SkyWalking) {
			return nil
		}
		out.MaxPathTagLength = maxLength(t.MaxPathTagLength)
		s := &tracev3.SkyWalkingConfig{GrpcService: t.grpc()}
		if token := p.Skywalking.GetAccessToken(); token != "" {
			s.ClientConfig = &tracev3.ClientConfig{BackendTokenSpecifier: &tracev3.ClientConfig_BackendToken{BackendToken: token}}
		}
		out.Provider = tracer("envoy.tracers.skywalking", s)
		// SkyWalking's model has a span for each end of a call; without it the parts of a trace are not connected.
		out.SpawnUpstreamSpan = wrapperspb.Bool(true)
	case *meshv1.MeshConfig_ExtensionProvider_Opentelemetry:
		if !e.Caps.Has(mesh.OpenTelemetry) {
			return nil
		}
		out.MaxPathTagLength = maxLength(cmp.Or(p.Opentelemetry.GetMaxTagLength(), t.MaxPathTagLength))
		out.Provider = tracer("envoy.tracers.opentelemetry", t.openTelemetry(p.Opentelemetry))
		if p.Opentelemetry.GetDynatraceSampler() != nil {
			out.RandomSampling = &typev3.Percent{Value: 100} // the sampler decides
		}
	case *meshv1.MeshConfig_ExtensionProvider_Lightstep:
		if !e.Caps.Has(mesh.OpenTelemetry) {
			return nil
		}
		o := mesh.LightstepByOpenTelemetry(p.Lightstep) //nolint:staticcheck // deprecated, and still configured
		out.MaxPathTagLength = maxLength(cmp.Or(o.GetMaxTagLength(), t.MaxPathTagLength))
		out.Provider = tracer("envoy.tracers.opentelemetry", t.openTelemetry(o))
	case *meshv1.MeshConfig_ExtensionProvider_Datadog:
		if !e.Caps.Has(mesh.Datadog) {
			return nil
		}
		out.MaxPathTagLength = maxLength(cmp.Or(p.Datadog.GetMaxTagLength(), t.MaxPathTagLength))
		out.Provider = tracer("envoy.tracers.datadog", &tracev3.DatadogConfig{
			CollectorCluster: t.Collector.Cluster, CollectorHostname: t.Collector.Host, ServiceName: orDefault(t.Service, "envoy"),
		})
	default:
		panic("listener: provider " + t.Provider.GetName() + " is not one of tracing")
	}
	return out
}

func maxLength(n uint32) *wrapperspb.UInt32Value {
	if n == 0 {
		return nil
	}
	return wrapperspb.UInt32(n)
}

func tracer(name string, config proto.Message) *tracev3.Tracing_Http {
	return &tracev3.Tracing_Http{Name: name, ConfigType: &tracev3.Tracing_Http_TypedConfig{TypedConfig: marshal.MustAny(config)}}
}

// grpc is the provider's service of gRPC.
func (t *Tracing) grpc() *corev3.GrpcService {
	return &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
		EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: t.Collector.Cluster, Authority: t.Collector.Host},
	}}
}

func (t *Tracing) zipkin(z *meshv1.MeshConfig_ExtensionProvider_ZipkinTracingProvider) *tracev3.ZipkinConfig {
	out := &tracev3.ZipkinConfig{
		CollectorEndpointVersion: tracev3.ZipkinConfig_HTTP_JSON,
		TraceId_128Bit:           !z.GetEnable_64BitTraceId(),
		SharedSpanContext:        wrapperspb.Bool(false),
		CollectorService:         httpService(t.Collector, orDefault(z.GetPath(), "/api/v2/spans"), z.GetTimeout(), z.GetHeaders()),
	}
	if z.GetTraceContextOption() == meshv1.MeshConfig_ExtensionProvider_ZipkinTracingProvider_USE_B3_WITH_W3C_PROPAGATION {
		out.TraceContextOption = tracev3.ZipkinConfig_USE_B3_WITH_W3C_PROPAGATION
	}
	return out
}

// dynatracePath is where Dynatrace's servers have the sampler's configuration. Istio appends it to the exporter's service, too.
const dynatracePath = "/api/v2/samplingConfiguration"

func (t *Tracing) openTelemetry(o *meshv1.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider) *tracev3.OpenTelemetryConfig {
	out := &tracev3.OpenTelemetryConfig{ServiceName: t.Service}
	if h := o.GetHttp(); h != nil {
		out.HttpService = httpService(t.Collector, h.GetPath(), h.GetTimeout(), h.GetHeaders())
	} else {
		out.GrpcService = t.grpc()
		out.GrpcService.Timeout = o.GetGrpc().GetTimeout()
		for _, h := range o.GetGrpc().GetInitialMetadata() {
			if h.GetEnvName() == "" { // package config tells it
				out.GrpcService.InitialMetadata = append(out.GrpcService.InitialMetadata, &corev3.HeaderValue{Key: h.GetName(), Value: h.GetValue()})
			}
		}
	}
	const extensions = "envoy.tracers.opentelemetry."
	if o.GetResourceDetectors().GetEnvironment() != nil {
		out.ResourceDetectors = append(out.ResourceDetectors, extension(extensions+"resource_detectors.environment", &detectorsv3.EnvironmentResourceDetectorConfig{}))
	}
	if o.GetResourceDetectors().GetDynatrace() != nil {
		out.ResourceDetectors = append(out.ResourceDetectors, extension(extensions+"resource_detectors.dynatrace", &detectorsv3.DynatraceResourceDetectorConfig{}))
	}
	if d := o.GetDynatraceSampler(); d != nil {
		config := &samplersv3.DynatraceSamplerConfig{Tenant: d.GetTenant(), ClusterId: d.GetClusterId(), RootSpansPerMinute: d.GetRootSpansPerMinute()}
		if api := d.GetHttpService(); api != nil {
			config.HttpService = httpService(t.Sampler, api.GetHttp().GetPath(), api.GetHttp().GetTimeout(), api.GetHttp().GetHeaders())
		} else if h := o.GetHttp(); h != nil {
			config.HttpService = httpService(t.Collector, dynatracePath, h.GetTimeout(), h.GetHeaders())
		}
		out.Sampler = extension(extensions+"samplers.dynatrace", config)
	}
	return out
}

func extension(name string, config proto.Message) *corev3.TypedExtensionConfig {
	return &corev3.TypedExtensionConfig{Name: name, TypedConfig: marshal.MustAny(config)}
}

// httpService is a service of HTTP; without a timeout, requests to it have 5 s, Envoy's default.
func httpService(to Collector, path string, timeout *durationpb.Duration, headers []*meshv1.MeshConfig_ExtensionProvider_HttpHeader) *corev3.HttpService {
	if timeout == nil {
		timeout = durationpb.New(5 * time.Second)
	}
	out := &corev3.HttpService{HttpUri: &corev3.HttpUri{
		Uri: "http://" + to.Host + path, HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: to.Cluster}, Timeout: timeout,
	}}
	for _, h := range headers {
		if h.GetEnvName() != "" {
			continue // package config tells it
		}
		out.RequestHeadersToAdd = append(out.RequestHeadersToAdd, &corev3.HeaderValueOption{
			Header: &corev3.HeaderValue{Key: h.GetName(), Value: h.GetValue()}, AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		})
	}
	return out
}

// customTag returns a tag of the API, nil for one without a value.
func customTag(name string, t *telemetry.Tracing_CustomTag) *tracingv3.CustomTag {
	out := &tracingv3.CustomTag{Tag: name}
	switch v := t.GetType().(type) {
	case *telemetry.Tracing_CustomTag_Literal:
		out.Type = &tracingv3.CustomTag_Literal_{Literal: &tracingv3.CustomTag_Literal{Value: v.Literal.GetValue()}}
	case *telemetry.Tracing_CustomTag_Environment:
		out.Type = &tracingv3.CustomTag_Environment_{Environment: &tracingv3.CustomTag_Environment{
			Name: v.Environment.GetName(), DefaultValue: v.Environment.GetDefaultValue(),
		}}
	case *telemetry.Tracing_CustomTag_Header:
		out.Type = &tracingv3.CustomTag_RequestHeader{RequestHeader: &tracingv3.CustomTag_Header{
			Name: v.Header.GetName(), DefaultValue: v.Header.GetDefaultValue(),
		}}
	case *telemetry.Tracing_CustomTag_Formatter:
		out.Type = &tracingv3.CustomTag_Value{Value: v.Formatter.GetValue()}
	default:
		return nil
	}
	return out
}

// dryRunTags are what policies in dry run would have decided; absent from spans where there are none.
func dryRunTags() (out []*tracingv3.CustomTag) {
	for _, action := range []string{"allow", "deny"} {
		for name, key := range map[string]string{"name": "effective_policy_id", "result": "engine_result"} {
			out = append(out, &tracingv3.CustomTag{
				Tag: "istio.authorization.dry_run." + action + "_policy." + name,
				Type: &tracingv3.CustomTag_Metadata_{Metadata: &tracingv3.CustomTag_Metadata{
					Kind: &metadatav3.MetadataKind{Kind: &metadatav3.MetadataKind_Request_{Request: &metadatav3.MetadataKind_Request{}}},
					MetadataKey: &metadatav3.MetadataKey{Key: "envoy.filters.http.rbac", Path: []*metadatav3.MetadataKey_PathSegment{{
						Segment: &metadatav3.MetadataKey_PathSegment_Key{Key: "istio_dry_run_" + action + "_shadow_" + key},
					}}},
				}},
			})
		}
	}
	return out
}

// nodeTags are Istio's tags about the proxy. Each proxy evaluates them for itself, so that all proxies of a scope share their listeners.
func nodeTags() (out []*tracingv3.CustomTag) {
	for _, t := range []struct{ tag, of, key, otherwise string }{
		{"istio.canonical_revision", "['LABELS']", "service.istio.io/canonical-revision", "latest"},
		{"istio.canonical_service", "['LABELS']", "service.istio.io/canonical-name", "unknown"},
		{"istio.cluster_id", "", "CLUSTER_ID", "unknown"},
		{"istio.mesh_id", "", "MESH_ID", "unknown"},
		{"istio.namespace", "", "NAMESPACE", "default"},
	} {
		const node = "xds.node.metadata"
		has := "'" + t.key + "' in " + node + t.of
		if t.of != "" {
			has = "'LABELS' in " + node + " && " + has
		}
		out = append(out, &tracingv3.CustomTag{Tag: t.tag, Type: &tracingv3.CustomTag_Value{
			Value: "%CEL(" + has + " ? " + node + t.of + "['" + t.key + "'] : '" + t.otherwise + "')%",
		}})
	}
	return out
}
