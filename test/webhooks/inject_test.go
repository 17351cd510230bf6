package webhooks_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/pilothouse/pilothouse/test/wait"
)

const injector = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: istio-sidecar-injector-REVISION, labels: {istio.io/rev: REVISION}}
webhooks:
- name: rev.object.sidecar-injector.istio.io
  admissionReviewVersions: [v1]
  clientConfig: {url: "https://ADDRESS/inject/cluster/east/net/n1"}
  failurePolicy: Fail
  reinvocationPolicy: Never
  sideEffects: None
  objectSelector: {matchLabels: {istio.io/rev: REVISION}}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
`

// pod creates a Pod that chooses the control plane's revision.
func (m *mesh) pod(name string, change ...func(*corev1.Pod)) (*corev1.Pod, error) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"istio.io/rev": m.namespace, "app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}},
	}
	for _, f := range change {
		f(p)
	}
	return m.cluster.Client.CoreV1().Pods(m.namespace).Create(m.t.Context(), p, metav1.CreateOptions{})
}

// patched waits until the webhook that injects is called: the API server learns of a patch a little later.
func (m *mesh) patched() {
	m.t.Helper()
	wait.NoError(m.t, "the webhook is called", func() error {
		dry := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "istiod", Labels: map[string]string{"istio.io/rev": m.namespace, "app": "istiod"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}}}
		_, err := m.cluster.Client.CoreV1().Pods(m.namespace).Create(m.t.Context(), dry, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	})
}

// proxy returns the container of a Pod's proxy, whether it is a native sidecar or not; nil if there is none.
func proxy(p *corev1.Pod) *corev1.Container {
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if c.Name == "istio-proxy" {
			return &c
		}
	}
	return nil
}

func TestPodsAreInjectedBelowARealAPIServer(t *testing.T) {
	m := start(t, nil)
	m.cluster.Apply(t, "", m.replaced(injector))
	m.patched()
	if p, err := m.pod("istiod", func(p *corev1.Pod) { p.Labels["app"] = "istiod" }); err != nil || proxy(p) != nil {
		t.Errorf("a Pod of the control plane: %v; want it as it is, whatever has been read", err)
	}
	var injected *corev1.Pod
	wait.NoError(t, "a Pod is created", func() (err error) {
		injected, err = m.pod("injected")
		return err
	})
	c := proxy(injected)
	if c == nil {
		t.Fatalf("containers %+v: want istio-proxy", injected.Spec.Containers)
	}
	env := map[string]string{}
	for _, e := range c.Env {
		env[e.Name] = e.Value
	}
	if env["ISTIO_META_CLUSTER_ID"] != "east" || env["ISTIO_META_NETWORK"] != "n1" || injected.Annotations["sidecar.istio.io/status"] == "" {
		t.Errorf("environment %v, annotations %v; want the cluster and the network of the path, and the status", env, injected.Annotations)
	}
	for name, change := range map[string]func(*corev1.Pod){
		"host-network": func(p *corev1.Pod) { p.Spec.HostNetwork = true },
		"label":        func(p *corev1.Pod) { p.Labels["sidecar.istio.io/inject"] = "false" },
	} {
		if p, err := m.pod(name, change); err != nil || proxy(p) != nil {
			t.Errorf("%s: %v; want the Pod as it is", name, err)
		}
	}
	if _, err := m.pod("invalid", func(p *corev1.Pod) {
		p.Annotations = map[string]string{"traffic.sidecar.istio.io/includeOutboundPorts": "many"}
	}); err == nil || !strings.Contains(err.Error(), "traffic.sidecar.istio.io/includeOutboundPorts") {
		t.Errorf("an invalid annotation: %v; want an error that names it", err)
	}

	wait.NoError(t, "an event says why", func() error {
		all, err := m.cluster.Client.CoreV1().Events(m.namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range all.Items {
			if e.InvolvedObject.Name == "host-network" && strings.Contains(e.Message, "host networking") {
				return nil
			}
		}
		return fmt.Errorf("%d events, none of the Pod with host networking", len(all.Items))
	})

	// Many at once.
	var all sync.WaitGroup
	failures := make(chan error, 100)
	for i := range cap(failures) {
		all.Go(func() {
			p, err := m.pod(fmt.Sprintf("many-%d", i))
			if err == nil && proxy(p) == nil {
				err = errors.New("no proxy")
			}
			failures <- err
		})
	}
	all.Wait()
	for range cap(failures) {
		if err := <-failures; err != nil {
			t.Error(err)
		}
	}

	// The ConfigMap is followed, and one that is invalid changes nothing.
	name := "istio-sidecar-injector-" + m.namespace
	m.cluster.Apply(t, m.namespace, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: "+name+"}\ndata: {config: 'policy: disabled'}")
	n := 0
	wait.NoError(t, "the policy is followed", func() error {
		n++
		p, err := m.pod(fmt.Sprintf("policy-%d", n))
		if err == nil && proxy(p) != nil {
			err = errors.New("the Pod has a proxy")
		}
		return err
	})
	if _, err := m.cluster.Client.CoreV1().ConfigMaps(m.namespace).Patch(t.Context(), name, types.MergePatchType, []byte(`{"data":{"config":"policy: [1"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the log names the invalid ConfigMap", func() bool {
		return strings.Contains(m.log.String(), "configuration of the injector is invalid")
	})
	if p, err := m.pod("after"); err != nil || proxy(p) != nil {
		t.Errorf("%v; want the Pod as it is, by the configuration before", err)
	}
}

