package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/supervise"
)

// Agent runs a Proxy in epochs. Make it with NewAgent and call Run once; all other methods may be
// called by any goroutine, before and while it runs.
type Agent struct {
	proxy   Proxy
	policy  supervise.Policy
	log     *slog.Logger
	configs chan any
	orders  chan order
	over    chan struct{} // closed when Run returns
}

// order is a configuration and whom to tell when there is nothing to wait for any longer.
type order struct {
	config any
	done   chan struct{}
}

// Option changes what NewAgent makes.
type Option func(*Agent)

// WithDrain makes the agent start one more epoch, with DrainConfig, when Run's context ends, and
// wait for d before it aborts all of them.
func WithDrain(d time.Duration) Option {
	return func(a *Agent) {
		a.policy.Drain, a.policy.Old.NoDrain, a.policy.Old.DrainEpoch = d, false, true
	}
}

// WithGrace sets how long, at the end, Run waits for aborted epochs before it returns without
// them; 1 s by default. 0 does not wait at all.
func WithGrace(d time.Duration) Option {
	return func(a *Agent) { a.policy.Grace = d }
}

// WithLiveWithin sets how long an epoch may take to be live (see Liver) where another one waits for it
// or has to be taken over; 20 s by default.
func WithLiveWithin(d time.Duration) Option {
	return func(a *Agent) { a.policy.Epochs.LiveWithin = d }
}

// WithMaxEpochs sets how many epochs run at most; below 0 any number. It is 2 for a Liver and else -1 by default.
func WithMaxEpochs(n int) Option {
	return func(a *Agent) { a.policy.Epochs.Max = n }
}

// WithLogger makes the agent tell what it does; without it, it is silent.
func WithLogger(l *slog.Logger) Option {
	return func(a *Agent) { a.log = l }
}

// NewAgent makes an agent that runs p. Nothing is started before Run.
func NewAgent(p Proxy, r Retry, options ...Option) *Agent {
	policy := supervise.Policy2017()
	policy.Budget, policy.Backoff, policy.Grace = r.MaxRetries, r.InitialInterval, time.Second
	if _, tells := p.(Liver); tells {
		policy.Old.AbortAll = false
		policy.Epochs = supervise.Epochs{Max: 2, LiveWithin: 20 * time.Second}
	}
	a := &Agent{
		proxy: p, policy: policy, log: slog.New(slog.DiscardHandler),
		configs: make(chan any), orders: make(chan order), over: make(chan struct{}),
	}
	for _, o := range options {
		o(a)
	}
	return a
}

// ScheduleConfigUpdate makes config the desired configuration. It blocks until the control loop has taken it,
// which does not mean that an epoch runs with it. After Run has returned it does nothing.
func (a *Agent) ScheduleConfigUpdate(config any) {
	select {
	case a.configs <- config:
	case <-a.over:
	}
}

// ConfigCh is the channel of ScheduleConfigUpdate, for those who select. Nobody receives from it
// after Run has returned; it is never closed, and must not be.
func (a *Agent) ConfigCh() chan<- any { return a.configs }

// Restart makes config the desired configuration and waits until an epoch was started with it, or it
// turned out that none will be: it runs already, a newer one has taken its place, its retries are spent, or Run ends.
func (a *Agent) Restart(config any) {
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

// GivenUpError is what Run returns when nothing runs any more and the retries are spent.
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

// Run is the control loop. It blocks until ctx ends, and then aborts all epochs that run,
// waits for them (see WithGrace) and for calls of Live, and returns nil; or until the retries are spent and nothing runs, and then it returns a
// *GivenUpError.
func (a *Agent) Run(ctx context.Context) error {
	l := &loop{
		Agent: a, machine: supervise.New(a.policy), zero: time.Now(), timer: time.NewTimer(time.Hour),
		epochs: map[int]*epoch{}, events: make(chan report), configs: map[string]any{},
	}
	// What watches an epoch outlives ctx as long as the epoch does.
	watch, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.ctx = watch
	err := l.serve(ctx)
	close(a.over)
	cancel()
	l.timer.Stop()
	l.watchers.Wait()
	return err
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
