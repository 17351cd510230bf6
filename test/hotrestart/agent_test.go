package hotrestart_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/agent/supervise"
	"github.com/pilothouse/pilothouse/test/agenttest"
	"github.com/pilothouse/pilothouse/test/require"
	"github.com/pilothouse/pilothouse/test/wait"
)

// agentName is the name under which the test binary is an agent: it runs a real Envoy with the admin address and
// bootstrap of its arguments and restarts it all the time, until it is killed.
const agentName = "test-agent"

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == agentName {
		restless(os.Args[1], os.Args[2], os.Args[3])
	}
	require.Envoy()
	code := m.Run()
	agenttest.Cleanup()
	os.Exit(code)
}

func restless(admin, binary, bootstrap string) {
	launch := func(n int) envoy.Launch {
		return envoy.Launch{
			Hash: fmt.Sprint(n), Binary: binary, Workers: 1,
			Args: spec.Arguments{Bootstrap: bootstrap, Drain: time.Second, HotRestart: true}.List(),
		}
	}
	r := envoy.New(envoy.Options{
		Admin: admin, Policy: supervise.HotPolicy(), Hot: envoy.Hot{ParentShutdown: time.Second}, Launch: launch(0),
		Stdout: io.Discard, Stderr: io.Discard, Log: slog.New(slog.NewTextHandler(os.Stdout, nil)),
	})
	go func() {
		for n := 1; ; n++ {
			for tick := time.NewTicker(time.Millisecond); !r.State().Live || r.State().Hash != fmt.Sprint(n-1); <-tick.C {
			}
			r.Desire(launch(n))
		}
	}()
	_ = r.Run(context.Background())
	os.Exit(1)
}

var baseID = regexp.MustCompile(`--base-id (\d+)`)

// kill9 runs an agent, kills it at a random moment and waits until nothing of it runs. It returns the base id.
// The moment is after its first Envoy's start if that is asked for, which no machine is too slow for.
func kill9(t testing.TB, p *proxy, bootstrap string, started bool) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out := &buffer{}
	cmd := &exec.Cmd{Path: self, Args: []string{agentName, p.admin, p.launch("x", 1).Binary, bootstrap}, Stdout: out}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if started {
		p.until("an agent starts an Envoy", func() bool { return baseID.MatchString(out.String()) })
	}
	moment := time.NewTimer(20*time.Millisecond + time.Duration(wait.Random(t).Int64N(int64(300*time.Millisecond))))
	<-moment.C
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	p.until("nothing of a killed agent runs", func() bool { return !runs(bootstrap) })
	if id := baseID.FindStringSubmatch(out.String()); id != nil {
		return id[1]
	}
	return ""
}

// runs says whether a process has the path on its command line; a zombie has none.
func runs(path string) bool {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		text, _ := os.ReadFile(file) // it may be gone
		if strings.Contains(string(text), path) && !strings.HasPrefix(string(text), agentName) {
			return true
		}
	}
	return false
}

func (p *proxy) until(what string, holds func() bool) {
	p.t.Helper()
	p.await(what, func(*envoy.State) bool { return holds() })
}

// killedAgents kills so many agents; the next start leaves nothing of them.
func killedAgents(t testing.TB, times int) {
	p := &proxy{t: t, Runner: envoy.New(envoy.Options{Log: slog.New(slog.DiscardHandler)})}
	q := up(t, quick)
	p.admin, p.http, p.tcp, p.upstreamHTTP, p.upstreamTCP = q.admin, q.http, q.tcp, q.upstreamHTTP, q.upstreamTCP
	q.cancel()
	if err := <-q.ended; err != nil {
		t.Fatal(err)
	}
	bootstrap := p.bootstrap("restless")
	var ids []string
	for i := range times {
		if id := kill9(t, p, bootstrap, i%2 > 0); id != "" {
			ids = append(ids, id)
		}
	}
	if len(ids) < times/2 {
		t.Errorf("only %d agents of %d got as far as to start an Envoy", len(ids), times)
	}
	up(t, quick)
	for _, id := range ids {
		if left, _ := filepath.Glob("/dev/shm/*" + id + "*"); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
	t.Logf("%d agents killed, %d with an Envoy", times, len(ids))
}

func TestKilledAgentsLeaveNothing(t *testing.T) { killedAgents(t, 10) }

// BenchmarkKilledAgents is the same 200 times.
func BenchmarkKilledAgents(b *testing.B) {
	for b.Loop() {
		killedAgents(b, 200)
	}
}

// BenchmarkCrash measures how long a killed Envoy is missed, the median of 20.
func BenchmarkCrash(b *testing.B) {
	p := up(b, func(o *envoy.Options) {
		o.Policy.Backoff = supervise.HotPolicy().Backoff
		o.Policy.HealthyFor = time.Nanosecond
	})
	var took []time.Duration
	for b.Loop() {
		for range 20 {
			pid := p.State().PID
			killed := time.Now()
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				b.Fatal(err)
			}
			p.await("another one", func(s *envoy.State) bool { return s.Live && s.PID != pid })
			took = append(took, time.Since(killed))
		}
	}
	b.ReportMetric(float64(median(took).Milliseconds()), "ms/crash")
}

func median(all []time.Duration) time.Duration {
	for i := range all {
		for k := i + 1; k < len(all); k++ {
			if all[k] < all[i] {
				all[i], all[k] = all[k], all[i]
			}
		}
	}
	return all[len(all)/2]
}
