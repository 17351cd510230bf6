package install_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/kube/clusterup"
)

// injected labels a namespace whose Pods get proxies.
var injected = map[string]string{"istio-injection": "enabled"}

// workload is a Deployment of the sample app with a Service, whose readiness is asked on a port that is not captured.
const workload = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: the-app}
---
apiVersion: v1
kind: Service
metadata: {name: the-app}
spec: {selector: {app: the-app}, ports: [{name: http, port: 8080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: the-app}
spec:
  selector: {matchLabels: {app: the-app}}
  template:
    metadata:
      labels: {app: the-app}
      annotations: {traffic.sidecar.istio.io/excludeInboundPorts: "8081"}
    spec:
      serviceAccountName: the-app
      containers:
      - name: app
        image: pilothouse/app
        args: [-service=the-app, "-http=:8080", "-http=:8081", the-args]
        readinessProbe: {httpGet: {path: /stats, port: 8081}, periodSeconds: 1}
`

// deploy applies a workload and waits until its Pod is ready.
func deploy(t *testing.T, c *clusterup.Cluster, namespace, name, arg string) *corev1.Pod {
	t.Helper()
	c.Apply(t, namespace, strings.NewReplacer("the-app", name, "the-args", arg).Replace(workload))
	return readyPod(t, c, namespace, "app="+name)
}

// readyPod waits until a namespace has one Pod of a label, which is ready.
func readyPod(t *testing.T, c *clusterup.Cluster, namespace, selector string) *corev1.Pod {
	t.Helper()
	var found *corev1.Pod
	until(t, "a Pod with "+selector+" is ready", func() error {
		pods, err := c.Client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 || !ready(&pods.Items[0]) {
			return fmt.Errorf("%d Pods, not all ready", len(pods.Items))
		}
		found = &pods.Items[0]
		return nil
	})
	return found
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// hasProxy says whether a Pod has a proxy, as a container or as a native sidecar.
func hasProxy(p *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(p.Spec.InitContainers, p.Spec.Containers), func(c corev1.Container) bool { return c.Name == "istio-proxy" })
}

// from makes connections from a Pod.
type from struct {
	cluster *clusterup.Cluster
	pod     *corev1.Pod
}

// Dial implements meshup.Dialer.
func (f from) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return f.cluster.Node.DialFrom(ctx, f.pod.Namespace, f.pod.Name, network, addr)
}

// The webhook that the chart installs adds proxies to the Pods of Deployments, which get their certificates with their
// ServiceAccounts' tokens and talk by mutual TLS; plaintext is refused.
func TestPodsOfALabelledNamespaceTalkByMutualTLS(t *testing.T) {
	c := shared.Start(t)
	namespace := c.Namespace(t, injected)
	c.Apply(t, namespace, "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default}\nspec: {mtls: {mode: STRICT}}\n")
	web := deploy(t, c, namespace, "web", "-tcp=127.0.0.1:8082")
	shopper := deploy(t, c, namespace, "shopper", "-tcp=127.0.0.1:8082")
	if !hasProxy(web) || !hasProxy(shopper) {
		t.Fatal("a Pod has no proxy")
	}
	want := "spiffe://" + meshup.Domain + "/ns/" + namespace + "/sa/shopper"
	until(t, "the web answers the shopper by mutual TLS", func() error {
		a, err := meshup.Post(t.Context(), meshup.Client(from{c, shopper}, 0), "http://web:8080/", nil)
		if err == nil && a.Peer != want {
			err = fmt.Errorf("status %d, identity %q, want %s", a.Status, a.Peer, want)
		}
		return err
	})
	client := &http.Client{Transport: &http.Transport{DialContext: c.Network.Dial, DisableKeepAlives: true}}
	if a, err := meshup.Post(t.Context(), client, "http://"+web.Status.PodIP+":8080/", nil); err == nil {
		t.Errorf("plaintext to the web was answered: %+v", a)
	}
}

// patchNamespace sets labels of a namespace; null removes one.
func patchNamespace(t *testing.T, c *clusterup.Cluster, name, labels string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"labels":%s}}`, labels)
	if _, err := c.Client.CoreV1().Namespaces().Patch(context.WithoutCancel(t.Context()), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// scale sets the number of replicas of pilot-discovery and waits until as many are ready.
func scale(t *testing.T, c *clusterup.Cluster, to int) []corev1.Pod {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, to)
	if _, err := c.Client.AppsV1().Deployments(system).Patch(t.Context(), "istiod", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	var found []corev1.Pod
	until(t, fmt.Sprintf("%d replicas are ready, and no others exist", to), func() error {
		pods, err := c.Client.CoreV1().Pods(system).List(t.Context(), metav1.ListOptions{LabelSelector: "app=istiod"})
		if err != nil {
			return err
		}
		if found = pods.Items; len(found) != to || slices.ContainsFunc(found, func(p corev1.Pod) bool { return !ready(&p) }) {
			err = fmt.Errorf("there are %d", len(found))
		}
		return err
	})
	return found
}

// While no replica answers, Pods of a namespace that is injected cannot be made; those of the control plane can, even if its
// own namespace is one. So it comes back by itself.
func TestControlPlaneIsNotBlockedByItsOwnWebhook(t *testing.T) {
	c := shared.Start(t)
	namespace := c.Namespace(t, injected)
	patchNamespace(t, c, system, `{"istio-injection":"enabled"}`)
	t.Cleanup(func() { patchNamespace(t, c, system, `{"istio-injection":null}`) })
	scale(t, c, 0)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "early"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "pilothouse/app"}}}}
	if _, err := c.Client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "sidecar-injector.istio.io") {
		t.Errorf("a Pod was made without its proxy: error %v", err)
	}
	for _, p := range scale(t, c, 2) {
		if hasProxy(&p) {
			t.Errorf("Pod %s of the control plane has a proxy", p.Name)
		}
	}
	until(t, "a Pod gets its proxy again", func() error {
		p, err := c.Client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		if err == nil && !hasProxy(p) {
			t.Error("it was made without a proxy")
		}
		return err
	})
}

