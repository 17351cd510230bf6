package demo

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

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
// table can be drawn on.
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
