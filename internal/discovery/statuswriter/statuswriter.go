// Package statuswriter writes the statuses of Istio's objects to the API server.
//
// It watches the statuses of the kinds of which there are objects, and patches those that say something else than they
// shall, as a field manager of its own and only the version that it has read, so that nothing that others write at the same time is
// lost. What a status shall say, and when it is written, is decided by package objectstatus. No more than a number of
// statuses is written in a second, whatever happens; while the API server cannot be reached nothing is. One replica of each revision is to run it;
// an option says which objects are its own.
package statuswriter

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/pilothouse/pilothouse/internal/discovery/objectstatus"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

const (
	// FieldManager is the manager of the fields that are written.
	FieldManager = "pilothouse-status"
	// DefaultPerSecond is how many statuses are written in a second.
	DefaultPerSecond = 10
	// requestTimeout bounds a request: a leader has 4 s to end.
	requestTimeout = 3 * time.Second
	// minPause and maxRetry are the pauses after a write that has failed.
	minPause = 200 * time.Millisecond
	maxRetry = time.Minute
	// tellAfter is after how many repetitions of a write the log says that somebody else undoes it.
	tellAfter = 3
)

// Observations are what is known of the objects. Its methods are called from several goroutines.
type Observations interface {
	// Keys returns the objects of which something is known.
	Keys() []object.Key
	// Of returns what all replicas know of an object, and how many have not reported on it. It returns false if nothing is
	// known.
	Of(object.Key) (o objectstatus.Observation, unknown int, ok bool)
}

// Options configure a Writer.
type Options struct {
	// Config is how to connect to the API server. It is not changed.
	Config *rest.Config
	// Writes reports whether this writer is that of an object, by its labels: an object has one among all revisions of the
	// control plane. It is called often, from one goroutine. When it says something else of objects, Touch is to be called.
	Writes func(labels map[string]string) bool
	// Only is the one namespace whose objects are written; empty for all.
	Only string
	// PerSecond is how many statuses are written in a second; 0 for DefaultPerSecond.
	PerSecond float32
	// Pace is how often the status of one object is written; zero for objectstatus.DefaultPace.
	Pace objectstatus.Pace
	Log  *slog.Logger
}

// Writer writes statuses. Create one with New.
type Writer struct {
	options   Options
	watching  dynamic.Interface
	writing   dynamic.Interface
	discovery *discovery.DiscoveryClient
	limit     flowcontrol.RateLimiter

	mu   sync.Mutex // guards term
	term *term

	writes, conflicts, failures atomic.Int64
}

// New returns a Writer. It sends no request.
func New(o Options) (*Writer, error) {
	if o.PerSecond <= 0 {
		o.PerSecond = DefaultPerSecond
	}
	w := &Writer{options: o, limit: flowcontrol.NewTokenBucketRateLimiter(o.PerSecond, max(1, int(o.PerSecond)))}
	watching, writing := rest.CopyConfig(o.Config), rest.CopyConfig(o.Config)
	watching.WarningHandler, writing.WarningHandler = rest.NoWarnings{}, rest.NoWarnings{}
	writing.QPS, writing.RateLimiter, writing.Timeout = -1, nil, requestTimeout // limit is in front of it
	var err error
	if w.watching, err = dynamic.NewForConfig(watching); err == nil {
		w.writing, err = dynamic.NewForConfig(writing)
	}
	if err == nil {
		w.discovery, err = discovery.NewDiscoveryClientForConfig(writing)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return w, nil
}

// Touch says that what is known of objects may have changed. It is safe for concurrent use.
func (w *Writer) Touch(keys []object.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.term != nil {
		for _, k := range keys {
			w.term.queue.Add(k)
		}
	}
}

// Metrics are counters of a Writer.
type Metrics struct{ Writes, Conflicts, Failures int64 }

// Metrics returns the counters. It is safe for concurrent use.
func (w *Writer) Metrics() Metrics {
	return Metrics{Writes: w.writes.Load(), Conflicts: w.conflicts.Load(), Failures: w.failures.Load()}
}

// term is one run of the writer.
type term struct {
	*Writer
	known Observations
	queue workqueue.TypedRateLimitingInterface[object.Key]
	// What follows is used by the worker only.
	pacer *objectstatus.Pacer
	kinds map[object.Kind]*watched
	told  map[string]bool
	// watches are the goroutines of the kinds.
	watches sync.WaitGroup
}

// Run writes until ctx ends, then returns nil. It may be called again then, but not while it runs.
func (w *Writer) Run(ctx context.Context, known Observations) error {
	t := &term{
		Writer: w, known: known, pacer: objectstatus.NewPacer(w.options.Pace, time.Now()), kinds: map[object.Kind]*watched{}, told: map[string]bool{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[object.Key](minPause, maxRetry)),
	}
	ctx, stop := context.WithCancel(klog.NewContext(ctx, klog.Logger{})) // the library's own messages repeat what is logged here
	defer t.watches.Wait()
	defer stop()
	w.mu.Lock()
	w.term = t
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.term = nil
		w.mu.Unlock()
	}()
	for _, k := range known.Keys() {
		t.queue.Add(k)
	}
	defer context.AfterFunc(ctx, t.queue.ShutDown)()
	for {
		key, stopped := t.queue.Get()
		if stopped || ctx.Err() != nil {
			return nil
		}
		if err := t.reconcile(ctx, key); err != nil && ctx.Err() == nil {
			t.failures.Add(1)
			topic := key.String()
			if apierrors.IsForbidden(err) {
				topic = string(key.Kind) // the same for all objects of the kind
			}
			t.tell(topic, "the status of an object cannot be written: trying again", "object", key.String(), "error", err)
			t.queue.AddRateLimited(key)
		} else {
			t.untell(key.String())
			t.queue.Forget(key)
		}
		t.queue.Done(key)
	}
}

