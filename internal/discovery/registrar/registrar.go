// Package registrar writes the WorkloadEntries of proxies that register themselves.
//
// Package register decides what is written; a Store writes it, to the API server or to a file in the state folder. A Registrar's methods
// only note what has happened, so that neither streams nor the loop wait for a store. Run writes until its context ends: what
// fails is tried again at growing intervals, and an entry is written at most once in a second. A write is refused by the store
// if another instance has changed the entry since it was decided. When Run ends, nothing is written about the proxies that
// were connected: they connect to another instance, or to the next process.
package registrar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"

	"github.com/pilothouse/pilothouse/internal/discovery/register"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/run"
)

// ErrChanged is the error of a store about an entry that another one has changed since a write of it was decided.
var ErrChanged = errors.New("the WorkloadEntry has changed meanwhile")

// Store has the entries.
type Store interface {
	// Write performs a decision. It returns an error within which ErrChanged is if Same of the write does not hold any more.
	// Deleting what does not exist is no error. It may be called from several goroutines, for different entries.
	Write(ctx context.Context, w register.Write) error
}

// Beats is where the instances of a control plane that write the same entries show that they are alive.
type Beats interface {
	// Show writes the sign of life of this instance.
	Show(ctx context.Context) error
	// All returns the sign of each instance, never nil.
	All(ctx context.Context) (map[string]string, error)
	// Remove removes that of an instance.
	Remove(ctx context.Context, instance string) error
}

// Options configure a Registrar. Store and Log are required.
type Options struct {
	Machine register.Options
	Store   Store
	// Beats and Leading are nil if this instance writes alone. Leading reports whether this one cleans up what others have left.
	Beats   Beats
	Leading func() bool
	Log     *slog.Logger
}

// Bounds of what is written.
const (
	// pace is the shortest time between two writes of an entry.
	pace = time.Second
	// minRetry and maxRetry are the first and the longest pause after a write that has failed.
	minRetry, maxRetry = 100 * time.Millisecond, 30 * time.Second
	// perSecond is how many entries are written in a second, workers how many at a time.
	perSecond, workers = 50, 4
	// writeTimeout bounds one write.
	writeTimeout = 10 * time.Second
	// beatEvery is how often an instance shows that it is alive, and the leader looks at what others have left.
	beatEvery = 5 * time.Second
)

// Counts are counters of a Registrar. [control-plane 1.13]
type Counts struct {
	// Created, Updated and Deleted are entries that were written; Disconnected are proxies that have gone, and Errors are writes
	// that failed and proxies that could not be registered.
	Created, Updated, Deleted, Disconnected, Errors int64
	// Refused are proxies that may not register themselves.
	Refused map[register.Reason]int64
	// Registered is how many proxies that register themselves are connected.
	Registered int
}

// Registrar registers proxies. Create one with New. All methods are safe for concurrent use.
type Registrar struct {
	o     Options
	queue workqueue.TypedRateLimitingInterface[object.Key]
	limit flowcontrol.RateLimiter

	mu      sync.Mutex // guards what follows
	machine *register.Machine
	// wrote is when an entry was written last.
	wrote   map[object.Key]time.Time
	refused map[register.Reason]int64
	// told are the entries of which a warning has been logged that does not hold any more when they are deleted from it.
	told map[object.Key]bool

	created, updated, deleted, disconnected, errors atomic.Int64
}

// New returns a Registrar. It writes nothing.
func New(o Options) *Registrar {
	return &Registrar{
		o: o, machine: register.New(o.Machine), limit: flowcontrol.NewTokenBucketRateLimiter(perSecond, perSecond),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[object.Key](minRetry, maxRetry)),
		wrote: map[object.Key]time.Time{}, refused: map[register.Reason]int64{}, told: map[object.Key]bool{},
	}
}

