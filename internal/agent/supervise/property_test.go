package supervise_test

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/supervise"
)

// drainMayBeOver leaves the time that Retire gave aside: it can only make a drain shorter.
func (r *referee) drainMayBeOver() bool {
	if r.idle == 0 || r.policy.ExitOnZero || r.retired {
		return true
	}
	return r.now >= r.askedAt+r.policy.Drain
}

// rest checks what must hold between two steps: nothing is forgotten.
func (r *referee) rest(m *supervise.Machine) error {
	v, top := m.View(), r.top()
	if r.done {
		return nil
	}
	if len(v.Epochs) != len(r.running) || v.Running != (top >= 0) || v.Live != (r.serving() >= 0) {
		return fmt.Errorf("the view says %+v, what runs is %d", v, len(r.running))
	}
	for n, s := range r.running {
		if s.term >= 0 && !s.killed && r.wake <= r.now {
			return fmt.Errorf("SIGTERM was sent to %d at %v, and it will not be woken to kill (%v)", n, s.term, r.wake)
		}
		if s.orphan && r.hot() && s.liveAt < 0 && !s.killed && !s.asked {
			return fmt.Errorf("%d has no parent and goes on looking for it", n)
		}
	}
	switch {
	case r.asked > 0:
		return r.restAtEnd()
	case r.desired == "":
		return nil
	case top < 0:
		return r.restEmpty()
	}
	return r.restRunning(r.running[top])
}

func (r *referee) restAtEnd() error {
	waits := len(r.running) > r.signalled()
	switch {
	case len(r.running) == 0:
		return fmt.Errorf("nothing runs, the end is asked for, and it is not done")
	case r.asked > 1 && waits:
		return fmt.Errorf("asked %d times and still waiting", r.asked)
	case waits && !r.policy.ExitOnZero && r.wake <= r.now:
		return fmt.Errorf("a drain is waited for at %v without a wake (%v)", r.now, r.wake)
	case waits && !r.policy.ExitOnZero && r.now >= r.askedAt+r.policy.Drain:
		return fmt.Errorf("the end was asked for at %v, and still waits at %v", r.askedAt, r.now)
	}
	return nil
}

func (r *referee) restEmpty() error {
	want, back := r.charge(r.desired), r.charge(r.good)
	if r.wake <= r.now {
		return fmt.Errorf("nothing runs at %v and it will not be woken in time (%v)", r.now, r.wake)
	}
	if !want.panicked && r.now >= want.atLatest && (r.one() || r.good == "" || back.failures >= want.failures) {
		return fmt.Errorf("nothing runs at %v and nothing stands against a start (%+v)", r.now, want)
	}
	return nil
}

func (r *referee) restRunning(s *seen) error {
	within := r.policy.Epochs.LiveWithin
	if s.liveAt < 0 && len(r.running) > 1 && within > 0 && !s.killed && !s.asked && (r.wake <= r.now || r.now >= s.started+within) {
		return fmt.Errorf("a child that is starting since %v is not given up at %v (wake %v)", s.started, r.now, r.wake)
	}
	if s.liveAt < 0 || r.signalled() > 0 || r.away || r.locked {
		return nil
	}
	want := r.charge(r.desired)
	unmet := s.hash != r.desired && !want.panicked
	switch {
	case !unmet && (!s.adminless || r.plain || r.charge(s.hash).panicked):
		return nil
	case unmet && (r.one() || r.plain || r.alien):
		return fmt.Errorf("%q runs, %q is desired, and it is not ended", s.hash, r.desired)
	case len(r.running) >= r.policy.Epochs.Max:
		return nil
	case unmet && r.now >= want.atLatest:
		return fmt.Errorf("%q serves, %q is desired and not started (%+v)", s.hash, r.desired, want)
	case !unmet && r.now >= r.charge(s.hash).atLatest:
		return fmt.Errorf("%q serves without admin interface, and is not taken over", s.hash)
	case r.wake <= r.now:
		return fmt.Errorf("%q serves at %v, and it will not be woken to start another (%v)", s.hash, r.now, r.wake)
	}
	return nil
}

// event makes an event of two bytes, about an epoch at most one off those that run.
func (r *referee) event(kind, arg byte) supervise.Event {
	near := r.top() + 1 - int(arg%4)
	if arg%32 < 24 {
		near = r.top() - int(arg/4%2)
	}
	switch kind % 20 {
	case 0, 1, 2:
		return supervise.Now{T: r.now + time.Duration(arg)*100*time.Millisecond, Jitter: float64(arg) / 256}
	case 3:
		return supervise.Now{T: r.now + time.Duration(arg)*time.Minute, Jitter: float64(arg) / 256}
	case 4, 5:
		return supervise.Desired{Hash: string('a' + rune(arg%3))}
	case 6, 7, 8, 9:
		return supervise.Live{Epoch: near}
	case 10, 11:
		return supervise.Exited{Epoch: near, Status: supervise.Status{Code: int(arg / 32 % 4)}, TookAdmin: arg&128 != 0}
	case 12:
		return supervise.Exited{Epoch: near, Status: supervise.Status{Signal: supervise.Signal(1 + arg/8)}, TookAdmin: arg&4 != 0}
	case 13:
		if s := r.running[near]; s == nil || s.liveAt >= 0 {
			return supervise.Upstream{OK: arg%2 == 0}
		}
		return supervise.Exited{Epoch: near, Status: supervise.Status{Code: 1}, Why: supervise.Why(arg / 8 % 3)}
	case 14:
		if arg%8 != 0 {
			return supervise.Retire{}
		}
		return supervise.Terminate{Quick: arg%16 == 0}
	case 15:
		return supervise.Drained{Epoch: near}
	case 16, 17:
		return supervise.Unlocked{OK: arg%8 != 0}
	case 18:
		return supervise.Upstream{OK: arg%2 == 0}
	default:
		return supervise.Connections{N: int(arg%8) - 1, Epoch: near}
	}
}