// ProxyConfig objects of the root namespace, of a namespace and of a workload reach Pods that are created from then on; the
// annotation is below the object that selects the Pod.
func TestProxyConfigObjectsReachPods(t *testing.T) {
	m := start(t, nil)
	m.cluster.Apply(t, "", m.replaced(injector))
	m.patched()
	variable := func(p *corev1.Pod, name string) string {
		if c := proxy(p); c != nil {
			for _, e := range c.Env {
				if e.Name == name {
					return e.Value
				}
			}
		}
		return ""
	}
	// until creates Pods until one has what is wanted.
	n := 0
	until := func(what, mode, concurrency string, change ...func(*corev1.Pod)) {
		t.Helper()
		wait.NoError(t, what, func() error {
			n++
			p, err := m.pod(fmt.Sprintf("config-%d", n), change...)
			if err == nil && (variable(p, "MODE") != mode || !strings.Contains(variable(p, "PROXY_CONFIG"), concurrency)) {
				err = fmt.Errorf("variable MODE is %q, PROXY_CONFIG %q", variable(p, "MODE"), variable(p, "PROXY_CONFIG"))
			}
			return err
		})
	}
	object := func(name, spec string) {
		t.Helper()
		m.cluster.Apply(t, m.namespace, "apiVersion: networking.istio.io/v1beta1\nkind: ProxyConfig\nmetadata: {name: "+name+"}\nspec: "+spec+"\n")
	}
	until("a Pod without an object", "", "")
	object("all", "{concurrency: 3, environmentVariables: {MODE: namespace}, image: {imageType: debug}}")
	until("the namespace's object", "namespace", `"concurrency":3`)
	if p, err := m.pod("image"); err != nil || !strings.HasSuffix(proxy(p).Image, ":debug") {
		t.Errorf("image %v, error %v; want that of the image type", proxy(p), err)
	}
	annotated := func(p *corev1.Pod) {
		p.Annotations = map[string]string{"proxy.istio.io/config": "{concurrency: 4, proxyMetadata: {MODE: annotation}}"}
	}
	until("the annotation over it", "annotation", `"concurrency":4`, annotated)
	object("web", "{selector: {matchLabels: {app: web}}, concurrency: 5}")
	until("the workload's object over the annotation", "annotation", `"concurrency":5`, annotated)
	until("other workloads are left alone", "namespace", `"concurrency":3`, func(p *corev1.Pod) { p.Labels["app"] = "other" })

	gvr := schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1beta1", Resource: "proxyconfigs"}
	objects := dynamic.NewForConfigOrDie(m.cluster.Config).Resource(gvr).Namespace(m.namespace)
	for _, name := range []string{"web", "all"} {
		if err := objects.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	until("they are gone", "", "")
}
