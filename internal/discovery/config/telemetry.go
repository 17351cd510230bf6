package config

import (
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/cel"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// telemetry checks what is not a reference to other objects.
func (c *check) telemetry(namespace string, s *telemetry.Telemetry) {
	c.attachedTo(namespace, s)
	for i, l := range s.GetAccessLogging() {
		at := item("spec.accessLogging", i)
		for j, p := range l.GetProviders() {
			if p.GetName() == "" {
				c.fail(item(at+".providers", j)+".name", "is empty: want the name of one of extensionProviders in mesh configuration, or envoy")
			}
		}
		if f := l.GetFilter(); f != nil {
			if err := cel.Check(f.GetExpression()); err != nil {
				c.fail(at+".filter.expression", "%s", err)
			}
		}
	}
	for i, t := range s.GetTracing() {
		c.tracing(item("spec.tracing", i), t)
	}
	for i, m := range s.GetMetrics() {
		at := item("spec.metrics", i)
		for j, p := range m.GetProviders() {
			if p.GetName() == "" {
				c.fail(item(at+".providers", j)+".name", "is empty: want prometheus, or the name of one of extensionProviders in mesh configuration")
			}
		}
		for j, o := range m.GetOverrides() {
			c.metricsOverride(item(at+".overrides", j), o)
		}
	}
}

// metricLabel is the name of a label in Prometheus.
var metricLabel = regexp.MustCompile("^[A-Za-z_][0-9A-Za-z_]*$")

func (c *check) metricsOverride(at string, o *telemetry.MetricsOverrides) {
	if custom, ok := o.GetMatch().GetMetricMatch().(*telemetry.MetricSelector_CustomMetric); ok {
		names := slices.Sorted(maps.Values(mesh.MetricNames))
		switch {
		case custom.CustomMetric == "":
			c.fail(at+".match.customMetric", "is empty: want the name of a metric without istio_, one of %s", strings.Join(names, ", "))
		case !slices.Contains(names, custom.CustomMetric):
			c.warn(at+".match.customMetric", "not applied: proxies have no metric %q: want one of %s", custom.CustomMetric, strings.Join(names, ", "))
		}
	}
	for _, name := range sorted(o.GetTagOverrides()) {
		tag, at := o.GetTagOverrides()[name], entry(at+".tagOverrides", name)
		switch {
		case !metricLabel.MatchString(name):
			c.fail(at, "invalid label %q: want letters, digits and underscores, and no digit first", name)
		case name == "le" || strings.HasPrefix(name, "__"):
			c.fail(at, "invalid label %q: it has a meaning in Prometheus; choose another name", name)
		case tag.GetOperation() == telemetry.MetricsOverrides_TagOverride_REMOVE:
			if tag.GetValue() != "" {
				c.fail(at+".value", "cannot be set with operation REMOVE")
			}
		case tag.GetOperation() == telemetry.MetricsOverrides_TagOverride_UPSERT:
			_, err := cel.Format(tag.GetValue(), 1)
			var invalid *cel.Invalid
			if errors.As(err, &invalid) {
				c.fail(at+".value", "%s", err)
			} else if err != nil {
				c.warn(at+".value", "not applied: %s; the label is as without this override", err)
			}
		}
	}
}

func (c *check) tracing(at string, t *telemetry.Tracing) {
	for j, p := range t.GetProviders() {
		if p.GetName() == "" {
			c.fail(item(at+".providers", j)+".name", "is empty: want the name of one of extensionProviders in mesh configuration")
		}
	}
	if len(t.GetProviders()) > 1 {
		c.warn(item(at+".providers", 1), "not applied: only the first provider gets spans")
	}
	if p := t.GetRandomSamplingPercentage(); p != nil && !(p.GetValue() >= 0 && p.GetValue() <= 100) {
		c.fail(at+".randomSamplingPercentage", "invalid percentage %v: want 0–100", p.GetValue())
	}
	for _, name := range sorted(t.GetCustomTags()) {
		at := entry(at+".customTags", name)
		if name == "" {
			c.fail(at, "a tag has no name")
		}
		switch v := t.GetCustomTags()[name].GetType().(type) {
		case nil:
			c.fail(at, "has no value: want one of literal, environment, header and formatter")
		case *telemetry.Tracing_CustomTag_Literal:
			c.notEmpty(at+".literal.value", v.Literal.GetValue(), "want the tag's value")
		case *telemetry.Tracing_CustomTag_Environment:
			c.notEmpty(at+".environment.name", v.Environment.GetName(), "want the name of a variable of the proxy's environment")
		case *telemetry.Tracing_CustomTag_Header:
			c.loggedHeader(at+".header.name", v.Header.GetName())
		case *telemetry.Tracing_CustomTag_Formatter:
			c.notEmpty(at+".formatter.value", v.Formatter.GetValue(), "want a format such as %REQUESTED_SERVER_NAME%")
			c.commands(at+".formatter.value", v.Formatter.GetValue())
		}
	}
}

func (c *check) notEmpty(at, value, want string) {
	if value == "" {
		c.fail(at, "is empty: %s", want)
	}
}

// extensionProviders checks the providers of access logs and tracing, and what all have. [control-plane 1.4.9]
func (c *check) extensionProviders(m *meshv1.MeshConfig) {
	names := make([]string, len(m.GetExtensionProviders()))
	for i, p := range m.GetExtensionProviders() {
		at := item("extensionProviders", i)
		names[i] = strings.ToLower(p.GetName())
		if p.GetName() == "" {
			c.fail(at+".name", "is empty; give the provider a name")
		}
		c.extensionProvider(at, p)
	}
	once(names, func(i int, name string) {
		if name != "" {
			c.fail(item("extensionProviders", i)+".name", "duplicate %q; remove one", m.GetExtensionProviders()[i].GetName())
		}
	})
	for i, name := range m.GetDefaultProviders().GetTracing() {
		at := item("defaultProviders.tracing", i)
		p := mesh.Provider(m, name)
		if _, _, ok := mesh.TraceProvider(p); i > 0 {
			c.warn(at, "not applied: only the first provider gets spans")
		} else if p == nil {
			c.warn(at, "no provider %q in extensionProviders: nothing is traced", name)
		} else if !ok {
			c.warn(at, "provider %q is not one to which proxies send spans: nothing is traced; want one with %s", name, mesh.TraceProviders)
		}
	}
	for i, name := range m.GetDefaultProviders().GetAccessLogging() {
		at := item("defaultProviders.accessLogging", i)
		p := mesh.Provider(m, name)
		if p == nil {
			c.warn(at, "no provider %q in extensionProviders: it logs nothing", name)
		} else if _, _, ok := mesh.LogProvider(p); !ok {
			c.warn(at, "provider %q is not one of access logs: it logs nothing; want one with envoyFileAccessLog, envoyHttpAls, envoyTcpAls or envoyOtelAls", name)
		}
	}
	for i, name := range m.GetDefaultProviders().GetMetrics() {
		at := item("defaultProviders.metrics", i)
		if p := mesh.Provider(m, name); p == nil {
			c.warn(at, "no provider %q in extensionProviders: it counts nothing; want prometheus", name)
		} else if p.GetPrometheus() == nil {
			c.warn(at, "provider %q is not one of metrics that proxies have: it counts nothing; want prometheus", name)
		}
	}
}

func (c *check) extensionProvider(at string, p *meshv1.MeshConfig_ExtensionProvider) {
	switch x := p.GetProvider().(type) {
	case nil:
		c.fail(at, "has no provider: want one of envoyFileAccessLog, envoyHttpAls, envoyTcpAls, envoyOtelAls and the others of the API")
	case *meshv1.MeshConfig_ExtensionProvider_EnvoyFileAccessLog:
		at += ".envoyFileAccessLog"
		if strings.ContainsAny(x.EnvoyFileAccessLog.GetPath(), "\x00\n") {
			c.fail(at+".path", "invalid path: it has a line break or a NUL byte; remove it")
		}
		c.logFormat(at+".logFormat", x.EnvoyFileAccessLog.GetLogFormat().GetText(), x.EnvoyFileAccessLog.GetLogFormat().GetLabels())
	case *meshv1.MeshConfig_ExtensionProvider_EnvoyHttpAls:
		at += ".envoyHttpAls"
		a := x.EnvoyHttpAls
		c.providerService(at, a.GetService(), a.GetPort())
		c.loggedHeaders(at+".additionalRequestHeadersToLog", a.GetAdditionalRequestHeadersToLog())
		c.loggedHeaders(at+".additionalResponseHeadersToLog", a.GetAdditionalResponseHeadersToLog())
		c.loggedHeaders(at+".additionalResponseTrailersToLog", a.GetAdditionalResponseTrailersToLog())
	case *meshv1.MeshConfig_ExtensionProvider_EnvoyTcpAls:
		c.providerService(at+".envoyTcpAls", x.EnvoyTcpAls.GetService(), x.EnvoyTcpAls.GetPort())
	case *meshv1.MeshConfig_ExtensionProvider_EnvoyOtelAls:
		at += ".envoyOtelAls"
		c.providerService(at, x.EnvoyOtelAls.GetService(), x.EnvoyOtelAls.GetPort())
		c.logFormat(at+".logFormat", x.EnvoyOtelAls.GetLogFormat().GetText(), x.EnvoyOtelAls.GetLogFormat().GetLabels())
	case *meshv1.MeshConfig_ExtensionProvider_Zipkin:
		c.providerService(at+".zipkin", x.Zipkin.GetService(), x.Zipkin.GetPort())
		c.traceHTTP(at+".zipkin", x.Zipkin.GetPath(), x.Zipkin.GetTimeout(), x.Zipkin.GetHeaders())
	case *meshv1.MeshConfig_ExtensionProvider_Skywalking:
		c.providerService(at+".skywalking", x.Skywalking.GetService(), x.Skywalking.GetPort())
	case *meshv1.MeshConfig_ExtensionProvider_Datadog:
		c.providerService(at+".datadog", x.Datadog.GetService(), x.Datadog.GetPort())
	case *meshv1.MeshConfig_ExtensionProvider_Lightstep:
		at += ".lightstep"
		l := x.Lightstep //nolint:staticcheck // deprecated, and still configured
		c.providerService(at, l.GetService(), l.GetPort())
		if strings.ContainsAny(l.GetAccessToken(), "\r\n\x00") {
			c.fail(at+".accessToken", "invalid token: it has a line break or a NUL byte; remove it")
		}
		c.commands(at+".accessToken", l.GetAccessToken())
	case *meshv1.MeshConfig_ExtensionProvider_Opentelemetry:
		c.openTelemetry(at+".opentelemetry", x.Opentelemetry)
	}
}

func (c *check) loggedHeaders(at string, names []string) {
	for i, name := range names {
		c.loggedHeader(item(at, i), name)
	}
}

func (c *check) loggedHeader(at, name string) {
	if !isToken(strings.TrimPrefix(name, ":")) {
		c.fail(at, "invalid header name %q", name)
	}
}

func (c *check) openTelemetry(at string, o *meshv1.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider) {
	c.providerService(at, o.GetService(), o.GetPort())
	if h := o.GetHttp(); h != nil {
		c.httpService(at+".http", h)
		if o.GetGrpc() != nil {
			c.fail(at+".grpc", "cannot be set together with http")
		}
	}
	if g := o.GetGrpc(); g != nil {
		c.traceTimeout(at+".grpc.timeout", g.GetTimeout())
		c.traceHeaders(at+".grpc.initialMetadata", g.GetInitialMetadata())
	}
	d := o.GetDynatraceSampler()
	if d == nil {
		return
	}
	at += ".dynatraceSampler"
	c.notEmpty(at+".tenant", d.GetTenant(), "want the tenant's identifier")
	if api := d.GetHttpService(); api != nil {
		c.providerService(at+".httpService", api.GetService(), api.GetPort())
		c.httpService(at+".httpService.http", api.GetHttp())
	} else if o.GetHttp() == nil {
		c.fail(at+".httpService", "is missing: want the service that has the sampler's configuration; only with http it is that of the provider")
	}
}

func (c *check) httpService(at string, h *meshv1.MeshConfig_ExtensionProvider_HttpService) {
	c.traceHTTP(at, h.GetPath(), h.GetTimeout(), h.GetHeaders())
}

// traceHTTP checks a collector's service of HTTP.
func (c *check) traceHTTP(at, path string, timeout *durationpb.Duration, headers []*meshv1.MeshConfig_ExtensionProvider_HttpHeader) {
	if path != "" && (!strings.HasPrefix(path, "/") || strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r == 0x7f })) {
		c.fail(at+".path", "invalid path %q: want one that begins with a slash and has no spaces", path)
	}
	c.traceTimeout(at+".timeout", timeout)
	c.traceHeaders(at+".headers", headers)
}

