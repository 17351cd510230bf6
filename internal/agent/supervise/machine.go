package supervise

import "time"

// Machine supervises the epochs of one Envoy. Make it with New.
type Machine struct {
	policy  Policy
	clock   clock
	goal    goal
	running []*epoch // lowest number first
	memory  memory
	drain   drain
	end     end
	tally   tally
	out     []Effect
}

type clock struct {
	now    time.Duration
	jitter float64
	woken  time.Duration // the Wake that is in force; below 0 for none
}

// epoch is one that was started and is not reaped.
type epoch struct {
	number  int
	hash    string
	started time.Duration
	live    bool
	since   time.Duration // live since
	late    bool          // not live in time, and not waited for any longer
	sent    Signal        // the strongest signal sent so far; 0 for none
	doubt   doubt         // whether it serves
	killAt  time.Duration // when SIGKILL follows, once SIGTERM is sent
	failed  bool          // it was signalled or given up because it failed, not because it has to go
	told    bool          // to drain
	noAdmin bool          // its admin interface was lost to a child
}

// doubt is about an epoch that should be live by now.
type doubt struct {
	open bool   // GiveUp is not answered
	owed func() // the failure of its parent, which ended meanwhile; it was none if the child serves
}

// goal is what should run.
type goal struct {
	desired, good string // good was live last
	want, back    retry  // the budget of desired, and of good where that is another one
	away          bool   // the upstream is
	idle          bool   // desired has had its run, and is left alone until another one is desired
	plain         bool   // desired cannot take over from what runs
}

type retry struct {
	used  int           // of the budget
	at    time.Duration // not to start before
	spent bool
}

// memory is what the epochs of a hot restart share.
type memory struct {
	locked bool   // a failed child holds it, Unlock is not answered
	by     string // the configuration of that child
	plain  bool   // no child can take it over
}

// tally counts.
type tally struct {
	restarts, ends int
	last           Status
	failed         Status // of the last failure
	next           int    // the number after the highest that was ever used
}

// New makes a machine at time zero that knows no configuration yet.
func New(p Policy) *Machine { return &Machine{policy: p, clock: clock{woken: -1}} }

// Step takes one event and returns what to do about it, in order. The slice is the
// caller's. After Done it returns nothing.
func (m *Machine) Step(ev Event) []Effect {
	if m.end.done {
		return nil
	}
	m.out = nil
	switch e := ev.(type) {
	case Now:
		m.clock.now, m.clock.jitter = max(m.clock.now, e.T), e.Jitter
	case Desired:
		m.onDesired(e.Hash)
	case Upstream:
		m.goal.away = !e.OK
	case Live:
		m.onLive(e.Epoch)
	case Exited:
		m.onExited(e)
	case Unlocked:
		m.onUnlocked(e.OK)
	case Retire:
		m.beginDrain()
	case Terminate:
		m.onTerminate(e.Quick)
	case Drained:
		m.onDrained(e.Epoch)
	case Connections:
		m.onConnections(e)
	}
	if !m.end.done {
		m.advance()
	}
	return m.out
}

func (m *Machine) do(e Effect) { m.out = append(m.out, e) }

// advance does what is due at this time, and asks to be woken for what is due later.
func (m *Machine) advance() {
	if m.end.begun {
		m.drainDue()
		if m.endDue(); m.end.done {
			return
		}
	} else {
		m.giveUpDue()
		m.startDue()
		m.drainDue()
	}
	for _, e := range m.running {
		if e.sent == SIGTERM && m.clock.now >= e.killAt {
			m.kill(e, SIGKILL)
		}
	}
	if at, waiting := m.due(); waiting && at != m.clock.woken {
		m.clock.woken = at
		m.do(Wake{at})
	} else if !waiting {
		m.clock.woken = -1
	}
}

