package mesh

import (
	"strings"

	meshv1 "istio.io/api/mesh/v1alpha1"
)

// EnvoyLogProvider is the name of the built-in provider of access logs: /dev/stdout in the mesh's format.
const EnvoyLogProvider = "envoy"

// builtinProviders are those that every mesh has, unless its configuration has others of these names. [control-plane 1.4.9]
var builtinProviders = []*meshv1.MeshConfig_ExtensionProvider{
	{Name: "prometheus", Provider: &meshv1.MeshConfig_ExtensionProvider_Prometheus{Prometheus: &meshv1.MeshConfig_ExtensionProvider_PrometheusMetricsProvider{}}},
	{Name: "stackdriver", Provider: &meshv1.MeshConfig_ExtensionProvider_Stackdriver{Stackdriver: &meshv1.MeshConfig_ExtensionProvider_StackdriverProvider{}}},
	{Name: EnvoyLogProvider, Provider: &meshv1.MeshConfig_ExtensionProvider_EnvoyFileAccessLog{
		EnvoyFileAccessLog: &meshv1.MeshConfig_ExtensionProvider_EnvoyFileAccessLogProvider{Path: "/dev/stdout"},
	}},
}

// Provider returns the provider of extensionProviders with a name, in any case, or the built-in one; nil if there is none. The result
// must not be modified.
func Provider(m *meshv1.MeshConfig, name string) *meshv1.MeshConfig_ExtensionProvider {
	for _, list := range [][]*meshv1.MeshConfig_ExtensionProvider{m.GetExtensionProviders(), builtinProviders} {
		for _, p := range list {
			if strings.EqualFold(p.GetName(), name) {
				return p
			}
		}
	}
	return nil
}

// ProviderService splits the service of a provider, "host" or "namespace/host". The namespace is empty if none is given.
func ProviderService(service string) (namespace, host string) {
	if ns, rest, ok := strings.Cut(service, "/"); ok {
		return ns, HostName(rest)
	}
	return "", HostName(service)
}

// LogProvider reports whether a provider is one of access logs, and returns its service and port; the service is empty for a file.
func LogProvider(p *meshv1.MeshConfig_ExtensionProvider) (service string, port uint32, ok bool) {
	switch p := p.GetProvider().(type) {
	case *meshv1.MeshConfig_ExtensionProvider_EnvoyFileAccessLog:
		return "", 0, true
	case *meshv1.MeshConfig_ExtensionProvider_EnvoyHttpAls:
		return p.EnvoyHttpAls.GetService(), p.EnvoyHttpAls.GetPort(), true
	case *meshv1.MeshConfig_ExtensionProvider_EnvoyTcpAls:
		return p.EnvoyTcpAls.GetService(), p.EnvoyTcpAls.GetPort(), true
	case *meshv1.MeshConfig_ExtensionProvider_EnvoyOtelAls:
		return p.EnvoyOtelAls.GetService(), p.EnvoyOtelAls.GetPort(), true
	}
	return "", 0, false
}

// TraceProviders names the providers of tracing, for messages.
const TraceProviders = "zipkin, skywalking, opentelemetry, lightstep or datadog"

// TraceProvider reports whether a provider is one of tracing that Envoy has, and returns its service and port.
func TraceProvider(p *meshv1.MeshConfig_ExtensionProvider) (service string, port uint32, ok bool) {
	switch p := p.GetProvider().(type) {
	case *meshv1.MeshConfig_ExtensionProvider_Zipkin:
		return p.Zipkin.GetService(), p.Zipkin.GetPort(), true
	case *meshv1.MeshConfig_ExtensionProvider_Skywalking:
		return p.Skywalking.GetService(), p.Skywalking.GetPort(), true
	case *meshv1.MeshConfig_ExtensionProvider_Opentelemetry:
		return p.Opentelemetry.GetService(), p.Opentelemetry.GetPort(), true
	case *meshv1.MeshConfig_ExtensionProvider_Lightstep:
		return p.Lightstep.GetService(), p.Lightstep.GetPort(), true //nolint:staticcheck // deprecated, and still configured
	case *meshv1.MeshConfig_ExtensionProvider_Datadog:
		return p.Datadog.GetService(), p.Datadog.GetPort(), true
	}
	return "", 0, false
}

// LightstepToken is the header with the token of Lightstep's collectors.
const LightstepToken = "lightstep-access-token"

// LightstepByOpenTelemetry is the provider of OpenTelemetry that sends spans to Lightstep's collectors: Envoy has no tracer of its own for
// them any more.
func LightstepByOpenTelemetry(l *meshv1.MeshConfig_ExtensionProvider_LightstepTracingProvider) *meshv1.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider {
	out := &meshv1.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider{Service: l.GetService(), Port: l.GetPort(), MaxTagLength: l.GetMaxTagLength()}
	if token := l.GetAccessToken(); token != "" {
		out.Grpc = &meshv1.MeshConfig_ExtensionProvider_GrpcService{InitialMetadata: []*meshv1.MeshConfig_ExtensionProvider_HttpHeader{{
			Name: LightstepToken, HeaderValue: &meshv1.MeshConfig_ExtensionProvider_HttpHeader_Value{Value: token},
		}}}
	}
	return out
}

// NamesTracedServices reports whether a provider of extensionProviders has the name of the proxy's service in its configuration;
// the others of tracing take it from Envoy's node.
func NamesTracedServices(m *meshv1.MeshConfig) bool {
	for _, p := range m.GetExtensionProviders() {
		lightstep := p.GetLightstep() //nolint:staticcheck // deprecated, and still configured
		if p.GetOpentelemetry() != nil || lightstep != nil || p.GetDatadog() != nil {
			return true
		}
	}
	return false
}

// ExternalAuthorizer reports whether a provider of extensionProviders is one of external authorization, and returns its service and
// port.
func ExternalAuthorizer(p *meshv1.MeshConfig_ExtensionProvider) (service string, port uint32, ok bool) {
	switch p := p.GetProvider().(type) {
	case *meshv1.MeshConfig_ExtensionProvider_EnvoyExtAuthzHttp:
		return p.EnvoyExtAuthzHttp.GetService(), p.EnvoyExtAuthzHttp.GetPort(), true
	case *meshv1.MeshConfig_ExtensionProvider_EnvoyExtAuthzGrpc:
		return p.EnvoyExtAuthzGrpc.GetService(), p.EnvoyExtAuthzGrpc.GetPort(), true
	}
	return "", 0, false
}
