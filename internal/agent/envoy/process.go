package envoy

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/agent/supervise"
)

// process is one Envoy that was started and will be reaped by wait.
type process struct {
	cmd    *exec.Cmd
	pid    int
	pipes  []*os.File // our ends of its output
	copies sync.WaitGroup
	copied []error
}

// launcher starts processes from one OS thread that lives as long as it does. The kernel sends
// the parent-death signal when the thread that forked ends, not the process: a thread
// that the Go runtime might end would kill a healthy Envoy.
type launcher struct {
	orders chan order
}

type order struct {
	cmd  *exec.Cmd
	done chan error
}

func newLauncher() *launcher { return &launcher{orders: make(chan order)} }

// run serves until close; every process that was started must have been reaped by then.
func (l *launcher) run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for o := range l.orders {
		o.done <- o.cmd.Start()
	}
}

func (l *launcher) close() { close(l.orders) }

func (l *launcher) start(cmd *exec.Cmd) error {
	done := make(chan error, 1)
	l.orders <- order{cmd, done}
	return <-done
}

// command prepares a child in a process group of its own that dies with us.
func command(what Launch) *exec.Cmd {
	cmd := exec.Command(what.Binary, what.Args...)
	cmd.Env = what.Env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	what.As.attributes(cmd.SysProcAttr)
	return cmd
}

// spawn starts what was asked for, its output going to stdout and stderr line by line.
func spawn(l *launcher, what Launch, stdout, stderr io.Writer) (*process, error) {
	p := &process{cmd: command(what)}
	outs, err := p.connect(what.As)
	if err == nil {
		p.cmd.Stdout, p.cmd.Stderr = outs[0], outs[1]
		err = l.start(p.cmd)
	}
	for _, f := range outs {
		f.Close()
	}
	if err != nil {
		for _, f := range p.pipes {
			f.Close()
		}
		return nil, fmt.Errorf("start Envoy: %w", err)
	}
	p.pid = p.cmd.Process.Pid
	awaited.Store(p.pid, nil)
	p.copied = make([]error, len(p.pipes))
	for i, dst := range []io.Writer{stdout, stderr} {
		p.copies.Go(func() {
			if p.copied[i] = copyLines(dst, p.pipes[i]); p.copied[i] != nil {
				// Envoy would block if nobody read its output.
				_, _ = io.Copy(io.Discard, p.pipes[i])
			}
		})
	}
	return p, nil
}

// connect makes the pipes for the output and returns the child's ends.
func (p *process) connect(as *User) ([]*os.File, error) {
	var outs []*os.File
	for range 2 {
		r, w, err := os.Pipe()
		if err != nil {
			return outs, err
		}
		p.pipes, outs = append(p.pipes, r), append(outs, w)
		// Access logs go to /dev/stdout, which opens the pipe anew: it must be its user's.
		if err := as.own(w); err != nil {
			return outs, err
		}
	}
	return outs, nil
}

// signal sends s to the process alone. One that has ended is no error.
func (p *process) signal(s supervise.Signal) error {
	err := p.cmd.Process.Signal(syscall.Signal(s))
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// wait returns when the process is reaped, nothing of its group is left, and its output has
// been passed on. The error is about the output.
func (p *process) wait() (supervise.Status, error) {
	// Wait without reaping: until it is reaped its process group id cannot be reused.
	for {
		err := unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	// No error matters here: as a rule there is nothing left.
	_ = unix.Kill(-p.pid, unix.SIGKILL)
	err := p.cmd.Wait()
	awaited.Delete(p.pid)
	for _, f := range p.pipes {
		_ = f.SetReadDeadline(time.Now().Add(outputDelay))
	}
	p.copies.Wait()
	for _, f := range p.pipes {
		f.Close()
	}
	if p.cmd.ProcessState == nil {
		// Somebody else reaped it: that it is gone is all that is known.
		return supervise.Status{Code: 1}, fmt.Errorf("wait for Envoy: %w", err)
	}
	return status(p.cmd.ProcessState), errors.Join(p.copied...)
}

func status(s *os.ProcessState) supervise.Status {
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return supervise.Status{Signal: supervise.Signal(ws.Signal())}
	}
	return supervise.Status{Code: s.ExitCode()}
}

// notStarted is the status that a shell gives for a program that it cannot start.
func notStarted(err error) supervise.Status {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		return supervise.Status{Code: 127}
	}
	return supervise.Status{Code: 126}
}
