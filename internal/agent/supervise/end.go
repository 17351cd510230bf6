package supervise

import "time"

type drain struct {
	asked    bool
	since    time.Duration
	epoch    int // that was told last
	blind    bool
	answered bool
	conns    int // the last count after the answer; below 0 unknown
	unknown  int // unknown counts in a row
}

func (d *drain) reset() { d.answered, d.blind, d.conns, d.unknown = false, false, -1, 0 }

type end struct {
	begun     bool
	at        time.Duration
	code      int
	signalled time.Duration // the last signal to any epoch
	done      bool
}

func (m *Machine) beginDrain() {
	if !m.drain.asked {
		m.drain = drain{asked: true, since: m.clock.now, conns: -1}
	}
}

// drainDue tells the epoch that serves to drain, once it has nothing above it.
func (m *Machine) drainDue() {
	e := m.serving()
	if !m.drain.asked || m.policy.Old.DrainEpoch || e == nil || e.told || e.sent != 0 || m.hot() && e != m.top() {
		return
	}
	e.told = true
	m.drain.reset()
	m.drain.epoch, m.drain.blind, m.drain.answered = e.number, e.noAdmin, e.noAdmin
	m.do(Drain{e.number, e.noAdmin})
}

func (m *Machine) onDrained(number int) {
	if m.drain.asked && number == m.drain.epoch {
		m.drain.answered = true
	}
}

func (m *Machine) onConnections(c Connections) {
	if !m.drain.answered || c.Epoch != m.drain.epoch {
		return // whoever connects has not yet been told to go elsewhere
	}
	m.drain.conns = max(c.N, -1)
	if c.N < 0 {
		m.drain.unknown++
	} else {
		m.drain.unknown = 0
	}
}

func (m *Machine) onTerminate(quick bool) {
	again := m.end.begun
	if again && m.policy.Old.OneSignal && !quick {
		return
	}
	if !again {
		m.end.begun, m.end.at = true, m.clock.now
	}
	switch {
	case len(m.running) == 0:
		m.finish()
	case m.allSignalled():
		if again {
			for i := len(m.running) - 1; i >= 0; i-- {
				m.kill(m.running[i], SIGKILL)
			}
		}
	case quick, again, m.policy.Old.NoDrain, len(m.running) == 1 && !m.top().live:
		m.stopAll()
	default:
		m.beginDrain()
		if top := m.top(); m.policy.Old.DrainEpoch && top.live && top.sent == 0 {
			m.start(DrainHash)
		}
	}
}

func (m *Machine) allSignalled() bool {
	for _, e := range m.running {
		if e.sent == 0 {
			return false
		}
	}
	return true
}

// endDue goes on with the end.
func (m *Machine) endDue() {
	switch top := m.top(); {
	case m.allSignalled():
	case m.drain.asked && m.drainOver():
		m.stopAll()
	case m.hot() && !top.live && !top.dying() && m.clock.now >= m.childBound():
		m.giveUp(top)
	}
	if m.policy.Old.Leave && m.allSignalled() && m.clock.now >= m.end.signalled+m.policy.Grace {
		m.finish()
	}
}

// childBound is how long the end waits for a child that is starting.
func (m *Machine) childBound() time.Duration { return m.end.at + m.policy.deadline()/4 }

// drainOver reports whether a drain has lasted long enough.
func (m *Machine) drainOver() bool {
	p, lasted := m.policy, m.clock.now-m.drain.since
	switch {
	case m.drain.blind:
		return lasted >= p.deadline() || m.drain.conns == 0 && (!p.ExitOnZero || lasted >= p.MinDrain)
	case !p.ExitOnZero:
		return lasted >= p.Drain
	case p.MaxDrain > 0 && lasted >= p.MaxDrain:
		return true
	}
	return lasted >= p.MinDrain && (m.drain.conns == 0 || m.drain.unknown >= p.MaxUnknown)
}

// endTimes names the times at which the end goes on by itself.
func (m *Machine) endTimes(consider func(time.Duration)) {
	p := m.policy
	if p.Old.Leave && m.allSignalled() {
		consider(m.end.signalled + p.Grace)
	}
	if m.allSignalled() || !m.drain.asked {
		return
	}
	if top := m.top(); m.hot() && !top.live && !top.dying() {
		consider(m.childBound())
	}
	if p.ExitOnZero {
		consider(m.drain.since + p.MinDrain)
	}
	if !p.ExitOnZero || p.MaxDrain > 0 || m.drain.blind {
		consider(m.drain.since + p.deadline())
	}
}

// close ends the machine without having been asked, with what the status makes of it.
func (m *Machine) close(s Status) {
	m.end.begun, m.end.at = true, m.clock.now
	switch m.policy.Old.Exit {
	case ExitZero:
	case ExitPanic:
		m.end.code = 255
	case ExitTruth:
		// Whoever supervises the agent must see that this was no success.
		m.end.code = max(1, s.ExitCode())
	}
	if m.stopAll(); len(m.running) == 0 {
		m.finish()
	}
}

func (m *Machine) finish() {
	m.end.done = true
	if m.hot() {
		m.do(Remove{})
	}
	m.do(Done{m.end.code})
}
