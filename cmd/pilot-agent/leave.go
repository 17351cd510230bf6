package main

import (
	"errors"
	"fmt"
	"io"
	"path"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/agent/machine"
	"github.com/pilothouse/pilothouse/internal/agent/vm"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

// stopGrace is how long the agent may take to drain and to end, as its unit has it.
const stopGrace = 30 * time.Second

// readLeave reads settings.AgentLeave.
func readLeave(v *settings.Values) (dryRun bool) { return v.Bool("dry-run") }

func newLeave(s process) *cobra.Command {
	c := &cobra.Command{
		Use: "leave",
		Example: `  pilot-agent leave --dry-run
  pilot-agent leave`,
		Short: "Take this virtual machine out of the mesh: undo what join did",
		Long: `Take this virtual machine out of the mesh: end the proxy, remove the rules of capture, the service, the
certificate with its key, and the files that join wrote.

sidecar.env, which is the administrator's, logs and packages stay. It may be repeated.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			v := cli.Read(c.Flags(), nil, settings.AgentLeave, settings.AgentRoot)
			dryRun, root := readLeave(v), readRoot(v)
			if err := v.Err(); err != nil {
				return err
			}
			m, _, err := openMachine(root, vm.ProxyUser)
			if err != nil {
				return err
			}
			l := leaving{m: m, out: c.OutOrStdout(), env: s.env}
			if dryRun {
				return l.plan()
			}
			lock, err := m.Lock()
			if err != nil {
				return err
			}
			defer func() { _ = lock.Close() }()
			return l.run(c)
		},
	}
	cli.Add(c, settings.AgentLeave, settings.AgentRoot)
	return c
}

// leaving is a leave that runs.
type leaving struct {
	m   *machine.Machine
	out io.Writer
	env map[string]string
}

// record is what join wrote; nil if the machine has not joined.
func (l *leaving) record() (*vm.Record, error) {
	text, err := l.m.Read(vm.RecordFile)
	if err != nil || text == nil {
		return nil, err
	}
	return vm.ParseRecord(text)
}

// plan prints what would be done.
func (l *leaving) plan() error {
	r, err := l.record()
	if err != nil {
		return err
	}
	if r == nil {
		fmt.Fprintln(l.out, "This machine has not joined a mesh: only rules of capture would be removed.")
		return nil
	}
	if pid := l.m.PID(); pid != 0 {
		fmt.Fprintf(l.out, "would end     process %d, or the service %s\n", pid, vm.Service)
	}
	fmt.Fprintln(l.out, "would remove  the rules of capture")
	for _, f := range r.Written {
		fmt.Fprintf(l.out, "would remove  %s\n", l.m.Path(f))
	}
	fmt.Fprintf(l.out, "would remove  key and certificate in %s, and %s\n", l.m.Path(vm.CertDir), l.m.Path(vm.ProxyDir))
	return nil
}

// run does all steps, also if one fails, and says what is left.
func (l *leaving) run(c *cobra.Command) error {
	r, err := l.record()
	if err != nil {
		return fmt.Errorf("%w: remove %s, and what it names", err, l.m.Path(vm.RecordFile))
	}
	var errs []error
	step := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
			fmt.Fprintf(l.out, "✗ %s: %v\n", what, err)
			return
		}
		fmt.Fprintf(l.out, "✓ %s\n", what)
	}
	if l.m.HasSystemd() && (l.m.Exists(vm.OwnUnit) || l.m.Exists(vm.PackagedUnit)) {
		step("the service "+vm.Service+" is stopped and disabled", l.m.Systemctl(c.Context(), "disable", "--now", vm.Service))
	}
	if pid := l.m.PID(); pid != 0 {
		step(fmt.Sprintf("process %d has ended", pid), l.m.Stop(c.Context(), stopGrace))
	}
	step("the rules of capture are removed", cleanCapture(io.Discard, c.ErrOrStderr(), l.env))
	if r == nil {
		if len(errs) == 0 {
			fmt.Fprintln(l.out, "This machine had not joined a mesh: there is nothing else to undo.")
		}
		return errors.Join(errs...)
	}
	for _, f := range r.Written {
		step(l.m.Path(f)+" is removed", l.m.Remove(f))
	}
	if r.Hosts {
		step("the lines in "+l.m.Path(vm.HostsFile)+" are removed", setHosts(l.m.Change(), l.m, nil))
	}
	step("key and certificate in "+l.m.Path(vm.CertDir)+" are removed", l.m.Empty(vm.CertDir, path.Base(vm.KeyFile), path.Base(vm.ChainFile), path.Base(vm.RootsFile)))
	for _, dir := range []string{vm.ProxyDir, vm.SocketDir} {
		step(l.m.Path(dir)+" is removed", l.m.Empty(dir))
	}
	for _, f := range []string{vm.TokenFile, vm.PendingFile, vm.PIDFile} {
		if l.m.Exists(f) {
			step(l.m.Path(f)+" is removed", l.m.Remove(f))
		}
	}
	if l.m.HasSystemd() {
		step("systemd knows of it", l.m.Systemctl(c.Context(), "daemon-reload"))
	}
	if len(errs) > 0 {
		return fmt.Errorf("some steps failed; pilot-agent leave may be repeated: %w", errors.Join(errs...))
	}
	step(l.m.Path(vm.RecordFile)+" is removed", l.m.Remove(vm.RecordFile))
	for _, kept := range []string{vm.SidecarEnv, vm.LogFile} {
		if l.m.Exists(kept) {
			fmt.Fprintf(l.out, "  %s is kept\n", l.m.Path(kept))
		}
	}
	fmt.Fprintf(l.out, "%s has left the mesh. Its certificate stays valid for those who have copied it until it ends. A WorkloadEntry that pilot-discovery made for it is removed after a grace; others are yours to remove.\n", r.Identity)
	return errors.Join(errs...)
}

// setHosts writes the lines of the hosts to HostsFile, in place of earlier ones.
func setHosts(c *machine.Change, m *machine.Machine, hosts []vm.Host) error {
	text, err := m.Read(vm.HostsFile)
	if err != nil {
		return err
	}
	next := vm.WithHosts(string(text), hosts)
	if next == string(text) {
		return nil
	}
	return c.Write(vm.File{Path: vm.HostsFile, Mode: 0o644, Text: []byte(next)})
}
