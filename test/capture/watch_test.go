package capture_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
	"github.com/pilothouse/pilothouse/test/agenttest"
	"github.com/pilothouse/pilothouse/test/wait"
)

// inPod is a backend whose calls run in a Pod, as those of an agent in the Pod do.
type inPod struct {
	capture.Nftables
	pod *netmesh.Pod
	// looks counts the calls of Drift; restored is their number at the last call of Apply.
	looks, restored atomic.Int64
}

func (b *inPod) Apply(r plan.Ruleset) (report capture.Report, err error) {
	b.restored.Store(b.looks.Load())
	err = b.pod.Do(func() (err error) { report, err = b.Nftables.Apply(r); return err })
	return report, err
}

func (b *inPod) Drift(r plan.Ruleset) (drift []string, err error) {
	b.looks.Add(1)
	err = b.pod.Do(func() (err error) { drift, err = b.Nftables.Drift(r); return err })
	return drift, err
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Rules that another program flushed are restored within two seconds, which is logged: at the next look but one at the latest, of
// those a second apart.
func TestWatchRestoresWithinTwoSeconds(t *testing.T) {
	w := newWorld(t)
	w.listen(t, 80)
	w.apply(t, injector())
	rules, _ := w.plan(t, injector())
	var log lockedBuffer
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	backend := &inPod{pod: w.pod}
	watch := &capture.Watch{Backend: backend, Plan: rules, Every: time.Second, Log: slog.New(slog.NewTextHandler(&log, nil))}
	go func() { ended <- watch.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	for flush := 1; flush <= 3; flush++ {
		before := backend.looks.Load()
		if err := w.pod.Do(flushAll); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the rules are back", func() bool { return len(w.drift(t, rules)) == 0 })
		if looks := backend.restored.Load() - before; looks > 2 {
			t.Errorf("restored at look %d after the flush, want 1 or 2", looks)
		}
		w.check(t, []leg{{w.other, app, "", "10.99.0.2:80", "inbound for 10.99.0.2:80"}})
		// One line for each: the next flush comes after the watch has restored this one.
		eventually(t, "the restoration is logged", func() bool { return strings.Count(log.String(), "have been restored") == flush })
	}
	if n := strings.Count(log.String(), "\n"); n != 3 {
		t.Errorf("%d lines for three flushes:\n%s", n, log.String())
	}
}

// The built agent, with Envoy, keeps the rules of its Pod in force if the flag or the variable says so,
// and logs each restoration once.
func TestAgentKeepsTheRules(t *testing.T) {
	t.Parallel()
	const args = "-i '*' -b '*' -d 15090,15021,15020 -m REDIRECT --dual-stack"
	backends := map[string]capture.BackendOptions{" --native-nftables": {Native: true}}
	for _, v := range variants() {
		backends[" --force-iptables-binary="+v] = on(v)
	}
	for backend, o := range backends {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.listen(t, 80)
			rules := planIn(t, w.pod, injector())
			call := strings.Fields(strings.ReplaceAll("istio-iptables "+args+backend, "'", ""))
			if code, _, complaints := command(t, w.pod, []string{"PATH=" + o.Path}, call...); code != 0 {
				t.Fatal(complaints)
			}
			a := startWatching(t, w.pod, args+backend, o.Native)
			for flush := 1; flush <= 2; flush++ {
				do(t, w.pod, flushAll)
				if o.Force == "legacy" {
					// One family: the agent may check between two commands, and would then log two lines.
					shell(t, w.pod, "", "iptables-legacy", "-t", "nat", "-F")
				}
				eventually(t, "the agent tells that the rules are restored", func() bool { return restorations(a) >= flush })
				if d := drift(t, w.pod, o, rules); d != nil {
					t.Errorf("restored, they differ: %q", d)
				}
				w.check(t, []leg{
					{w.other, app, "", "10.99.0.2:80", "inbound for 10.99.0.2:80"},
					{w.pod, app, "", "10.99.0.3:80", "outbound for 10.99.0.3:80"},
				})
			}
			a.Stop()
			if n := restorations(a); n != 2 {
				t.Errorf("two restorations were told %d times", n)
			}
		})
	}
}

func restorations(a *agenttest.Process) int {
	return strings.Count(a.Output(), "the rules of capture were changed by another program and have been restored")
}

// startWatching starts an agent in a Pod, with a control plane there, and waits until it is ready.
func startWatching(t *testing.T, p *netmesh.Pod, args string, byFlag bool) *agenttest.Process {
	t.Helper()
	plane := agenttest.NewPlane(t)
	do(t, p, func() error { plane.Start(); return nil })
	a := agenttest.New(t, plane, "")
	a.Cmd.Args = append(a.Cmd.Args, "--log_repeat_period=0") // lines are counted
	if byFlag {
		a.Cmd.Args = append(a.Cmd.Args, "--watchCapture", args)
	} else {
		a.Cmd.Env = append(a.Cmd.Env, "CAPTURE_WATCH="+args)
	}
	do(t, p, func() error { a.Start(); return nil })
	eventually(t, "the proxy is ready", func() bool {
		resp, err := p.HTTPClient().Get("http://127.0.0.1:" + a.Health + "/healthz/ready")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return a
}

func flushAll() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	c.FlushRuleset()
	return c.Flush()
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	wait.Until(t, what, ok)
}
