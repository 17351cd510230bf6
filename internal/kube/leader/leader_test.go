package leader

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/pilothouse/pilothouse/internal/run"
	"github.com/pilothouse/pilothouse/test/wait"
)

// lease is one Lease in memory, with the versions of an API server.
type lease struct {
	mu      sync.Mutex
	record  *resourcelock.LeaderElectionRecord
	version int
	down    error
}

// view is the lease as one replica sees it.
type view struct {
	*lease
	name string
	seen int
}

func (v *view) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.down != nil {
		return nil, nil, v.down
	}
	if v.record == nil {
		return nil, nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), "x")
	}
	v.seen = v.version
	out := *v.record
	return &out, []byte(out.HolderIdentity + out.RenewTime.String() + out.AcquireTime.String()), nil
}

func (v *view) Create(_ context.Context, r resourcelock.LeaderElectionRecord) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.record != nil {
		return apierrors.NewAlreadyExists(coordinationv1.Resource("leases"), "x")
	}
	v.version++
	v.seen, v.record = v.version, &r
	return v.down
}

func (v *view) Update(_ context.Context, r resourcelock.LeaderElectionRecord) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.down != nil:
		return v.down
	case v.seen != v.version:
		return apierrors.NewConflict(coordinationv1.Resource("leases"), "x", errors.New("modified"))
	}
	v.version++
	v.seen, v.record = v.version, &r
	return nil
}

func (v *view) RecordEvent(string) {}
func (v *view) Identity() string   { return v.name }
func (v *view) Describe() string   { return "istio-system/x" }

func (l *lease) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = err
}

// replica takes part in an election.
type replica struct {
	*Elector
	log  wait.Output
	stop func() error
	// ending is how long its task takes to end.
	ending time.Duration
}

// leaders counts who leads at a time.
type leaders struct {
	mu        sync.Mutex
	now, most int
}

// counts returns how many lead, and how many have led at a time.
func (c *leaders) counts() (now, most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now, c.most
}

// holder is who has the Lease; empty for nobody.
func (l *lease) holder() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.record.HolderIdentity
}

func (c *leaders) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += n
	c.most = max(c.most, c.now)
}

func start(l *lease, name string, c *leaders, ending time.Duration) *replica {
	return startIf(l, name, c, ending, nil)
}

// startIf starts a replica that may lead only while eligible returns true.
func startIf(l *lease, name string, c *leaders, ending time.Duration, eligible func() bool) *replica {
	r := &replica{ending: ending}
	log := slog.New(slog.NewTextHandler(&r.log, nil))
	r.Elector = &Elector{options: Options{Log: log}, lock: &reportingLock{Interface: &view{lease: l, name: name}, log: log, eligible: eligible}}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- r.Run(ctx, run.Task{Name: "task", Run: func(ctx context.Context) error {
			c.add(1)
			defer c.add(-1)
			<-ctx.Done()
			<-time.After(r.ending)
			return nil
		}})
	}()
	r.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	return r
}

