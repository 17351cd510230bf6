package registrar

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/discovery/register"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

const (
	// fieldManager is the manager of the fields that are written.
	fieldManager = "pilothouse-registration"
	// beatsName is the ConfigMap in which the instances that hold entries show that they are alive.
	beatsName = "pilothouse-registration-instances"
	// requestTimeout bounds a request.
	requestTimeout = 5 * time.Second
)

// Kube is a Store whose entries are objects of a cluster. Create one with NewKube.
type Kube struct {
	client    dynamic.Interface
	discovery *discovery.DiscoveryClient

	mu sync.Mutex
	// version is the version of the API in which WorkloadEntries are served; empty if that is not known yet.
	version string
}

// NewKube returns a store. It sends no request.
func NewKube(config *rest.Config) (*Kube, error) {
	c := rest.CopyConfig(config)
	c.QPS, c.RateLimiter, c.Timeout, c.WarningHandler = -1, nil, requestTimeout, rest.NoWarnings{} // a Registrar limits itself
	k := &Kube{}
	var err error
	if k.client, err = dynamic.NewForConfig(c); err == nil {
		k.discovery, err = discovery.NewDiscoveryClientForConfig(c)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return k, nil
}

// find returns the version in which entries are served.
func (k *Kube) find(ctx context.Context) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.version != "" {
		return k.version, nil
	}
	of := decode.ResourceOf(object.WorkloadEntry)
	for _, version := range of.Versions {
		list, err := k.discovery.ServerResourcesForGroupVersionWithContext(ctx, schema.GroupVersion{Group: of.Group, Version: version}.String())
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", err
		}
		if slices.ContainsFunc(list.APIResources, func(a metav1.APIResource) bool { return a.Name == of.Name }) {
			k.version = version
			return version, nil
		}
	}
	return "", fmt.Errorf("%s.%s are not served in a known version", of.Name, of.Group)
}

// Write implements Store.
func (k *Kube) Write(ctx context.Context, w register.Write) error {
	version, err := k.find(ctx)
	if err != nil {
		return err
	}
	of := decode.ResourceOf(object.WorkloadEntry)
	entries := k.client.Resource(schema.GroupVersionResource{Group: of.Group, Version: version, Resource: of.Name}).Namespace(w.Key.Namespace)
	if w.Op == register.Create {
		made, err := created(&w, schema.GroupVersion{Group: of.Group, Version: version}.String())
		if err != nil {
			return err
		}
		_, err = entries.Create(ctx, made, metav1.CreateOptions{FieldManager: fieldManager})
		return late(err)
	}
	// What was decided on may be older than what there is. What others have added to it stays.
	now, err := entries.Get(ctx, w.Key.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && w.Op == register.Delete:
		return nil
	case err != nil:
		return late(err)
	case !w.Same(now.GetAnnotations()):
		return ErrChanged
	}
	switch w.Op {
	case register.Update:
		if err := update(now, w.Object); err != nil {
			return err
		}
		_, err = entries.Update(ctx, now, metav1.UpdateOptions{FieldManager: fieldManager})
	case register.Report:
		var patch []byte
		if patch, err = healthPatch(now, w.Health, time.Now()); err == nil {
			_, err = entries.Patch(ctx, w.Key.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager}, "status")
		}
	case register.Delete:
		uid, version := now.GetUID(), now.GetResourceVersion()
		err = entries.Delete(ctx, w.Key.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}})
		if apierrors.IsNotFound(err) {
			err = nil
		}
	case register.None, register.Create:
	}
	return late(err)
}

// late returns ErrChanged for the errors which say that an object is not what it was.
func late(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	return err
}

// created returns a new object.
func created(w *register.Write, apiVersion string) (*unstructured.Unstructured, error) {
	out := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": string(object.WorkloadEntry)}}
	out.SetName(w.Key.Name)
	out.SetNamespace(w.Key.Namespace)
	if g := w.Owner; g != nil && g.Meta.UID != "" {
		controls := true
		out.SetOwnerReferences([]metav1.OwnerReference{{
			APIVersion: apiVersion, Kind: string(object.WorkloadGroup), Name: g.Name, UID: types.UID(g.Meta.UID), Controller: &controls,
		}})
	}
	return out, update(out, w.Object)
}

