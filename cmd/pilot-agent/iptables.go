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

func (e captureError) ExitCode() int {
	if invalid := (validationError{}); errors.As(e.error, &invalid) {
		return 126
	}
	return 1
}

func (e captureError) Unwrap() error { return e.error }

// iptables is what the command line asks of istio-iptables beyond the options of the rules.
type iptables struct {
	options capture.Options
	getenv  func(string) string

	dryRun, skip, clean bool
	namespace           string
	backend             capture.BackendOptions

	runValidation bool
	probePort     uint16
	probeTimeout  time.Duration
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
if the rules are in force, 1 if they are not, and 126 if they don't do what they should.`,
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
	c.AddCommand(newExplain(getenv))
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
	f.Bool("iptables-trace-logging", false, "accepted, without effect")
	f.Uint16Var(&r.probePort, "iptables-probe-port", 15002, "`port` that validation connects to")
	f.DurationVar(&r.probeTimeout, "probe-timeout", 5*time.Second, "how long each connection of validation may take")
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

func (r *iptables) run(c *cobra.Command) error {
	if err := r.fill(c); err != nil {
		return err
	}
	return r.inNamespace(func() error { return r.act(c) })
}

// inNamespace runs fn in the network namespace that is meant.
func (r *iptables) inNamespace(fn func() error) error {
	if r.namespace != "" {
		return capture.In(r.namespace, fn)
	}
	return fn()
}

// root is where the files of the namespace's processes are: resolv.conf, and the names of users
// and groups. A namespace that is named by anything but a process has those of this one.
func (r *iptables) root() string {
	if process, ok := strings.CutSuffix(r.namespace, "/ns/net"); ok && strings.HasPrefix(process, "/proc/") {
		return process + "/root"
	}
	return "/"
}

// act runs in the network namespace that is meant.
func (r *iptables) act(c *cobra.Command) error {
	if r.clean {
		return r.cleanup(c.OutOrStdout(), c.ErrOrStderr())
	}
	if err := r.backend.Check(); err != nil {
		return err
	}
	facts, err := capture.ReadFacts(r.root())
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
	out := c.ErrOrStderr()
	for _, note := range r.notes(plan) {
		fmt.Fprintln(out, "Note:", note)
	}
	if !r.skip {
		if err := r.apply(out, plan); err != nil {
			return err
		}
		keepWaiting(out)
	}
	if r.runValidation {
		return r.validate(c.Context(), out, facts)
	}
	return nil
}

// notes are the plan's, and one that only the command knows.
func (r *iptables) notes(plan capture.Ruleset) []string {
	if dns := r.options.DNS; r.namespace != "" && r.root() == "/" && dns.Capture && !dns.All {
		return append(plan.Notes, "the resolvers are those of this host's resolv.conf, not the Pod's; --capture-all-dns captures DNS to any address")
	}
	return plan.Notes
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
