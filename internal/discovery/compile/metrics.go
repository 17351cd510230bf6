package compile

import (
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/listener"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// clientMetrics returns the metrics of the listeners that a scope determines.
func (c *Compiler) clientMetrics(r *incr.Reader, s mesh.ScopeID) listener.Metrics {
	return c.metrics(r, s.Value().Telemetry, telemetry.WorkloadMode_CLIENT)
}

// metrics returns the metrics that Telemetries with the given keys and the mesh's default providers decide.
func (c *Compiler) metrics(r *incr.Reader, keys string, mode telemetry.WorkloadMode) listener.Metrics {
	for _, name := range c.model.Mesh(r).GetDefaultProviders().GetMetrics() {
		if mesh.Provider(c.model.Mesh(r), name).GetPrometheus() != nil {
			return listener.Metrics{On: true}
		}
	}
	return listener.Metrics{}
}
