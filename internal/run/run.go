// Package run runs named tasks together and waits for all of them.
//
// A group returns when its last task has returned. The first task that returns an error
// cancels the context of the others; a task that returns nil does not, and one that
// returns Done cancels them without an error. Errors are prefixed with the task's name and
// joined in the order in which they occurred. If the context has ended, errors that only
// say so (context.Canceled, the context's error or its cause) are ignored.
package run

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Done is returned by a task to end its group without an error: Group cancels the other tasks
// and waits for them.
var Done = errors.New("done") //nolint:staticcheck // not a failure, like io.EOF

// Task is a function with a name. Run returns when it is done or soon after ctx has ended, and
// only after every goroutine that it started has returned.
type Task struct {
	// Name is the prefix of the task's errors ("xds: listen on …").
	Name string
	Run  func(ctx context.Context) error
}

// Group runs the tasks concurrently and returns when all have returned. The end of ctx is not an
// error of the group: callers that need it check ctx. Without tasks it returns nil.
func Group(ctx context.Context, tasks ...Task) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex // guards errs
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

// ended reports whether err only says that ctx has ended.
func ended(ctx context.Context, err error) bool {
	if ctx.Err() == nil {
		return false
	}
	return errors.Is(err, context.Canceled) || errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))
}

// Nest returns a task that runs the tasks as a Group of their own.
func Nest(name string, tasks ...Task) Task {
	return Task{Name: name, Run: func(ctx context.Context) error { return Group(ctx, tasks...) }}
}

// Cleanups is a stack of functions that undo what a constructor or a program did. The zero value
// is empty and ready to use. It is not safe for concurrent use.
type Cleanups struct {
	named []cleanup
}

type cleanup struct {
	name string
	undo func() error
}

// Add pushes undo on the stack. The name is the prefix of its error.
func (c *Cleanups) Add(name string, undo func() error) {
	c.named = append(c.named, cleanup{name, undo})
}

// Close runs all functions in reverse order, also after one has failed, and joins their errors.
// It empties the stack, so a second Close does nothing.
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
