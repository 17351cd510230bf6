package kubetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

// manager is the field manager of what is applied.
const manager = "kubetest"

// cleanupBound is the longest time that the cleanup of one test may take.
const cleanupBound = 30 * time.Second

var (
	namespaces atomic.Int64
	notLabel   = regexp.MustCompile(`[^a-z0-9]+`)
)

// Namespace makes a namespace for the test, with labels, and waits until Pods can be made in it. Its name begins with
// that of the test. It is deleted at the end of the test, with its Pods at once.
func (c *Cluster) Namespace(t testing.TB, labels map[string]string) string {
	t.Helper()
	base := strings.Trim(notLabel.ReplaceAllString(strings.ToLower(t.Name()), "-"), "-")
	base = strings.TrimRight(base[:min(len(base), 40)], "-")
	name := base + "-" + strconv.FormatInt(namespaces.Add(1), 10)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	if _, err := c.Client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatalf("make namespace %s: %v", name, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupBound)
		defer cancel()
		now := int64(0)
		err := c.Client.CoreV1().Pods(name).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
		if err = errors.Join(err, c.Client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})); err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("delete namespace %s: %v", name, err)
		}
	})
	err := c.until(t.Context(), "namespace "+name+" has its ServiceAccount and the root certificate", func(ctx context.Context) error {
		_, err := c.Client.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		if err != nil {
			return err
		}
		_, err = c.Client.CoreV1().ConfigMaps(name).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// Apply is [Cluster.ApplyYAML] for a test: objects that did not exist before are deleted at its end.
// Objects of namespaced kinds that name no namespace are applied to namespace.
func (c *Cluster) Apply(t testing.TB, namespace, text string) []*unstructured.Unstructured {
	t.Helper()
	objects, err := Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	applied := make([]*unstructured.Unstructured, 0, len(objects))
	for _, o := range objects {
		client, err := c.clientOf(o, namespace)
		if err != nil {
			t.Fatal(err)
		}
		exists := false
		err = c.until(t.Context(), describe(o)+" is not one that is being deleted", func(ctx context.Context) error {
			old, err := client.Get(ctx, o.GetName(), metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
				return nil
			case err != nil:
				return err
			case old.GetDeletionTimestamp() != nil: // a namespace that an earlier test has made
				return fmt.Errorf("it is being deleted since %s", old.GetDeletionTimestamp())
			}
			exists = true
			return nil
		})
		if err != nil {
			t.Fatalf("apply %s: %v", describe(o), err)
		}
		if !exists {
			t.Cleanup(func() { remove(t, client, o) })
		}
		got, err := c.apply(t.Context(), client, o)
		if err != nil {
			t.Fatal(err)
		}
		applied = append(applied, got)
	}
	return applied
}

func remove(t testing.TB, client dynamic.ResourceInterface, o *unstructured.Unstructured) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupBound)
	defer cancel()
	background := metav1.DeletePropagationBackground
	err := client.Delete(ctx, o.GetName(), metav1.DeleteOptions{PropagationPolicy: &background})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Errorf("delete %s: %v", describe(o), err)
	}
}

// ApplyYAML applies the objects of YAML documents, in their order, by server-side apply as the field manager kubetest, and
// returns them as the API server has them. Objects of namespaced kinds that name no namespace are applied to
// namespace. After a CRD it waits until its kind is served, so that the objects after it may be of that kind.
func (c *Cluster) ApplyYAML(ctx context.Context, namespace, text string) ([]*unstructured.Unstructured, error) {
	objects, err := Decode(text)
	if err != nil {
		return nil, err
	}
	applied := make([]*unstructured.Unstructured, 0, len(objects))
	for _, o := range objects {
		client, err := c.clientOf(o, namespace)
		if err != nil {
			return applied, err
		}
		got, err := c.apply(ctx, client, o)
		if err != nil {
			return applied, err
		}
		applied = append(applied, got)
	}
	return applied, nil
}

// apply applies one object; after a CRD it waits until its kind is served.
func (c *Cluster) apply(ctx context.Context, client dynamic.ResourceInterface, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	got, err := client.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: manager, Force: true})
	if err != nil {
		return nil, fmt.Errorf("apply %s: %w", describe(o), err)
	}
	if o.GetKind() == crdKind {
		err = c.served(ctx, []*unstructured.Unstructured{o})
	}
	return got, err
}

// clientOf is the client for the kind and namespace of an object; it sets the object's namespace.
func (c *Cluster) clientOf(o *unstructured.Unstructured, namespace string) (dynamic.ResourceInterface, error) {
	kind := o.GroupVersionKind()
	mapping, err := c.Mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		c.Mapper.Reset() // the kind may be newer than what the mapper knows
		mapping, err = c.Mapper.RESTMapping(kind.GroupKind(), kind.Version)
	}
	if err != nil {
		return nil, fmt.Errorf("apply %s: %w", describe(o), err)
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return c.Dynamic.Resource(mapping.Resource), nil
	}
	if o.GetNamespace() == "" {
		o.SetNamespace(namespace)
	}
	if o.GetNamespace() == "" {
		return nil, fmt.Errorf("apply %s: no namespace: want metadata.namespace, or one for the whole text", describe(o))
	}
	return c.Dynamic.Resource(mapping.Resource).Namespace(o.GetNamespace()), nil
}

func describe(o *unstructured.Unstructured) string {
	name := o.GetName()
	if o.GetNamespace() != "" {
		name = o.GetNamespace() + "/" + name
	}
	return o.GetKind() + " " + name
}

// Decode splits YAML documents into objects; empty documents are left out. Lists (kind List) are
// not split.
func Decode(text string) ([]*unstructured.Unstructured, error) {
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewBufferString(text), 4096)
	var out []*unstructured.Unstructured
	for n := 1; ; n++ {
		object := map[string]any{}
		err := decoder.Decode(&object)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		if len(object) == 0 {
			continue
		}
		o := &unstructured.Unstructured{Object: object}
		if o.GetKind() == "" || o.GetAPIVersion() == "" || o.GetName() == "" {
			return nil, fmt.Errorf("document %d: want apiVersion, kind and metadata.name", n)
		}
		out = append(out, o)
	}
}
