package faults_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// outage is how long the API server is away: a minute, or what the environment says (KUBE_OUTAGE=5m).
func outage(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("KUBE_OUTAGE")
	if text == "" {
		return time.Minute
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("KUBE_OUTAGE: %v", err)
	}
	return d
}

// The API server is stopped for a minute, under load and changes. No request fails, no Envoy removes anything, replicas stay
// ready and say for how long changes may be missing. A replica that is started meanwhile is not ready. When the API server is
// back, all changes arrive within seconds, and somebody leads again.
func TestAPIServerIsStopped(t *testing.T) {
	s := start(t)
	l := s.load(t)
	long := outage(t)
	s.arrives(t)
	stopEdits := s.edit(t)
	all := s.two(t)
	s.StopAPIServer(t)
	back := sync.OnceFunc(func() { // for other tests, too
		if err := s.RestartAPIServer(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(back)
	began := time.Now()
	behind(t, all, began)
	until(t, "nobody leads", func(ctx context.Context) error {
		for _, r := range all {
			if n, err := r.metric(ctx, "pilothouse_leader"); err != nil || n != 0 {
				return errors.Join(err, fmt.Errorf("pilothouse_leader of %s is %v", r.name, n))
			}
		}
		return nil
	})
	stopKills := keepDead(t, all[0])
	until(t, "every proxy is connected to the other replica", all[1].servesAll)
	last, started := stopKills(), 0
	until(t, "a replica is started without an API server", func(context.Context) error {
		if started = all[0].pid(); started == 0 || started == last {
			return errors.New("none runs")
		}
		return nil
	})
	notReady := func(ctx context.Context) error {
		if status, text, err := all[0].get(ctx, 8080, "/ready"); err == nil && status == http.StatusOK {
			return errors.New("it says " + text)
		}
		return nil
	}
	_ = waitFor(t.Context(), long-time.Since(began))
	until(t, "the replica that was started without an API server is not ready", notReady)
	until(t, "at the end every proxy is connected to the other replica", all[1].servesAll)
	if n, err := all[1].metric(t.Context(), "pilothouse_source_behind_seconds"); err != nil || n < (long-10*time.Second).Seconds() {
		t.Errorf("pilothouse_source_behind_seconds is %v, error %v, after %v", n, err, time.Since(began))
	}
	back()
	s.back(t, stopEdits)
	// Kubernetes would start one that has ended after a pause that grows to five minutes.
	if now := all[0].pid(); now != started {
		t.Errorf("the process %d that was started without an API server has ended; now it is %d", started, now)
	}
	l.stop(t)
}

// waitFor waits for a time, for faults that are to last.
func waitFor(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// The API server hangs: its connections stay open, and nothing is answered. That is noticed when connections have not answered
// for some time, and else the same as if it were away. The replicas do not notice at the same time that it answers again: what a proxy has
// from the one that has noticed is not removed by the other one, if its connection ends in between.
func TestAPIServerHangs(t *testing.T) {
	s := start(t)
	l := s.load(t)
	stopEdits := s.edit(t)
	all := s.two(t)
	resume := s.PauseAPIServer(t)
	behind(t, all, time.Now())
	resume()
	s.back(t, stopEdits)
	l.stop(t)
}

// behind waits until replicas say that changes may be missing. They stay ready.
func behind(t *testing.T, all [2]pod, began time.Time) {
	t.Helper()
	for _, r := range all {
		until(t, r.name+" says that changes may be missing", func(ctx context.Context) error {
			status, text, err := r.get(ctx, 8080, "/ready")
			switch {
			case err != nil:
				return err
			case status != http.StatusOK:
				t.Fatalf("%s is not ready: %s", r.name, text)
			case !strings.Contains(text, "may be missing"):
				return errors.New(text)
			}
			n, err := r.metric(ctx, "pilothouse_source_behind_seconds")
			if err == nil && n == 0 {
				err = errors.New("pilothouse_source_behind_seconds is 0")
			}
			return err
		})
		t.Logf("%s says after %v that changes may be missing", r.name, time.Since(began).Round(time.Millisecond))
	}
}

// soon is the longest time until a change arrives that is made when the API server is back. Lists are tried again at least every
// 10 s.
const soon = 30 * time.Second

// back is what holds when the API server answers again.
func (s site) back(t *testing.T, stopEdits func() []string) {
	t.Helper()
	began := time.Now()
	if took := s.arrives(t); took > soon {
		t.Errorf("a change arrived %v after the API server was back: want within %v", took, soon)
	}
	s.have(t, stopEdits()...)
	t.Logf("all changes were at all proxies %v after the API server was back", time.Since(began).Round(time.Millisecond))
	s.settled(t)
	s.leader(t)
	for _, r := range s.two(t) {
		until(t, "nothing is missing at "+r.name, func(ctx context.Context) error {
			if n, err := r.metric(ctx, "pilothouse_source_behind_seconds"); err != nil || n != 0 {
				return errors.Join(err, fmt.Errorf("pilothouse_source_behind_seconds is %v", n))
			}
			return nil
		})
	}
}

// edit makes a change every so often, from before it returns until the function that it returns is called. That returns the names of the clusters of
// those that were stored. While the API server does not answer, or no webhook, a change cannot be.
func (s site) edit(t *testing.T) (stop func() []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	var stored []string
	failed, first := 0, make(chan struct{})
	group.Go(func() {
		for waitFor(ctx, 500*time.Millisecond) == nil {
			one, end := context.WithTimeout(ctx, 5*time.Second)
			cluster, err := s.change(one)
			end()
			switch {
			case err == nil:
				if stored = append(stored, cluster); len(stored) == 1 {
					close(first)
				}
			case ctx.Err() == nil:
				failed++
				if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
					t.Error(err)
				}
			}
		}
	})
	once := sync.OnceFunc(func() { cancel(); group.Wait() })
	t.Cleanup(once)
	select {
	case <-first:
	case <-time.After(bound):
		t.Fatal("no change was stored")
	}
	return func() []string {
		once()
		t.Logf("%d changes were stored, %d could not be", len(stored), failed)
		return stored
	}
}
