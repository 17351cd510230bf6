package wait

import (
	"flag"
	"math/rand/v2"
	"testing"
)

var seed = flag.Uint64("seed", 0, "seed of random tests, from the log of one that failed; 0 takes a new one each time")

// Random is a source of random numbers of another seed each time, which the test logs: run it again
// with -seed to have the same numbers. For one goroutine.
func Random(t testing.TB) *rand.Rand {
	t.Helper()
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("random numbers: -seed %d", s)
	return rand.New(rand.NewPCG(s, 0))
}
