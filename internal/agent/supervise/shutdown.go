package supervise

import (
	"fmt"
	"time"
)

type drain struct {
	requested   bool
	since       time.Duration
	epoch       int // of the last Drain
	noAdmin     bool
	answered    bool
	connections int // the last count after the answer; below 0 if unknown
	unknown     int // consecutive unknown counts
}

func (d *drain) reset() { d.answered, d.noAdmin, d.connections, d.unknown = false, false, -1, 0 }

type shutdown struct {
	requested  bool
	since      time.Duration
	code       int
	lastSignal time.Duration // when the last signal was sent to any epoch
	done       bool
}

func (m *Machine) startDrain() {
	if !m.drain.requested {
		m.drain = drain{requested: true, since: m.clock.now, connections: -1}
	}
}

// sendDrain drains the epoch that serves, once there is none above it.
func (m *Machine) sendDrain() {
	e := m.serving()
	if !m.drain.requested || m.policy.Compat.DrainEpoch || e == nil || e.drainSent || e.signal != 0 || m.hot() && e != m.top() {
		return
	}
	e.drainSent = true
	m.drain.reset()
	m.drain.epoch, m.drain.noAdmin, m.drain.answered = e.number, e.noAdmin, e.noAdmin
	m.emit(Drain{e.number, e.noAdmin})
}

func (m *Machine) onDrained(number int) {
	if m.drain.requested && number == m.drain.epoch {
		m.drain.answered = true
	}
}

func (m *Machine) onConnections(c Connections) {
	if !m.drain.answered || c.Epoch != m.drain.epoch {
		return // before the drain, clients keep connecting
	}
	m.drain.connections = max(c.N, -1)
	if c.N < 0 {
		m.drain.unknown++
	} else {
		m.drain.unknown = 0
	}
}

func (m *Machine) onTerminate(quick bool) {
	again := m.shutdown.requested
	if again && m.policy.Compat.FirstSignalOnly && !quick {
		return
	}
	if !again {
		m.shutdown.requested, m.shutdown.since = true, m.clock.now
	}
	switch {
	case len(m.running) == 0:
		m.finish()
	case m.allSignaled():
		if again {
			m.killAll()
		}
	case quick, again, m.policy.Compat.NoDrain, len(m.running) == 1 && !m.top().live:
		m.stopAll()
	default:
		m.startDrain()
		if top := m.top(); m.policy.Compat.DrainEpoch && top.live && top.signal == 0 {
			m.start(DrainHash)
		}
	}
}

func (m *Machine) allSignaled() bool {
	for _, e := range m.running {
		if e.signal == 0 {
			return false
		}
	}
	return true
}

func (m *Machine) advanceShutdown() {
	switch top := m.top(); {
	case m.allSignaled():
	case m.drain.requested && m.drainOver():
		m.stopAll()
	case m.hot() && !top.live && !top.terminating() && m.clock.now >= m.childDeadline():
		m.killUnlessLive(top)
	}
	if m.policy.Compat.DoneAfterGrace && m.allSignaled() && m.clock.now >= m.shutdown.lastSignal+m.policy.Grace {
		m.finish()
	}
}

// childDeadline returns until when shutdown waits for a child that is starting.
func (m *Machine) childDeadline() time.Duration { return m.shutdown.since + m.policy.deadline()/4 }

func (m *Machine) drainOver() bool {
	p, lasted := m.policy, m.clock.now-m.drain.since
	switch {
	case m.drain.noAdmin:
		return lasted >= p.deadline() || m.drain.connections == 0 && (!p.ExitOnZero || lasted >= p.MinDrain)
	case !p.ExitOnZero:
		return lasted >= p.Drain
	case p.MaxDrain > 0 && lasted >= p.MaxDrain:
		return true
	}
	return lasted >= p.MinDrain && (m.drain.connections == 0 || m.drain.unknown >= p.MaxUnknown)
}

// shutdownTimes calls consider with the times at which shutdown goes on without an event.
func (m *Machine) shutdownTimes(consider func(time.Duration)) {
	p := m.policy
	if p.Compat.DoneAfterGrace && m.allSignaled() {
		consider(m.shutdown.lastSignal + p.Grace)
	}
	if m.allSignaled() || !m.drain.requested {
		return
	}
	if top := m.top(); m.hot() && !top.live && !top.terminating() {
		consider(m.childDeadline())
	}
	if p.ExitOnZero {
		consider(m.drain.since + p.MinDrain)
	}
	if !p.ExitOnZero || p.MaxDrain > 0 || m.drain.noAdmin {
		consider(m.drain.since + p.deadline())
	}
}

// terminateAfter shuts down without a request because of an exit with the status s.
func (m *Machine) terminateAfter(s Status) {
	m.shutdown.requested, m.shutdown.since = true, m.clock.now
	switch m.policy.Compat.Exit {
	case ExitZero:
	case Exit255:
		m.shutdown.code = 255
	case ExitStatus:
		m.shutdown.code = max(1, s.ExitCode()) // the agent's supervisor must see a failure
	default:
		panic(fmt.Sprintf("supervise: unexpected Compat.Exit %d", m.policy.Compat.Exit))
	}
	if m.stopAll(); len(m.running) == 0 {
		m.finish()
	}
}

func (m *Machine) finish() {
	m.shutdown.done = true
	if m.hot() {
		m.emit(Remove{})
	}
	m.emit(Done{m.shutdown.code})
}
