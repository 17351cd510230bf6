package compile_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// world is a model and its compiler, and the classes that are wanted of it.
type world struct {
	graph    *incr.Graph
	model    *model.Model
	compiler *compile.Compiler
	classes  map[mesh.Class]bool
	held     map[compile.Key]bool
}

// everything has the options that add to what is compiled.
var everything = compile.Options{Sessions: true, Unready: compile.UnreadyUnused}

func newWorld() *world { return newWorldWith(everything) }

func newWorldWith(o compile.Options) *world {
	g := incr.New()
	return worldOf(g, model.New(g, "cluster.local"), o)
}

// newWholeWorld is a world in which no scope is derived from another.
func newWholeWorld() *world {
	g := incr.New()
	m := model.New(g, "cluster.local")
	m.CompileWhole()
	return worldOf(g, m, everything)
}

func worldOf(g *incr.Graph, m *model.Model, o compile.Options) *world {
	m.SetOwn(model.Own{Namespace: "istio-system"})
	return &world{
		graph: g, model: m, compiler: compile.New(g, m, o),
		classes: map[mesh.Class]bool{}, held: map[compile.Key]bool{},
	}
}

// objects reads YAML, which must be good.
func objects(t testing.TB, yaml string) []object.Change {
	t.Helper()
	res := decode.Documents("input.yaml", []byte(yaml))
	for _, p := range res.Problems {
		t.Fatal(p)
	}
	var out []object.Change
	for _, o := range res.Objects {
		out = append(out, object.Change{Key: o.Key, Object: &o})
	}
	return out
}

func (w *world) apply(t testing.TB, yaml string) {
	t.Helper()
	w.model.Apply(objects(t, yaml))
}

// proxy is a stock Envoy at an address; labels are "a=b,c=d", empty to take the Pod's.
func proxy(t testing.TB, id, labels string) mesh.Node {
	t.Helper()
	n, err := mesh.DecodeNodeID(id)
	if err != nil {
		t.Fatal(err)
	}
	node := mesh.Node{NodeID: n}
	if labels != "" {
		node.Metadata.Labels = map[string]string{}
		for _, p := range strings.Split(labels, ",") {
			k, v, _ := strings.Cut(p, "=")
			node.Metadata.Labels[k] = v
		}
	}
	return node
}

func (w *world) join(n mesh.Node) mesh.Class {
	class := w.model.Classify().Want(model.KeyOf(n, ""))
	w.compiler.Bootstraps().Want(compile.BootstrapKeyOf(model.KeyOf(n, "")))
	w.classes[class] = true
	w.sync()
	return class
}

// bootstrap is what EnvoyFilters change in the bootstrap of a proxy that has joined.
func (w *world) bootstrap(n mesh.Node) *compile.Bootstrap {
	b, ok := w.compiler.Bootstraps().Value(compile.BootstrapKeyOf(model.KeyOf(n, "")))
	if !ok {
		panic("the bootstrap of " + n.ID + " is not wanted")
	}
	return b
}

// contents are the keys of a layer and, where it is derived, those of its base that it has.
func (w *world) contents(l compile.Layer) []compile.Key {
	c, ok := w.compiler.Names().Value(l)
	if !ok {
		c = w.compiler.Names().Want(l)
	}
	if !c.Derived {
		return c.Keys
	}
	type id struct{ typ, name string }
	without := map[id]bool{}
	for _, k := range slices.Concat(c.Keys, c.Hidden) {
		without[id{k.Kind.TypeURL(), k.Name}] = true
	}
	out := slices.Clone(c.Keys)
	for _, k := range w.contents(c.Base) {
		if !without[id{k.Kind.TypeURL(), k.Name}] {
			out = append(out, k)
		}
	}
	return out
}

// sync wants exactly the resources of the classes.
func (w *world) sync() {
	want := map[compile.Key]bool{}
	classes := slices.SortedFunc(maps.Keys(w.classes), func(a, b mesh.Class) int {
		return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) // the order of wants is that of what moves
	})
	for _, c := range classes {
		for _, l := range compile.Layers(c) {
			var added []compile.Key
			for _, k := range w.contents(l) {
				if !w.held[k] && !want[k] {
					added = append(added, k)
				}
				want[k] = true
			}
			w.compiler.WantAll(added)
		}
	}
	for k := range w.held {
		if !want[k] {
			w.compiler.Resource(k.Kind).Unwant(k)
		}
	}
	w.held = want
	w.graph.Run()
}

// run takes what was applied into the resources and returns the names of those that moved.
func (w *world) run() []string {
	var out []string
	for _, m := range w.graph.Run() {
		if k, ok := w.compiler.Moved(m); ok {
			out = append(out, m.Rule+" "+k.Name)
		}
	}
	w.sync()
	slices.Sort(out)
	return out
}

// bytes is every resource of a class by kind and name.
func (w *world) bytes(c mesh.Class) map[compile.Key][]byte {
	out := map[compile.Key][]byte{}
	for _, l := range compile.Layers(c) {
		for _, k := range w.contents(l) {
			body, _ := w.compiler.Resource(k.Kind).Value(k)
			if body.None() {
				out[k] = nil
				continue
			}
			var wrapped anypb.Any
			if err := proto.Unmarshal(body.Encoded(), &wrapped); err != nil {
				panic(err)
			}
			if wrapped.TypeUrl != k.Kind.TypeURL() {
				panic("resource " + k.Name + " is of type " + wrapped.TypeUrl)
			}
			out[k] = wrapped.Value
		}
	}
	return out
}

// joined is every resource of a class that is made of others' parts.
func (w *world) joined(c mesh.Class) map[compile.Key]*marshal.Joined {
	out := map[compile.Key]*marshal.Joined{}
	for _, l := range compile.Layers(c) {
		for _, k := range w.contents(l) {
			if body, _ := w.compiler.Resource(k.Kind).Value(k); body.Joined != nil {
				out[k] = body.Joined
			}
		}
	}
	return out
}

// sums are what identifies each resource of a class that is made of others' parts. It fails the test where what these have that the resource
// lacks, and the reverse, is not what the resource says.
func (w *world) sums(t testing.TB, c mesh.Class) map[compile.Key][16]byte {
	t.Helper()
	out := map[compile.Key][16]byte{}
	for k, j := range w.joined(c) {
		out[k] = j.Sum
		count := map[string]int{}
		for sign, list := range map[int][][]byte{1: slices.Concat(j.Common, j.Own), -1: slices.Concat(j.Replaced, j.Rest)} {
			for rest := slices.Concat(list...); len(rest) > 0; {
				_, _, n := protowire.ConsumeField(rest)
				if n < 0 {
					t.Fatalf("%s: a part has not whole fields: %q", k.Name, list)
				}
				count[string(rest[:n])] += sign
				rest = rest[n:]
			}
		}
		for field, n := range count {
			if n != 0 {
				t.Fatalf("%s: what it is made of, with its own in place of what is replaced, has %q %d times more than it has", k.Name, field, n)
			}
		}
	}
	return out
}

func sortedKeys(m map[compile.Key][]byte) []compile.Key {
	return slices.SortedFunc(maps.Keys(m), func(a, b compile.Key) int {
		if a.Kind != b.Kind {
			return int(a.Kind) - int(b.Kind)
		}
		return strings.Compare(a.Name, b.Name)
	})
}
