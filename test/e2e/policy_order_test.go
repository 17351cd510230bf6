package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/load"
	"github.com/pilothouse/pilothouse/test/wait"
)

// adminClosed answers /admin at the client; adminOpen sends it on, to a service that nothing else is sent to, so that no connection
// is older than the policy.
const (
	adminClosed = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: echo, namespace: order}
spec: {hosts: [echo], http: [{match: [{uri: {prefix: /admin}}], directResponse: {status: 404}}, {route: [{destination: {host: echo}}]}]}
`
	adminOpen = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: echo, namespace: order}
spec: {hosts: [echo], http: [{match: [{uri: {prefix: /admin}}], route: [{destination: {host: single}}]}, {route: [{destination: {host: echo}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: admin, namespace: order}
spec: {selector: {matchLabels: {app: echo}}, action: DENY, rules: [{to: [{operation: {paths: ["/admin*"]}}]}]}
`
)

// forbidden asks for what a policy is to deny until it is stopped, and counts the answers by status.
type forbidden struct {
	client   *http.Client
	statuses sync.Map // int → *atomic.Int64
	stop     context.CancelFunc
	done     sync.WaitGroup
}

func askForbidden(ctx context.Context, from *meshup.Pod) *forbidden {
	f := &forbidden{client: meshup.Client(from.Net, 4)}
	ctx, f.stop = context.WithCancel(ctx)
	for range 4 {
		f.done.Go(func() {
			for ctx.Err() == nil {
				if status, err := f.ask(ctx); err == nil {
					n, _ := f.statuses.LoadOrStore(status, &atomic.Int64{})
					n.(*atomic.Int64).Add(1)
				}
				select {
				case <-time.After(5 * time.Millisecond):
				case <-ctx.Done():
				}
			}
		})
	}
	return f
}

// end stops it.
func (f *forbidden) end() {
	f.stop()
	f.done.Wait()
}

func (f *forbidden) ask(ctx context.Context) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://echo:9080/admin", nil)
	if err != nil {
		return 0, err
	}
	res, err := f.client.Do(req)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, errors.Join(err, res.Body.Close())
}

// count is how many answers had a status.
func (f *forbidden) count(status int) int64 {
	if n, ok := f.statuses.Load(status); ok {
		return n.(*atomic.Int64).Load()
	}
	return 0
}

// answered is how many answers there were.
func (f *forbidden) answered() int64 {
	return f.count(http.StatusNotFound) + f.count(http.StatusForbidden) + f.count(http.StatusOK)
}

// until waits for answers of a status, several in a row.
func (f *forbidden) until(t *testing.T, status int) {
	t.Helper()
	steady(t, fmt.Sprintf("/admin has status %d", status), func(ctx context.Context) error {
		got, err := f.ask(ctx)
		if err == nil && got != status {
			err = fmt.Errorf("status %d", got)
		}
		return err
	})
}

// TestPolicyIsInForceBeforeTheRouteThatItGuards writes a policy and the route to what it denies in one file, while an agent of a
// guarded workload does not pass on the policy for a while: no forbidden request passes, and no allowed one fails.
func TestPolicyIsInForceBeforeTheRouteThatItGuards(t *testing.T) {
	m := startOrder(t)
	m.write("rule.yaml", "")
	m.write("single.yaml", "")
	m.write("routes.yaml", adminClosed)
	allowed := load.New(t.Context(), m.client.Net.Dial)
	f := askForbidden(t.Context(), m.client)
	defer f.end()
	f.until(t, http.StatusNotFound)
	allowed.KeepAlive("echo:9080", 2, 10*time.Millisecond)
	allowed.Churn("echo:9080", 1, 20*time.Millisecond)
	m.guard(f, 3, func() bool {
		pid, err := m.Pod("echo-v1-1.order").AgentPID()
		if err != nil {
			t.Fatal(err)
		}
		resume := pause(t, pid)
		before := m.generation()
		m.write("routes.yaml", adminOpen)
		m.awaitRead(before)
		answered := f.answered()
		wait.Until(t, "forbidden requests are answered meanwhile", func() bool { return f.answered() > answered+20 })
		resume()
		return true
	})
	if r := allowed.Stop(); r.Sent == 0 || len(r.Failures) > 0 {
		t.Errorf("of %d allowed requests failed: %v", r.Sent, r.Failures)
	}
}

