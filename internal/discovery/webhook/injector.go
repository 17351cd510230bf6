package webhook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	meshv1 "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/pilothouse/pilothouse/internal/discovery/inject"
)

// InjectorOptions are what a ClusterInjector needs.
type InjectorOptions struct {
	// Config says how to reach the API server.
	Config *rest.Config
	// Namespace is that of the control plane, whose ConfigMap istio-sidecar-injector, or
	// istio-sidecar-injector-REVISION, configures injection.
	Namespace, Revision string
	// Native says when the proxy is a native sidecar.
	Native inject.Native
	// Ready reports whether the mesh configuration and the ProxyConfig objects are those of the mesh, which they may
	// not be at the start.
	Ready func() bool
	Log   *slog.Logger
}

// ClusterInjector injects by the ConfigMap of the injector, the mesh configuration, ProxyConfig objects and the versions
// of the nodes' kubelets. It answers from the last state that was read, whether or not the API server can be reached. It is safe
// for concurrent use. It needs list and watch of that ConfigMap and of Nodes.
type ClusterInjector struct {
	opts   InjectorOptions
	client client.CoreV1Interface
	wake   chan struct{} // has an element if the configuration may have to be made again

	mesh    atomic.Pointer[meshv1.MeshConfig] // nil until it is known
	current atomic.Pointer[inject.Config]     // nil until all that it is made from is known
	nodes   atomic.Pointer[nodes]
	objects atomic.Pointer[inject.ProxyConfigs] // nil if there are none
	read    atomic.Bool                         // all of that has been read
	refused atomic.Bool                         // some of it may not be read
}

// nodes are the versions of kubelets.
type nodes struct {
	byName map[string]string
	all    []string // each once
}

// NewClusterInjector returns an injector that knows nothing yet.
func NewClusterInjector(o InjectorOptions) (*ClusterInjector, error) {
	c, err := client.NewForConfig(o.Config)
	if err != nil {
		return nil, fmt.Errorf("make a client for the injector: %w", err)
	}
	return &ClusterInjector{opts: o, client: c, wake: make(chan struct{}, 1)}, nil
}

// SetMesh has the mesh configuration in force, which must not be modified. It does not wait.
func (c *ClusterInjector) SetMesh(m *meshv1.MeshConfig) {
	c.mesh.Store(m)
	c.look()
}

// SetProxyConfigs has the ProxyConfig objects in force. It does not wait.
func (c *ClusterInjector) SetProxyConfigs(all *inject.ProxyConfigs) { c.objects.Store(all) }

// Pending returns why Pods are refused that could be injected a moment later: what is needed for it has not been read yet. It
// returns "" once that has been read, also if it is invalid, and if the API server does not allow it to be read.
func (c *ClusterInjector) Pending() string {
	if c == nil || c.read.Load() || c.refused.Load() {
		return ""
	}
	return "the configuration of the injector has not been read yet"
}

// look has Run look at what has changed.
func (c *ClusterInjector) look() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// configMapName is the name of the ConfigMap.
func (c *ClusterInjector) configMapName() string {
	if c.opts.Revision == "" || c.opts.Revision == "default" {
		return inject.ConfigMapName
	}
	return inject.ConfigMapName + "-" + c.opts.Revision
}

// Run follows the ConfigMap and the nodes until ctx ends, and then returns nil. Problems are logged; what was read
// before stays in force.
func (c *ClusterInjector) Run(ctx context.Context) error {
	r := c.client.RESTClient()
	maps := c.follow("the ConfigMap of the injector", &corev1.ConfigMap{}, func(_, _ any) bool { return true },
		cache.NewListWatchFromClient(r, "configmaps", c.opts.Namespace, fields.OneTermEqualSelector("metadata.name", c.configMapName())))
	kubelets := c.follow("Nodes", &corev1.Node{}, func(a, b any) bool { return kubelet(a) != kubelet(b) },
		cache.NewListWatchFromClient(r, "nodes", metav1.NamespaceAll, fields.Everything()))
	_ = kubelets.SetTransform(onlyKubelet) // fails only for an informer that runs
	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	watching.Go(func() { maps.RunWithContext(ctx) })
	watching.Go(func() { kubelets.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), maps.HasSynced, kubelets.HasSynced) {
		return nil
	}
	var last made
	for {
		c.nodes.Store(nodesIn(kubelets.GetStore()))
		if mesh := c.mesh.Load(); mesh != nil {
			last = c.renew(last, made{mesh, dataIn(maps.GetStore())})
			c.read.Store(true)
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// follow returns an informer that has Run look when an object has changed.
func (c *ClusterInjector) follow(what string, kind runtime.Object, differs func(a, b any) bool, lw cache.ListerWatcher) cache.SharedIndexInformer {
	i := cache.NewSharedIndexInformer(lw, kind, 0, cache.Indexers{})
	_, _ = i.AddEventHandler(cache.ResourceEventHandlerFuncs{ // fails only for an informer that has ended
		AddFunc: func(any) { c.look() }, DeleteFunc: func(any) { c.look() },
		UpdateFunc: func(a, b any) {
			if differs(a, b) {
				c.look()
			}
		},
	})
	var last string
	_ = i.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) { // fails only for one that runs
		if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
			c.refused.Store(true)
		}
		if text := err.Error(); text != last && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			c.opts.Log.Warn(what+" cannot be watched; what was read before stays in force", "error", err)
			last = text
		}
	})
	return i
}

