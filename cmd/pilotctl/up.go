package main

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/discovery/traffic"
	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
	"github.com/pilothouse/pilothouse/internal/lab/sampleapp"
	"github.com/pilothouse/pilothouse/internal/lab/up"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

func newUp(env map[string]string) *cobra.Command {
	c := &cobra.Command{
		Use:   "up DIR",
		Short: "Run the workloads of a directory of YAML as a mesh on this machine",
		Long: `Run the workloads of a directory of YAML as a mesh on this machine.

Pods, Deployments, StatefulSets, DaemonSets and Jobs become Pods: network namespaces with
capture rules, pilot-agent and Envoy. Services get addresses, and a Gateway that selects
"istio: ingressgateway" or "istio: egressgateway" gets a router if the directory has none; its ports
are opened on this machine's loopback. Kubernetes is not needed.

A container runs its command, if this machine has the program, or what --exec says: as the
user who called sudo, or nobody, never as root, and only after you have confirmed the list.
Any other container is a stand-in: it answers each HTTP request on its ports with its name,
its version and the identity of the caller as JSON, and each line of other ports with itself.

Services have their addresses in Pods with a proxy. A Pod without one resolves their names to Pods, and
names the port of the container: http://web:8080/ for targetPort 8080.

Edits of the directory take effect while it runs. Pods reach each other, not the network of
this machine. Ctrl-C ends everything and leaves nothing. Needs root and Linux.`,
		Example: `  sudo pilotctl up ./mesh
  sudo pilotctl up ./mesh --exec 'web=python3 -m http.server 8080' --publish 8081:web:8080
  sudo pilotctl exec web -- curl -s http://reviews:9080/`,
		Args: usage(cobra.ExactArgs(1)),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(c *cobra.Command, args []string) error {
			v := cli.Read(c.Flags(), env, settings.PilotctlUp)
			f := readUp(v, installed())
			if err := v.Err(); err != nil {
				return misuse{err}
			}
			o, err := f.options(args[0])
			if err != nil {
				return misuse{err}
			}
			if err := netmesh.Supported(); err != nil {
				return err
			}
			if o.Programs, err = f.programs(); err != nil {
				return err
			}
			o.Out, o.Token, o.RunDir = c.OutOrStdout(), demoToken, up.DefaultRunDir
			o.Self, o.AsRoot = called(os.Args[0], f.sudoUID != "")
			if isTerminal(c.InOrStdin()) {
				o.Confirm = up.Ask(c.InOrStdin(), c.OutOrStdout())
			}
			err = up.Run(c.Context(), o)
			if errors.Is(err, up.ErrNotConfirmed) && o.Confirm == nil {
				return misuse{err}
			}
			return err
		},
	}
	cli.Add(c, settings.PilotctlUp)
	return c
}

// called is how a command that can be pasted begins: with the name or the path that this program was called by.
func called(name string, sudo bool) (self, asRoot string) {
	if self = name; strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || strings.ContainsRune("'\"\\$&;()<>|*?`", r) }) {
		self = "pilotctl"
	}
	if asRoot = self; sudo {
		asRoot = "sudo " + self
	}
	return self, asRoot
}

// upFlags are the settings of settings.PilotctlUp.
type upFlags struct {
	bin, envoy              string
	exec, publish           []string
	yes, proxyLogs          bool
	prometheus              *url.URL
	sudoUID, sudoGID, pathV string
}

// readUp reads the settings; the defaults are paths below tree.
func readUp(v *settings.Values, tree string) upFlags {
	var prometheus *url.URL
	if at := v.Text("prometheusURL"); at != "" {
		var err error
		if prometheus, err = traffic.ParseURL(at); err != nil {
			v.Fail("prometheusURL", "%w", err)
		}
	}
	return upFlags{
		prometheus: prometheus,
		bin:        v.TextOr("bin", filepath.Join(tree, "bin")),
		envoy:      v.TextOr("envoy", filepath.Join(tree, ".tools", "envoy")),
		exec:       v.List("exec"), publish: v.List("publish"), yes: v.Bool("yes"), proxyLogs: v.Bool("proxyLogs"),
		sudoUID: v.Text("SUDO_UID"), sudoGID: v.Text("SUDO_GID"), pathV: v.Text("PATH"),
	}
}

