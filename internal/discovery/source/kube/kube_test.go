package kube

import (
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/source/sourcetest"
	"github.com/pilothouse/pilothouse/internal/object"
)

// options are those of a source that loses no time.
func options(f *fake) Options {
	return Options{Config: f.config(), Cluster: "Kubernetes", Namespace: "istio-system", MeshConfigMap: "istio", Backoff: [2]time.Duration{time.Millisecond, 20 * time.Millisecond}}
}

func newSource(t *testing.T, o Options) *Source {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSource(t *testing.T) {
	for name, noStream := range map[string]bool{"streamed lists": false, "lists in pages": true} {
		t.Run(name, func(t *testing.T) {
			sourcetest.Run(t, func(t *testing.T) sourcetest.Harness {
				f := newFake(t)
				f.noStream = noStream
				return sourcetest.Harness{
					Source: func(t *testing.T) sourcetest.Source { return newSource(t, options(f)) },
					Put:    func(t *testing.T, _ object.Key, yaml string) { f.put(t, yaml) },
					Delete: func(_ *testing.T, key object.Key) { f.delete(key) },
				}
			})
		})
	}
}
