package supervise

import "time"

// Signal is a Unix signal number.
type Signal int

// The signals that the machine sends.
const (
	SIGTERM Signal = 15
	SIGKILL Signal = 9
)

// Status is the exit status of a process: Signal if that is not 0, else Code, 0–255. A program
// that could not be started has code 127 (not found) or 126, as in a shell.
type Status struct {
	Code   int
	Signal Signal
}

// ExitCode returns the status as a shell shows it: the code, or 128 + the signal.
func (s Status) ExitCode() int {
	if s.Signal != 0 {
		return 128 + int(s.Signal)
	}
	return s.Code
}

// Reason says why an epoch is not running any more.
type Reason int

// The reasons.
const (
	// Ended: its process has exited.
	Ended Reason = iota
	// Refused: no process was started, because a check before it failed (validation), and
	// nothing was changed. It counts as a failure of the configuration.
	Refused
	// Incompatible: no process was started, because it could not take over from the running
	// epoch (another hot restart version, no shared memory): this configuration needs a plain
	// restart. It does not count as a failure.
	Incompatible
)

// Event is something that happened; one of the types below.
type Event interface{ event() }

// The events.
type (
	// Now reports the time. A time before the last one counts as the last one. Jitter in [0,1) is
	// the random part of a delay that this step or the next ones may choose.
	Now struct {
		T      time.Duration
		Jitter float64
	}
	// Desired says which configuration (command line, bootstrap, binary) should run. Hash is
	// not empty and not DrainHash.
	Desired struct{ Hash string }
	// Upstream says whether a new epoch could get its configuration now: the control plane is
	// connected, or its responses are cached. It counts as true before the first such event.
	Upstream struct{ OK bool }
	// Live reports that the epoch serves: its admin interface reports LIVE with the epoch's own
	// number, or, if that cannot be reached, it has taken over from its parent. Live and Exited are
	// the answers to KillUnlessLive.
	Live struct{ Epoch int }
	// Exited reports that the epoch was reaped, or never became a process: see Reason.
	Exited struct {
		Epoch  int
		Status Status
		Reason Reason
		// TookAdmin says that an epoch that exited before it was live has, or may have, taken
		// the admin interface from its parent, which is without one now.
		TookAdmin bool
	}
	// Unlocked answers Unlock. If OK is false, no other epoch can attach to the shared memory.
	Unlocked struct{ OK bool }
	// DrainRequested asks for a drain without shutdown, which follows by Terminate. The time
	// that has passed counts for the drain of Terminate.
	DrainRequested struct{}
	// Terminate requests shutdown. Quick skips the drain; so does a second Terminate, and a third kills.
	Terminate struct{ Quick bool }
	// Drained reports that the epoch's Drain has been answered, successfully or not.
	Drained struct{ Epoch int }
	// Connections reports how many connections the listeners of the draining epoch have; N < 0 if
	// they could not be counted.
	Connections struct{ N, Epoch int }
)

func (Now) event()            {}
func (Desired) event()        {}
func (Upstream) event()       {}
func (Live) event()           {}
func (Exited) event()         {}
func (Unlocked) event()       {}
func (DrainRequested) event() {}
func (Terminate) event()      {}
func (Drained) event()        {}
func (Connections) event()    {}

// Effect is something to perform; one of the types below.
type Effect interface{ effect() }

