package supervise_test

import (
	"fmt"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/supervise"
)

// referee watches a machine from outside and knows only what the package promises.
type referee struct {
	policy  supervise.Policy
	now     time.Duration
	desired string
	good    string // what is live, or was live last
	running map[int]*seen
	away    bool
	locked  bool   // an Unlock is not answered
	locker  string // the configuration that needed it
	plain   bool   // what runs cannot be taken over by anything
	alien   bool   // it cannot be taken over by what is desired
	drained bool   // a drain was asked for, by Retire or Terminate
	retired bool   // by Retire
	asked   int    // times that the end was asked for
	askedAt time.Duration
	idle    int             // the last count of connections, below 0 for none since the drain
	blind   bool            // the drain is of an epoch without admin interface
	charges map[string]*due // by configuration
	wake    time.Duration
	code    int // of the last failure
	done    bool
}

// seen is an epoch that runs, as far as it can be seen.
type seen struct {
	hash      string
	started   time.Duration
	liveAt    time.Duration // below 0 for not yet
	term      time.Duration // when SIGTERM went to it; below 0 for not yet
	killed    bool
	adminless bool
	asked     bool   // GiveUp is not answered
	givenUp   bool   // because it failed
	owed      func() // what its parent's end counts for, if it does not serve
	orphan    bool
}

// due is what the failures of a configuration have led to.
type due struct {
	failures            int
	notUntil, atLatest  time.Duration // of the next try, without and with all the jitter
	panicked, condemned bool          // condemned: Panic has to come for another reason than the budget
}

func newReferee(p supervise.Policy) *referee {
	return &referee{policy: p, running: map[int]*seen{}, charges: map[string]*due{}, wake: -1, idle: -1}
}

func (r *referee) hot() bool { return r.policy.Epochs.HotRestart }
func (r *referee) one() bool { return r.policy.Epochs.Max <= 1 }

// top is the highest number that runs, or -1.
func (r *referee) top() int {
	top := -1
	for n := range r.running {
		top = max(top, n)
	}
	return top
}

// serving is the highest that is live, or -1.
func (r *referee) serving() int {
	top := -1
	for n, e := range r.running {
		if e.liveAt >= 0 {
			top = max(top, n)
		}
	}
	return top
}

func (r *referee) signalled() int {
	n := 0
	for _, e := range r.running {
		if e.term >= 0 || e.killed {
			n++
		}
	}
	return n
}

func (r *referee) charge(hash string) *due {
	if r.charges[hash] == nil {
		r.charges[hash] = &due{}
	}
	return r.charges[hash]
}

// step plays one event and says what promise the machine broke, if it did.
func (r *referee) step(m *supervise.Machine, ev supervise.Event) error {
	wasDone, same := r.done, r.desired
	unlock := r.see(ev)
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
				return fmt.Errorf("%#v, expected of %d", u, unlock)
			}
			unlock = -1
		}
		if _, ok := e.(supervise.Remove); ok && i != len(effects)-2 {
			return fmt.Errorf("Remove is followed by %#v", effects[i+1:])
		}
		if err := r.judge(e, i == len(effects)-1); err != nil {
			return err
		}
	}
	if unlock >= 0 {
		return fmt.Errorf("no Unlock after the end of %d, which was not live", unlock)
	}
	return r.rest(m)
}

// see takes note of the event and returns the epoch that an Unlock is owed for, or -1.
func (r *referee) see(ev supervise.Event) (unlock int) {
	switch e := ev.(type) {
	case supervise.Now:
		r.now = max(r.now, e.T)
	case supervise.Desired:
		if r.asked == 0 && !r.done && e.Hash != r.desired {
			r.desired, r.charges, r.alien = e.Hash, map[string]*due{}, false
		}
	case supervise.Upstream:
		r.away = !e.OK
	case supervise.Live:
		if s := r.running[e.Epoch]; s != nil && s.liveAt < 0 {
			s.liveAt, s.givenUp = r.now, s.givenUp && !s.asked
			s.asked, s.owed = false, nil
			r.learn()
		}
	case supervise.Unlocked:
		if r.locked {
			r.locked = false
			if n := r.serving(); !e.OK {
				r.plain = true
				if r.locker == r.desired || r.locker == r.good {
					r.charge(r.locker).condemned = n >= 0 && r.running[n].hash != r.locker
				}
			}
		}
	case supervise.Retire:
		r.drained, r.retired = true, r.retired || r.asked == 0
	case supervise.Terminate:
		if r.asked++; r.asked == 1 {
			r.askedAt = r.now
		}
		r.drained = true
		if e.Quick {
			r.asked++ // as good as asking twice
		}
	case supervise.Connections:
		r.idle = e.N
	case supervise.Exited:
		return r.exited(e)
	}
	return -1
}

