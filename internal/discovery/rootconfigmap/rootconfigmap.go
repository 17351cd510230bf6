// Package rootconfigmap keeps the roots that the mesh trusts in a ConfigMap of every namespace.
//
// Pods mount it to verify the control plane. It is created in new namespaces, restored when it was edited or
// deleted, and written only if it differs, at most 20 times a second; where somebody else changes it again and
// again, at growing intervals of up to 5 minutes. Nothing is ever removed, and while the API server cannot be reached
// nothing changes. One replica is to run it: others would write the same.
package rootconfigmap

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/pilothouse/pilothouse/internal/run"
)

const (
	// DefaultName is the ConfigMap's name, as in Istio.
	DefaultName = "istio-ca-root-cert"
	// writesPerSecond bounds the requests that write.
	writesPerSecond = 20
	// requestTimeout bounds each of them.
	requestTimeout = 10 * time.Second
	// tellAfter is after how many restorations in a row the log says that somebody else writes, too.
	tellAfter = 3
	// minPause and maxRetry are the pauses after a write that has failed.
	minPause = 100 * time.Millisecond
	maxRetry = time.Minute
)

// Options configure a Controller.
type Options struct {
	// Config is how to connect to the API server. It is not changed.
	Config *rest.Config
	// Name is the ConfigMap's name; empty for DefaultName.
	Name string
	// Roots returns the roots in PEM, and a channel that is closed when there are others.
	Roots func() (pem string, changed <-chan struct{})
	Log   *slog.Logger
}

// Controller writes the ConfigMaps. Create one with New.
type Controller struct {
	options   Options
	watching  typed.CoreV1Interface
	writing   typed.CoreV1Interface
	selectors atomic.Pointer[[]labels.Selector]
	// selected has an element when the selectors have changed, known is closed when they have been set.
	selected, known chan struct{}
	first           sync.Once

	writes, failures atomic.Int64
}

// New returns a Controller. It sends no request.
func New(o Options) (*Controller, error) {
	if o.Name == "" {
		o.Name = DefaultName
	}
	c := &Controller{options: o, selected: make(chan struct{}, 1), known: make(chan struct{})}
	watching, writing := rest.CopyConfig(o.Config), rest.CopyConfig(o.Config)
	writing.QPS, writing.Burst, writing.RateLimiter, writing.Timeout = writesPerSecond, writesPerSecond, nil, requestTimeout
	var err error
	if c.watching, err = typed.NewForConfig(watching); err == nil {
		c.writing, err = typed.NewForConfig(writing)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return c, nil
}

// Select restricts the namespaces to those that match one of the selectors; without any, all count. ConfigMaps
// in others stay as they are. Nothing is written before the first call. It is safe for concurrent use.
func (c *Controller) Select(selectors []labels.Selector) {
	c.selectors.Store(&selectors)
	c.first.Do(func() { close(c.known) })
	select {
	case c.selected <- struct{}{}:
	default:
	}
}

// Metrics are counters of a Controller.
type Metrics struct{ Writes, Failures int64 }

// Metrics returns the counters. It is safe for concurrent use.
func (c *Controller) Metrics() Metrics {
	return Metrics{Writes: c.writes.Load(), Failures: c.failures.Load()}
}

// term is one run of the controller.
type term struct {
	*Controller
	namespaces, maps cache.SharedIndexInformer
	queue            workqueue.TypedRateLimitingInterface[string]
	pace             pace // used by the worker only

	mu   sync.Mutex // guards told
	told map[string]bool
}

// plainList has objects listed by a request and then watched. The other way, a list by a watch, has pauses of up to 30 s in
// client-go that the end of the context does not end.
type plainList struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported has client-go choose the way.
func (plainList) IsWatchListSemanticsUnSupported() bool { return true }

// Run writes until ctx ends, then returns nil. It may be called again then, but not while it runs.
func (c *Controller) Run(ctx context.Context) error {
	t := &term{
		Controller: c, told: map[string]bool{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](minPause, maxRetry)),
	}
	rc := c.watching.RESTClient()
	t.namespaces = cache.NewSharedIndexInformer(plainList{cache.NewListWatchFromClient(rc, "namespaces", metav1.NamespaceAll, fields.Everything())}, &corev1.Namespace{}, 0, cache.Indexers{})
	t.maps = cache.NewSharedIndexInformer(plainList{cache.NewListWatchFromClient(rc, "configmaps", metav1.NamespaceAll, fields.OneTermEqualSelector(metav1.ObjectNameField, c.options.Name))}, &corev1.ConfigMap{}, 0, cache.Indexers{})
	tasks := []run.Task{
		{Name: "write root ConfigMaps", Run: t.work},
		{Name: "follow the roots", Run: t.follow},
	}
	for what, informer := range map[string]cache.SharedIndexInformer{"namespaces": t.namespaces, "configmaps": t.maps} {
		if err := t.prepare(what, informer); err != nil {
			return err
		}
		tasks = append(tasks, run.Task{Name: "watch " + what, Run: func(ctx context.Context) error {
			informer.RunWithContext(klog.NewContext(ctx, klog.Logger{})) // the library's own messages repeat what is logged here
			return nil
		}})
	}
	return run.Group(ctx, tasks...)
}