// TestRouteWaitsForEachWorkerOfEnvoy is the same while one worker of a guarded Envoy is stopped, whose main thread accepts the policy.
func TestRouteWaitsForEachWorkerOfEnvoy(t *testing.T) {
	m := startOrder(t)
	m.write("rule.yaml", "")
	m.write("single.yaml", "")
	m.write("routes.yaml", adminClosed)
	f := askForbidden(t.Context(), m.client)
	defer f.end()
	f.until(t, http.StatusNotFound)
	guarded := m.Pod("echo-v1-1.order")
	modified := func() uint64 {
		stats, err := guarded.Stats(t.Context(), `^listener_manager\.listener_modified$`)
		if err != nil {
			t.Fatal(err)
		}
		return uint64(stats["listener_manager.listener_modified"])
	}
	m.guard(f, 1, func() bool {
		pid, err := guarded.EnvoyPID()
		if err != nil {
			t.Fatal(err)
		}
		before := modified()
		resume := pauseThread(t, pid, "wrk:worker_1")
		defer resume()
		m.write("routes.yaml", adminOpen)
		wait.Until(t, "Envoy has accepted the policy", func() bool { return modified() > before })
		// For longer than what the control plane waits for workers that it knows nothing of.
		accepted, closed, answered := time.Now(), f.count(http.StatusNotFound), f.answered()
		wait.Until(t, "forbidden requests are answered meanwhile", func() bool { return f.answered() > answered+400 })
		if time.Since(accepted) > 3*time.Second {
			return false // the agent does not wait for ever
		}
		if others := f.answered() - answered - (f.count(http.StatusNotFound) - closed); others > 4 {
			t.Errorf("%d requests have been sent to the guarded workloads while one of their workers does not have the policy", others)
		}
		return true
	})
}

// guard has the policy and its route written several times: no forbidden request passes. A round does not count if change says so, or if it
// took so long that the route did not wait.
func (m *orderMesh) guard(f *forbidden, rounds int, change func() (counts bool)) {
	m.t.Helper()
	kept := 0
	for range 3 * rounds {
		if kept == rounds {
			break
		}
		passed, late := f.count(http.StatusOK), m.late()
		counts := change()
		f.until(m.t, http.StatusForbidden)
		if !counts || m.late() != late {
			m.t.Log("the route did not wait any longer: the machine is slow")
		} else if kept++; f.count(http.StatusOK) != passed {
			m.t.Errorf("%d forbidden requests passed", f.count(http.StatusOK)-passed)
		}
		// The route goes before the policy.
		m.write("policy.yaml", adminOpen[strings.Index(adminOpen, "---"):])
		m.write("routes.yaml", adminClosed)
		f.until(m.t, http.StatusNotFound)
		m.write("policy.yaml", "")
	}
	if kept == 0 {
		m.t.Error("the machine was too slow each time")
	}
}

// late is how many changes had their routes sent before the policies were acknowledged.
func (m *orderMesh) late() string {
	m.t.Helper()
	text, err := m.Get(m.t.Context(), m.Net.Host(), "http://127.0.0.1:15014/metrics")
	if err != nil {
		m.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), `pilothouse_policy_waits_total{result="late"} `)
	n, _, _ := strings.Cut(rest, "\n")
	return n
}

// pause stops a process until the function is called.
func pause(t *testing.T, pid int) (resume func()) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	resume = sync.OnceFunc(func() { _ = unix.Kill(pid, unix.SIGCONT) })
	t.Cleanup(resume)
	return resume
}

// pauseThread stops one thread of a process until the function is called. A signal would stop all of them.
func pauseThread(t *testing.T, pid int, name string) (resume func()) {
	t.Helper()
	tid, err := threadOf(pid, name)
	if err != nil {
		t.Fatal(err)
	}
	stopped, done, ended := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // the tracer is a thread
		defer runtime.UnlockOSThread()
		stopped <- errors.Join(unix.PtraceSeize(tid), unix.PtraceInterrupt(tid), stops(tid))
		<-done
		if err := unix.PtraceDetach(tid); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Errorf("resume the thread %s: %v", name, err)
		}
	}()
	resume = sync.OnceFunc(func() { close(done); <-ended })
	t.Cleanup(resume)
	if err := <-stopped; err != nil {
		t.Fatalf("stop the thread %s: %v", name, err)
	}
	return resume
}

// stops waits until a thread that is traced has stopped.
func stops(tid int) error {
	for {
		var s unix.WaitStatus
		switch _, err := unix.Wait4(tid, &s, unix.WALL, nil); {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case !s.Stopped():
			return fmt.Errorf("it has ended: %v", s)
		default:
			return nil
		}
	}
}

// threadOf finds a thread of a process by its name.
func threadOf(pid int, name string) (tid int, err error) {
	tasks := fmt.Sprintf("/proc/%d/task", pid)
	entries, err := os.ReadDir(tasks)
	if err != nil {
		return 0, err
	}
	var names []string
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(tasks, e.Name(), "comm"))
		if err != nil {
			continue // it has ended
		}
		if names = append(names, strings.TrimSpace(string(text))); names[len(names)-1] == name {
			return strconv.Atoi(e.Name())
		}
	}
	return 0, fmt.Errorf("find the thread %s of process %d: it has %v", name, pid, names)
}