// learn keeps what is live as what was good; with another one, its failures are forgotten.
func (r *referee) learn() {
	if n := r.serving(); n >= 0 && r.running[n].hash != r.good {
		r.good = r.running[n].hash
		if r.good != r.desired {
			delete(r.charges, r.good)
		}
	}
}

func (r *referee) exited(e supervise.Exited) (unlock int) {
	unlock = -1
	s := r.running[e.Epoch]
	if s == nil {
		return unlock
	}
	highest := e.Epoch == r.top()
	delete(r.running, e.Epoch)
	if len(r.running) == 0 {
		r.locked, r.plain = false, false
	}
	r.alien = r.alien && !highest
	defer r.learn()
	if r.hot() && highest && len(r.running) > 0 {
		if s.liveAt < 0 && e.Why == supervise.Ended && r.asked == 0 {
			unlock, r.locked, r.locker = e.Epoch, true, s.hash
		}
		if s.liveAt >= 0 || e.TookAdmin {
			r.running[r.top()].adminless = true
		}
	}
	if !highest && r.serving() < 0 {
		r.running[r.top()].orphan = true
	}
	if s.owed != nil && r.asked == 0 {
		s.owed()
	}
	switch {
	case r.asked > 0, !highest && r.serving() >= 0:
	case r.hot() && !highest && !r.running[r.top()].killed && r.running[r.top()].term < 0:
		r.running[r.top()].owed = func() { r.failed(s, e.Status) }
	case e.Why == supervise.Incompatible && len(r.running) > 0:
		same := s.hash == r.running[r.top()].hash
		r.plain = r.plain || same
		r.alien = r.alien || !same && s.hash == r.desired
	case (s.term >= 0 || s.killed || s.asked) && !s.givenUp:
	default:
		r.failed(s, e.Status)
	}
	return unlock
}

// failed counts the end of an epoch as a failure.
func (r *referee) failed(s *seen, status supervise.Status) {
	if r.code = max(1, status.ExitCode()); s.hash != r.desired && s.hash != r.good {
		return
	}
	c := r.charge(s.hash)
	if h := r.policy.HealthyFor; s.liveAt >= 0 && h > 0 && r.now-s.liveAt >= h {
		*c = due{}
	}
	delay := r.policy.Backoff << min(c.failures, 20)
	c.notUntil, c.atLatest = r.now+delay, r.now+delay+time.Duration(float64(delay)*r.policy.Jitter)
	c.failures++
}

// judge checks one effect.
func (r *referee) judge(e supervise.Effect, last bool) error {
	switch e := e.(type) {
	case supervise.Start:
		return r.judgeStart(e)
	case supervise.Kill:
		return r.judgeKill(e)
	case supervise.GiveUp:
		return r.judgeGiveUp(e)
	case supervise.Drain:
		s := r.running[e.Epoch]
		if s == nil || s.liveAt < 0 || e.Epoch != r.top() || !r.drained || e.Blind != s.adminless {
			return fmt.Errorf("%#v of %+v", e, s)
		}
		r.blind, r.idle = e.Blind, -1
	case supervise.Panic:
		if c := r.charge(e.Hash); c.panicked || c.failures <= r.policy.Budget && !c.condemned {
			return fmt.Errorf("%#v after %+v", e, c)
		}
		r.charge(e.Hash).panicked = true
	case supervise.Remove:
		if len(r.running) > 0 || !r.hot() {
			return fmt.Errorf("%#v while %d run", e, len(r.running))
		}
	case supervise.Wake:
		if e.At <= r.now {
			return fmt.Errorf("%#v at %v", e, r.now)
		}
		r.wake = e.At
	case supervise.Done:
		if len(r.running) > 0 || !last {
			return fmt.Errorf("%#v while %d run, last effect %v", e, len(r.running), last)
		}
		if want := map[bool]int{true: 0, false: r.code}[r.asked > 0]; e.Code != want {
			return fmt.Errorf("%#v, want code %d", e, want)
		}
		if c := r.charge(r.desired); r.asked == 0 && !c.panicked {
			return fmt.Errorf("%#v, the budget is not spent: %+v", e, c)
		}
		r.done = true
	}
	return nil
}

