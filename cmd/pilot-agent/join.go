package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/agent/machine"
	"github.com/pilothouse/pilothouse/internal/agent/vm"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/join"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

// joinOptions are those of the command join.
type joinOptions struct {
	envoy           string
	noStart, dryRun bool
	timeout         time.Duration
}

// readJoin reads settings.AgentJoin.
func readJoin(v *settings.Values) joinOptions {
	return joinOptions{envoy: v.TextOr("envoy", ""), noStart: v.Bool("no-start"), dryRun: v.Bool("dry-run"), timeout: v.Duration("timeout")}
}

func newJoin(s process) *cobra.Command {
	c := &cobra.Command{
		Use:   "join TOKEN|FILE|FOLDER|-",
		Short: "Have this virtual machine join a mesh: certificate, files, service, capture",
		Long: `Have this virtual machine join a mesh: get its certificate from the CA, write its files, install and start
its service, which captures its connections, and wait until the proxy is ready. Each step is printed.

The argument is what pilotctl vm join-token prints, a file with it, - for standard input, which keeps it out
of the list of processes, or a folder with the files of istioctl x workload entry configure.

The token is used for the first certificate only, and is not written to the disk; later the machine
authenticates by its certificate. If a step fails before the service is started, what was written is undone.
A join may be repeated: a machine with a valid certificate keeps it, and the token is not used.
Without systemd the proxy is started in the background, and a script is written that starts it.`,
		Example: `  pilotctl token join shop/legacy --stateDir state --address mesh.example.com:15012 | ssh root@vm pilot-agent join -
  pilot-agent join ./files-of-istioctl
  pilot-agent join --dry-run token.txt`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			v := cli.Read(c.Flags(), nil, settings.AgentJoin, settings.AgentRoot)
			o, root := readJoin(v), readRoot(v)
			if err := v.Err(); err != nil {
				return err
			}
			member, err := readMembership(c.InOrStdin(), args[0], o.envoy, time.Now())
			if err != nil {
				return err
			}
			m, note, err := openMachine(root, vm.ProxyUser)
			if err != nil {
				return err
			}
			if note != "" {
				member.Notes = append(member.Notes, note)
			}
			j := &joining{m: m, member: member, o: o, out: c.OutOrStdout(), env: s.env}
			return j.run(c.Context())
		},
	}
	cli.Add(c, settings.AgentJoin, settings.AgentRoot)
	return c
}

// readMembership reads the argument of join.
func readMembership(stdin io.Reader, arg, envoy string, now time.Time) (*vm.Membership, error) {
	text, from := arg, ""
	if arg == "-" {
		all, err := io.ReadAll(io.LimitReader(stdin, 2*join.MaxBytes+1))
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		text = string(all)
	} else if fi, err := os.Stat(arg); err == nil && fi.IsDir() {
		return readGiven(arg, envoy)
	} else if err == nil {
		all, err := filewatch.ReadFile(arg, 2*join.MaxBytes)
		if err != nil {
			return nil, err
		}
		text, from = string(all), arg
	} else if looksLikePath(arg) {
		return nil, fmt.Errorf("%w: want a file with what pilotctl token join prints, the folder of istioctl, that text itself, or - for standard input", err)
	}
	b, err := join.Decode(text)
	if err != nil && from != "" {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	if err != nil {
		return nil, err
	}
	if !now.Before(b.Expires) {
		return nil, fmt.Errorf("the join token ended at %s, and it is %s by this machine's clock: get another one (pilotctl vm join-token %s/%s), or set the clock",
			b.Expires.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339), b.Namespace, b.ServiceAccount)
	}
	return vm.FromBundle(b, envoy)
}

// looksLikePath reports whether an argument that names no file was meant to name one: it is neither a join token nor a
// JWT, which may be secret and is not printed.
func looksLikePath(arg string) bool {
	const usual = 200 // bytes of a path that somebody has typed; tokens have more
	return arg != "" && len(arg) <= usual && !join.IsToken(arg) && !strings.HasPrefix(arg, "ey")
}

// readGiven reads the files that Istio's tool wrote.
func readGiven(dir, envoy string) (*vm.Membership, error) {
	files := map[string][]byte{}
	for _, name := range vm.GivenFiles() {
		text, err := filewatch.ReadFile(filepath.Join(dir, name), maxInput)
		switch {
		case err == nil:
			files[name] = text
		case !errors.Is(err, os.ErrNotExist):
			return nil, err
		}
	}
	member, err := vm.FromFiles(files, envoy)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return member, nil
}

