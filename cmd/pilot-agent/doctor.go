package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
	"github.com/pilothouse/pilothouse/internal/agent/capture/netns"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	"github.com/pilothouse/pilothouse/internal/agent/doctor"
	"github.com/pilothouse/pilothouse/internal/agent/doctor/gather"
	"github.com/pilothouse/pilothouse/internal/agent/host"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/finding"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/printable"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

// doctorOptions are those of the command doctor.
type doctorOptions struct {
	statusPort      int
	output, capture string
	timeout         time.Duration
}

func readDoctor(v *settings.Values) doctorOptions {
	return doctorOptions{statusPort: v.Int("statusPort"), output: v.Enum("output"), capture: v.Text("capture"), timeout: v.Duration("timeout")}
}

// newDoctor checks everything that can be wrong on this machine. Its exit code is 0 if nothing has failed.
func newDoctor(s process) *cobra.Command {
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check everything that can be wrong on this machine, and say what to do about it",
		Long: `Check what an agent needs on this machine: settings, kernel, capabilities, limits, ports, clock, names,
roots, token, the control plane and its TLS certificate, the agent's own certificate, the rules of
capture, and versions.

The settings are those of the agent that runs, from its process; if none runs, or its process may not
be read, those of this command's environment. Servers are connected to, and no token is sent. Nothing is
changed.

The first column is ✓ for a success, ! for a warning, ✗ for a failure, and ? for what could not be
found out, which counts as a failure. The exit code is 0 with successes and warnings only, else 255.`,
		Example: "  kubectl exec POD -c istio-proxy -- pilot-agent doctor\n  pilot-agent doctor --capture \"-p 15001 -z 15006 -i '*' -b '*'\"",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			v := cli.Read(c.Flags(), nil, settings.AgentDoctor)
			o := readDoctor(v)
			if err := v.Err(); err != nil {
				return err
			}
			rows := doctor.Run(examine(c.Context(), s, o))
			var err error
			if o.output == "json" {
				enc := json.NewEncoder(c.OutOrStdout())
				enc.SetIndent("", "  ")
				err = enc.Encode(rows)
			} else {
				err = printFindings(c.OutOrStdout(), rows)
			}
			if err != nil {
				return fmt.Errorf("print the findings: %w", err)
			}
			if !finding.Passed(rows) {
				return errors.New("some checks failed")
			}
			return nil
		},
	}
	cli.Add(c, settings.AgentDoctor)
	return c
}

// printFindings prints a line for each check, and what to do below it.
func printFindings(w io.Writer, rows []finding.Row) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		_, _ = fmt.Fprintf(out, "%s %s\t%s\n", r.Result.Mark(), r.Name, printable.Escape(r.Found))
		if r.Remedy != "" && r.Result != finding.OK {
			_, _ = fmt.Fprintf(out, "  \t→ %s\n", printable.Escape(r.Remedy))
		}
	}
	return out.Flush()
}

// examine finds out the facts.
func examine(ctx context.Context, s process, o doctorOptions) *doctor.Facts {
	f := &doctor.Facts{Now: time.Now(), Version: version}
	g := gather.Options{Timeout: o.timeout}
	var unread string
	in := input{from: "the environment of this command", env: s.env, role: mesh.Sidecar, flags: map[string]string{}}
	in.dir, _ = os.Getwd() // without it, relative paths are not found, which the checks of files tell
	ask, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	if page, err := askAgent(ask, o.statusPort); err == nil {
		d := &page.Detail
		f.Running = true
		f.Agent = doctor.Agent{
			PID: d.PID, Version: d.Version, Ready: page.Ready, Reason: page.Reason, Wanted: page.Facts.Certificate.Wanted,
			Certificate: page.Facts.Certificate.NotAfter, Problem: page.Facts.Certificate.Problem,
			Connected: d.Connected || !page.Facts.Upstream.Wanted, Upstream: page.Facts.Upstream.Problem,
		}
		g.PIDs = []int{d.PID}
		for _, p := range d.Restarts.Processes {
			g.PIDs = append(g.PIDs, p.PID)
		}
		if read, err := processInput(d.PID); err == nil {
			in = read
		} else {
			unread = err.Error()
		}
		if d.Capture != nil {
			f.Capture.Arguments, f.Capture.Watched = d.Capture.Arguments, true
		}
	}
	g.WorkingDir = in.dir
	agentSpec, err := in.spec()
	if err == nil {
		g.Spec = agentSpec
		f.Settings = finding.Of(doctor.Settings{From: in.from, Warnings: agentSpec.Warnings, Unread: unread}, nil)
	} else {
		f.Settings = finding.Of(doctor.Settings{}, fmt.Errorf("%s: %w", in.from, err))
	}
	gather.Host(ctx, g, f)
	if o.capture != "" {
		f.Capture.Arguments = o.capture
	}
	if f.Capture.Arguments != "" {
		f.Capture.Backend, f.Capture.Differences = drift(f.Capture.Arguments, in.env)
	}
	return f
}