// The Pod of the chart gateway is an agent with Envoy and nothing else, which the webhook makes of it.
func TestGatewayIsInjected(t *testing.T) {
	c := shared.Start(t)
	namespace := c.Namespace(t, nil)
	if err := c.Install(t.Context(), "edge", namespace, c.Gateway(), "autoscaling: {enabled: false}\nservice: {type: ClusterIP}\n"); err != nil {
		t.Fatal(err)
	}
	p := readyPod(t, c, namespace, "app=edge")
	if len(p.Spec.Containers) != 1 || len(p.Spec.InitContainers) != 0 || !strings.HasPrefix(p.Spec.Containers[0].Image, "pilothouse/agent:") {
		t.Errorf("its containers are %+v", p.Spec.Containers)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: c.Network.Dial, DisableKeepAlives: true}}
	until(t, "its Service answers", func() error {
		res, err := client.Get("http://edge." + namespace + ":15021/healthz/ready")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if text, err := io.ReadAll(res.Body); res.StatusCode != http.StatusOK || err != nil {
			return errors.Join(fmt.Errorf("%s: %s", res.Status, text), err)
		}
		return nil
	})
}

// A mistake in an object of Istio's is refused when it is applied, with the field that has it.
func TestInvalidObjectsAreRefused(t *testing.T) {
	c := shared.Start(t)
	namespace := c.Namespace(t, nil)
	until(t, "the API server asks pilot-discovery", func() error {
		_, err := c.ApplyYAML(t.Context(), namespace, `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: pattern}
spec:
  hosts: [web]
  http: [{match: [{uri: {regex: "("}}], route: [{destination: {host: web}}]}]
`)
		if err == nil {
			return errors.New("the API server stored it: want an error of the webhook that names the field regex")
		}
		if !strings.Contains(err.Error(), "validation.istio.io") || !strings.Contains(err.Error(), "regex") {
			return fmt.Errorf("the API server says %w: want an error of the webhook that names the field regex", err)
		}
		return nil
	})
}
