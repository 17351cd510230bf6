package supervise

import "time"

// Policy holds the limits of a machine and the behavior of older agents that it has. The zero value
// never waits and never restarts. Policies can be compared with ==.
type Policy struct {
	// Budget is how often one configuration is restarted after failures before it is given up.
	Budget int
	// Backoff is the delay before the first restart; it doubles with each one.
	Backoff time.Duration
	// Jitter is the largest share of a delay that is added to it at random, 0 to 1.
	Jitter float64
	// HealthyFor is how long an epoch must have been live for its crash to renew the budget. 0
	// never renews it.
	HealthyFor time.Duration
	// Drain is how long an Envoy drains, unless ExitOnZero.
	Drain time.Duration
	// ExitOnZero ends the drain when no connection is left, instead of after Drain.
	ExitOnZero bool
	// MinDrain is the minimum time of such a drain.
	MinDrain time.Duration
	// MaxDrain is its maximum time; 0 means no maximum.
	MaxDrain time.Duration
	// MaxUnknown is how many consecutive Connections with N < 0 end such a drain.
	MaxUnknown int
	// Grace is the time between SIGTERM and SIGKILL.
	Grace time.Duration
	// Epochs says how epochs follow one another.
	Epochs Epochs
	// Compat selects behavior of older agents; its zero value selects none.
	Compat Compat
}

// Epochs says how epochs follow one another. The zero value has one at a time, which exits
// before the next one starts.
type Epochs struct {
	// Max is the most epochs at once: 0 and 1 for one that is restarted in place, 2 for Envoy (a
	// third one would make the second end the first at once), below 0 for any number.
	Max int
	// LiveWithin bounds how long an epoch may take to be live if it has a parent or a newer
	// configuration waits for it. 0 means no bound.
	LiveWithin time.Duration
	// HotRestart says that the epochs are Envoys that share memory, which needs Unlock, Remove,
	// and a replacement for a parent that lost its admin interface.
	HotRestart bool
}

// Exit selects the exit code of a machine that is done without a request for shutdown.
type Exit int

// The exit codes.
const (
	// ExitStatus is Envoy's own status, or 1 if that is 0.
	ExitStatus Exit = iota
	// ExitZero is always 0, as in 2020 and in Istio today.
	ExitZero
	// Exit255 is 255, as in 2017 and 2019.
	Exit255
)

// Compat is behavior of older agents. Each field violates an invariant of the package comment,
// whose number it names.
type Compat struct {
	// AbortAll ends all other epochs when one fails, parents too (4); the restart does not wait
	// for them. 2017, 2019.
	AbortAll bool
	// ZeroIsFinal does not restart an epoch that exited with status 0 (6). 2017 to 2021.
	ZeroIsFinal bool
	// NoRetry leaves a failed configuration alone until another one is desired (4, 6). Since 2020.
	NoRetry bool
	// DoneWhenEmpty is done when the last epoch has exited (6). Since 2020.
	DoneWhenEmpty bool
	// UniqueNumbers never uses a number twice (1). 2020.
	UniqueNumbers bool
	// StartWhenLate starts the next epoch after LiveWithin without ending the late one (3). 2020.
	StartWhenLate bool
	// DrainEpoch starts, on shutdown, one more epoch with DrainHash, which makes the one that
	// serves a draining parent; after Policy.Drain all are aborted (7). 2019.
	DrainEpoch bool
	// KillOnly sends SIGKILL in place of SIGTERM (7). All of them.
	KillOnly bool
	// NoDrain skips the drain on shutdown (7). 2017.
	NoDrain bool
	// DoneAfterGrace is done Policy.Grace after the last signal, whatever is still running (7).
	// 2017, 2019.
	DoneAfterGrace bool
	// FirstSignalOnly ignores all but the first Terminate (7). Since 2020.
	FirstSignalOnly bool
	// Exit is the exit code if shutdown was not requested (7).
	Exit Exit
}

// DrainHash is the configuration that Compat.DrainEpoch starts on shutdown.
const DrainHash = "drain"

// DefaultPolicy returns the policy of one Envoy without hot restart: 10 restarts from 200 ms,
// doubling, a drain of 5 s (terminationDrainDuration and MINIMUM_DRAIN_DURATION alike), SIGKILL 1 s
// after SIGTERM.
func DefaultPolicy() Policy {
	return Policy{
		Budget: 10, Backoff: 200 * time.Millisecond, Jitter: 0.1, HealthyFor: 5 * time.Minute,
		Drain: 5 * time.Second, MinDrain: 5 * time.Second, MaxUnknown: 5, Grace: time.Second,
	}
}

// HotPolicy returns DefaultPolicy with hot restarts of Envoy: two epochs at once, 20 s to be live.
func HotPolicy() Policy {
	p := DefaultPolicy()
	p.Epochs = Epochs{Max: 2, LiveWithin: 20 * time.Second, HotRestart: true}
	return p
}

// Policy2017 returns the policy of the agent of 2017, from its package documentation and the proxy
// controller's page: any number of epochs, all aborted when one fails, 10 retries, shutdown without a
// drain. [agent 2.1]
func Policy2017() Policy {
	return Policy{
		Budget: 10, Backoff: 200 * time.Millisecond, Epochs: Epochs{Max: -1},
		Compat: Compat{AbortAll: true, ZeroIsFinal: true, KillOnly: true, NoDrain: true, DoneAfterGrace: true, Exit: Exit255},
	}
}

// Policy2019 returns the policy of the agent of 2019, which drains by one more epoch for 5 s. [agent 2.2]
func Policy2019() Policy {
	p := Policy2017()
	p.Drain, p.Compat.NoDrain, p.Compat.DrainEpoch = 5*time.Second, false, true
	return p
}

// Policy2020 returns the policy of the agent that the article of 2020 describes: it waits up to
// 20 s for an epoch to be live, never retries, drains by the admin interface, and exits with 0 when
// nothing is running. One difference: of several configurations that wait, only the newest is
// started. [agent 2.3]
func Policy2020() Policy {
	return Policy{
		Drain: 5 * time.Second, Epochs: Epochs{Max: -1, LiveWithin: 20 * time.Second},
		Compat: Compat{
			ZeroIsFinal: true, NoRetry: true, DoneWhenEmpty: true, UniqueNumbers: true, StartWhenLate: true, KillOnly: true,
			FirstSignalOnly: true, Exit: ExitZero,
		},
	}
}

// Policy2021 returns the policy of the agent of Istio 1.11, and of Istio today: one epoch, a drain,
// SIGKILL, exit code 0. [agent L3–L7]
func Policy2021() Policy {
	p := DefaultPolicy()
	p.Budget, p.Jitter, p.Grace = 0, 0, 0
	p.Compat = Compat{ZeroIsFinal: true, NoRetry: true, DoneWhenEmpty: true, KillOnly: true, FirstSignalOnly: true, Exit: ExitZero}
	return p
}

// delay returns the wait before restart number used (from 0), with jitter in [0,1).
func (p Policy) delay(used int, jitter float64) time.Duration {
	const ceiling = time.Hour // keeps the doubling from overflowing
	d := p.Backoff
	for range used {
		if d *= 2; d >= ceiling {
			d = ceiling
			break
		}
	}
	return d + time.Duration(float64(d)*p.Jitter*jitter)
}

// deadline returns how long a drain may take.
func (p Policy) deadline() time.Duration {
	if p.ExitOnZero && p.MaxDrain > 0 {
		return p.MaxDrain
	}
	return p.Drain
}
