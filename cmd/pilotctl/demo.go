package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/pilothouse/pilothouse/internal/demo"
	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
)

func newDemo() *cobra.Command {
	var o demo.Options
	var bin, envoy string
	var verbose bool
	root := installed()
	c := &cobra.Command{
		Use:   "demo",
		Short: "Run a whole mesh on this machine, play its acts and check each",
		Long: `Run a whole mesh on this machine, play its acts and check each.

Every Pod of the sample becomes a network namespace with capture, pilot-agent, Envoy and an
app. Needs root and Linux; touches nothing of the machine's own network and leaves nothing
behind. The exit code is 0 only if every check held.`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := netmesh.Supported(); err != nil {
				return err
			}
			var err error
			if o.Programs, err = meshup.In(bin, envoy); err != nil {
				return err
			}
			o.Out, o.Token = c.OutOrStdout(), demoToken
			o.Size = terminal(o.Out)
			if verbose {
				o.Log = slog.New(slog.NewTextHandler(c.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelDebug}))
			}
			ctx, resized, stop := signals(c.Context())
			defer stop()
			o.Resized = resized
			err = demo.Run(ctx, o)
			if errors.Is(err, demo.ErrNotHeld) {
				return errSaid
			}
			if ctx.Err() != nil && err != nil {
				return fmt.Errorf("interrupted: %w", err)
			}
			return err
		},
	}
	c.Flags().StringVar(&bin, "bin", filepath.Join(root, "bin"), "`folder` with pilot-agent, pilot-discovery and app")
	c.Flags().StringVar(&envoy, "envoy", envoyPath(root), "Envoy's `path` (default: $ENVOY, else what make tools fetched)")
	c.Flags().StringVar(&o.ConfigDir, "configDir", filepath.Join(root, "samples", "bookshop"), "`folder` with the sample's YAML")
	c.Flags().BoolVar(&o.Keep, "keep", false, "leave the mesh up after the acts, until Ctrl-C, and say how to reach it")
	c.Flags().StringVar(&o.LogDir, "logs", "", "`folder` to keep the programs' logs in; it must not hold any yet")
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "say on standard error what is started and ended")
	return c
}

// signals has the demo end in good order, and leave nothing behind, when its terminal is closed; and
// when nobody reads its output any more, which writing says then instead of killing the program. It
// tells when the terminal's size has changed.
func signals(ctx context.Context) (_ context.Context, resized <-chan os.Signal, stop func()) {
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

// terminal gives the size of the terminal that w is, nil where it is none that can draw.
func terminal(w io.Writer) func() (columns, rows int) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" {
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

// installed is the tree that this program was built in: the folder above bin.
func installed() string {
	self, err := os.Executable()
	if err != nil || filepath.Base(filepath.Dir(self)) != "bin" {
		return "."
	}
	return filepath.Dir(filepath.Dir(self))
}

func envoyPath(root string) string {
	if path := os.Getenv("ENVOY"); path != "" {
		return path
	}
	return filepath.Join(root, ".tools", "envoy")
}
