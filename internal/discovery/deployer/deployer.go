// Package deployer keeps what runs the Gateways of the Gateway API in a cluster.
//
// What that is, package deploy says. It is written by server-side apply, when the Gateway changes and when somebody has changed or deleted it, and goes with the Gateway, which
// owns it. An object of the same name that another owner has is never touched. One replica of each revision is to run it: the Gateways
// with the label istio.io/rev are those of that revision, all others the shared leader's. It also makes the GatewayClass istio where the
// Gateway API is installed. [control-plane 1.11.7]
package deployer

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/deploy"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/run"
)

const (
	// class is the GatewayClass that is made.
	class = "istio"
	// requestsPerSecond bounds the requests that write, requestTimeout each of them.
	requestsPerSecond = 20
	requestTimeout    = 10 * time.Second
	// minPause and maxRetry are the pauses after a write that has failed.
	minPause, maxRetry = 200 * time.Millisecond, time.Minute
	// again is how often what is not watched is looked at: the ConfigMaps of parameters, and whether the class exists.
	again = 15 * time.Second
)

// Options configure a Controller.
type Options struct {
	// Config is how to connect to the API server. It is not changed.
	Config *rest.Config
	// Revision is that of this control plane.
	Revision string
	// Writes reports whether this replica is to care for an object with these labels, now.
	Writes func(labels map[string]string) bool
	// Only is the one namespace of Gateways; empty for all.
	Only string
	Log  *slog.Logger
}

// Controller writes the objects. Create one with New.
type Controller struct {
	options           Options
	watching, writing dynamic.Interface

	mu       sync.Mutex // guards the objects
	gateways map[object.Key]deploy.Gateway
	classes  map[string]string // the controllers' names
	sets     map[object.Key]*object.Object
	spaces   map[string]map[string]string // the labels of namespaces
	// changed has an element when they have changed; open is closed when they are complete.
	changed, open chan struct{}
	opening       sync.Once

	writes, failures atomic.Int64
}

// New returns a Controller. It sends no request.
func New(o Options) (*Controller, error) {
	c := &Controller{
		options: o, gateways: map[object.Key]deploy.Gateway{}, classes: map[string]string{},
		sets: map[object.Key]*object.Object{}, spaces: map[string]map[string]string{},
		changed: make(chan struct{}, 1), open: make(chan struct{}),
	}
	watching, writing := rest.CopyConfig(o.Config), rest.CopyConfig(o.Config)
	writing.QPS, writing.Burst, writing.RateLimiter, writing.Timeout = requestsPerSecond, requestsPerSecond, nil, requestTimeout
	var err error
	if c.watching, err = dynamic.NewForConfig(watching); err == nil {
		c.writing, err = dynamic.NewForConfig(writing)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return c, nil
}

// Apply notes a change of an object in force. It is safe for concurrent use and does not block.
func (c *Controller) Apply(change object.Change) {
	if change.Key.Cluster != "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch k, o := change.Key, change.Object; k.Kind {
	case object.GatewayClass:
		put(c.classes, k.Name, o, func() string { return string(o.Spec.(*gatewayv1.GatewayClassSpec).ControllerName) })
	case object.KubernetesGateway:
		put(c.gateways, k, o, func() deploy.Gateway {
			return deploy.Gateway{Key: o.Key, UID: o.Meta.UID, Labels: o.Meta.Labels, Annotations: o.Meta.Annotations, Spec: o.Spec.(*gatewayv1.GatewaySpec)}
		})
	case object.ListenerSet:
		put(c.sets, k, o, func() *object.Object { return o })
	case object.Namespace:
		put(c.spaces, k.Name, o, func() map[string]string { return o.Meta.Labels })
	default:
		return
	}
	c.Look()
}

// put stores what an object says, or removes it if there is no object any more.
func put[K comparable, V any](in map[K]V, k K, o *object.Object, of func() V) {
	if o == nil {
		delete(in, k)
		return
	}
	in[k] = of()
}

// Look has all Gateways looked at again, as after a change of what Options.Writes says. It is safe for concurrent use and does not block.
func (c *Controller) Look() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Made reports whether a ServiceAccount is one that is made for a Gateway of its namespace, and not one that a Gateway names. It is safe for
// concurrent use.
func (c *Controller) Made(namespace, account string) bool {
	if account == "" {
		return false // deploy.OwnAccount says that of accounts that users have named
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range c.gateways {
		if g.Namespace == namespace && deploy.OwnAccount(g) == account && c.serves(g) {
			return true
		}
	}
	return false
}

// serves reports whether what runs a Gateway is made. Callers hold c.mu.
func (c *Controller) serves(g deploy.Gateway) bool {
	if g.UID == "" || !deploy.Managed(g.Spec) || c.options.Only != "" && g.Namespace != c.options.Only {
		return false
	}
	of, exists := c.classes[string(g.Spec.GatewayClassName)]
	return of == mesh.GatewayController || !exists && string(g.Spec.GatewayClassName) == class
}

// Open says that the objects are complete. Nothing is written before.
func (c *Controller) Open() { c.opening.Do(func() { close(c.open) }) }

// Metrics are counters of a Controller.
type Metrics struct{ Writes, Failures int64 }

// Metrics returns the counters. It is safe for concurrent use.
func (c *Controller) Metrics() Metrics {
	return Metrics{Writes: c.writes.Load(), Failures: c.failures.Load()}
}

// wanted returns a Gateway that this replica cares for; false if it has nothing to do for it.
func (c *Controller) wanted(k object.Key) (deploy.Gateway, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g, exists := c.gateways[k]
	if exists {
		g.Sets = deploy.ListenersOf(g, slices.Collect(maps.Values(c.sets)), func(namespace string) map[string]string { return c.spaces[namespace] })
	}
	return g, exists && c.serves(g) && c.options.Writes(g.Labels)
}

func (c *Controller) keys() []object.Key {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.gateways))
}

