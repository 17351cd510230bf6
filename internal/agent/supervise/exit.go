package supervise

func (m *Machine) onExited(ev Exited) {
	e := m.byNumber(ev.Epoch)
	if e == nil {
		return
	}
	highest := e == m.top()
	left := make([]*epoch, 0, len(m.running))
	for _, r := range m.running {
		if r != e {
			left = append(left, r)
		}
	}
	if m.running = left; len(left) == 0 {
		m.memory = memory{} // the next one makes its own
	}
	if highest {
		m.goal.plain = false // that was about this one
	}
	m.tally.last = ev.Status
	m.tally.ends++
	if e.told && m.drain.epoch == e.number {
		m.drain.reset()
	}
	if m.hot() {
		m.untie(e, ev, highest)
	}
	switch {
	case m.end.begun:
		if len(m.running) == 0 {
			m.finish()
		}
	case m.policy.Old.AbortAll:
		m.abortOthers(e, ev)
	case m.policy.Old.NoRetry:
		m.leaveFailed(e, ev)
	default:
		m.answer(e, ev, highest)
		if hash, _ := m.pick(); hash == "" && len(m.running) == 0 && m.goal.desired != "" && !m.goal.idle {
			m.close(m.tally.failed)
		}
	}
	m.learnGood()
}

// untie sees to what an Envoy that has ended shared with its parent or child.
func (m *Machine) untie(e *epoch, ev Exited, highest bool) {
	top := m.top()
	switch {
	case top == nil:
	case highest:
		if !e.live && ev.Why == Ended && !m.end.begun {
			m.memory.locked, m.memory.by = true, e.hash
			m.do(Unlock{e.number})
		}
		if e.live || ev.TookAdmin {
			top.noAdmin, top.told = true, false
		}
	case m.serving() == nil && !top.dying():
		// Its parent is gone while it was taking over: it would go on trying to reach it, unless it has
		// ended its parent itself and is all there is.
		m.giveUp(top)
	}
}

func (m *Machine) onUnlocked(ok bool) {
	if !m.memory.locked {
		return
	}
	by := m.memory.by
	m.memory = memory{plain: !ok || m.memory.plain}
	// To try the failed configuration again would cost the parent that serves.
	if r := m.budget(by); !ok && r != nil && m.serving() != nil && m.serving().hash != by {
		m.spend(by, r)
	}
}

// answer decides what follows from an end that was not part of the machine's own.
func (m *Machine) answer(e *epoch, ev Exited, highest bool) {
	if e.doubt.owed != nil {
		e.doubt.owed()
	}
	switch {
	case !highest && (m.serving() != nil || !m.hot()):
		return // a parent that has done its part
	case !highest && m.top().doubt.open:
		m.top().doubt.owed = func() {
			m.tally.failed = ev.Status
			m.fail(e)
		}
		return // whether it has done its part depends on its child
	case ev.Why == Incompatible && len(m.running) > 0:
		m.incompatible(e.hash)
		return
	case e.dying() && !e.failed:
		return // replaced, not crashed
	case m.policy.Old.CleanEnds && ev.Why == Ended && ev.Status == (Status{}):
		m.goal.idle = m.goal.idle || e.hash == m.goal.desired
		return
	}
	m.tally.failed = ev.Status
	m.fail(e)
}

// incompatible notes that a child could not take over from what runs.
func (m *Machine) incompatible(hash string) {
	switch top := m.top(); {
	case hash == top.hash:
		m.memory.plain = true // not even with its own configuration: the program is another one by now
	case hash == m.goal.desired:
		m.goal.plain = true
	}
}

// fail charges a failure to the budget of the epoch's configuration.
func (m *Machine) fail(e *epoch) {
	r := m.budget(e.hash)
	if r == nil {
		return // nobody wants it any more
	}
	if p := m.policy; e.live && p.HealthyFor > 0 && m.clock.now-e.since >= p.HealthyFor {
		*r = retry{}
	}
	m.charge(e.hash, r)
}

func (m *Machine) charge(hash string, r *retry) {
	if r.used >= m.policy.Budget {
		m.spend(hash, r)
		return
	}
	r.at = m.clock.now + m.policy.delay(r.used, m.clock.jitter)
	r.used++
	m.tally.restarts++
}

func (m *Machine) spend(hash string, r *retry) {
	if !r.spent {
		r.spent = true
		m.do(Panic{hash})
	}
}

// abortOthers is the habit of 2017: a failed epoch leaves an inconsistent pair, so all others are ended
// too; and whoever ends with an error starts the clock of a restart where none is
// running and the desired configuration is not what remains (an aborted epoch as well:
// without that, the last of a cascade left nothing behind).
func (m *Machine) abortOthers(e *epoch, ev Exited) {
	g := &m.goal
	pending := !g.idle && m.clock.now < g.want.at
	if ev.Status == (Status{}) && ev.Why == Ended {
		g.idle = !pending
		return
	}
	if e.sent == 0 {
		for i := len(m.running) - 1; i >= 0; i-- {
			m.kill(m.running[i], SIGKILL)
		}
	}
	if top := m.top(); pending || g.desired == "" || top != nil && top.hash == g.desired {
		return
	}
	g.idle = false
	m.charge(g.desired, &g.want)
	if g.want.spent {
		m.close(ev.Status)
	}
}

// leaveFailed is the habit since 2020: whatever ended is left alone.
func (m *Machine) leaveFailed(e *epoch, ev Exited) {
	if e.hash == m.goal.desired {
		m.goal.idle = true
	}
	if m.policy.Old.EndWhenEmpty && m.goal.idle && len(m.running) == 0 {
		m.close(ev.Status)
	}
}
