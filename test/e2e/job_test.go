package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
)

// app starts the sample app in a Pod and waits until it listens.
func app(t *testing.T, p *meshup.Pod) *netmesh.Process {
	t.Helper()
	c, err := p.Net.Start(netmesh.Command{Path: filepath.Join(filepath.Dir(p.EnvoyPath()), "app"), Args: []string{"-http=:9080"}, UID: 2000, GID: 2000})
	if err != nil {
		t.Fatal(err)
	}
	if err := meshup.Await(t.Context(), time.Minute, "the app listens", func(ctx context.Context) error {
		conn, err := p.Net.Dial(ctx, "tcp", "127.0.0.1:9080")
		if err == nil {
			err = conn.Close()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return c
}

// crash kills an app and returns the moment before.
func crash(t *testing.T, c *netmesh.Process) time.Time {
	t.Helper()
	at := time.Now()
	if err := c.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	return at
}

// awaitExit waits until an agent has ended by itself, and returns when it had.
func awaitExit(t *testing.T, p *meshup.Pod) time.Time {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- p.StopAgent(syscall.Signal(0)) }() // only checks that it exists
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the agent ended with %v, want exit code 0", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the agent does not end with its app")
	}
	return time.Now()
}

// awaitLog waits until an agent has logged a line the given number of times.
func awaitLog(t *testing.T, p *meshup.Pod, line string, times int) {
	t.Helper()
	if err := meshup.Await(t.Context(), time.Minute, "the agent says that "+line, func(context.Context) error {
		text, err := os.ReadFile(filepath.Join(p.Dir, "../../log", p.Spec.Key()+".agent.log"))
		if n := strings.Count(string(text), line); err == nil && n < times {
			err = fmt.Errorf("%d times", n)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// staysReady fails if the agent does not answer until the given time.
func staysReady(t *testing.T, p *meshup.Pod, until time.Time) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for ; time.Now().Before(until); <-tick.C {
		if err := p.Ready(t.Context()); err != nil {
			t.Fatalf("the sidecar is lost: %v", err)
		}
	}
}

// look is more than the time between two of the agent's looks.
const look = time.Second

func startJob(t *testing.T, env ...string) *meshup.Pod {
	t.Helper()
	m, _ := startWith(t, "job", func(o *meshup.Options) { o.AgentEnv = env })
	return m.Pod("once-1.job")
}

// An app that restarts within the grace period does not end the agent; its final end does.
func TestSidecarSurvivesACrashOfItsApp(t *testing.T) {
	t.Parallel()                   // they wait most of the time
	const grace = 20 * time.Second // far more than the app takes to come back
	p := startJob(t, "EXIT_WITH_APP=true", "EXIT_WITH_APP_GRACE="+grace.String())
	first := app(t, p)
	awaitLog(t, p, "the application is running", 1)
	crash(t, first)
	awaitLog(t, p, "the application is not running any more", 1)
	seen := time.Now()
	second := app(t, p)
	awaitLog(t, p, "the application is running", 2)
	staysReady(t, p, seen.Add(grace+look))
	at := crash(t, second)
	if took := awaitExit(t, p).Sub(at); took < grace {
		t.Errorf("the agent left after %v, within the grace", took)
	}
}

// EXIT_WITH_APP is the default if the owner is a Job.
func TestJobSidecarExitsAfterItsApp(t *testing.T) {
	t.Parallel() // they wait most of the time
	const grace = time.Second
	p := startJob(t, "ISTIO_META_OWNER=kubernetes://apis/batch/v1/namespaces/job/jobs/once", "EXIT_WITH_APP_GRACE="+grace.String())
	staysReady(t, p, time.Now().Add(grace+look)) // an app that is not there yet has not ended
	c := app(t, p)
	awaitLog(t, p, "the application is running", 1)
	at := crash(t, c)
	if took := awaitExit(t, p).Sub(at); took < grace {
		t.Errorf("the agent left after %v, within the grace", took)
	}
}

func TestServiceSidecarKeepsRunning(t *testing.T) {
	t.Parallel() // they wait most of the time
	p := startJob(t, "ISTIO_META_OWNER=kubernetes://apis/apps/v1/namespaces/job/deployments/once", "EXIT_WITH_APP_GRACE=500ms")
	c := app(t, p)
	staysReady(t, p, time.Now().Add(look))
	staysReady(t, p, crash(t, c).Add(500*time.Millisecond+2*look))
}
