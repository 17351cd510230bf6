package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/supervise"
)

// Agent runs a Proxy in epochs. Call Run once; all other methods may be called by any goroutine, before,
// while and after it runs.
type Agent interface {
	// ScheduleConfigUpdate makes config the desired configuration. It blocks until the control loop has taken it,
	// which does not mean that an epoch runs with it. After Run has returned it does nothing.
	ScheduleConfigUpdate(config any)
	// ConfigCh is the channel of ScheduleConfigUpdate, for those who select. Nobody receives from it
	// after Run has returned; it is never closed, and must not be.
	ConfigCh() chan<- any
	// Restart makes config the desired configuration and waits until an epoch was started with it, or it
	// turned out that none will be: it runs already, a newer one has taken its place, its retries are spent, or Run ends.
	Restart(config any)
	// Run is the control loop. It blocks until ctx ends, and then aborts all epochs that run and waits for
	// them (see WithGrace) and for calls of Live; or until the retries are spent and nothing runs. Err says
	// which of the two it was.
	Run(ctx context.Context)
	// Quit has Run abort all epochs and return, also where a drain is under way (WithDrain): for a program that is asked
	// to end a second time. It does not wait for that. After Run has returned it does nothing.
	Quit()
	// Err is nil until Run has returned, and after a Run whose context has ended. It is a *GivenUpError where
	// the retries were spent and nothing ran any more.
	Err() error
}

// agent is the Agent of NewAgent.
type agent struct {
	proxy   Proxy
	policy  supervise.Policy
	log     *slog.Logger
	configs chan any
	orders  chan order
	quits   chan struct{}
	over    chan struct{} // closed when Run returns
	err     error         // written before over is closed
}

// order is a configuration and whom to tell when there is nothing to wait for any longer.
type order struct {
	config any
	done   chan struct{}
}

// Option changes what NewAgent makes.
type Option func(*agent)

// WithDrain makes the agent start one more epoch, with DrainConfig, when Run's context ends, and
// wait for d before it aborts all of them. Agent.Quit cuts that short.
func WithDrain(d time.Duration) Option {
	return func(a *agent) {
		a.policy.Drain, a.policy.Compat.NoDrain, a.policy.Compat.DrainEpoch = d, false, true
	}
}

// WithAbortAll makes the failure of one epoch abort all others, and the desired configuration start again
// from epoch 0, as the agents of 2017 and 2019 did: a pair of which one has failed counts as inconsistent. No epoch serves
// meanwhile. By default a failed epoch leaves the others alone, and its number is used again.
func WithAbortAll() Option {
	return func(a *agent) { a.policy.Compat.AbortAll = true }
}

// WithGrace sets how long, at the end, Run waits for aborted epochs before it returns without
// them; 1 s by default. 0 does not wait at all.
func WithGrace(d time.Duration) Option {
	return func(a *agent) { a.policy.Grace = d }
}

// WithLiveWithin sets how long an epoch may take to be live (see Liver) where another one waits for it
// or has to be taken over; 20 s by default.
func WithLiveWithin(d time.Duration) Option {
	return func(a *agent) { a.policy.Epochs.LiveWithin = d }
}

// WithMaxEpochs sets how many epochs run at most; below 0 any number. It is 2 for a Liver and else -1 by default.
func WithMaxEpochs(n int) Option {
	return func(a *agent) { a.policy.Epochs.Max = n }
}

// WithLogger makes the agent tell what it does; without it, it is silent.
func WithLogger(l *slog.Logger) Option {
	return func(a *agent) { a.log = l }
}

// NewAgent makes an agent that runs p. Nothing is started before Run.
func NewAgent(p Proxy, r Retry, options ...Option) Agent {
	policy := supervise.Policy2017()
	policy.Budget, policy.Backoff, policy.Grace = r.MaxRetries, r.InitialInterval, time.Second
	policy.Compat.AbortAll = false
	if _, tells := p.(Liver); tells {
		policy.Epochs = supervise.Epochs{Max: 2, LiveWithin: 20 * time.Second}
	}
	a := &agent{
		proxy: p, policy: policy, log: slog.New(slog.DiscardHandler),
		configs: make(chan any), orders: make(chan order), quits: make(chan struct{}), over: make(chan struct{}),
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
	case <-a.over:
	}
}

// ConfigCh implements Agent.
func (a *agent) ConfigCh() chan<- any { return a.configs }

// Restart implements Agent.
func (a *agent) Restart(config any) {
	o := order{config, make(chan struct{})}
	select {
	case a.orders <- o:
	case <-a.over:
		return
	}
	select {
	case <-o.done:
	case <-a.over:
	}
}

// Quit implements Agent.
func (a *agent) Quit() {
	select {
	case a.quits <- struct{}{}:
	case <-a.over:
	}
}

// GivenUpError is Err of an Agent of which nothing runs any more, since the retries are spent.
type GivenUpError struct {
	// Config is the last configuration that Panic was called with.
	Config any
	// Err is what the last epoch ended with.
	Err error
}

// Error says what was given up, and why.
func (e *GivenUpError) Error() string {
	return fmt.Sprintf("run the proxy: its retries are spent: %v", e.Err)
}

// Unwrap is Err.
func (e *GivenUpError) Unwrap() error { return e.Err }

// Run implements Agent.
func (a *agent) Run(ctx context.Context) {
	l := &loop{
		agent: a, machine: supervise.New(a.policy), zero: time.Now(), timer: time.NewTimer(time.Hour),
		epochs: map[int]*epoch{}, events: make(chan report), configs: map[string]any{},
	}
	// What watches an epoch outlives ctx as long as the epoch does.
	watch, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.ctx = watch
	a.err = l.serve(ctx)
	close(a.over)
	cancel()
	l.timer.Stop()
	l.watchers.Wait()
}

// Err implements Agent.
func (a *agent) Err() error {
	select {
	case <-a.over:
		return a.err
	default:
		return nil
	}
}

// status is an epoch's end as the machine knows it.
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
