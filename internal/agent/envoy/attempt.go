package envoy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/supervise"
	"github.com/pilothouse/pilothouse/internal/cgroup"
)

// Subjects of State.Notes.
const (
	noteRestart = "restart"
	noteWorkers = "workers"
	noteConfig  = "configuration"
)

// checkTime bounds what is checked before a child is started.
const checkTime = 15 * time.Second

var errStopped = errors.New("stopped before it was started")

// attempt is one start of an epoch. Epoch numbers come again, attempts do not. The loop's goroutine
// owns it; process.PID is set before any helper knows it.
type attempt struct {
	epoch   int
	what    Launch
	proc    *process        // nil before it is started
	killed  bool            // the agent has sent it SIGKILL
	oom     int64           // out-of-memory kills of the control group before it was started
	watch   context.Context // of whatever watches it
	stop    context.CancelFunc
	undrain context.CancelFunc // ends the counting of a drain; nil before one
	parent  parent             // of a child
	process Process
}

// start begins an attempt. A child is checked before: a problem found then costs no connection.
func (l *loop) start(e supervise.Start) {
	a := &attempt{epoch: e.Epoch, what: l.launches[e.Hash], process: Process{Epoch: e.Epoch, Started: time.Now()}}
	l.forget()
	a.watch, a.stop = context.WithCancel(l.work)
	parent := l.attempts[e.Epoch-1]
	l.attempts[e.Epoch] = a
	if parent == nil {
		l.state.version = ""
		l.spawn(a)
		return
	}
	a.keepWorkers(l, parent.process.Workers)
	a.parent = l.parentOf(parent.process)
	l.helpers.Go(func() {
		why, err := l.check(a)
		if err == nil {
			l.report(report{about: a, learn: func() { l.spawn(a) }})
			return
		}
		status := supervise.Status{Code: 1}
		if a.watch.Err() != nil {
			status = supervise.Status{Signal: supervise.SIGKILL}
		}
		l.report(report{event: supervise.Exited{Epoch: a.epoch, Status: status, Reason: why}, about: a, learn: func() {
			l.gone(a, ending{Status: status, killed: a.killed, why: why}, err)
		}})
	})
}

// check checks whether a child could take over: its configuration is good, and it and the
// Envoy that runs share their memory in the same way.
func (l *loop) check(a *attempt) (supervise.Reason, error) {
	ctx, cancel := context.WithTimeout(a.watch, checkTime)
	defer cancel()
	if err := Validate(ctx, a.what); err != nil {
		return supervise.Refused, err
	}
	runs := l.versionThatRuns(l.State().version)
	if runs == "" {
		runs, _ = l.admin.HotRestartVersion(ctx) // it has been live for a moment only
	}
	child, err := HotRestartVersion(ctx, a.what)
	switch {
	case ctx.Err() != nil:
		return supervise.Refused, ctx.Err()
	case err != nil:
		return supervise.Incompatible, err
	case child != runs:
		return supervise.Incompatible, fmt.Errorf("the new Envoy has hot restart version %q, the one that runs has %q", child, runs)
	}
	return supervise.Ended, nil
}

// keepWorkers sees that a child has no fewer workers than its parent where that would
// lose the connections that wait for the ones that are gone.
func (a *attempt) keepWorkers(l *loop, running int) {
	want := a.what.Workers
	if want == 0 {
		want = runtime.NumCPU()
	}
	if want >= running || migrates() {
		l.note(noteWorkers, "")
		return
	}
	a.what.Workers = running
	text := fmt.Sprintf("the number of workers stays %d instead of %d: net.ipv4.tcp_migrate_req is not 1 here, and without it "+
		"fewer workers lose connections; set it, or restart the Pod", running, want)
	l.o.Log.Warn(text)
	l.note(noteWorkers, text)
}

// migrates says whether the kernel hands the connections that wait on a closed socket to
// another one of the same port, in this network namespace.
func migrates() bool {
	text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_migrate_req")
	return err == nil && strings.TrimSpace(string(text)) == "1"
}

// complete is the launch with what only the start knows.
func (l *loop) complete(a *attempt) Launch {
	what := a.what
	args := what.Args[:len(what.Args):len(what.Args)]
	if what.Workers > 0 {
		args = append(args, "--concurrency", strconv.Itoa(what.Workers))
	}
	switch {
	case l.memory != nil:
		shutdown := int(l.o.Hot.ParentShutdown.Seconds())
		if shutdown == 0 {
			shutdown = 60
		}
		args = append(args, "--restart-epoch", strconv.Itoa(a.epoch), "--base-id", strconv.Itoa(l.memory.id),
			"--parent-shutdown-time-s", strconv.Itoa(shutdown))
	case l.o.Policy.Epochs.HotRestart:
		args = append(args, "--disable-hot-restart")
	}
	what.Args = args
	return what
}

// spawn starts the process.
func (l *loop) spawn(a *attempt) {
	what := l.complete(a)
	// People and tools grep this line for the arguments.
	l.o.Log.Info(fmt.Sprintf("Envoy command: %v", what.Args), "binary", what.Binary, "epoch", a.epoch)
	a.oom, _ = cgroup.OOMKills()
	a.process.Started = time.Now()
	var err error
	if a.watch.Err() != nil {
		err = errStopped
	} else {
		a.proc, err = spawn(l.launcher, what, l.o.Stdout, l.o.Stderr)
	}
	if err != nil {
		status := notStarted(err)
		// Not from this goroutine: it is the one that takes reports.
		l.helpers.Go(func() {
			l.report(report{event: supervise.Exited{Epoch: a.epoch, Status: status, Reason: supervise.Refused}, about: a, learn: func() {
				l.gone(a, ending{Status: status}, err)
			}})
		})
		return
	}
	a.process.PID = a.proc.pid
	proc := a.proc
	l.helpers.Go(func() { l.awaitLive(a) })
	l.helpers.Go(func() { l.awaitEnd(a, proc) })
}