// Connect registers the proxy of a node that names a WorkloadGroup, whose caller has proved to be who, with the unique id of its
// connection. The error, a *register.Refusal, says why it may not be registered. Warnings say what else the user should know.
func (r *Registrar) Connect(id string, n mesh.Node, who mesh.Identity) error {
	now := time.Now()
	p, err := register.ProxyOf(n, who)
	r.mu.Lock()
	defer r.mu.Unlock()
	var conflict bool
	if err == nil {
		conflict, err = r.machine.Admit(p, now)
	}
	if err != nil {
		var refusal *register.Refusal
		if errors.As(err, &refusal) {
			r.refused[refusal.Reason]++
		}
		r.errors.Add(1)
		r.o.Log.Warn("a proxy may not register itself", "proxy", n.NodeID.String(), "caller", who.String(), "group", p.Group, "reason", err.Error())
		return err
	}
	key := r.machine.Connect(id, p, now)
	if conflict {
		r.errors.Add(1)
		r.o.Log.Warn("a proxy is not registered: a WorkloadEntry of that name was written by somebody, and stays as it is; rename it or remove it", "entry", key.String(), "connection", id)
	}
	if r.machine.LacksProbe(p) {
		r.o.Log.Warn("the probe of a WorkloadGroup is not used by a proxy, whose proxy configuration has no readinessProbe: it counts as healthy; set the probe in the machine's mesh.yaml", "group", p.Namespace+"/"+p.Group, "connection", id)
	}
	r.queue.Add(key)
	return nil
}

// Disconnect says that a connection has ended.
func (r *Registrar) Disconnect(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if key, ok := r.machine.Disconnect(id); ok {
		r.disconnected.Add(1)
		r.queue.Add(key)
	}
}

// Report takes the health that the proxy of a connection reports. It returns false if the connection is not of a registered proxy.
func (r *Registrar) Report(id string, healthy bool, message string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	key, ok := r.machine.Report(id, healthy, message)
	if ok {
		r.queue.Add(key)
	}
	return ok
}

// Apply takes a change of an object that is in force.
func (r *Registrar) Apply(c object.Change) {
	if c.Key.Kind != object.WorkloadEntry && c.Key.Kind != object.WorkloadGroup {
		return
	}
	r.note(func(m *register.Machine) []object.Key { return m.Apply(c, time.Now()) })
}

// Open says that proxies are served from now on.
func (r *Registrar) Open() {
	r.note(func(m *register.Machine) []object.Key { return m.Open(time.Now()) })
}

// note tells the machine of something, and has it decide about the entries that it returns.
func (r *Registrar) note(f func(*register.Machine) []object.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range f(r.machine) {
		r.queue.Add(k)
	}
}

// Counts returns the counters.
func (r *Registrar) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := Counts{
		Created: r.created.Load(), Updated: r.updated.Load(), Deleted: r.deleted.Load(), Disconnected: r.disconnected.Load(), Errors: r.errors.Load(),
		Refused: map[register.Reason]int64{}, Registered: r.machine.Holding(),
	}
	for reason, n := range r.refused {
		c.Refused[reason] = n
	}
	return c
}

// Run writes until ctx ends, then returns nil. It may be called once.
func (r *Registrar) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, r.queue.ShutDown)()
	var tasks []run.Task
	for i := range workers {
		tasks = append(tasks, run.Task{Name: fmt.Sprintf("write WorkloadEntries %d", i), Run: func(ctx context.Context) error {
			for r.work(ctx) {
			}
			return nil
		}})
	}
	if r.o.Beats != nil {
		tasks = append(tasks, run.Task{Name: "show and find signs of life", Run: r.live})
	}
	return run.Group(ctx, tasks...)
}

