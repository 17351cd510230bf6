package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
)

// captureError is an error of istio-iptables. Its exit code is not that of other commands:
// programs look at it. [agent I47]
type captureError struct{ error }

func (captureError) ExitCode() int { return 1 }

func (e captureError) Unwrap() error { return e.error }

// iptables is what the command line asks of istio-iptables beyond the options of the rules.
type iptables struct {
	options capture.Options
	getenv  func(string) string

	dryRun, skip, clean bool
	namespace           string
	binary              string
}

// unsupportedFlag is one that is known but can't be obeyed: only its default is taken.
type unsupportedFlag struct {
	name, env, def, why string
}

// The flags that are refused rather than ignored: traffic would go where nobody expects it.
var unsupportedFlags = []unsupportedFlag{
	{"run-validation", "RUN_VALIDATION", "false", "rules cannot be validated by a connection yet"},
}

// newIptablesCommand makes the command that captures a Pod's traffic; its name is what injection
// templates call. A flag that was not given takes its value from the environment.
func newIptablesCommand(getenv func(string) string) *cobra.Command {
	r := &iptables{options: capture.DefaultOptions(), getenv: getenv}
	c := &cobra.Command{
		Use:   "istio-iptables",
		Short: "Capture the Pod's connections for its proxy, by rules in the kernel",
		Long: `Capture the Pod's connections for its proxy, by nftables rules in the kernel.

No iptables, nft or ip program is needed, but the capability CAP_NET_ADMIN is. The rules are
replaced as a whole: applying them again changes nothing. Each flag has a twin in the
environment, such as ENVOY_PORT for --envoy-port. The exit code is 0 if the rules are in
force and 1 if they are not.`,
		Example: `  pilot-agent istio-iptables -p 15001 -z 15006 -u 1337 -m REDIRECT -i '*' -b '*' -d 15090,15021,15020
  pilot-agent istio-iptables -i '*' -b '*' --dry-run
  pilot-agent istio-iptables --cleanup-only`,
		Args: func(c *cobra.Command, args []string) error {
			if err := cobra.NoArgs(c, args); err != nil {
				return captureError{err}
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error {
			if err := r.run(c); err != nil {
				return captureError{err}
			}
			return nil
		},
	}
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return captureError{err} })
	r.register(c)
	return c
}

func (r *iptables) register(c *cobra.Command) {
	f := c.Flags()
	f.SortFlags = false
	r.options.ProxyUID = "" // known only when asked for: see fill
	for _, o := range r.options.Flags() {
		switch {
		case o.Name == "":
		case o.Bool != nil:
			f.BoolVar(o.Bool, o.Name, *o.Bool, o.Usage)
		default:
			f.StringVarP(o.Text, o.Name, o.Short, *o.Text, o.Usage)
		}
	}
	f.BoolVarP(&r.dryRun, "dry-run", "n", false, "print the rules and apply nothing; also into the file $DRY_RUN_FILE_PATH")
	f.BoolVar(&r.skip, "skip-rule-apply", false, "check the options and apply nothing")
	f.BoolVar(&r.clean, "cleanup-only", false, "take all rules back and apply nothing")
	f.StringVar(&r.namespace, "network-namespace", "", "act in the network namespace of this `path`")
	f.StringVar(&r.binary, "force-iptables-binary", "", "`backend`: nft, the only one there is")
	for _, u := range unsupportedFlags {
		f.Bool(u.name, false, "refused: "+u.why)
	}
	// These have nothing left to decide: rules are always replaced whole, by netlink.
	f.Bool("native-nftables", true, "taken for granted")
	f.Bool("reconcile", true, "taken for granted")
	f.Bool("force-apply", true, "taken for granted")
	f.Bool("cni-mode", false, "accepted, without effect")
	f.Bool("iptables-trace-logging", false, "accepted, without effect")
	f.Uint16("iptables-probe-port", 15002, "accepted; for --run-validation")
	f.Duration("probe-timeout", 5*time.Second, "accepted; for --run-validation")
	_ = f.MarkHidden("iptables-trace-logging")
}

