package proxy

import (
	"context"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/supervise"
)

// loop is the one goroutine that owns the machine.
type loop struct {
	*agent
	ctx     context.Context // of all that watches epochs
	machine *supervise.Machine
	zero    time.Time
	timer   *time.Timer
	epochs  map[int]*epoch
	events  chan report
	configs map[string]any // those that may be started again, by the machine's name of them
	names   int
	orders  []order // that are waited for, each with its name in place of its configuration
	failed  GivenUpError

	watchers sync.WaitGroup // calls of Live
}

// epoch is one call of Proxy.Run. Numbers come again, epochs do not.
type epoch struct {
	number int
	abort  chan error
	stop   context.CancelFunc // of what watches it
}

// report is word of an epoch: it is live, or it has ended with err.
type report struct {
	about *epoch
	ended bool
	err   error
}

func (l *loop) serve(ctx context.Context) error {
	asked := ctx.Done()
	for {
		var ev supervise.Event = supervise.Now{}
		select {
		case <-asked:
			asked, ev = nil, supervise.Terminate{}
		case <-l.quits:
			ev = supervise.Terminate{Quick: true}
		case config := <-l.agent.configs:
			ev = supervise.Desired{Hash: l.name(config)}
		case o := <-l.agent.orders:
			name := l.name(o.config)
			l.orders = append(l.orders, order{name, o.done})
			ev = supervise.Desired{Hash: name}
		case r := <-l.events:
			if l.epochs[r.about.number] != r.about {
				continue // late word of one that is gone
			}
			ev = l.take(r)
		case <-l.timer.C:
		}
		if code, done := l.step(ev); done {
			if code == 0 {
				return nil
			}
			return &l.failed
		}
		l.tidy()
	}
}

// take sees to an epoch's end before the machine may use its number again.
func (l *loop) take(r report) supervise.Event {
	e := r.about
	if !r.ended {
		l.log.Info("epoch is live", "epoch", e.number)
		return supervise.Live{Epoch: e.number}
	}
	e.stop()
	delete(l.epochs, e.number)
	l.log.Info("epoch has ended", "epoch", e.number, "error", r.err)
	if r.err != nil && (l.failed.Err == nil || status(r.err).Signal == 0) {
		l.failed.Err = r.err
	}
	l.proxy.Cleanup(e.number)
	return supervise.Exited{Epoch: e.number, Status: status(r.err)}
}

// step tells the machine the time and the event, and performs what it says.
func (l *loop) step(ev supervise.Event) (code int, done bool) {
	now := supervise.Now{T: time.Since(l.zero), Jitter: rand.Float64()}
	for _, ev := range []supervise.Event{now, ev} {
		for _, e := range l.machine.Step(ev) {
			if d, is := e.(supervise.Done); is {
				return d.Code, true
			}
			l.perform(e)
		}
	}
	return 0, false
}

func (l *loop) perform(e supervise.Effect) {
	switch e := e.(type) {
	case supervise.Start:
		l.start(e)
	case supervise.Kill:
		l.log.Info("aborting an epoch", "epoch", e.Epoch)
		l.epochs[e.Epoch].abort <- ErrAbort // there is room: an epoch is aborted once
	case supervise.Panic:
		l.failed.Config = l.configs[e.Hash]
		l.log.Error("configuration given up: its retries are spent", "error", l.failed.Err)
		l.proxy.Panic(l.failed.Config)
	case supervise.Wake:
		l.timer.Reset(e.At - time.Since(l.zero))
	}
}

func (l *loop) start(s supervise.Start) {
	config := l.configs[s.Hash]
	if s.Hash == supervise.DrainHash {
		config = DrainConfig{}
	}
	e := &epoch{number: s.Epoch, abort: make(chan error, MaxAborts)}
	ctx, stop := context.WithCancel(l.ctx)
	e.stop = stop
	l.epochs[s.Epoch] = e
	l.log.Info("starting an epoch", "epoch", s.Epoch)
	live, tells := l.proxy.(Liver)
	go func() {
		if !tells {
			l.report(report{about: e})
		}
		l.report(report{about: e, ended: true, err: l.proxy.Run(config, e.number, e.abort)})
	}()
	if !tells {
		return
	}
	l.watchers.Go(func() {
		if err := live.Live(ctx, e.number); err == nil {
			l.report(report{about: e})
		} else if ctx.Err() == nil {
			l.log.Warn("cannot tell whether the epoch is live", "epoch", e.number, "error", err)
		}
	})
}

// report hands word to the loop, unless that has ended.
func (l *loop) report(r report) {
	select {
	case l.events <- r:
	case <-l.over:
	}
}

// name is the machine's name of a configuration: one name for all that are equal.
func (l *loop) name(config any) string {
	for name, known := range l.configs {
		if reflect.DeepEqual(known, config) {
			return name
		}
	}
	l.names++
	name := strconv.Itoa(l.names)
	l.configs[name] = config
	return name
}

// tidy answers orders that have nothing to wait for and forgets configurations that will not be started again.
func (l *loop) tidy() {
	v := l.machine.View()
	runs := func(name string) bool {
		return slices.ContainsFunc(v.Epochs, func(e supervise.EpochState) bool { return e.Hash == name })
	}
	l.orders = slices.DeleteFunc(l.orders, func(o order) bool {
		name := o.config.(string)
		started := len(v.Epochs) > 0 && v.Epochs[len(v.Epochs)-1].Hash == name
		over := name != v.Goal.Desired || v.Goal.GivenUp || v.Ending || started
		if over {
			close(o.done)
		}
		return over
	})
	for name := range l.configs {
		if name != v.Goal.Desired && name != v.Goal.Good && !runs(name) {
			delete(l.configs, name)
		}
	}
}
