// Package health finds out by the readiness probe of the proxy configuration whether the application is healthy.
//
// It is for virtual machines, which have no kubelet: the control plane takes an unhealthy one from the endpoints. [agent X9, V8]
// Run probes until its context ends, and reports each change when as many results in a row as the thresholds say agree. An
// application is not healthy before its proxy is ready. Only one probe runs at a time, and none longer than its timeout.
package health

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"syscall"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// Options configure a Prober. All fields are required.
type Options struct {
	Probe *spec.Readiness
	// Proxy returns why the proxy is not ready, nil if it is.
	Proxy func() error
	// Check runs a probe over the network. An Exec is run without it.
	Check func(ctx context.Context) error
	// Report is called with each change. It must not block for long.
	Report func(healthy bool, message string)
	Log    *slog.Logger
}

// Run probes until ctx ends, and returns nil.
func Run(ctx context.Context, o Options) error {
	t := tally{successes: o.Probe.Successes, failures: o.Probe.Failures}
	next := time.NewTimer(o.Probe.InitialDelay)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
		}
		err := once(ctx, &o)
		if ctx.Err() != nil {
			return nil
		}
		if t.add(err) {
			message := ""
			if t.healthy {
				o.Log.Info("the application is healthy")
			} else {
				message = err.Error()
				o.Log.Warn("the application is not healthy", "reason", message)
			}
			o.Report(t.healthy, message)
		}
		next.Reset(o.Probe.Period)
	}
}

// once runs the probe once.
func once(ctx context.Context, o *Options) error {
	if err := o.Proxy(); err != nil {
		return fmt.Errorf("the proxy is not ready: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.Probe.Timeout, fmt.Errorf("no result within %v, its timeoutSeconds", o.Probe.Timeout))
	defer cancel()
	if len(o.Probe.Exec) == 0 {
		return o.Check(ctx)
	}
	return run(ctx, o.Probe.Exec)
}

const (
	// maxOutput is how much of a command's output is in an error, in bytes.
	maxOutput = 500
	// killWait is how long is waited for the output of a command that was killed.
	killWait = time.Second
)

// run runs a command. It is healthy if the command ends with 0.
func run(ctx context.Context, command []string) error {
	out := &beginning{}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...) // #nosec G204 -- the proxy configuration says what to run
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// What the command has started ends with it.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = killWait
	err := cmd.Run()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("run %s: %w", printable.Quote(command[0], maxOutput), context.Cause(ctx))
	}
	var code *exec.ExitError
	if errors.As(err, &code) && out.Len() > 0 {
		return fmt.Errorf("run %s: %w: %s", printable.Quote(command[0], maxOutput), err, printable.Quote(out.String(), maxOutput))
	}
	return fmt.Errorf("run %s: %w", printable.Quote(command[0], maxOutput), err)
}

// beginning keeps the beginning of what is written to it. The command's two outputs are the same writer, which os/exec calls
// from one goroutine.
type beginning struct{ bytes.Buffer }

// Write implements io.Writer.
func (b *beginning) Write(p []byte) (int, error) {
	_, _ = b.Buffer.Write(p[:min(len(p), maxOutput-b.Len())])
	return len(p), nil
}
