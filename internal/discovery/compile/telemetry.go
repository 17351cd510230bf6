package compile

import (
	"maps"
	"slices"

	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/listener"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// clientLogs returns the access logs of the listeners that a scope determines.
func (c *Compiler) clientLogs(r *incr.Reader, s mesh.ScopeID) listener.Logs {
	return c.accessLogs(r, s.Value().Telemetry, telemetry.WorkloadMode_CLIENT)
}

// accessLogs returns the access logs that Telemetries with the given keys and the mesh's default providers decide, sorted by provider.
// If there is none of a provider that exists, the logs are not decided. [control-plane 1.11.3, 1.11.4]
func (c *Compiler) accessLogs(r *incr.Reader, keys string, mode telemetry.WorkloadMode) listener.Logs {
	m := c.model.Mesh(r)
	var levels [][]*telemetry.AccessLogging
	for _, t := range c.model.TelemetryIn(r, keys) {
		if len(t.Spec.GetAccessLogging()) > 0 {
			levels = append(levels, t.Spec.GetAccessLogging())
		}
	}
	merged := mergeLogs(levels, m.GetDefaultProviders().GetAccessLogging(), mode)
	var out listener.Logs
	for _, name := range slices.Sorted(maps.Keys(merged)) {
		p := mesh.Provider(m, name)
		service, port, ok := mesh.LogProvider(p)
		if !ok {
			continue // package analyze tells it
		}
		l := listener.Log{Provider: p, Filter: merged[name].filter}
		if service != "" {
			if l.Host, ok = c.model.ProviderHost(r, service, port); !ok {
				continue
			}
			l.Cluster = cluster.Name(cluster.Outbound, port, "", l.Host)
		}
		out.Decided = true
		if !merged[name].disabled {
			out.List = append(out.List, l)
		}
	}
	return out
}

// logSetting is what is decided about a provider of access logs.
type logSetting struct {
	disabled bool
	filter   string
}

// mergeLogs merges the entries of Telemetries for listeners of a mode; later levels, and later entries of one, have priority. An
// entry without providers is for those of the entry before it, at first the mesh's default ones. The last level that names
// providers decides which ones there are. An entry keeps a provider's filter unless it has another or names its providers.
func mergeLogs(levels [][]*telemetry.AccessLogging, defaults []string, mode telemetry.WorkloadMode) map[string]logSetting {
	out := map[string]logSetting{}
	if len(levels) == 0 {
		for _, name := range defaults {
			out[name] = logSetting{}
		}
		return out
	}
	allowed := defaults
	for _, entries := range levels {
		var names []string
		for _, e := range entries {
			if appliesTo(e, mode) {
				names = append(names, providerNames(e)...)
			}
		}
		if len(names) > 0 {
			allowed = names
		}
	}
	current, filters := defaults, map[string]string{}
	for _, entries := range levels {
		for _, e := range entries {
			if own := providerNames(e); len(own) > 0 {
				current = own
			}
			if !appliesTo(e, mode) {
				continue
			}
			for _, name := range current {
				if !slices.Contains(allowed, name) {
					continue
				}
				if e.GetFilter() != nil || len(e.GetProviders()) > 0 {
					filters[name] = e.GetFilter().GetExpression()
				}
				out[name] = logSetting{disabled: e.GetDisabled().GetValue(), filter: filters[name]}
			}
		}
	}
	return out
}

func appliesTo(e *telemetry.AccessLogging, mode telemetry.WorkloadMode) bool {
	of := e.GetMatch().GetMode()
	return of == telemetry.WorkloadMode_CLIENT_AND_SERVER || of == mode
}

func providerNames(e *telemetry.AccessLogging) (out []string) {
	for _, p := range e.GetProviders() {
		out = append(out, p.GetName())
	}
	return out
}
