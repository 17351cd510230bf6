package capture_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
	"github.com/pilothouse/pilothouse/test/netmesh"
)

// inPod is a backend whose calls run in a Pod, as those of an agent in the Pod do.
type inPod struct {
	capture.Nftables
	pod *netmesh.Pod
}

func (b inPod) Apply(r capture.Ruleset) (report capture.Report, err error) {
	err = b.pod.Do(func() (err error) { report, err = b.Nftables.Apply(r); return err })
	return report, err
}

func (b inPod) Drift(r capture.Ruleset) (drift []string, err error) {
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

// A foreign flush takes the rules away; within two seconds they are back, and it is told.
func TestWatchRestoresWithinTwoSeconds(t *testing.T) {
	w := newWorld(t)
	w.listen(t, 80)
	w.apply(t, injector())
	plan, _ := w.plan(t, injector())
	var log lockedBuffer
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	watch := capture.Watch{Backend: inPod{pod: w.pod}, Plan: plan, Every: time.Second, Log: slog.New(slog.NewTextHandler(&log, nil))}
	go func() { ended <- watch.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	for flush := 1; flush <= 3; flush++ {
		if err := w.pod.Do(flushAll); err != nil {
			t.Fatal(err)
		}
		flushed := time.Now()
		eventually(t, "the rules are back", func() bool { return len(w.drift(t, plan)) == 0 })
		if took := time.Since(flushed); took > 2*time.Second {
			t.Errorf("restored after %s", took)
		}
		w.check(t, []leg{{w.other, app, "", "10.99.0.2:80", "inbound for 10.99.0.2:80"}})
		// One line for each: the next flush comes after the watch has looked at this one.
		eventually(t, "it is told", func() bool { return strings.Count(log.String(), "have been restored") == flush })
	}
	if n := strings.Count(log.String(), "\n"); n != 3 {
		t.Errorf("%d lines for three flushes:\n%s", n, log.String())
	}
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
	end := time.NewTimer(20 * time.Second)
	defer end.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-end.C:
			t.Fatalf("not within 20 s: %s", what)
		case <-tick.C:
		}
	}
}
