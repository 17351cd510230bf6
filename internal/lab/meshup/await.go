package meshup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// step is the interval between two calls of the condition.
const step = 10 * time.Millisecond

// final is an error that does not go away by waiting.
type final struct{ error }

// Unwrap gives the error that is final.
func (f final) Unwrap() error { return f.error }

// Final marks an error that ends Await at once.
func Final(err error) error { return final{err} }

// Await calls cond until it returns nil. It returns cond's last error when the time is over, when ctx ends,
// or when cond returns a Final error. What is the condition as a statement: "Pod x is ready".
func Await(ctx context.Context, most time.Duration, what string, cond func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("not after %v", most))
	defer cancel()
	tick := time.NewTicker(step)
	defer tick.Stop()
	var last error
	for {
		err := cond(ctx)
		if err == nil {
			return nil
		}
		// An error due to the end of the time says less than the one before.
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if errors.As(err, new(final)) {
			return fmt.Errorf("wait until %s: %w", what, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w: %w", what, context.Cause(ctx), last)
		case <-tick.C:
		}
	}
}

// tailLines is the number of lines of a log in an error.
const tailLines = 15

// withLog adds the end of a program's log to an error and closes the log.
func withLog(err error, log *os.File) error {
	defer func() { _ = log.Close() }()
	if err == nil {
		return nil
	}
	text, readErr := os.ReadFile(log.Name())
	if readErr != nil || len(text) == 0 {
		return fmt.Errorf("%w\n  (its log %s is empty)", err, log.Name())
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	lines = lines[max(0, len(lines)-tailLines):]
	return fmt.Errorf("%w\n  the end of its log:\n  | %s", err, strings.Join(lines, "\n  | "))
}