// programs finds the programs of the mesh; the stand-in is this program.
func (f upFlags) programs() (meshup.Programs, error) {
	self, err := os.Executable()
	if err != nil {
		return meshup.Programs{}, fmt.Errorf("find this program: %w", err)
	}
	p := meshup.Programs{App: self}
	for _, want := range []struct {
		to     *string
		path   string
		name   string
		remedy string
	}{
		{&p.Agent, filepath.Join(f.bin, "pilot-agent"), "pilot-agent", "run 'make build', or give --bin"},
		{&p.Discovery, filepath.Join(f.bin, "pilot-discovery"), "pilot-discovery", "run 'make build', or give --bin"},
		{&p.Envoy, f.envoy, "envoy", "run 'make tools', or set ENVOY=/path/to/envoy"},
	} {
		*want.to = want.path
		if _, err := os.Stat(want.path); err == nil {
			continue
		}
		if *want.to, err = exec.LookPath(want.name); err != nil {
			return p, fmt.Errorf("find %s at %s or in PATH: %w: %s", want.name, want.path, err, want.remedy)
		}
	}
	return p, nil
}

// options are the options of package up that do not depend on this process.
func (f upFlags) options(dir string) (up.Options, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return up.Options{}, err
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return up.Options{}, fmt.Errorf("run %q: want a directory with YAML files", dir)
	}
	o := up.Options{Dir: dir, Yes: f.yes, ProxyLogs: f.proxyLogs, Exec: map[string][]string{}, Prometheus: f.prometheus}
	for _, text := range joinedCommands(f.exec) {
		key, command, err := up.ParseExec(text)
		if err != nil {
			return o, fmt.Errorf("--exec: %w", err)
		}
		o.Exec[key] = command
	}
	for _, text := range f.publish {
		p, err := parsePublish(text)
		if err != nil {
			return o, fmt.Errorf("--publish: %w", err)
		}
		o.Publish = append(o.Publish, p)
	}
	o.User, err = f.user()
	return o, err
}

