package main

import (
	"cmp"
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
	"github.com/pilothouse/pilothouse/internal/mesh"
	tasks "github.com/pilothouse/pilothouse/internal/run"
)

// proxyFlags are those of the main command. [agent F1–F11]
type proxyFlags struct {
	spec.Flags
	plugin string
	compat string
	watch  string
}

func (p *proxyFlags) register(f *pflag.FlagSet) {
	f.StringVar(&p.Domain, "domain", "", "DNS `suffix` of the node (default $POD_NAMESPACE.svc.cluster.local)")
	f.StringVar(&p.MeshConfig, "meshConfig", "./etc/istio/config/mesh", "`file` with the mesh's configuration; it may be missing")
	f.IntVar(&p.STSPort, "stsPort", 0, "`port` of a token service, passed on in the node's metadata")
	f.StringVar(&p.plugin, "tokenManagerPlugin", "", "accepted and not used")
	f.StringVar(&p.ServiceCluster, "serviceCluster", "", "`name` of the service that this proxy stands for (default from its labels)")
	f.StringVar(&p.LogLevel, "proxyLogLevel", "warning", "Envoy's log `level`, possibly with component:level behind it")
	f.StringVar(&p.ComponentLogLevel, "proxyComponentLogLevel", "", "log `levels` of Envoy's components, component:level,…")
	f.IntVar(&p.Concurrency, "concurrency", 0, "`number` of Envoy's workers; 0 leaves it to the configuration and the CPU limit")
	f.StringVar(&p.TemplateFile, "templateFile", "", "accepted and not used: the bootstrap is built, not filled in")
	f.StringVar(&p.OutlierLogPath, "outlierLogPath", "", "`file` for the endpoints that Envoy ejects")
	f.StringVar(&p.watch, "watchCapture", "", "`arguments` of istio-iptables whose rules to keep in force, restoring them when others flush them; needs CAP_NET_ADMIN (default $CAPTURE_WATCH; empty: don't watch)")
	f.StringVar(&p.compat, "compat", "", "`istio` gives up second tries, hot restarts and truthful exit codes: one Envoy, exit code 0")
	f.BoolVar(&p.Profiling, "profiling", true, "serve profiles on the status port, to this machine")
}

func newProxy(s surroundings, log *logFlags) *cobra.Command {
	p := &proxyFlags{}
	c := &cobra.Command{
		Use:                "proxy [sidecar|router]",
		Short:              "Run Envoy and everything that it needs beside it",
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE: func(c *cobra.Command, args []string) error {
			started := time.Now()
			ready, stop := limitMemory(s)
			defer stop()
			role := mesh.Sidecar
			if len(args) > 0 {
				role = mesh.Role(args[0])
			}
			if role != mesh.Sidecar && role != mesh.Router {
				return fmt.Errorf("proxy type %q: want sidecar or router", role)
			}
			switch p.compat {
			case "", "istio":
				p.AsIstio = p.compat != ""
			default:
				return fmt.Errorf("flag --compat %q: want istio, or leave it out", p.compat)
			}
			logger, err := log.logger(s)
			if err != nil {
				return err
			}
			c.Flags().VisitAll(func(f *pflag.Flag) { logger.Info(fmt.Sprintf("FLAG: --%s=%q", f.Name, f.Value)) })
			logger.Info("Version " + thisBuild().String())
			p.LogJSON = log.json
			a, err := p.prepare(c.Context(), agent.Options{Started: started, Ready: ready, Log: logger, Stdout: s.stdout, Stderr: s.stderr}, role, s.env)
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
	p.register(c.Flags())
	return c
}

// prepare makes the Spec and the agent.
func (p *proxyFlags) prepare(ctx context.Context, o agent.Options, role mesh.Role, env map[string]string) (*agent.Agent, error) {
	in := spec.Input{Role: role, Flags: p.Flags, Env: env, ReadFile: os.ReadFile}
	if args := cmp.Or(p.watch, env["CAPTURE_WATCH"]); args != "" {
		watch, dns, err := watchCapture(args, func(name string) string { return env[name] }, o.Log.With("scope", "capture"))
		if err != nil {
			return nil, err
		}
		o.Tasks = append(o.Tasks, watch)
		in.CaptureDNS = dns
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
	if os.Getpid() == 1 {
		o.Tasks = append(o.Tasks, tasks.Task{Name: "reap", Run: envoy.Reap})
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
	log.Info("CA Endpoint "+s.Upstream.CA, "identity", n.Identity)
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
