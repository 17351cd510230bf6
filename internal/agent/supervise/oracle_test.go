package supervise_test

import (
	"fmt"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/supervise"
)

// oracle checks a machine's effects against the invariants of the package comment, and knows nothing else.
type oracle struct {
	policy         supervise.Policy
	now            time.Duration
	desired        string
	good           string // what is live, or was live last
	running        map[int]*epoch
	disconnected   bool
	locked         bool   // an Unlock is not answered
	lockedBy       string // the configuration that needed it
	plain          bool   // nothing can take over from what is running
	incompatible   bool   // what is desired cannot take over from it
	drained        bool   // by DrainRequested or Terminate
	drainRequested bool   // by DrainRequested
	shutdowns      int
	shutdownAt     time.Duration       // of the first request
	connections    int                 // the last count of connections, below 0 for none since the drain
	charges        map[string]*retries // by configuration
	wake           time.Duration
	code           int // of the last failure
	done           bool
}

// epoch is a running epoch, as the events and effects describe it.
type epoch struct {
	hash         string
	started      time.Duration
	liveAt       time.Duration // below 0 if it is not live
	termAt       time.Duration // when SIGTERM was sent; below 0 if it was not
	killed       bool
	noAdmin      bool
	probed       bool   // KillUnlessLive is not answered
	failed       bool   // it was probed because it failed
	parentFailed func() // charges the failure of its parent, unless it serves
	orphan       bool
}

// retries are the failures of a configuration and their consequences.
type retries struct {
	failures                int
	notUntil, atLatest      time.Duration // of the next start, without and with all of the jitter
	panicked, panicExpected bool          // panicExpected: for another reason than the budget
}

func newOracle(p supervise.Policy) *oracle {
	return &oracle{policy: p, running: map[int]*epoch{}, charges: map[string]*retries{}, wake: -1, connections: -1}
}

func (o *oracle) hot() bool    { return o.policy.Epochs.HotRestart }
func (o *oracle) single() bool { return o.policy.Epochs.Max <= 1 }

// top returns the highest running number, or -1.
func (o *oracle) top() int {
	top := -1
	for n := range o.running {
		top = max(top, n)
	}
	return top
}

// serving returns the highest live number, or -1.
func (o *oracle) serving() int {
	top := -1
	for n, e := range o.running {
		if e.liveAt >= 0 {
			top = max(top, n)
		}
	}
	return top
}

func (o *oracle) signaled() int {
	n := 0
	for _, e := range o.running {
		if e.termAt >= 0 || e.killed {
			n++
		}
	}
	return n
}

func (o *oracle) charge(hash string) *retries {
	if o.charges[hash] == nil {
		o.charges[hash] = &retries{}
	}
	return o.charges[hash]
}

// step sends one event to the machine and returns an error if that violates an invariant.
func (o *oracle) step(m *supervise.Machine, ev supervise.Event) error {
	wasDone, same := o.done, o.desired
	unlock := o.observe(ev)
	effects := m.Step(ev)
	if wasDone && len(effects) > 0 {
		return fmt.Errorf("%#v after Done", effects)
	}
	if d, ok := ev.(supervise.Desired); ok && d.Hash == same && len(effects) > 0 {
		return fmt.Errorf("the same configuration had effects %#v", effects)
	}
	for i, e := range effects {
		if u, ok := e.(supervise.Unlock); ok {
			if u.Epoch != unlock {
				return fmt.Errorf("%#v, want epoch %d", u, unlock)
			}
			unlock = -1
		}
		if _, ok := e.(supervise.Remove); ok && i != len(effects)-2 {
			return fmt.Errorf("Remove is followed by %#v", effects[i+1:])
		}
		if err := o.check(e, i == len(effects)-1); err != nil {
			return err
		}
	}
	if unlock >= 0 {
		return fmt.Errorf("no Unlock after epoch %d exited before it was live", unlock)
	}
	return o.checkState(m)
}

// observe records the event and returns the epoch that needs an Unlock, or -1.
func (o *oracle) observe(ev supervise.Event) (unlock int) {
	switch e := ev.(type) {
	case supervise.Now:
		o.now = max(o.now, e.T)
	case supervise.Desired:
		if o.shutdowns == 0 && !o.done && e.Hash != o.desired {
			o.desired, o.charges, o.incompatible = e.Hash, map[string]*retries{}, false
		}
	case supervise.Upstream:
		o.disconnected = !e.OK
	case supervise.Live:
		if s := o.running[e.Epoch]; s != nil && s.liveAt < 0 {
			s.liveAt, s.failed = o.now, s.failed && !s.probed
			s.probed, s.parentFailed = false, nil
			o.recordGood()
		}
	case supervise.Unlocked:
		if o.locked {
			o.locked = false
			if n := o.serving(); !e.OK {
				o.plain = true
				if o.lockedBy == o.desired || o.lockedBy == o.good {
					o.charge(o.lockedBy).panicExpected = n >= 0 && o.running[n].hash != o.lockedBy
				}
			}
		}
	case supervise.DrainRequested:
		o.drained, o.drainRequested = true, o.drainRequested || o.shutdowns == 0
	case supervise.Terminate:
		if o.shutdowns++; o.shutdowns == 1 {
			o.shutdownAt = o.now
		}
		o.drained = true
		if e.Quick {
			o.shutdowns++ // skips the drain like a second request
		}
	case supervise.Connections:
		o.connections = e.N
	case supervise.Exited:
		return o.exited(e)
	}
	return -1
}

