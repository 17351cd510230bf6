package discovery

import (
	"context"
	"sync"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/source/scope"
	"github.com/pilothouse/pilothouse/internal/object"
)

// scoped passes on what is in scope of a source's batches. Batches come from the source, and, when mesh
// configuration has changed, from follow: each is passed on before the next is made.
type scoped struct {
	mu     sync.Mutex
	filter *scope.Filter
	emit   func(object.Batch)
	// changed has the mesh configuration in force if it has not been applied.
	changed chan *meshv1.MeshConfig
}

// newScoped returns the scope of a mesh.
func newScoped(n Names, m *meshv1.MeshConfig, emit func(object.Batch)) *scoped {
	s := &scoped{filter: scope.New(n.Revision, n.Namespace), emit: emit, changed: make(chan *meshv1.MeshConfig, 1)}
	s.filter.Select(m)
	return s
}

// take passes on a batch of the source, unless nothing of it is in scope.
func (s *scoped) take(b object.Batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in := s.filter.Apply(b); len(in.Changes) > 0 || in.Problems != nil || in.Synced || len(b.Changes) == 0 {
		s.emit(in)
	}
}

// meshChanged has a mesh configuration applied. It does not block, and is called from one goroutine.
func (s *scoped) meshChanged(m *meshv1.MeshConfig) {
	select {
	case <-s.changed:
	default:
	}
	s.changed <- m
}

// follow applies mesh configuration until ctx ends.
func (s *scoped) follow(ctx context.Context) error {
	for {
		select {
		case m := <-s.changed:
			s.mu.Lock()
			if b := s.filter.Select(m); len(b.Changes) > 0 {
				s.emit(b)
			}
			s.mu.Unlock()
		case <-ctx.Done():
			return nil
		}
	}
}
