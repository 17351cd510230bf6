package spec

import (
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// warnIgnored names the fields of the proxy configuration that are set and have no effect on this agent. Fields that
// the control plane or an injector reads are not among them.
func (b *builder) warnIgnored() {
	c := b.s.Config
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"availabilityZone", c.GetAvailabilityZone() != ""}, //nolint:staticcheck // deprecated, and still sent
		{"caCertificatesPem", len(c.GetCaCertificatesPem()) > 0},
		{"discoveryRefreshDelay", c.GetDiscoveryRefreshDelay() != nil},          //nolint:staticcheck // deprecated, and still sent
		{"envoyMetricsServiceAddress", c.GetEnvoyMetricsServiceAddress() != ""}, //nolint:staticcheck // deprecated, and still sent
		{"envoyAccessLogService without an address", c.GetEnvoyAccessLogService() != nil && c.GetEnvoyAccessLogService().GetAddress() == ""},
		{"envoyMetricsService without an address", c.GetEnvoyMetricsService() != nil && c.GetEnvoyMetricsService().GetAddress() == ""},
		{"sds", c.GetSds() != nil}, //nolint:staticcheck // deprecated, and still sent
		{"statNameLength", c.GetStatNameLength() != mesh.DefaultProxyConfig().GetStatNameLength()},
		{"tracing.tlsSettings without zipkin, datadog or lightstep", c.GetTracing().GetTlsSettings() != nil && c.GetTracing().GetZipkin() == nil && c.GetTracing().GetDatadog() == nil && c.GetTracing().GetLightstep() == nil},
		{"zipkinAddress", c.GetZipkinAddress() != ""}, //nolint:staticcheck // deprecated, and still sent
	} {
		if f.set {
			b.warn("proxy configuration: %s has no effect", f.name)
		}
	}
	for name, set := range map[string]bool{"openCensusAgent": c.GetTracing().GetOpenCensusAgent() != nil, "stackdriver": c.GetTracing().GetStackdriver() != nil} {
		if set { // at most one of them is
			b.warn("proxy configuration: tracing.%s has no effect: Envoy has no tracer for it; its servers take OpenTelemetry: have a Telemetry select an opentelemetry provider of the mesh configuration", name)
		}
	}
	if c.GetControlPlaneAuthPolicy() == meshv1.AuthenticationPolicy_NONE && !plaintext(c.GetDiscoveryAddress()) {
		b.warn("proxy configuration: controlPlaneAuthPolicy NONE has no effect: discovery is reached in plaintext at port 15010 only, and over TLS at %s", c.GetDiscoveryAddress())
	}
}
