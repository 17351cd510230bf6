// Package managed follows whether a remote cluster leaves its webhooks and roots to this control plane.
//
// The cluster says so itself, by an annotation of the control plane's namespace there, since another control plane may
// run in it, and two that write the same objects would write against each other. A cluster that cannot be read keeps
// the last answer; the first is no. [control-plane 1.16.7]
package managed

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Annotation has the IDs of the clusters of control planes, with commas in between; * stands for every one.
const Annotation = "topology.istio.io/controlPlaneClusters"

// names reports whether an annotation names a cluster.
func names(annotation, cluster string) bool {
	return slices.ContainsFunc(strings.Split(annotation, ","), func(s string) bool {
		s = strings.TrimSpace(s)
		return s == "*" || s == cluster && s != ""
	})
}

// Options say what is followed.
type Options struct {
	// Config is how to connect to the remote cluster. It is not changed.
	Config *rest.Config
	// Namespace is that of the control plane, Cluster the ID of its own cluster.
	Namespace, Cluster string
	Log                *slog.Logger
}

// Follow calls report whenever the answer has changed, until ctx ends, and then returns nil. Calls come one after the
// other. It needs list and watch of namespaces.
func Follow(ctx context.Context, o Options, report func(managed bool)) error {
	client, err := typed.NewForConfig(o.Config)
	if err != nil {
		return fmt.Errorf("connect to Kubernetes: %w", err)
	}
	of := cache.NewListWatchFromClient(client.RESTClient(), "namespaces", metav1.NamespaceAll, fields.OneTermEqualSelector("metadata.name", o.Namespace))
	i := cache.NewSharedIndexInformer(of, &corev1.Namespace{}, 0, cache.Indexers{})
	last := false
	tell := func(now bool) {
		if now != last {
			last = now
			report(now)
		}
	}
	put := func(x any) {
		if ns, ok := x.(*corev1.Namespace); ok {
			tell(names(ns.Annotations[Annotation], o.Cluster))
		}
	}
	_, _ = i.AddEventHandler(cache.ResourceEventHandlerFuncs{ // fails only for an informer that has ended
		AddFunc: put, UpdateFunc: func(_, x any) { put(x) }, DeleteFunc: func(any) { tell(false) },
	})
	_ = i.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) { // fails only for one that runs
		o.Log.Debug("the control plane's namespace in a remote cluster cannot be watched", "error", err)
	})
	i.RunWithContext(klog.NewContext(ctx, klog.Logger{}))
	return nil
}
