package inject_test

import (
	"maps"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pilothouse/pilothouse/internal/discovery/inject"
)

// memo remembers everything.
type memo struct {
	mu    sync.Mutex
	known map[string]any
	hits  int
}

func (m *memo) Get(key string) any {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.known[key]
	if ok {
		m.hits++
	}
	return v
}

func (m *memo) Put(key string, v any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known[key] = v
}

// TestWhatIsRememberedChangesNothing injects random Pods twice with a memo, and compares them with what they become without
// one.
func TestWhatIsRememberedChangesNothing(t *testing.T) {
	m := &memo{known: map[string]any{}}
	options := inject.Options{
		Config: "defaultTemplates: [sidecar, more]\ntemplates: {more: \"spec: {containers: [{name: web, env: [{name: A, value: b}]}], volumes: [{name: istio-envoy, $patch: delete}]}\"}",
		Mesh:   meshConfig(t, string(read(t, "testdata/mesh.yaml"))),
	}
	without := newConfig(t, options)
	options.Memo = m
	with := newConfig(t, options)
	accepted := 0
	for round := range 2 {
		for seed := range uint64(60) {
			p := randomPod(rand.New(rand.NewPCG(seed, 2)))
			if round == 1 { // as another replica of the workload
				p.Annotations = maps.Clone(p.Annotations)
				p.Name += "-2"
			}
			want, err := without.Inject(inject.Request{Pod: p})
			got, gotErr := with.Inject(inject.Request{Pod: p})
			if (err == nil) != (gotErr == nil) {
				t.Fatalf("seed %d: error %v with a memo, %v without", seed, gotErr, err)
			}
			if err != nil {
				continue
			}
			accepted++
			if diff := cmp.Diff(want.Pod, got.Pod); diff != "" {
				t.Fatalf("seed %d, round %d: without a memo (-), with one (+):\n%s", seed, round, diff)
			}
		}
	}
	if accepted < 80 || m.hits < 50 {
		t.Errorf("%d of 120 Pods were accepted, and %d outputs were known", accepted, m.hits)
	}
}
