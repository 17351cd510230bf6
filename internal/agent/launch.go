package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/agent/bootstrap"
	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/node"
	"github.com/pilothouse/pilothouse/internal/agent/supervise"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Where the agent's sockets and files lie. [agent P12, P13, P16]
const (
	sdsDir        = "./var/run/secrets/workload-spiffe-uds"
	xdsSocketName = "XDS"
	bootstrapName = "envoy-rev.json"
	// validation bounds the look at a bootstrap that a person wrote.
	validation = 30 * time.Second
)

func (a *Agent) xdsSocket() string {
	return relative(filepath.Join(a.o.Node.Config.GetConfigPath(), xdsSocketName))
}

func (a *Agent) sdsSocket() string {
	return relative(filepath.Join(sdsDir, a.o.Settings.Secrets.SocketName))
}

// relative keeps the ./ that Join takes away: people look for these paths as they know them.
func relative(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return "./" + path
}

// findEnvoy looks whether there is an Envoy to run.
func (a *Agent) findEnvoy() error {
	if a.o.Settings.Envoy.Disabled {
		return errors.New("DISABLE_ENVOY: an agent without Envoy is not supported yet")
	}
	binary := a.o.Node.Config.GetBinaryPath()
	if _, err := exec.LookPath(binary); err != nil {
		return fmt.Errorf("find Envoy (binaryPath): %w", err)
	}
	return nil
}

// bootstrap writes Envoy's configuration and decides its command line. One that a person
// wrote is tried first, since nothing else would say what is wrong with it.
func (a *Agent) bootstrap(ctx context.Context) error {
	override, err := a.override()
	if err != nil {
		return err
	}
	if a.launch, err = a.compose(a.o.Node, bootstrapName, override); err != nil {
		return err
	}
	a.launch.Hash = firstLaunch
	if a.o.Node.Config.GetCustomConfigFile() == "" && override == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, validation)
	defer cancel()
	return envoy.Validate(ctx, a.launch)
}

// compose writes the bootstrap of a node under a name, unless the user has written one, and says how
// Envoy is started with it.
func (a *Agent) compose(n *node.Facts, name, override string) (envoy.Launch, error) {
	path := n.Config.GetCustomConfigFile()
	if path == "" {
		path = a.bootstrapPath(name)
		if err := a.generate(n, path); err != nil {
			return envoy.Launch{}, err
		}
	}
	args := a.arguments(n, path, override)
	l := envoy.Launch{Binary: n.Config.GetBinaryPath(), Env: a.environment()}
	if args.HotRestart {
		l.Workers, args.Concurrency = args.Concurrency, 0
	}
	l.Args = args.List()
	return l, nil
}

func (a *Agent) bootstrapPath(name string) string {
	return relative(filepath.Join(a.o.Node.Config.GetConfigPath(), name))
}

// generate builds the bootstrap and writes it to path.
func (a *Agent) generate(n *node.Facts, path string) error {
	in := a.bootstrapInput(n)
	b, err := bootstrap.Build(in)
	if err != nil {
		return err
	}
	for _, field := range bootstrap.Ignored(in, b) {
		a.log.Warn("proxy configuration is read but has no effect", "field", field)
	}
	text, err := b.Encode()
	if err != nil {
		return err
	}
	// Not synced to the disk: it is made anew at every start.
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return fmt.Errorf("write Envoy's bootstrap: %w", err)
	}
	return nil
}

func (a *Agent) bootstrapInput(n *node.Facts) bootstrap.Input {
	s := a.o.Settings.Envoy
	return bootstrap.Input{
		NodeID: n.ID.String(), Cluster: n.Cluster, Metadata: n.Metadata, Locality: n.Locality, IPs: n.IPs,
		Config: n.Config, Annotations: n.Annotations,
		XDSSocket: a.xdsSocket(), SDSSocket: a.sdsSocket(),
		HealthPort: uint32(s.HealthPort), PrometheusPort: uint32(s.PrometheusPort),
		Switches: bootstrap.Switches{
			StateOfTheWorld: s.StateOfTheWorld, DualStack: s.DualStack, LogJSON: a.o.Flags.LogJSON,
			DeferredClusters: s.DeferredClusters, CountConnections: s.ExitOnZero, OutlierLog: a.o.Flags.OutlierLog,
		},
	}
}

