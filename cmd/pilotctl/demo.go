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
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

func newDemo(env map[string]string) *cobra.Command {
	c := &cobra.Command{
		Use:   "demo",
		Short: "Run a whole mesh on this machine, with scenarios whose results are checked",
		Long: `Run a whole mesh on this machine, with scenarios whose results are checked.

Every Pod of the sample becomes a network namespace with capture, pilot-agent, Envoy and an
app. Needs root and Linux; does not change the machine's own network, and cleans up at the
end. The exit code is 0 only if every check passed.`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			v := cli.Read(c.Flags(), env, settings.PilotctlDemo)
			f := readDemo(v, installed())
			if err := v.Err(); err != nil {
				return misuse{err}
			}
			if err := netmesh.Supported(); err != nil {
				return err
			}
			programs, err := meshup.In(f.bin, f.envoy)
			if err != nil {
				return err
			}
			o := demo.Options{
				Programs: programs, ConfigDir: f.configDir, Keep: f.keep, LogDir: f.logs,
				Out: c.OutOrStdout(), Token: demoToken,
			}
			o.Size = terminal(o.Out, f.term)
			if f.verbose {
				o.Log = slog.New(slog.NewTextHandler(c.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelDebug}))
			}
			ctx, resized, stop := signals(c.Context())
			defer stop()
			o.Resized = resized
			err = demo.Run(ctx, o)
			if errors.Is(err, demo.ErrCheckFailed) {
				return errSaid
			}
			if ctx.Err() != nil && err != nil {
				return fmt.Errorf("interrupted: %w", err)
			}
			return err
		},
	}
	cli.Add(c, settings.PilotctlDemo)
	return c
}

// demoFlags are the settings of settings.PilotctlDemo.
type demoFlags struct {
	bin, envoy, configDir, logs, term string
	keep, verbose                     bool
}

// readDemo reads the settings; the defaults are paths below tree.
func readDemo(v *settings.Values, tree string) demoFlags {
	return demoFlags{
		bin:       v.TextOr("bin", filepath.Join(tree, "bin")),
		envoy:     v.TextOr("envoy", filepath.Join(tree, ".tools", "envoy")),
		configDir: v.TextOr("configDir", filepath.Join(tree, "samples", "bookshop")),
		logs:      v.Text("logs"), term: v.Text("TERM"), keep: v.Bool("keep"), verbose: v.Bool("verbose"),
	}
}

// signals ends the demo, so that it cleans up, when its terminal is closed. SIGPIPE no longer kills the
// program: writing to a closed output is an error, which ends the demo too. resized is sent something
// when the terminal's size has changed.
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

// terminal returns a function that returns the size of terminal w, nil if w is not a terminal that a
// table can be drawn on.
func terminal(w io.Writer, kind string) func() (columns, rows int) {
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

// installed returns the tree that this program was built in, the parent of bin, or "." if unknown.
func installed() string {
	self, err := os.Executable()
	if err != nil || filepath.Base(filepath.Dir(self)) != "bin" {
		return "."
	}
	return filepath.Dir(filepath.Dir(self))
}