// drift compares the rules of these arguments of istio-iptables with the kernel's.
func drift(args string, env map[string]string) (string, finding.Known[[]string]) {
	fail := func(err error) (string, finding.Known[[]string]) { return "", finding.Of[[]string](nil, err) }
	r, err := captureArguments(args, env)
	if err != nil {
		return fail(err)
	}
	facts, err := netns.ReadFacts("/")
	if err != nil {
		return fail(err)
	}
	rules, err := plan.Build(r.options, facts)
	if err != nil {
		return fail(err)
	}
	choice, err := capture.Choose(r.backend, rules)
	if err != nil {
		return fail(err)
	}
	differences, err := choice.Drift(rules)
	return choice.Name, finding.Of(differences, err)
}

// input is what a Spec is made from.
type input struct {
	// from says whose it is, dir is the working directory.
	from, dir  string
	role       mesh.Role
	flags, env map[string]string
}

// spec makes the Spec, with files relative to the working directory.
func (in input) spec() (*spec.Spec, error) {
	h, err := host.Read()
	if err != nil {
		return nil, err
	}
	return spec.Build(spec.Input{
		Role: in.role, Flags: in.flags, Env: in.env, Host: h, LookupUser: host.LookupUser,
		ReadFile: func(path string) ([]byte, error) {
			if !filepath.IsAbs(path) {
				path = filepath.Join(in.dir, path)
			}
			return filewatch.ReadFile(path, maxInput)
		},
	})
}

// processInput reads the command line, the environment and the working directory of an agent. It needs to be the same
// user, or root.
func processInput(pid int) (input, error) {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	line, err := os.ReadFile(filepath.Join(proc, "cmdline"))
	if err != nil {
		return input{}, err
	}
	environ, err := os.ReadFile(filepath.Join(proc, "environ"))
	if err != nil {
		return input{}, err
	}
	dir, err := os.Readlink(filepath.Join(proc, "cwd"))
	if err != nil {
		return input{}, err
	}
	return readInputOf(pid, dir, split(line), split(environ))
}

// split divides strings that each end with a zero byte.
func split(text []byte) []string {
	var out []string
	for s := range bytes.SplitSeq(bytes.TrimSuffix(text, []byte{0}), []byte{0}) {
		out = append(out, string(s))
	}
	return out
}

// readInputOf reads the arguments of pilot-agent proxy.
func readInputOf(pid int, dir string, args, environ []string) (input, error) {
	at := slices.Index(args, "proxy")
	if at < 0 {
		return input{}, fmt.Errorf("process %d is not pilot-agent proxy", pid)
	}
	f := pflag.NewFlagSet("proxy", pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.ParseErrorsAllowlist.UnknownFlags = true
	cli.Flags(f, slices.Concat(settings.AgentProxy, settings.AgentLog))
	if err := f.Parse(slices.Concat(args[1:at], args[at+1:])); err != nil {
		return input{}, fmt.Errorf("read the arguments of process %d: %w", pid, err)
	}
	in := input{from: fmt.Sprintf("those of process %d", pid), dir: dir, role: mesh.Sidecar, flags: cli.Given(f), env: cli.Environment(environ)}
	if role := f.Arg(0); role != "" && !strings.HasPrefix(role, "-") {
		in.role = mesh.Role(role)
	}
	return in, nil
}
