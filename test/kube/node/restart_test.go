package node_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/test/kube/node"
	"github.com/pilothouse/pilothouse/test/wait"
)

// A container that ends is started again and counted, and the log of the start before is kept.
func TestContainersAreRestarted(t *testing.T) {
	c := start(t, nil)
	c.apply(t, `
apiVersion: v1
kind: Pod
metadata: {name: crash}
spec:
  containers:
  - name: app
    image: shell
    args: ["echo start >> /shared/starts; n=$(wc -l < /shared/starts); echo this is start $n; [ $n -ge 3 ] || exit 4; sleep 1000"]
    volumeMounts: [{name: shared, mountPath: /shared}]
  volumes: [{name: shared, emptyDir: {}}]
`)
	pod := c.pod(t, "crash", "runs after two restarts", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount == 2 && is(p, corev1.PodReady)
	})
	if last := pod.Status.ContainerStatuses[0].LastTerminationState.Terminated; last == nil || last.ExitCode != 4 || last.Reason != "Error" {
		t.Errorf("the last end is %+v", last)
	}
	if got := c.logs(t, "crash", "app", corev1.PodLogOptions{Previous: true}); got != "this is start 2\n" {
		t.Errorf("the previous log is %q", got)
	}
}

// A failed liveness probe ends the container, by SIGKILL when it does not end on SIGTERM, and another is started.
func TestLivenessProbeRestarts(t *testing.T) {
	c := start(t, nil)
	c.apply(t, `
apiVersion: v1
kind: Pod
metadata: {name: live}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: shell
    args: ["trap '' TERM; touch /tmp/alive; echo started; while :; do sleep 0.1; done"]
    startupProbe: {exec: {command: [test, -f, /tmp/alive]}, periodSeconds: 1, failureThreshold: 60}
    livenessProbe: {exec: {command: [test, -f, /tmp/alive]}, periodSeconds: 1, failureThreshold: 1}
`)
	c.running(t, "live")
	if _, err := c.exec(t, "live", "app", "rm /tmp/alive"); err != nil {
		t.Fatal(err)
	}
	pod := c.pod(t, "live", "was restarted", func(p *corev1.Pod) bool {
		return p.Status.ContainerStatuses[0].RestartCount == 1 && is(p, corev1.PodReady)
	})
	if last := pod.Status.ContainerStatuses[0].LastTerminationState.Terminated; last == nil || last.ExitCode != 137 || last.Signal != int32(syscall.SIGKILL) {
		t.Errorf("the last end is %+v", last)
	}
}

// A Job's Pod ends, with its sidecar, and is counted by the Job.
func TestJobCompletes(t *testing.T) {
	c := start(t, nil)
	c.apply(t, `
apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec:
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 5
      initContainers:
      - {name: proxy, image: shell, restartPolicy: Always, args: ["trap 'exit 0' TERM; while :; do sleep 0.1; done"]}
      containers:
      - {name: job, image: shell, args: ["echo result"]}
`)
	wait.NoError(t, "the Job is complete", func() error {
		job, err := c.Client.BatchV1().Jobs(c.namespace).Get(t.Context(), "once", metav1.GetOptions{})
		if err == nil && job.Status.Succeeded != 1 {
			err = fmt.Errorf("its status is %+v", job.Status)
		}
		return err
	})
}

// What the node cannot do is refused, with the field's name.
func TestUnsupportedPodFails(t *testing.T) {
	c := start(t, nil)
	c.apply(t, `
apiVersion: v1
kind: Pod
metadata: {name: host}
spec: {hostNetwork: true, containers: [{name: app, image: shell, args: ["true"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: unknown}
spec: {containers: [{name: app, image: "example.com/unknown:1"}]}
`)
	c.pod(t, "host", "has failed", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodFailed && p.Status.Reason == "UnsupportedByNode" && strings.Contains(p.Status.Message, "spec.hostNetwork")
	})
	c.pod(t, "unknown", "waits for its image", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			p.Status.ContainerStatuses[0].State.Waiting.Reason == "ImagePullBackOff"
	})
}

// A Pod that is deleted leaves no process, also one that was started by another, and no file; its root directory and
// its mounts were never on this machine's.
func TestDeletedPodLeavesNothing(t *testing.T) {
	var dir string
	c := start(t, func(o *node.Options) { dir = o.Dir })
	c.apply(t, `
apiVersion: v1
kind: Pod
metadata: {name: family}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: shell
    args: ["setsid sh -c 'sleep 1000 & sleep 1000' & echo ready > /tmp/up; wait"]
    readinessProbe: {exec: {command: [test, -f, /tmp/up]}, periodSeconds: 1}
    volumeMounts: [{name: shared, mountPath: /shared}]
  volumes: [{name: shared, emptyDir: {}}]
`)
	pod := c.running(t, "family")
	if pids := inPod(t, string(pod.UID)); len(pids) < 2 {
		t.Errorf("the Pod's processes are %v", pids)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), dir) {
		t.Errorf("a mount of the Pod is on this machine:\n%s", mounts)
	}
	ended := c.endOf(t, "family")
	if err := c.Client.CoreV1().Pods(c.namespace).Delete(t.Context(), "family", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ended()
	if pids := inPod(t, string(pod.UID)); len(pids) > 0 {
		t.Errorf("processes that outlived their Pod: %v", pids)
	}
	wait.NoError(t, "the Pod's files are gone", func() error {
		if _, err := os.Stat(filepath.Join(dir, string(pod.UID))); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("they are there: %w", err)
		}
		return nil
	})
}

// inPod lists the processes with the root directory of a Pod's container, by the Pod's directory in their mounts.
func inPod(t *testing.T, uid string) []int {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, d := range dirs {
		text, err := os.ReadFile(filepath.Join(d, "mountinfo"))
		if err != nil || !strings.Contains(string(text), uid) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(d))
		if err != nil {
			t.Fatal(err)
		}
		if pid != os.Getpid() {
			out = append(out, pid)
		}
	}
	return out
}
