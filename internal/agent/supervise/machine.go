package supervise

import "time"

// Machine supervises one Envoy. Make it with New.
type Machine struct {
	policy   Policy
	now      time.Duration
	jitter   float64
	desired  string
	sole     *epoch // what runs; nil if nothing does
	retry    retry
	drain    drain
	ending   bool // the end was asked for
	done     bool
	woken    time.Duration // the Wake that is in force; below 0 for none
	out      []Effect
	finished finished
}

type epoch struct {
	number int
	hash   string
	live   bool
	since  time.Duration // live since
	sent   Signal        // the strongest signal sent so far; 0 for none
	killAt time.Duration // when SIGKILL follows, once SIGTERM is sent
}

type retry struct {
	used int           // of the budget
	at   time.Duration // not to start before
}

type drain struct {
	asked    bool
	since    time.Duration
	answered bool
	conns    int // the last count after the answer; below 0 unknown
	unknown  int // unknown counts in a row
}

type finished struct {
	restarts, ends int
	last           Status
}

// New makes a machine at time zero that knows no configuration yet.
func New(p Policy) *Machine { return &Machine{policy: p, woken: -1} }

// Step takes one event and returns what to do about it, in order. The slice is the
// caller's. After Done it returns nothing.
func (m *Machine) Step(ev Event) []Effect {
	if m.done {
		return nil
	}
	m.out = nil
	switch e := ev.(type) {
	case Now:
		m.now, m.jitter = max(m.now, e.T), e.Jitter
	case Desired:
		m.onDesired(e.Hash)
	case Live:
		m.onLive(e.Epoch)
	case Exited:
		m.onExited(e)
	case Retire:
		m.beginDrain()
	case Terminate:
		m.onTerminate(e.Quick)
	case Drained:
		m.drain.answered = m.drain.asked
	case Connections:
		m.onConnections(e.N)
	}
	if !m.done {
		m.advance()
	}
	return m.out
}

// View tells the state.
func (m *Machine) View() View {
	v := View{
		Draining: m.drain.asked, Ending: m.ending,
		Restarts: m.finished.restarts, Left: m.policy.Budget - m.retry.used,
		Last: m.finished.last, Ends: m.finished.ends,
	}
	if m.sole != nil {
		v.Running, v.Epoch, v.Hash, v.Live = true, m.sole.number, m.sole.hash, m.sole.live
	}
	return v
}

func (m *Machine) do(e Effect) { m.out = append(m.out, e) }

func (m *Machine) onDesired(hash string) {
	if m.ending || hash == "" || hash == m.desired {
		return
	}
	m.desired, m.retry = hash, retry{}
	if m.sole != nil && m.sole.hash != hash {
		m.stop()
	}
}

func (m *Machine) onLive(number int) {
	if m.sole == nil || m.sole.number != number || m.sole.live {
		return
	}
	m.sole.live, m.sole.since = true, m.now
	// The Envoy that was told to drain has crashed; its successor has not been told.
	if m.drain.asked && m.sole.sent == 0 {
		m.do(Drain{Epoch: m.sole.number})
	}
}

func (m *Machine) onExited(e Exited) {
	if m.sole == nil || m.sole.number != e.Epoch {
		return
	}
	was := m.sole
	m.sole, m.drain.answered, m.drain.conns, m.drain.unknown = nil, false, -1, 0
	m.finished.last = e.Status
	m.finished.ends++
	if m.ending {
		m.finish(0)
		return
	}
	if was.hash != m.desired || was.sent != 0 {
		return // replaced, not crashed
	}
	if was.live && m.policy.HealthyFor > 0 && m.now-was.since >= m.policy.HealthyFor {
		m.retry.used = 0
	}
	if m.retry.used >= m.policy.Budget {
		// Whoever supervises the agent must see that this was no success.
		m.finish(max(1, e.Status.ExitCode()))
		return
	}
	m.retry.at = m.now + m.policy.delay(m.retry.used, m.jitter)
	m.retry.used++
	m.finished.restarts++
}

func (m *Machine) beginDrain() {
	if m.drain.asked {
		return
	}
	m.drain = drain{asked: true, since: m.now, conns: -1}
	if m.sole != nil && m.sole.live && m.sole.sent == 0 {
		m.do(Drain{Epoch: m.sole.number})
	}
}

func (m *Machine) onTerminate(quick bool) {
	again := m.ending
	m.ending = true
	switch {
	case m.sole == nil:
		m.finish(0)
	case m.sole.sent != 0:
		if again {
			m.kill(SIGKILL)
		}
	case quick || again || !m.sole.live:
		m.stop()
	default:
		m.beginDrain()
	}
}

func (m *Machine) onConnections(n int) {
	if !m.drain.answered {
		return // whoever connects has not yet been told to go elsewhere
	}
	m.drain.conns = max(n, -1)
	if n < 0 {
		m.drain.unknown++
	} else {
		m.drain.unknown = 0
	}
}

// stop ends the running epoch, kindly first.
func (m *Machine) stop() {
	if m.sole.sent == 0 {
		m.kill(SIGTERM)
		m.sole.killAt = m.now + m.policy.Grace
	}
}

func (m *Machine) kill(s Signal) {
	if m.sole.sent != SIGKILL {
		m.sole.sent = s
		m.do(Kill{m.sole.number, s})
	}
}

func (m *Machine) finish(code int) {
	m.done = true
	m.do(Done{code})
}

// advance does what is due at this time, and asks to be woken for what is due later.
func (m *Machine) advance() {
	if m.sole == nil && m.desired != "" && m.now >= m.retry.at {
		m.sole = &epoch{hash: m.desired}
		m.do(Start{m.sole.number, m.desired})
	}
	if m.sole != nil && m.ending && m.sole.sent == 0 && m.drainOver() {
		m.stop()
	}
	if m.sole != nil && m.sole.sent == SIGTERM && m.now >= m.sole.killAt {
		m.kill(SIGKILL)
	}
	if at, waiting := m.next(); waiting && at != m.woken {
		m.woken = at
		m.do(Wake{at})
	} else if !waiting {
		m.woken = -1
	}
}

// drainOver reports whether a drain has lasted long enough. An epoch that is asked to end is either
// draining or has a signal already.
func (m *Machine) drainOver() bool {
	p, lasted := m.policy, m.now-m.drain.since
	if !p.ExitOnZero {
		return lasted >= p.Drain
	}
	if p.MaxDrain > 0 && lasted >= p.MaxDrain {
		return true
	}
	return lasted >= p.MinDrain && (m.drain.conns == 0 || m.drain.unknown >= p.MaxUnknown)
}

// next is the time at which something becomes due by itself, if there is any.
func (m *Machine) next() (at time.Duration, waiting bool) {
	switch {
	case m.sole == nil:
		return m.retry.at, m.desired != ""
	case m.sole.sent == SIGTERM:
		return m.sole.killAt, true
	case m.sole.sent != 0 || !m.ending:
		return 0, false
	case !m.policy.ExitOnZero:
		return m.drain.since + m.policy.Drain, true
	}
	least, most := m.drain.since+m.policy.MinDrain, m.drain.since+m.policy.MaxDrain
	switch {
	case m.policy.MaxDrain <= 0:
		return least, m.now < least
	case m.now < least:
		return min(least, most), true
	}
	return most, true
}
