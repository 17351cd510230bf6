package compile_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

// TestParallelEqualsSerial plays random histories into worlds whose rules run on one goroutine and on
// several, and compares everything: bytes, what moved and in which order, which rules ran, and what they read.
func TestParallelEqualsSerial(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, wait.Seed(t, 17)))
			data := make([]byte, 1200)
			for i := range data {
				data[i] = byte(r.Uint32())
			}
			workers := []int{1, 2, 8}
			var worlds []*world
			for _, n := range workers {
				w := newWorld()
				w.graph.Parallel(n, 1)
				worlds = append(worlds, w)
			}
			h, d := newHistory(t), &dice{data: data}
			for step := 0; len(d.data) > 0; step++ {
				var changes []object.Change
				for range 1 + d.roll(3) {
					changes = append(changes, d.change())
				}
				var first []incr.Moved
				for i, w := range worlds {
					w.model.Apply(changes)
					moved := w.graph.Run()
					if i == 0 {
						first = moved
					} else if !slices.Equal(moved, first) {
						t.Fatalf("step %d: %d workers moved %v, one %v", step, workers[i], moved, first)
					}
					if step == 5 {
						for _, n := range h.proxies {
							w.join(n)
						}
					} else if step > 5 {
						h.reclass(w)
					}
					equalWorlds(t, w, worlds[0], fmt.Sprintf("step %d, %d workers", step, workers[i]))
				}
			}
		})
	}
}

// equalWorlds fails the test where a world differs from another in what is wanted and how it was made.
func equalWorlds(t *testing.T, w, other *world, when string) {
	t.Helper()
	if got, want := w.graph.Stats(), other.graph.Stats(); !maps.Equal(got, want) {
		t.Fatalf("%s: rules ran %+v, want %+v", when, got, want)
	}
	if !maps.Equal(w.held, other.held) {
		t.Fatalf("%s: %d resources are wanted, want %d", when, len(w.held), len(other.held))
	}
	for k := range w.held {
		got, _ := w.compiler.Resource(k.Kind).Value(k)
		want, _ := other.compiler.Resource(k.Kind).Value(k)
		if got, want := got.Encoded(), want.Encoded(); !bytes.Equal(got, want) {
			t.Fatalf("%s: resource %s is\n%q, want\n%q", when, k.Name, got, want)
		}
		if got, want := reads(w.compiler, k), reads(other.compiler, k); !slices.Equal(got, want) {
			t.Fatalf("%s: resource %s was made from\n%v, want\n%v", when, k.Name, got, want)
		}
	}
}

func reads(c *compile.Compiler, k compile.Key) []incr.Read {
	return slices.Collect(c.Resource(k.Kind).Reads(k))
}
