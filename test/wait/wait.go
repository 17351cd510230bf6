// Package wait has tests wait for conditions rather than for times.
//
// Its functions look again and again, every few milliseconds, and end the test when
// [Bound] is over: far more than anything takes on a busy machine, so that a test that
// fails here fails for good. Call them from the test's own goroutine. [Output] is what is
// often looked at.
package wait

import (
	"errors"
	"testing"
	"time"
)

// Bound is how long a condition may take to hold.
const Bound = 60 * time.Second

const step = 5 * time.Millisecond

// Until waits until holds says true. What says what is waited for: "the end of the stream".
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	NoError(t, what, func() error {
		if !holds() {
			return errors.New("it does not hold")
		}
		return nil
	})
}

// NoError waits until look returns nil; its last error is part of the failure.
func NoError(t testing.TB, what string, look func() error) {
	t.Helper()
	tick := time.NewTicker(step)
	defer tick.Stop()
	end := time.NewTimer(Bound)
	defer end.Stop()
	for {
		err := look()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("%s: not within %v: %v", what, Bound, err)
		}
	}
}