// update makes an object what it shall be. Annotations of others stay.
func update(o *unstructured.Unstructured, want *object.Object) error {
	message, ok := want.Spec.(proto.Message)
	if !ok {
		return fmt.Errorf("invalid spec of type %T", want.Spec)
	}
	text, err := protojson.Marshal(message)
	if err != nil {
		return err
	}
	var spec map[string]any
	if err := json.Unmarshal(text, &spec); err != nil {
		return err
	}
	annotations := map[string]string{}
	for name, v := range o.GetAnnotations() {
		if !mesh.IsRegistration(name) {
			annotations[name] = v
		}
	}
	maps.Copy(annotations, want.Meta.Annotations)
	o.SetAnnotations(annotations)
	o.SetLabels(want.Meta.Labels)
	o.Object["spec"] = spec
	return nil
}

// healthPatch returns what sets the condition Healthy of an object. Other conditions stay.
func healthPatch(o *unstructured.Unstructured, h *object.Health, now time.Time) ([]byte, error) {
	at := now.UTC().Format(time.RFC3339)
	value := "False"
	if h.Is {
		value = "True"
	}
	condition := map[string]any{"type": object.ConditionHealthy, "status": value, "lastProbeTime": at, "lastTransitionTime": at}
	if h.Message != "" {
		condition["message"] = h.Message
	}
	before, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions") // of another form: it is replaced
	conditions := []any{}
	for _, c := range before {
		known, ok := c.(map[string]any)
		switch {
		case !ok || known["type"] != object.ConditionHealthy:
			conditions = append(conditions, c)
		case known["status"] == value && known["lastTransitionTime"] != nil:
			condition["lastTransitionTime"] = known["lastTransitionTime"]
		}
	}
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": o.GetResourceVersion(), "uid": o.GetUID()},
		"status":   map[string]any{"conditions": append(conditions, condition)},
	})
}

// KubeBeats are the signs of life of the instances in a ConfigMap. Create it with NewKubeBeats.
type KubeBeats struct {
	maps     typed.ConfigMapInterface
	instance string
}

// NewKubeBeats returns the signs of life in the control plane's namespace, for the instance with a name that is unique among all. It
// sends no request.
func NewKubeBeats(config *rest.Config, namespace, instance string) (*KubeBeats, error) {
	c := rest.CopyConfig(config)
	c.Timeout = requestTimeout
	client, err := typed.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return &KubeBeats{maps: client.ConfigMaps(namespace), instance: instance}, nil
}

// Show implements Beats.
func (b *KubeBeats) Show(ctx context.Context) error {
	text := strconv.FormatInt(time.Now().UnixNano(), 10)
	err := b.patch(ctx, b.instance, text)
	if apierrors.IsNotFound(err) {
		_, err = b.maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: beatsName}, Data: map[string]string{b.instance: text}}, metav1.CreateOptions{FieldManager: fieldManager})
	}
	return err
}

// All implements Beats.
func (b *KubeBeats) All(ctx context.Context) (map[string]string, error) {
	m, err := b.maps.Get(ctx, beatsName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return map[string]string{}, nil
	}
	if err != nil {
		return nil, err
	}
	out := map[string]string{} // never nil
	maps.Copy(out, m.Data)
	return out, nil
}

// Remove implements Beats.
func (b *KubeBeats) Remove(ctx context.Context, instance string) error {
	err := b.patch(ctx, instance, nil)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (b *KubeBeats) patch(ctx context.Context, instance string, text any) error {
	patch, err := json.Marshal(map[string]any{"data": map[string]any{instance: text}})
	if err != nil {
		return err
	}
	_, err = b.maps.Patch(ctx, beatsName, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	return err
}
