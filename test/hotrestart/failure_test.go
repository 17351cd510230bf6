package hotrestart_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/test/envoytest"
	"github.com/pilothouse/pilothouse/test/wait"
)

// quick has parents end soon: for tests without load.
func quick(o *envoy.Options) { o.Hot.ParentShutdown = time.Second }

// never is a configuration that is valid and never live: it waits for clusters that are not sent.
func (p *proxy) never(mark string) envoy.Launch {
	text, err := os.ReadFile(p.bootstrap(mark))
	if err != nil {
		p.t.Fatal(err)
	}
	l := p.launch(mark, 2)
	l.Args = spec.Arguments{Drain: drain, HotRestart: true, Bootstrap: write(p.t, string(text)+`
dynamic_resources:
  cds_config:
    initial_fetch_timeout: 0s
    resource_api_version: V3
    api_config_source: {api_type: GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: lines}}]}
`)}.List()
	return l
}

// starting waits for a child that holds the admin interface and is not live.
func (p *proxy) starting(epoch int) int {
	p.t.Helper()
	pid := 0
	p.await(fmt.Sprintf("epoch %d to hold the admin interface", epoch), func(s *envoy.State) bool {
		for _, run := range s.Processes {
			if run.Epoch == epoch && run.PID != 0 {
				pid = run.PID
			}
		}
		info, err := p.Admin().ServerInfo(p.t.Context())
		return pid != 0 && err == nil && info.Options.RestartEpoch == epoch && info.State != "LIVE"
	})
	return pid
}

func (p *proxy) adminAnswersFor(epoch int) {
	p.t.Helper()
	info, err := p.Admin().ServerInfo(p.t.Context())
	for until := time.Now().Add(patience); errors.Is(err, context.DeadlineExceeded) && time.Now().Before(until); {
		info, err = p.Admin().ServerInfo(p.t.Context()) // a busy machine answers late
	}
	if err != nil || info.State != "LIVE" || info.Options.RestartEpoch != epoch {
		p.t.Errorf("the admin interface says %+v, error %v; want epoch %d live", info, err, epoch)
	}
}

func TestARefusedBootstrapTouchesNothing(t *testing.T) {
	p := up(t, nil)
	l := p.traffic()
	pid := p.State().PID
	bad := p.launch("bad", 2)
	bad.Args = spec.Arguments{Drain: drain, HotRestart: true, Bootstrap: write(t, "static_resources: {listeners: [{name: x, filter_chains: 7}]}")}.List()
	p.Desire(bad)
	p.await("the refusal", func(s *envoy.State) bool {
		return strings.Contains(s.Notes["configuration"], "validate Envoy's bootstrap")
	})
	if s := p.State(); s.PID != pid || !s.Live || s.Hash != "first" {
		t.Errorf("after a refusal: %+v", s)
	}
	p.adminAnswersFor(0)
	s := p.restart(p.launch("good", 2))
	if s.Epoch != 1 || len(s.Notes) != 0 {
		t.Errorf("after the next good one: %+v", s)
	}
	p.adminAnswersFor(1)
	p.unharmed(l, []time.Time{s.Since})
}

// TestAChildKilledBeforeItIsLive: its parent serves on, and the next good configuration takes over from it.
func TestAChildKilledBeforeItIsLive(t *testing.T) {
	p := up(t, func(o *envoy.Options) { o.Policy.Backoff = time.Minute })
	l := p.traffic()
	parent := p.State().PID
	p.Desire(p.never("never"))
	child := p.starting(1)
	if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.await("its end", func(s *envoy.State) bool { return s.Ends == 1 })
	if s := p.State(); s.PID != parent || !s.Live || !s.Epochs[0].NoAdmin {
		t.Errorf("after the child's end: %+v", s)
	}
	s := p.restart(p.launch("good", 2))
	if s.Epoch != 1 || s.Goal.Plain {
		t.Errorf("after the next good one: %+v", s)
	}
	p.adminAnswersFor(1)
	p.unharmed(l, []time.Time{s.Since})
}

// TestConfigurationThatIsNeverLiveIsGivenUp: when its budget is spent, the last good configuration has the admin interface again.
func TestConfigurationThatIsNeverLiveIsGivenUp(t *testing.T) {
	p := up(t, func(o *envoy.Options) {
		// Those that are to be live have as long.
		o.Policy.Budget, o.Policy.Epochs.LiveWithin = 1, 8*time.Second
	})
	l := p.traffic()
	p.Desire(p.never("never"))
	p.await("the way back", func(s *envoy.State) bool {
		return s.Goal.GivenUp && s.Live && s.Hash == "first" && s.Epoch == 1 && len(s.Epochs) == 1
	})
	p.adminAnswersFor(1)
	back := p.State().Since
	s := p.restart(p.launch("good", 2))
	if s.Epoch != 2 {
		t.Errorf("after the next good one: %+v", s)
	}
	p.unharmed(l, []time.Time{back, s.Since})
}

// TestKillsAtRandomMoments kills children at random times.
func TestKillsAtRandomMoments(t *testing.T) {
	p, random := up(t, quick), wait.Random(t)
	for i := range 8 {
		mark := fmt.Sprint("killed-", i)
		p.Desire(p.launch(mark, 2))
		moment := time.NewTimer(time.Duration(random.Int64N(int64(250 * time.Millisecond))))
		select {
		case <-moment.C:
		case <-t.Context().Done():
		}
		s := p.State()
		if n := len(s.Processes); n > 1 && s.Processes[n-1].PID != 0 {
			_ = syscall.Kill(s.Processes[n-1].PID, syscall.SIGKILL)
		}
		p.await(mark+" to serve alone", func(s *envoy.State) bool { return s.Live && s.Hash == mark && len(s.Epochs) == 1 })
		p.adminAnswersFor(p.State().Epoch)
	}
}

