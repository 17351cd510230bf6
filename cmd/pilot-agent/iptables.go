package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
	"github.com/pilothouse/pilothouse/internal/agent/capture/netns"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

// captureError is an error of istio-iptables. Its exit code is not that of other commands:
// programs test it. [agent I47]
type captureError struct{ error }

func (e captureError) ExitCode() int {
	if invalid := (validationError{}); errors.As(e.error, &invalid) {
		return 126
	}
	return 1
}

func (e captureError) Unwrap() error { return e.error }

// newIptablesCommand makes the command that captures a Pod's traffic; injection templates call it by
// that name.
func newIptablesCommand(env map[string]string) *cobra.Command {
	r := &captureCommand{env: env}
	c := &cobra.Command{
		Use:   "istio-iptables",
		Short: "Capture the Pod's connections for its proxy, by rules in the kernel",
		Long: `Capture the Pod's connections for its proxy, by rules in the kernel.

The rules are applied by iptables where its programs exist and work, by the variant (legacy or nft)
that is in use, and else by nftables, which needs no program; standard error says which. The
capability CAP_NET_ADMIN is needed. Applying the same rules again changes nothing. A flag that is
not given is read from the environment, from the first of the variables in brackets that is set.
The exit code is 0 if the rules are in force, 1 if they are not, and 126 if they are and don't
capture as planned.`,
		Example: `  pilot-agent istio-iptables -p 15001 -z 15006 -u 1337 -m REDIRECT -i '*' -b '*' -d 15090,15021,15020
  pilot-agent istio-iptables -i '*' -b '*' --dry-run
  pilot-agent istio-iptables --cleanup-only`,
		RunE: func(c *cobra.Command, _ []string) error { return r.run(c) },
	}
	ofCapture(c)
	cli.Add(c, settings.AgentIptables)
	c.AddCommand(newExplain(env))
	return c
}

// ofCapture gives a command without arguments the exit codes of istio-iptables.
func ofCapture(c *cobra.Command) {
	run := c.RunE
	c.Args = func(c *cobra.Command, args []string) error {
		if err := cobra.NoArgs(c, args); err != nil {
			return captureError{err}
		}
		return nil
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := run(c, args); err != nil {
			return captureError{err}
		}
		return nil
	}
	cli.Setup(c, func(_ *cobra.Command, err error) error { return captureError{err} })
}

// newCleanIptables makes the command that scripts of older releases call, with any of the flags of istio-iptables. [agent C7]
func newCleanIptables(s process) *cobra.Command {
	r := &captureCommand{env: s.env}
	c := &cobra.Command{
		Use:   "istio-clean-iptables",
		Short: "Remove the capture of the Pod's connections",
		Long: `Remove the capture of the Pod's connections: all rules that istio-iptables applied, by iptables or nftables, whatever
their options were. Nothing is removed where there is none. The capability CAP_NET_ADMIN is needed.

It is what istio-iptables --cleanup-only does. The flags by which rules are applied are taken, as scripts of older
releases give them, and have no effect; standard error says so. The exit code is 0 if no rule of capture is left, else 1.`,
		Example: `  pilot-agent istio-clean-iptables
  pilot-agent istio-clean-iptables --dry-run
  pilot-agent istio-clean-iptables --network-namespace /proc/4711/ns/net`,
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE: func(c *cobra.Command, _ []string) error {
			v := cli.Read(c.Flags(), r.env, settings.AgentCleanIptables)
			r.readClean(v)
			if err := v.Err(); err != nil {
				return err
			}
			c.Flags().Visit(func(f *pflag.Flag) {
				if f.Hidden {
					r.notes = append(r.notes, "flag --"+f.Name+" has no effect: rules of capture are removed whatever they are")
				}
			})
			r.notes = append(r.notes, cli.UnknownFlags(s.args, c.Flags())...)
			return r.inNamespace(func() error { return r.act(c) })
		},
	}
	ofCapture(c)
	cli.Add(c, settings.AgentCleanIptables)
	for _, setting := range settings.AgentIptables {
		if setting.Flag != "" && c.Flags().Lookup(setting.Flag) == nil {
			cli.Flags(c.Flags(), settings.Table{setting})
			c.Flags().Lookup(setting.Flag).Hidden = true
		}
	}
	return c
}

// proxyUser returns the ID of the user that runs the proxy, or 1337 if there is no such user. [agent I4]
func proxyUser(name string) string {
	if u, err := user.Lookup(name); err == nil {
		return u.Uid
	}
	return "1337"
}

func (r *captureCommand) run(c *cobra.Command) error {
	if err := r.fill(c.Flags()); err != nil {
		return err
	}
	return r.inNamespace(func() error { return r.act(c) })
}

// inNamespace runs fn in the network namespace of the options.
func (r *captureCommand) inNamespace(fn func() error) error {
	if r.namespace != "" {
		return netns.Run(r.namespace, fn)
	}
	return fn()
}

// root is the root directory of the namespace's processes, with their resolv.conf and the names of
// users and groups. For a namespace that is not given as that of a process, it is this process's.
func (r *captureCommand) root() string {
	if dir, ok := strings.CutSuffix(r.namespace, "/ns/net"); ok && strings.HasPrefix(dir, "/proc/") {
		return dir + "/root"
	}
	return "/"
}

