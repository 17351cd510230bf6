package supervise

import "time"

// Policy is how patient the machine is, and whose habits it has. The zero value never waits and never
// restarts. Policies can be compared with ==.
type Policy struct {
	// Budget is how often one configuration is tried again after failures before it is given up.
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
	// Epochs says how epochs follow one another.
	Epochs Epochs
	// Old selects the habits of older agents; its zero value has none.
	Old Old
}

// Epochs says how epochs follow one another. The zero value has one at a time, which ends
// before the next one starts.
type Epochs struct {
	// Max is the most epochs at once: 0 and 1 for one that is replaced in place, 2 for Envoy (a third one would
	// make the second end the first at once), below 0 for any number.
	Max int
	// LiveWithin bounds how long an epoch may take to be live where something waits for it,
	// which is a parent or a newer configuration. 0 is no bound.
	LiveWithin time.Duration
	// HotRestart says that the epochs are Envoys that share memory: Unlock, Remove and the
	// care for the parent's admin interface are needed.
	HotRestart bool
}

// Exit says what code a machine is done with where the end was not asked for.
type Exit int

// The ways to exit.
const (
	// ExitTruth is Envoy's own status, and never 0.
	ExitTruth Exit = iota
	// ExitZero is 0 whatever happened, as in 2020 and in Istio today.
	ExitZero
	// ExitPanic is 255, as in 2017 and 2019.
	ExitPanic
)

// Old are habits of older agents, each of which breaks a promise of this package's
// comment. The comments name it.
type Old struct {
	// AbortAll ends all other epochs when one fails, parents too (against 4); the restart does not wait for them. 2017, 2019.
	AbortAll bool
	// CleanEnds takes an end with status 0 for a wish: it is not restarted (against 6). 2017 to 2021.
	CleanEnds bool
	// NoRetry leaves a failed configuration alone until another one is desired (against 4, 6). Since 2020.
	NoRetry bool
	// EndWhenEmpty is done when the last epoch has ended (against 6). Since 2020.
	EndWhenEmpty bool
	// Ascending never uses a number twice (against 1). 2020.
	Ascending bool
	// StartLate starts the next epoch after LiveWithin without giving the late one up (against 3). 2020.
	StartLate bool
	// DrainEpoch starts, at the end, one more epoch with DrainHash, which makes the one that
	// serves a draining parent; after Policy.Drain everything is aborted (against 7). 2019.
	DrainEpoch bool
	// Abort sends SIGKILL where SIGTERM would be sent (against 7). All of them.
	Abort bool
	// NoDrain ends everything at once (against 7). 2017.
	NoDrain bool
	// Leave is done Policy.Grace after the last signal, whatever still runs (against 7). 2017, 2019.
	Leave bool
	// OneSignal ignores all but the first Terminate (against 7). Since 2020.
	OneSignal bool
	// Exit is the code that an end that was not asked for has.
	Exit Exit
}

// DrainHash is the configuration that Old.DrainEpoch starts at the end.
const DrainHash = "drain"

// DefaultPolicy is the contract's for one Envoy without hot restart: 10 restarts from 200 ms doubling, a drain of 5 s
// (terminationDrainDuration and MINIMUM_DRAIN_DURATION alike), SIGKILL 1 s after SIGTERM.
func DefaultPolicy() Policy {
	return Policy{
		Budget: 10, Backoff: 200 * time.Millisecond, Jitter: 0.1, HealthyFor: 5 * time.Minute,
		Drain: 5 * time.Second, MinDrain: 5 * time.Second, MaxUnknown: 5, Grace: time.Second,
	}
}

// HotPolicy is DefaultPolicy with hot restarts of real Envoys: two epochs at once, 20 s to be live.
func HotPolicy() Policy {
	p := DefaultPolicy()
	p.Epochs = Epochs{Max: 2, LiveWithin: 20 * time.Second, HotRestart: true}
	return p
}

// Policy2017 is the agent of the package documentation and of the proxy controller's page of 2017: any number of
// epochs, all aborted when one fails, 10 retries, an end at once. [agent 2.1]
func Policy2017() Policy {
	return Policy{
		Budget: 10, Backoff: 200 * time.Millisecond, Epochs: Epochs{Max: -1},
		Old: Old{AbortAll: true, CleanEnds: true, Abort: true, NoDrain: true, Leave: true, Exit: ExitPanic},
	}
}

// Policy2019 is that of 2019, which drains by one more epoch for 5 s. [agent 2.2]
func Policy2019() Policy {
	p := Policy2017()
	p.Drain, p.Old.NoDrain, p.Old.DrainEpoch = 5*time.Second, false, true
	return p
}

// Policy2020 is that of the article of 2020: it waits up to 20 s for an epoch to be live, never tries again, drains by the admin
// interface, and ends with 0 when nothing runs. The one difference: of several configurations that wait, only
// the newest is run. [agent 2.3]
func Policy2020() Policy {
	return Policy{
		Drain: 5 * time.Second, Epochs: Epochs{Max: -1, LiveWithin: 20 * time.Second},
		Old: Old{
			CleanEnds: true, NoRetry: true, EndWhenEmpty: true, Ascending: true, StartLate: true, Abort: true,
			OneSignal: true, Exit: ExitZero,
		},
	}
}

// Policy2021 is that of the article on 1.11, and of Istio today: one epoch, a drain, SIGKILL, exit code 0. [agent L3–L7]
func Policy2021() Policy {
	p := DefaultPolicy()
	p.Budget, p.Jitter, p.Grace = 0, 0, 0
	p.Old = Old{CleanEnds: true, NoRetry: true, EndWhenEmpty: true, Abort: true, OneSignal: true, Exit: ExitZero}
	return p
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

// deadline is how long a drain may last where nothing else ends it.
func (p Policy) deadline() time.Duration {
	if p.ExitOnZero && p.MaxDrain > 0 {
		return p.MaxDrain
	}
	return p.Drain
}
