// Package wait waits for conditions in tests, not for times.
//
// Its functions poll a condition every few milliseconds, and fail the test after [Bound], which is far more
// than anything takes on a busy machine. Call them from the test's own goroutine.
package wait

import (
	"errors"
	"testing"
	"time"
)

// Bound is the longest time until a condition holds.
const Bound = 60 * time.Second

const step = 5 * time.Millisecond

// Until waits until holds returns true. What names the condition: "the end of the stream".
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	NoError(t, what, func() error {
		if !holds() {
			return errors.New("it does not hold")
		}
		return nil
	})
}

// NoError waits until look returns nil; the failure contains its last error.
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
