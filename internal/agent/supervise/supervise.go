// Package supervise decides when Envoy is started, drained and killed.
//
// It is a machine: Step takes one event and returns the effects to perform, in order.
// It holds no clock, goroutine, process or file. Times are durations since whatever
// moment the caller calls zero; the caller says Now before other events, performs Wake by
// saying Now again at that time, and hands in the randomness of delays. A Machine is used by one
// goroutine at a time.
//
// What it keeps, whatever the order of events (the property test and the fuzzer hold it to this):
//
//   - At most one epoch runs; its number is 0. It is started in place, only after the one
//     before has been reaped.
//   - What is started is always the newest desired configuration. Nothing is started before
//     a first one is known or after the end was asked for.
//   - The same configuration again is a no-op: it neither restarts, nor cancels a
//     waiting restart, nor renews the budget.
//   - An end that nobody asked for is a crash, also with status 0. A crash is answered
//     by a restart after a delay that doubles, or, once the budget is spent, by Done. The
//     budget belongs to the desired configuration and is renewed with it, and by a run that
//     was live for long. A configuration that replaces another costs no budget and waits for no delay.
//   - Only a running epoch is killed: by SIGTERM first, by SIGKILL after the grace at
//     the earliest, unless the end is hastened.
//   - Asked to end, it drains an Envoy that is live, waits until the drain is over (one
//     deadline, or no connections left), and then kills. Asked again, it waits no longer.
//   - Done comes once, last, and only when nothing runs. Its code is 0 exactly when the end was asked for;
//     else it is Envoy's own status (128 + signal, as a shell says it; 1 for an end with status 0).
//   - Whenever it waits for time to pass, a Wake for that time has been given.
//
// Epochs stand in all events and effects, because hot restart is this machine with more
// than one of them. An event of an epoch that does not run is ignored.
package supervise

import "time"

// Policy is how patient the machine is. The zero value never waits and never restarts.
type Policy struct {
	// Budget is how often one configuration is restarted after crashes before the machine gives up.
	Budget int
	// Backoff is the delay before the first restart; it doubles with each one.
	Backoff time.Duration
	// Jitter is the greatest share of a delay that is added to it at random, 0 to 1.
	Jitter float64
	// HealthyFor is how long an epoch must have been live for its crash to count as a
	// first one. 0 means that no run is long enough.
	HealthyFor time.Duration
	// Drain is how long an Envoy that has been told to drain is left running, unless ExitOnZero.
	Drain time.Duration
	// ExitOnZero ends the drain when no connection is left, instead of after Drain.
	ExitOnZero bool
	// MinDrain is how long such a drain lasts at least.
	MinDrain time.Duration
	// MaxDrain is how long it lasts at most; 0 leaves the bound to whoever supervises the agent.
	MaxDrain time.Duration
	// MaxUnknown is how many counts of connections in a row may be unknown before such a drain ends.
	MaxUnknown int
	// Grace is the time between SIGTERM and SIGKILL.
	Grace time.Duration
}

// DefaultPolicy is the contract's: 10 restarts from 200 ms doubling, a drain of 5 s
// (terminationDrainDuration and MINIMUM_DRAIN_DURATION alike), SIGKILL 1 s after SIGTERM.
func DefaultPolicy() Policy {
	return Policy{
		Budget: 10, Backoff: 200 * time.Millisecond, Jitter: 0.1, HealthyFor: 5 * time.Minute,
		Drain: 5 * time.Second, MinDrain: 5 * time.Second, MaxUnknown: 5, Grace: time.Second,
	}
}

// delay is the wait before restart number used (from 0), with jitter in [0,1).
func (p Policy) delay(used int, jitter float64) time.Duration {
	const ceiling = time.Hour // far beyond any sensible budget; keeps the doubling from overflowing
	d := p.Backoff
	for range used {
		if d *= 2; d >= ceiling {
			d = ceiling
			break
		}
	}
	return d + time.Duration(float64(d)*p.Jitter*jitter)
}

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
	// Desired says which configuration (command line, bootstrap, binary) should run. Hash is not empty.
	Desired struct{ Hash string }
	// Live says that the epoch serves.
	Live struct{ Epoch int }
	// Exited says that the epoch has ended and is reaped.
	Exited struct {
		Epoch  int
		Status Status
	}
	// Retire asks for a drain without an end: the end has been announced, and comes by Terminate.
	// Time spent in it counts for the drain that Terminate would begin.
	Retire struct{}
	// Terminate asks for the end. Quick skips the drain; so does a second Terminate, and a third kills.
	Terminate struct{ Quick bool }
	// Drained says that the drain which was asked for has been answered, well or not.
	Drained struct{}
	// Connections says how many connections Envoy's listeners have; below 0 that it could not be asked.
	Connections struct{ N int }
)

func (Now) event()         {}
func (Desired) event()     {}
func (Live) event()        {}
func (Exited) event()      {}
func (Retire) event()      {}
func (Terminate) event()   {}
func (Drained) event()     {}
func (Connections) event() {}

// Effect is something to do; one of the types below.
type Effect interface{ effect() }

// The effects.
type (
	// Start starts the epoch with the configuration; Exited answers, also when it cannot be started.
	Start struct {
		Epoch int
		Hash  string
	}
	// Drain tells the running Envoy to drain its listeners; Drained answers.
	Drain struct{}
	// Kill sends a signal to the epoch; Exited follows some time.
	Kill struct {
		Epoch  int
		Signal Signal
	}
	// Wake asks for Now at the time At. A newer Wake takes the place of an older one.
	Wake struct{ At time.Duration }
	// Done says that the program ends, with the exit code.
	Done struct{ Code int }
)

func (Start) effect() {}
func (Drain) effect() {}
func (Kill) effect()  {}
func (Wake) effect()  {}
func (Done) effect()  {}

// View is what others may know of the machine between two steps.
type View struct {
	// Running says that epoch Epoch has been started and not yet reaped; Hash is its configuration.
	Running bool
	Epoch   int
	Hash    string
	// Live says that it has said so.
	Live bool
	// Draining says that a drain was asked for; Ending that the end was.
	Draining, Ending bool
	// Restarts counts restarts after crashes since the beginning; Left is what remains of the budget.
	Restarts, Left int
	// Last is how the last epoch ended; it means something only where Ends is above 0.
	Last Status
	Ends int
}