// tell logs a warning unless the same topic was logged and has not been mended since.
func (t *term) tell(topic, text string, args ...any) {
	if !t.told[topic] {
		t.told[topic] = true
		t.options.Log.Warn(text, args...)
	}
}

func (t *term) untell(topic string) { delete(t.told, topic) }

// next is what is to be written to an object.
type next struct {
	resource dynamic.ResourceInterface
	name     string
	patch    []byte
	text     string // identifies what it says
	at       time.Time
}

// next returns what is to be written to an object; nil for nothing.
func (t *term) next(ctx context.Context, key object.Key) (*next, error) {
	o, unknown, ok := t.known.Of(key)
	if !ok {
		t.pacer.Forget(key)
		return nil, nil
	}
	of, err := t.watch(ctx, key.Kind)
	if err != nil || of == nil {
		return nil, err
	}
	stored, ok := of.stored(key)
	if !ok {
		return nil, nil // it is queued when it has been read
	}
	if !t.options.Writes(stored.GetLabels()) {
		return nil, nil // another one writes it
	}
	want, ok := objectstatus.Decide(stored.GetGeneration(), &o, unknown)
	if !ok {
		return nil, nil // it is queued when the other side knows this version
	}
	want.Written = key.Kind == object.Ingress && len(stored.GetManagedFields()) > 0
	now := time.Now()
	before, _ := stored.Object["status"].(map[string]any)
	status, change := objectstatus.Merge(before, want, now)
	text, err := json.Marshal(want)
	if err != nil {
		return nil, err
	}
	due := t.pacer.Due(key, change, string(text), now)
	if change == objectstatus.Unchanged {
		return nil, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": stored.GetResourceVersion(), "uid": stored.GetUID()}, "status": status,
	})
	if err != nil {
		return nil, err
	}
	return &next{resource: t.writing.Resource(of.resource).Namespace(key.Namespace), name: key.Name, patch: patch, text: string(text), at: due}, nil
}

// reconcile writes the status of an object if it differs and is due.
func (t *term) reconcile(ctx context.Context, key object.Key) error {
	n, err := t.next(ctx, key)
	if err != nil || n == nil {
		return err
	}
	if wait := time.Until(n.at); wait > 0 {
		t.queue.AddAfter(key, wait)
		return nil
	}
	if !t.limit.TryAccept() {
		if err := t.limit.Wait(ctx); err != nil {
			return err
		}
		if n, err = t.next(ctx, key); err != nil || n == nil {
			return err // it has changed meanwhile
		}
	}
	_, err = n.resource.Patch(ctx, n.name, types.MergePatchType, n.patch, metav1.PatchOptions{FieldManager: FieldManager}, "status")
	switch {
	case apierrors.IsNotFound(err):
		return nil // the object is gone
	case apierrors.IsConflict(err):
		t.conflicts.Add(1)
		t.queue.AddAfter(key, minPause) // the watch is behind
		return nil
	case err != nil:
		return err
	}
	t.writes.Add(1)
	t.untell(string(key.Kind))
	if t.pacer.Wrote(key, n.text, time.Now()) == tellAfter {
		t.options.Log.Warn("somebody else undoes the status of an object, which is written again at growing intervals", "object", key.String())
	}
	return nil
}

// trim returns what is needed of an object.
func trim(obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	out := &unstructured.Unstructured{Object: map[string]any{"apiVersion": u.GetAPIVersion(), "kind": u.GetKind()}}
	out.SetNamespace(u.GetNamespace())
	out.SetName(u.GetName())
	out.SetUID(u.GetUID())
	out.SetResourceVersion(u.GetResourceVersion())
	out.SetGeneration(u.GetGeneration())
	if status, ok := u.Object["status"].(map[string]any); ok {
		out.Object["status"] = maps.Clone(status)
	}
	if u.GetKind() == string(object.Ingress) {
		// All revisions serve it, whatever its labels say.
		for _, m := range u.GetManagedFields() {
			if m.Manager == FieldManager && m.Subresource == "status" {
				out.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: m.Manager, Subresource: m.Subresource}})
			}
		}
		return out, nil
	}
	if revision, ok := u.GetLabels()[mesh.RevisionLabel]; ok {
		out.SetLabels(map[string]string{mesh.RevisionLabel: revision})
	}
	return out, nil
}
