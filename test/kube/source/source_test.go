// Package source_test runs the source of package source/kube against a real API server.
package source_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/source/kube"
	"github.com/pilothouse/pilothouse/internal/discovery/source/sourcetest"
	"github.com/pilothouse/pilothouse/internal/object"
	kubetest "github.com/pilothouse/pilothouse/test/kube"
	"github.com/pilothouse/pilothouse/test/wait"
)

func TestMain(m *testing.M) { kubetest.Main(m, kubetest.Options{Controllers: []string{}}) }

// permissive defines VirtualServices without a schema, as definitions of some releases did, so that the API server
// stores what cannot be decoded.
const permissive = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: virtualservices.networking.istio.io}
spec:
  group: networking.istio.io
  scope: Namespaced
  names: {kind: VirtualService, listKind: VirtualServiceList, plural: virtualservices, singular: virtualservice}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

func install(t *testing.T, c *kubetest.Cluster, text string) {
	t.Helper()
	crds, err := kubetest.Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.InstallObjects(t.Context(), crds); err != nil {
		t.Fatal(err)
	}
}

func options(c *kubetest.Cluster) kube.Options {
	return kube.Options{Config: c.Config, Cluster: "Kubernetes", Namespace: "istio-system", MeshConfigMap: "istio"}
}

func newSource(t *testing.T, o kube.Options) *kube.Source {
	t.Helper()
	s, err := kube.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	c := kubetest.Shared(t)
	install(t, c, permissive)
	sourcetest.Run(t, func(t *testing.T) sourcetest.Harness {
		own := clean(t, c)
		return sourcetest.Harness{
			Source: func(t *testing.T) sourcetest.Source { return without{newSource(t, options(c)), own} },
			Put: func(t *testing.T, _ object.Key, yaml string) {
				if _, err := c.ApplyYAML(t.Context(), "", yaml); err != nil {
					t.Fatal(err)
				}
			},
			Delete: func(t *testing.T, key object.Key) {
				path := "/api/v1/namespaces/" + key.Namespace + "/services/" + key.Name
				if key.Kind == object.VirtualService {
					path = "/apis/networking.istio.io/v1/namespaces/" + key.Namespace + "/virtualservices/" + key.Name
				}
				if err := c.Client.CoreV1().RESTClient().Delete().AbsPath(path).Do(t.Context()).Error(); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

// clean removes what a test of the suite has left, and returns what the server has of its own.
func clean(t *testing.T, c *kubetest.Cluster) map[object.Key]bool {
	t.Helper()
	ctx := t.Context()
	for _, path := range []string{"/api/v1/namespaces/shop/services/a", "/apis/networking.istio.io/v1/namespaces/shop/virtualservices/a", "/api/v1/namespaces/other"} {
		err := c.Client.CoreV1().RESTClient().Delete().AbsPath(path).Do(ctx).Error()
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	if _, err := c.Client.CoreV1().Namespaces().Finalize(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	if _, err := c.ApplyYAML(ctx, "", "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n"); err != nil {
		t.Fatal(err)
	}
	own := map[object.Key]bool{{Kind: object.Service, Namespace: "default", Name: "kubernetes"}: true, {Kind: object.EndpointSlice, Namespace: "default", Name: "kubernetes"}: true}
	for _, ns := range []string{"default", "kube-system", "kube-public", "kube-node-lease", "shop"} {
		own[object.Key{Kind: object.Namespace, Name: ns}] = true
		wait.Until(t, "namespace "+ns+" exists", func() bool {
			_, err := c.Client.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{})
			return err == nil
		})
	}
	return own
}

// without is a source without what the server has of its own.
type without struct {
	source sourcetest.Source
	own    map[object.Key]bool
}

// Run implements sourcetest.Source.
func (w without) Run(ctx context.Context, emit func(object.Batch)) error {
	return w.source.Run(ctx, func(b object.Batch) {
		var changes []object.Change
		for _, c := range b.Changes {
			if !w.own[c.Key] {
				changes = append(changes, c)
			}
		}
		if b.Changes = changes; len(changes) > 0 || b.Problems != nil || b.Synced {
			emit(b)
		}
	})
}

// run is a running source and what it has emitted.
type run struct {
	source   *kube.Source
	mu       sync.Mutex
	state    map[object.Key]object.Object
	removed  []object.Key
	emitted  []object.Key // of all changes, in their order
	problems []object.Problem
	synced   bool
}

func start(t *testing.T, o kube.Options) *run {
	t.Helper()
	r := &run{source: newSource(t, o), state: map[object.Key]object.Object{}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.source.Run(ctx, r.take) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *run) take(b object.Batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.synced = r.synced || b.Synced
	for _, c := range b.Changes {
		r.emitted = append(r.emitted, c.Key)
		if c.Object == nil {
			r.removed = append(r.removed, c.Key)
			delete(r.state, c.Key)
		} else {
			r.state[c.Key] = *c.Object
		}
	}
	if b.Problems != nil {
		r.problems = b.Problems
	}
}

// until waits for a condition of what was emitted. The lock is held while it is evaluated.
func (r *run) until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	wait.Until(t, what, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return condition()
	})
}

func (r *run) port(ns, name string) uint32 {
	if o, ok := r.state[object.Key{Kind: object.Service, Namespace: ns, Name: name}]; ok {
		return o.Spec.(*object.ServiceSpec).Ports[0].Port
	}
	return 0
}

func service(ns, name string, port int) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: %s}\nspec: {ports: [{name: http, port: %d}]}\n---\n", name, ns, port)
}

func namespace(name string) string {
	return "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + name + "}\n---\n"
}

// An API server that ends, is killed or hangs removes nothing, and what has changed is read when it is back.
func TestAPIServerGoesAndComes(t *testing.T) {
	c := kubetest.Start(t, kubetest.Options{Controllers: []string{}})
	install(t, c, permissive)
	apply := func(text string) {
		t.Helper()
		if _, err := c.ApplyYAML(t.Context(), "", text); err != nil {
			t.Fatal(err)
		}
	}
	apply(namespace("ns") + service("ns", "a", 80) + service("ns", "b", 80))
	o := options(c)
	o.Patience = time.Millisecond
	r := start(t, o)
	r.until(t, "the sync", func() bool { return r.synced && r.port("ns", "a") == 80 && r.port("ns", "b") == 80 })
	port := 80
	for name, away := range map[string]func() (back func()){
		"stopped": func() func() { c.StopAPIServer(t); return func() { c.StartAPIServer(t) } },
		"killed":  func() func() { c.KillAPIServer(t); return func() { c.StartAPIServer(t) } },
	} {
		back := away()
		r.until(t, name+": a problem", func() bool {
			return len(r.problems) == 1 && strings.Contains(r.problems[0].Error(), "Kubernetes: the API server cannot be read: ")
		})
		if _, behind := r.source.Behind(); !behind {
			t.Errorf("%s: not behind", name)
		}
		back()
		port++
		apply(service("ns", "a", port))
		r.until(t, name+": the change", func() bool { return r.port("ns", "a") == uint32(port) })
		wait.NoError(t, name+": no problem", func() error {
			r.mu.Lock()
			defer r.mu.Unlock()
			if len(r.problems) > 0 {
				return fmt.Errorf("problems %v", r.problems)
			}
			return nil
		})
		wait.Until(t, name+": no delay", func() bool { _, behind := r.source.Behind(); return !behind })
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.removed) > 0 {
		t.Errorf("removed %v", r.removed)
	}
}

// rules is what docs/kubernetes.md lists.
const rules = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: pilothouse-source}
rules:
- {apiGroups: [""], resources: [namespaces, nodes, services, pods], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
- {apiGroups: [networking.istio.io], resources: [virtualservices], verbs: [list, watch]}
- {apiGroups: [networking.k8s.io], resources: [ingressclasses, ingresses], verbs: [list, watch]}
- {apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: pilothouse-source}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: pilothouse-source}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: pilot}]
---
apiVersion: v1
kind: Namespace
metadata: {name: istio-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: pilothouse-source, namespace: istio-system}
rules:
- {apiGroups: [""], resources: [configmaps], resourceNames: [istio], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: pilothouse-source, namespace: istio-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: pilothouse-source}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: pilot}]
`

// The permissions that docs/kubernetes.md lists suffice; without one of them, what it is for is told.
func TestPermissions(t *testing.T) {
	c := kubetest.Shared(t)
	install(t, c, permissive)
	if _, err := c.ApplyYAML(t.Context(), "", rules); err != nil {
		t.Fatal(err)
	}
	config, err := c.UserConfig("pilot")
	if err != nil {
		t.Fatal(err)
	}
	o := options(c)
	o.Config = config
	r := start(t, o)
	r.until(t, "the sync", func() bool { return r.synced })
	r.until(t, "no problem", func() bool { return len(r.problems) == 0 })
	if _, err := c.ApplyYAML(t.Context(), "", strings.Replace(rules, "services, pods", "services", 1)); err != nil {
		t.Fatal(err)
	}
	second := start(t, o)
	second.until(t, "a problem", func() bool {
		return len(second.problems) == 1 && strings.Contains(second.problems[0].Text, `Pod objects cannot be read: pods is forbidden: User "pilot" cannot `)
	})
	second.mu.Lock()
	if second.synced {
		t.Error("synced without Pods")
	}
	second.mu.Unlock()
	if _, err := c.ApplyYAML(t.Context(), "", rules); err != nil {
		t.Fatal(err)
	}
	second.until(t, "the sync with the permission", func() bool { return second.synced && len(second.problems) == 0 })
}