// recordGood records the configuration that serves; another one has a new budget.
func (o *oracle) recordGood() {
	if n := o.serving(); n >= 0 && o.running[n].hash != o.good {
		o.good = o.running[n].hash
		if o.good != o.desired {
			delete(o.charges, o.good)
		}
	}
}

func (o *oracle) exited(e supervise.Exited) (unlock int) {
	unlock = -1
	s := o.running[e.Epoch]
	if s == nil {
		return unlock
	}
	highest := e.Epoch == o.top()
	delete(o.running, e.Epoch)
	if len(o.running) == 0 {
		o.locked, o.plain = false, false
	}
	o.incompatible = o.incompatible && !highest
	defer o.recordGood()
	if o.hot() && highest && len(o.running) > 0 {
		if s.liveAt < 0 && e.Reason == supervise.Ended && o.shutdowns == 0 {
			unlock, o.locked, o.lockedBy = e.Epoch, true, s.hash
		}
		if s.liveAt >= 0 || e.TookAdmin {
			o.running[o.top()].noAdmin = true
		}
	}
	if !highest && o.serving() < 0 {
		o.running[o.top()].orphan = true
	}
	if s.parentFailed != nil && o.shutdowns == 0 {
		s.parentFailed()
	}
	switch {
	case o.shutdowns > 0, !highest && o.serving() >= 0:
	case o.hot() && !highest && !o.running[o.top()].killed && o.running[o.top()].termAt < 0:
		o.running[o.top()].parentFailed = func() { o.recordFailure(s, e.Status) }
	case e.Reason == supervise.Incompatible && len(o.running) > 0:
		same := s.hash == o.running[o.top()].hash
		o.plain = o.plain || same
		o.incompatible = o.incompatible || !same && s.hash == o.desired
	case (s.termAt >= 0 || s.killed || s.probed) && !s.failed:
	default:
		o.recordFailure(s, e.Status)
	}
	return unlock
}

// recordFailure charges an exit to the budget of the epoch's configuration.
func (o *oracle) recordFailure(s *epoch, status supervise.Status) {
	if o.code = max(1, status.ExitCode()); s.hash != o.desired && s.hash != o.good {
		return
	}
	c := o.charge(s.hash)
	if h := o.policy.HealthyFor; s.liveAt >= 0 && h > 0 && o.now-s.liveAt >= h {
		*c = retries{}
	}
	delay := o.policy.Backoff << min(c.failures, 20)
	c.notUntil, c.atLatest = o.now+delay, o.now+delay+time.Duration(float64(delay)*o.policy.Jitter)
	c.failures++
}

// check checks one effect.
func (o *oracle) check(e supervise.Effect, last bool) error {
	switch e := e.(type) {
	case supervise.Start:
		return o.checkStart(e)
	case supervise.Kill:
		return o.checkKill(e)
	case supervise.KillUnlessLive:
		return o.checkKillUnlessLive(e)
	case supervise.Drain:
		s := o.running[e.Epoch]
		if s == nil || s.liveAt < 0 || e.Epoch != o.top() || !o.drained || e.NoAdmin != s.noAdmin {
			return fmt.Errorf("%#v of %+v", e, s)
		}
		o.connections = -1
	case supervise.Panic:
		if c := o.charge(e.Hash); c.panicked || c.failures <= o.policy.Budget && !c.panicExpected {
			return fmt.Errorf("%#v after %+v", e, c)
		}
		o.charge(e.Hash).panicked = true
	case supervise.Remove:
		if len(o.running) > 0 || !o.hot() {
			return fmt.Errorf("%#v while %d are running", e, len(o.running))
		}
	case supervise.Wake:
		if e.At <= o.now {
			return fmt.Errorf("%#v at %v", e, o.now)
		}
		o.wake = e.At
	case supervise.Done:
		if len(o.running) > 0 || !last {
			return fmt.Errorf("%#v while %d are running, last effect %v", e, len(o.running), last)
		}
		if want := map[bool]int{true: 0, false: o.code}[o.shutdowns > 0]; e.Code != want {
			return fmt.Errorf("%#v, want code %d", e, want)
		}
		if c := o.charge(o.desired); o.shutdowns == 0 && !c.panicked {
			return fmt.Errorf("%#v, the budget is not exhausted: %+v", e, c)
		}
		o.done = true
	}
	return nil
}

