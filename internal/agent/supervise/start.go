package supervise

func (m *Machine) onDesired(hash string) {
	if m.shutdown.requested || hash == "" || hash == m.goal.desired {
		return
	}
	g := &m.goal
	g.desired, g.desiredRetry, g.goodRetry, g.finished, g.plain = hash, retry{}, retry{}, false, false
}

func (m *Machine) onLive(number int) {
	e := m.find(number)
	if e == nil || e.live {
		return
	}
	// One that serves, as a probe found, did not fail.
	e.live, e.liveSince, e.failed, e.probe = true, m.clock.now, e.failed && !e.probe.pending, probe{}
	m.recordGood()
}

// recordGood makes what serves the last good configuration.
func (m *Machine) recordGood() {
	if e := m.serving(); e != nil && e.hash != m.goal.good {
		m.goal.good, m.goal.goodRetry = e.hash, retry{}
	}
}

// retryOf returns the budget of a configuration; nil if it is neither desired nor good.
func (m *Machine) retryOf(hash string) *retry {
	switch hash {
	case m.goal.desired:
		return &m.goal.desiredRetry
	case m.goal.good:
		return &m.goal.goodRetry
	}
	return nil
}

// firstHash returns what to start while nothing is running; "" for nothing.
func (m *Machine) firstHash() (string, *retry) {
	g := &m.goal
	if g.desired == "" || g.finished {
		return "", nil
	}
	if m.hasFallback() && !g.goodRetry.exhausted && (g.desiredRetry.exhausted || g.goodRetry.used < g.desiredRetry.used) {
		return g.good, &g.goodRetry
	}
	if g.desiredRetry.exhausted {
		return "", nil
	}
	return g.desired, &g.desiredRetry
}

// hasFallback reports whether there is a last good configuration to return to.
func (m *Machine) hasFallback() bool {
	c := m.policy.Compat
	return m.goal.good != "" && m.goal.good != m.goal.desired && !m.single() && !c.AbortAll && !c.NoRetry
}

// nextHash returns what should take over from top, "" for nothing, and what it waits for.
func (m *Machine) nextHash(top *epoch) (hash string, wait Waiting) {
	g, p := &m.goal, m.policy
	hash = g.desired
	replacesNoAdmin := false
	switch {
	case g.finished:
		return "", WaitNothing
	case g.desiredRetry.exhausted || top.hash == g.desired && (!top.terminating() || p.Compat.AbortAll):
		// The right configuration is running, but it must have an admin interface.
		if replacesNoAdmin = top.noAdmin && !m.shared.plain; !replacesNoAdmin {
			return "", WaitNothing
		}
		hash = top.hash
	}
	r := m.retryOf(hash)
	switch {
	case r == nil || r.exhausted:
		return "", WaitNothing
	case top.terminating() && !p.Compat.AbortAll:
		return hash, WaitExit
	case g.disconnected && m.serving() != nil:
		return hash, WaitUpstream
	case m.single():
		return hash, WaitEnd
	case !top.live && !top.late && top.signal == 0:
		return hash, WaitLive
	case m.shared.locked:
		return hash, WaitUnlock
	case m.shared.plain, g.plain && !replacesNoAdmin:
		return hash, WaitEnd
	case p.Epochs.Max > 0 && len(m.running) >= p.Epochs.Max:
		return hash, WaitExit
	case m.clock.now < r.notBefore:
		return hash, WaitRetry
	}
	return hash, WaitNothing
}

// startIfPossible starts the configuration that should run, or ends what must exit before it.
func (m *Machine) startIfPossible() {
	top := m.top()
	if top == nil {
		if hash, r := m.firstHash(); hash != "" && m.clock.now >= r.notBefore {
			m.start(hash)
		}
		return
	}
	hash, wait := m.nextHash(top)
	switch {
	case hash == "":
	case wait == WaitNothing:
		m.start(hash)
	case wait == WaitEnd:
		m.stopAll()
	}
}

func (m *Machine) start(hash string) {
	number := 0
	if top := m.top(); top != nil {
		number = top.number + 1
	}
	if m.policy.Compat.UniqueNumbers {
		number = m.counters.nextNumber
	}
	m.counters.nextNumber = max(m.counters.nextNumber, number+1)
	m.running = append(m.running, &epoch{number: number, hash: hash, started: m.clock.now})
	m.emit(Start{number, hash})
}

// hasLiveDeadline reports whether LiveWithin bounds the start of an epoch: only if something waits for it.
func (m *Machine) hasLiveDeadline(e *epoch) bool {
	if e.live || e.late || e.terminating() || m.policy.Epochs.LiveWithin <= 0 {
		return false
	}
	return len(m.running) > 1 || e.hash != m.goal.desired && !m.goal.finished
}

// endLateStart ends an epoch that was not live in time.
func (m *Machine) endLateStart() {
	top := m.top()
	if top == nil || !m.hasLiveDeadline(top) || m.clock.now < top.started+m.policy.Epochs.LiveWithin {
		return
	}
	switch {
	case m.policy.Compat.StartWhenLate:
		top.late = true
	case len(m.running) > 1:
		top.failed = true
		m.killUnlessLive(top)
	case m.hot():
		m.killUnlessLive(top) // another one is desired, but if this one serves, it can be taken over
	default:
		m.stop(top)
	}
}
