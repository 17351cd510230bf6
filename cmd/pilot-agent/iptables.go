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
	backend             capture.BackendOptions
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
		Long: `Capture the Pod's connections for its proxy, by rules in the kernel.

The rules are those of iptables where its programs are there and work, legacy or nft, whichever
is in use, and else of nftables, which needs no program; what was taken is said on standard
error. The capability CAP_NET_ADMIN is needed. Applying the same rules again changes nothing.
Each flag has a twin in the environment, such as ENVOY_PORT for --envoy-port. The exit code is 0
if the rules are in force and 1 if they are not.`,
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
	r.registerOwn(f)
	for _, u := range unsupportedFlags {
		f.Bool(u.name, false, "refused: "+u.why)
	}
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
	if err := r.fillOwn(c); err != nil {
		return err
	}
	if r.options.ProxyUID == "" {
		r.options.ProxyUID = proxyUser(r.getenv("ENVOY_USER"))
	}
	if r.options.ProxyGID == "" {
		r.options.ProxyGID = r.options.ProxyUID // said here so that it is dumped
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
	return errors.Join(append(errs, r.backend.Check())...)
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
		return capture.Nftables{Options: r.backend}.Clean()
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
	fmt.Fprintln(c.OutOrStdout(), strings.Join(append(r.options.Dump(), r.dumpOwn()...), "\n"))
	if r.dryRun {
		return r.show(c.OutOrStdout(), capture.Text(r.backend, plan))
	}
	if r.skip {
		return nil
	}
	return r.apply(c.ErrOrStderr(), plan)
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
