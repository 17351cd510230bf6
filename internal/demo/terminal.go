package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// Signals returns a context that ends when the terminal is closed, so that the demo cleans up. SIGPIPE no longer kills
// the program: writing to a closed output is an error, which ends the demo too. resized is sent something when the
// terminal's size has changed.
func Signals(ctx context.Context) (_ context.Context, resized <-chan os.Signal, stop func()) {
	end := func() {}
	if !signal.Ignored(syscall.SIGHUP) { // not under nohup
		ctx, end = signal.NotifyContext(ctx, syscall.SIGHUP)
	}
	// Not Ignore, which the programs of the mesh would inherit. Not stopped either: the last error
	// is printed after this.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	sizes := make(chan os.Signal, 1)
	signal.Notify(sizes, syscall.SIGWINCH)
	return ctx, sizes, func() {
		signal.Stop(sizes)
		end()
	}
}

// Terminal returns a function that returns the size of terminal w, nil if w is not a terminal that a
// table can be drawn on. Kind is the value of TERM.
func Terminal(w io.Writer, kind string) func() (columns, rows int) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || kind == "dumb" {
		return nil
	}
	return func() (int, int) {
		columns, rows, err := term.GetSize(int(f.Fd()))
		if err != nil || columns == 0 || rows == 0 {
			return 80, 24
		}
		return columns, rows
	}
}

// ErrNoTerminal is returned by Enter if nobody can press a key.
var ErrNoTerminal = errors.New("standard input is not a terminal: want one, to wait for Enter")

// Enter returns a function that calls ask, and waits until Enter is pressed at a terminal after that. It returns an error if in is
// not a terminal. What is typed is not shown until restore is called, since it would be written over the table.
func Enter(in io.Reader) (wait func(ctx context.Context, ask func()) error, restore func(), err error) {
	f, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil, nil, ErrNoTerminal
	}
	fd := int(f.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, nil, fmt.Errorf("read the terminal's modes: %w", err)
	}
	silent := *before
	silent.Lflag &^= unix.ECHO
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &silent); err != nil {
		return nil, nil, fmt.Errorf("stop the terminal from showing what is typed: %w", err)
	}
	restore = func() {
		// What was typed meanwhile was not meant for the shell. Errors: the terminal is gone.
		_ = unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIFLUSH)
		_ = unix.IoctlSetTermios(fd, unix.TCSETS, before)
	}
	return func(ctx context.Context, ask func()) error {
		// What was typed before is no answer.
		if err := unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIFLUSH); err != nil {
			return fmt.Errorf("wait for Enter: %w", err)
		}
		ask()
		return readLine(ctx, fd)
	}, restore, nil
}

// readLine waits for a line, or the end of the input, from a terminal.
func readLine(ctx context.Context, fd int) error {
	for ctx.Err() == nil {
		// A blocking read could not be interrupted.
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(ready, 100)
		if n == 0 || errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil {
			_, err = unix.Read(fd, make([]byte, 4096))
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait for Enter: %w", err)
		}
		return nil
	}
	return ctx.Err()
}
