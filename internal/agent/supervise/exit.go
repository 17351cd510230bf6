package supervise

import (
	"fmt"
	"slices"
)

func (m *Machine) onExited(ev Exited) {
	e := m.find(ev.Epoch)
	if e == nil {
		return
	}
	if ev.Reason < Ended || ev.Reason > Incompatible {
		panic(fmt.Sprintf("supervise: unexpected Exited.Reason %d", ev.Reason))
	}
	highest := e == m.top()
	m.running = slices.DeleteFunc(slices.Clone(m.running), func(r *epoch) bool { return r == e })
	if len(m.running) == 0 {
		m.shared = shared{} // the next epoch creates its own
	}
	if highest {
		m.goal.plain = false // it could not be taken over, the next one may be
	}
	m.counters.last = ev.Status
	m.counters.exits++
	if e.drainSent && m.drain.epoch == e.number {
		m.drain.reset()
	}
	if m.hot() {
		m.releaseShared(e, ev, highest)
	}
	switch {
	case m.shutdown.requested:
		if len(m.running) == 0 {
			m.finish()
		}
	case m.policy.Compat.AbortAll:
		m.abortOthers(e, ev)
	case m.policy.Compat.NoRetry:
		m.leaveExited(e, ev)
	default:
		m.handleExit(e, ev, highest)
		if hash, _ := m.firstHash(); hash == "" && len(m.running) == 0 && m.goal.desired != "" && !m.goal.finished {
			m.terminateAfter(m.counters.lastFailure)
		}
	}
	m.recordGood()
}

// releaseShared handles what an exited Envoy shared with its parent or child.
func (m *Machine) releaseShared(e *epoch, ev Exited, highest bool) {
	top := m.top()
	switch {
	case top == nil:
	case highest:
		if !e.live && ev.Reason == Ended && !m.shutdown.requested {
			m.shared.locked, m.shared.lockedBy = true, e.hash
			m.emit(Unlock{e.number})
		}
		if e.live || ev.TookAdmin {
			top.noAdmin, top.drainSent = true, false
		}
	case m.serving() == nil && !top.terminating():
		// A child keeps trying to reach its parent, which is gone, unless it has taken over
		// already: then nothing else serves.
		m.killUnlessLive(top)
	}
}

func (m *Machine) onUnlocked(ok bool) {
	if !m.shared.locked {
		return
	}
	hash := m.shared.lockedBy
	m.shared = shared{plain: !ok || m.shared.plain}
	// Another attempt with the failed configuration would need the end of the parent that serves.
	if r := m.retryOf(hash); !ok && r != nil && m.serving() != nil && m.serving().hash != hash {
		m.exhaust(hash, r)
	}
}

// handleExit decides what follows from an exit before shutdown.
func (m *Machine) handleExit(e *epoch, ev Exited, highest bool) {
	if e.probe.parentFailed != nil {
		e.probe.parentFailed()
	}
	switch {
	case !highest && (m.serving() != nil || !m.hot()):
		return // a parent whose child has taken over
	case !highest && m.top().probe.pending:
		m.top().probe.parentFailed = func() {
			m.counters.lastFailure = ev.Status
			m.recordFailure(e)
		}
		return
	case ev.Reason == Incompatible && len(m.running) > 0:
		m.recordIncompatible(e.hash)
		return
	case e.terminating() && !e.failed:
		return // replaced
	case m.policy.Compat.ZeroIsFinal && ev.Reason == Ended && ev.Status == (Status{}):
		m.goal.finished = m.goal.finished || e.hash == m.goal.desired
		return
	}
	m.counters.lastFailure = ev.Status
	m.recordFailure(e)
}

// recordIncompatible notes that a child could not take over from what is running.
func (m *Machine) recordIncompatible(hash string) {
	switch top := m.top(); {
	case hash == top.hash:
		m.shared.plain = true // not even with the same configuration: the binary was replaced
	case hash == m.goal.desired:
		m.goal.plain = true
	}
}

// recordFailure charges a failure to the budget of the epoch's configuration.
func (m *Machine) recordFailure(e *epoch) {
	r := m.retryOf(e.hash)
	if r == nil {
		return // neither desired nor good any more
	}
	if p := m.policy; e.live && p.HealthyFor > 0 && m.clock.now-e.liveSince >= p.HealthyFor {
		*r = retry{}
	}
	m.charge(e.hash, r)
}

func (m *Machine) charge(hash string, r *retry) {
	if r.used >= m.policy.Budget {
		m.exhaust(hash, r)
		return
	}
	r.notBefore = m.clock.now + m.policy.delay(r.used, m.clock.jitter)
	r.used++
	m.counters.restarts++
}

func (m *Machine) exhaust(hash string, r *retry) {
	if !r.exhausted {
		r.exhausted = true
		m.emit(Panic{hash})
	}
}

// abortOthers implements Compat.AbortAll: after a failure all other epochs are ended too. Any exit with
// an error, also of an aborted epoch, schedules a restart, unless one is scheduled or the desired
// configuration is the highest that is left: otherwise nothing would be started after the last exit.
func (m *Machine) abortOthers(e *epoch, ev Exited) {
	g := &m.goal
	pending := !g.finished && m.clock.now < g.desiredRetry.notBefore
	if ev.Status == (Status{}) && ev.Reason == Ended {
		g.finished = !pending
		return
	}
	if e.signal == 0 {
		m.killAll()
	}
	if top := m.top(); pending || g.desired == "" || top != nil && top.hash == g.desired {
		return
	}
	g.finished = false
	m.charge(g.desired, &g.desiredRetry)
	if g.desiredRetry.exhausted {
		m.terminateAfter(ev.Status)
	}
}

// leaveExited implements Compat.NoRetry: what has exited is not restarted.
func (m *Machine) leaveExited(e *epoch, ev Exited) {
	if e.hash == m.goal.desired {
		m.goal.finished = true
	}
	if m.policy.Compat.DoneWhenEmpty && m.goal.finished && len(m.running) == 0 {
		m.terminateAfter(ev.Status)
	}
}
