package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/agent/host"
	"github.com/pilothouse/pilothouse/internal/agent/machine"
	"github.com/pilothouse/pilothouse/internal/agent/vm"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

// readRoot reads settings.AgentRoot.
func readRoot(v *settings.Values) string { return v.Text("root") }

// newStart is what the service of a virtual machine runs: istio-start.sh. [agent V3]
func newStart(s process) *cobra.Command {
	c := &cobra.Command{
		Use:   "start [run|init|clean] [-- ARGUMENTS]",
		Short: "Start the proxy of a virtual machine, as its service does",
		Long: `Start the proxy of a virtual machine, as its service does.

The environment is read from /var/lib/istio/envoy/sidecar.env and, over it, cluster.env. Without an argument
the rules of capture are replaced, and then this process becomes pilot-agent proxy, as the user istio-proxy.

  run    start the proxy only
  init   replace the rules of capture only; what follows -- are arguments of istio-iptables
  clean  remove the rules of capture

With ISTIO_CUSTOM_IP_TABLES=true the rules are left alone. EXEC_USER is another user; with
ISTIO_INBOUND_INTERCEPTION_MODE=TPROXY the proxy stays root. ISTIO_AGENT_FLAGS are further flags of the proxy.`,
		Example: "  pilot-agent start\n  pilot-agent start init -- -i '*' -b 8080",
		RunE: func(c *cobra.Command, args []string) error {
			v := cli.Read(c.Flags(), nil, settings.AgentStart, settings.AgentRoot)
			root := readRoot(v)
			if err := v.Err(); err != nil {
				return err
			}
			verb, rest := "", args
			if len(args) > 0 && c.ArgsLenAtDash() != 0 {
				verb, rest = args[0], args[1:]
			}
			return start(c, s, root, verb, rest)
		},
	}
	cli.Add(c, settings.AgentStart, settings.AgentRoot)
	return c
}

// openMachine is the machine with its files below root, and the proxy's user by its name; by 1337 if there is no such user.
func openMachine(root, user string) (*machine.Machine, string, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, "", err
	}
	m := &machine.Machine{Root: root}
	m.UID, m.GID, err = host.LookupUser(user)
	if errors.Is(err, fs.ErrNotExist) {
		m.UID, m.GID = mesh.ProxyUID, mesh.ProxyUID
		return m, fmt.Sprintf("there is no user %s: the proxy runs as user and group %d", user, mesh.ProxyUID), nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("find the user %s: %w", user, err)
	}
	return m, "", nil
}

// machineEnv is the environment that the files of a machine and this process have; the files count. [agent V3]
func machineEnv(m *machine.Machine, own map[string]string) (map[string]string, error) {
	env := maps.Clone(own)
	if env == nil {
		env = map[string]string{}
	}
	found := false
	for _, file := range []string{vm.SidecarEnv, vm.ClusterEnv} {
		text, err := m.Read(file)
		if err != nil {
			return nil, err
		}
		found = found || file == vm.ClusterEnv && text != nil
		more, err := vm.ParseEnv(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.Path(file), err)
		}
		maps.Copy(env, more)
	}
	if !found {
		return nil, fmt.Errorf("there is no %s: this machine has not joined a mesh (pilot-agent join)", m.Path(vm.ClusterEnv))
	}
	return env, nil
}

// start starts the proxy. It returns only if that fails, or if there is nothing to start.
func start(c *cobra.Command, s process, root, verb string, args []string) error {
	m := &machine.Machine{Root: root}
	if verb == "clean" {
		return cleanCapture(c.OutOrStdout(), c.ErrOrStderr(), s.env)
	}
	env, err := machineEnv(m, s.env)
	if err != nil {
		return err
	}
	p, notes, err := vm.Start(env, verb, args)
	if err != nil {
		return err
	}
	m, note, err := openMachine(root, p.User)
	if err != nil {
		return err
	}
	if note != "" {
		notes = append(notes, note)
	}
	for _, n := range notes {
		fmt.Fprintln(c.ErrOrStderr(), "Note:", n)
	}
	if verb != "init" {
		if err := hasCredential(m, time.Now()); err != nil {
			return err
		}
	}
	if p.Capture {
		if err := cleanCapture(io.Discard, c.ErrOrStderr(), p.Env); err != nil {
			return err
		}
		if err := applyCapture(c, p); err != nil {
			return err
		}
	}
	if verb == "init" {
		return nil
	}
	return becomeProxy(m, p)
}