// joining is a join that runs.
type joining struct {
	m      *machine.Machine
	member *vm.Membership
	o      joinOptions
	out    io.Writer
	env    map[string]string

	// change has what was written.
	change *machine.Change
	// held is the certificate that the machine has already and keeps; nil for none.
	held *certificate
	// service is how the proxy is started.
	service string
	systemd bool
	program string
	files   []vm.File
	// earlier says that the machine had joined before.
	earlier *vm.Record
}

func (j *joining) done(format string, args ...any) { fmt.Fprintf(j.out, "✓ "+format+"\n", args...) }

// run does all steps.
func (j *joining) run(ctx context.Context) error {
	fmt.Fprintf(j.out, "Joining as %s, CA and discovery at %s\n", j.member.Identity, j.member.CA)
	for _, n := range j.member.Notes {
		fmt.Fprintln(j.out, "! "+n)
	}
	if err := j.prepare(ctx); err != nil {
		return err
	}
	if j.o.dryRun {
		return j.plan()
	}
	lock, err := j.m.Lock()
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	j.change = j.m.Change()
	if err := j.write(ctx); err != nil {
		if undo := j.change.Undo(); undo != nil {
			return fmt.Errorf("%w; what was written could not be undone: %w", err, undo)
		}
		return fmt.Errorf("%w (nothing was changed on this machine)", err)
	}
	if j.o.noStart {
		fmt.Fprintf(j.out, "Nothing was started. To start it: %s\n", j.service)
		return nil
	}
	return j.start(ctx)
}

// prepare finds out whether the machine can join, and what to write. It changes nothing.
func (j *joining) prepare(ctx context.Context) error {
	if os.Geteuid() != 0 && !j.o.dryRun {
		return errors.New("join as root: the rules of capture, the service and the files are root's")
	}
	envoy := j.member.Envoy()
	if fi, err := os.Stat(envoy); err != nil || fi.IsDir() || fi.Mode()&0o111 == 0 {
		return fmt.Errorf("there is no Envoy at %s: install the package, or name it by --envoy", envoy)
	}
	text, err := j.m.Read(vm.RecordFile)
	if err != nil {
		return err
	}
	if text != nil {
		if j.earlier, err = vm.ParseRecord(text); err != nil {
			return fmt.Errorf("%s: %w", j.m.Path(vm.RecordFile), err)
		}
		if j.earlier.Identity != j.member.Identity.SPIFFE() {
			return fmt.Errorf("this machine has joined as %s: pilot-agent leave first", j.earlier.Identity)
		}
	}
	held, err := heldCertificate(j.m)
	if err != nil {
		return fmt.Errorf("%w: remove the file, or leave the mesh first", err)
	}
	if held != nil && held.Identity == j.member.Identity && time.Now().Before(held.NotAfter) {
		j.held = held
	}
	if j.held == nil && j.member.Token == "" {
		return fmt.Errorf("there is no token, and no valid certificate of %s in %s", j.member.Identity, j.m.Path(vm.CertDir))
	}
	ask, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if page, err := askAgent(ask, mesh.StatusPort); err == nil && j.earlier == nil && j.m.PID() == 0 {
		return fmt.Errorf("another agent runs on this machine: process %d, node %s. End it first: its service may be %s", page.Detail.PID, page.Detail.Node, vm.Service)
	}
	return j.chooseService()
}

// chooseService decides how the proxy is started, and the files to write.
func (j *joining) chooseService() error {
	var err error
	if j.program, err = os.Executable(); err != nil {
		return err
	}
	if j.systemd = j.m.HasSystemd(); !j.systemd {
		j.service = j.m.Path(vm.StartScript)
		j.files = j.member.Files("", vm.Script(j.program, j.m.Root))
		return nil
	}
	j.service = "systemctl enable --now " + vm.Service
	unit := vm.Unit(j.program)
	if j.m.Exists(vm.PackagedUnit) {
		unit = ""
	}
	j.files = j.member.Files(unit, "")
	return nil
}

