package wait

import (
	"flag"
	"math/rand/v2"
	"testing"
)

var seed = flag.Uint64("seed", 0, "seed of random tests, as the log of a failed test has it; 0: each test's own choice")

// Random is a source of random numbers with another seed each time, or with that of the flag -seed. The
// test logs the seed, so that -seed repeats the same numbers. For one goroutine.
func Random(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Seed(t, rand.Uint64()), 0))
}

// Seed is the value of the flag -seed, or usual if it is not given: a constant makes a test that is the
// same in every run, and that `make soak` repeats with other numbers. The test logs the seed.
func Seed(t testing.TB, usual uint64) uint64 {
	t.Helper()
	s := usual
	if *seed != 0 {
		s = *seed
	}
	t.Logf("random numbers: -seed %d", s)
	return s
}