func (r *referee) judgeStart(e supervise.Start) error {
	top, c := r.top(), r.charge(e.Hash)
	switch {
	case e.Epoch != top+1:
		return fmt.Errorf("%#v, the highest is %d", e, top)
	case r.asked > 0 || e.Hash == "":
		return fmt.Errorf("%#v, the end was asked for %d times", e, r.asked)
	case top >= 0 && r.running[top].liveAt < 0:
		return fmt.Errorf("%#v while %d is starting", e, top)
	case r.signalled() > 0 || top >= 0 && r.running[top].asked:
		return fmt.Errorf("%#v while another one is dying", e)
	case len(r.running) >= max(1, r.policy.Epochs.Max):
		return fmt.Errorf("%#v while %d run", e, len(r.running))
	case top >= 0 && (r.locked || r.plain || r.alien && e.Hash == r.desired):
		return fmt.Errorf("%#v: locked %v, plain %v", e, r.locked, r.plain || r.alien)
	case top >= 0 && r.away:
		return fmt.Errorf("%#v while its configuration is not to be had", e)
	case r.now < c.notUntil:
		return fmt.Errorf("%#v at %v, the delay lasts until %v", e, r.now, c.notUntil)
	case c.panicked || c.failures > r.policy.Budget:
		return fmt.Errorf("%#v after %d failures, panic %v", e, c.failures, c.panicked)
	case e.Hash == r.desired:
	case top < 0 && e.Hash == r.good && (r.charge(r.desired).failures > 0 || r.charge(r.desired).panicked) && !r.one():
	case top >= 0 && e.Hash == r.running[top].hash && r.running[top].adminless && r.charge(r.desired).panicked:
	default:
		return fmt.Errorf("%#v, desired is %q, good was %q", e, r.desired, r.good)
	}
	r.running[e.Epoch] = &seen{hash: e.Hash, started: r.now, liveAt: -1, term: -1}
	return nil
}

func (r *referee) judgeKill(e supervise.Kill) error {
	s := r.running[e.Epoch]
	if s == nil || s.killed {
		return fmt.Errorf("%#v: it does not run, or is killed already", e)
	}
	starting := s.liveAt < 0
	child := r.hot() && starting && e.Epoch > 0
	switch {
	case child && e.Signal != supervise.SIGKILL:
		return fmt.Errorf("%#v would end its parent, too", e)
	case child && r.asked == 0:
		return fmt.Errorf("%#v: it may serve, and then nothing else does", e)
	case child && r.asked == 1 && !s.asked && !r.drainMayBeOver():
		return fmt.Errorf("%#v: the end waits for a child", e)
	case child:
	case s.term >= 0 && (e.Signal != supervise.SIGKILL || r.asked < 2 && r.now < s.term+r.policy.Grace):
		return fmt.Errorf("%#v at %v, SIGTERM was at %v", e, r.now, s.term)
	case s.term >= 0:
	case e.Signal != supervise.SIGTERM:
		return fmt.Errorf("%#v without SIGTERM before", e)
	case r.asked == 0 && starting && r.hot():
		return fmt.Errorf("%#v: it may serve", e)
	case r.asked == 0 && !r.one() && !r.plain && !r.alien:
		return fmt.Errorf("%#v: nobody asked for that", e)
	case r.asked == 0 && s.hash == r.desired && e.Epoch == r.top():
		return fmt.Errorf("%#v: it is what is desired", e)
	case r.asked == 1 && !starting && !r.drainMayBeOver():
		return fmt.Errorf("%#v at %v, the drain is from %v", e, r.now, r.askedAt)
	}
	if e.Signal == supervise.SIGTERM {
		s.term = r.now
	}
	s.killed = e.Signal == supervise.SIGKILL
	return nil
}

// judgeGiveUp checks that an epoch is doubted only when it is late or has lost its parent.
func (r *referee) judgeGiveUp(e supervise.GiveUp) error {
	s := r.running[e.Epoch]
	if s == nil || s.killed || s.term >= 0 || s.asked || s.liveAt >= 0 || !r.hot() {
		return fmt.Errorf("%#v of %+v", e, s)
	}
	overdue := r.now >= s.started+r.policy.Epochs.LiveWithin && r.policy.Epochs.LiveWithin > 0
	switch {
	case s.orphan:
	case r.asked > 0 && r.now < r.askedAt+r.policy.Drain/4 && !r.policy.ExitOnZero:
		return fmt.Errorf("%#v: the end waits for a child", e)
	case r.asked == 0 && (!overdue || len(r.running) == 1 && s.hash == r.desired):
		return fmt.Errorf("%#v: it still has time", e)
	}
	s.asked, s.givenUp = true, r.asked == 0 && !s.orphan && len(r.running) > 1
	return nil
}
