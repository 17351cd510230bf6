package xds

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"google.golang.org/grpc/mem"

	"github.com/pilothouse/pilothouse/test/wait"
)

// A response has the same bytes whether its resources are sent one by one or as parts of chunks.
func TestFramesOfChunks(t *testing.T) {
	r := rand.New(rand.NewPCG(9, wait.Seed(t, 1)))
	for round := range 200 {
		var all []*Resource
		var view TypeView
		for part := range view.parts {
			var list []*Resource
			for i := range r.IntN(200) {
				list = append(list, NewResource(CDS, fmt.Sprintf("%04d-%d", r.IntN(20)*100+i, part), make([]byte, r.IntN(200))))
			}
			view.parts[part] = (*set)(nil).with(list, nil)
		}
		all = view.list()
		for range 3 {
			// Some are left out, and some are of no set.
			var list []*Resource
			gaps := r.IntN(3) * 10
			for _, u := range all {
				if gaps == 0 || r.IntN(100) >= gaps {
					list = append(list, u)
				}
				if r.IntN(100) < gaps {
					list = append(list, NewResource(CDS, u.Name+"+", []byte("other")))
				}
			}
			for _, delta := range []bool{true, false} {
				var want []byte
				for _, u := range list {
					want = append(append(want, u.frames.of(delta)...), u.Body...)
				}
				if got := appendFrames(nil, list, view, delta).Materialize(); !bytes.Equal(got, want) {
					t.Fatalf("round %d, delta %v: %d resources have other bytes", round, delta, len(list))
				}
			}
		}
	}
}

// What many streams are sent takes few slices, from the second stream on.
func TestChunksAreSentWhole(t *testing.T) {
	var list []*Resource
	for i := range 1000 {
		list = append(list, NewResource(CDS, fmt.Sprintf("%04d", i), []byte("content")))
	}
	var view TypeView
	view.parts[0] = setOf(list)
	encode := func(list []*Resource) mem.BufferSlice { return appendFrames(nil, list, view, true) }
	if n := len(encode(list)); n != 2*len(list) {
		t.Errorf("first response of %d slices, want two for each resource, since it may be the only one", n)
	}
	second, third := encode(list), encode(list[1:])
	if want := len(view.parts[0].chunks); len(second) != want || len(third) != want {
		t.Errorf("later responses of %d and %d slices, want one for each of %d chunks", len(second), len(third), want)
	}
	if &second[1].ReadOnlyData()[0] != &third[1].ReadOnlyData()[0] {
		t.Error("two responses have copies of a chunk")
	}
}

// A layer that is derived from another one shares its bytes but for what differs.
func TestDerivedLayersShareFrames(t *testing.T) {
	var list []*Resource
	for i := range 640 {
		list = append(list, NewResource(CDS, fmt.Sprintf("%04d", i), []byte("content")))
	}
	base := (*Layer)(nil).With(CDS, list, nil)
	var changed []*Resource
	for i := 0; i < 640; i += 64 {
		changed = append(changed, NewResource(CDS, fmt.Sprintf("%04d", i+30), []byte("other")))
	}
	derived := base.WithOver(base, CDS, changed, nil)
	for _, l := range []*Layer{base, base, derived} {
		var view TypeView
		view.parts[0] = l.of(CDS)
		n := len(appendFrames(nil, l.of(CDS).all(), view, true))
		chunks := len(base.of(CDS).chunks)
		if want := chunks + 3*len(changed); l == derived && n > want {
			t.Errorf("a response of %d slices, want at most %d: two parts of each of %d chunks, and two slices for each of %d resources", n, want, chunks, len(changed))
		}
	}
}
