package proxy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/supervise"
)

// loop is the control loop. Only its goroutine uses it, except for report.
type loop struct {
	*agent
	ctx     context.Context // of all calls of Live
	machine *supervise.Machine
	zero    time.Time // of the machine
	timer   *time.Timer
	epochs  map[int]*epoch
	reports chan report
	known   map[string]any // configurations that may be started again, by their hash
	hashes  int            // that were used
	waiting []waiter
	failed  GivenUpError

	liveCalls sync.WaitGroup
}

// epoch is one call of Proxy.Run. A number may be used again, an epoch is not.
type epoch struct {
	number int
	abort  chan error
	stop   context.CancelFunc // of its call of Live
}

// report says that an epoch is live, or that it has exited with err.
type report struct {
	epoch  *epoch
	exited bool
	err    error
}

// waiter is a call of Restart that has not returned.
type waiter struct {
	hash string
	done chan struct{}
}

func (l *loop) serve(ctx context.Context) error {
	ended := ctx.Done()
	for {
		var ev supervise.Event = supervise.Now{}
		select {
		case <-ended:
			ended, ev = nil, supervise.Terminate{}
		case <-l.quits:
			ev = supervise.Terminate{Quick: true}
		case config := <-l.configs:
			ev = supervise.Desired{Hash: l.hash(config)}
		case r := <-l.restarts:
			hash := l.hash(r.config)
			l.waiting = append(l.waiting, waiter{hash, r.done})
			ev = supervise.Desired{Hash: hash}
		case r := <-l.reports:
			if l.epochs[r.epoch.number] != r.epoch {
				continue // its number is in use again
			}
			ev = l.handle(r)
		case <-l.timer.C:
		}
		if code, done := l.advance(ev); done {
			if code == 0 {
				return nil
			}
			return &l.failed
		}
		l.cleanUp()
	}
}

// handle returns the event of a report. After an exit it first calls Cleanup, because the machine may
// use the number again.
func (l *loop) handle(r report) supervise.Event {
	e := r.epoch
	if !r.exited {
		l.log.Info("epoch is live", "epoch", e.number)
		return supervise.Live{Epoch: e.number}
	}
	e.stop()
	delete(l.epochs, e.number)
	l.log.Info("epoch has exited", "epoch", e.number, "error", r.err)
	if r.err != nil && (l.failed.Err == nil || status(r.err).Signal == 0) {
		l.failed.Err = r.err
	}
	l.proxy.Cleanup(e.number)
	return supervise.Exited{Epoch: e.number, Status: status(r.err)}
}

// advance sends the time and an event to the machine, and performs the effects.
func (l *loop) advance(ev supervise.Event) (code int, done bool) {
	now := supervise.Now{T: time.Since(l.zero), Jitter: rand.Float64()}
	for _, ev := range []supervise.Event{now, ev} {
		for _, e := range l.machine.Step(ev) {
			if d, ok := e.(supervise.Done); ok {
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
		l.log.Info("aborting epoch", "epoch", e.Epoch)
		l.epochs[e.Epoch].abort <- ErrAbort // does not block: an epoch is aborted once
	case supervise.Panic:
		l.failed.Config = l.known[e.Hash]
		l.log.Error("configuration given up: its retries are exhausted", "error", l.failed.Err)
		l.proxy.Panic(l.failed.Config)
	case supervise.Wake:
		l.timer.Reset(e.At - time.Since(l.zero))
	default:
		panic(fmt.Sprintf("proxy: unexpected effect %T", e)) // others are for hot restarts of Envoy
	}
}

func (l *loop) start(s supervise.Start) {
	config := l.known[s.Hash]
	if s.Hash == supervise.DrainHash {
		config = DrainConfig{}
	}
	e := &epoch{number: s.Epoch, abort: make(chan error, MaxAborts)}
	ctx, stop := context.WithCancel(l.ctx)
	e.stop = stop
	l.epochs[s.Epoch] = e
	l.log.Info("starting epoch", "epoch", s.Epoch)
	liver, ok := l.proxy.(Liver)
	go func() {
		if !ok {
			l.report(report{epoch: e})
		}
		l.report(report{epoch: e, exited: true, err: l.proxy.Run(config, e.number, e.abort)})
	}()
	if !ok {
		return
	}
	l.liveCalls.Go(func() {
		if err := liver.Live(ctx, e.number); err == nil {
			l.report(report{epoch: e})
		} else if ctx.Err() == nil {
			l.log.Warn("wait until the epoch is live", "epoch", e.number, "error", err)
		}
	})
}

// report sends a report to the loop, unless that has ended.
func (l *loop) report(r report) {
	select {
	case l.reports <- r:
	case <-l.done:
	}
}

// hash returns the machine's name of a configuration, which is the same for equal configurations.
func (l *loop) hash(config any) string {
	for hash, known := range l.known {
		if reflect.DeepEqual(known, config) {
			return hash
		}
	}
	l.hashes++
	hash := strconv.Itoa(l.hashes)
	l.known[hash] = config
	return hash
}

// cleanUp lets calls of Restart return, and forgets configurations that will not be started again.
func (l *loop) cleanUp() {
	v := l.machine.View()
	running := func(hash string) bool {
		return slices.ContainsFunc(v.Epochs, func(e supervise.EpochState) bool { return e.Hash == hash })
	}
	l.waiting = slices.DeleteFunc(l.waiting, func(w waiter) bool {
		started := len(v.Epochs) > 0 && v.Epochs[len(v.Epochs)-1].Hash == w.hash
		done := w.hash != v.Goal.Desired || v.Goal.GivenUp || v.Ending || started
		if done {
			close(w.done)
		}
		return done
	})
	for hash := range l.known {
		if hash != v.Goal.Desired && hash != v.Goal.Good && !running(hash) {
			delete(l.known, hash)
		}
	}
}
