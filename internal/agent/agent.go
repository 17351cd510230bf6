// Package agent constructs the parts of pilot-agent and joins them: it opens the sockets, runs Envoy, and serves it for as long as it lives.
//
// New does everything that can fail because something is configured wrongly or already in use:
// it takes its folders, ports and sockets, checks the root certificates and
// writes the bootstrap, so that a mistake ends the start at once and another agent that
// uses them is not disturbed. Run runs two groups, one inside the other:
// Envoy within the servers, which answer until Envoy has ended. Nothing before
// Envoy's start waits for a network: neither for a certificate, nor for discovery, nor for
// a name to resolve; only BOOTSTRAP_XDS_AGENT has it wait for a moment. Envoy itself waits for its configuration, and the readiness probe reports what is missing.
//
// Each part gets what it needs from its constructor. The Spec says everything about this agent.
package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/app"
	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/launch"
	"github.com/pilothouse/pilothouse/internal/agent/logging"
	"github.com/pilothouse/pilothouse/internal/agent/probe"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/agent/startup"
	"github.com/pilothouse/pilothouse/internal/agent/status"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/run"
)

// Options are the inputs of New. All are required except Ready and Tasks.
type Options struct {
	Spec *spec.Spec
	// Reread builds the next Spec from the running one and the current contents of the inputs.
	Reread func(running *spec.Spec) (*spec.Spec, error)
	Log    *slog.Logger
	// Levels are those of Log, which the status port can change; nil if it cannot.
	Levels *logging.Levels
	// Stdout and Stderr get Envoy's output.
	Stdout, Stderr io.Writer
	// Version is the version of the program.
	Version string
	// Started is the time at which the program started. The startup duration is measured from it.
	Started time.Time
	// Ready is called once, when the agent first becomes ready. It must not block.
	Ready func()
	// Tasks run for as long as Envoy runs.
	Tasks []run.Task
	// Capture reports on the rules of capture that one of the Tasks keeps in force; nil if none does.
	Capture func() CaptureReport
}

// Agent is one agent, ready to run once.
type Agent struct {
	envoy   runner
	servers []run.Task
	close   func() error
	// before is called before Envoy starts.
	before func(ctx context.Context)
	// failed is called when Envoy could not be kept running.
	failed func(error)
}

