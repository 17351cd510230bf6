package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/app"
	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/launch"
	"github.com/pilothouse/pilothouse/internal/agent/reload"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/agent/status"
	"github.com/pilothouse/pilothouse/internal/agent/supervise"
	"github.com/pilothouse/pilothouse/internal/agent/xdsproxy"
	"github.com/pilothouse/pilothouse/internal/cgroup"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/run"
)

// runner is what the agent runs and what its end depends on: Envoy's supervisor, or noEnvoy.
type runner interface {
	// State is that of Envoy.
	State() *envoy.State
	// Run runs until ctx has ended and the drain is over.
	Run(ctx context.Context) error
	// Again repeats the request to end.
	Again()
	status.Lifecycle
}

// workload is the runner with what belongs to it.
type workload struct {
	runner runner
	// admin is nil without an Envoy.
	admin    status.Proxy
	reloader *reload.Reloader
	tasks    []run.Task
}

// newWorkload prepares Envoy, unless it is disabled.
func newWorkload(ctx context.Context, o *Options, atEnd *run.Cleanups, follower *filewatch.Follower, xds *xdsproxy.Proxy, changes *dynamicBootstrap) (workload, error) {
	s, log := o.Spec, o.Log
	if s.Envoy.Disabled {
		reloader := reloadWithoutEnvoy(o, follower)
		atEnd.Add("stop following files", reloader.Close)
		return workload{
			runner: newNoEnvoy(s.Lifecycle.Drain, log.With("scope", "envoy")), reloader: reloader,
			tasks: []run.Task{{Name: "own stream", Run: xds.OwnStream}, {Name: "changes", Run: reloader.Run}},
		}, nil
	}
	bootstraps, err := launch.Open(s, log)
	if err != nil {
		return workload{}, err
	}
	atEnd.Add("remove Envoy's bootstraps", bootstraps.Close)
	first, err := bootstraps.First(ctx, s)
	if err != nil {
		return workload{}, errors.Join(ctx.Err(), err)
	}
	envoys := envoy.New(envoyOptions(*o, first, xds.Connected()))
	xds.SetEpochs(func(pid int) (int, bool) { return epochOf(envoys.State().Processes, pid) })
	reloader := reload.New(reload.Options{
		Running: s, First: launch.First, Read: func(running *spec.Spec) (*spec.Spec, error) { return changes.read(o.Reread(running)) }, Follower: follower, CPULimit: cgroup.CPULimit,
		SetLogLevel: envoys.Admin().SetLogLevel, Log: log.With("scope", "restart"),
		Start: func(next *spec.Spec, hash string) error {
			if err := changes.admit(ctx, next, hash); err != nil {
				return err
			}
			return start(envoys, bootstraps, next, hash)
		},
	})
	if changes != nil {
		changes.xds, changes.envoys, changes.bootstraps, changes.reloader = xds, envoys, bootstraps, reloader
	}
	atEnd.Add("stop following files", reloader.Close)
	restart := func(ctx context.Context) error {
		if !changes.await(ctx) {
			return nil
		}
		return reloader.Run(ctx)
	}
	return workload{runner: envoys, admin: envoys.Admin(), reloader: reloader, tasks: append(changes.tasks(), run.Task{Name: "restart", Run: restart})}, nil
}

// reloadWithoutEnvoy follows the inputs of an agent without an Envoy. What an Envoy would be started with is in the node of the bootstrap
// of gRPC libraries, which is written anew: they read it when the application starts.
func reloadWithoutEnvoy(o *Options, follower *filewatch.Follower) *reload.Reloader {
	log := o.Log.With("scope", "restart")
	return reload.New(reload.Options{
		Running: o.Spec, First: launch.First, Read: o.Reread, Follower: follower, CPULimit: func() int { return 0 }, Log: log,
		SetLogLevel: func(context.Context, string, string) error { return errors.New("there is no Envoy (DISABLE_ENVOY)") },
		Start: func(next *spec.Spec, _ string) error {
			_, err := newProxyless(next, log)
			return err
		},
	})
}

// epochOf is the epoch of the Envoy with a process id.
func epochOf(all []envoy.Process, pid int) (epoch int, ok bool) {
	for _, p := range all {
		if p.PID == pid {
			return p.Epoch, true
		}
	}
	return 0, false
}

// restart returns what restarts Envoy, nil without one.
func (w workload) restart() func() {
	if w.admin == nil {
		return nil
	}
	return w.reloader.Restart
}

// noEnvoy is in place of Envoy's supervisor: it only waits. After a request to end it waits for as long as Envoy would drain, since
// the application still uses the agent's certificates, configuration and names while it ends.
type noEnvoy struct {
	drain time.Duration
	log   *slog.Logger
	quit  chan struct{}
	once  sync.Once

	mu    sync.Mutex // guards state
	state supervise.View
}

func newNoEnvoy(drain time.Duration, log *slog.Logger) *noEnvoy {
	return &noEnvoy{drain: drain, log: log, quit: make(chan struct{})}
}

// State has only Draining and Ending.
func (n *noEnvoy) State() *envoy.State {
	n.mu.Lock()
	defer n.mu.Unlock()
	return &envoy.State{View: n.state}
}

// Drain takes note of the request. The application drains its own servers.
func (n *noEnvoy) Drain() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state.Draining = true
}

// Quit ends Run at once, as does Again.
func (n *noEnvoy) Quit() { n.once.Do(func() { close(n.quit) }) }

func (n *noEnvoy) Again() { n.Quit() }

func (n *noEnvoy) Run(ctx context.Context) error {
	n.log.Info("the agent runs without an Envoy (DISABLE_ENVOY)")
	select {
	case <-ctx.Done():
	case <-n.quit:
		return nil
	}
	n.mu.Lock()
	n.state.Draining, n.state.Ending = true, true
	n.mu.Unlock()
	n.log.Info("the agent ends, after the time that the application has to end", "wait", n.drain)
	wait := time.NewTimer(n.drain)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-n.quit:
	}
	return nil
}

// start makes next the desired Spec of Envoy, and removes the bootstraps that are no longer needed.
func start(runner *envoy.Runner, bootstraps *launch.Folder, next *spec.Spec, hash string) error {
	l, err := bootstraps.Launch(next, hash)
	if err != nil {
		return err
	}
	v := runner.State()
	keep := []string{hash, v.Goal.Desired, v.Goal.Good}
	for _, e := range v.Epochs {
		keep = append(keep, e.Hash)
	}
	bootstraps.Keep(keep...)
	runner.Desire(l)
	return nil
}

// appOptions are the options of the task that ends the agent with the application.
func appOptions(s *spec.Spec, r runner, log *slog.Logger) app.Options {
	return app.Options{Grace: s.Lifecycle.AppGrace, Ended: r.Quit, Log: log.With("scope", "app"), Own: func() []int {
		var pids []int
		for _, p := range r.State().Processes {
			pids = append(pids, p.PID)
		}
		return pids
	}}
}
