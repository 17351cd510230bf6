package envoy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/supervise"
)

const (
	firstLook = 5 * time.Millisecond   // between two looks at whether Envoy is live, at first
	slowLook  = 250 * time.Millisecond // and in the end
	countPace = time.Second            // between two counts of connections in a drain
)

// loop is the one goroutine that owns the machine and the process.
type loop struct {
	*Runner
	work     context.Context // of all helpers; ends when the machine is done
	launcher *launcher
	machine  *supervise.Machine
	zero     time.Time
	timer    *time.Timer
	launches map[string]Launch // the desired one and the one that runs, by hash
	sole     *attempt          // the one that was started last; nil before the first
	state    State
	code     int
	helpers  sync.WaitGroup
}

// attempt is one start of an epoch. Epoch numbers come again, attempts do not.
type attempt struct {
	epoch int
	proc  *process        // nil if it could not be started, or has been reaped
	shot  bool            // the agent has sent it SIGKILL
	watch context.Context // of whatever watches it
	stop  context.CancelFunc
}

// report is an event and the attempt that it is about; nil for one from outside.
type report struct {
	event supervise.Event
	about *attempt
}

// serve takes events until the machine is done and returns its exit code.
func (l *loop) serve(ctx context.Context) int {
	asked := ctx.Done()
	for {
		var ev supervise.Event = supervise.Now{}
		select {
		case <-asked:
			asked, ev = nil, supervise.Terminate{}
		case what := <-l.desires:
			l.launches[what.Hash] = what
			ev = supervise.Desired{Hash: what.Hash}
		case r := <-l.events:
			if r.about != nil && r.about != l.sole {
				continue // late word of one that is gone
			}
			ev = r.event
		case <-l.timer.C:
		}
		if l.step(ev) {
			return l.code
		}
	}
}

// step tells the machine the time and the event, and performs what it says.
func (l *loop) step(ev supervise.Event) (done bool) {
	now := supervise.Now{T: time.Since(l.zero), Jitter: rand.Float64()}
	done = l.perform(l.machine.Step(now))
	l.note(ev)
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
		case supervise.Drain:
			about := l.sole
			l.helpers.Go(func() { l.drain(about) })
		case supervise.Kill:
			l.kill(e)
		case supervise.Wake:
			l.timer.Reset(e.At - time.Since(l.zero))
		case supervise.Done:
			l.code, done = e.Code, true
		}
	}
	return done
}

func (l *loop) kill(e supervise.Kill) {
	if l.sole.proc == nil {
		return // it could not even be started, which is about to be told
	}
	l.o.Log.Info("sending a signal to Envoy", "epoch", e.Epoch, "pid", l.state.PID, "signal", int(e.Signal))
	l.sole.shot = e.Signal == supervise.SIGKILL
	if err := l.sole.proc.signal(e.Signal); err != nil {
		l.o.Log.Error("signal Envoy", "epoch", e.Epoch, "error", err)
	}
}

func (l *loop) start(e supervise.Start) {
	what := l.launches[e.Hash]
	for hash := range l.launches {
		if hash != e.Hash {
			delete(l.launches, hash) // what is started is the newest
		}
	}
	//nolint:sloglint // people and tools grep this line for the arguments
	l.o.Log.Info(fmt.Sprintf("Envoy command: %v", what.Args), "binary", what.Binary, "epoch", e.Epoch)
	a := &attempt{epoch: e.Epoch}
	a.watch, a.stop = context.WithCancel(l.work)
	l.sole, l.state.Started, l.state.Since = a, time.Now(), time.Time{}
	proc, err := spawn(l.launcher, what, l.o.As, l.o.Stdout, l.o.Stderr)
	if err != nil {
		l.o.Log.Error("Envoy does not start", "epoch", e.Epoch, "error", err)
		// Not from this goroutine: it is the one that takes reports.
		l.helpers.Go(func() { l.tell(supervise.Exited{Epoch: e.Epoch, Status: notStarted(err)}, a) })
		return
	}
	a.proc, l.state.PID = proc, proc.pid
	l.helpers.Go(func() { l.awaitLive(a) })
	l.helpers.Go(func() {
		status, err := proc.wait()
		if err != nil {
			l.o.Log.Warn("pass on Envoy's output", "error", err)
		}
		l.tell(supervise.Exited{Epoch: e.Epoch, Status: status}, a)
	})
}

// note keeps what the state says beside the machine's view.
func (l *loop) note(ev supervise.Event) {
	switch e := ev.(type) {
	case supervise.Live:
		l.state.Since = time.Now()
		l.o.Log.Info("Envoy is live", "epoch", e.Epoch, "pid", l.state.PID, "after", time.Since(l.state.Started).Round(time.Millisecond))
	case supervise.Exited:
		l.sole.stop()
		level := l.o.Log.Error
		if l.machine.View().Ending {
			level = l.o.Log.Info
		}
		l.state.LastExit, l.state.LastExitAt = describe(e.Status, l.sole.shot), time.Now()
		level("Envoy ended", "epoch", e.Epoch, "pid", l.state.PID, "how", l.state.LastExit)
		l.sole.proc, l.state.PID = nil, 0
	case supervise.Terminate:
		l.o.Log.Info("asked to end", "drain", !e.Quick, "pid", l.state.PID)
	}
}

func (l *loop) publish(done bool) {
	s := l.state
	s.View, s.Over = l.machine.View(), done
	if was := l.Runner.state.Swap(&s); s.Restarts > was.Restarts {
		l.o.Log.Warn("restarting Envoy in place", "restarts", s.Restarts, "left", s.Left)
	}
}

// awaitLive looks until the epoch is live.
func (l *loop) awaitLive(a *attempt) {
	pause := firstLook
	for {
		info, err := l.admin.ServerInfo(a.watch)
		if err == nil && info.State == "LIVE" && info.Options.RestartEpoch == a.epoch {
			l.tell(supervise.Live{Epoch: a.epoch}, a)
			return
		}
		if !wait(a.watch, pause) {
			return
		}
		pause = min(pause*5/4, slowLook)
	}
}

// drain tells Envoy to drain and, where the drain ends with the last connection, counts
// the connections from then on.
func (l *loop) drain(a *attempt) {
	if err := l.admin.DrainListeners(a.watch, l.o.InboundOnly); err != nil {
		l.o.Log.Warn("drain Envoy's listeners", "error", err)
	} else {
		l.o.Log.Info("Envoy drains its listeners", "inbound_only", l.o.InboundOnly)
	}
	l.tell(supervise.Drained{}, a)
	for l.o.Policy.ExitOnZero && wait(a.watch, countPace) {
		n := -1
		if stats, err := l.admin.Stats(a.watch, activeConnections); err == nil {
			n = countConnections(stats, l.o.IgnorePorts)
		}
		l.tell(supervise.Connections{N: n}, a)
	}
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