// fill gives what no flag did its value from the environment, then the proxy's user.
func (r *iptables) fill(c *cobra.Command) error {
	for _, o := range r.options.Flags() {
		value := r.getenv(o.Env)
		if value == "" || o.Name != "" && c.Flags().Changed(o.Name) {
			continue
		}
		if o.Bool == nil {
			*o.Text = value
			continue
		}
		b, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("%s=%q: give true or false", o.Env, value)
		}
		*o.Bool = b
	}
	for _, own := range []struct {
		flag string
		to   *bool
	}{{"dry-run", &r.dryRun}, {"skip-rule-apply", &r.skip}, {"cleanup-only", &r.clean}} {
		env := strings.ToUpper(strings.ReplaceAll(own.flag, "-", "_"))
		if value := r.getenv(env); value != "" && !c.Flags().Changed(own.flag) {
			b, err := strconv.ParseBool(value)
			if err != nil {
				return fmt.Errorf("%s=%q: give true or false", env, value)
			}
			*own.to = b
		}
	}
	if r.options.ProxyUID == "" {
		r.options.ProxyUID = proxyUser(r.getenv("ENVOY_USER"))
	}
	return nil
}

// proxyUser is the number of the user that runs the proxy where nobody says. [agent I4]
func proxyUser(name string) string {
	if name == "" {
		name = "istio-proxy"
	}
	if u, err := user.Lookup(name); err == nil {
		return u.Uid
	}
	return capture.DefaultOptions().ProxyUID
}

// refuse names what was asked for and can't be had.
func (r *iptables) refuse(c *cobra.Command) error {
	var errs []error
	for _, u := range unsupportedFlags {
		f := c.Flags().Lookup(u.name)
		value, by := f.Value.String(), "--"+u.name
		if env := r.getenv(u.env); env != "" && !f.Changed {
			value, by = env, u.env
		}
		if b, err := strconv.ParseBool(value); err == nil && u.def == "false" {
			value = strconv.FormatBool(b)
		}
		if value != u.def {
			errs = append(errs, fmt.Errorf("%s=%q: %s; leave it %s", by, value, u.why, orEmpty(u.def)))
		}
	}
	if r.binary != "" && r.binary != "nft" {
		errs = append(errs, fmt.Errorf("--force-iptables-binary=%q: there is only nft; leave it empty", r.binary))
	}
	return errors.Join(errs...)
}

func orEmpty(s string) string {
	if s == "" {
		return "empty"
	}
	return s
}

func (r *iptables) run(c *cobra.Command) error {
	if err := r.fill(c); err != nil {
		return err
	}
	if r.namespace != "" {
		return capture.In(r.namespace, func() error { return r.act(c) })
	}
	return r.act(c)
}

// act runs in the network namespace that is meant.
func (r *iptables) act(c *cobra.Command) error {
	if r.clean {
		if r.dryRun || r.skip {
			return nil
		}
		return capture.Clean()
	}
	if err := r.refuse(c); err != nil {
		return err
	}
	facts, err := capture.ReadFacts("/")
	if err != nil {
		return err
	}
	plan, err := capture.Plan(r.options, facts)
	if err != nil {
		return err
	}
	fmt.Fprintln(c.OutOrStdout(), strings.Join(r.options.Dump(), "\n"))
	if r.dryRun {
		return r.show(c.OutOrStdout(), plan.String())
	}
	if r.skip {
		return nil
	}
	report, err := capture.Apply(plan)
	if err != nil {
		return err
	}
	for _, refused := range report.Refused {
		fmt.Fprintln(c.ErrOrStderr(), "Warning:", refused)
	}
	fmt.Fprintf(c.ErrOrStderr(), "%d rules are in force, after %s\n", report.Rules, report.Took.Round(10*time.Microsecond))
	return nil
}

// show is the dry run.
func (r *iptables) show(out io.Writer, plan string) error {
	fmt.Fprint(out, plan)
	path := r.getenv("DRY_RUN_FILE_PATH")
	if path == "" {
		return nil
	}
	if err := os.WriteFile(path, []byte(plan), 0o644); err != nil {
		return fmt.Errorf("write the rules: %w", err)
	}
	return nil
}
