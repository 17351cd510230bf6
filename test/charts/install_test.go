package charts_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/action"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var crds = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

func TestInstallUpgradeUninstall(t *testing.T) {
	c := startCluster(t)
	before := c.objects(t)
	control := load(t, "pilothouse")
	if err := c.install(t, "mesh", namespace, control, ""); err != nil {
		t.Fatal(err)
	}
	service, err := c.client.CoreV1().Services(namespace).Get(t.Context(), "istiod", metav1.GetOptions{})
	if err != nil || len(service.Spec.Ports) != 3 {
		t.Fatalf("Service istiod: %+v, error %v", service.Spec, err)
	}
	for _, crd := range control.CRDObjects() {
		name := strings.TrimSuffix(crd.Name[strings.LastIndex(crd.Name, "/")+1:], ".yaml")
		o, err := c.dynamic.Resource(crds).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || !established(o) {
			t.Errorf("CustomResourceDefinition %s is not served, error %v", name, err)
		}
	}

	// What pilot-discovery writes stays when the release is upgraded.
	patched := asDiscovery(t, c)
	if err := c.upgrade(t, "mesh", namespace, load(t, "pilothouse"), "plaintext: {enabled: true}\nmeshConfig: {trustDomain: example.org}"); err != nil {
		t.Fatal(err)
	}
	if after := webhooks(t, c); !slices.Equal(after, patched) {
		t.Errorf("the upgrade changed the webhooks:\n%s\nwant\n%s", strings.Join(after, "\n"), strings.Join(patched, "\n"))
	}
	service, err = c.client.CoreV1().Services(namespace).Get(t.Context(), "istiod", metav1.GetOptions{})
	if err != nil || len(service.Spec.Ports) != 4 {
		t.Errorf("after the upgrade, Service istiod: %+v, error %v", service.Spec, err)
	}
	config, err := c.client.CoreV1().ConfigMaps(namespace).Get(t.Context(), "istio", metav1.GetOptions{})
	if err != nil || !strings.Contains(config.Data["mesh"], "trustDomain: example.org") {
		t.Errorf("after the upgrade, ConfigMap istio: %v, error %v", config.Data, err)
	}

	c.uninstall(t, "mesh", namespace)
	c.removeNamespace(t, namespace)
	left := slices.DeleteFunc(missing(c.objects(t), before), func(key string) bool {
		// The API server makes an APIService for the group of each definition.
		return strings.HasPrefix(key, "CustomResourceDefinition ") || strings.HasPrefix(key, "APIService ")
	})
	if len(left) > 0 {
		t.Errorf("after uninstalling it, these are left: %q", left)
	}
}

func established(o *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(c any) bool {
		m, ok := c.(map[string]any)
		return ok && m["type"] == "Established" && m["status"] == "True"
	})
}

