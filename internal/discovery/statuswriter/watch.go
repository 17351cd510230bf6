package statuswriter

import (
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
)

// watched are the objects of a kind as the API server has them.
type watched struct {
	resource schema.GroupVersionResource
	informer cache.SharedIndexInformer
}

// stored returns an object; false while it has not been read, or does not exist.
func (w *watched) stored(key object.Key) (*unstructured.Unstructured, bool) {
	name := key.Name
	if key.Namespace != "" {
		name = key.Namespace + "/" + name
	}
	obj, ok, err := w.informer.GetStore().GetByKey(name)
	if err != nil || !ok {
		return nil, false
	}
	u, ok := obj.(*unstructured.Unstructured)
	return u, ok
}

// watch returns the objects of a kind, which it begins to watch at the first call; nil if they have no status. The
// error is of a kind that is not served, or of an API server that cannot be asked.
func (t *term) watch(ctx context.Context, kind object.Kind) (*watched, error) {
	if w, known := t.kinds[kind]; known {
		return w, nil
	}
	resource, found, err := t.find(ctx, kind)
	if err != nil {
		return nil, err
	}
	if !found {
		t.kinds[kind] = nil
		t.options.Log.Warn("objects of a kind have no status, which is not written: their definition has no subresource status", "kind", kind, "group", resource.Group)
		return nil, nil
	}
	w := &watched{resource: resource}
	w.informer = cache.NewSharedIndexInformer(t.list(resource, decode.ResourceOf(kind).Namespaced), &unstructured.Unstructured{}, 0, cache.Indexers{})
	if err := w.informer.SetTransform(trim); err != nil {
		return nil, err
	}
	enqueue := func(obj any) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		if u, ok := obj.(*unstructured.Unstructured); ok {
			t.queue.Add(decode.KeyOf(kind, u.GetNamespace(), u.GetName()))
		}
	}
	if _, err := w.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: enqueue, UpdateFunc: func(_, obj any) { enqueue(obj) }, DeleteFunc: enqueue}); err != nil {
		return nil, err
	}
	failing := false // of the goroutine of the watch
	err = w.informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		if ctx.Err() == nil && !failing {
			failing = true
			t.options.Log.Warn("statuses are not kept: a watch fails", "of", resource.GroupResource().String(), "error", err)
		}
	})
	if err != nil {
		return nil, err
	}
	t.watches.Go(func() { w.informer.RunWithContext(ctx) })
	t.kinds[kind] = w
	return w, nil
}

// find returns the version of a kind that is served, and whether its objects have statuses.
func (t *term) find(ctx context.Context, kind object.Kind) (schema.GroupVersionResource, bool, error) {
	r := decode.ResourceOf(kind)
	out := schema.GroupVersionResource{Group: r.Group, Resource: r.Name}
	err := apierrors.NewNotFound(out.GroupResource(), "")
	for _, version := range r.Versions {
		list, failed := t.discovery.ServerResourcesForGroupVersionWithContext(ctx, schema.GroupVersion{Group: r.Group, Version: version}.String())
		if apierrors.IsNotFound(failed) {
			continue
		}
		if failed != nil {
			return out, false, failed
		}
		serves := func(name string) bool {
			return slices.ContainsFunc(list.APIResources, func(a metav1.APIResource) bool { return a.Name == name })
		}
		if serves(r.Name) {
			out.Version = version
			return out, serves(r.Name + "/status"), nil
		}
	}
	return out, false, err
}

// plainList has objects listed by a request and then watched. The other way, a list by a watch, has pauses of up to 30 s in
// client-go that the end of the context does not end.
type plainList struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported has client-go choose the way.
func (plainList) IsWatchListSemanticsUnSupported() bool { return true }

// list returns how the objects of a resource are listed and watched.
func (t *term) list(r schema.GroupVersionResource, namespaced bool) cache.ListerWatcher {
	var of dynamic.ResourceInterface = t.watching.Resource(r)
	if namespaced {
		of = t.watching.Resource(r).Namespace(t.options.Only)
	}
	return plainList{&cache.ListWatch{
		ListWithContextFunc:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return of.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return of.Watch(ctx, o) },
	}}
}