// The effects.
type (
	// Start starts the epoch with the configuration. Live or Exited answers, Exited also if it
	// cannot be started. A higher epoch than 0 takes over from the one below, which is running.
	Start struct {
		Epoch int
		Hash  string
	}
	// Unlock releases the shared memory after the epoch, which was not live, was reaped;
	// Unlocked answers.
	Unlock struct{ Epoch int }
	// Drain drains the listeners of the epoch. Drained answers, and Connections follow. With
	// NoAdmin the epoch has no admin interface, so that it cannot be drained: its inbound
	// connections are to be counted in the kernel's socket table, without a Drained. A second
	// Drain of an epoch replaces the first.
	Drain struct {
		Epoch   int
		NoAdmin bool
	}
	// Kill sends a signal to the epoch; Exited follows.
	Kill struct {
		Epoch  int
		Signal Signal
	}
	// KillUnlessLive ends by SIGKILL an epoch that was not reported live in time, unless it
	// serves: an Envoy that has told its parent to stop listening is the only one that accepts
	// connections, even if its admin interface cannot be reached. Live answers if it serves,
	// else Exited.
	KillUnlessLive struct{ Epoch int }
	// Panic reports that the budget of the configuration is exhausted.
	Panic struct{ Hash string }
	// Remove removes the shared memory: nothing is running any more, and Done follows.
	Remove struct{}
	// Wake asks for a Now at the time At. It replaces an earlier Wake.
	Wake struct{ At time.Duration }
	// Done ends the program with the exit code.
	Done struct{ Code int }
)

func (Start) effect()          {}
func (Unlock) effect()         {}
func (Drain) effect()          {}
func (Kill) effect()           {}
func (KillUnlessLive) effect() {}
func (Panic) effect()          {}
func (Remove) effect()         {}
func (Wake) effect()           {}
func (Done) effect()           {}

// Phase is the state of a running epoch.
type Phase string

// The phases.
const (
	// Starting: not live yet.
	Starting Phase = "starting"
	// Serving: live, and no higher epoch is.
	Serving Phase = "live"
	// Parent: its child is live; it drains and exits by itself.
	Parent Phase = "parent"
	// Terminating: a signal was sent, or KillUnlessLive is not answered.
	Terminating Phase = "terminating"
)

// EpochState is one running epoch.
type EpochState struct {
	Number int
	Hash   string
	Phase  Phase
	// NoAdmin says that it lost its admin interface to a child that failed.
	NoAdmin bool
}

// Waiting says why the desired configuration is not started.
type Waiting string

// The reasons for waiting.
const (
	// WaitNothing: it is running or starting, or nothing is desired, or it is given up.
	WaitNothing Waiting = ""
	// WaitLive: another epoch is starting.
	WaitLive Waiting = "an epoch is starting"
	// WaitExit: Epochs.Max epochs are running, or the highest is terminating.
	WaitExit Waiting = "an older epoch has not exited yet"
	// WaitUpstream: see Upstream.
	WaitUpstream Waiting = "the control plane is not connected and no configuration is cached"
	// WaitRetry: it failed and its backoff has not passed.
	WaitRetry Waiting = "the backoff after a failure has not passed yet"
	// WaitUnlock: Unlock is not answered.
	WaitUnlock Waiting = "the shared memory of a failed epoch is being released"
	// WaitEnd: the running epoch is ended first, because nothing can take over from it.
	WaitEnd Waiting = "the running epoch is ended first, without a hot restart"
)

// Goal is the configuration that should run.
type Goal struct {
	// Desired is the newest desired configuration; Good is the one that was live last.
	Desired, Good string
	// Waiting says why the desired one is not started.
	Waiting Waiting
	// GivenUp says that the desired one's budget is exhausted; if anything is running, it is the last good one.
	GivenUp bool
	// Plain says that nothing can take over from the running epoch: the next configuration needs a plain restart.
	Plain bool
}

// View is the state of a machine between two steps.
type View struct {
	// Running says that epoch Epoch has been started and not yet reaped; Hash is its
	// configuration. Of several epochs it is the one that serves: the highest that is live, else
	// the highest.
	Running bool
	Epoch   int
	Hash    string
	// Live says that epoch Epoch was reported live.
	Live bool
	// Draining says that a drain was requested, Ending that shutdown was, or has begun.
	Draining, Ending bool
	// Restarts counts restarts after failures since the beginning; Left is what remains of
	// the desired configuration's budget.
	Restarts, Left int
	// Last is the status of the epoch that exited last; it is meaningless if Ends, the number of
	// exits, is 0.
	Last Status
	Ends int
	// Epochs are all that are running, lowest first.
	Epochs []EpochState
	// Goal is what should run.
	Goal Goal
}