func later(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// A replica that stops ends its tasks, then gives the Lease up, and another one leads within 4 s.
func TestTheLeaderHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lease
		var c leaders
		a := start(&l, "a", &c, time.Second)
		later(time.Second)
		b := start(&l, "b", &c, time.Second)
		later(time.Minute)
		if !a.Leading() || b.Leading() {
			t.Fatalf("a leads: %v, b leads: %v", a.Leading(), b.Leading())
		}
		if err := a.stop(); err != nil {
			t.Error(err)
		}
		if now, _ := c.counts(); now != 0 || l.holder() != "" {
			t.Errorf("after it has stopped %d tasks run, %q holds the Lease", now, l.holder())
		}
		later(4 * time.Second)
		if _, most := c.counts(); !b.Leading() || most != 1 {
			t.Errorf("b leads: %v; %d led at a time", b.Leading(), most)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A replica that ends without giving the Lease up is followed within 14 s.
func TestAKilledLeaderIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c leaders
		now := metav1.Now()
		l := lease{record: &resourcelock.LeaderElectionRecord{HolderIdentity: "killed", LeaseDurationSeconds: 10, RenewTime: now, AcquireTime: now}}
		b := start(&l, "b", &c, 0)
		later(9 * time.Second)
		if b.Leading() {
			t.Error("b leads before the Lease has ended")
		}
		later(5 * time.Second)
		if !b.Leading() {
			t.Error("b does not lead after 14 s")
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

// While the API server cannot be reached, nobody leads; the tasks of the one that led have ended before
// another one could lead. Afterwards one leads again.
func TestAnOutageEndsTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lease
		var c leaders
		a := start(&l, "a", &c, 3*time.Second)
		later(time.Second)
		b := start(&l, "b", &c, 3*time.Second)
		later(time.Minute)
		l.fail(errors.New("connection refused"))
		later(leaseDuration)
		if now, _ := c.counts(); now != 0 || a.Leading() || b.Leading() {
			t.Errorf("%d tasks run during the outage", now)
		}
		later(time.Hour)
		l.fail(nil)
		later(12 * time.Second)
		if _, most := c.counts(); a.Leading() == b.Leading() || most != 1 {
			t.Errorf("afterwards a leads: %v, b leads: %v; %d led at a time", a.Leading(), b.Leading(), most)
		}
		for _, r := range []*replica{a, b} {
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			text := r.log.String()
			if strings.Count(text, "cannot be used") != 1 || strings.Count(text, "can be used again") != 1 || !strings.Contains(text, "connection refused") {
				t.Errorf("want one line about the outage and one about its end:\n%s", text)
			}
		}
	})
}

// A replica that may not lead takes no Lease and loses the one that it has; another one that may leads then. It has watched
// the Lease, so that it need not wait from when it may.
func TestOnlyWhoMayLeadLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lease
		var c leaders
		var first, second atomic.Bool
		a := startIf(&l, "a", &c, 0, first.Load)
		b := startIf(&l, "b", &c, 0, second.Load)
		later(time.Minute)
		if now, _ := c.counts(); now != 0 || a.Leading() || b.Leading() {
			t.Fatal("a replica leads that may not")
		}
		first.Store(true)
		later(5 * time.Second) // client-go asks every 2 to 4.4 s
		if !a.Leading() {
			t.Error("the replica that may lead does not")
		}
		first.Store(false)
		later(12 * time.Second) // a renewal may fail for 6 s, from the next one on
		if now, _ := c.counts(); now != 0 || a.Leading() {
			t.Error("a replica leads that may no longer")
		}
		later(time.Minute)
		second.Store(true)
		later(5 * time.Second)
		if _, most := c.counts(); !b.Leading() || most != 1 {
			t.Errorf("b leads: %v; %d led at a time", b.Leading(), most)
		}
		for _, r := range []*replica{a, b} {
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			if text := r.log.String(); strings.Contains(text, "cannot be used") {
				t.Errorf("that another one is to lead is logged as a problem:\n%s", text)
			}
		}
	})
}

// The end of a task is the end of the election: whoever runs the Elector is told.
func TestTasksThatEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lease
		for want, task := range map[error]func(context.Context) error{
			errEnded:              func(context.Context) error { return nil },
			errors.ErrUnsupported: func(context.Context) error { return errors.ErrUnsupported },
		} {
			log := slog.New(slog.DiscardHandler)
			e := &Elector{options: Options{Log: log}, lock: &reportingLock{Interface: &view{lease: &l, name: "a"}, log: log}}
			if err := e.Run(t.Context(), run.Task{Name: "task", Run: task}); !errors.Is(err, want) || l.holder() != "" || e.Leading() {
				t.Errorf("%v, want %v; %q holds the Lease", err, want, l.holder())
			}
		}
	})
}

// Without election each replica leads, and no request is sent.
func TestElectionOff(t *testing.T) {
	e, err := New(Options{Off: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = e.Run(ctx, run.Task{Name: "task", Run: func(ctx context.Context) error {
		if !e.Leading() {
			t.Error("it does not lead")
		}
		cancel()
		<-ctx.Done()
		return nil
	}})
	if err != nil || e.Leading() {
		t.Errorf("%v, leads: %v", err, e.Leading())
	}
}

func TestInvalidOptions(t *testing.T) {
	if _, err := New(Options{Config: &rest.Config{}, Namespace: "istio-system", Lease: "x"}); err == nil || !strings.Contains(err.Error(), `identity ""`) {
		t.Error(err)
	}
	if (*Elector)(nil).Leading() {
		t.Error("nil leads")
	}
}
