package supervise_test

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/supervise"
)

// drainCanBeOver ignores the time since DrainRequested, which can only make a drain shorter.
func (o *oracle) drainCanBeOver() bool {
	if o.connections == 0 || o.policy.ExitOnZero || o.drainRequested {
		return true
	}
	return o.now >= o.shutdownAt+o.policy.Drain
}

// checkState checks the state between two steps: whatever waits for time has a Wake.
func (o *oracle) checkState(m *supervise.Machine) error {
	v, top := m.View(), o.top()
	if o.done {
		return nil
	}
	if len(v.Epochs) != len(o.running) || v.Running != (top >= 0) || v.Live != (o.serving() >= 0) {
		return fmt.Errorf("the view is %+v, running are %d", v, len(o.running))
	}
	for n, s := range o.running {
		if s.termAt >= 0 && !s.killed && o.wake <= o.now {
			return fmt.Errorf("SIGTERM was sent to %d at %v, without a wake for SIGKILL (%v)", n, s.termAt, o.wake)
		}
		if s.orphan && o.hot() && s.liveAt < 0 && !s.killed && !s.probed {
			return fmt.Errorf("%d has no parent and is not ended", n)
		}
	}
	switch {
	case o.shutdowns > 0:
		return o.checkShutdown()
	case o.desired == "":
		return nil
	case top < 0:
		return o.checkEmpty()
	}
	return o.checkRunning(o.running[top])
}

func (o *oracle) checkShutdown() error {
	waits := len(o.running) > o.signaled()
	switch {
	case len(o.running) == 0:
		return fmt.Errorf("nothing is running, shutdown was requested, and it is not done")
	case o.shutdowns > 1 && waits:
		return fmt.Errorf("still waiting after %d shutdown requests", o.shutdowns)
	case waits && !o.policy.ExitOnZero && o.wake <= o.now:
		return fmt.Errorf("a drain is in progress at %v without a wake (%v)", o.now, o.wake)
	case waits && !o.policy.ExitOnZero && o.now >= o.shutdownAt+o.policy.Drain:
		return fmt.Errorf("shutdown was requested at %v, and still waits at %v", o.shutdownAt, o.now)
	}
	return nil
}

func (o *oracle) checkEmpty() error {
	want, back := o.charge(o.desired), o.charge(o.good)
	if o.wake <= o.now {
		return fmt.Errorf("nothing is running at %v, without a wake (%v)", o.now, o.wake)
	}
	if !want.panicked && o.now >= want.atLatest && (o.single() || o.good == "" || back.failures >= want.failures) {
		return fmt.Errorf("nothing is running at %v, although a start is possible (%+v)", o.now, want)
	}
	return nil
}

func (o *oracle) checkRunning(s *epoch) error {
	within := o.policy.Epochs.LiveWithin
	if s.liveAt < 0 && len(o.running) > 1 && within > 0 && !s.killed && !s.probed && (o.wake <= o.now || o.now >= s.started+within) {
		return fmt.Errorf("a child that is starting since %v is not ended at %v (wake %v)", s.started, o.now, o.wake)
	}
	if s.liveAt < 0 || o.signaled() > 0 || o.disconnected || o.locked {
		return nil
	}
	want := o.charge(o.desired)
	pending := s.hash != o.desired && !want.panicked
	switch {
	case !pending && (!s.noAdmin || o.plain || o.charge(s.hash).panicked):
		return nil
	case pending && (o.single() || o.plain || o.incompatible):
		return fmt.Errorf("%q is running, %q is desired, and it is not ended", s.hash, o.desired)
	case len(o.running) >= o.policy.Epochs.Max:
		return nil
	case pending && o.now >= want.atLatest:
		return fmt.Errorf("%q serves, %q is desired and not started (%+v)", s.hash, o.desired, want)
	case !pending && o.now >= o.charge(s.hash).atLatest:
		return fmt.Errorf("%q serves without admin interface, and no child takes over", s.hash)
	case o.wake <= o.now:
		return fmt.Errorf("%q serves at %v, without a wake to start another (%v)", s.hash, o.now, o.wake)
	}
	return nil
}