// New prepares an agent. An error is a configuration mistake, or the error of ctx if ctx ended during New; everything that New
// has opened is closed before it returns an error.
func New(ctx context.Context, o Options) (_ *Agent, err error) {
	var undo run.Cleanups // only if New fails
	var atEnd run.Cleanups
	defer func() {
		if err != nil {
			err = errors.Join(err, undo.Close(), atEnd.Close())
		}
	}()
	s, log := o.Spec, o.Log
	if err := launch.FindEnvoy(s); err != nil {
		return nil, err
	}
	external, err := startup.External(ctx, s, log)
	if err != nil {
		return nil, err
	}
	if external == s.Certificates.Own {
		s = s.WithExternal(external)
		o.Spec = s
	}
	// Exclusive resources come before the first write: an agent that cannot start has changed nothing.
	taken, err := startup.Take(ctx, s, log)
	if err != nil {
		return nil, err
	}
	atEnd.Add("unlock the folders", taken.Release)
	undo.Add("close the status port", taken.Status.Close)
	dns, err := newDNS(s, log)
	if err != nil {
		return nil, err
	}
	undo.Add("close the sockets of DNS", dns.close)
	follower := filewatch.NewFollower(filewatch.FollowerOptions{Log: log.With("scope", "files")})
	certificates, err := newCertificates(s, follower, log)
	if err != nil {
		return nil, err
	}
	undo.Add("close the SDS socket", certificates.sds.close)
	modules := newModules(s, log)
	kept := newCopy(s, o.Version, log)
	changes, err := newDynamic(s, certificates.sds.pushed, log)
	if err != nil {
		return nil, err
	}
	xds, err := newXDS(s, certificates, dns, kept.store, modules, changes, log)
	if err != nil {
		return nil, err
	}
	undo.Add("close the XDS socket", xds.Close)
	tap, err := newTap(ctx, s, xds, log.With("scope", "xdsproxy"))
	if err != nil {
		return nil, err
	}
	undo.Add("close the port of the control plane's pages", tap.close)
	tokens, err := newSTS(ctx, s, log.With("scope", "sts"))
	if err != nil {
		return nil, err
	}
	if tokens != nil {
		undo.Add("close the port of the token service", tokens.Close)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	workload, err := newWorkload(ctx, &o, &atEnd, follower, xds, changes)
	if err != nil {
		return nil, err
	}
	proxyless, err := newProxyless(s, log)
	if err != nil {
		return nil, err
	}
	parts := parts{
		spec: s, workload: workload, xds: xds, certificates: certificates, dns: dns, kept: kept, modules: modules, files: follower, proxyless: proxyless, options: &o,
		changes: changes,
	}
	probes := probe.New(probe.Options{Probes: s.Probes, Pod: s.Node.IPs[0], StatusPort: s.Status.Port, TLS: s.TLS, Log: log.With("scope", "probe")})
	atEnd.Add("close the connections of probes", probes.Close)
	server := status.New(status.Options{
		Listener: taken.Status, Proxy: workload.admin, Lifecycle: workload.runner, Facts: parts.facts, Log: log.With("scope", "status"),
		Version: o.Version, Started: o.Started, FirstReady: o.Ready, Collect: []func(*status.Page){parts.metrics}, Detail: parts.detail, Names: parts.names, Levels: o.Levels,
		Restart: workload.restart(), Probes: probes, Profiling: s.Status.Profiling, LocalMetrics: s.Status.LocalMetrics,
		Targets: s.Status.Targets, Port: s.Status.Port, ControlPlane: xds.Pages(status.ControlPlanePages),
	})
	servers := slices.Concat(
		[]run.Task{{Name: "files", Run: follower.Run}}, dns.tasks, certificates.tasks, kept.tasks, workload.tasks,
		[]run.Task{{Name: "xds", Run: xds.Run}, {Name: "status", Run: server.Run}}, o.Tasks)
	if modules != nil {
		servers = append(servers, run.Task{Name: "wasm", Run: modules.Run})
	}
	if tap != nil {
		servers = append(servers, run.Task{Name: "tap", Run: tap.run})
	}
	if s.Cloud.Platform != "" {
		servers = append(servers, cloudTask(s, xds, log.With("scope", "cloud")))
	}
	if tokens != nil {
		servers = append(servers, run.Task{Name: "sts", Run: tokens.Run})
	}
	if s.Readiness != nil {
		servers = append(servers, run.Task{Name: "health", Run: func(ctx context.Context) error { return parts.probe(ctx, log.With("scope", "health")) }})
	}
	if o.Capture != nil {
		servers = append(servers, run.Task{Name: "report on capture", Run: func(ctx context.Context) error {
			return reportCapture(ctx, captureInterval, o.Capture, xds.SetCapture)
		}})
	}
	if s.Lifecycle.ExitWithApp {
		servers = append(servers, run.Task{Name: "app", Run: func(ctx context.Context) error { return app.Run(ctx, appOptions(s, workload.runner, log)) }})
	}
	before := func(ctx context.Context) {
		certificates.awaitOutput(ctx, log)
		changes.begin(ctx)
	}
	if s.Envoy.Disabled {
		before = func(context.Context) {} // nothing starts
	}
	return &Agent{envoy: workload.runner, servers: servers, close: atEnd.Close, before: before, failed: changes.failed}, nil
}

// Run runs until ctx has ended and Envoy has drained, or until Envoy cannot be kept
// running. Call it once. The error is nil after a requested end.
func (a *Agent) Run(ctx context.Context) error {
	// The servers outlive Envoy: their context does not end with ctx, but with Envoy.
	outer := context.WithoutCancel(ctx)
	inner := run.Task{Name: "envoy", Run: func(servers context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		// If a server fails, Envoy is ended too: it would otherwise run without supervision.
		defer context.AfterFunc(servers, cancel)()
		if a.before(ctx); ctx.Err() != nil {
			return run.Done
		}
		if err := a.envoy.Run(ctx); err != nil {
			a.failed(err)
			return err
		}
		return run.Done
	}}
	err := run.Group(outer, append([]run.Task{inner}, a.servers...)...)
	return errors.Join(err, a.close())
}

// Again repeats the request to end after Run's context has ended: the first call skips the rest of the drain, the next one kills
// Envoy. Any goroutine may call it, at any time.
func (a *Agent) Again() { a.envoy.Again() }

// ExitCode returns the exit code for an error of New or Run: Envoy's own if Envoy could
// not be kept running, otherwise 255, the code of a configuration mistake.
func ExitCode(err error) int {
	var ended *envoy.ExitError
	if errors.As(err, &ended) {
		return ended.Code
	}
	return 255
}
