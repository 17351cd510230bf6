// Pilot-discovery is the control plane: it reads services and rules, compiles them for every proxy, serves them over xDS and signs certificates.
//
// The exit code is 0 after a signal to end, 2 if the command line or the environment is invalid, and 1
// for any other error.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

// version is set by the linker.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], cli.Environment(os.Environ()), os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main without the process: it returns the exit code.
func run(ctx context.Context, args []string, env map[string]string, stdout, stderr io.Writer) int {
	root := newRoot(args, env)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "pilot-discovery:", err)
	if errors.As(err, new(misuse)) {
		return 2
	}
	return 1
}

// newRoot returns the commands. discovery looks for unknown flags in args.
func newRoot(args []string, env map[string]string) *cobra.Command {
	root := &cobra.Command{
		Use:   "pilot-discovery",
		Short: "The control plane of a mesh",
		Long: `The control plane of a mesh: it reads services and rules, compiles them for every proxy, serves them over
xDS and signs certificates.

Exit codes: 0 after a signal to end, or if a command did what was asked; 2 if the command line or the
environment is invalid; 1 for any other error.`,
		Example:       "  pilot-discovery discovery --configDir ./mesh --stateDir /var/lib/pilothouse",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          usage(cobra.NoArgs),
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cli.Setup(root, misused)
	cli.Version(root, version)
	root.AddCommand(newDiscovery(args, env), newVersion(), newRequest(), cli.Collateral(root))
	return root
}

// misuse is an error in the command line or the environment.
type misuse struct{ error }

// misused marks an error of c's command line as misuse, and says where to read more.
func misused(c *cobra.Command, err error) error {
	return misuse{fmt.Errorf("%w (see %s --help)", err, c.CommandPath())}
}

// usage marks the errors of an argument check as misuse.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return misused(c, cli.Suggest(c, args, err))
		}
		return nil
	}
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: usage(cobra.NoArgs), Example: "  pilot-discovery version",
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(c.OutOrStdout(), version)
			return err
		},
	}
}
