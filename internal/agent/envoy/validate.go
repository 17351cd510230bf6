package envoy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"

	"github.com/pilothouse/pilothouse/internal/agent/supervise"
)

// Validate runs Envoy over its configuration in validation mode: it reads everything as a
// start would, opens no listener, and ends. The error holds what Envoy said. Use it for what a
// person wrote; it takes about as long as a start does.
func Validate(ctx context.Context, what Launch) error {
	// The parent-death signal follows the thread, see launcher.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	what.Args = append(what.Args[:len(what.Args):len(what.Args)], "--mode", "validate")
	var said bytes.Buffer
	cmd := command(what, nil)
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.WaitDelay = stragglers
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("validate Envoy's bootstrap: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	err := cmd.Wait()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("validate Envoy's bootstrap: %w", ctx.Err())
	}
	return fmt.Errorf("validate Envoy's bootstrap: %w", errors.Join(err, lastWords(said.String())))
}

// lastWords are the last lines of an output, where Envoy says what is wrong.
func lastWords(text string) error {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	lines = lines[max(0, len(lines)-5):]
	if said := strings.Join(lines, "\n"); said != "" {
		return errors.New(said)
	}
	return nil
}

// describe says a status as a person reads it; ours says that the agent sent the SIGKILL.
func describe(s supervise.Status, ours bool) string {
	switch {
	case s.Signal == supervise.SIGKILL && ours:
		return "killed by the agent, because it did not end on SIGTERM"
	case s.Signal == supervise.SIGKILL:
		return "killed by signal 9 (by the kernel for want of memory, or by somebody)"
	case s.Signal != 0:
		return fmt.Sprintf("killed by signal %d", s.Signal)
	case s.Code == 127:
		return "not found"
	case s.Code == 126:
		return "could not be started"
	}
	return fmt.Sprintf("exited with code %d", s.Code)
}