// event returns the event for two bytes, of an epoch that is running or next to one.
func (o *oracle) event(kind, arg byte) supervise.Event {
	near := o.top() + 1 - int(arg%4)
	if arg%32 < 24 {
		near = o.top() - int(arg/4%2)
	}
	switch kind % 20 {
	case 0, 1, 2:
		return supervise.Now{T: o.now + time.Duration(arg)*100*time.Millisecond, Jitter: float64(arg) / 256}
	case 3:
		return supervise.Now{T: o.now + time.Duration(arg)*time.Minute, Jitter: float64(arg) / 256}
	case 4, 5:
		return supervise.Desired{Hash: string('a' + rune(arg%3))}
	case 6, 7, 8, 9:
		return supervise.Live{Epoch: near}
	case 10, 11:
		return supervise.Exited{Epoch: near, Status: supervise.Status{Code: int(arg / 32 % 4)}, TookAdmin: arg&128 != 0}
	case 12:
		return supervise.Exited{Epoch: near, Status: supervise.Status{Signal: supervise.Signal(1 + arg/8)}, TookAdmin: arg&4 != 0}
	case 13:
		if s := o.running[near]; s == nil || s.liveAt >= 0 {
			return supervise.Upstream{OK: arg%2 == 0}
		}
		return supervise.Exited{Epoch: near, Status: supervise.Status{Code: 1}, Reason: supervise.Reason(arg / 8 % 3)}
	case 14:
		if arg%8 != 0 {
			return supervise.DrainRequested{}
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

// run sends bytes as events to a machine with a small policy, and finally shuts it down.
func run(p supervise.Policy, data []byte, logf ...func(string, ...any)) error {
	p.HealthyFor = time.Minute
	if len(data) > 0 {
		p.Budget = int(data[0] / 4 % 4)
		p.ExitOnZero = data[0]&1 != 0
		p.MaxDrain = time.Duration(data[0]&2) * time.Second
	}
	m, o := supervise.New(p), newOracle(p)
	for i := 1; i+1 < len(data); i += 2 {
		ev := o.event(data[i], data[i+1])
		for _, log := range logf {
			log("%#v; %s", ev, printView(m.View()))
		}
		if err := o.step(m, ev); err != nil {
			return fmt.Errorf("event %d %#v: %w", i/2, ev, err)
		}
	}
	// Three requests shut it down, once everything is reaped.
	for range 3 {
		if err := o.step(m, supervise.Terminate{}); err != nil {
			return fmt.Errorf("shutdown: %w", err)
		}
	}
	for len(o.running) > 0 {
		if err := o.step(m, supervise.Exited{Epoch: o.top(), Status: supervise.Status{Signal: supervise.SIGKILL}}); err != nil {
			return fmt.Errorf("reaped: %w", err)
		}
	}
	if !o.done {
		return fmt.Errorf("not done after three requests and nothing running")
	}
	return nil
}

// strictPolicies returns the policies that violate no invariant.
func strictPolicies() []supervise.Policy {
	three := supervise.HotPolicy()
	three.Epochs.Max = 3
	return []supervise.Policy{supervise.DefaultPolicy(), supervise.HotPolicy(), three}
}

func TestInvariantsHoldForAnyOrderOfEvents(t *testing.T) {
	seed := time.Now().UnixNano()
	rnd := rand.New(rand.NewSource(seed))
	for range 20_000 {
		data := make([]byte, 1+2*rnd.Intn(80))
		rnd.Read(data)
		for i, p := range strictPolicies() {
			if run(p, data) != nil {
				data = shrink(p, data)
				t.Fatalf("seed %d, policy %d, events %#v: %v", seed, i, data, run(p, data, t.Logf))
			}
		}
	}
}

// shrink removes events from a failing run while it still fails.
func shrink(p supervise.Policy, data []byte) []byte {
	for i := 1; i+1 < len(data); {
		if less := slices.Delete(slices.Clone(data), i, i+2); run(p, less) != nil {
			data, i = less, 1
		} else {
			i += 2
		}
	}
	return data
}

func FuzzInvariants(f *testing.F) {
	f.Add([]byte{0, 4, 0, 6, 0, 9, 1, 0, 2, 12, 8})
	f.Add([]byte{3, 4, 0, 6, 0, 12, 8, 13, 0, 0, 50, 14, 1})
	f.Add([]byte{8, 4, 0, 6, 0, 4, 1, 10, 128, 16, 1, 0, 9, 6, 0, 14, 8})
	f.Fuzz(func(t *testing.T, data []byte) {
		for i, p := range strictPolicies() {
			if err := run(p, data[:min(len(data), 2000)]); err != nil {
				t.Fatalf("policy %d: %v", i, err)
			}
		}
	})
}

// TestCompatPoliciesShutDown sends random events to the policies of older agents, and checks the epochs' numbers and that shutdown completes.
func TestCompatPoliciesShutDown(t *testing.T) {
	seed := time.Now().UnixNano()
	rnd := rand.New(rand.NewSource(seed))
	for name, policy := range policies {
		for range 3_000 {
			if err := compatHistory(policy(), rnd); err != nil {
				t.Fatalf("seed %d, policy %s: %v", seed, name, err)
			}
		}
	}
}

func compatHistory(p supervise.Policy, rnd *rand.Rand) error {
	m, running, highest, done := supervise.New(p), map[int]bool{}, -1, false
	o := newOracle(p) // only for its events
	send := func(ev supervise.Event) error {
		if e, ok := ev.(supervise.Exited); ok {
			delete(running, e.Epoch)
			delete(o.running, e.Epoch)
		}
		if e, ok := ev.(supervise.Now); ok {
			o.now = max(o.now, e.T)
		}
		for _, e := range m.Step(ev) {
			switch e := e.(type) {
			case supervise.Start:
				want := o.top() + 1
				if p.Compat.UniqueNumbers {
					want = highest + 1
				}
				if running[e.Epoch] || e.Epoch != want {
					return fmt.Errorf("%#v, want number %d", e, want)
				}
				running[e.Epoch], highest = true, max(highest, e.Epoch)
				o.running[e.Epoch] = &epoch{liveAt: -1}
			case supervise.Done:
				if done || len(running) > 0 && !p.Compat.DoneAfterGrace {
					return fmt.Errorf("%#v while %v are running", e, running)
				}
				done = true
			}
		}
		return nil
	}
	for range rnd.Intn(60) {
		if err := send(o.event(byte(rnd.Intn(256)), byte(rnd.Intn(256)))); err != nil {
			return err
		}
	}
	events := []supervise.Event{supervise.Terminate{}, supervise.Now{T: o.now + time.Hour}, supervise.Now{T: o.now + 2*time.Hour}}
	for n := highest; n >= 0; n-- {
		events = append(events, supervise.Exited{Epoch: n, Status: supervise.Status{Signal: supervise.SIGKILL}})
	}
	for _, ev := range events {
		if err := send(ev); err != nil {
			return err
		}
	}
	if !done {
		return fmt.Errorf("not done, %v are running", running)
	}
	return nil
}