// resources are those that are watched, so that what somebody changes is restored.
var resources = []schema.GroupVersionResource{
	{Group: "apps", Version: "v1", Resource: "deployments"}, {Version: "v1", Resource: "services"}, {Version: "v1", Resource: "serviceaccounts"},
}

// term is one run of the controller.
type term struct {
	*Controller
	queue workqueue.TypedRateLimitingInterface[object.Key]

	mu sync.Mutex // guards the rest
	// applied are the hashes of what was written for each Gateway; none if it has to be written again.
	applied map[object.Key][sha256.Size]byte
	told    map[string]string
}

// plainList has objects listed by a request and then watched: see package rootconfigmap.
type plainList struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported has client-go choose the way.
func (plainList) IsWatchListSemanticsUnSupported() bool { return true }

// Run writes until ctx ends, then returns nil. It may be called again then, but not while it runs.
func (c *Controller) Run(ctx context.Context) error {
	select {
	case <-c.open:
	case <-ctx.Done():
		return nil
	}
	t := &term{
		Controller: c, applied: map[object.Key][sha256.Size]byte{}, told: map[string]string{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[object.Key](minPause, maxRetry)),
	}
	tasks := []run.Task{{Name: "follow Gateways", Run: t.follow}, {Name: "deploy gateways", Run: t.work}}
	for _, r := range resources {
		informer, err := t.informer(r)
		if err != nil {
			return err
		}
		tasks = append(tasks, run.Task{Name: "watch " + r.Resource, Run: func(ctx context.Context) error {
			informer.RunWithContext(klog.NewContext(ctx, klog.Logger{})) // the library's own messages repeat what is logged here
			return nil
		}})
	}
	return run.Group(ctx, tasks...)
}

// informer watches what was made of a resource, and has that written again which somebody else changes.
func (t *term) informer(r schema.GroupVersionResource) (cache.SharedIndexInformer, error) {
	selector := deploy.ManagedLabel + "=" + deploy.ManagedValue
	client := t.watching.Resource(r).Namespace(t.options.Only)
	informer := cache.NewSharedIndexInformer(plainList{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = selector
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selector
			return client.Watch(ctx, o)
		},
	}}, &unstructured.Unstructured{}, 0, cache.Indexers{})
	trim := func(obj any) (any, error) {
		if o, ok := obj.(*unstructured.Unstructured); ok {
			delete(o.Object, "status")
			o.SetManagedFields(nil)
		}
		return obj, nil
	}
	failed := func(ctx context.Context, _ *cache.Reflector, err error) {
		if ctx.Err() == nil {
			t.tell("watch "+r.Resource, "what runs Gateways is not restored: a watch fails", err, "of", r.Resource)
		}
	}
	if err := informer.SetTransform(trim); err != nil {
		return nil, err
	}
	if err := informer.SetWatchErrorHandlerWithContext(failed); err != nil {
		return nil, err
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, after any) {
			if !sameObject(before, after) {
				t.restore(after)
			}
		},
		DeleteFunc: t.restore,
	})
	return informer, err
}

// sameObject reports whether two versions of an object say the same.
func sameObject(before, after any) bool {
	a, okA := before.(*unstructured.Unstructured)
	b, okB := after.(*unstructured.Unstructured)
	if !okA || !okB {
		return false
	}
	text := func(o *unstructured.Unstructured) string {
		out, _ := json.Marshal([]any{o.Object["spec"], o.GetLabels(), notes(o), o.GetOwnerReferences()})
		return string(out)
	}
	return text(a) == text(b)
}

// notes are an object's annotations but for that which the controller manager writes.
func notes(o *unstructured.Unstructured) map[string]string {
	out := maps.Clone(o.GetAnnotations())
	delete(out, "deployment.kubernetes.io/revision")
	if len(out) == 0 {
		return nil
	}
	return out
}

// restore has a Gateway written again whose object has changed.
func (t *term) restore(obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	o, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return
	}
	for _, owner := range o.GetOwnerReferences() {
		if owner.Kind == "Gateway" {
			k := object.Key{Kind: object.KubernetesGateway, Namespace: o.GetNamespace(), Name: owner.Name}
			t.mu.Lock()
			delete(t.applied, k)
			t.mu.Unlock()
			t.queue.Add(k)
		}
	}
}

