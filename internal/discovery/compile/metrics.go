package compile

import (
	"github.com/pilothouse/pilothouse/internal/discovery/compile/listener"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// metrics returns the metrics that the mesh's default providers decide.
func (c *Compiler) metrics(r *incr.Reader) listener.Metrics {
	for _, name := range c.model.Mesh(r).GetDefaultProviders().GetMetrics() {
		if mesh.Provider(c.model.Mesh(r), name).GetPrometheus() != nil {
			return listener.Metrics{On: true}
		}
	}
	return listener.Metrics{}
}
