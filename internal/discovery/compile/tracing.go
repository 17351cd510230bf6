package compile

import (
	"cmp"

	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/listener"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// clientTracing returns the tracing of the listeners that a scope determines.
func (c *Compiler) clientTracing(r *incr.Reader, s mesh.ScopeID) *listener.Tracing {
	v := s.Value()
	return c.tracing(r, v.Telemetry, v.Service, v.Tracing, telemetry.WorkloadMode_CLIENT)
}

// tracing returns the tracing that Telemetries with the given keys and the mesh's default provider decide for a proxy of this service, whose
// node says the rest; nil for none, also if the provider or a service of its does not exist. Where neither decides, the tracer of the node's
// bootstrap counts, unless enableTracing is false. [control-plane 1.4.9, 1.11.1, 1.11.4]
func (c *Compiler) tracing(r *incr.Reader, keys, service string, own mesh.Tracing, mode telemetry.WorkloadMode) *listener.Tracing {
	m := c.model.Mesh(r)
	var entries []*telemetry.Tracing
	for _, t := range c.model.TelemetryIn(r, keys) {
		entries = append(entries, t.Spec.GetTracing()...)
	}
	defaults := m.GetDefaultProviders().GetTracing()
	out := &listener.Tracing{Sampling: cmp.Or(own.Sampling, c.opts.TraceSampling), MaxPathTagLength: own.MaxPathTagLength, Tags: ownTags(own), WithoutIstioTags: own.WithoutIstioTags, Service: service}
	if len(entries) == 0 && len(defaults) == 0 {
		if !own.Tracer || !m.GetEnableTracing() {
			return nil
		}
		return out
	}
	name := ""
	if len(defaults) > 0 {
		name = defaults[0]
	}
	if mergeTracing(entries, mode, out, &name) {
		return nil
	}
	p := mesh.Provider(m, name)
	host, port, ok := mesh.TraceProvider(p)
	if !ok {
		return nil // package analyze tells it
	}
	if out.Collector, ok = c.collector(r, host, port); !ok {
		return nil
	}
	if api := p.GetOpentelemetry().GetDynatraceSampler().GetHttpService(); api != nil {
		if out.Sampler, ok = c.collector(r, api.GetService(), api.GetPort()); !ok {
			return nil
		}
	}
	out.Provider = p
	return out
}

// ownTags returns the tags that a node says, by name.
func ownTags(own mesh.Tracing) map[string]*telemetry.Tracing_CustomTag {
	tags := own.TracingTags()
	if len(tags) == 0 {
		return nil
	}
	out := map[string]*telemetry.Tracing_CustomTag{}
	for _, t := range tags {
		switch {
		case t.Literal != "":
			out[t.Name] = &telemetry.Tracing_CustomTag{Type: &telemetry.Tracing_CustomTag_Literal{Literal: &telemetry.Tracing_Literal{Value: t.Literal}}}
		case t.Environment != "":
			out[t.Name] = &telemetry.Tracing_CustomTag{Type: &telemetry.Tracing_CustomTag_Environment{Environment: &telemetry.Tracing_Environment{Name: t.Environment, DefaultValue: t.Default}}}
		default:
			out[t.Name] = &telemetry.Tracing_CustomTag{Type: &telemetry.Tracing_CustomTag_Header{Header: &telemetry.Tracing_RequestHeader{Name: t.Header, DefaultValue: t.Default}}}
		}
	}
	return out
}

// collector returns a service to which Envoy itself makes requests, false if it does not exist or is not exported to all namespaces: these
// share listeners, and Envoy rejects one whose collector is no cluster.
func (c *Compiler) collector(r *incr.Reader, service string, port uint32) (out listener.Collector, ok bool) {
	host, fault := c.providerHost(r, "", service, port)
	return listener.Collector{Host: host, Cluster: cluster.Name(cluster.Outbound, port, "", host)}, fault == ""
}

// mergeTracing merges the entries of Telemetries for listeners of a mode, in the order of their precedence, into what they leave
// unset: each field is that of the last entry that has it. It reports whether tracing is disabled.
func mergeTracing(entries []*telemetry.Tracing, mode telemetry.WorkloadMode, out *listener.Tracing, provider *string) (disabled bool) {
	for _, e := range entries {
		if !model.HasMode(e.GetMatch().GetMode(), mode) {
			continue
		}
		if len(e.GetProviders()) > 0 {
			*provider = e.GetProviders()[0].GetName()
		}
		if e.DisableSpanReporting != nil {
			disabled = e.DisableSpanReporting.GetValue()
		}
		if e.RandomSamplingPercentage != nil {
			out.Sampling = e.RandomSamplingPercentage.GetValue()
		}
		if e.CustomTags != nil {
			out.Tags = e.CustomTags
		}
		if e.UseRequestIdForTraceSampling != nil {
			out.IgnoreRequestID = !e.UseRequestIdForTraceSampling.GetValue()
		}
		if e.EnableIstioTags != nil {
			out.WithoutIstioTags = !e.EnableIstioTags.GetValue()
		}
		if e.DisableContextPropagation != nil {
			out.NoPropagation = e.DisableContextPropagation.GetValue()
		}
	}
	return disabled
}
