// Package leader runs tasks on one of several replicas, which a Lease elects.
//
// A task's context ends when the replica no longer leads: when it stops, or when it could not renew its
// Lease for 6 s. Others may lead 10 s after the last renewal, so that tasks have 4 s to return; what they
// write should not rely on it, since no lock can stop a request that is under way. A replica that stops ends
// its tasks first and then gives the Lease up, so that another one leads within 4 s; after one that
// was killed, it takes up to 14 s. While the API server cannot be reached nobody leads, and the replicas
// go on otherwise.
package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typed "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/pilothouse/pilothouse/internal/run"
)

// Times of a Lease.
const (
	leaseDuration = 10 * time.Second
	renewDeadline = 6 * time.Second
	retryPeriod   = 1500 * time.Millisecond
	// releaseTimeout bounds giving the Lease up.
	releaseTimeout = 3 * time.Second
)

// Options configure an Elector. All are required except Off.
type Options struct {
	// Config is how to connect to the API server. It is not changed.
	Config *rest.Config
	// Namespace and Lease name the Lease.
	Namespace, Lease string
	// Identity is unique among the replicas, such as the name of the Pod.
	Identity string
	// Eligible, if it is set, reports whether this replica may lead. One that may not takes no Lease, and loses that which it has
	// as if it could not be renewed. It is called from several goroutines.
	Eligible func() bool
	// Off has this replica lead always: for one replica that may not use Leases.
	Off bool
	Log *slog.Logger
}

// Elector runs tasks while this replica leads. Create one with New.
type Elector struct {
	options Options
	lock    *reportingLock
	leading atomic.Bool
}

// New returns an Elector. It sends no request.
func New(o Options) (*Elector, error) {
	if o.Off {
		return &Elector{options: o}, nil
	}
	if o.Identity == "" || o.Lease == "" || o.Namespace == "" {
		return nil, fmt.Errorf("elect a leader: identity %q, Lease %q in namespace %q: want all of them", o.Identity, o.Lease, o.Namespace)
	}
	config := rest.CopyConfig(o.Config)
	config.Timeout = renewDeadline / 2 // one request that hangs must not cost the Lease
	client, err := typed.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return &Elector{options: o, lock: &reportingLock{log: o.Log, eligible: o.Eligible, Interface: &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Lease}, Client: client,
		LockConfig: resourcelock.ResourceLockConfig{Identity: o.Identity},
	}}}, nil
}

// Leading reports whether this replica leads. It is safe for concurrent use, and false for nil.
func (e *Elector) Leading() bool { return e != nil && e.leading.Load() }

// Run takes part in the election until ctx ends, then returns nil. While this replica leads, the tasks run;
// all of them have returned before it takes part again. If one returns an error, or returns while the
// replica leads, Run returns that.
func (e *Elector) Run(ctx context.Context, tasks ...run.Task) error {
	if e.options.Off {
		return e.lead(ctx, tasks)
	}
	for ctx.Err() == nil {
		if err := e.term(ctx, tasks); err != nil {
			return err
		}
	}
	return nil
}

// errEnded is the error of tasks that end by themselves.
var errEnded = errors.New("tasks of the leader have ended")

// lead runs the tasks until ctx ends.
func (e *Elector) lead(ctx context.Context, tasks []run.Task) error {
	e.leading.Store(true)
	defer e.leading.Store(false)
	err := run.Group(ctx, tasks...)
	if err == nil && ctx.Err() == nil {
		return errEnded
	}
	return err
}

// term waits until this replica leads, and runs the tasks until it no longer does. If ctx or the tasks have ended,
// it gives the Lease up.
func (e *Elector) term(ctx context.Context, tasks []run.Task) error {
	// The Lease is renewed until the tasks have ended. What client-go would log, reportingLock does.
	renewing, stop := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), klog.New(nil)))
	defer stop()
	leads := make(chan context.Context, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: e.lock, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) { leads <- leading },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("elect a leader: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		elector.Run(renewing)
	}()
	lost := false
	select {
	case <-ctx.Done():
	case leading := <-leads: // ends when the Lease could not be renewed
		lost, err = e.runTerm(ctx, leading, tasks)
	}
	stop()
	<-ended
	if !lost && elector.IsLeader() {
		e.release(ctx)
	}
	return err
}

// runTerm runs the tasks while leading lasts, or until ctx ends. It reports whether leading has ended first.
func (e *Elector) runTerm(ctx, leading context.Context, tasks []run.Task) (lost bool, err error) {
	e.options.Log.Info("this replica leads", "lease", e.lock.Describe())
	both, cancel := context.WithCancel(leading)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	if err := e.lead(both, tasks); err != nil {
		return false, err
	}
	if lost = ctx.Err() == nil; lost {
		e.options.Log.Warn("this replica no longer leads: its Lease was not renewed in time", "lease", e.lock.Describe())
	}
	return lost, nil
}

// release gives the Lease up if this replica holds it.
func (e *Elector) release(ctx context.Context) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	held, _, err := e.lock.Interface.Get(bounded)
	if err == nil && held.HolderIdentity == e.lock.Identity() {
		now := metav1.Now()
		err = e.lock.Interface.Update(bounded, resourcelock.LeaderElectionRecord{
			LeaderTransitions: held.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
		})
	}
	if err != nil {
		e.options.Log.Warn("the Lease was not given up: another replica leads when it has ended", "lease", e.lock.Describe(), "within", leaseDuration, "error", err)
	}
}

// reportingLock logs why a Lease cannot be read or written, once for each reason, and when it can be again.
type reportingLock struct {
	resourcelock.Interface
	log      *slog.Logger
	eligible func() bool // nil if this replica always is
	reason   string      // used by the goroutine of the election only
}

// errNotEligible is not logged: that another replica is to lead is no problem.
var errNotEligible = errors.New("this replica may not lead")

// mayWrite returns an error while this replica may not lead.
func (l *reportingLock) mayWrite() error {
	if l.eligible != nil && !l.eligible() {
		return errNotEligible
	}
	return nil
}

// Get implements resourcelock.Interface.
func (l *reportingLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if !apierrors.IsNotFound(err) {
		l.tell(err)
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (l *reportingLock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if err := l.mayWrite(); err != nil {
		return err
	}
	err := l.Interface.Create(ctx, r)
	if !apierrors.IsAlreadyExists(err) {
		l.tell(err)
	}
	return err
}

// Update implements resourcelock.Interface.
func (l *reportingLock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if err := l.mayWrite(); err != nil {
		return err
	}
	err := l.Interface.Update(ctx, r)
	if !apierrors.IsConflict(err) {
		l.tell(err)
	}
	return err
}

func (l *reportingLock) tell(err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	reason := ""
	if err != nil {
		reason = err.Error()
	}
	switch {
	case reason != "" && l.reason == "":
		l.log.Warn("the Lease cannot be used: this replica cannot lead", "lease", l.Describe(), "error", err)
	case reason == "" && l.reason != "":
		l.log.Info("the Lease can be used again", "lease", l.Describe())
	}
	l.reason = reason
}
