package supervise

import (
	"fmt"
	"time"
)

// Machine supervises the epochs of one Envoy. Make it with New. It must not be used by several
// goroutines at once.
type Machine struct {
	policy   Policy
	clock    clock
	goal     goal
	running  []*epoch // lowest number first
	shared   shared
	drain    drain
	shutdown shutdown
	counters counters
	effects  []Effect
}

type clock struct {
	now    time.Duration
	jitter float64
	wake   time.Duration // the last Wake; below 0 for none
}

// epoch is one that was started and is not reaped.
type epoch struct {
	number    int
	hash      string
	started   time.Duration
	live      bool
	liveSince time.Duration
	late      bool          // not live in time, and not waited for any longer
	signal    Signal        // the strongest signal sent so far; 0 for none
	probe     probe         // whether it serves although it was not reported live
	killAt    time.Duration // when SIGKILL follows SIGTERM
	failed    bool          // it was ended because it failed, not because it was replaced
	drainSent bool
	noAdmin   bool // its admin interface was lost to a child
}

// probe is the state of a KillUnlessLive.
type probe struct {
	pending bool
	// parentFailed charges the failure of the parent, which exited meanwhile, unless the probe
	// finds that the epoch serves. It is nil if the parent did not exit.
	parentFailed func()
}

// goal is what should run.
type goal struct {
	desired, good string // good was live last
	desiredRetry  retry
	goodRetry     retry // of good, if it differs from desired
	disconnected  bool  // see Upstream
	finished      bool  // desired has exited and is not restarted until another one is desired
	plain         bool  // desired cannot take over from what is running
}

type retry struct {
	used      int           // of the budget
	notBefore time.Duration // of the next start
	exhausted bool
}

// shared is the state of the memory that the epochs of a hot restart share.
type shared struct {
	locked   bool   // Unlock is not answered
	lockedBy string // the configuration of the failed child that needed it
	plain    bool   // no child can attach to it
}

type counters struct {
	restarts, exits int
	last            Status
	lastFailure     Status
	nextNumber      int // the number after the highest that was ever used
}

// New makes a machine at time zero without a desired configuration.
func New(p Policy) *Machine { return &Machine{policy: p, clock: clock{wake: -1}} }

// Step takes one event and returns the effects to perform, in order. The caller owns the slice. After
// Done it returns nil.
func (m *Machine) Step(ev Event) []Effect {
	if m.shutdown.done {
		return nil
	}
	m.effects = nil
	switch e := ev.(type) {
	case Now:
		m.clock.now, m.clock.jitter = max(m.clock.now, e.T), e.Jitter
	case Desired:
		m.onDesired(e.Hash)
	case Upstream:
		m.goal.disconnected = !e.OK
	case Live:
		m.onLive(e.Epoch)
	case Exited:
		m.onExited(e)
	case Unlocked:
		m.onUnlocked(e.OK)
	case DrainRequested:
		m.startDrain()
	case Terminate:
		m.onTerminate(e.Quick)
	case Drained:
		m.onDrained(e.Epoch)
	case Connections:
		m.onConnections(e)
	default:
		panic(fmt.Sprintf("supervise: unexpected event %T", ev))
	}
	if !m.shutdown.done {
		m.advance()
	}
	return m.effects
}

func (m *Machine) emit(e Effect) { m.effects = append(m.effects, e) }

// advance performs what is due at this time, and asks for a Now when something else is due.
func (m *Machine) advance() {
	if m.shutdown.requested {
		m.sendDrain()
		if m.advanceShutdown(); m.shutdown.done {
			return
		}
	} else {
		m.endLateStart()
		m.startIfPossible()
		m.sendDrain()
	}
	for _, e := range m.running {
		if e.signal == SIGTERM && m.clock.now >= e.killAt {
			m.kill(e, SIGKILL)
		}
	}
	if at, waiting := m.nextWake(); waiting && at != m.clock.wake {
		m.clock.wake = at
		m.emit(Wake{at})
	} else if !waiting {
		m.clock.wake = -1
	}
}