// onlyKubelet drops what is not used of a Node.
func onlyKubelet(o any) (any, error) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	out := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, ResourceVersion: n.ResourceVersion}}
	out.Status.NodeInfo.KubeletVersion = n.Status.NodeInfo.KubeletVersion
	return out, nil
}

func kubelet(o any) string {
	if n, ok := o.(*corev1.Node); ok {
		return n.Status.NodeInfo.KubeletVersion
	}
	return ""
}

func nodesIn(s cache.Store) *nodes {
	out := &nodes{byName: map[string]string{}}
	for _, o := range s.List() {
		if n, ok := o.(*corev1.Node); ok {
			v := n.Status.NodeInfo.KubeletVersion
			if out.byName[n.Name] = v; v != "" && !slices.Contains(out.all, v) {
				out.all = append(out.all, v)
			}
		}
	}
	slices.Sort(out.all)
	return out
}

// injectorData are the keys of the ConfigMap; both are empty without one.
type injectorData struct{ config, values string }

func dataIn(s cache.Store) injectorData {
	for _, o := range s.List() {
		if m, ok := o.(*corev1.ConfigMap); ok {
			return injectorData{m.Data[inject.ConfigKey], m.Data[inject.ValuesKey]}
		}
	}
	return injectorData{}
}

// made is what a configuration was made from.
type made struct {
	mesh *meshv1.MeshConfig
	data injectorData
}

// renew makes the configuration if what it is made from has changed. If that is invalid, the one before stays in
// force.
func (c *ClusterInjector) renew(last, now made) made {
	if last == now {
		return now
	}
	config, err := inject.New(inject.Options{Config: now.data.config, Values: now.data.values, Mesh: now.mesh, Revision: c.opts.Revision, Native: c.opts.Native, Memo: &Memo{}})
	if err != nil {
		c.opts.Log.Error("configuration of the injector is invalid; the one before stays in force, if there is one", "configmap", c.opts.Namespace+"/"+c.configMapName(), "error", err)
		return now
	}
	c.current.Store(config)
	c.opts.Log.Info("configuration of the injector read", "configmap", c.opts.Namespace+"/"+c.configMapName(), "templates", config.Templates())
	return now
}

// TemplateTexts returns the texts of the templates in force, by name; false if the configuration has not been read.
func (c *ClusterInjector) TemplateTexts() (map[string]string, bool) {
	config := c.current.Load()
	if config == nil {
		return nil, false
	}
	return config.TemplateTexts(), true
}

// errNotRead is the reason for which Pods are not created before the configuration has been read: without it
// they would run outside of the mesh.
var errNotRead = errors.New("the configuration of the injector has not been read: try again, or see the log of pilot-discovery")

// Inject implements Injector. [control-plane 1.15.2]
func (c *ClusterInjector) Inject(p PodRequest) (Injection, error) {
	if p.Namespace == c.opts.Namespace && isControlPlane(p.Pod) {
		return Injection{Skipped: string(inject.ControlPlane), Message: "the Pod belongs to the control plane"}, nil
	}
	config, known := c.current.Load(), c.nodes.Load()
	if config == nil || known == nil || !c.opts.Ready() {
		return Injection{}, errNotRead
	}
	env, err := inject.ParsePath(p.Path)
	if err != nil {
		return Injection{}, err
	}
	r := inject.Request{Pod: p.Pod, Namespace: p.Namespace, Env: env, Kubelets: known.all, ProxyConfigs: c.objects.Load()}
	if v := known.byName[p.Pod.Spec.NodeName]; v != "" {
		r.Kubelets = []string{v}
	}
	d := config.Decide(r)
	var warnings []string
	if d.Warning != "" {
		warnings = append(warnings, d.Warning)
	}
	if !d.Inject {
		return Injection{Skipped: string(d.Reason), Message: d.Message, Warnings: warnings}, nil
	}
	out, err := config.Inject(r)
	if err != nil {
		return Injection{Warnings: warnings}, err
	}
	return Injection{Patch: out.Patch, Warnings: append(warnings, out.Warnings...)}, nil
}

// isControlPlane reports whether a Pod of the control plane's namespace is one of the control plane, which must start
// without its own webhook.
func isControlPlane(p *corev1.Pod) bool {
	return p.Labels["app"] == "istiod" || p.Labels["istio"] == "pilot" || p.Labels["istio"] == "istiod"
}