// applyCapture puts the rules of capture in force.
func applyCapture(c *cobra.Command, p vm.Proxy) error {
	capture := newIptablesCommand(p.Env)
	capture.SetArgs(p.CaptureArgs)
	capture.SetOut(c.OutOrStdout())
	capture.SetErr(c.ErrOrStderr())
	capture.SilenceErrors, capture.SilenceUsage = true, true
	return capture.ExecuteContext(c.Context())
}

// cleanCapture removes the rules of capture.
func cleanCapture(out, errors io.Writer, env map[string]string) error {
	c := newCleanIptables(process{env: env})
	c.SetArgs(nil)
	c.SetArgs([]string{})
	c.SetOut(out)
	c.SetErr(errors)
	c.SilenceErrors, c.SilenceUsage = true, true
	return c.Execute()
}

// becomeProxy replaces this process by pilot-agent proxy, as the proxy's user.
func becomeProxy(m *machine.Machine, p vm.Proxy) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	// Folders in memory are lost when the machine restarts.
	if err := m.Dirs(filepath.Dir(vm.SocketDir), vm.SocketDir, filepath.Dir(vm.TokenFile), vm.ProxyDir, vm.CertDir); err != nil {
		return fmt.Errorf("make the folders of the proxy: %w", err)
	}
	if err := m.NotePID(); err != nil {
		return fmt.Errorf("write %s: %w", m.Path(vm.PIDFile), err)
	}
	if err := os.Chdir(m.Root); err != nil {
		return err
	}
	uid := m.UID
	if p.Root {
		uid = 0
	}
	if err := machine.Become(uid, m.GID); err != nil {
		return fmt.Errorf("become the user %s: %w", p.User, err)
	}
	var env []string
	for _, name := range slices.Sorted(maps.Keys(p.Env)) {
		env = append(env, name+"="+p.Env[name])
	}
	return fmt.Errorf("start %s: %w", program, syscall.Exec(program, append([]string{program}, p.Args...), env))
}

// hasCredential returns an error if the machine has nothing with which it could get a certificate. [agent V6]
func hasCredential(m *machine.Machine, now time.Time) error {
	if m.Exists(vm.TokenFile) {
		return nil // whether it is valid is for the CA to say
	}
	leaf, err := heldCertificate(m)
	if err != nil {
		return err
	}
	remedy := "get a join token (pilotctl vm join-token) and give it to pilot-agent join on this machine"
	switch {
	case leaf == nil:
		return fmt.Errorf("this machine has neither a certificate in %s nor a token: %s", m.Path(vm.CertDir), remedy)
	case !now.Before(leaf.NotAfter):
		return fmt.Errorf("the certificate of this machine ended at %s, and it is %s: the machine was off, or could not reach the CA, for longer than its certificate was valid, so the CA does not know it any more. The remedy: %s",
			leaf.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339), remedy)
	}
	return nil
}

// heldCertificate is the certificate of the machine; nil if it has none.
func heldCertificate(m *machine.Machine) (*certificate, error) {
	text, err := m.Read(vm.ChainFile)
	if text == nil || err != nil {
		return nil, err
	}
	certs, err := pki.ParseBundle(text)
	if err != nil {
		return nil, fmt.Errorf("read the certificate of this machine %s: %w", m.Path(vm.ChainFile), err)
	}
	id, err := pki.IdentityOf(certs[0])
	if err != nil {
		return nil, fmt.Errorf("read the certificate of this machine %s: %w", m.Path(vm.ChainFile), err)
	}
	return &certificate{Identity: id, NotAfter: pki.ValidityOf(certs).NotAfter}, nil
}

// certificate is what is known of the machine's certificate.
type certificate struct {
	Identity mesh.Identity
	NotAfter time.Time
}
