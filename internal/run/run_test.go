package run_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pilothouse/pilothouse/internal/run"
)

// journal is a list of lines that tasks append to.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) note(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

// after returns a task that returns err after d, or if it is cancelled first, the context's error
// one second later.
func after(name string, d time.Duration, err error, log *journal) run.Task {
	return run.Task{Name: name, Run: func(ctx context.Context) error {
		select {
		case <-time.After(d):
			return err
		case <-ctx.Done():
			<-time.After(time.Second)
			log.note(name + " cleaned up")
			return fmt.Errorf("wait: %w", ctx.Err())
		}
	}}
}

func TestErrorCancelsTheOtherTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log journal
		start, broken := time.Now(), errors.New("broken")
		err := run.Group(t.Context(),
			after("short", time.Second, nil, &log),
			after("bad", 2*time.Second, broken, &log),
			after("long", time.Hour, nil, &log))
		if err == nil || err.Error() != "bad: broken" || !errors.Is(err, broken) {
			t.Errorf("got error %v, want the one of bad, named, and nothing of the cancelled ones", err)
		}
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("group took %v, want 3s: cancelled at 2s, and long needs 1s to clean up", took)
		}
		if !slices.Equal(log.lines, []string{"long cleaned up"}) {
			t.Errorf("got %q", log.lines)
		}
	})
}

func TestErrorsAreJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := run.Task{Name: "late", Run: func(ctx context.Context) error {
			<-ctx.Done()
			return errors.New("could not flush")
		}}
		err := run.Group(t.Context(), late, run.Task{Name: "first", Run: func(context.Context) error { return errors.New("broken") }})
		if err == nil || err.Error() != "first: broken\nlate: could not flush" {
			t.Errorf("got %v", err)
		}
	})
}

func TestContextErrorsAreIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log journal
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := run.Group(ctx, after("a", time.Hour, nil, &log)); err != nil {
			t.Errorf("deadline: got %v", err)
		}
		ctx, stop := context.WithCancelCause(t.Context())
		stop(errors.New("enough"))
		if err := run.Group(ctx, run.Task{Name: "a", Run: func(ctx context.Context) error { return context.Cause(ctx) }}); err != nil {
			t.Errorf("cause: got %v", err)
		}
	})
}

func TestCanceledWithoutContextEndIsAnError(t *testing.T) {
	err := run.Group(t.Context(), run.Task{Name: "a", Run: func(context.Context) error { return context.Canceled }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the task's error: its context had not ended", err)
	}
}

func TestDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log journal
		err := run.Group(t.Context(),
			after("main", time.Second, run.Done, &log),
			run.Nest("servers", after("one", time.Hour, nil, &log), after("two", time.Hour, nil, &log)))
		if err != nil || len(log.lines) != 2 {
			t.Errorf("got error %v and %q, want none and both servers cleaned up", err, log.lines)
		}
	})
}

func TestNestedNames(t *testing.T) {
	bad := run.Task{Name: "listener", Run: func(context.Context) error { return errors.New("address in use") }}
	err := run.Group(t.Context(), run.Nest("xds", bad))
	if err == nil || err.Error() != "xds: listener: address in use" {
		t.Errorf("got %v", err)
	}
}

func TestCleanups(t *testing.T) {
	var order []string
	var c run.Cleanups
	for _, name := range []string{"socket", "file", "rule"} {
		c.Add(name, func() error {
			order = append(order, name)
			if name == "file" {
				return errors.New("gone already")
			}
			return nil
		})
	}
	err := c.Close()
	if err == nil || err.Error() != "file: gone already" || !slices.Equal(order, []string{"rule", "file", "socket"}) {
		t.Errorf("got %v in order %q", err, order)
	}
	if err := c.Close(); err != nil || len(order) != 3 {
		t.Errorf("the second Close did something: %v, %q", err, order)
	}
}
