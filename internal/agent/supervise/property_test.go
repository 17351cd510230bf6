package supervise_test

import (
	"fmt"
	"math/rand"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/supervise"
)

// referee watches a machine from outside and knows only what the package promises.
type referee struct {
	policy   supervise.Policy
	now      time.Duration
	desired  string
	running  bool
	hash     string // of what runs
	liveAt   time.Duration
	term     time.Duration // when SIGTERM went to what runs; below 0 for not yet
	asked    int           // times that the end was asked for
	crashes  int           // restarts used of the budget, by our own count
	killed   bool          // SIGKILL went to it
	wake     time.Duration
	done     bool
	notUntil time.Duration // the restart may not come before
	atLatest time.Duration // with all the jitter, it may come as late as this
}

func newReferee(p supervise.Policy) *referee {
	return &referee{policy: p, liveAt: -1, term: -1, wake: -1}
}

// step plays one event and says what promise the machine broke, if it did.
func (r *referee) step(m *supervise.Machine, ev supervise.Event) error {
	was := *r
	code := r.see(ev)
	effects := m.Step(ev)
	if was.done && len(effects) > 0 {
		return fmt.Errorf("%#v after Done", effects)
	}
	if d, ok := ev.(supervise.Desired); ok && d.Hash == was.desired && len(effects) > 0 {
		return fmt.Errorf("the same configuration had effects %#v", effects)
	}
	for i, e := range effects {
		if err := r.judge(e, code, i == len(effects)-1); err != nil {
			return err
		}
	}
	return r.rest(m, code)
}

// see takes note of the event; code is the exit code that a crash would be reported with, or -1.
func (r *referee) see(ev supervise.Event) (code int) {
	code = -1
	switch e := ev.(type) {
	case supervise.Now:
		r.now = max(r.now, e.T)
	case supervise.Desired:
		if r.asked == 0 && e.Hash != r.desired {
			r.desired, r.crashes, r.notUntil, r.atLatest = e.Hash, 0, 0, 0
		}
	case supervise.Live:
		if r.running && e.Epoch == 0 && r.liveAt < 0 {
			r.liveAt = r.now
		}
	case supervise.Terminate:
		r.asked++
	case supervise.Exited:
		if !r.running || e.Epoch != 0 {
			return code
		}
		crashed := r.asked == 0 && r.hash == r.desired && r.term < 0
		if crashed && r.liveAt >= 0 && r.policy.HealthyFor > 0 && r.now-r.liveAt >= r.policy.HealthyFor {
			r.crashes = 0
		}
		if crashed {
			code = max(1, e.Status.ExitCode())
			delay := r.policy.Backoff << r.crashes
			r.notUntil, r.atLatest = r.now+delay, r.now+delay+time.Duration(float64(delay)*r.policy.Jitter)
			r.crashes++
		}
		r.running, r.liveAt, r.term, r.killed = false, -1, -1, false
	}
	return code
}

// judge checks one effect.
func (r *referee) judge(e supervise.Effect, code int, last bool) error {
	switch e := e.(type) {
	case supervise.Start:
		switch {
		case r.running || e.Epoch != 0:
			return fmt.Errorf("%#v while running=%v", e, r.running)
		case r.asked > 0 || e.Hash == "" || e.Hash != r.desired:
			return fmt.Errorf("%#v, desired is %q, end asked %d times", e, r.desired, r.asked)
		case r.now < r.notUntil:
			return fmt.Errorf("%#v at %v, the delay lasts until %v", e, r.now, r.notUntil)
		case r.crashes > r.policy.Budget:
			return fmt.Errorf("restart number %d, the budget is %d", r.crashes, r.policy.Budget)
		}
		r.running, r.hash = true, e.Hash
	case supervise.Kill:
		hastened := r.asked > 1
		switch {
		case !r.running || e.Epoch != 0:
			return fmt.Errorf("%#v: it does not run", e)
		case r.asked == 0 && r.hash == r.desired && r.term < 0:
			return fmt.Errorf("%#v: nobody asked for that", e)
		case e.Signal == supervise.SIGKILL && (r.term < 0 || !hastened && r.now < r.term+r.policy.Grace):
			return fmt.Errorf("%#v at %v, SIGTERM was at %v", e, r.now, r.term)
		}
		if e.Signal == supervise.SIGTERM {
			r.term = r.now
		}
		r.killed = e.Signal == supervise.SIGKILL
	case supervise.Drain:
		if !r.running || r.liveAt < 0 {
			return fmt.Errorf("drain of what is not live")
		}
	case supervise.Wake:
		if e.At <= r.now {
			return fmt.Errorf("%#v at %v", e, r.now)
		}
		r.wake = e.At
	case supervise.Done:
		if r.running || !last {
			return fmt.Errorf("%#v while running=%v, last effect %v", e, r.running, last)
		}
		if want := map[bool]int{true: 0, false: code}[r.asked > 0]; e.Code != want {
			return fmt.Errorf("%#v, want code %d", e, want)
		}
		r.done = true
	}
	return nil
}