// asDiscovery does with the webhook configurations what pilot-discovery does, and returns how they are then.
func asDiscovery(t *testing.T, c *cluster) []string {
	t.Helper()
	type operation map[string]any
	roots := c.config.CAData // of some CA
	patch := func(hooks int, policy bool) []byte {
		var all []operation
		for i := range hooks {
			all = append(all, operation{"op": "add", "path": fmt.Sprintf("/webhooks/%d/clientConfig/caBundle", i), "value": roots})
			if policy {
				all = append(all, operation{"op": "add", "path": fmt.Sprintf("/webhooks/%d/failurePolicy", i), "value": admissionv1.Fail})
			}
		}
		text, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	options := metav1.PatchOptions{FieldManager: "pilot-discovery"}
	admission := c.as(t, "istiod").AdmissionregistrationV1()
	if _, err := admission.MutatingWebhookConfigurations().Patch(t.Context(), "istio-sidecar-injector", types.JSONPatchType, patch(4, false), options); err != nil {
		t.Fatal(err)
	}
	if _, err := admission.ValidatingWebhookConfigurations().Patch(t.Context(), "istio-validator-"+namespace, types.JSONPatchType, patch(2, true), options); err != nil {
		t.Fatal(err)
	}
	return webhooks(t, c)
}

// webhooks describes the webhooks of all configurations.
func webhooks(t *testing.T, c *cluster) []string {
	t.Helper()
	mutating, err := c.client.AdmissionregistrationV1().MutatingWebhookConfigurations().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	validating, err := c.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, m := range mutating.Items {
		for _, h := range m.Webhooks {
			all = append(all, fmt.Sprintf("%s %s: %s, %d bytes of roots", m.Name, h.Name, *h.FailurePolicy, len(h.ClientConfig.CABundle)))
		}
	}
	for _, v := range validating.Items {
		for _, h := range v.Webhooks {
			all = append(all, fmt.Sprintf("%s %s: %s, %d bytes of roots", v.Name, h.Name, *h.FailurePolicy, len(h.ClientConfig.CABundle)))
		}
	}
	return all
}

// TestRevisionsSideBySide: of two control planes in one namespace, each has objects of its own, and removing one
// leaves the other.
func TestRevisionsSideBySide(t *testing.T) {
	c := startCluster(t)
	if err := c.install(t, "mesh", namespace, load(t, "pilothouse"), ""); err != nil {
		t.Fatal(err)
	}
	alone := c.objects(t)
	if err := c.install(t, "mesh-canary", namespace, load(t, "pilothouse"), "revision: canary\nrevisionTags: [prod]"); err != nil {
		t.Fatal(err)
	}
	both := c.objects(t)
	for _, key := range []string{"Deployment istio-system/istiod", "Deployment istio-system/istiod-canary", "Service istio-system/istiod-canary",
		"ConfigMap istio-system/istio-canary", "MutatingWebhookConfiguration /istio-revision-tag-prod", "ClusterRole /istiod-clusterrole-canary-istio-system"} {
		if !slices.Contains(both, key) {
			t.Errorf("no %s beside the other revision", key)
		}
	}
	c.uninstall(t, "mesh-canary", namespace)
	// Pods and what belongs to them come and go.
	stable := func(keys []string) []string {
		return slices.DeleteFunc(slices.Clone(keys), func(key string) bool {
			return slices.ContainsFunc([]string{"Pod ", "ReplicaSet ", "EndpointSlice ", "Endpoints ", "ControllerRevision "}, func(kind string) bool { return strings.HasPrefix(key, kind) })
		})
	}
	after := c.objects(t)
	if gone, left := missing(stable(alone), after), missing(stable(after), alone); len(gone)+len(left) > 0 {
		t.Errorf("after the canary was uninstalled, %q of the other are gone and %q of it are left", gone, left)
	}
}

// TestControlPlaneStartsInANamespaceThatIsInjected: the API server has to create the Pods of pilot-discovery although
// nobody answers the webhooks, which fail closed.
func TestControlPlaneStartsInANamespaceThatIsInjected(t *testing.T) {
	c := startCluster(t)
	if err := c.install(t, "mesh", namespace, load(t, "pilothouse"), "sidecarInjectorWebhook: {enableNamespacesByDefault: true}\nautoscaleEnabled: false\nreplicaCount: 2"); err != nil {
		t.Fatal(err)
	}
	pods := c.client.CoreV1().Pods(namespace)
	for _, label := range []string{`{"istio-injection":"enabled"}`, `{"istio-injection":null,"istio.io/rev":"default"}`, `{"istio.io/rev":null}`} {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":%s}}`, label)
		if _, err := c.client.CoreV1().Namespaces().Patch(t.Context(), namespace, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		before, err := pods.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		now := int64(0)
		if err := pods.DeleteCollection(t.Context(), metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		until(t, "two new Pods of pilot-discovery with the labels "+label, func() error {
			list, err := pods.List(t.Context(), metav1.ListOptions{LabelSelector: "app=istiod"})
			old := func(p corev1.Pod) bool {
				return slices.ContainsFunc(before.Items, func(b corev1.Pod) bool { return b.UID == p.UID })
			}
			if err != nil || len(list.Items) != 2 || slices.ContainsFunc(list.Items, old) {
				return fmt.Errorf("%d Pods, error %w", len(list.Items), err)
			}
			return nil
		})
	}
}

// TestGateway: a gateway is installed and uninstalled.
func TestGateway(t *testing.T) {
	c := startCluster(t)
	before := c.objects(t)
	const edge = "edge"
	if err := c.install(t, "ingress", edge, load(t, "gateway"), "podDisruptionBudget: {minAvailable: 1}\nnetworkPolicy: {enabled: true}"); err != nil {
		t.Fatal(err)
	}
	if err := c.upgrade(t, "ingress", edge, load(t, "gateway"), "service: {type: ClusterIP}"); err != nil {
		t.Fatal(err)
	}
	c.uninstall(t, "ingress", edge)
	c.removeNamespace(t, edge)
	if left := missing(c.objects(t), before); len(left) > 0 {
		t.Errorf("after uninstalling it, these are left: %q", left)
	}
}

// TestDefinitionsOfOthers: where Istio's installation has the CustomResourceDefinitions in another version, installing with
// --skip-crds works and leaves them as they are; without it, Helm names what is in the way.
func TestDefinitionsOfOthers(t *testing.T) {
	c := startCluster(t)
	const name = "gateways.networking.istio.io"
	if err := c.install(t, "mesh", namespace, load(t, "pilothouse"), ""); err != nil {
		t.Fatal(err)
	}
	c.uninstall(t, "mesh", namespace)
	patch := []byte(`[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/description","value":"of another version"}]`)
	theirs, err := c.dynamic.Resource(crds).Patch(t.Context(), name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: "istioctl"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the next test installs it again
		if err := c.dynamic.Resource(crds).Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	if err := c.install(t, "mesh", namespace, load(t, "pilothouse"), ""); err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("without --skip-crds: error %v, want one that names %s", err, name)
	}
	if err := c.install(t, "mesh", namespace, load(t, "pilothouse"), "", func(i *action.Install) { i.SkipCRDs = true }); err != nil {
		t.Errorf("with --skip-crds: %v", err)
	}
	if now, err := c.dynamic.Resource(crds).Get(t.Context(), name, metav1.GetOptions{}); err != nil || now.GetGeneration() != theirs.GetGeneration() {
		t.Errorf("%s has been changed, error %v", name, err)
	}
}