// override reads the file that is merged over the bootstrap, with the host's address in
// the place of $(HOST_IP). Empty where there is none. [agent B3]
func (a *Agent) override() (string, error) {
	file := a.o.Settings.Envoy.OverrideFile
	if file == "" {
		return "", nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read the bootstrap override: %w", err)
	}
	host := a.o.Settings.Envoy.HostIP
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is6() {
		host = "[" + host + "]"
	}
	asJSON, err := yaml.YAMLToJSON([]byte(strings.ReplaceAll(string(text), "$(HOST_IP)", host)))
	if err != nil {
		return "", fmt.Errorf("read the bootstrap override %s: %w", file, err)
	}
	return string(asJSON), nil
}

func (a *Agent) arguments(n *node.Facts, path, override string) envoy.Arguments {
	c := n.Config
	return envoy.Arguments{
		Bootstrap:         path,
		Drain:             c.GetDrainDuration().AsDuration(),
		IPv6:              a.onlyIPv6(),
		LogLevel:          a.o.Flags.LogLevel,
		ComponentLogLevel: a.o.Flags.ComponentLogLevel,
		FlushKB:           int(c.GetFileFlushMinSizeKb()),
		CoreDump:          a.o.Settings.Envoy.CoreDump,
		BootstrapYAML:     override,
		Concurrency:       int(c.GetConcurrency().GetValue()),
		HotRestart:        a.hotRestarts(),
	}
}

// environment is Envoy's: the agent's, with proxyMetadata beneath, sorted.
func (a *Agent) environment() []string {
	out := make([]string, 0, len(a.o.Node.Env))
	for k, v := range a.o.Node.Env {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return out
}

func (a *Agent) onlyIPv6() bool {
	return !slices.ContainsFunc(a.o.Node.IPs, netip.Addr.Is4)
}

// loopback is the address at which Envoy and the agent find each other.
func (a *Agent) loopback() string {
	if a.onlyIPv6() {
		return "::1"
	}
	return "127.0.0.1"
}

func (a *Agent) adminAddress() string {
	port := int(a.o.Node.Config.GetProxyAdminPort())
	if port == 0 {
		port = mesh.AdminPort
	}
	return net.JoinHostPort(a.loopback(), strconv.Itoa(port))
}

// inboundOnly: a sidecar that drains still carries its application's own calls.
func (a *Agent) inboundOnly() bool { return a.o.Node.ID.Role == mesh.Sidecar }

func (a *Agent) policy() supervise.Policy {
	p := supervise.DefaultPolicy()
	switch {
	case a.o.Flags.AsIstio:
		p = supervise.Policy2021()
	case a.hotRestarts():
		p = supervise.HotPolicy()
	}
	if d := a.o.Node.Config.GetTerminationDrainDuration(); d != nil {
		p.Drain = d.AsDuration()
	}
	p.ExitOnZero = a.o.Settings.Envoy.ExitOnZero
	p.MinDrain = a.o.Settings.Envoy.MinDrain
	p.MaxDrain = max(p.MinDrain, a.o.Settings.Life.MaxDrain)
	return p
}

func (a *Agent) hotRestarts() bool { return a.o.Settings.Life.HotRestart && !a.o.Flags.AsIstio }

// hot says how Envoys take over from one another.
func (a *Agent) hot() envoy.Hot {
	h := envoy.Hot{ParentShutdown: a.o.Settings.Life.ParentShutdown}
	if a.o.Node.Config.GetCustomConfigFile() == "" {
		h.Upstream = a.xds.Connected()
	}
	if a.inboundOnly() {
		h.InboundPorts = []int{mesh.InboundPort}
	}
	return h
}
