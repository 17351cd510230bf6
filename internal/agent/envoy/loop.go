package envoy

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/supervise"
)

const (
	minPoll   = 5 * time.Millisecond   // between two polls of whether Envoy is live, at first
	maxPoll   = 250 * time.Millisecond // and in the end
	countPoll = time.Second            // between two counts of connections in a drain
)

// loop is the one goroutine that owns the machine and the processes.
type loop struct {
	*Runner
	work     context.Context // of all helpers; ends when the machine is done
	launcher *launcher
	machine  *supervise.Machine
	memory   *shared // nil where there are no hot restarts
	zero     time.Time
	timer    *time.Timer
	launches map[string]Launch // those that may be started, by hash
	attempts map[int]*attempt  // those that run or are about to, by epoch
	upstream bool              // the control plane was there at the last event about it; false before the first
	state    State
	code     int
	helpers  sync.WaitGroup
}

// report is an event and the attempt that it is about, nil for one from outside; learn is done first.
type report struct {
	event supervise.Event // nil for none
	about *attempt
	learn func()
}

// policy is the one asked for, as far as this machine allows it.
func (l *loop) policy() supervise.Policy {
	p := l.o.Policy
	l.state.Notes = map[string]string{}
	if !p.Epochs.HotRestart {
		return p
	}
	var err error
	if l.memory, err = reserve(l.o.Hot.SharedMemory); err != nil {
		l.note(noteRestart, "hot restarts are off: "+err.Error())
		p.Epochs = supervise.Epochs{}
	}
	return p
}

// serve takes events until the machine is done and returns its exit code.
func (l *loop) serve(ctx context.Context) int {
	asked := ctx.Done()
	for {
		var ev supervise.Event = supervise.Now{}
		select {
		case <-asked:
			asked = nil
			starting := l.starting()
			runs := starting != nil && starting.proc != nil
			l.helpers.Go(func() { l.checkBeforeEnd(starting, runs) })
		case what := <-l.desires:
			l.launches[what.Hash] = what
			ev = supervise.Desired{Hash: what.Hash}
		case r := <-l.events:
			if r.about != nil && l.attempts[r.about.epoch] != r.about {
				continue // of an attempt that has ended
			}
			if r.learn != nil {
				r.learn()
			}
			if ev = r.event; ev == nil {
				ev = supervise.Now{}
			}
		case ok := <-l.o.Hot.Upstream:
			ev = supervise.Upstream{OK: ok}
		case <-l.timer.C:
		}
		// Whatever else happened is decided with the newest state of the upstream.
		select {
		case ok := <-l.o.Hot.Upstream:
			if l.step(supervise.Upstream{OK: ok}) {
				return l.code
			}
			if _, older := ev.(supervise.Upstream); older {
				continue
			}
		default:
		}
		if l.step(ev) {
			return l.code
		}
	}
}

// starting is the highest attempt if it is not live; nil otherwise.
func (l *loop) starting() *attempt {
	var top *attempt
	for _, a := range l.attempts {
		if top == nil || a.epoch > top.epoch {
			top = a
		}
	}
	if top == nil || !top.process.Since.IsZero() {
		return nil
	}
	return top
}

// step tells the machine the time and the event, and performs what it says.
func (l *loop) step(ev supervise.Event) (done bool) {
	now := supervise.Now{T: time.Since(l.zero), Jitter: rand.Float64()}
	done = l.perform(l.machine.Step(now))
	l.log(ev)
	if _, isNow := ev.(supervise.Now); !isNow {
		done = l.perform(l.machine.Step(ev)) || done
	}
	l.publish(done)
	return done
}

func (l *loop) perform(effects []supervise.Effect) (done bool) {
	for _, e := range effects {
		switch e := e.(type) {
		case supervise.Start:
			l.start(e)
		case supervise.Unlock:
			l.unlock()
		case supervise.Drain:
			l.drains(e)
		case supervise.Kill:
			l.kill(e)
		case supervise.KillUnlessLive:
			l.giveUp(e)
		case supervise.Panic:
			l.o.Log.Error("this configuration of Envoy is given up: it has failed as often as it may", "hash", e.Hash)
		case supervise.Remove:
			l.remove()
		case supervise.Wake:
			l.timer.Reset(e.At - time.Since(l.zero))
		case supervise.Done:
			l.code, done = e.Code, true
		}
	}
	return done
}

func (l *loop) kill(e supervise.Kill) {
	a := l.attempts[e.Epoch]
	if a == nil {
		return
	}
	a.killed = e.Signal == supervise.SIGKILL
	if a.proc == nil {
		a.stop() // it is still being checked
		return
	}
	l.o.Log.Info("sending a signal to Envoy", "epoch", e.Epoch, "pid", a.proc.pid, "signal", int(e.Signal))
	if err := a.proc.signal(e.Signal); err != nil {
		l.o.Log.Error("signal Envoy", "epoch", e.Epoch, "error", err)
	}
}

