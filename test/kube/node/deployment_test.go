package node_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/test/wait"
)

// A Deployment's Pods get their Node from the scheduler, become ready, and answer another Pod at the Service's
// ClusterIP and name; a Service without endpoints refuses.
func TestDeploymentAnswersAtItsClusterIP(t *testing.T) {
	c := start(t, nil)
	c.apply(t, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: reviews}
spec:
  replicas: 2
  selector: {matchLabels: {app: reviews}}
  template:
    metadata: {labels: {app: reviews}}
    spec:
      containers:
      - name: app
        image: registry.example/pilothouse/app:v1
        args: [-service=reviews, -http=:9080]
        env:
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        readinessProbe: {httpGet: {path: /, port: 9080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: reviews}
spec:
  selector: {app: reviews}
  ports: [{name: http, port: 80, targetPort: 9080}]
---
apiVersion: v1
kind: Service
metadata: {name: nobody}
spec:
  selector: {app: nobody}
  ports: [{name: http, port: 80}]
---
apiVersion: v1
kind: Pod
metadata: {name: shopper}
spec:
  containers:
  - name: app
    image: pilothouse/app
    args: [-service=shopper, -http=:9080, -calls=http://reviews/]
    ports: [{name: http, containerPort: 9080}]
    readinessProbe: {tcpSocket: {port: http}, periodSeconds: 1}
  - name: lonely
    image: pilothouse/app
    args: [-service=lonely, -http=:9081, -calls=http://nobody.the-namespace.svc.cluster.local/]
`)
	shopper := c.running(t, "shopper")
	wait.NoError(t, "the shopper reaches the Service by its name", func() error {
		a, err := c.get(t.Context(), "http://"+shopper.Status.PodIP+":9080/")
		if err == nil && (len(a.Calls) != 1 || a.Calls[0].Service != "reviews" || a.Calls[0].Pod == "") {
			err = fmt.Errorf("the answer is %+v", a)
		}
		return err
	})
	service, err := c.Client.CoreV1().Services(c.namespace).Get(t.Context(), "reviews", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	wait.NoError(t, "both Pods answer at the ClusterIP", func() error {
		a, err := c.get(t.Context(), "http://"+service.Spec.ClusterIP+"/")
		if err != nil {
			return err
		}
		if names[a.Pod] = true; len(names) < 2 {
			return errors.New("one of them only so far")
		}
		return nil
	})
	pods, err := c.Client.CoreV1().Pods(c.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=reviews"})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		for _, typ := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady, corev1.PodReadyToStartContainers, corev1.PodScheduled} {
			if !is(&p, typ) {
				t.Errorf("Pod %s: condition %s is not True", p.Name, typ)
			}
		}
		st := p.Status
		if !names[p.Name] || st.Phase != corev1.PodRunning || st.HostIP == "" || !slices.Equal(st.PodIPs, []corev1.PodIP{{IP: st.PodIP}}) ||
			len(st.ContainerStatuses) != 1 || !st.ContainerStatuses[0].Ready || st.ContainerStatuses[0].State.Running == nil || st.ContainerStatuses[0].ContainerID == "" {
			t.Errorf("Pod %s: status %+v", p.Name, st)
		}
	}
	wait.NoError(t, "a Service without endpoints refuses", func() error {
		// The app says of a failed call why it failed.
		a, err := c.get(t.Context(), "http://"+shopper.Status.PodIP+":9081/")
		if err == nil && (len(a.Calls) != 1 || !strings.Contains(a.Calls[0].Error, "connection refused")) {
			err = fmt.Errorf("the answer is %+v", a)
		}
		return err
	})
}