// history plays bytes as events against a machine of a small policy, and finally ends it.
func history(p supervise.Policy, data []byte, logf ...func(string, ...any)) error {
	p.HealthyFor = time.Minute
	if len(data) > 0 {
		p.Budget = int(data[0] / 4 % 4)
		p.ExitOnZero = data[0]&1 != 0
		p.MaxDrain = time.Duration(data[0]&2) * time.Second
	}
	m, r := supervise.New(p), newReferee(p)
	for i := 1; i+1 < len(data); i += 2 {
		ev := r.event(data[i], data[i+1])
		for _, log := range logf {
			log("%#v; %s", ev, printView(m.View()))
		}
		if err := r.step(m, ev); err != nil {
			return fmt.Errorf("event %d %#v: %w", i/2, ev, err)
		}
	}
	// Whatever has happened, three requests end it, once everything has been reaped.
	for range 3 {
		if err := r.step(m, supervise.Terminate{}); err != nil {
			return fmt.Errorf("at the end: %w", err)
		}
	}
	for len(r.running) > 0 {
		if err := r.step(m, supervise.Exited{Epoch: r.top(), Status: supervise.Status{Signal: supervise.SIGKILL}}); err != nil {
			return fmt.Errorf("reaped: %w", err)
		}
	}
	if !r.done {
		return fmt.Errorf("not done after three requests and with nothing running")
	}
	return nil
}

// promising are the policies that keep all promises of the package.
func promising() []supervise.Policy {
	three := supervise.HotPolicy()
	three.Epochs.Max = 3
	return []supervise.Policy{supervise.DefaultPolicy(), supervise.HotPolicy(), three}
}

func TestPromisesHoldInAnyOrderOfEvents(t *testing.T) {
	seed := time.Now().UnixNano()
	rnd := rand.New(rand.NewSource(seed))
	for range 20_000 {
		data := make([]byte, 1+2*rnd.Intn(80))
		rnd.Read(data)
		for i, p := range promising() {
			if history(p, data) != nil {
				data = shrink(p, data)
				t.Fatalf("seed %d, policy %d, history %#v: %v", seed, i, data, history(p, data, t.Logf))
			}
		}
	}
}

// shrink leaves out of a history that breaks a promise whatever is not needed for that.
func shrink(p supervise.Policy, data []byte) []byte {
	for i := 1; i+1 < len(data); {
		if less := slices.Delete(slices.Clone(data), i, i+2); history(p, less) != nil {
			data, i = less, 1
		} else {
			i += 2
		}
	}
	return data
}

func FuzzPromises(f *testing.F) {
	f.Add([]byte{0, 4, 0, 6, 0, 9, 1, 0, 2, 12, 8})
	f.Add([]byte{3, 4, 0, 6, 0, 12, 8, 13, 0, 0, 50, 14, 1})
	f.Add([]byte{8, 4, 0, 6, 0, 4, 1, 10, 128, 16, 1, 0, 9, 6, 0, 14, 8})
	f.Fuzz(func(t *testing.T, data []byte) {
		for i, p := range promising() {
			if err := history(p, data[:min(len(data), 2000)]); err != nil {
				t.Fatalf("policy %d: %v", i, err)
			}
		}
	})
}

// TestOldHabitsComeToAnEnd plays histories against the older agents: their numbers, and that an end comes of being asked.
func TestOldHabitsComeToAnEnd(t *testing.T) {
	seed := time.Now().UnixNano()
	rnd := rand.New(rand.NewSource(seed))
	for name, policy := range policies {
		for range 3_000 {
			if err := oldHistory(policy(), rnd); err != nil {
				t.Fatalf("seed %d, policy %s: %v", seed, name, err)
			}
		}
	}
}

func oldHistory(p supervise.Policy, rnd *rand.Rand) error {
	m, running, highest, done := supervise.New(p), map[int]bool{}, -1, false
	r := newReferee(p) // only to make events about what runs
	take := func(ev supervise.Event) error {
		if e, ok := ev.(supervise.Exited); ok {
			delete(running, e.Epoch)
			delete(r.running, e.Epoch)
		}
		if e, ok := ev.(supervise.Now); ok {
			r.now = max(r.now, e.T)
		}
		for _, e := range m.Step(ev) {
			switch e := e.(type) {
			case supervise.Start:
				want := r.top() + 1
				if p.Old.Ascending {
					want = highest + 1
				}
				if running[e.Epoch] || e.Epoch != want {
					return fmt.Errorf("%#v, want number %d", e, want)
				}
				running[e.Epoch], highest = true, max(highest, e.Epoch)
				r.running[e.Epoch] = &seen{liveAt: -1}
			case supervise.Done:
				if done || len(running) > 0 && !p.Old.Leave {
					return fmt.Errorf("%#v while %v run", e, running)
				}
				done = true
			}
		}
		return nil
	}
	for range rnd.Intn(60) {
		if err := take(r.event(byte(rnd.Intn(256)), byte(rnd.Intn(256)))); err != nil {
			return err
		}
	}
	events := []supervise.Event{supervise.Terminate{}, supervise.Now{T: r.now + time.Hour}, supervise.Now{T: r.now + 2*time.Hour}}
	for n := highest; n >= 0; n-- {
		events = append(events, supervise.Exited{Epoch: n, Status: supervise.Status{Signal: supervise.SIGKILL}})
	}
	for _, ev := range events {
		if err := take(ev); err != nil {
			return err
		}
	}
	if !done {
		return fmt.Errorf("not done, %v run", running)
	}
	return nil
}
