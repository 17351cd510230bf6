// Package envoy runs Envoy as the supervise machine says.
//
// It is the edge that performs the machine's effects: it starts one process per epoch in
// a process group of its own, passes its output on, asks its admin interface, sends signals and reaps.
// For hot restarts it also owns the shared memory: a base id that no other program uses, the flag
// that a failed child leaves behind, and its removal; and it checks before a child is started
// whether that could take over at all (the bootstrap is good, the binaries understand each other).
// Run blocks until the machine is done; the end of its context is the request to
// terminate, and Run then still drains. When it returns, no process that it started is
// left; should the agent itself be killed, the kernel kills Envoy with it.
// State, Drain, Quit, Again, Desire and Admin may be used by any goroutine.
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
	// Args is its command line without the program (Arguments.List). With hot restarts, it
	// has neither --disable-hot-restart nor --concurrency; both are added at the start.
	Args []string
	// Workers is the number of worker threads where Args does not say it; 0 leaves it to Envoy.
	Workers int
	// Env is its environment; nil hands on the agent's own.
	Env []string
	// As is the user that it runs as; nil is the agent's own.
	As *User
}

// hashed fills in a missing Hash.
func (l Launch) hashed() Launch {
	if l.Hash == "" {
		sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %d %v", l.Binary, l.Args, l.Env, l.Workers, l.As))
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
	// Hot is for a Policy with hot restarts.
	Hot Hot
	// InboundOnly drains the listeners marked as inbound only (sidecars); else all (gateways).
	InboundOnly bool
	// IgnorePorts are ports of listeners whose connections do not count in a drain until
	// none is left: probes and metrics.
	IgnorePorts []int
	// Stdout and Stderr get Envoy's output in whole lines; nil discards it. They may be shared with loggers
	// that write whole lines and lock.
	Stdout, Stderr io.Writer
	// Log gets what happens to Envoy.
	Log *slog.Logger
}

// Hot says how hot restarts are made.
type Hot struct {
	// ParentShutdown is how long after a child is live its parent is ended; whole seconds, 60 where
	// it is 0. It should be longer than the drain of Arguments.
	ParentShutdown time.Duration
	// Upstream carries, at each change, whether a new Envoy could get its configuration now. Until
	// the first value, and if Upstream is nil, it could.
	Upstream <-chan bool
	// InboundPorts are the ports whose connections count where Envoy has no admin interface to ask; none for all.
	InboundPorts []int
	// SharedMemory is the folder of POSIX shared memory; "" for /dev/shm.
	SharedMemory string
}

// Process is one Envoy that runs.
type Process struct {
	Epoch int
	PID   int
	// Workers is the number of worker threads, once it is live.
	Workers int
	// Started is when it was started; Since is when it was found live, zero if it has not been.
	Started, Since time.Time
}

// State is what is known of Envoy at a moment.
type State struct {
	// View is the machine's own: running, epoch, live, draining, restarts, last status.
	supervise.View
	// Processes are all that run, lowest epoch first.
	Processes []Process
	// Notes say what is not as it was asked for, and why, in sentences by subject.
	Notes map[string]string
	// PID is that of the running process; 0 where none runs.
	PID int
	// Started is when it was started; Since is when it was found live.
	Started, Since time.Time
	// LastExit says in words how the last one ended, and LastExitAt when; empty and zero if none has.
	LastExit   string
	LastExitAt time.Time
	// Over says that Run is done: nothing runs and nothing will.
	Over bool

	version string // of hot restart, of the Envoy that was live last
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

// Begin makes l what is desired at first, in place of Options.Launch. Call it before Run.
func (r *Runner) Begin(l Launch) { r.o.Launch = l.hashed() }

// Admin is the client of Envoy's admin interface.
func (r *Runner) Admin() *Admin { return r.admin }

// State tells what is known now. What it points to is never changed.
func (r *Runner) State() *State { return r.state.Load() }

// Drain announces the end: Envoy is told to drain and goes on running until Run's context ends.
// The time that it has drained by then counts.
func (r *Runner) Drain() { r.tell(supervise.DrainRequested{}, nil) }

// Quit ends Envoy without a drain, or cuts one short that is under way. Run then returns nil.
func (r *Runner) Quit() { r.tell(supervise.Terminate{Quick: true}, nil) }

// Again asks once more for the end that the end of Run's context asked for: the first time it skips the rest of the
// drain, after that it kills. Policies with Old.OneSignal pass it over.
func (r *Runner) Again() { r.tell(supervise.Terminate{}, nil) }

// Desire makes l what should run. The same hash as before restarts nothing: its
// arguments hold from the next start on. Another hash replaces what runs, by a hot restart where the policy
// has them.
func (r *Runner) Desire(l Launch) {
	select {
	case r.desires <- l.hashed():
	case <-r.over:
	}
}

// tell reports an event to the loop, unless that is over.
func (r *Runner) tell(e supervise.Event, about *attempt) { r.report(report{event: e, about: about}) }

func (r *Runner) report(what report) {
	select {
	case r.events <- what:
	case <-r.over:
	}
}

// Run runs Envoy until it is done: nil after an end that was asked for, an *ExitError otherwise. Where ctx has
// ended already, it starts nothing.
func (r *Runner) Run(ctx context.Context) error {
	if ctx.Err() != nil {
		r.state.Store(&State{Over: true})
		close(r.over)
		return nil
	}
	// The end of ctx begins the drain; what is needed for it must go on.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l := &loop{
		Runner: r, work: work, launcher: newLauncher(), attempts: map[int]*attempt{},
		zero: time.Now(), timer: time.NewTimer(time.Hour), launches: map[string]Launch{r.o.Launch.Hash: r.o.Launch},
	}
	l.machine = supervise.New(l.policy())
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