// nextWake returns the earliest time at which something is due without another event, if there is one.
func (m *Machine) nextWake() (at time.Duration, waiting bool) {
	consider := func(t time.Duration) {
		if t > m.clock.now && (!waiting || t < at) {
			at, waiting = t, true
		}
	}
	for _, e := range m.running {
		if e.signal == SIGTERM {
			consider(e.killAt)
		}
	}
	top := m.top()
	switch {
	case m.shutdown.requested:
		m.shutdownTimes(consider)
	case top == nil:
		if hash, r := m.firstHash(); hash != "" {
			consider(r.notBefore)
		}
	default:
		if hash, wait := m.nextHash(top); hash != "" && wait == WaitRetry {
			consider(m.retryOf(hash).notBefore)
		}
		if m.hasLiveDeadline(top) {
			consider(top.started + m.policy.Epochs.LiveWithin)
		}
	}
	return at, waiting
}

// top returns the highest running epoch, or nil.
func (m *Machine) top() *epoch {
	if len(m.running) == 0 {
		return nil
	}
	return m.running[len(m.running)-1]
}

// serving returns the highest live epoch, or nil.
func (m *Machine) serving() *epoch {
	for i := len(m.running) - 1; i >= 0; i-- {
		if m.running[i].live {
			return m.running[i]
		}
	}
	return nil
}

func (m *Machine) find(number int) *epoch {
	for _, e := range m.running {
		if e.number == number {
			return e
		}
	}
	return nil
}

func (m *Machine) hot() bool { return m.policy.Epochs.HotRestart }

// single reports whether an epoch exits before the next one starts.
func (m *Machine) single() bool { return m.policy.Epochs.Max == 0 || m.policy.Epochs.Max == 1 }

func (m *Machine) kill(e *epoch, s Signal) {
	if e.signal != SIGKILL {
		e.signal, m.shutdown.lastSignal = s, m.clock.now
		m.emit(Kill{e.number, s})
	}
}

// killUnlessLive ends an epoch that was not reported live. Only an Envoy can be probed.
func (m *Machine) killUnlessLive(e *epoch) {
	if !m.hot() {
		m.kill(e, SIGKILL)
	} else if e.signal == 0 && !e.probe.pending {
		e.probe.pending = true
		m.emit(KillUnlessLive{e.number})
	}
}

func (e *epoch) terminating() bool { return e.signal != 0 || e.probe.pending }

// stop ends an epoch by SIGTERM, except a child that is not live, whose parent would exit too.
func (m *Machine) stop(e *epoch) {
	switch {
	case e.signal != 0:
	case m.policy.Compat.KillOnly, m.hot() && e.number > 0 && !e.live:
		m.kill(e, SIGKILL)
	default:
		m.kill(e, SIGTERM)
		e.killAt = m.clock.now + m.policy.Grace
	}
}

// stopAll ends all epochs, the highest first: a child must not outlive its parent.
func (m *Machine) stopAll() {
	for i := len(m.running) - 1; i >= 0; i-- {
		m.stop(m.running[i])
	}
}

func (m *Machine) killAll() {
	for i := len(m.running) - 1; i >= 0; i-- {
		m.kill(m.running[i], SIGKILL)
	}
}

// View returns the state.
func (m *Machine) View() View {
	g := &m.goal
	v := View{
		Draining: m.drain.requested, Ending: m.shutdown.requested,
		Restarts: m.counters.restarts, Left: m.policy.Budget - g.desiredRetry.used,
		Last: m.counters.last, Ends: m.counters.exits,
		Goal: Goal{Desired: g.desired, Good: g.good, GivenUp: g.desiredRetry.exhausted, Plain: m.shared.plain || g.plain},
	}
	serving, top := m.serving(), m.top()
	for _, e := range m.running {
		v.Epochs = append(v.Epochs, EpochState{Number: e.number, Hash: e.hash, Phase: e.phase(serving), NoAdmin: e.noAdmin})
	}
	if serving == nil {
		serving = top
	}
	if serving != nil {
		v.Running, v.Epoch, v.Hash, v.Live = true, serving.number, serving.hash, serving.live
	}
	switch {
	case m.shutdown.requested:
	case top != nil:
		_, v.Goal.Waiting = m.nextHash(top)
	case g.desired != "" && !g.finished:
		v.Goal.Waiting = WaitRetry
	}
	return v
}

func (e *epoch) phase(serving *epoch) Phase {
	switch {
	case e.terminating():
		return Terminating
	case !e.live:
		return Starting
	case e == serving:
		return Serving
	}
	return Parent
}
