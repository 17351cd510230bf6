package envoy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/agent/supervise"
	"github.com/pilothouse/pilothouse/test/fakeenvoy"
)

// The scenarios that the real Envoy plays as well are in test/fakeenvoy.

const patience = 60 * time.Second

// The main thread never ends. Kept for the main goroutine, it starts no Envoy by accident,
// and the test of threads that end tests what it says.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	fakeenvoy.Main()
	if filepath.Base(os.Args[0]) == reaperName {
		reaper()
	}
	goleak.VerifyTestMain(m)
}

// buffer is a writer that several may use.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

type running struct {
	*envoy.Runner
	t      *testing.T
	o      envoy.Options
	script string
	log    *buffer
	cancel func()
	ended  chan error
}

// run starts a Runner over a fake Envoy; adjust may change the options.
func run(t *testing.T, s fakeenvoy.Script, adjust func(*envoy.Options)) *running {
	t.Helper()
	s.Admin = fakeenvoy.FreeAddress(t)
	r := &running{t: t, script: fakeenvoy.Write(t, s), log: &buffer{}, ended: make(chan error, 1)}
	policy := supervise.DefaultPolicy()
	policy.Backoff, policy.Drain, policy.Grace = 10*time.Millisecond, 10*time.Millisecond, 10*time.Millisecond
	r.o = envoy.Options{
		Admin: s.Admin, Policy: policy, InboundOnly: true, Log: slog.New(slog.NewTextHandler(r.log, nil)),
		Launch: envoy.Launch{Binary: fakeenvoy.Install(t), Args: spec.Arguments{Bootstrap: r.script}.List()},
	}
	if adjust != nil {
		adjust(&r.o)
	}
	r.Runner = envoy.New(r.o)
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		r.Quit()
		r.await("the end of the runner", func(s *envoy.State) bool { return s.Over })
	})
	return r
}

func (r *running) await(what string, holds func(*envoy.State) bool) {
	r.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds(r.State()) {
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatalf("waited %v for %s; state %+v, log:\n%s", patience, what, *r.State(), r.log)
		}
	}
}

func (r *running) awaitLive() {
	r.t.Helper()
	r.await("live", func(s *envoy.State) bool { return s.Live })
}

func (r *running) end() error {
	r.t.Helper()
	select {
	case err := <-r.ended:
		return err
	case <-time.After(patience):
		r.t.Fatalf("not ended; state %+v, log:\n%s", *r.State(), r.log)
		return nil
	}
}

func (r *running) record(prefix string) (lines []string) {
	for _, line := range fakeenvoy.Record(r.t, r.script) {
		if strings.HasPrefix(line, prefix) {
			lines = append(lines, line)
		}
	}
	return lines
}

// order gives the fake an order over its admin port.
func (r *running) order(path string) {
	r.t.Helper()
	resp, err := http.Post("http://"+r.o.Admin+path, "", nil)
	http.DefaultClient.CloseIdleConnections()
	if err == nil {
		resp.Body.Close()
	}
}

func TestCrashesAtFirstThenLive(t *testing.T) {
	r := run(t, fakeenvoy.Script{FailFirst: 3, ExitCode: 7}, nil)
	r.awaitLive()
	s := r.State()
	if s.Restarts != 3 || s.Left != 7 || s.Last.Code != 7 || s.LastExit != "exited with code 7" || s.PID == 0 || s.Since.Before(s.Started) {
		t.Errorf("state %+v", s)
	}
	if n := len(r.record("start ")); n != 4 {
		t.Errorf("started %d times", n)
	}
	if want := "Envoy command: [-c " + r.script + " --drain-time-s 45 "; !strings.Contains(r.log.String(), want) {
		t.Errorf("the log does not hold %q:\n%s", want, r.log)
	}
}

func TestLiveIsWhatEnvoySaysItIs(t *testing.T) {
	r := run(t, fakeenvoy.Script{LiveAfter: 200 * time.Millisecond}, nil)
	r.awaitLive()
	if took := r.State().Since.Sub(r.State().Started); took < 200*time.Millisecond {
		t.Errorf("live after %v, Envoy initialised for longer", took)
	}
}

func TestThreadsThatEndDoNotTakeEnvoyAlong(t *testing.T) {
	r := run(t, fakeenvoy.Script{}, nil)
	r.awaitLive()
	first := r.State().PID
	all := make(chan struct{})
	var locked, ended sync.WaitGroup
	for range 100 {
		locked.Add(1)
		ended.Go(func() {
			runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
			locked.Done()
			<-all
		})
	}
	locked.Wait() // every idle thread is among them
	close(all)
	ended.Wait()
	for range 100 { // the threads take a moment
		if _, err := r.Admin().ServerInfo(t.Context()); err != nil || r.State().PID != first {
			t.Fatalf("error %v, state %+v", err, r.State())
		}
	}
}

