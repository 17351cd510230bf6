package node_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/test/wait"
)

// logs is the log of a container, as the API server gets it from the node.
func (c *cluster) logs(t *testing.T, pod, container string, o corev1.PodLogOptions) string {
	t.Helper()
	o.Container = container
	text, err := c.Client.CoreV1().Pods(c.namespace).GetLogs(pod, &o).DoRaw(t.Context())
	if err != nil {
		t.Fatalf("logs of %s in Pod %s: %v", container, pod, err)
	}
	return string(text)
}

// sequencePod has everything that is started in order. Each container appends its name to a file of an emptyDir when it
// starts and when it ends.
const sequencePod = `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {color: blue, size: large}
---
apiVersion: v1
kind: Secret
metadata: {name: password}
stringData: {text: s3cret}
---
apiVersion: v1
kind: Pod
metadata: {name: sequence, labels: {app: sequence}, annotations: {note: first}}
spec:
  terminationGracePeriodSeconds: 20
  securityContext: {fsGroup: 3000, runAsUser: 1500, runAsGroup: 1501}
  initContainers:
  - name: one
    image: shell
    command: [/bin/sh, -c]
    args: ["umask 0; echo one >> /shared/order; id -u; id -g; id -G; echo done > /dev/termination-log"]
    volumeMounts: [{name: shared, mountPath: /shared}]
  - name: proxy
    image: shell
    restartPolicy: Always
    args: ["echo proxy >> /shared/order; touch /shared/up; trap 'echo proxy ends >> /shared/order; exit 0' TERM; while :; do sleep 0.1; done"]
    startupProbe: {exec: {command: [test, -f, /shared/up]}, periodSeconds: 1, failureThreshold: 60}
    volumeMounts: [{name: shared, mountPath: /shared}]
  - name: two
    image: shell
    args: ["test -f /shared/up && echo two >> /shared/order"]
    volumeMounts: [{name: shared, mountPath: /shared}]
  containers:
  - name: app
    image: shell
    args:
    - |
      echo "app of $(POD) $(COLOR) at $(MY_IP) with $(CPU) CPUs" >> /shared/order
      trap 'echo app ends >> /shared/order; exit 0' TERM
      while :; do sleep 0.1; done
    env:
    - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: COLOR, valueFrom: {configMapKeyRef: {name: settings, key: color}}}
    - {name: MY_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
    resources: {limits: {cpu: "2"}}
    securityContext: {runAsUser: 2000}
    lifecycle:
      # The hook runs concurrently with the command of the container.
      postStart: {exec: {command: [/bin/sh, -c, "until grep -q app /shared/order; do sleep 0.1; done; echo hook >> /shared/order"]}}
      preStop: {exec: {command: [/bin/sh, -c, "echo before the end >> /shared/order"]}}
    readinessProbe: {exec: {command: [grep, -q, hook, /shared/order]}, periodSeconds: 1}
    volumeMounts:
    - {name: shared, mountPath: /shared}
    - {name: config, mountPath: /etc/config}
    - {name: config, mountPath: /etc/single/color, subPath: color}
    - {name: password, mountPath: /var/run/secrets/password}
    - {name: info, mountPath: /etc/info}
    - {name: token, mountPath: /var/run/secrets/tokens}
  volumes:
  - {name: shared, emptyDir: {}}
  - {name: config, configMap: {name: settings}}
  - {name: password, secret: {secretName: password, defaultMode: 256}}
  - {name: info, downwardAPI: {items: [{path: annotations, fieldRef: {fieldPath: metadata.annotations}}]}}
  - {name: token, projected: {sources: [{serviceAccountToken: {audience: istio-ca, expirationSeconds: 43200, path: istio-token}}]}}
`