// workloadName begins a value of --exec.
var workloadName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*(/[a-z0-9-]+)?=`)

// joinedCommands puts together again what the commas of a command have divided.
func joinedCommands(list []string) []string {
	var out []string
	for _, text := range list {
		if len(out) > 0 && !workloadName.MatchString(text) {
			out[len(out)-1] += "," + text
			continue
		}
		out = append(out, text)
	}
	return out
}

// parsePublish parses [LOCAL:]POD:PORT.
func parsePublish(text string) (up.Publish, error) {
	parts := strings.Split(text, ":")
	bad := fmt.Errorf("parse %q: want POD:PORT or LOCALPORT:POD:PORT", text)
	var p up.Publish
	if len(parts) == 3 {
		n, err := strconv.ParseUint(parts[0], 10, 16)
		if err != nil {
			return p, bad
		}
		p.Local, parts = uint16(n), parts[1:]
	}
	if len(parts) != 2 || parts[0] == "" {
		return p, bad
	}
	n, err := strconv.ParseUint(parts[1], 10, 16)
	if err != nil || n == 0 {
		return p, bad
	}
	p.Pod, p.Port = parts[0], uint16(n)
	return p, nil
}

// user is whom programs run as: who called sudo, else nobody.
func (f upFlags) user() (up.User, error) {
	u, err := user.Lookup("nobody")
	if f.sudoUID != "" && f.sudoUID != "0" {
		u, err = user.LookupId(f.sudoUID)
	}
	if err != nil {
		return up.User{}, fmt.Errorf("find the user that programs run as: %w", err)
	}
	gid := u.Gid
	if f.sudoUID != "" && f.sudoUID != "0" && f.sudoGID != "" {
		gid = f.sudoGID
	}
	uidN, err := strconv.ParseUint(u.Uid, 10, 32)
	gidN, gidErr := strconv.ParseUint(gid, 10, 32)
	if err = errors.Join(err, gidErr); err != nil || uidN == 0 || gidN == 0 {
		return up.User{}, fmt.Errorf("find the user that programs run as: user %s has uid %s and gid %s: want one that is not root", u.Username, u.Uid, gid)
	}
	return up.User{UID: uint32(uidN), GID: uint32(gidN), Name: u.Username, Home: u.HomeDir, Path: f.pathV}, nil
}

// isTerminal reports whether somebody can answer.
func isTerminal(in io.Reader) bool {
	f, ok := in.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// newSampleApp is what stand-ins run.
func newSampleApp() *cobra.Command {
	return &cobra.Command{
		Use: "sample-app", Hidden: true, DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			return sampleapp.Run(c.Context(), args, os.Getenv, c.ErrOrStderr())
		},
	}
}

// meshesOf lists the meshes that run, of a directory if it is not empty.
func meshesOf(runDir, directory string) ([]up.Mesh, error) {
	meshes, err := up.Running(runDir)
	if err != nil {
		return nil, err
	}
	if len(meshes) == 0 {
		return nil, errors.New("no mesh runs on this machine: start one with 'pilotctl up DIR' (this needs root, as it does)")
	}
	if directory == "" {
		return meshes, nil
	}
	path, err := filepath.Abs(directory)
	if err != nil {
		return nil, fmt.Errorf("find the mesh of %s: %w", directory, err)
	}
	var out []up.Mesh
	for _, m := range meshes {
		if m.Dir == path {
			out = append(out, m)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("--mesh %s: no mesh of it runs: want one of %s", directory, strings.Join(directories(meshes), ", "))
	}
	return out, nil
}

// directories are those of meshes, each once.
func directories(meshes []up.Mesh) (out []string) {
	for _, m := range meshes {
		if !slices.Contains(out, m.Dir) {
			out = append(out, m.Dir)
		}
	}
	return out
}

// runningPod finds a Pod of a mesh that "pilotctl up" runs, by name, name.namespace, or the name of its workload.
func runningPod(runDir, directory, name string) (up.Mesh, up.Pod, error) {
	meshes, err := meshesOf(runDir, directory)
	if err != nil {
		return up.Mesh{}, up.Pod{}, err
	}
	type match struct {
		m up.Mesh
		p up.Pod
	}
	var exact, byWorkload []match
	var all []string
	for _, m := range meshes {
		for _, p := range m.Pods {
			all = append(all, p.Key())
			switch name {
			case p.Name, p.Key(), p.Namespace + "/" + p.Name:
				exact = append(exact, match{m, p})
			case p.Workload, p.Workload + "." + p.Namespace:
				byWorkload = append(byWorkload, match{m, p})
			}
		}
	}
	found := exact
	if len(found) == 0 {
		found = byWorkload
	}
	if len(found) == 0 {
		return up.Mesh{}, up.Pod{}, fmt.Errorf("find Pod %q: there is none: want one of %s", name, strings.Join(all, ", "))
	}
	// Which mesh a command runs in must not be a matter of chance.
	var having []up.Mesh
	for _, f := range found {
		if !slices.ContainsFunc(having, func(m up.Mesh) bool { return m.PID == f.m.PID }) {
			having = append(having, f.m)
		}
	}
	switch {
	case len(having) > 1 && len(directories(having)) == 1:
		return up.Mesh{}, up.Pod{}, fmt.Errorf("find Pod %q: %d meshes of %s run and have it: end all of them but one", name, len(having), having[0].Dir)
	case len(having) > 1:
		return up.Mesh{}, up.Pod{}, fmt.Errorf("find Pod %q: several meshes that run have it: want --mesh with one of %s", name, strings.Join(directories(having), ", "))
	case len(exact) > 1:
		return up.Mesh{}, up.Pod{}, fmt.Errorf("find Pod %q: %d have this name: want NAME.NAMESPACE", name, len(exact))
	}
	return found[0].m, found[0].p, nil
}

func newExec() *cobra.Command {
	c := &cobra.Command{
		Use:   "exec [flags] POD -- COMMAND [ARG...]", // Flags after the command are the command's.
		Short: "Run a command in a Pod of a mesh that 'pilotctl up' runs",
		Long: `Run a command in a Pod of a mesh that 'pilotctl up' runs.