func TestTheSoleEnvoyCrashes(t *testing.T) {
	p := up(t, quick)
	p.restart(p.launch("second", 2))
	pid := p.State().PID
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.await("another one", func(s *envoy.State) bool { return s.Live && s.PID != pid })
	if s := p.State(); s.Epoch != 0 || s.Restarts != 1 || s.Hash != "second" {
		t.Errorf("after the crash: %+v", s)
	}
	if s := p.restart(p.launch("third", 2)); s.Epoch != 1 {
		t.Errorf("the next configuration: %+v", s)
	}
}

// otherBinary is an Envoy that says that its shared memory is laid out in another way.
func otherBinary(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "envoy")
	script := "#!/bin/sh\n[ \"$1\" = --hot-restart-version ] && echo 12.200 && exit\nexec " + envoytest.Binary(t) + " \"$@\"\n"
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAnotherHotRestartVersionIsAPlainRestart(t *testing.T) {
	p := up(t, nil)
	other := p.launch("other", 2)
	other.Binary = otherBinary(t)
	asked := time.Now()
	s := p.restart(other)
	if s.Epoch != 0 || s.Restarts != 0 || !strings.Contains(s.Notes["restart"], "12.200") {
		t.Errorf("after a plain restart: %+v", s)
	}
	t.Logf("serving after %v, %v of them without an Envoy", s.Since.Sub(asked).Round(time.Millisecond), s.Since.Sub(s.LastExitAt).Round(time.Millisecond))
}

func TestNoSharedMemoryIsAPlainRestart(t *testing.T) {
	p := up(t, func(o *envoy.Options) { o.Hot.SharedMemory = "/nowhere" })
	s := p.restart(p.launch("next", 2))
	if s.Epoch != 0 || !strings.Contains(s.Notes["restart"], "hot restarts are off: ") || !strings.Contains(p.log.String(), "--disable-hot-restart") {
		t.Errorf("without shared memory: %+v", s)
	}
}

// TestTheEndWhileAChildStarts: the child is killed after a quarter of the drain and never asked, its parent drains as
// well as it can.
func TestTheEndWhileAChildStarts(t *testing.T) {
	t.Parallel()
	const most = 20 * time.Second
	p := up(t, func(o *envoy.Options) { o.Policy.Drain = most })
	parent := p.State().PID
	p.Desire(p.never("never"))
	child := p.starting(1)
	asked := time.Now()
	p.cancel()
	p.await("the child's end", func(*envoy.State) bool { return dead(child) })
	if took := time.Since(asked); took >= most || dead(parent) {
		t.Errorf("the child's end took %v, its parent's end %v", took, dead(parent))
	}
	sent := fmt.Sprintf("epoch=1 pid=%d signal=", child)
	if log := p.log.String(); !strings.Contains(log, sent+"9\n") || strings.Contains(log, sent+"15\n") {
		t.Error("a child that is not live is ended by SIGKILL and nothing else")
	}
	if err := <-p.ended; err != nil {
		t.Error(err)
	}
	// A quarter for the child to be live; then the parent, which has no admin interface
	// any more, goes as soon as the kernel's socket table shows no connection.
	if took := time.Since(asked); took >= most || !dead(parent) {
		t.Errorf("the end took %v of at most %v; the parent is dead: %v", took, most, dead(parent))
	}
	// The child gets the signal before the parent, which goes on draining.
	before, after, _ := strings.Cut(p.log.String(), sent+"9\n")
	if last := fmt.Sprintf("pid=%d signal=", parent); strings.Contains(before, last) || !strings.Contains(after, last+"15\n") {
		t.Error("the parent is not ended after its child")
	}
}

// TestFewerWorkers: they are fewer only where the kernel keeps the connections that wait for those that are gone.
func TestFewerWorkers(t *testing.T) {
	p := up(t, quick)
	text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_migrate_req")
	want := 2
	if err == nil && strings.TrimSpace(string(text)) == "1" {
		want = 1
	}
	s := p.restart(p.launch("fewer", 1))
	if s.Processes[0].Workers != want || (s.Notes["workers"] != "") != (want == 2) {
		t.Errorf("want %d workers: %+v", want, s)
	}
	s = p.restart(p.launch("more", 3))
	if s.Processes[0].Workers != 3 || s.Notes["workers"] != "" {
		t.Errorf("more are always possible: %+v", s)
	}
}

func dead(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

func TestTheEndRemovesTheSharedMemory(t *testing.T) {
	p := up(t, quick)
	q := up(t, quick) // a second agent in one namespace, with one /dev/shm
	base := func(p *proxy) string {
		_, after, _ := strings.Cut(p.log.String(), "--base-id ")
		id, _, _ := strings.Cut(after, " ")
		return id
	}
	if base(p) == base(q) || base(p) == "" {
		t.Errorf("base ids %q and %q", base(p), base(q))
	}
	p.restart(p.launch("next", 2))
	segment := "/dev/shm/envoy_shared_memory_" + base(p) + "0"
	if _, err := os.Stat(segment); err != nil {
		t.Error(err)
	}
	p.cancel()
	if err := <-p.ended; err != nil {
		t.Error(err)
	}
	left, _ := filepath.Glob("/dev/shm/*" + base(p) + "*")
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if s := q.restart(q.launch("next", 2)); s.Epoch != 1 {
		t.Errorf("the other agent: %+v", s)
	}
}
