package supervise

func (m *Machine) onDesired(hash string) {
	if m.end.begun || hash == "" || hash == m.goal.desired {
		return
	}
	g := &m.goal
	g.desired, g.want, g.back, g.idle, g.plain = hash, retry{}, retry{}, false, false
}

func (m *Machine) onLive(number int) {
	e := m.byNumber(number)
	if e == nil || e.live {
		return
	}
	// One that was given up, and serves after all, did not fail.
	e.live, e.since, e.failed, e.doubt = true, m.clock.now, e.failed && !e.doubt.open, doubt{}
	m.learnGood()
}

// learnGood keeps what serves as the last good configuration.
func (m *Machine) learnGood() {
	if e := m.serving(); e != nil && e.hash != m.goal.good {
		m.goal.good, m.goal.back = e.hash, retry{}
	}
}

// budget is that of a configuration; nil if it is neither desired nor good.
func (m *Machine) budget(hash string) *retry {
	switch hash {
	case m.goal.desired:
		return &m.goal.want
	case m.goal.good:
		return &m.goal.back
	}
	return nil
}

// pick chooses what to start where nothing runs; "" for nothing.
func (m *Machine) pick() (string, *retry) {
	g := &m.goal
	if g.desired == "" || g.idle {
		return "", nil
	}
	if m.fallsBack() && !g.back.spent && (g.want.spent || g.back.used < g.want.used) {
		return g.good, &g.back
	}
	if g.want.spent {
		return "", nil
	}
	return g.desired, &g.want
}

// fallsBack says that there is a last good configuration to go back to.
func (m *Machine) fallsBack() bool {
	o := m.policy.Old
	return m.goal.good != "" && m.goal.good != m.goal.desired && !m.one() && !o.AbortAll && !o.NoRetry
}

// next is what should take over from top, "" for nothing, and what it waits for.
func (m *Machine) next(top *epoch) (hash string, wait Waiting) {
	g, p := &m.goal, m.policy
	hash = g.desired
	rescue := false
	switch {
	case g.idle:
		return "", WaitNothing
	case g.want.spent || top.hash == g.desired && (!top.dying() || p.Old.AbortAll):
		// What should run does, as far as it can: but it must be possible to watch and to drain it.
		if rescue = top.noAdmin && !m.memory.plain; !rescue {
			return "", WaitNothing
		}
		hash = top.hash
	}
	r := m.budget(hash)
	switch {
	case r == nil || r.spent:
		return "", WaitNothing
	case top.dying() && !p.Old.AbortAll:
		return hash, WaitExit
	case g.away && m.serving() != nil:
		return hash, WaitUpstream
	case m.one():
		return hash, WaitEnd
	case !top.live && !top.late && top.sent == 0:
		return hash, WaitLive
	case m.memory.locked:
		return hash, WaitUnlock
	case m.memory.plain, g.plain && !rescue:
		return hash, WaitEnd
	case p.Epochs.Max > 0 && len(m.running) >= p.Epochs.Max:
		return hash, WaitExit
	case m.clock.now < r.at:
		return hash, WaitRetry
	}
	return hash, WaitNothing
}

// startDue starts what should run and can.
func (m *Machine) startDue() {
	top := m.top()
	if top == nil {
		if hash, r := m.pick(); hash != "" && m.clock.now >= r.at {
			m.start(hash)
		}
		return
	}
	hash, wait := m.next(top)
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
	if m.policy.Old.Ascending {
		number = m.tally.next
	}
	m.tally.next = max(m.tally.next, number+1)
	m.running = append(m.running, &epoch{number: number, hash: hash, started: m.clock.now})
	m.do(Start{number, hash})
}

// bounded says that something waits for the epoch, which is not live yet, and not for ever.
func (m *Machine) bounded(e *epoch) bool {
	if e.live || e.late || e.dying() || m.policy.Epochs.LiveWithin <= 0 {
		return false
	}
	return len(m.running) > 1 || e.hash != m.goal.desired && !m.goal.idle
}

// giveUpDue gives up an epoch that was not live in time.
func (m *Machine) giveUpDue() {
	top := m.top()
	if top == nil || !m.bounded(top) || m.clock.now < top.started+m.policy.Epochs.LiveWithin {
		return
	}
	switch {
	case m.policy.Old.StartLate:
		top.late = true
	case len(m.running) > 1:
		top.failed = true
		m.giveUp(top)
	case m.hot():
		m.giveUp(top) // nobody wants it any more; but if it serves, it can be taken over
	default:
		m.stop(top)
	}
}
