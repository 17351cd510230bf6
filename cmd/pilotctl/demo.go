package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

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
end. The exit code is 0 only if every check passed.

On a terminal it shows a live table, with colors unless NO_COLOR is set. --pace=2s gives time to
read, --step waits for Enter before each scenario.`,
		Example: `  sudo pilotctl demo
  sudo pilotctl demo --step
  sudo pilotctl demo --keep --logs ./demo-logs`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			v := cli.Read(c.Flags(), env, settings.PilotctlDemo)
			f := readDemo(v, installed())
			if err := v.Err(); err != nil {
				return misuse{err}
			}
			var enter func(context.Context, func()) error
			if f.step {
				wait, restore, err := demo.Enter(c.InOrStdin())
				if err != nil {
					return misuse{fmt.Errorf("--step: %w", err)}
				}
				defer restore()
				enter = wait
			}
			if err := netmesh.Supported(); err != nil {
				return err
			}
			programs, err := meshup.In(f.bin, f.envoy)
			if err != nil {
				return err
			}
			o := demo.Options{
				Start: demo.OnThisMachine(programs, demoToken), ConfigDir: f.configDir, Keep: f.keep, LogDir: f.logs,
				Out: c.OutOrStdout(), Pace: f.pace,
			}
			o.Size = demo.Terminal(o.Out, f.term)
			o.Color = o.Size != nil && f.noColor == ""
			o.Enter = enter
			if f.verbose {
				o.Log = slog.New(slog.NewTextHandler(c.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelDebug}))
			}
			ctx, resized, stop := demo.Signals(c.Context())
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
	bin, envoy, configDir, logs, term, noColor string
	keep, verbose, step                        bool
	pace                                       time.Duration
}

// readDemo reads the settings; the defaults are paths below tree.
func readDemo(v *settings.Values, tree string) demoFlags {
	return demoFlags{
		bin:       v.TextOr("bin", filepath.Join(tree, "bin")),
		envoy:     v.TextOr("envoy", filepath.Join(tree, ".tools", "envoy")),
		configDir: v.TextOr("configDir", filepath.Join(tree, "samples", "bookshop")),
		logs:      v.Text("logs"), term: v.Text("TERM"), noColor: v.Text("NO_COLOR"), keep: v.Bool("keep"), verbose: v.Bool("verbose"),
		step: v.Bool("step"), pace: v.DurationOr("pace", 0),
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