// act runs in the network namespace of the options.
func (r *captureCommand) act(c *cobra.Command) error {
	for _, note := range r.notes {
		fmt.Fprintln(c.ErrOrStderr(), "Note:", note)
	}
	if r.clean {
		return r.cleanup(c.OutOrStdout(), c.ErrOrStderr())
	}
	if err := r.backend.Check(); err != nil {
		return err
	}
	facts, err := netns.ReadFacts(r.root())
	if err != nil {
		return err
	}
	rules, err := plan.Build(r.options, facts)
	if err != nil {
		return err
	}
	fmt.Fprint(c.OutOrStdout(), r.printed())
	if r.dryRun {
		return r.show(c.OutOrStdout(), capture.DryRun(r.backend, rules))
	}
	out := c.ErrOrStderr()
	for _, note := range r.planNotes(rules) {
		fmt.Fprintln(out, "Note:", note)
	}
	if !r.skip {
		if err := r.apply(out, rules); err != nil {
			return err
		}
		enableMigration(out)
	}
	if r.runValidation {
		return r.validate(c.Context(), out, facts)
	}
	return nil
}

// planNotes are the plan's notes, and those that only the command knows.
func (r *captureCommand) planNotes(rules plan.Ruleset) []string {
	notes, dns := rules.Notes, r.options.DNS
	if r.namespace != "" && r.root() == "/" && dns.Capture && !dns.All {
		notes = append(notes, "the resolvers are those of this host's resolv.conf, not the Pod's; --capture-all-dns captures DNS to any address")
	}
	if told, _ := strconv.ParseBool(r.env["ISTIO_META_DNS_CAPTURE"]); dns.Capture && !told {
		// Often the agent is another container, whose environment can't be seen from here.
		notes = append(notes, "DNS is captured for pilot-agent proxy, which answers only where its own environment or proxyMetadata says ISTIO_META_DNS_CAPTURE=true; without that the Pod finds no names")
	}
	return notes
}

// show prints the text of a dry run, and writes it to a file if one is given.
func (r *captureCommand) show(out io.Writer, rules string) error {
	fmt.Fprint(out, rules)
	if r.dryRunFile == "" {
		return nil
	}
	if err := os.WriteFile(r.dryRunFile, []byte(rules), 0o644); err != nil {
		return fmt.Errorf("write the rules: %w", err)
	}
	return nil
}

// apply puts the rules into force and prints how.
func (r *captureCommand) apply(out io.Writer, rules plan.Ruleset) error {
	choice, err := capture.Choose(r.backend, rules)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "The rules are applied by %s: %s\n", choice.Name, choice.Why)
	report, err := choice.Apply(rules)
	if err != nil {
		return err
	}
	for _, refused := range report.Refused {
		fmt.Fprintln(out, "Warning:", refused)
	}
	for _, warning := range capture.Warnings(r.backend) {
		fmt.Fprintln(out, "Warning:", warning)
	}
	done := "are in force"
	if !report.Changed {
		done = "were in force already"
	}
	fmt.Fprintf(out, "%d rules %s, after %s\n", report.Rules, done, report.Took.Round(10*time.Microsecond))
	return nil
}

// enableMigration has the kernel keep the connections that wait for an Envoy with fewer workers than
// the one it takes over from (Linux 5.14). That is not part of the capture, but capture has the
// privilege: if it is not set, the agent keeps the number of workers.
func enableMigration(out io.Writer) {
	path := "/proc/sys/" + strings.ReplaceAll(plan.MigrateRequests, ".", "/")
	if err := os.WriteFile(path, []byte("1"), 0o644); err != nil {
		fmt.Fprintln(out, "Note: the number of Envoy's workers cannot be lowered by a hot restart here:", err)
	}
}

// cleanup removes what any backend applied.
func (r *captureCommand) cleanup(out, warnings io.Writer) error {
	if err := r.backend.Check(); err != nil {
		return err
	}
	if r.dryRun {
		return r.show(out, capture.CleanText(r.backend))
	}
	if r.skip {
		return nil
	}
	for _, unreadable := range capture.Unreadable(r.backend) {
		fmt.Fprintln(warnings, "Warning:", unreadable)
	}
	return capture.Nftables{Options: r.backend}.Clean()
}

// validationError says that rules are not in force as planned. A controller that repairs Pods
// tests for its exit code. [agent I46, I47]
type validationError struct{ error }

func (e validationError) Unwrap() error { return e.error }

// validate sends connections through the rules.
func (r *captureCommand) validate(ctx context.Context, out io.Writer, facts plan.Facts) error {
	probes, err := plan.Probes(r.options, facts, r.probePort)
	if err != nil {
		return err
	}
	arrived, skipped, err := capture.Validation{Probes: probes, Timeout: r.probeTimeout}.Run(ctx)
	for _, reason := range skipped {
		fmt.Fprintln(out, "Not validated:", reason)
	}
	if err == nil && arrived == 0 && len(probes) > 0 {
		err = errors.New("none of the connections could be made")
	}
	if err != nil {
		return validationError{fmt.Errorf(`validate the capture of traffic: %w
The rules in this network namespace do not do what the options say. If a CNI plugin was to apply
them, it did not, or did it before another plugin replaced them: delete the Pod, or let the
plugin's repair controller do so, which looks for exit code 126`, err)}
	}
	if len(probes) == 0 {
		fmt.Fprintln(out, "There is nothing to validate: the options capture no connection that can be tried")
		return nil
	}
	fmt.Fprintf(out, "%d of %d connections arrived where they should\n", arrived, len(probes))
	return nil
}