func (c *check) traceTimeout(at string, d *durationpb.Duration) {
	if d != nil && (d.CheckValid() != nil || d.AsDuration() <= 0 || d.AsDuration() > time.Hour) {
		c.fail(at, "invalid timeout %v: want more than 0s and at most 1h", d.AsDuration())
	}
}

// traceHeaders checks headers for a collector, whose values are formats.
func (c *check) traceHeaders(at string, headers []*meshv1.MeshConfig_ExtensionProvider_HttpHeader) {
	for i, h := range headers {
		if !isToken(h.GetName()) {
			c.fail(item(at, i)+".name", "invalid header name %q", h.GetName())
		}
		if strings.ContainsAny(h.GetValue(), "\r\n\x00") {
			c.fail(item(at, i)+".value", "invalid value: it has a line break or a NUL byte; remove it")
		}
		c.commands(item(at, i)+".value", h.GetValue())
	}
}

// providerService checks the service and the port of a provider.
func (c *check) providerService(at, service string, port uint32) {
	ns, host := mesh.ProviderService(service)
	if strings.Contains(service, "/") && !isLabel(ns) || !isDomain(host) {
		c.fail(at+".service", "invalid service %q: want its host, such as collector.telemetry.svc.cluster.local, or its namespace and host with a slash between them", service)
	}
	c.port(at+".port", port, false)
}

// logFormat checks a format in text or as labels.
func (c *check) logFormat(at, text string, labels *structpb.Struct) {
	c.commands(at+".text", text)
	c.labelCommands(at+".labels", structpb.NewStructValue(labels))
}

func (c *check) labelCommands(at string, v *structpb.Value) {
	switch v.GetKind().(type) {
	case *structpb.Value_StringValue:
		c.commands(at, v.GetStringValue())
	case *structpb.Value_StructValue:
		for _, name := range sorted(v.GetStructValue().GetFields()) {
			c.labelCommands(entry(at, name), v.GetStructValue().GetFields()[name])
		}
	case *structpb.Value_ListValue:
		for i, one := range v.GetListValue().GetValues() {
			c.labelCommands(item(at, i), one)
		}
	}
}
