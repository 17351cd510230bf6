package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/check"
	"github.com/pilothouse/pilothouse/internal/check/gather"
	"github.com/pilothouse/pilothouse/internal/finding"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

func newCheck(f *flags) *cobra.Command {
	c := &cobra.Command{
		Use:   "check",
		Short: "Check whether the control plane works, or can be installed",
		Long: `Check whether an installed control plane works; with --pre, whether it can be installed.

In a cluster the API server, permissions, Istio's resources, other control planes, the Deployment
and Service, the webhooks, certificates, clocks, versions and proxies are checked. Webhooks are
called for objects that are created as a dry run; nothing is stored or changed. With --discovery
only what pilot-discovery says of itself is checked.

RESULT is ✓ for a success, ! for a warning, ✗ for a failure, and ? for what could not be found
out, which counts as a failure. -o json also has the reason of each check. docs/check.md has all checks.

The exit code is 0 with successes and warnings only, else 1, and 2 if the command line is invalid. With --watch it is 0 after Ctrl-C.`,
		Example: "  pilotctl check --pre && helm install mesh pilothouse-1.2.3.tgz -n istio-system --create-namespace\n  pilotctl check --revision canary",
		Args:    usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			pre, watched := readCheck(cli.Read(c.Flags(), nil, settings.PilotctlCheck))
			if watched {
				return f.watch(c, func(out io.Writer) error { return f.check(c, pre, out, out) })
			}
			return f.check(c, pre, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	asking(c, settings.PilotctlCheck)
	return c
}

// check checks everything once.
func (f *flags) check(c *cobra.Command, pre bool, out, errs io.Writer) error {
	p, err := f.place(c)
	if err != nil {
		return err
	}
	o, situation := gather.Options{Namespace: p.namespace, Revision: p.revision, Version: version}, check.After
	r := &replicas{place: p}
	defer func() { r.Close() }()
	switch {
	case p.address != "" && pre:
		return misuse{errors.New("flag --pre: want a cluster: --kubeconfig, KUBECONFIG or ~/.kube/config, and no --discovery")}
	case p.address != "":
		situation = check.Address
		if r, err = f.connect(c); err != nil {
			return err
		}
	default:
		if err := r.load(); err != nil {
			return err
		}
		o.Config, o.Client = r.config, r.client
		if pre {
			situation = check.Before
		} else {
			o.Unlisted = r.findRevision(c)
		}
	}
	for _, k := range r.list {
		name := k.name
		if name == "" {
			name = k.base
		}
		o.Replicas = append(o.Replicas, gather.Replica{Name: name, Base: k.base, Client: k.client, Dial: k.dial})
	}
	return printChecks(out, errs, f.output, f.columns(c), check.Run(gather.Facts(c.Context(), o, situation), situation))
}

// readCheck reads settings.PilotctlCheck: whether the control plane is yet to be installed, and whether it is checked again
// and again.
func readCheck(v *settings.Values) (pre, watched bool) { return v.Bool("pre"), v.Bool("watch") }

// findRevision finds the replicas of the revision that is checked, the default one unless another is named. It returns
// why they are not known; that there are none is known.
func (r *replicas) findRevision(c *cobra.Command) error {
	if r.place.revision == "" {
		r.place.revision = "default"
	}
	err := r.find(c.Context())
	if errors.As(err, new(nowhere)) {
		return nil
	}
	return err
}

// printChecks prints the rows, below each other if their table has more than columns; the error says that some failed.
func printChecks(out, errs io.Writer, form string, columns int, rows []check.Row) error {
	if form != "table" {
		if err := printValue(out, form, rows); err != nil {
			return err
		}
	} else {
		var lines [][]string
		bad := map[check.Result]int{}
		for _, r := range rows {
			lines = append(lines, []string{r.Result.Mark(), r.Name, r.Found, r.Remedy})
			bad[r.Result]++
		}
		if err := printFitting(out, columns,
			func(w io.Writer) error {
				return wholeTable(w, []string{"RESULT", "CHECK", "FOUND", "REMEDY"}, lines)
			},
			func(w io.Writer) error { return checkLines(w, rows, columns) }); err != nil {
			return err
		}
		fmt.Fprintf(errs, "%s: %d ok, %s, %d failed, %d unknown\n", count(len(rows), "check"), bad[check.OK], count(bad[check.Warning], "warning"), bad[check.Failed], bad[check.Unknown])
	}
	if !finding.Passed(rows) {
		return errSaid
	}
	return nil
}
