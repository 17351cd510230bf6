package supervise

import "time"

// Signal is a Unix signal number.
type Signal int

// The signals that the machine sends.
const (
	SIGTERM Signal = 15
	SIGKILL Signal = 9
)

// Status is how a process ended: by Signal if that is not 0, else by exit with Code. A
// program that could not be started has code 127 (not found) or 126, as in a shell.
type Status struct {
	Code   int
	Signal Signal
}

// ExitCode is the status as a shell shows it: the code, or 128 + the signal.
func (s Status) ExitCode() int {
	if s.Signal != 0 {
		return 128 + int(s.Signal)
	}
	return s.Code
}

// Why says what kind of end an epoch had.
type Why int

// The kinds of ends.
const (
	// Ended is the end of a process that had been started.
	Ended Why = iota
	// Refused says that no process was started, because a check before it failed (validation):
	// nothing was touched. It counts as a failure of the configuration.
	Refused
	// Incompatible says that no process was started, because it could not take over from the
	// one that runs (another version of hot restart, no shared memory): only a
	// plain restart is left for this configuration. It is no failure.
	Incompatible
)

// Event is something that happened; one of the types below.
type Event interface{ event() }

// The events.
type (
	// Now says what time it is. A time before the last one is taken for the last one.
	// Jitter in [0,1) is fresh randomness for a delay that this step or the next ones may choose.
	Now struct {
		T      time.Duration
		Jitter float64
	}
	// Desired says which configuration (command line, bootstrap, binary) should run. Hash is
	// not empty and not DrainHash.
	Desired struct{ Hash string }
	// Upstream says whether a new epoch could get its configuration now: the control plane is connected, or
	// something is kept. It is taken for true until said otherwise.
	Upstream struct{ OK bool }
	// Live says that the epoch serves: its admin interface says LIVE with its own number, or where that
	// cannot be asked, it has taken over from its parent. It is also the one answer to GiveUp beside Exited.
	Live struct{ Epoch int }
	// Exited says that the epoch has ended and is reaped, or never became a process (Why).
	Exited struct {
		Epoch  int
		Status Status
		Why    Why
		// TookAdmin says of an epoch that ended before it was live that it had, or may have,
		// taken the admin interface from its parent, which is without it now.
		TookAdmin bool
	}
	// Unlocked answers Unlock. Where OK is false the shared memory cannot be taken by another epoch.
	Unlocked struct{ OK bool }
	// Retire asks for a drain without an end: the end has been announced, and comes by Terminate.
	// Time spent in it counts for the drain that Terminate would begin.
	Retire struct{}
	// Terminate asks for the end. Quick skips the drain; so does a second Terminate, and a third kills.
	Terminate struct{ Quick bool }
	// Drained says that the drain which was asked of the epoch has been answered, well or not.
	Drained struct{ Epoch int }
	// Connections says how many connections the listeners of the draining epoch have; below 0 that it could
	// not be asked.
	Connections struct{ N, Epoch int }
)

func (Now) event()         {}
func (Desired) event()     {}
func (Upstream) event()    {}
func (Live) event()        {}
func (Exited) event()      {}
func (Unlocked) event()    {}
func (Retire) event()      {}
func (Terminate) event()   {}
func (Drained) event()     {}
func (Connections) event() {}

// Effect is something to do; one of the types below.
type Effect interface{ effect() }

