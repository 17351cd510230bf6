package incr

import (
	"fmt"
	"hash/fnv"
	"testing"
)

// BenchmarkBatch reruns n values of one level, each of which takes some microseconds, on one goroutine and on
// two: defaultBatch is about where the second is no longer the slower one.
func BenchmarkBatch(b *testing.B) {
	text := make([]byte, 4096)
	for _, n := range []int{2, 8, 32, 128} {
		for _, workers := range []int{1, 2} {
			b.Run(fmt.Sprintf("values=%d/workers=%d", n, workers), func(b *testing.B) {
				g := New()
				g.Parallel(workers, 1)
				rows := NewTable[int](g, "rows")
				u := Derive(g, 1, "hash", func(r *Reader, k int) uint64 {
					v, _ := Get(r, rows, "row")
					h := fnv.New64()
					_, _ = h.Write(text)
					return h.Sum64() + uint64(v)
				})
				for k := range n {
					u.Want(k)
				}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					rows.Put("row", i)
					g.Run()
				}
			})
		}
	}
}