// due is the earliest time at which something becomes due by itself, if there is any.
func (m *Machine) due() (at time.Duration, waiting bool) {
	consider := func(t time.Duration) {
		if t > m.clock.now && (!waiting || t < at) {
			at, waiting = t, true
		}
	}
	for _, e := range m.running {
		if e.sent == SIGTERM {
			consider(e.killAt)
		}
	}
	top := m.top()
	switch {
	case m.end.begun:
		m.endTimes(consider)
	case top == nil:
		if hash, r := m.pick(); hash != "" {
			consider(r.at)
		}
	default:
		if hash, wait := m.next(top); hash != "" && wait == WaitRetry {
			consider(m.budget(hash).at)
		}
		if m.bounded(top) {
			consider(top.started + m.policy.Epochs.LiveWithin)
		}
	}
	return at, waiting
}

// top is the highest epoch that runs; nil if none does.
func (m *Machine) top() *epoch {
	if len(m.running) == 0 {
		return nil
	}
	return m.running[len(m.running)-1]
}

// serving is the highest live epoch; nil if none is.
func (m *Machine) serving() *epoch {
	for i := len(m.running) - 1; i >= 0; i-- {
		if m.running[i].live {
			return m.running[i]
		}
	}
	return nil
}

func (m *Machine) byNumber(n int) *epoch {
	for _, e := range m.running {
		if e.number == n {
			return e
		}
	}
	return nil
}

func (m *Machine) hot() bool { return m.policy.Epochs.HotRestart }

// one says that epochs replace one another in place.
func (m *Machine) one() bool { return m.policy.Epochs.Max == 0 || m.policy.Epochs.Max == 1 }

func (m *Machine) kill(e *epoch, s Signal) {
	if e.sent != SIGKILL {
		e.sent, m.end.signalled = s, m.clock.now
		m.do(Kill{e.number, s})
	}
}

// giveUp ends an epoch that is not live, unless it turns out to be. Only Envoys can be looked at so.
func (m *Machine) giveUp(e *epoch) {
	if !m.hot() {
		m.kill(e, SIGKILL)
	} else if e.sent == 0 && !e.doubt.open {
		e.doubt.open = true
		m.do(GiveUp{e.number})
	}
}

// dying says that the epoch has been sent a signal or is given up.
func (e *epoch) dying() bool { return e.sent != 0 || e.doubt.open }

// stop ends an epoch, kindly first where that does no harm: a child that is not live would
// take its parent along.
func (m *Machine) stop(e *epoch) {
	switch {
	case e.sent != 0:
	case m.policy.Old.Abort, m.hot() && e.number > 0 && !e.live:
		m.kill(e, SIGKILL)
	default:
		m.kill(e, SIGTERM)
		e.killAt = m.clock.now + m.policy.Grace
	}
}

// stopAll ends all that runs, the highest first: a child that dies later than its parent is a
// child without one for a moment.
func (m *Machine) stopAll() {
	for i := len(m.running) - 1; i >= 0; i-- {
		m.stop(m.running[i])
	}
}

// View tells the state.
func (m *Machine) View() View {
	v := View{
		Draining: m.drain.asked, Ending: m.end.begun,
		Restarts: m.tally.restarts, Left: m.policy.Budget - m.goal.want.used,
		Last: m.tally.last, Ends: m.tally.ends,
		Goal: Goal{Desired: m.goal.desired, Good: m.goal.good, GivenUp: m.goal.want.spent, Plain: m.memory.plain || m.goal.plain},
	}
	serving, top := m.serving(), m.top()
	for _, e := range m.running {
		v.Epochs = append(v.Epochs, EpochState{Number: e.number, Hash: e.hash, Phase: e.phase(serving), Adminless: e.noAdmin})
	}
	if serving == nil {
		serving = top
	}
	if serving != nil {
		v.Running, v.Epoch, v.Hash, v.Live = true, serving.number, serving.hash, serving.live
	}
	switch {
	case m.end.begun:
	case top != nil:
		_, v.Goal.Waiting = m.next(top)
	case m.goal.desired != "" && !m.goal.idle:
		v.Goal.Waiting = WaitRetry
	}
	return v
}

func (e *epoch) phase(serving *epoch) Phase {
	switch {
	case e.dying():
		return Dying
	case !e.live:
		return Starting
	case e == serving:
		return Serving
	}
	return Leaving
}
