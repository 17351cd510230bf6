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
	if _, err := short(ctx, what, "--mode", "validate"); err != nil {
		return fmt.Errorf("validate Envoy's bootstrap: %w", err)
	}
	return nil
}

// HotRestartVersion asks a binary for what must be equal in two Envoys of which one takes over from the other.
func HotRestartVersion(ctx context.Context, what Launch) (string, error) {
	what.Args = nil
	said, err := short(ctx, what, "--hot-restart-version")
	if err != nil {
		return "", fmt.Errorf("ask %s for its hot restart version: %w", what.Binary, err)
	}
	return strings.TrimSpace(said), nil
}

// short runs Envoy for something that ends by itself, and returns what it said.
func short(ctx context.Context, what Launch, more ...string) (string, error) {
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
	_ = out.SetReadDeadline(time.Now().Add(stragglers))
	<-read
	if err == nil {
		return said.String(), nil
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	return "", errors.Join(err, lastWords(said.String()))
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

// ending is what is known of how a process ended.
type ending struct {
	supervise.Status
	shot bool // by the agent, with SIGKILL
	oom  bool // the kernel killed something of this control group for want of memory meanwhile
	why  supervise.Reason
}

// String says it as a person reads it.
func (e ending) String() string {
	switch {
	case e.why == supervise.Refused:
		return "was not started: its configuration was refused"
	case e.why == supervise.Incompatible:
		return "was not started: it could not take over"
	case e.Signal == supervise.SIGKILL && e.shot:
		return "killed by the agent, because it did not end on SIGTERM or was not live in time"
	case e.Signal == supervise.SIGKILL && e.oom:
		return "killed by the kernel for want of memory"
	case e.Signal == supervise.SIGKILL:
		return "killed by signal 9 (by somebody; the control group counts no kill for want of memory)"
	case e.Signal != 0:
		return fmt.Sprintf("killed by signal %d", e.Signal)
	case e.Code == 127:
		return "not found"
	case e.Code == 126:
		return "could not be started"
	}
	return fmt.Sprintf("exited with code %d", e.Code)
}
