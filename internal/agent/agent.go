// Package agent joins the parts of pilot-agent: it opens the sockets, runs Envoy, and serves it for as long as it lives.
//
// New does everything that can fail because something is configured wrongly, or is
// already there: it takes its folders, its ports and its sockets, reads the root certificates and then
// builds the bootstrap, so that a mistake ends the start at once and an agent that already
// has these things goes on with them. Run runs two groups, one inside the other:
// Envoy within the servers, which answer until Envoy has ended. Nothing on the way to
// Envoy's start waits for a network: neither for a certificate, nor for discovery, nor for
// a name to resolve. Envoy itself waits for its configuration, and readiness says for what.
package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/app"
	"github.com/pilothouse/pilothouse/internal/agent/dns"
	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/identity"
	"github.com/pilothouse/pilothouse/internal/agent/node"
	"github.com/pilothouse/pilothouse/internal/agent/secret"
	"github.com/pilothouse/pilothouse/internal/agent/xdsproxy"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/run"
)

// Options are what an agent is made from.
type Options struct {
	Node *node.Facts
	// Inputs are what Node was made of; their files may change.
	Inputs   Inputs
	Settings node.Settings
	Log      *slog.Logger
	// Stdout and Stderr get Envoy's output.
	Stdout, Stderr io.Writer
	// Started is when the program was, for the time that it took to be ready.
	Started time.Time
	// Ready, unless nil, is called when readiness is first found. It does not block.
	Ready func()
	// Flags are those of the command line that decide neither node nor configuration.
	Flags Flags
	// Beside are tasks that run as long as Envoy does.
	Beside []run.Task
}

// Inputs are what a node is made of.
type Inputs struct {
	Node node.Input
	// MeshFile is the path of the mesh's configuration file.
	MeshFile string
}

// Flags are the agent's own switches.
type Flags struct {
	// LogLevel and ComponentLogLevel are Envoy's. [agent F6, F7]
	LogLevel, ComponentLogLevel string
	// LogJSON has Envoy log JSON as the agent does.
	LogJSON bool
	// Profiling serves pprof on the status port, to this machine alone.
	Profiling bool
	// OutlierLog is Envoy's file for ejected endpoints.
	OutlierLog string
	// AsIstio gives up what other agents of this kind do not do: one Envoy and no second try,
	// SIGKILL after the drain, exit code 0 whatever happened.
	AsIstio bool
}

// Agent is one agent, ready to run once.
type Agent struct {
	o   Options
	log *slog.Logger
	// undo is for an agent that comes to nothing, close for one that ends.
	undo, close run.Cleanups
	statusPort  net.Listener
	launch      envoy.Launch
	restarts    *restarts
	envoy       *envoy.Runner
	credentials identity.Plan
	secret      *secret.Value
	follower    *filewatch.Follower
	files       *secret.Named // nil where somebody else serves the secrets
	xds         *xdsproxy.Proxy
	dns         *dns.Server // nil where nobody's DNS is captured
	servers     []run.Task
}

// New prepares an agent. Its errors are mistakes of configuration, or that of ctx if that ended meanwhile; whatever it
// had opened by then is closed again.
func New(ctx context.Context, o Options) (*Agent, error) {
	a := &Agent{o: o, log: o.Log}
	if err := a.prepare(ctx); err != nil {
		return nil, errors.Join(err, a.undo.Close(), a.close.Close())
	}
	return a, nil
}

func (a *Agent) prepare(ctx context.Context) error {
	boot := func() error { return a.bootstrap(ctx) }
	folders := func() error { return a.folders(ctx) }
	ports := func() error { return a.ports(ctx) }
	// First whatever only one agent can have, then what is written: an agent that cannot start has touched nothing.
	for _, step := range []func() error{
		a.findEnvoy, folders, ports, a.listenDNS, a.identity, a.discovery, a.clearUp, a.watchInputs, boot, a.runner, a.watchApp, a.serveStatus,
	} {
		if err := step(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// runner prepares Envoy's supervisor.
func (a *Agent) runner() error {
	a.envoy = envoy.New(envoy.Options{
		Launch:      a.launch,
		Admin:       a.adminAddress(),
		Policy:      a.policy(),
		Hot:         a.hot(),
		InboundOnly: a.inboundOnly(),
		IgnorePorts: []int{a.o.Settings.Envoy.HealthPort, a.o.Settings.Envoy.PrometheusPort},
		Stdout:      a.o.Stdout,
		Stderr:      a.o.Stderr,
		Log:         a.log.With("scope", "envoy"),
	})
	return nil
}

// watchApp has a Job's agent end with the application.
func (a *Agent) watchApp() error {
	life := a.o.Settings.Life
	if !life.ExitWithApp || a.o.Flags.AsIstio {
		return nil
	}
	o := app.Options{Grace: life.AppGrace, Ended: a.envoy.Quit, Log: a.log.With("scope", "app"), Own: func() []int {
		var pids []int
		for _, p := range a.envoy.State().Processes {
			pids = append(pids, p.PID)
		}
		return pids
	}}
	a.serve("app", func(ctx context.Context) error { return app.Run(ctx, o) })
	return nil
}

// Run runs until ctx has ended and Envoy has drained, or until Envoy cannot be kept
// running. Call it once. The error is nil after an end that was asked for.
func (a *Agent) Run(ctx context.Context) error {
	// The servers outlive Envoy: their context does not end with ctx, but with Envoy.
	outer := context.WithoutCancel(ctx)
	inner := run.Task{Name: "envoy", Run: func(servers context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		// A server that cannot go on ends Envoy, too: alone it would serve on unwatched.
		defer context.AfterFunc(servers, cancel)()
		if err := a.envoy.Run(ctx); err != nil {
			return err
		}
		return run.Done
	}}
	err := run.Group(outer, slices.Concat([]run.Task{inner}, a.servers, a.o.Beside)...)
	return errors.Join(err, a.close.Close())
}

// Again asks once more for the end that the end of Run's context asked for: the first time it skips the rest of the drain, after that it kills
// Envoy. Any goroutine may call it, at any time.
func (a *Agent) Again() { a.envoy.Again() }

// ExitCode is the exit code that an error of Run stands for: Envoy's own where Envoy could
// not be kept running, otherwise 255, the code of whatever is configured wrongly.
func ExitCode(err error) int {
	var ended *envoy.ExitError
	if errors.As(err, &ended) {
		return ended.Code
	}
	return 255
}