// Init containers, a sidecar, hooks and the containers run in order; users, environment and volumes are the Pod's;
// volumes follow their sources; the sidecar ends last.
func TestPodRunsInOrderWithItsVolumes(t *testing.T) {
	c := start(t, nil)
	c.apply(t, sequencePod)
	pod := c.running(t, "sequence")
	if st := pod.Status.InitContainerStatuses[0].State.Terminated; st == nil || st.Message != "done\n" || st.Reason != "Completed" {
		t.Errorf("the first init container: %+v", pod.Status.InitContainerStatuses[0])
	}
	if got := c.logs(t, "sequence", "one", corev1.PodLogOptions{}); got != "1500\n1501\n1501 3000\n" {
		t.Errorf("the init container runs as %q", got)
	}
	order := fmt.Sprintf("one\nproxy\ntwo\napp of sequence blue at %s with 2 CPUs\nhook\n", pod.Status.PodIP)
	for command, want := range map[string]string{
		"cat /shared/order": order,
		"id -u":             "2000\n",
		"cat /etc/config/color /etc/single/color":                                             "blueblue",
		"cat /var/run/secrets/password/text; stat -c %a:%g -L /var/run/secrets/password/text": "s3cret440:3000\n",
		"cat /etc/info/annotations":                                                           `note="first"`,
		"readlink /etc/config/color":                                                          "..data/color\n",
		"cat /etc/hostname; hostname":                                                         "sequence\nsequence\n",
		"stat -c %a:%g /shared":                                                               "2777:3000\n",
		"ls /var/run/secrets/kubernetes.io/serviceaccount":                                    "ca.crt\nnamespace\ntoken\n",
		"touch /usr/x 2>&1 || echo refused":                                                   "touch: cannot touch '/usr/x': Read-only file system\nrefused\n",
	} {
		if out, err := c.exec(t, "sequence", "app", command); err != nil || out != want {
			t.Errorf("%s: %q, error %v; want %q", command, out, err, want)
		}
	}
	token, err := c.exec(t, "sequence", "app", "cat /var/run/secrets/tokens/istio-token")
	if err != nil || strings.Count(token, ".") != 2 {
		t.Errorf("the token is %q, error %v", token, err)
	}
	c.apply(t, strings.NewReplacer("color: blue", "color: green, extra: x").Replace(strings.Split(sequencePod, "---")[0]))
	wait.NoError(t, "the volume has the new ConfigMap", func() error {
		out, err := c.exec(t, "sequence", "app", "cat /etc/config/color /etc/config/extra /etc/single/color")
		// A subPath stays as it was, as with the kubelet.
		if err == nil && out != "greenxblue" {
			err = fmt.Errorf("it has %q", out)
		}
		return err
	})
	if _, err := c.Client.CoreV1().Pods(c.namespace).Patch(t.Context(), "sequence", "application/merge-patch+json", []byte(`{"metadata":{"annotations":{"note":"second"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	wait.NoError(t, "the volume has the new annotation", func() error {
		out, err := c.exec(t, "sequence", "app", "cat /etc/info/annotations")
		if err == nil && out != `note="second"` {
			err = fmt.Errorf("it has %q", out)
		}
		return err
	})
	ended := c.endOf(t, "sequence")
	if err := c.Client.CoreV1().Pods(c.namespace).Delete(t.Context(), "sequence", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	last := ended()
	states := map[string]int32{}
	for _, s := range slices.Concat(last.Status.InitContainerStatuses, last.Status.ContainerStatuses) {
		if s.State.Terminated == nil {
			t.Errorf("container %s ended as %+v", s.Name, s.State)
			continue
		}
		states[s.Name] = s.State.Terminated.ExitCode
	}
	if states["app"] != 0 || states["proxy"] != 0 || last.Status.Phase != corev1.PodSucceeded {
		t.Errorf("the Pod ended as %s with exit codes %v", last.Status.Phase, states)
	}
	proxy, app := last.Status.InitContainerStatuses[1].State.Terminated, last.Status.ContainerStatuses[0].State.Terminated
	if proxy.FinishedAt.Before(&app.FinishedAt) {
		t.Errorf("the sidecar ended at %v, before the app at %v", proxy.FinishedAt, app.FinishedAt)
	}
}

// endOf watches a Pod from now on. The function that it returns waits until the Pod is gone, and returns it as it was
// last.
func (c *cluster) endOf(t *testing.T, name string) func() *corev1.Pod {
	t.Helper()
	w, err := c.Client.CoreV1().Pods(c.namespace).Watch(t.Context(), metav1.SingleObject(metav1.ObjectMeta{Name: name}))
	if err != nil {
		t.Fatal(err)
	}
	return func() *corev1.Pod {
		t.Helper()
		defer w.Stop()
		for event := range w.ResultChan() {
			if p, ok := event.Object.(*corev1.Pod); ok && event.Type == "DELETED" {
				return p
			}
		}
		t.Fatalf("the watch of Pod %s ended", name)
		return nil
	}
}
