package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
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
	defer func() {
		f.stop()
		f.done.Wait()
	}()
	f.until(t, http.StatusNotFound)
	allowed.KeepAlive("echo:9080", 2, 10*time.Millisecond)
	allowed.Churn("echo:9080", 1, 20*time.Millisecond)
	kept := 0
	for range 10 {
		if kept == 3 {
			break
		}
		passed, late := f.count(http.StatusOK), m.late()
		pauses := watchPauses()
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
		f.until(t, http.StatusForbidden)
		longest := pauses()
		if m.late() != late {
			t.Log("the agent was stopped for more than 5 s: the machine is slow")
		} else if longest > slowMachine {
			t.Logf("a goroutine was not run for %s: the machine is slow", longest)
		} else if kept++; f.count(http.StatusOK) != passed {
			t.Errorf("%d forbidden requests passed", f.count(http.StatusOK)-passed)
		}
		// The route goes before the policy.
		m.write("policy.yaml", adminOpen[strings.Index(adminOpen, "---"):])
		m.write("routes.yaml", adminClosed)
		f.until(t, http.StatusNotFound)
		m.write("policy.yaml", "")
	}
	if kept == 0 {
		t.Error("the machine was too slow each time")
	}
	if r := allowed.Stop(); r.Sent == 0 || len(r.Failures) > 0 {
		t.Errorf("of %d allowed requests failed: %v", r.Sent, r.Failures)
	}
}

// slowMachine is how late a goroutine is run on a machine whose Envoys may need more than 200 ms, too, until their workers have
// a listener that the main thread has accepted (docs/decisions/0082-routes-wait-for-policies.md).
const slowMachine = 50 * time.Millisecond

// watchPauses watches how late a goroutine is run, until the function is called, which returns the longest time.
func watchPauses() (stop func() time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	longest := make(chan time.Duration)
	go func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		var most time.Duration
		for ctx.Err() == nil {
			most = max(most, time.Since(<-tick.C))
		}
		longest <- most
	}()
	return func() time.Duration {
		cancel()
		return <-longest
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
