package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
)

// ownFlag is a flag that says how rules are applied rather than which.
type ownFlag struct {
	// name is the flag's; its twin in the environment is made of it. Key is that of the dump,
	// empty where the drop-in dumps nothing.
	name, short, key, usage string
	yes                     *bool
	text                    *string
}

func (r *iptables) ownFlags() []ownFlag {
	b := &r.backend
	return []ownFlag{
		{"dry-run", "n", "", "print the rules and apply nothing; also into the file $DRY_RUN_FILE_PATH", &r.dryRun, nil},
		{"skip-rule-apply", "", "", "apply nothing: check the options and, with --run-validation, the rules that are there", &r.skip, nil},
		{"run-validation", "", "", "then send connections through the rules; if they don't arrive, the exit code is 126", &r.runValidation, nil},
		{"cleanup-only", "", "CLEANUP_ONLY", "take all rules back, whatever applied them, and apply nothing", &r.clean, nil},
		{"network-namespace", "", "NETWORK_NAMESPACE", "act in the network namespace of this `path`", nil, &r.namespace},
		{"cni-mode", "", "CNI_MODE", "take a lock of the network namespace's own, as there are many in one file system", &b.PodLock, nil},
		{"reconcile", "", "RECONCILE", "replace other rules of capture that are in force, instead of failing", &b.Reconcile, nil},
		{"force-apply", "", "FORCE_APPLY", "replace the rules even if they are in force already", &b.Reapply, nil},
		{"native-nftables", "", "NATIVE_NFTABLES", "use nftables, without any program, even where iptables works", &b.Native, nil},
		{"force-iptables-binary", "", "FORCE_IPTABLES_BINARY", "use this `variant` of iptables: legacy or nft", nil, &b.Force},
	}
}

func (r *iptables) registerOwn(f *pflag.FlagSet) {
	for _, o := range r.ownFlags() {
		if o.yes != nil {
			f.BoolVarP(o.yes, o.name, o.short, false, o.usage)
		} else {
			f.StringVarP(o.text, o.name, o.short, "", o.usage)
		}
	}
}

// fillOwn gives what no flag did its value from the environment.
func (r *iptables) fillOwn(c *cobra.Command) error {
	r.backend.Path = r.getenv("PATH")
	if r.backend.Path == "" {
		r.backend.Path = capture.DefaultPath
	}
	for _, o := range r.ownFlags() {
		env := strings.ToUpper(strings.ReplaceAll(o.name, "-", "_"))
		value := r.getenv(env)
		if value == "" || c.Flags().Changed(o.name) {
			continue
		}
		if o.text != nil {
			*o.text = value
			continue
		}
		b, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("%s=%q: give true or false", env, value)
		}
		*o.yes = b
	}
	return nil
}

func (r *iptables) dumpOwn() (lines []string) {
	for _, o := range r.ownFlags() {
		switch {
		case o.key == "":
		case o.yes != nil:
			lines = append(lines, fmt.Sprintf("%s=%t", o.key, *o.yes))
		default:
			lines = append(lines, o.key+"="+*o.text)
		}
	}
	return lines
}

// apply brings the rules into force and tells people how.
func (r *iptables) apply(out io.Writer, plan capture.Ruleset) error {
	choice, err := capture.Choose(r.backend, plan)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "The rules are applied by %s: %s\n", choice.Name, choice.Why)
	report, err := choice.Apply(plan)
	if err != nil {
		return err
	}
	for _, refused := range report.Refused {
		fmt.Fprintln(out, "Warning:", refused)
	}
	for _, foreign := range capture.Foreign(r.backend) {
		fmt.Fprintln(out, "Warning:", foreign)
	}
	done := "are in force"
	if !report.Changed {
		done = "were in force already"
	}
	fmt.Fprintf(out, "%d rules %s, after %s\n", report.Rules, done, report.Took.Round(10*time.Microsecond))
	return nil
}

// cleanup takes back what any backend applied.
func (r *iptables) cleanup(out, complaints io.Writer) error {
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
		fmt.Fprintln(complaints, "Warning:", unreadable)
	}
	return capture.Nftables{Options: r.backend}.Clean()
}
