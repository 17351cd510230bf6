package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
)

const (
	// pageSize is the number of objects in one response to a list, which is decoded before the next one is asked for.
	pageSize = 500
	// answerTimeout is how long a response to a list may take, and how long a watch may take to begin.
	answerTimeout = 90 * time.Second
)

// knownTypes are the types of Kubernetes' own kinds that are read.
var knownTypes = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme, metav1.AddMetaToScheme} {
		utilruntime.Must(add(s))
	}
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	return s
}()

// client reads lists and watches of one API server. All its requests share one limit of requests per second.
type client struct {
	typed rest.Interface // Kubernetes' own kinds, as protobuf if the server has it
	raw   rest.Interface // other kinds, as JSON text
}

func newClient(config *rest.Config) (*client, error) {
	raw := rest.CopyConfig(config)
	raw.NegotiatedSerializer, raw.AcceptContentTypes, raw.ContentType = rawSerializer{}, "application/json", "application/json"
	raw.WarningHandler = rest.NoWarnings{}
	if raw.RateLimiter == nil && raw.QPS > 0 {
		raw.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(raw.QPS, raw.Burst)
	}
	typed := rest.CopyConfig(raw)
	typed.NegotiatedSerializer = serializer.NewCodecFactory(knownTypes).WithoutConversion()
	typed.AcceptContentTypes, typed.ContentType = "application/vnd.kubernetes.protobuf,application/json", "application/vnd.kubernetes.protobuf"
	c := &client{}
	shared, err := rest.HTTPClientFor(raw)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	if c.raw, err = rest.UnversionedRESTClientForConfigAndClient(raw, shared); err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	if c.typed, err = rest.UnversionedRESTClientForConfigAndClient(typed, shared); err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	return c, nil
}

// collection is what is listed and watched.
type collection struct {
	path   string // of the API
	field  string // a field selector; empty for none
	label  string // a label selector; empty for none
	typed  bool
	accept string // an Accept header; empty for the client's own
	// item converts an object: of a known type, or a *rawObject.
	item func(runtime.Object) *item
	// seen is told how reading goes, from the goroutine of the reflector.
	seen func(contact)
}

// contact is what a request for a collection has met.
type contact struct {
	err   error // nil if it succeeded
	watch bool  // a watch is open
	ended bool  // a watch has ended
}

// item is one object of a collection, decoded. It has the metadata that a reflector needs.
type item struct {
	metav1.ObjectMeta
	entry entry
	// secret is the data of a Secret, which is not to be logged.
	secret map[string][]byte
}

// GetObjectKind implements runtime.Object.
func (*item) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. Items are not modified.
func (i *item) DeepCopyObject() runtime.Object { c := *i; return &c }

// items is one page of a list.
type items struct {
	metav1.ListMeta
	Items []runtime.Object
}

// GetObjectKind implements runtime.Object.
func (*items) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. Items are not modified.
func (l *items) DeepCopyObject() runtime.Object { c := *l; return &c }

// listWatch returns how a reflector reads a collection.
func (c *client) listWatch(of collection) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			l, err := c.list(ctx, of, o)
			if err != nil {
				of.seen(contact{err: err})
				return nil, err
			}
			return l, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := c.watch(ctx, of, o)
			if err != nil {
				if o.SendInitialEvents == nil || !unsupported(err) {
					of.seen(contact{err: err})
				}
				return nil, err
			}
			of.seen(contact{watch: true})
			return newWatcher(w, of), nil
		},
	}
}

// unsupported reports whether the server does not know how to begin a watch with a list, so that the list is read
// on its own.
func unsupported(err error) bool { return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) }

func (c *client) request(of collection, o metav1.ListOptions) *rest.Request {
	r := c.raw.Get()
	if of.typed {
		r = c.typed.Get()
	}
	if of.accept != "" {
		r = r.SetHeader("Accept", of.accept)
	}
	o.FieldSelector, o.LabelSelector = of.field, of.label
	return r.AbsPath(of.path).VersionedParams(&o, metav1.ParameterCodec)
}

