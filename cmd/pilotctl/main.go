// Pilotctl is for people: run a mesh on this machine, see who is in sync, read what a proxy was given.
//
// Results go to standard output, everything else to standard error. It ends with 0 when
// what was asked for was done, with 1 when it was not, and with 2 when it was asked in a
// way that it does not understand.
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
)

// version is set by the linker.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main without the process: it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if !errors.Is(err, errSaid) {
		fmt.Fprintln(stderr, "pilotctl:", err)
	}
	if errors.As(err, new(misuse)) {
		return 2
	}
	return 1
}

// errSaid ends a command whose output already told what is wrong.
var errSaid = errors.New("see above")

// misuse is an error of the command line's.
type misuse struct{ error }

// flags are those that several commands share.
type flags struct {
	discovery string
	output    string
}

func newRoot() *cobra.Command {
	f := &flags{}
	root := &cobra.Command{
		Use:           "pilotctl",
		Short:         "Look into a mesh, or run one on this machine",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          usage(cobra.NoArgs),
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return checkOutput(f.output)
		},
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return misuse{fmt.Errorf("%w (see %s --help)", err, c.CommandPath())}
	})
	root.PersistentFlags().StringVar(&f.discovery, "discovery", "http://127.0.0.1:8080", "`URL` of pilot-discovery's debug port")
	root.PersistentFlags().StringVarP(&f.output, "output", "o", "table", "`form` of the result: table, json or yaml")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
	root.AddCommand(newDemo(), newToken(), newProxies(f), newConfig(f), newObjects(f), newVersion(f))
	return root
}

// usage marks the errors of an argument check as misuse.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return misuse{fmt.Errorf("%w (see %s --help)", err, c.CommandPath())}
		}
		return nil
	}
}

func newVersion(f *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print pilotctl's version",
		Args:  usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if f.output == "table" {
				_, err := fmt.Fprintln(c.OutOrStdout(), version)
				return err
			}
			return printValue(c.OutOrStdout(), f.output, map[string]string{"version": version})
		},
	}
}