// The effects.
type (
	// Start starts the epoch with the configuration; Live or Exited answer, Exited also when it cannot be
	// started. Epoch 0 begins anew; a higher one takes over from the epoch one below, which runs.
	Start struct {
		Epoch int
		Hash  string
	}
	// Unlock makes the shared memory takeable again after the epoch, which was not live, was
	// reaped; Unlocked answers.
	Unlock struct{ Epoch int }
	// Drain tells the epoch to drain its listeners; Drained answers, and Connections from
	// then on. Blind says that the epoch has no admin interface: it cannot be told, and its inbound connections are
	// to be counted in the kernel's socket table, from now on and without a Drained. A second Drain of an epoch
	// takes the place of the first.
	Drain struct {
		Epoch int
		Blind bool
	}
	// Kill sends a signal to the epoch; Exited follows some time.
	Kill struct {
		Epoch  int
		Signal Signal
	}
	// GiveUp ends, by SIGKILL, an epoch that is not known to be live in time, unless it serves after all: an
	// Envoy that has told its parent to stop listening is the only one that accepts connections, also where nobody
	// can reach its admin interface. Live answers where it serves, else Exited.
	GiveUp struct{ Epoch int }
	// Panic says that the configuration is given up: its budget is spent.
	Panic struct{ Hash string }
	// Remove removes the shared memory: nothing runs any more, and Done follows.
	Remove struct{}
	// Wake asks for Now at the time At. A newer Wake takes the place of an older one.
	Wake struct{ At time.Duration }
	// Done says that the program ends, with the exit code.
	Done struct{ Code int }
)

func (Start) effect()  {}
func (Unlock) effect() {}
func (Drain) effect()  {}
func (Kill) effect()   {}
func (GiveUp) effect() {}
func (Panic) effect()  {}
func (Remove) effect() {}
func (Wake) effect()   {}
func (Done) effect()   {}

// Phase is how far an epoch has come.
type Phase string

// The phases.
const (
	// Starting runs and is not live yet.
	Starting Phase = "starting"
	// Serving is live, and none above it is.
	Serving Phase = "live"
	// Leaving is a parent whose child is live: it drains and ends by itself.
	Leaving Phase = "parent"
	// Dying has been sent a signal, or is given up.
	Dying Phase = "dying"
)

// EpochState is one epoch that runs.
type EpochState struct {
	Number int
	Hash   string
	Phase  Phase
	// Adminless says that its admin interface was lost to a child that failed.
	Adminless bool
}

// Waiting says what keeps the desired configuration from being started.
type Waiting string

// What may be waited for.
const (
	// WaitNothing: it runs, or is starting, or nothing is desired, or it was given up.
	WaitNothing Waiting = ""
	// WaitLive: an epoch is starting.
	WaitLive Waiting = "an epoch is starting"
	// WaitExit: as many epochs run as may.
	WaitExit Waiting = "an older epoch has not ended yet"
	// WaitUpstream: see Upstream.
	WaitUpstream Waiting = "the control plane is away and no configuration is kept"
	// WaitRetry: it failed and is tried again later.
	WaitRetry Waiting = "a restart after a failure is due later"
	// WaitUnlock: the shared memory is made takeable.
	WaitUnlock Waiting = "the shared memory of a failed epoch is being released"
	// WaitEnd: what runs is being ended first, because it cannot be taken over.
	WaitEnd Waiting = "what runs is ended first, without a hot restart"
)

// Goal is what should run, and what stands against it.
type Goal struct {
	// Desired is the newest desired configuration; Good is the one that was live last.
	Desired, Good string
	// Waiting says what the desired one waits for.
	Waiting Waiting
	// GivenUp says that its budget is spent; what runs, if anything does, is the last good one.
	GivenUp bool
	// Plain says that what runs cannot be taken over: the next configuration costs a plain restart.
	Plain bool
}

// View is what others may know of the machine between two steps.
type View struct {
	// Running says that epoch Epoch has been started and not yet reaped; Hash is its configuration. Of
	// several epochs it is the one that serves: the highest that is live, else the highest.
	Running bool
	Epoch   int
	Hash    string
	// Live says that it has said so.
	Live bool
	// Draining says that a drain was asked for; Ending that the end was, or has come.
	Draining, Ending bool
	// Restarts counts restarts after failures since the beginning; Left is what remains of
	// the desired configuration's budget.
	Restarts, Left int
	// Last is how the last epoch ended; it means something only where Ends is above 0.
	Last Status
	Ends int
	// Epochs are all that run, lowest first.
	Epochs []EpochState
	// Goal is what should run.
	Goal Goal
}