func TestACleanExitThatNobodyAskedForIsACrash(t *testing.T) {
	r := run(t, fakeenvoy.Script{}, nil)
	r.awaitLive()
	r.order("/quitquitquit")
	r.await("the restart", func(s *envoy.State) bool { return s.Restarts == 1 && s.Live })
}

func TestAMissingBinaryIsTold(t *testing.T) {
	r := run(t, fakeenvoy.Script{}, func(o *envoy.Options) {
		o.Launch.Binary, o.Policy.Budget = "/nowhere/envoy", 1
	})
	var exit *envoy.ExitError
	if err := r.end(); !errors.As(err, &exit) || exit.Code != 127 || exit.Last != "not found" {
		t.Errorf("got %v, want code 127", err)
	}
	if !strings.Contains(r.log.String(), "/nowhere/envoy: no such file or directory") {
		t.Errorf("log:\n%s", r.log)
	}
}

func TestASignalIsTheExitCode(t *testing.T) {
	r := run(t, fakeenvoy.Script{}, func(o *envoy.Options) { o.Policy.Budget = 0 })
	r.awaitLive()
	if err := syscall.Kill(r.State().PID, syscall.SIGSEGV); err != nil {
		t.Fatal(err)
	}
	// A Go program turns SIGSEGV from outside into a crash of its own, by exit code 2 or by the signal.
	var exit *envoy.ExitError
	if err := r.end(); !errors.As(err, &exit) || exit.Code != 139 && exit.Code != 2 {
		t.Errorf("got %v, want 128+11, or 2", err)
	}
}

func TestTheEndDrainsInboundAndKeepsTheExit(t *testing.T) {
	for inboundOnly, want := range map[bool]string{
		true: "POST /drain_listeners?inboundonly&graceful&skip_exit", false: "POST /drain_listeners?graceful&skip_exit",
	} {
		// A connection is left until the drain has been written down.
		const active = "listener.0.0.0.0_15006.downstream_cx_active"
		r := run(t, fakeenvoy.Script{Stats: map[string]uint64{active: 1}}, func(o *envoy.Options) {
			o.InboundOnly, o.Policy.ExitOnZero, o.Policy.MinDrain, o.Policy.Grace = inboundOnly, true, 10*time.Millisecond, patience
		})
		r.awaitLive()
		r.cancel()
		r.await("the drain", func(*envoy.State) bool { return len(r.record("POST /drain")) == 1 })
		r.order("/fake/stats?" + active + "=0")
		if err := r.end(); err != nil {
			t.Error(err)
		}
		if got := slices.Concat(r.record("POST /drain"), r.record("signal")); !slices.Equal(got, []string{want, "signal terminated"}) {
			t.Errorf("got %q", got)
		}
	}
}

func TestAnEnvoyThatIgnoresSIGTERMIsKilled(t *testing.T) {
	r := run(t, fakeenvoy.Script{IgnoreTerm: true}, nil)
	r.awaitLive()
	r.cancel()
	if err := r.end(); err != nil || r.State().Last.Signal != supervise.SIGKILL || !strings.Contains(r.State().LastExit, "by the agent") {
		t.Errorf("error %v, state %+v", err, r.State())
	}
}

func TestAnEnvoyThatIsNotLiveIsEndedToo(t *testing.T) {
	r := run(t, fakeenvoy.Script{NoAdmin: true}, nil)
	r.await("the start", func(s *envoy.State) bool { return len(r.record("start")) == 1 })
	r.cancel()
	if err := r.end(); err != nil || len(r.record("POST")) != 0 {
		t.Errorf("error %v, record %q", err, r.record(""))
	}
}

func TestAHungAdminDoesNotHoldUpTheEnd(t *testing.T) {
	r := run(t, fakeenvoy.Script{}, nil)
	r.awaitLive()
	r.order("/fake/hang")
	r.cancel()
	if err := r.end(); err != nil {
		t.Error(err)
	}
}

