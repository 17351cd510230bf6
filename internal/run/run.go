// Package run runs named tasks together and waits for all of them.
//
// The contract: a group ends when its last task has returned, never before. The first
// task that returns an error ends the context of the others; a task that returns nil
// just ends, and one that returns Done ends the group without an error. Errors carry the
// task's name and are joined in the order in which they came. A task that gives up
// because its context ended has not failed: what it says then (context.Canceled, or the
// context's own error or cause) is dropped. Groups nest, because a group is a task.
package run

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Done is what a task returns to end its whole group in good order: the others are
// cancelled and waited for, and nothing is reported for the task that said it.
var Done = errors.New("done") //nolint:staticcheck // no failure: like io.EOF it is named for what it says

// Task is one piece of work. Run blocks until the work is over or ctx has ended, and
// returns only after every goroutine that it started.
type Task struct {
	// Name stands before the task's error ("xds: listen on …"). Keep it short.
	Name string
	Run  func(ctx context.Context) error
}

// Group runs all tasks at once and returns when the last one has. The end of ctx is not
// an error of the group; ask ctx itself where that matters. A group of no tasks returns
// nil at once.
func Group(ctx context.Context, tasks ...Task) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex // guards errs; a channel would need a reader beside the wait
		errs []error
	)
	for _, t := range tasks {
		wg.Go(func() {
			err := t.Run(ctx)
			switch {
			case err == nil:
			case errors.Is(err, Done):
				cancel(Done)
			case ended(ctx, err):
			default:
				err = fmt.Errorf("%s: %w", t.Name, err)
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
				cancel(err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// ended reports whether err only says that ctx is over.
func ended(ctx context.Context, err error) bool {
	if ctx.Err() == nil {
		return false
	}
	return errors.Is(err, context.Canceled) || errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))
}

// Nest makes a task of a group, so that a part of a program can be run, cancelled and
// waited for as one.
func Nest(name string, tasks ...Task) Task {
	return Task{Name: name, Run: func(ctx context.Context) error { return Group(ctx, tasks...) }}
}

// Cleanups undo what a constructor or a program did, last first. The zero value is
// empty and ready. It is used by one goroutine at a time.
type Cleanups struct {
	named []cleanup
}

type cleanup struct {
	name string
	undo func() error
}

// Add puts undo on the stack; name stands before its error.
func (c *Cleanups) Add(name string, undo func() error) {
	c.named = append(c.named, cleanup{name, undo})
}

// Close runs what was added, last first, each once and all of them whatever the others
// return, and joins their errors. Afterwards the stack is empty: a second Close does nothing.
func (c *Cleanups) Close() error {
	var errs []error
	for len(c.named) > 0 {
		last := c.named[len(c.named)-1]
		c.named = c.named[:len(c.named)-1]
		if err := last.undo(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", last.name, err))
		}
	}
	return errors.Join(errs...)
}