// prepare has the objects of an informer trimmed and their namespaces queued.
func (t *term) prepare(what string, informer cache.SharedIndexInformer) error {
	trim := func(obj any) (any, error) {
		if o, err := meta.Accessor(obj); err == nil {
			o.SetManagedFields(nil)
		}
		if ns, ok := obj.(*corev1.Namespace); ok {
			ns.Annotations = nil
		}
		return obj, nil
	}
	failed := func(ctx context.Context, _ *cache.Reflector, err error) {
		if ctx.Err() == nil {
			t.tell("watch "+what, "the root ConfigMaps are not kept: a watch fails", "of", what, "error", err)
		}
	}
	enqueue := func(obj any) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		t.untell("watch " + what)
		switch o := obj.(type) {
		case *corev1.Namespace:
			t.queue.Add(o.Name)
		case *corev1.ConfigMap:
			t.queue.Add(o.Namespace)
		}
	}
	if err := informer.SetTransform(trim); err != nil {
		return err
	}
	if err := informer.SetWatchErrorHandlerWithContext(failed); err != nil {
		return err
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: enqueue, UpdateFunc: func(_, obj any) { enqueue(obj) }, DeleteFunc: enqueue})
	return err
}

// tell logs a warning unless the same topic was logged and has not been mended since.
func (t *term) tell(topic, text string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.told[topic] {
		t.told[topic] = true
		t.options.Log.Warn(text, args...)
	}
}

func (t *term) untell(topic string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.told, topic)
}

// follow queues all namespaces when the roots or the selectors have changed.
func (t *term) follow(ctx context.Context) error {
	for {
		_, changed := t.options.Roots()
		for _, name := range t.namespaces.GetStore().ListKeys() {
			t.queue.Add(name)
		}
		select {
		case <-changed:
		case <-t.selected:
		case <-ctx.Done():
			return nil
		}
	}
}

// work handles the queue until ctx ends. Nothing is written before all objects have been read, and the selectors are known.
func (t *term) work(ctx context.Context) error {
	defer context.AfterFunc(ctx, t.queue.ShutDown)()
	select {
	case <-t.known:
	case <-ctx.Done():
		return nil
	}
	if !cache.WaitForCacheSync(ctx.Done(), t.namespaces.HasSynced, t.maps.HasSynced) {
		return nil
	}
	for {
		namespace, stopped := t.queue.Get()
		if stopped || ctx.Err() != nil {
			return nil
		}
		if err := t.reconcile(ctx, namespace); err != nil && ctx.Err() == nil {
			t.failures.Add(1)
			t.tell(namespace, "the root ConfigMap cannot be written: trying again", "namespace", namespace, "configmap", t.options.Name, "error", err)
			t.queue.AddRateLimited(namespace)
		} else {
			t.untell(namespace)
			t.queue.Forget(namespace)
		}
		t.queue.Done(namespace)
	}
}

// reconcile writes the ConfigMap of a namespace if it differs.
func (t *term) reconcile(ctx context.Context, namespace string) error {
	obj, ok, err := t.namespaces.GetStore().GetByKey(namespace)
	if err != nil {
		return err
	}
	if !ok {
		t.pace.forget(namespace)
		return nil
	}
	if !wants(obj.(*corev1.Namespace), *t.selectors.Load()) {
		return nil
	}
	var old *corev1.ConfigMap
	if obj, ok, err = t.maps.GetStore().GetByKey(namespace + "/" + t.options.Name); err != nil {
		return err
	} else if ok {
		old = obj.(*corev1.ConfigMap)
	}
	roots, _ := t.options.Roots()
	next, differs := desired(old, namespace, t.options.Name, roots)
	if !differs {
		return nil
	}
	now := time.Now()
	if wait := t.pace.wait(namespace, roots, now); wait > 0 {
		t.queue.AddAfter(namespace, wait)
		return nil
	}
	if old == nil {
		_, err = t.writing.ConfigMaps(namespace).Create(ctx, next, metav1.CreateOptions{})
	} else {
		_, err = t.writing.ConfigMaps(namespace).Update(ctx, next, metav1.UpdateOptions{})
	}
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), old == nil && apierrors.IsNotFound(err):
		return nil // the namespace ends
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		t.queue.AddAfter(namespace, minPause) // the watch is behind
		return nil
	case err != nil:
		return err
	}
	t.writes.Add(1)
	if t.pace.wrote(namespace, roots, now) == tellAfter {
		t.options.Log.Warn("somebody else changes the root ConfigMap, which is restored at growing intervals", "namespace", namespace, "configmap", t.options.Name)
	}
	return nil
}
