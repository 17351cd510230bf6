package compile

import (
	"maps"
	"slices"

	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/cel"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/listener"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// clientMetrics returns the metrics of the listeners that a scope determines.
func (c *Compiler) clientMetrics(r *incr.Reader, s mesh.ScopeID) listener.Metrics {
	return c.metrics(r, s.Value().Telemetry, telemetry.WorkloadMode_CLIENT)
}

// metrics returns the metrics that Telemetries with the given keys and the mesh's default providers decide. Of several providers of
// Prometheus the first by name counts: a proxy has one page. [control-plane 1.11.2, 1.11.4]
func (c *Compiler) metrics(r *incr.Reader, keys string, mode telemetry.WorkloadMode) listener.Metrics {
	m := c.model.Mesh(r)
	out := listener.Metrics{Told: c.model.CountsAnything(r)}
	var entries []*telemetry.Metrics
	for _, t := range c.model.TelemetryIn(r, keys) {
		entries = append(entries, t.Spec.GetMetrics()...)
	}
	merged := mergeMetrics(entries, m.GetDefaultProviders().GetMetrics(), mode)
	for _, name := range slices.Sorted(maps.Keys(merged)) {
		if mesh.Provider(m, name).GetPrometheus() == nil {
			continue // package analyze tells it
		}
		if !merged[name].disabled {
			out.On, out.Overrides = true, overridesOf(merged[name].metrics)
		}
		break
	}
	return out
}

// metricSetting is what is decided about a metric of a provider.
type metricSetting struct {
	disabled bool
	tags     map[string]*telemetry.MetricsOverrides_TagOverride
}

// metricsSetting is what is decided about a provider of metrics: whether it has any, and what differs, by the name of the metric in
// the API or the custom one.
type metricsSetting struct {
	disabled bool
	metrics  map[string]metricSetting
}

// mergeMetrics merges the entries of Telemetries for listeners of a mode as Istio does; later ones have priority. The last entry that
// names providers decides which providers there are, and an entry without is for those of the entry before it, at first the mesh's
// default ones. An override that disables all metrics ends a provider, until a later one for this mode: that brings all back, but
// those that are disabled by themselves.
func mergeMetrics(entries []*telemetry.Metrics, defaults []string, mode telemetry.WorkloadMode) map[string]*metricsSetting {
	out := map[string]*metricsSetting{}
	allowed := defaults
	for _, e := range entries {
		if len(e.GetProviders()) > 0 {
			allowed = metricsProviders(e)
		}
	}
	if len(entries) == 0 {
		entries = []*telemetry.Metrics{{}}
	}
	current := defaults
	for _, e := range entries {
		if len(e.GetProviders()) > 0 {
			current = metricsProviders(e)
		}
		for _, name := range current {
			if !slices.Contains(allowed, name) {
				continue
			}
			if out[name] == nil {
				out[name] = &metricsSetting{metrics: map[string]metricSetting{}}
			}
			for _, o := range e.GetOverrides() {
				if model.HasMode(o.GetMatch().GetMode(), mode) {
					out[name].override(o)
				}
			}
		}
	}
	return out
}

func (s *metricsSetting) override(o *telemetry.MetricsOverrides) {
	names := matchedMetrics(o.GetMatch())
	s.disabled = names == nil && o.GetDisabled().GetValue()
	if s.disabled {
		return
	}
	if names == nil {
		names = slices.Collect(maps.Keys(mesh.MetricNames))
	}
	for _, name := range names {
		one := s.metrics[name]
		if o.GetDisabled() != nil {
			one.disabled = o.GetDisabled().GetValue()
		}
		if one.tags == nil {
			one.tags = map[string]*telemetry.MetricsOverrides_TagOverride{}
		}
		maps.Copy(one.tags, o.GetTagOverrides())
		s.metrics[name] = one
	}
}

// matchedMetrics returns the names that a selector has, nil for all metrics.
func matchedMetrics(s *telemetry.MetricSelector) []string {
	switch m := s.GetMetricMatch().(type) {
	case *telemetry.MetricSelector_CustomMetric:
		return []string{m.CustomMetric}
	case *telemetry.MetricSelector_Metric:
		if m.Metric != telemetry.MetricSelector_ALL_METRICS {
			return []string{m.Metric.String()}
		}
	}
	return nil
}

func metricsProviders(e *telemetry.Metrics) (out []string) {
	for _, p := range e.GetProviders() {
		out = append(out, p.GetName())
	}
	return out
}

// overridesOf returns what differs by the names of metrics in Envoy. The settings of a name in the API come first, as capitals are before
// small letters; then those of the custom name, which is the one in Envoy.
func overridesOf(settings map[string]metricSetting) map[string]listener.MetricOverride {
	out := map[string]listener.MetricOverride{}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		metric := name
		if known, ok := mesh.MetricNames[name]; ok {
			metric = known
		}
		o := out[metric]
		o.Disabled = o.Disabled || settings[name].disabled
		if o.Tags == nil {
			o.Tags = map[string]string{}
		}
		for tag, t := range settings[name].tags {
			if t.GetOperation() == telemetry.MetricsOverrides_TagOverride_REMOVE {
				o.Tags[tag] = ""
			} else if format, err := cel.Format(t.GetValue(), listener.MaxTag); err == nil { // package config tells the others
				o.Tags[tag] = format
			}
		}
		out[metric] = o
	}
	return out
}