// tell logs a warning unless the same was logged of the topic last.
func (t *term) tell(topic, text string, err error, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.told[topic] != err.Error() {
		t.told[topic] = err.Error()
		t.options.Log.Warn(text, append(args, "error", err)...)
	}
}

func (t *term) untell(topic string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.told, topic)
}

// follow queues the Gateways when they or the classes change, and now and then.
func (t *term) follow(ctx context.Context) error {
	tick := time.NewTicker(again)
	defer tick.Stop()
	for {
		if err := t.makeClass(ctx); err != nil && ctx.Err() == nil {
			t.tell("class", "the GatewayClass cannot be made: trying again", err, "class", class)
		}
		for _, k := range t.keys() {
			t.queue.Add(k)
		}
		select {
		case <-t.changed:
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// makeClass makes the GatewayClass istio, if the Gateway API is installed and it does not exist.
func (t *term) makeClass(ctx context.Context) error {
	t.Controller.mu.Lock()
	_, exists := t.classes[class]
	t.Controller.mu.Unlock()
	if exists || !t.options.Writes(nil) {
		return nil
	}
	client := t.writing.Resource(schema.GroupVersionResource{Group: gatewayv1.GroupName, Version: "v1", Resource: "gatewayclasses"})
	_, err := client.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": gatewayv1.GroupVersion.String(), "kind": "GatewayClass", "metadata": map[string]any{"name": class},
		"spec": map[string]any{"controllerName": mesh.GatewayController, "description": "Gateways that run as Deployments of Envoy"},
	}}, metav1.CreateOptions{FieldManager: deploy.ManagedValue})
	if apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) { // or there is no such kind
		return nil
	}
	return err
}

// work handles the queue until ctx ends.
func (t *term) work(ctx context.Context) error {
	defer context.AfterFunc(ctx, t.queue.ShutDown)()
	for {
		k, stopped := t.queue.Get()
		if stopped || ctx.Err() != nil {
			return nil
		}
		topic := k.String()
		if err := t.reconcile(ctx, k); err != nil && ctx.Err() == nil {
			t.failures.Add(1)
			t.tell(topic, "what runs a Gateway cannot be written: trying again", err, "namespace", k.Namespace, "gateway", k.Name)
			t.queue.AddRateLimited(k)
		} else {
			t.untell(topic)
			t.queue.Forget(k)
		}
		t.queue.Done(k)
	}
}

// reconcile writes what runs a Gateway if it differs from what was written last.
func (t *term) reconcile(ctx context.Context, k object.Key) error {
	g, wanted := t.wanted(k)
	if !wanted {
		t.mu.Lock()
		delete(t.applied, k)
		t.mu.Unlock()
		return nil
	}
	parameters, err := t.parameters(ctx, g)
	if err != nil {
		return err
	}
	all, err := deploy.Plan(g, t.options.Revision, parameters)
	if err != nil {
		return err
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	hash := sha256.Sum256(text)
	t.mu.Lock()
	same := t.applied[k] == hash
	// Noted before it is written: what changes meanwhile has it written again.
	t.applied[k] = hash
	t.mu.Unlock()
	if same {
		return nil
	}
	for _, o := range all {
		if err := t.write(ctx, g, o); err != nil {
			t.mu.Lock()
			delete(t.applied, k)
			t.mu.Unlock()
			return err
		}
	}
	return nil
}

// parameters returns the data of the ConfigMap that a Gateway names; nil for none.
func (t *term) parameters(ctx context.Context, g deploy.Gateway) (map[string]string, error) {
	name, err := deploy.Parameters(g.Spec)
	if name == "" || err != nil {
		return nil, err
	}
	m, err := t.writing.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(g.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("spec.infrastructure.parametersRef: %w", err)
	}
	data, _, err := unstructured.NestedStringMap(m.Object, "data")
	if err != nil {
		return nil, fmt.Errorf("ConfigMap %s: %w", name, err)
	}
	return data, nil
}

// write applies one object, unless somebody else's has its name.
func (t *term) write(ctx context.Context, g deploy.Gateway, o deploy.Object) error {
	client := t.writing.Resource(schema.GroupVersionResource{Group: o.Group, Version: o.Version, Resource: o.Resource}).Namespace(g.Namespace)
	old, err := client.Get(ctx, o.Name(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return err
	case !ownedBy(old, g.UID):
		return fmt.Errorf("%s %s exists and does not belong to the Gateway: delete it, or name the Service of your own Pods in spec.addresses, or give the Gateway another name", o.Resource, o.Name())
	}
	_, err = client.Apply(ctx, o.Name(), &unstructured.Unstructured{Object: o.Value}, metav1.ApplyOptions{FieldManager: mesh.GatewayController, Force: true})
	if apierrors.HasStatusCause(err, "NamespaceTerminating") {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", o.Resource, o.Name(), err)
	}
	t.writes.Add(1)
	return nil
}

func ownedBy(o *unstructured.Unstructured, uid string) bool {
	return slices.ContainsFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return string(r.UID) == uid })
}
