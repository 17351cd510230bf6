package wait_test

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pilothouse/pilothouse/test/wait"
)

// failed is a test that keeps what it is ended with.
type failed struct {
	testing.TB
	text string
}

func (f *failed) Helper() {}

func (f *failed) Fatalf(format string, args ...any) {
	f.text = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		wait.Until(t, "a second has passed", func() bool { return time.Since(start) >= time.Second })
		if took := time.Since(start); took > 1100*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}

func TestNeverHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, done, start := &failed{TB: t}, make(chan struct{}), time.Now()
		go func() {
			defer close(done)
			wait.NoError(f, "it works", func() error { return errors.New("the reason") })
		}()
		<-done
		if took := time.Since(start); took != wait.Bound || f.text != "it works: not within 1m0s: the reason" {
			t.Errorf("after %v: %q", took, f.text)
		}
	})
}