func TestDrainAnnouncedThenEnd(t *testing.T) {
	r := run(t, fakeenvoy.Script{}, func(o *envoy.Options) { o.Policy.Drain = time.Hour })
	r.awaitLive()
	r.Drain()
	r.await("the drain", func(s *envoy.State) bool { return s.Draining && len(r.record("POST /drain")) == 1 })
	if s := r.State(); s.Ending || !s.Live {
		t.Errorf("an announced end is not the end: %+v", s)
	}
	r.cancel()
	r.await("ending", func(s *envoy.State) bool { return s.Ending })
	r.Quit() // the second time hastens
	if err := r.end(); err != nil || len(r.record("POST /drain")) != 1 {
		t.Errorf("error %v, record %q", err, r.record("POST"))
	}
}

func TestDrainUntilNoConnectionIsLeft(t *testing.T) {
	r := run(t, fakeenvoy.Script{Stats: map[string]uint64{
		"listener.0.0.0.0_15006.downstream_cx_active": 2, "listener.0.0.0.0_15090.downstream_cx_active": 1,
	}}, func(o *envoy.Options) {
		o.Policy.ExitOnZero, o.Policy.MinDrain, o.IgnorePorts = true, 10*time.Millisecond, []int{15090}
	})
	r.awaitLive()
	asked := time.Now()
	r.cancel()
	r.await("the drain", func(s *envoy.State) bool { return len(r.record("POST /drain")) == 1 })
	r.order("/fake/stats?listener.0.0.0.0_15006.downstream_cx_active=0")
	if err := r.end(); err != nil || time.Since(asked) < time.Second {
		t.Errorf("error %v after %v, want the first count after a second to end it", err, time.Since(asked))
	}
}

func TestAnotherConfigurationReplacesTheFirst(t *testing.T) {
	r := run(t, fakeenvoy.Script{}, nil)
	r.awaitLive()
	first := r.State().PID
	r.Desire(r.o.Launch)
	next := r.o.Launch
	next.Hash, next.Args = "next", append(slices.Clone(next.Args), "--concurrency", "2")
	r.Desire(next)
	r.await("the next one", func(s *envoy.State) bool { return s.Live && s.Hash == "next" && s.PID != first })
	if starts := r.record("start"); len(starts) != 2 || !strings.HasSuffix(starts[1], "--concurrency 2") || r.State().Restarts != 0 {
		t.Errorf("starts %q, state %+v", starts, r.State())
	}
}

func TestOutputAndEverythingOfItsGroup(t *testing.T) {
	var out buffer
	r := run(t, fakeenvoy.Script{Lines: []string{`{"a":1}`, `{"b":2}`}, Child: true}, func(o *envoy.Options) { o.Stdout = &out })
	r.awaitLive()
	child, _ := strconv.Atoi(strings.TrimPrefix(r.record("child ")[0], "child "))
	r.Quit()
	if err := r.end(); err != nil {
		t.Error(err)
	}
	if out.String() != "{\"a\":1}\n{\"b\":2}\n" {
		t.Errorf("got %q", out.String())
	}
	r.await("the end of Envoy's child", func(*envoy.State) bool { return gone(child) })
}

// gone says that no process, or only a zombie, has the id.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.HasPrefix(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " Z")
}

func TestAdminOverAUnixSocketSaysWhatItAsked(t *testing.T) {
	a := envoy.NewAdmin(filepath.Join(t.TempDir(), "none"))
	if _, err := a.Stats(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("got %v", err)
	}
}

// reaperName is the name under which the test binary inherits an orphan and reaps it.
const reaperName = "test-reaper"

// reaper exits 0 once the orphan that a shell left to it is reaped.
func reaper() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "become the parent of orphans:", err)
		os.Exit(1)
	}
	ended := make(chan error, 1)
	go func() { ended <- envoy.Reap(ctx) }()
	orphan, err := exec.CommandContext(ctx, "/bin/sh", "-c", "sleep 0.3 >/dev/null & echo $!").Output()
	if err != nil {
		fmt.Fprintln(os.Stderr, "a child that is waited for:", err)
		os.Exit(1)
	}
	proc := "/proc/" + strings.TrimSpace(string(orphan))
	tick := time.NewTicker(10 * time.Millisecond)
	for ctx.Err() == nil {
		if _, err := os.Stat(proc); err != nil {
			os.Exit(0)
		}
		<-tick.C
	}
	fmt.Fprintln(os.Stderr, "the orphan was not reaped")
	os.Exit(1)
}

func TestOrphansAreReaped(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := &exec.Cmd{Path: self, Args: []string{reaperName}, Stderr: &out}
	if err := cmd.Run(); err != nil {
		t.Errorf("%v: %s", err, out.String())
	}
}