// drains begins a drain; it takes the place of an earlier one of the same Envoy.
func (l *loop) drains(e supervise.Drain) {
	a := l.attempts[e.Epoch]
	if a == nil {
		return
	}
	if a.undrain != nil {
		a.undrain()
	}
	ctx, cancel := context.WithCancel(a.watch)
	a.undrain = cancel
	l.helpers.Go(func() { l.drain(ctx, a, e.NoAdmin) })
}

// unlock makes the shared memory takeable after a child has died that was not live.
func (l *loop) unlock() {
	err := l.memory.clearFlag(l.versionThatRuns(l.state.version))
	if err != nil {
		l.o.Log.Warn("the next restart of Envoy is not a hot one", "error", err)
		l.note(noteRestart, "the next restart is not a hot one: "+err.Error())
	}
	l.helpers.Go(func() { l.tell(supervise.Unlocked{OK: err == nil}, nil) })
}

func (l *loop) remove() {
	if l.memory == nil {
		return
	}
	if err := l.memory.remove(); err != nil {
		l.o.Log.Warn("clean up after Envoy", "error", err)
	}
}

// log tells what is about to be told to the machine.
func (l *loop) log(ev supervise.Event) {
	switch e := ev.(type) {
	case supervise.Upstream:
		was := l.upstream
		if l.upstream = e.OK; was && !e.OK && !l.machine.View().Ending {
			l.o.Log.Info("restarts of Envoy wait: the control plane is away")
		}
	case supervise.Terminate:
		what := "asked to end"
		if l.machine.View().Ending {
			what = "asked to end again"
		}
		l.o.Log.Info(what, "drain", !e.Quick, "pid", l.state.PID)
	}
}

// note keeps, or with an empty text drops, what the state says about a subject.
func (l *loop) note(subject, text string) {
	next := make(map[string]string, len(l.state.Notes)+1) // the published one is never changed
	for k, v := range l.state.Notes {
		next[k] = v
	}
	if next[subject] = text; text == "" {
		delete(next, subject)
	}
	l.state.Notes = next
}

func (l *loop) publish(done bool) {
	s := l.state
	s.View, s.Over, s.Processes = l.machine.View(), done, nil
	s.PID, s.Started, s.Since = 0, time.Time{}, time.Time{}
	for _, e := range s.View.Epochs {
		a := l.attempts[e.Number]
		if a == nil {
			continue
		}
		s.Processes = append(s.Processes, a.process)
		if e.Number == s.Epoch {
			s.PID, s.Started, s.Since = a.process.PID, a.process.Started, a.process.Since
		}
	}
	l.state.PID = s.PID
	if was := l.Runner.state.Swap(&s); s.Restarts > was.Restarts {
		l.o.Log.Warn("restarting Envoy in place", "restarts", s.Restarts, "left", s.Left)
	}
}

// forget drops the configurations that will not be started again.
func (l *loop) forget() {
	v := l.machine.View()
	keep := []string{v.Goal.Desired, v.Goal.Good}
	for _, e := range v.Epochs {
		keep = append(keep, e.Hash)
	}
	for hash := range l.launches {
		if !slices.Contains(keep, hash) {
			delete(l.launches, hash)
		}
	}
}

// drain tells Envoy to drain and, where the drain ends with the last connection, counts
// the connections from then on. A blind one cannot be told, and is only counted.
func (l *loop) drain(ctx context.Context, a *attempt, blind bool) {
	if blind {
		l.o.Log.Warn("Envoy cannot be told to drain: its admin interface went with a child that failed", "epoch", a.epoch)
	} else {
		if err := l.admin.DrainListeners(ctx, l.o.InboundOnly); err != nil {
			l.o.Log.Warn("drain Envoy's listeners", "error", err)
		} else {
			l.o.Log.Info("Envoy drains its listeners", "inbound_only", l.o.InboundOnly)
		}
		l.tell(supervise.Drained{Epoch: a.epoch}, a)
	}
	for (l.o.Policy.ExitOnZero || blind) && wait(ctx, countPoll) {
		l.tell(supervise.Connections{N: l.connections(ctx, a, blind), Epoch: a.epoch}, a)
	}
}

// connections counts what keeps a draining Envoy from ending; below 0 it is not known.
func (l *loop) connections(ctx context.Context, a *attempt, blind bool) int {
	if blind {
		n, err := countSockets(a.process.PID, l.o.Hot.InboundPorts, l.o.IgnorePorts)
		if err != nil {
			l.o.Log.Warn("count Envoy's connections", "error", err)
			return -1
		}
		return n
	}
	stats, err := l.admin.Stats(ctx, activeConnections)
	if err != nil {
		return -1
	}
	return countConnections(stats, l.o.IgnorePorts)
}

// wait reports false if ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