// plan prints what would be done.
func (j *joining) plan() error {
	if j.held != nil {
		fmt.Fprintf(j.out, "would keep   the certificate in %s, valid until %s; the token would not be used\n", j.m.Path(vm.CertDir), j.held.NotAfter.UTC().Format(time.RFC3339))
	} else {
		fmt.Fprintf(j.out, "would ask    the CA at %s for a certificate, and write it to %s\n", j.member.CA, j.m.Path(vm.CertDir))
	}
	for _, f := range j.files {
		fmt.Fprintf(j.out, "would write  %s, mode %04o:\n", j.m.Path(f.Path), f.Mode)
		for line := range strings.Lines(string(f.Text)) {
			fmt.Fprintf(j.out, "    %s\n", strings.TrimRight(line, "\n"))
		}
	}
	for _, h := range j.member.Hosts {
		fmt.Fprintf(j.out, "would add    %s %s to %s\n", h.Address, h.Name, j.m.Path(vm.HostsFile))
	}
	if !j.o.noStart {
		fmt.Fprintf(j.out, "would start  %s, which captures connections, and wait until it is ready\n", j.service)
	}
	return nil
}

// write gets the certificate and writes all files.
func (j *joining) write(ctx context.Context) error {
	if err := j.certify(ctx); err != nil {
		return err
	}
	record := vm.Record{Identity: j.member.Identity.SPIFFE(), CA: j.member.CA}
	if j.earlier != nil {
		record.Written, record.Hosts = j.earlier.Written, j.earlier.Hosts
	}
	for _, f := range j.files {
		if err := j.change.Write(f); err != nil {
			return err
		}
		if !slices.Contains(record.Written, f.Path) {
			record.Written = append(record.Written, f.Path)
		}
		j.done("wrote %s", j.m.Path(f.Path))
	}
	if len(j.member.Hosts) > 0 {
		if err := setHosts(j.change, j.m, j.member.Hosts); err != nil {
			return err
		}
		record.Hosts = true
		j.done("%d names are in %s", len(j.member.Hosts), j.m.Path(vm.HostsFile))
	}
	text, err := json.MarshalIndent(record, "", "  ")
	if err != nil {
		return err
	}
	return j.change.Write(vm.File{Path: vm.RecordFile, Mode: 0o600, Text: append(text, '\n')})
}

// start starts the service and waits until the proxy is ready.
func (j *joining) start(ctx context.Context) error {
	began := time.Now()
	var ended <-chan error
	logs := "journalctl -u " + vm.Service
	if j.systemd {
		for _, args := range [][]string{{"daemon-reload"}, {"enable", vm.Service}, {"restart", vm.Service}} {
			if err := j.m.Systemctl(ctx, args...); err != nil {
				return j.left(err, logs)
			}
		}
		j.done("%s is enabled and started", vm.Service)
	} else {
		if err := j.m.Stop(ctx, stopGrace); err != nil {
			return j.left(err, logs)
		}
		logs = j.m.Path(vm.LogFile)
		var err error
		if ended, err = j.m.Detach(j.program, "start", "--root", j.m.Root); err != nil {
			return j.left(err, logs)
		}
		j.done("started in the background, because there is no systemd; have %s called when the machine starts", j.service)
	}
	if err := j.await(ctx, ended); err != nil {
		return j.left(err, logs)
	}
	j.done("ready after %s: connections of this machine go through the mesh", time.Since(began).Round(100*time.Millisecond))
	fmt.Fprintln(j.out, "pilot-agent status shows the state, pilot-agent doctor what is wrong, and pilot-agent leave undoes this.")
	return nil
}

// await waits until the proxy is ready.
func (j *joining) await(ctx context.Context, ended <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, j.o.timeout)
	defer cancel()
	every := time.NewTicker(200 * time.Millisecond)
	defer every.Stop()
	reason := "it does not answer"
	for {
		if page, err := askAgent(ctx, mesh.StatusPort); err == nil {
			if page.Ready && page.Detail.Node != "" {
				return nil
			}
			reason = page.Reason
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the proxy is not ready: %s", reason)
		case err := <-ended:
			return fmt.Errorf("the proxy has ended: %w\n%s", err, j.m.LogEnd(15))
		case <-every.C:
		}
	}
}

// left adds to an error what is on the machine.
func (j *joining) left(err error, logs string) error {
	return fmt.Errorf("%w\nThe certificate and all files are written, and the proxy goes on trying where it runs. Logs: %s. pilot-agent doctor says what is wrong; pilot-agent join may be repeated, without using the token again; pilot-agent leave undoes all of it", err, logs)
}