// work decides about one entry, and writes it; false when ctx has ended.
func (r *Registrar) work(ctx context.Context) bool {
	key, stopped := r.queue.Get()
	if stopped || ctx.Err() != nil {
		return false
	}
	defer r.queue.Done(key)
	w, wait := r.decide(key)
	if w.Op == register.None {
		r.forget(key)
		if wait > 0 {
			r.queue.AddAfter(key, wait)
		}
		return true
	}
	if wait > 0 {
		r.queue.AddAfter(key, wait)
		return true
	}
	if r.limit.Wait(ctx) != nil {
		return false
	}
	bounded, cancel := context.WithTimeout(ctx, writeTimeout)
	err := r.o.Store.Write(bounded, w)
	cancel()
	switch {
	case ctx.Err() != nil:
		return false
	case errors.Is(err, ErrChanged):
		r.queue.AddRateLimited(key) // what has changed it is on its way
	case err != nil:
		r.errors.Add(1)
		r.warn(key, w, err)
		r.queue.AddRateLimited(key)
	default:
		r.done(key, w)
	}
	return true
}

// decide asks the machine about an entry. If something is to be written, wait is how long that must wait.
func (r *Registrar) decide(key object.Key) (w register.Write, wait time.Duration) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	w, next := r.machine.Decide(key, now)
	if w.Op == register.None {
		if !next.IsZero() {
			wait = max(next.Sub(now), time.Millisecond)
		}
		return w, wait
	}
	if last, ok := r.wrote[key]; ok {
		wait = max(0, last.Add(pace).Sub(now))
	}
	return w, wait
}

// forget forgets the failures of an entry about which there is nothing to do.
func (r *Registrar) forget(key object.Key) {
	r.queue.Forget(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.told, key)
	if last, ok := r.wrote[key]; ok && time.Since(last) > pace {
		delete(r.wrote, key)
	}
}

func (r *Registrar) warn(key object.Key, w register.Write, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.told[key] {
		r.told[key] = true
		r.o.Log.Warn("a WorkloadEntry cannot be written: trying again", "entry", key.String(), "do", w.Op.String(), "error", err)
	}
}

// done notes that an entry was written. What the change has led to comes as a change of the object.
func (r *Registrar) done(key object.Key, w register.Write) {
	r.forget(key)
	r.mu.Lock()
	r.wrote[key] = time.Now()
	r.mu.Unlock()
	switch w.Op {
	case register.Create:
		r.created.Add(1)
	case register.Delete:
		r.deleted.Add(1)
	default:
		r.updated.Add(1)
	}
	r.o.Log.Info("wrote a WorkloadEntry", "entry", key.String(), "did", w.Op.String(), "why", w.Why)
}

// live shows that this instance is alive while it holds entries, and lets the leader know which others are, until ctx ends.
func (r *Registrar) live(ctx context.Context) error {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	failing, shown := false, false
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil // the sign ends by itself: until then, this instance's proxies find another one
		}
		bounded, cancel := context.WithTimeout(ctx, writeTimeout)
		err := r.beat(bounded, &shown)
		cancel()
		if err != nil && !failing && ctx.Err() == nil {
			r.o.Log.Warn("instances of the control plane cannot show that they are alive: WorkloadEntries that one which has ended has left behind stay", "error", err)
		}
		failing = err != nil
	}
}

// beat does what is due of live.
func (r *Registrar) beat(ctx context.Context, shown *bool) error {
	now, leading := time.Now(), r.o.Leading()
	r.note(func(m *register.Machine) []object.Key { return m.Lead(leading) })
	r.mu.Lock()
	holding := r.machine.Holding() > 0
	r.mu.Unlock()
	var err error
	if holding || *shown {
		err = r.o.Beats.Show(ctx)
		*shown = holding && err == nil
	}
	if !leading {
		r.note(func(m *register.Machine) []object.Key { return m.Beats(nil, now) })
		return err
	}
	all, failed := r.o.Beats.All(ctx)
	if failed != nil {
		all = nil
	}
	r.note(func(m *register.Machine) []object.Key { return m.Beats(all, now) })
	r.mu.Lock()
	dead := r.machine.Dead(now)
	r.mu.Unlock()
	for _, instance := range dead {
		if failed == nil {
			if failed = r.o.Beats.Remove(ctx, instance); failed == nil {
				r.note(func(m *register.Machine) []object.Key { m.Forget(instance); return nil })
			}
		}
	}
	return errors.Join(err, failed)
}
