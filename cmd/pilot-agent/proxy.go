package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pilothouse/pilothouse/internal/agent"
	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/host"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/cgroup"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/mesh"
	tasks "github.com/pilothouse/pilothouse/internal/run"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

// roleOf returns the role that the arguments of the proxy command name. [agent C1]
func roleOf(args []string) (mesh.Role, error) {
	if len(args) == 0 {
		return mesh.Sidecar, nil
	}
	if args[0] == string(mesh.Waypoint) {
		return mesh.Waypoint, nil
	}
	role, err := mesh.ParseRole(args[0])
	if err != nil || args[0] == "" {
		return "", fmt.Errorf("invalid proxy type %.100q: want sidecar, router or waypoint", args[0])
	}
	return role, nil
}

// proxyCommand is the name of the command that runs Envoy.
const proxyCommand = "proxy"

func newProxy(s process) *cobra.Command {
	c := &cobra.Command{
		Use:   proxyCommand + " [sidecar|router|waypoint]",
		Short: "Run Envoy, and serve its configuration, its certificate and its status",
		Example: `  POD_NAME=web-1 POD_NAMESPACE=shop pilot-agent proxy sidecar
  PROXY_CONFIG='{discoveryAddress: mesh.example.com:15012}' pilot-agent proxy sidecar --log_output_level default:debug
  POD_NAME=gateway-1 POD_NAMESPACE=shop pilot-agent proxy router --proxyLogLevel info`,
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE: func(c *cobra.Command, args []string) error {
			started := time.Now()
			ready, stop := limitMemory(s)
			defer stop()
			role, err := roleOf(args)
			if err != nil {
				return err
			}
			given := cli.Given(c.Flags())
			v := settings.Read(given, s.env, settings.AgentProxy, settings.AgentLog)
			log, watch := readLog(v), v.Text("watchCapture")
			if err := v.Err(); err != nil {
				return err
			}
			logger, levels, err := log.logger(s)
			if err != nil {
				return err
			}
			c.Flags().VisitAll(func(f *pflag.Flag) { logger.Info(fmt.Sprintf("FLAG: --%s=%q", f.Name, f.Value)) })
			logger.Info("Version " + thisBuild().String())
			if len(args) > 0 && args[0] != string(role) {
				logger.Warn("proxy type " + args[0] + " is a name of 2017 for router, and is run as one")
			}
			for _, text := range cli.UnknownFlags(s.args, c.Flags()) {
				logger.Warn(text)
			}
			in := spec.Input{Role: role, Flags: given, Env: s.env, ReadFile: readInput, LookupUser: host.LookupUser}
			o := agent.Options{Version: version, Started: started, Ready: ready, Log: logger, Levels: levels, Stdout: s.stdout, Stderr: s.stderr}
			a, err := prepare(c.Context(), in, watch, o)
			if errors.Is(err, context.Canceled) {
				logger.Info("asked to end before Envoy was started")
				return nil
			}
			if err != nil {
				return err
			}
			s.asked.onAgain(a.Again)
			if err := a.Run(c.Context()); err != nil {
				return ended{err}
			}
			return nil
		},
	}
	cli.Add(c, settings.AgentProxy)
	cli.Files(c, settings.AgentFiles)
	return c
}

// maxInput is the largest file that the Spec is made from; Kubernetes' ConfigMaps have at most 1 MiB.
const maxInput = 4 << 20

func readInput(path string) ([]byte, error) { return filewatch.ReadFile(path, maxInput) }

// prepare makes the Spec and the agent. watch are the arguments of istio-iptables whose rules to keep in force.
func prepare(ctx context.Context, in spec.Input, watch string, o agent.Options) (*agent.Agent, error) {
	if watch != "" {
		w, err := watchCapture(watch, in.Env, o.Log.With("scope", "capture"))
		if err != nil {
			return nil, err
		}
		o.Tasks, o.Capture = append(o.Tasks, w.task), w.report
		in.Capture = spec.Capture{DNS: w.options.DNS.Capture, TPROXY: strings.EqualFold(w.options.Mode, "TPROXY")}
	}
	if os.Getpid() == 1 {
		o.Tasks = append(o.Tasks, tasks.Task{Name: "reap", Run: envoy.Reap})
	}
	var err error
	if in.Host, err = host.Read(); err != nil {
		return nil, err
	}
	if o.Spec, err = spec.Build(in); err != nil {
		return nil, err
	}
	o.Reread = func(running *spec.Spec) (*spec.Spec, error) {
		next := in
		next.Running, next.Host.CPULimit = running, cgroup.CPULimit()
		return spec.Build(next)
	}
	if err := logStart(o.Log, o.Spec); err != nil {
		return nil, err
	}
	return agent.New(ctx, o)
}

// logStart tells what was decided before anything is done with it. [agent F13]
func logStart(log *slog.Logger, s *spec.Spec) error {
	n := s.Node
	log.Info("Proxy role", "type", n.ID.Role, "id", n.ID.ID, "domain", n.ID.Domain, "ips", n.Metadata["INSTANCE_IPS"], "cluster", n.Cluster)
	log.Info("Proxy configuration from " + strings.Join(s.ConfigSources, ", "))
	text, err := spec.EffectiveYAML(s.Config)
	if err != nil {
		return err
	}
	log.Info("Effective config: " + strings.TrimSpace(text))
	log.Info("JWT policy is third-party-jwt")
	log.Info("CA Endpoint "+strings.Join(s.Upstream.CA, ","), "identity", n.Identity)
	for _, w := range s.Warnings {
		log.Warn(w)
	}
	return nil
}

// ended gives an error of the agent's run its exit code.
type ended struct{ error }

// ExitCode is the exit code that the end stands for.
func (e ended) ExitCode() int { return agent.ExitCode(e.error) }
func (e ended) Unwrap() error { return e.error }
