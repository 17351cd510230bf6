package bench

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// world is a model, its compiler, and the resources that are wanted of it.
type world struct {
	graph    *incr.Graph
	model    *model.Model
	compiler *compile.Compiler
	held     map[compile.Layer][]compile.Key
}

// load makes a world of objects, with nothing compiled yet.
func load(objects []object.Change) *world {
	g := incr.New()
	m := model.New(g, "cluster.local")
	m.Apply(objects)
	g.Run()
	return &world{graph: g, model: m, compiler: compile.New(g, m, compile.Options{}), held: map[compile.Layer][]compile.Key{}}
}

// join compiles everything for a proxy and keeps it wanted.
func (w *world) join(n mesh.Node) {
	class := w.model.Classify().Want(model.KeyOf(n, ""))
	for _, l := range compile.Layers(class) {
		w.want(l)
	}
}

// want compiles a layer, and the one from which it is derived, and keeps it wanted.
func (w *world) want(l compile.Layer) {
	if _, ok := w.held[l]; ok {
		return
	}
	contents := w.compiler.Names().Want(l)
	w.hold(l, contents.Keys)
	if contents.Derived {
		w.want(contents.Base)
	}
}

// hold wants exactly keys for a layer.
func (w *world) hold(layer compile.Layer, keys []compile.Key) {
	old := make(map[compile.Key]bool, len(w.held[layer]))
	for _, k := range w.held[layer] {
		old[k] = true
	}
	var added []compile.Key
	for _, k := range keys {
		if old[k] {
			delete(old, k)
			continue
		}
		added = append(added, k)
	}
	w.compiler.WantAll(added)
	for k := range old {
		w.compiler.Resource(k.Kind).Unwant(k)
	}
	w.held[layer] = slices.Clone(keys)
}

// change takes changed objects into the resources and returns what moved.
func (w *world) change(c []object.Change) []incr.Moved {
	w.model.Apply(c)
	moved := w.graph.Run()
	for _, m := range moved {
		if layer, ok := m.Key.(compile.Layer); ok {
			contents, _ := w.compiler.Names().Value(layer)
			w.hold(layer, contents.Keys)
		}
	}
	return moved
}

// size is how many bytes all resources have.
func (w *world) size() (resources, bytes int) {
	for _, keys := range w.held {
		for _, k := range keys {
			v, _ := w.compiler.Resource(k.Kind).Value(k)
			bytes += len(v.Encoded())
			resources++
		}
	}
	return resources, bytes
}

// full is the processor time of compiling everything for one class, the median of several
// times, measured once for each run of the benchmarks: what ratios refer to.
var full = sync.OnceValue(func() time.Duration {
	var t testing.B
	objects := changes(&t, standard.yaml()...)
	var took []time.Duration
	for range 9 {
		w := load(objects)
		runtime.GC()
		start := cpu()
		w.join(standard.proxy(&t, 0))
		took = append(took, cpu()-start)
	}
	slices.Sort(took)
	return took[len(took)/2]
})

// measure runs step as often as the benchmark wants, each time after prepare (out of the
// benchmark's time, and nil for nothing), and reports the processor time of a step, which
// a busy machine disturbs less than the time on the clock, as it is and as a part of a
// full compile.
func measure(b *testing.B, prepare func(), step func(i int)) {
	b.Helper()
	full()
	runtime.GC()
	b.ReportAllocs()
	var spent time.Duration
	steps := 0
	if prepare != nil {
		for b.Loop() {
			b.StopTimer()
			prepare()
			runtime.GC()
			began := cpu()
			b.StartTimer()
			step(steps)
			steps++
			spent += cpu() - began
		}
	} else {
		began := cpu()
		for b.Loop() {
			step(steps)
			steps++
		}
		spent = cpu() - began
	}
	per := float64(spent) / float64(steps)
	b.ReportMetric(per, "cpu-ns/op")
	b.ReportMetric(per/float64(full()), "ofFull")
}

// BenchmarkParse reads the whole mesh from YAML.
func BenchmarkParse(b *testing.B) {
	texts := standard.yaml()
	bytes := 0
	for _, t := range texts {
		bytes += len(t)
	}
	b.SetBytes(int64(bytes))
	measure(b, nil, func(int) {
		for _, t := range texts {
			decode.Documents("mesh.yaml", []byte(t))
		}
	})
}

// BenchmarkLoad stores the whole mesh in the model's tables.
func BenchmarkLoad(b *testing.B) {
	objects := changes(b, standard.yaml()...)
	measure(b, nil, func(int) { load(objects) })
}

// BenchmarkFullCompile compiles everything for proxies of as many namespaces, each a
// scope of its own, on one goroutine and on all processors.
func BenchmarkFullCompile(b *testing.B) {
	objects := changes(b, standard.yaml()...)
	for _, scopes := range []int{1, 20} {
		for _, workers := range []int{1, 0} {
			name := fmt.Sprintf("scopes=%d", scopes)
			if workers == 1 {
				name += "/serial"
			}
			b.Run(name, func(b *testing.B) {
				var w *world
				prepare := func() {
					w = load(objects)
					w.graph.Parallel(workers, 0)
				}
				measure(b, prepare, func(int) {
					for i := range scopes {
						w.join(standard.proxy(b, i))
					}
				})
				resources, bytes := w.size()
				b.ReportMetric(float64(resources), "resources")
				b.ReportMetric(float64(bytes), "configBytes")
			})
		}
	}
}

// BenchmarkChange takes one changed object into the configuration of one class, back and
// forth between two values of it.
func BenchmarkChange(b *testing.B) {
	z := standard
	objects := changes(b, z.yaml()...)
	added := size{services: z.services + 1, namespaces: z.namespaces}
	for _, c := range []struct {
		name   string
		values [2][]object.Change
	}{
		{"endpoint", [2][]object.Change{changes(b, z.pod(400, 1, 1)), changes(b, z.pod(400, 1, 0))}},
		{"weight", [2][]object.Change{changes(b, z.virtualService(400, 50)), changes(b, z.virtualService(400, 90))}},
		{"destinationRule", [2][]object.Change{changes(b, z.destinationRule(400, 200)), changes(b, z.destinationRule(400, 100))}},
		{"service", [2][]object.Change{changes(b, added.service(z.services)), gone(b, added.service(z.services))}},
		{"nothing", [2][]object.Change{changes(b, z.virtualService(400, 90)), changes(b, z.destinationRule(400, 100))}},
	} {
		b.Run(c.name, func(b *testing.B) {
			w := load(objects)
			w.join(z.proxy(b, 0))
			w.graph.Run()
			moved := 0
			measure(b, nil, func(i int) { moved += len(w.change(c.values[i%2])) })
			b.ReportMetric(float64(moved)/float64(b.N), "moved")
		})
	}
}
