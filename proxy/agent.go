package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/supervise"
)

// Agent runs a Proxy in epochs. Call Run once; any goroutine may call the other methods, before Run, during
// it and after it.
type Agent interface {
	// ScheduleConfigUpdate makes config the desired configuration. It blocks until the control loop has
	// received it, not until an epoch runs with it. After Run has returned it does nothing.
	ScheduleConfigUpdate(config any)
	// ConfigCh returns the channel of ScheduleConfigUpdate, for use in a select. Nothing receives from it
	// after Run has returned. It is never closed, and callers must not close it.
	ConfigCh() chan<- any
	// Restart makes config the desired configuration and waits until an epoch is started with it, or none
	// will be: it is running already, a newer one has replaced it, its retries are exhausted, or Run ends.
	Restart(config any)
	// Run is the control loop. It blocks until ctx ends, and then aborts all epochs and waits for them
	// (see WithGrace) and for calls of Live; or until the retries are exhausted and no epoch is running.
	// Err returns which of the two it was.
	Run(ctx context.Context)
	// Quit makes Run abort all epochs and return, even during a drain (WithDrain): for a program that
	// receives a second signal. It does not wait for Run. After Run has returned it does nothing.
	Quit()
	// Err returns nil until Run has returned, and if Run returned because its context ended. It returns a
	// *GivenUpError if the retries were exhausted and no epoch was running.
	Err() error
}

type agent struct {
	proxy    Proxy
	policy   supervise.Policy
	log      *slog.Logger
	configs  chan any
	restarts chan restart
	quits    chan struct{}
	done     chan struct{} // closed when Run returns
	err      error         // written before done is closed
}

// restart is a call of Restart.
type restart struct {
	config any
	done   chan struct{} // closed when Restart may return
}

// Option configures an Agent.
type Option func(*agent)

// WithDrain makes the agent start one more epoch, with DrainConfig, when Run's context ends, and
// wait for d before it aborts all epochs. Agent.Quit ends the wait.
func WithDrain(d time.Duration) Option {
	return func(a *agent) {
		a.policy.Drain, a.policy.Compat.NoDrain, a.policy.Compat.DrainEpoch = d, false, true
	}
}

// WithAbortAll makes the failure of one epoch abort all others, and restarts the desired configuration
// from epoch 0, as the agents of 2017 and 2019 did. No epoch serves meanwhile. By default the others keep
// running after a failure, and the number of the failed epoch is used again.
func WithAbortAll() Option {
	return func(a *agent) { a.policy.Compat.AbortAll = true }
}

// WithGrace sets how long Run waits for aborted epochs before it returns without them; 1 s by
// default. 0 does not wait.
func WithGrace(d time.Duration) Option {
	return func(a *agent) { a.policy.Grace = d }
}

// WithLiveWithin sets how long an epoch may take to be live (see Liver) if another configuration
// waits for it or a live epoch is its parent; 20 s by default.
func WithLiveWithin(d time.Duration) Option {
	return func(a *agent) { a.policy.Epochs.LiveWithin = d }
}

// WithMaxEpochs sets how many epochs may run at once; below 0 any number. The default is 2 for a Liver,
// else -1.
func WithMaxEpochs(n int) Option {
	return func(a *agent) { a.policy.Epochs.Max = n }
}

// WithLogger sets the logger. By default nothing is logged.
func WithLogger(l *slog.Logger) Option {
	return func(a *agent) { a.log = l }
}

// NewAgent returns an agent that runs p. It starts nothing before Run.
func NewAgent(p Proxy, r Retry, options ...Option) Agent {
	policy := supervise.Policy2017()
	policy.Budget, policy.Backoff, policy.Grace = r.MaxRetries, r.InitialInterval, time.Second
	policy.Compat.AbortAll = false
	if _, ok := p.(Liver); ok {
		policy.Epochs = supervise.Epochs{Max: 2, LiveWithin: 20 * time.Second}
	}
	a := &agent{
		proxy: p, policy: policy, log: slog.New(slog.DiscardHandler),
		configs: make(chan any), restarts: make(chan restart), quits: make(chan struct{}), done: make(chan struct{}),
	}
	for _, o := range options {
		o(a)
	}
	return a
}

// ScheduleConfigUpdate implements Agent.
func (a *agent) ScheduleConfigUpdate(config any) {
	select {
	case a.configs <- config:
	case <-a.done:
	}
}

// ConfigCh implements Agent.
func (a *agent) ConfigCh() chan<- any { return a.configs }

// Restart implements Agent.
func (a *agent) Restart(config any) {
	r := restart{config, make(chan struct{})}
	select {
	case a.restarts <- r:
	case <-a.done:
		return
	}
	select {
	case <-r.done:
	case <-a.done:
	}
}

// Quit implements Agent.
func (a *agent) Quit() {
	select {
	case a.quits <- struct{}{}:
	case <-a.done:
	}
}

// GivenUpError is returned by Agent.Err if the retries are exhausted and no epoch is running.
type GivenUpError struct {
	// Config is the last configuration that Panic was called with.
	Config any
	// Err is the error that the last epoch returned.
	Err error
}

// Error implements error.
func (e *GivenUpError) Error() string {
	return fmt.Sprintf("run the proxy: its retries are exhausted: %v", e.Err)
}

// Unwrap returns e.Err.
func (e *GivenUpError) Unwrap() error { return e.Err }

// Run implements Agent.
func (a *agent) Run(ctx context.Context) {
	l := &loop{
		agent: a, machine: supervise.New(a.policy), zero: time.Now(), timer: time.NewTimer(time.Hour),
		epochs: map[int]*epoch{}, reports: make(chan report), known: map[string]any{},
	}
	// Calls of Live outlive ctx as long as their epochs do.
	live, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.ctx = live
	a.err = l.serve(ctx)
	close(a.done)
	cancel()
	l.timer.Stop()
	l.liveCalls.Wait()
}

// Err implements Agent.
func (a *agent) Err() error {
	select {
	case <-a.done:
		return a.err
	default:
		return nil
	}
}

// status converts the result of Proxy.Run.
func status(err error) supervise.Status {
	var exit interface{ ExitCode() int }
	switch {
	case err == nil:
		return supervise.Status{}
	case errors.Is(err, ErrAbort):
		return supervise.Status{Signal: supervise.SIGKILL}
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return supervise.Status{Code: exit.ExitCode()}
	}
	return supervise.Status{Code: 1}
}