// rest checks what must hold between two steps: nothing is forgotten.
func (r *referee) rest(m *supervise.Machine, code int) error {
	v := m.View()
	if !r.done && v.Running != r.running {
		return fmt.Errorf("the view says running=%v", v.Running)
	}
	switch {
	case r.done:
		return nil
	case !r.running && r.asked > 0:
		return fmt.Errorf("nothing runs, the end is asked for, and it is not done")
	case code >= 0 && r.crashes > r.policy.Budget:
		return fmt.Errorf("the budget is spent, and it is not done")
	case !r.running && r.desired != "" && (r.wake <= r.now || r.wake < r.notUntil):
		return fmt.Errorf("nothing runs at %v and it will not be woken in time (%v, delay until %v)", r.now, r.wake, r.notUntil)
	case !r.running && r.desired != "" && r.now >= r.atLatest:
		return fmt.Errorf("nothing runs at %v and nothing stands against a start (delay until %v)", r.now, r.atLatest)
	case r.running && r.asked > 1 && r.term < 0:
		return fmt.Errorf("asked %d times and still waiting", r.asked)
	case r.running && r.term >= 0 && !r.killed && r.wake <= r.now:
		return fmt.Errorf("SIGTERM was sent at %v, and it will not be woken to kill (%v)", r.term, r.wake)
	case r.running && r.asked > 0 && !r.policy.ExitOnZero && r.term < 0 && r.wake <= r.now:
		return fmt.Errorf("a drain is waited for at %v without a wake (%v)", r.now, r.wake)
	}
	return nil
}

// event makes an event of two bytes.
func event(kind, arg byte, now time.Duration) supervise.Event {
	switch kind % 16 {
	case 0, 1, 2:
		return supervise.Now{T: now + time.Duration(arg)*100*time.Millisecond, Jitter: float64(arg) / 256}
	case 3:
		return supervise.Now{T: now + time.Duration(arg)*time.Minute, Jitter: float64(arg) / 256}
	case 4, 5:
		return supervise.Desired{Hash: string('a' + rune(arg%3))}
	case 6, 7, 8:
		return supervise.Live{Epoch: int(arg % 16 / 15)}
	case 9, 10:
		return supervise.Exited{Epoch: int(arg % 16 / 15), Status: supervise.Status{Code: int(arg % 4)}}
	case 11:
		return supervise.Exited{Status: supervise.Status{Signal: supervise.Signal(1 + arg%31)}}
	case 12:
		if arg%8 != 0 {
			return supervise.Retire{}
		}
		return supervise.Terminate{Quick: arg%16 == 0}
	case 13:
		return supervise.Drained{}
	default:
		return supervise.Connections{N: int(arg%8) - 1}
	}
}

// history plays bytes as events against a machine of a small policy, and finally ends it.
func history(data []byte) error {
	p := supervise.DefaultPolicy()
	p.Budget, p.HealthyFor = 3, time.Minute
	if len(data) > 0 {
		p.ExitOnZero = data[0]&1 != 0
		p.MaxDrain = time.Duration(data[0]&2) * time.Second
	}
	m, r := supervise.New(p), newReferee(p)
	for i := 1; i+1 < len(data); i += 2 {
		ev := event(data[i], data[i+1], r.now)
		if err := r.step(m, ev); err != nil {
			return fmt.Errorf("event %d %#v: %w", i/2, ev, err)
		}
	}
	// Whatever has happened, three requests end it, once Envoy has been reaped.
	for range 3 {
		if err := r.step(m, supervise.Terminate{}); err != nil {
			return fmt.Errorf("at the end: %w", err)
		}
	}
	if r.running {
		if err := r.step(m, supervise.Exited{Status: supervise.Status{Signal: supervise.SIGKILL}}); err != nil {
			return fmt.Errorf("reaped: %w", err)
		}
	}
	if !r.done {
		return fmt.Errorf("not done after three requests and with nothing running")
	}
	return nil
}

func TestPromisesHoldInAnyOrderOfEvents(t *testing.T) {
	seed := time.Now().UnixNano()
	rnd := rand.New(rand.NewSource(seed))
	for range 20_000 {
		data := make([]byte, 1+2*rnd.Intn(60))
		rnd.Read(data)
		if err := history(data); err != nil {
			t.Fatalf("seed %d, history %#v: %v", seed, data, err)
		}
	}
}

func FuzzPromises(f *testing.F) {
	f.Add([]byte{0, 4, 0, 6, 0, 9, 1, 0, 2, 12, 8})
	f.Add([]byte{3, 4, 0, 6, 0, 12, 8, 13, 0, 0, 50, 14, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := history(data[:min(len(data), 2000)]); err != nil {
			t.Fatal(err)
		}
	})
}
