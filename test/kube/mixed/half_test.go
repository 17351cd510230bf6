package mixed_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/test/kube/clusterup"
)

// half is the number of Pods of each half of the service.
const half = 3

// halves are the two halves of a service: a Deployment each, of which all Pods are replaced at once.
const halves = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: web}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{name: http, port: 8080}]}
`

const oneHalf = `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: the-half}
spec:
  replicas: the-number
  strategy: {rollingUpdate: {maxSurge: 100%, maxUnavailable: 0}}
  selector: {matchLabels: {half: the-half}}
  template:
    metadata:
      labels: {app: web, half: the-half}
      annotations: {traffic.sidecar.istio.io/excludeInboundPorts: "8081"the-templates}
    spec:
      serviceAccountName: web
      terminationGracePeriodSeconds: 40
      containers:
      - name: app
        image: pilothouse/app
        args: [-service=web, "-http=:8080", "-http=:8081"]
        readinessProbe: {httpGet: {path: /stats, port: 8081}, periodSeconds: 1}
        lifecycle: {preStop: {sleep: {seconds: 15}}}
`

// halfSettled waits until a half has its Pods, which are of its newest template and ready, and no others exist.
func halfSettled(t *testing.T, c *clusterup.Cluster, namespace, name, side string) {
	t.Helper()
	var found []corev1.Pod
	until(t, "the Pods of "+name+" are new and ready", func() error {
		d, err := c.Client.AppsV1().Deployments(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s := d.Status; s.ObservedGeneration != d.Generation || s.UpdatedReplicas != half || s.Replicas != half {
			return fmt.Errorf("its status is %+v", s)
		}
		pods, err := c.Client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "half=" + name})
		if err != nil {
			return err
		}
		for _, p := range pods.Items {
			if !ready(&p) {
				return fmt.Errorf("%s is not ready", p.Name)
			}
		}
		if len(pods.Items) != half {
			return fmt.Errorf("%d Pods", len(pods.Items))
		}
		found = pods.Items
		return nil
	})
	for _, p := range found {
		if of := sideOf(t, &p); of != side {
			t.Errorf("Pod %s is %s, want %s", p.Name, of, side)
		}
	}
}

// Half of the Pods of a service have Istio's manifests, the other half ours. A whole half moves to the other side at once, and back,
// first the one, then the other, under load from Pods of both sides: no request fails.
func TestHalfOfThePodsMoveAtOnce(t *testing.T) {
	t.Parallel()
	c := shared.Start(t)
	namespace := c.Namespace(t, map[string]string{"istio-injection": "enabled"})
	c.Apply(t, namespace, strict)
	templates := map[string]string{"ours": `null`, "istio": `"istio"`}
	text := halves
	for _, side := range []string{"ours", "istio"} {
		annotation := ""
		if side == "istio" {
			annotation = ", inject.istio.io/templates: istio"
		}
		text += strings.NewReplacer("the-half", "web-"+side, "the-number", fmt.Sprint(half), "the-templates", annotation).Replace(oneHalf)
	}
	c.Apply(t, namespace, text)
	deploy(t, c, namespace, "shopper-ours", "ours")
	deploy(t, c, namespace, "shopper-istio", "istio")
	shoppers := []*corev1.Pod{settled(t, c, namespace, "shopper-ours"), settled(t, c, namespace, "shopper-istio")}
	for _, side := range []string{"ours", "istio"} {
		halfSettled(t, c, namespace, "web-"+side, side)
	}
	for _, s := range shoppers {
		mutual(t, c, s, "http://web:8080/")
	}
	underLoad(t, c, "web:8080", shoppers, func() {
		for _, from := range []string{"istio", "ours"} {
			to := map[string]string{"istio": "ours", "ours": "istio"}[from]
			for _, side := range []string{to, from} {
				change(t, c, namespace, "web-"+from, `{"inject.istio.io/templates":`+templates[side]+`}`)
				halfSettled(t, c, namespace, "web-"+from, side)
			}
		}
	})
}
