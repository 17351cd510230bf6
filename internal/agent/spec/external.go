package spec

import (
	"maps"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// WithExternal returns s with another server having the workload's secret, or with this agent having it. The control
// plane is told by the node's metadata, because the secrets of files are at another socket then. [agent S19]
func (s *Spec) WithExternal(external bool) *Spec {
	out := *s
	out.Certificates.Own = !external
	out.Node.Metadata = maps.Clone(s.Node.Metadata)
	delete(out.Node.Metadata, mesh.FileSecretsKey)
	if external {
		out.Node.Metadata[mesh.FileSecretsKey] = "true"
	}
	return &out
}

// WithDifferences returns s with what discovery changes in the bootstrap, which must not be modified any more. [agent B26]
func (s *Spec) WithDifferences(text []byte) *Spec {
	out := *s
	out.Envoy.Differences = text
	return &out
}