// list reads one page.
func (c *client) list(ctx context.Context, of collection, o metav1.ListOptions) (*items, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	if o.ResourceVersion == "0" {
		o.ResourceVersion = "" // a list of version 0 may be older than what an earlier process has read, and has one page
	}
	result := c.request(of, o).Do(ctx)
	out := &items{}
	if !of.typed {
		text, err := result.Raw()
		if err != nil {
			return nil, err
		}
		var page struct {
			Metadata metav1.ListMeta   `json:"metadata"`
			Items    []json.RawMessage `json:"items"`
		}
		if err := json.Unmarshal(text, &page); err != nil {
			return nil, fmt.Errorf("decode the list at %s: %w", of.path, err)
		}
		out.ListMeta = page.Metadata
		for _, text := range page.Items {
			raw, err := newRawObject(text)
			if err != nil {
				return nil, fmt.Errorf("decode the list at %s: %w", of.path, err)
			}
			out.Items = append(out.Items, of.item(raw))
		}
		return out, nil
	}
	l, err := result.Get()
	if err != nil {
		return nil, err
	}
	of.metaOf(l, out)
	err = meta.EachListItem(l, func(o runtime.Object) error {
		out.Items = append(out.Items, of.item(o))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("decode the list at %s: %w", of.path, err)
	}
	return out, nil
}

func (collection) metaOf(l runtime.Object, out *items) {
	if m, err := meta.ListAccessor(l); err == nil {
		out.ResourceVersion, out.Continue, out.RemainingItemCount = m.GetResourceVersion(), m.GetContinue(), m.GetRemainingItemCount()
	}
}

// watch begins a watch. The server has answerTimeout to respond.
func (c *client) watch(ctx context.Context, of collection, o metav1.ListOptions) (watch.Interface, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(answerTimeout, func() {
		cancel(fmt.Errorf("watch %s: no response within %s", of.path, answerTimeout))
	})
	o.Watch = true
	w, err := c.request(of, o).Watch(ctx)
	if !late.Stop() {
		if w != nil {
			w.Stop()
		}
		return nil, context.Cause(ctx)
	}
	// client-go hides a connection that was closed without a response: it returns a watch without events. It is no proof that
	// anything is read.
	if _, open := w.(*watch.StreamWatcher); err == nil && !open {
		err = errClosed
	}
	if err != nil {
		cancel(nil)
		return nil, err
	}
	return &canceled{w, func() { cancel(nil) }}, nil
}

// errClosed is why there is no watch where a connection was accepted by something else than the API server, such as a load balancer
// before one that is away.
var errClosed = errors.New("the connection was closed without a response")

// canceled is a watch that ends the context of its request when it is stopped.
type canceled struct {
	watch.Interface
	cancel func()
}

// Stop ends the watch.
func (c *canceled) Stop() {
	c.Interface.Stop()
	c.cancel()
}

// watcher converts the objects of a watch.
type watcher struct {
	from watch.Interface
	to   chan watch.Event
	stop chan struct{}
	once sync.Once
}

func newWatcher(from watch.Interface, of collection) *watcher {
	w := &watcher{from: from, to: make(chan watch.Event), stop: make(chan struct{})}
	go w.run(of)
	return w
}

// ResultChan returns the events, which end when the watch does.
func (w *watcher) ResultChan() <-chan watch.Event { return w.to }

// Stop ends the watch.
func (w *watcher) Stop() {
	w.once.Do(func() {
		close(w.stop)
		w.from.Stop()
	})
}

func (w *watcher) run(of collection) {
	defer close(w.to)
	defer w.from.Stop()
	told := false
	for e := range w.from.ResultChan() {
		switch e.Type {
		case watch.Error:
			told = true
			of.seen(contact{err: apierrors.FromObject(e.Object), ended: true})
		default:
			i := of.item(e.Object)
			if m, err := meta.Accessor(e.Object); err == nil && e.Type == watch.Bookmark {
				i = &item{ObjectMeta: metav1.ObjectMeta{ResourceVersion: m.GetResourceVersion(), Annotations: m.GetAnnotations()}}
			}
			e.Object = i
		}
		select {
		case w.to <- e:
		case <-w.stop:
			return
		}
	}
	select {
	case <-w.stop: // the next watch may be open already
	default:
		if !told {
			of.seen(contact{ended: true})
		}
	}
}

// rawObject is an object as JSON text.
type rawObject struct {
	metav1.ObjectMeta
	text []byte
}

func newRawObject(text []byte) (*rawObject, error) {
	var head struct {
		Metadata struct {
			Name            string            `json:"name"`
			Namespace       string            `json:"namespace"`
			ResourceVersion string            `json:"resourceVersion"`
			Generation      int64             `json:"generation"`
			Annotations     map[string]string `json:"annotations"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return nil, err
	}
	m := head.Metadata
	return &rawObject{ObjectMeta: metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, ResourceVersion: m.ResourceVersion, Generation: m.Generation, Annotations: m.Annotations}, text: text}, nil
}

// GetObjectKind implements runtime.Object.
func (*rawObject) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. The text is not modified.
func (o *rawObject) DeepCopyObject() runtime.Object { c := *o; return &c }

// rawSerializer decodes objects to rawObjects, and nothing else but the server's statuses.
type rawSerializer struct{}

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (rawSerializer) SupportedMediaTypes() []runtime.SerializerInfo {
	events := jsonserializer.NewSerializerWithOptions(jsonserializer.DefaultMetaFactory, knownTypes, knownTypes, jsonserializer.SerializerOptions{})
	return []runtime.SerializerInfo{{
		MediaType: "application/json", MediaTypeType: "application", MediaTypeSubType: "json", EncodesAsText: true, Serializer: rawCodec{},
		StreamSerializer: &runtime.StreamSerializerInfo{EncodesAsText: true, Serializer: events, Framer: jsonserializer.Framer},
	}}
}

// EncoderForVersion implements runtime.NegotiatedSerializer.
func (rawSerializer) EncoderForVersion(e runtime.Encoder, _ runtime.GroupVersioner) runtime.Encoder {
	return e
}

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (rawSerializer) DecoderToVersion(d runtime.Decoder, _ runtime.GroupVersioner) runtime.Decoder {
	return d
}

type rawCodec struct{}

// Decode implements runtime.Decoder. It keeps data.
func (rawCodec) Decode(data []byte, _ *schema.GroupVersionKind, _ runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	var head metav1.TypeMeta
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, nil, err
	}
	gvk := head.GroupVersionKind()
	if head.Kind == "Status" && head.APIVersion == "v1" {
		s := &metav1.Status{}
		return s, &gvk, json.Unmarshal(data, s)
	}
	o, err := newRawObject(data)
	return o, &gvk, err
}

// Encode implements runtime.Encoder. Nothing is sent.
func (rawCodec) Encode(runtime.Object, io.Writer) error {
	return errors.New("encode: objects are only read")
}

// Identifier implements runtime.Encoder.
func (rawCodec) Identifier() runtime.Identifier { return "raw" }
