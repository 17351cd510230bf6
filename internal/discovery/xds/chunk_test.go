package xds

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pilothouse/pilothouse/test/wait"
)

// A set of many chunks is what a map would be after the same edits, its chunks are neither too great nor
// many small ones, and differences between sets that share chunks are those of their content.
func TestSetsOfManyChunks(t *testing.T) {
	r := rand.New(rand.NewPCG(5, wait.Seed(t, 7)))
	want := map[string]*Resource{}
	var s *set
	cluster := func() *Resource {
		return NewCluster(fmt.Sprintf("%04d", r.IntN(2000)), []byte{byte(r.IntN(3))}, "")
	}
	for step := range 400 {
		var up []*Resource
		var removes []string
		size := []int{1, 1, 1, 5, 300}[r.IntN(5)]
		for range r.IntN(size + 1) {
			up = append(up, cluster())
		}
		growing := step/100%2 == 0
		for range r.IntN(size + 1) {
			if !growing || r.IntN(3) == 0 {
				removes = append(removes, cluster().Name)
			}
		}
		if !growing {
			up = up[:len(up)/3]
		}
		before, old := s, maps.Clone(want)
		for _, n := range removes {
			delete(want, n)
		}
		for _, u := range up {
			want[u.Name] = u
		}
		s = s.with(up, removes)
		expected := sortedResources(want)
		if got := resourcesOf(s.all()); !slices.Equal(got, resourcesOf(expected)) || s.len() != len(want) {
			t.Fatalf("step %d: set is %v, want %v", step, got, resourcesOf(expected))
		}
		if s != nil {
			for _, c := range s.chunks {
				if len(c.list) == 0 || len(c.list) > maxChunk {
					t.Fatalf("step %d: a chunk of %d resources", step, len(c.list))
				}
			}
			if most := 4 + 2*len(want)/minChunk; len(s.chunks) > most {
				t.Fatalf("step %d: %d resources in %d chunks, want at most %d", step, len(want), len(s.chunks), most)
			}
		}
		for _, name := range []string{"", "0000", "1000", "9999", cluster().Name} {
			if got := s.get(name); got == nil != (want[name] == nil) || got != nil && got.Version != want[name].Version {
				t.Fatalf("step %d: %q is %v, want %v", step, name, got, want[name])
			}
		}
		d := between(before, s)
		var upserts, removed []*Resource
		for _, c := range expected {
			if o := old[c.Name]; o == nil || o.Version != c.Version {
				upserts = append(upserts, c)
			}
		}
		for _, c := range sortedResources(old) {
			if want[c.Name] == nil {
				removed = append(removed, c)
			}
		}
		if !slices.Equal(resourcesOf(d.upserts), resourcesOf(upserts)) || !slices.Equal(resourcesOf(d.removed), resourcesOf(removed)) {
			t.Fatalf("step %d: difference %v, removed %v; want %v, %v", step, resourcesOf(d.upserts), resourcesOf(d.removed), resourcesOf(upserts), resourcesOf(removed))
		}
	}
}

// An edit makes the chunk anew that it is in, and shares the others.
func TestEditsShareChunks(t *testing.T) {
	var list []*Resource
	for i := range 7000 {
		list = append(list, NewCluster(fmt.Sprintf("%04d", i), nil, ""))
	}
	s := setOf(list)
	for what, edited := range map[string]*set{
		"another version": s.with([]*Resource{NewCluster("3500", []byte("2"), "")}, nil),
		"a new name":      s.with([]*Resource{NewCluster("3500x", nil, "")}, nil),
		"a last name":     s.with([]*Resource{NewCluster("x", nil, "")}, nil),
		"a removal":       s.with(nil, []string{"0000"}),
	} {
		had := map[*chunk]bool{}
		for _, c := range s.chunks {
			had[c] = true
		}
		other := 0
		for _, c := range edited.chunks {
			if !had[c] {
				other++
			}
		}
		if other > 2 {
			t.Errorf("%s: %d of %d chunks are new, want at most 2", what, other, len(edited.chunks))
		}
		if got := testing.AllocsPerRun(10, func() { between(s, edited) }); got > 2 {
			t.Errorf("%s: the difference takes %v allocations, want at most 2", what, got)
		}
	}
}
