// Pilotctl is the command-line client: it runs a mesh on this machine, and shows which proxies are in sync and their configuration.
//
// Results go to standard output, everything else to standard error. The exit code is 0 on success, 2 if
// the command line is invalid, and 1 for any other error. That of "pilotctl exec" is the command's, and that of "pilotctl explain"
// says what was decided.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/settings"
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
	root := newRoot(env)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	var ended exitCode
	if errors.As(err, &ended) {
		return ended.code
	}
	if !errors.Is(err, errSaid) {
		fmt.Fprintln(stderr, "pilotctl:", err)
	}
	if errors.As(err, new(misuse)) {
		return 2
	}
	return 1
}

// errSaid is the error of a command whose output has described it.
var errSaid = errors.New("see above")

// misuse is an error in the command line.
type misuse struct{ error }

// flags are those that all commands share: settings.Pilotctl.
type flags struct {
	// discovery is an address that was given; empty without one. Asked is set if the command line gave it.
	discovery string
	asked     bool
	// output is table, json or yaml; a table is fitted to a terminal unless wide is set.
	output string
	wide   bool
	env    map[string]string
}

// read reads the flags that c was given.
func (f *flags) read(c *cobra.Command) error {
	v := cli.Read(c.Flags(), f.env, settings.Pilotctl)
	f.set(v)
	f.asked = c.Flags().Changed("discovery")
	if err := misused(v.Err()); err != nil {
		return err
	}
	if f.asked && c.Annotations[asks] == "" {
		return misuse{fmt.Errorf("flag --discovery: %s does not ask pilot-discovery: want it without --discovery", c.CommandPath())}
	}
	if form := v.Enum("output"); form != "table" && c.Annotations[onlyText] != "" {
		return misuse{fmt.Errorf("flag --output: %s prints %s: want it without -o %s", c.CommandPath(), c.Annotations[onlyText], form)}
	}
	return nil
}

// asks is the annotation of commands that ask pilot-discovery; all others refuse --discovery.
const asks = "asks pilot-discovery"

// asking gives a command that asks pilot-discovery its tables, and the flags that say where in a cluster that is.
func asking(c *cobra.Command, tables ...settings.Table) {
	cli.Add(c, append(tables, settings.PilotctlCluster)...)
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[asks] = "yes"
}

// onlyText is the annotation of commands whose result has one form; its value is what they print.
const onlyText = "only text"

// inOneForm marks a command whose result has one form, so that -o is refused.
func inOneForm(what string, c *cobra.Command) *cobra.Command {
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[onlyText] = what
	return c
}

func (f *flags) set(v *settings.Values) {
	f.discovery, f.output = v.TextOr("discovery", ""), v.Enum("output")
	if f.wide = f.output == "wide"; f.wide {
		f.output = "table"
	}
}

// misused marks an error of settings as misuse.
func misused(err error) error {
	if err == nil {
		return nil
	}
	return misuse{err}
}

func newRoot(env map[string]string) *cobra.Command {
	f := &flags{env: env}
	root := &cobra.Command{
		Use:   "pilotctl",
		Short: "Inspect a mesh, or run one on this machine",
		Long: `Inspect a mesh, or run one on this machine.

Results go to standard output, everything else to standard error.

Exit codes: 0 on success; 2 if the command line is invalid; 1 for any other error, for failed checks, and if a
replica did not answer. objects --exit-code ends with 3 if there are errors and 4 if there are warnings
only; explain ends with 0 if a request is allowed, 1 if it is denied, 3 if that depends and 4 if it is not
known; exec ends with the code of its command.`,
		Example: `  sudo pilotctl up ./mesh
  pilotctl check
  pilotctl proxies
  pilotctl objects
  pilotctl explain shop/web-1 http://reviews:9080/`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		Args:              usage(cobra.NoArgs),
		RunE:              func(c *cobra.Command, _ []string) error { return c.Help() },
		PersistentPreRunE: func(c *cobra.Command, _ []string) error { return f.read(c) },
	}
	cli.Setup(root, func(c *cobra.Command, err error) error {
		return misuse{fmt.Errorf("%w (see %s --help)", err, c.CommandPath())}
	})
	cli.Version(root, version)
	cli.AddToAll(root, settings.Pilotctl)
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(settings.Pilotctl.Values("output"), cobra.ShellCompDirectiveNoFileComp))
	root.AddCommand(inOneForm("a report", newDemo(env)), inOneForm("logs", newUp(env)), inOneForm("what the program prints", newExec()), inOneForm("logs", newLogs()), newSampleApp(), inOneForm("help", newToken(env)), inOneForm("help", newVM(env)), newProxies(f), newConfig(f), newExplain(f), newObjects(f), newWait(f), newCheck(f), inOneForm("objects in the form of the input", newInject(env)), newValidate(f), inOneForm("help", newCA(f)), inOneForm("a Secret as YAML for kubectl", newRemoteSecret(f)), newVersion(f), inOneForm("files", cli.Collateral(root)))
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			inOneForm("help", c).RunE = func(c *cobra.Command, _ []string) error { return c.Help() } // so that its flags are read
			for _, shell := range c.Commands() {
				inOneForm("a script for the shell", shell)
			}
		}
	}
	return inOneForm("help, or the version", root)
}

// usage marks the errors of an argument check as misuse.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			if strings.Contains(err.Error(), "arg(s)") { // how many the library wants, not which
				err = fmt.Errorf("%s after %s: want %s", count(len(args), "argument"), c.CommandPath(), c.Use)
			}
			return misuse{fmt.Errorf("%w (see %s --help)", cli.Suggest(c, args, err), c.CommandPath())}
		}
		return nil
	}
}

func newVersion(f *flags) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print pilotctl's version",
		Example: "  pilotctl version\n  pilotctl version -o json",
		Args:    usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if f.output == "table" {
				_, err := fmt.Fprintln(c.OutOrStdout(), version)
				return err
			}
			return printValue(c.OutOrStdout(), f.output, map[string]string{"version": version})
		},
	}
}