// awaitEnd reports the end of a process.
func (l *loop) awaitEnd(a *attempt, proc *process) {
	status, err := proc.wait()
	if err != nil {
		l.o.Log.Warn("pass on Envoy's output", "error", err)
	}
	exited := supervise.Exited{Epoch: a.epoch, Status: status, TookAdmin: l.parentRuns(a.epoch) && !l.adminIsWith(a.epoch-1)}
	kills, ok := cgroup.OOMKills()
	l.report(report{event: exited, about: a, learn: func() {
		l.gone(a, ending{Status: status, killed: a.killed, oom: ok && kills > a.oom}, nil)
	}})
}

// parentRuns reports whether there is an epoch from which an ended one could have taken the admin
// interface. Otherwise no process could answer a request.
func (l *loop) parentRuns(epoch int) bool {
	return epoch > 0 && slices.ContainsFunc(l.State().Processes, func(p Process) bool { return p.Epoch == epoch-1 })
}

// adminIsWith says whether the admin interface answers for an epoch.
func (l *loop) adminIsWith(epoch int) bool {
	info, err := l.admin.ServerInfo(l.work)
	return err == nil && l.isOwn(info, epoch)
}

// isOwn says whether an Envoy that answers is this agent's, and of that epoch: another agent's may have the same port.
func (l *loop) isOwn(info ServerInfo, epoch int) bool {
	return info.Options.RestartEpoch == epoch && (l.memory == nil || info.Options.BaseID == l.memory.id)
}

// gone keeps what is to be known of an attempt that has ended.
func (l *loop) gone(a *attempt, how ending, err error) {
	a.stop()
	delete(l.attempts, a.epoch)
	l.state.LastExit, l.state.LastExitAt = how.String(), time.Now()
	level := l.o.Log.Error
	if v := l.machine.View(); v.Ending || v.Live && v.Epoch > a.epoch {
		level = l.o.Log.Info // as it should
	}
	args := []any{"epoch", a.epoch, "pid", a.process.PID, "how", l.state.LastExit}
	if err != nil {
		args = append(args, "error", err)
	}
	level("Envoy ended", args...)
	switch {
	case err == nil || errors.Is(err, context.Canceled):
	case how.why == supervise.Refused:
		l.note(noteConfig, err.Error())
	case how.why == supervise.Incompatible:
		l.note(noteRestart, "a plain restart was needed: "+err.Error())
	}
}

// awaitLive polls until the epoch is live.
func (l *loop) awaitLive(a *attempt) {
	for pause := minPoll; ; pause = min(pause*5/4, maxPoll) {
		live, answered := l.checkLive(a.watch, a)
		if live || !answered && l.memory != nil && time.Since(a.process.Started) > unseenAfter && l.checkServes(a) || !wait(a.watch, pause) {
			return
		}
	}
}

// checkLive asks once whether the epoch is live, and reports it if it is; the second result says
// whether the admin interface answered.
func (l *loop) checkLive(ctx context.Context, a *attempt) (live, answered bool) {
	// /server_info is long: it is asked for only where the answer can be yes.
	if err := l.admin.Ready(ctx); err != nil {
		var status *statusError
		return false, errors.As(err, &status)
	}
	info, err := l.admin.ServerInfo(ctx)
	if err != nil || info.State != "LIVE" || !l.isOwn(info, a.epoch) {
		return false, true
	}
	l.reportLive(a, info.Options.Concurrency, true)
	return true, true
}

// reportLive reports that an attempt is live, with so many workers; reached says that its admin interface said so.
func (l *loop) reportLive(a *attempt, workers int, reached bool) {
	// The version follows: nothing but a restart needs it.
	l.report(report{event: supervise.Live{Epoch: a.epoch}, about: a, learn: func() {
		if !a.process.Since.IsZero() {
			return // told twice
		}
		a.process.Workers, a.process.Since = workers, time.Now()
		log := l.o.Log.With("epoch", a.epoch, "pid", a.process.PID)
		if !reached {
			log.Warn("Envoy serves, and its admin interface cannot be reached")
		}
		log.Info("Envoy is live", "workers", workers, "after", time.Since(a.process.Started).Round(time.Millisecond))
		if l.note(noteConfig, ""); a.epoch > 0 {
			l.note(noteRestart, "")
		}
		if l.memory != nil {
			l.helpers.Go(func() { l.learnVersion(a) })
		}
	}})
}

// learnVersion asks a live Envoy what its successor must have in common with it.
func (l *loop) learnVersion(a *attempt) {
	version, err := l.admin.HotRestartVersion(a.watch)
	if err != nil {
		return // the shared memory says it, too
	}
	l.report(report{about: a, learn: func() { l.state.version = version }})
}

// checkBeforeEnd gives an epoch that starts a chance to be live before it is asked to end: one
// that serves must not be taken for one that does not.
func (l *loop) checkBeforeEnd(a *attempt, runs bool) {
	ctx, cancel := context.WithTimeout(l.work, time.Second/4)
	defer cancel()
	if a != nil {
		if live, answered := l.checkLive(ctx, a); !live && !answered && runs && l.memory != nil {
			l.checkServes(a)
		}
	}
	l.tell(supervise.Terminate{}, nil)
}
