package envoy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/supervise"
)

// Validate runs Envoy over its configuration in validation mode: it reads everything as a
// start would, opens no listener, and ends. The error holds what Envoy said. Use it for what a
// person wrote; it takes about as long as a start does.
func Validate(ctx context.Context, what Launch) error {
	if _, err := runOnce(ctx, what, "--mode", "validate"); err != nil {
		return fmt.Errorf("validate Envoy's bootstrap: %w", err)
	}
	return nil
}

// HotRestartVersion asks a binary for what must be equal in two Envoys of which one takes over from the other.
func HotRestartVersion(ctx context.Context, what Launch) (string, error) {
	what.Args = nil
	said, err := runOnce(ctx, what, "--hot-restart-version")
	if err != nil {
		return "", fmt.Errorf("ask %s for its hot restart version: %w", what.Binary, err)
	}
	return strings.TrimSpace(said), nil
}

// runOnce runs Envoy for something that ends by itself, and returns what it said.
func runOnce(ctx context.Context, what Launch, more ...string) (string, error) {
	// The parent-death signal follows the thread, see launcher.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	what.Args = append(what.Args[:len(what.Args):len(what.Args)], more...)
	out, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer out.Close()
	cmd := command(what)
	cmd.Stdout, cmd.Stderr = w, w
	if err = what.As.own(w); err == nil {
		err = cmd.Start()
	}
	w.Close()
	if err != nil {
		return "", err
	}
	awaited.Store(cmd.Process.Pid, nil)
	defer awaited.Delete(cmd.Process.Pid)
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	var said bytes.Buffer
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = said.ReadFrom(out) // what could be read is what there is to say
	}()
	err = cmd.Wait()
	_ = out.SetReadDeadline(time.Now().Add(outputDelay))
	<-read
	if err == nil {
		return said.String(), nil
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	return "", errors.Join(err, lastLines(said.String()))
}

// lastLines returns the last lines of an output, where Envoy says what is wrong.
func lastLines(text string) error {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	lines = lines[max(0, len(lines)-5):]
	if said := strings.Join(lines, "\n"); said != "" {
		return errors.New(said)
	}
	return nil
}

// ending is what is known of how a process ended.
type ending struct {
	supervise.Status
	killed bool // by the agent, with SIGKILL
	oom    bool // meanwhile the kernel killed a process of this control group: out of memory
	why    supervise.Reason
}

// String says it as a person reads it.
func (e ending) String() string {
	switch {
	case e.why == supervise.Refused:
		return "was not started: its configuration was refused"
	case e.why == supervise.Incompatible:
		return "was not started: it could not take over"
	case e.Signal == supervise.SIGKILL && e.killed:
		return "killed by the agent, because it did not end on SIGTERM or was not live in time"
	case e.Signal == supervise.SIGKILL && e.oom:
		return "killed by the kernel: out of memory"
	case e.Signal == supervise.SIGKILL:
		return "killed by signal 9 (not by the agent, and the control group counts no out-of-memory kill)"
	case e.Signal != 0:
		return fmt.Sprintf("killed by signal %d", e.Signal)
	case e.Code == 127:
		return "not found"
	case e.Code == 126:
		return "could not be started"
	}
	return fmt.Sprintf("exited with code %d", e.Code)
}