func (o *oracle) checkStart(e supervise.Start) error {
	top, c := o.top(), o.charge(e.Hash)
	switch {
	case e.Epoch != top+1:
		return fmt.Errorf("%#v, the highest is %d", e, top)
	case o.shutdowns > 0 || e.Hash == "":
		return fmt.Errorf("%#v, after %d shutdown requests", e, o.shutdowns)
	case top >= 0 && o.running[top].liveAt < 0:
		return fmt.Errorf("%#v while %d is starting", e, top)
	case o.signaled() > 0 || top >= 0 && o.running[top].probed:
		return fmt.Errorf("%#v while another one is terminating", e)
	case len(o.running) >= max(1, o.policy.Epochs.Max):
		return fmt.Errorf("%#v while %d are running", e, len(o.running))
	case top >= 0 && (o.locked || o.plain || o.incompatible && e.Hash == o.desired):
		return fmt.Errorf("%#v: locked %v, plain %v", e, o.locked, o.plain || o.incompatible)
	case top >= 0 && o.disconnected:
		return fmt.Errorf("%#v while the upstream is disconnected", e)
	case o.now < c.notUntil:
		return fmt.Errorf("%#v at %v, the backoff lasts until %v", e, o.now, c.notUntil)
	case c.panicked || c.failures > o.policy.Budget:
		return fmt.Errorf("%#v after %d failures, panic %v", e, c.failures, c.panicked)
	case e.Hash == o.desired:
	case top < 0 && e.Hash == o.good && (o.charge(o.desired).failures > 0 || o.charge(o.desired).panicked) && !o.single():
	case top >= 0 && e.Hash == o.running[top].hash && o.running[top].noAdmin && o.charge(o.desired).panicked:
	default:
		return fmt.Errorf("%#v, desired is %q, good was %q", e, o.desired, o.good)
	}
	o.running[e.Epoch] = &epoch{hash: e.Hash, started: o.now, liveAt: -1, termAt: -1}
	return nil
}

func (o *oracle) checkKill(e supervise.Kill) error {
	s := o.running[e.Epoch]
	if s == nil || s.killed {
		return fmt.Errorf("%#v: not running, or killed already", e)
	}
	starting := s.liveAt < 0
	child := o.hot() && starting && e.Epoch > 0
	switch {
	case child && e.Signal != supervise.SIGKILL:
		return fmt.Errorf("%#v would end its parent too", e)
	case child && o.shutdowns == 0:
		return fmt.Errorf("%#v: it may be the only one that serves", e)
	case child && o.shutdowns == 1 && !s.probed && !o.drainCanBeOver():
		return fmt.Errorf("%#v: shutdown waits for a child", e)
	case child:
	case s.termAt >= 0 && (e.Signal != supervise.SIGKILL || o.shutdowns < 2 && o.now < s.termAt+o.policy.Grace):
		return fmt.Errorf("%#v at %v, SIGTERM was at %v", e, o.now, s.termAt)
	case s.termAt >= 0:
	case e.Signal != supervise.SIGTERM:
		return fmt.Errorf("%#v without SIGTERM before", e)
	case o.shutdowns == 0 && starting && o.hot():
		return fmt.Errorf("%#v: it may serve", e)
	case o.shutdowns == 0 && !o.single() && !o.plain && !o.incompatible:
		return fmt.Errorf("%#v: neither shutdown nor a plain restart", e)
	case o.shutdowns == 0 && s.hash == o.desired && e.Epoch == o.top():
		return fmt.Errorf("%#v: its configuration is desired", e)
	case o.shutdowns == 1 && !starting && !o.drainCanBeOver():
		return fmt.Errorf("%#v at %v, shutdown was requested at %v", e, o.now, o.shutdownAt)
	}
	if e.Signal == supervise.SIGTERM {
		s.termAt = o.now
	}
	s.killed = e.Signal == supervise.SIGKILL
	return nil
}

// checkKillUnlessLive checks that an epoch is probed only if it is late or has lost its parent.
func (o *oracle) checkKillUnlessLive(e supervise.KillUnlessLive) error {
	s := o.running[e.Epoch]
	if s == nil || s.killed || s.termAt >= 0 || s.probed || s.liveAt >= 0 || !o.hot() {
		return fmt.Errorf("%#v of %+v", e, s)
	}
	overdue := o.now >= s.started+o.policy.Epochs.LiveWithin && o.policy.Epochs.LiveWithin > 0
	switch {
	case s.orphan:
	case o.shutdowns > 0 && o.now < o.shutdownAt+o.policy.Drain/4 && !o.policy.ExitOnZero:
		return fmt.Errorf("%#v: shutdown waits for a child", e)
	case o.shutdowns == 0 && (!overdue || len(o.running) == 1 && s.hash == o.desired):
		return fmt.Errorf("%#v: before its deadline", e)
	}
	s.probed, s.failed = true, o.shutdowns == 0 && !s.orphan && len(o.running) > 1
	return nil
}