POD is the name of a Pod, NAME.NAMESPACE, or the name of a workload, whose first Pod it is. The
command is a program of this machine; it runs in the Pod's network, so that its connections
pass the Pod's proxy, as the user of the Pod's programs. Needs root, as "pilotctl up" does. The exit code is
that of the command.`,
		Example: "  sudo pilotctl exec web -- curl -s http://reviews:9080/",
		Args:    usage(cobra.MinimumNArgs(2)),
		ValidArgsFunction: func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return completePods(up.DefaultRunDir, readExec(cli.Read(c.Flags(), nil, settings.PilotctlExec)), prefix)
		},
		RunE: func(c *cobra.Command, args []string) error {
			command := args[1:]
			if command[0] == "--" {
				command = command[1:]
			}
			if len(command) == 0 {
				return misuse{fmt.Errorf("no command: want %s", c.UseLine())}
			}
			if strings.HasPrefix(command[0], "-") {
				return misuse{fmt.Errorf("%q after the POD: flags of %s are before it: want %s", command[0], c.CommandPath(), c.UseLine())}
			}
			v := cli.Read(c.Flags(), nil, settings.PilotctlExec)
			directory := readExec(v)
			if err := v.Err(); err != nil {
				return misuse{err}
			}
			m, p, err := runningPod(up.DefaultRunDir, directory, args[0])
			if err != nil {
				return err
			}
			return execIn(c, m, p, command)
		},
	}
	c.Flags().SetInterspersed(false)
	cli.Add(c, settings.PilotctlExec)
	return c
}

func readExec(v *settings.Values) (mesh string) { return v.Text("mesh") }

// execIn runs a command in a Pod, with this program's terminal.
func execIn(c *cobra.Command, m up.Mesh, p up.Pod, args []string) error {
	path, err := exec.LookPath(args[0])
	if err != nil {
		return fmt.Errorf("run %q in %s: %w", args[0], p.Key(), err)
	}
	cmd := exec.CommandContext(c.Context(), path, args[1:]...)
	cmd.Args[0] = args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr()
	cmd.Env = append(os.Environ(), "HOME="+m.Home, "POD_NAME="+p.Name, "POD_NAMESPACE="+p.Namespace, "POD_IP="+p.IP)
	err = netmesh.RunAs(m.PID, p.Task, m.UID, m.GID, cmd)
	var code *exec.ExitError
	if errors.As(err, &code) {
		return exitCode{code.ExitCode()}
	}
	if err != nil {
		return fmt.Errorf("run %q in %s: %w", args[0], p.Key(), err)
	}
	return nil
}

func newLogs() *cobra.Command {
	c := &cobra.Command{
		Use:   "logs [POD]",
		Short: "Print the logs of a Pod of a mesh that 'pilotctl up' runs, or of pilot-discovery",
		Long: `Print the logs of a Pod of a mesh that 'pilotctl up' runs, or of pilot-discovery without a POD.

POD is the name of a Pod, NAME.NAMESPACE, or the name of a workload, whose first Pod it is. -c
names one of its containers, or "proxy" for its agent and Envoy. Needs root, as "pilotctl up" does.`,
		Example: "  sudo pilotctl logs web -c proxy -f",
		Args:    usage(cobra.MaximumNArgs(1)),
		ValidArgsFunction: func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			mesh, _, _ := readLogs(cli.Read(c.Flags(), nil, settings.PilotctlLogs))
			return completePods(up.DefaultRunDir, mesh, prefix)
		},
		RunE: func(c *cobra.Command, args []string) error {
			v := cli.Read(c.Flags(), nil, settings.PilotctlLogs)
			mesh, container, follow := readLogs(v)
			if err := v.Err(); err != nil {
				return misuse{err}
			}
			paths, err := logFiles(up.DefaultRunDir, mesh, args, container)
			if err != nil {
				return err
			}
			return up.PrintLogs(c.Context(), c.OutOrStdout(), paths, follow)
		},
	}
	cli.Add(c, settings.PilotctlLogs)
	_ = c.RegisterFlagCompletionFunc("container", func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		mesh, _, _ := readLogs(cli.Read(c.Flags(), nil, settings.PilotctlLogs))
		return completeContainers(up.DefaultRunDir, mesh, args, prefix)
	})
	return c
}

func readLogs(v *settings.Values) (mesh, container string, follow bool) {
	return v.Text("mesh"), v.Text("container"), v.Bool("follow")
}

// logFiles are the logs of a Pod, or those of pilot-discovery.
func logFiles(runDir, mesh string, args []string, container string) ([]string, error) {
	if len(args) == 0 {
		if container != "" {
			return nil, misuse{errors.New("flag --container: want a POD, whose container it is")}
		}
		meshes, err := meshesOf(runDir, mesh)
		var out []string
		for _, m := range meshes {
			out = append(out, filepath.Join(m.LogDir, "pilot-discovery.log"))
		}
		return out, err
	}
	m, p, err := runningPod(runDir, mesh, args[0])
	if err != nil {
		return nil, err
	}
	var out []string
	names := containersOf(p)
	for _, name := range names {
		if container != "" && container != name || container == "" && name == "proxy" && len(names) > 1 {
			continue
		}
		file := name
		if name == "proxy" {
			file = "agent"
		}
		out = append(out, filepath.Join(m.LogDir, p.Key()+"."+file+".log"))
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("find the log of container %q of %s: want one of %s", container, p.Key(), strings.Join(names, ", "))
	}
	return out, nil
}

// exitCode is the error of a command whose program ended with a code.
type exitCode struct{ code int }

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", e.code) }
