// Package envoy runs Envoy as the supervise machine says.
//
// It is the edge that performs the machine's effects: it starts one process per epoch in
// a process group of its own, passes its output on, asks its admin interface, sends signals and reaps.
// Run blocks until the machine is done; the end of its context is the request to
// terminate, and Run then still drains. When it returns, no process that it started is
// left; should the agent itself be killed, the kernel kills Envoy with it.
// State, Drain, Quit, Desire and Admin may be used by any goroutine.
package envoy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/supervise"
)

// Launch is one desired way to run Envoy.
type Launch struct {
	// Hash identifies the configuration: equal hashes are never restarted for one another. Where
	// it is empty, Desire and New make it of the other fields; that does not see into the bootstrap.
	Hash string
	// Binary is the program's path.
	Binary string
	// Args is its command line without the program (Arguments.List).
	Args []string
	// Env is its environment; nil hands on the agent's own.
	Env []string
}

// hashed fills in a missing Hash.
func (l Launch) hashed() Launch {
	if l.Hash == "" {
		sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", l.Binary, l.Args, l.Env))
		l.Hash = hex.EncodeToString(sum[:8])
	}
	return l
}

// Options say how Envoy is run. Launch, Admin and Log are needed.
type Options struct {
	// Launch is what is desired at first.
	Launch Launch
	// Admin is the address of its admin interface, host:port or the path of a Unix socket.
	Admin string
	// Policy is how patient to be; the zero value stands for supervise.DefaultPolicy.
	Policy supervise.Policy
	// InboundOnly drains the listeners marked as inbound only (sidecars); else all (gateways).
	InboundOnly bool
	// IgnorePorts are ports of listeners whose connections do not count in a drain until
	// none is left: probes and metrics.
	IgnorePorts []int
	// As is the user that Envoy runs as; nil is the agent's own.
	As *syscall.Credential
	// Stdout and Stderr get Envoy's output in whole lines; nil discards it. They may be shared with loggers
	// that write whole lines and lock.
	Stdout, Stderr io.Writer
	// Log gets what happens to Envoy.
	Log *slog.Logger
}

// State is what is known of Envoy at a moment.
type State struct {
	// View is the machine's own: running, epoch, live, draining, restarts, last status.
	supervise.View
	// PID is that of the running process; 0 where none runs.
	PID int
	// Started is when it was started; Since is when it was found live.
	Started, Since time.Time
	// LastExit says in words how the last one ended, and LastExitAt when; empty and zero if none has.
	LastExit   string
	LastExitAt time.Time
	// Over says that Run is done: nothing runs and nothing will.
	Over bool
}

// ExitError is what Run returns when Envoy ended for good without having been asked to.
type ExitError struct {
	// Code is the exit code that tells the truth about it, never 0.
	Code int
	// Last says in words how it ended.
	Last string
}

// Error says that it is over, and how the last one ended.
func (e *ExitError) Error() string {
	return fmt.Sprintf("Envoy %s, and has been restarted as often as it may be", e.Last)
}

// Runner supervises Envoy. Make it with New and call Run once.
type Runner struct {
	o       Options
	admin   *Admin
	state   atomic.Pointer[State]
	events  chan report
	desires chan Launch
	over    chan struct{} // closed when Run has ended
}

// New prepares a Runner; nothing is started before Run.
func New(o Options) *Runner {
	if o.Policy == (supervise.Policy{}) {
		o.Policy = supervise.DefaultPolicy()
	}
	if o.Stdout == nil {
		o.Stdout = io.Discard
	}
	if o.Stderr == nil {
		o.Stderr = io.Discard
	}
	o.Launch = o.Launch.hashed()
	r := &Runner{
		o: o, admin: NewAdmin(o.Admin),
		events: make(chan report, 16), desires: make(chan Launch, 1), over: make(chan struct{}),
	}
	r.state.Store(&State{})
	return r
}

// Admin is the client of Envoy's admin interface.
func (r *Runner) Admin() *Admin { return r.admin }

// State tells what is known now. What it points to is never changed.
func (r *Runner) State() *State { return r.state.Load() }

// Drain announces the end: Envoy is told to drain and goes on running until Run's context ends.
// The time that it has drained by then counts.
func (r *Runner) Drain() { r.tell(supervise.Retire{}, nil) }

// Quit ends Envoy without a drain, or cuts one short that is under way. Run then returns nil.
func (r *Runner) Quit() { r.tell(supervise.Terminate{Quick: true}, nil) }

// Desire makes l what should run. The same hash as before is a no-op; another one replaces what runs.
func (r *Runner) Desire(l Launch) {
	select {
	case r.desires <- l.hashed():
	case <-r.over:
	}
}

// tell reports an event to the loop, unless that is over.
func (r *Runner) tell(e supervise.Event, about *attempt) {
	select {
	case r.events <- report{e, about}:
	case <-r.over:
	}
}

// Run runs Envoy until it is done: nil after an end that was asked for, an *ExitError otherwise.
func (r *Runner) Run(ctx context.Context) error {
	// The end of ctx begins the drain; what is needed for it must go on.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l := &loop{
		Runner: r, work: work, launcher: newLauncher(), machine: supervise.New(r.o.Policy),
		zero: time.Now(), timer: time.NewTimer(time.Hour), launches: map[string]Launch{r.o.Launch.Hash: r.o.Launch},
	}
	var threads sync.WaitGroup
	threads.Go(l.launcher.run)
	l.step(supervise.Desired{Hash: r.o.Launch.Hash})
	code := l.serve(ctx)
	cancel()
	l.timer.Stop()
	close(r.over)
	l.helpers.Wait()
	l.launcher.close()
	threads.Wait()
	if code == 0 {
		return nil
	}
	return &ExitError{Code: code, Last: r.State().LastExit}
}
