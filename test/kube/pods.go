package kubetest

import (
	"context"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Node makes a Node that is ready and has room for 10,000 Pods, but exists in the API alone. It is deleted at the end of
// the test.
func (c *Cluster) Node(t testing.TB, name string, labels map[string]string) {
	t.Helper()
	if err := c.MakeNode(t.Context(), name, labels); err != nil {
		t.Fatalf("make Node %s: %v", name, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupBound)
		defer cancel()
		if err := c.Client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("delete Node %s: %v", name, err)
		}
	})
}

// MakeNode is [Cluster.Node] without a test; nothing deletes the Node.
func (c *Cluster) MakeNode(ctx context.Context, name string, labels map[string]string) error {
	nodes := c.Client.CoreV1().Nodes()
	node, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	room := corev1.ResourceList{
		corev1.ResourcePods: resource.MustParse("10k"), corev1.ResourceCPU: resource.MustParse("10k"), corev1.ResourceMemory: resource.MustParse("10Ti"),
	}
	node.Status.Capacity, node.Status.Allocatable = room, room
	node.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
	}}
	_, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{})
	return err
}

// PodRunning writes the status of a Pod that runs and is ready, as a kubelet would, with its addresses. Those of EndpointSlices
// must not be in 127.0.0.0/8.
func (c *Cluster) PodRunning(t testing.TB, namespace, name string, addresses ...netip.Addr) {
	t.Helper()
	pod, err := c.Client.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("write the status of Pod %s/%s: %v", namespace, name, err)
	}
	pod.Status = runningStatus(pod, addresses)
	if _, err := c.Client.CoreV1().Pods(namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("write the status of Pod %s/%s: %v", namespace, name, err)
	}
}

func runningStatus(pod *corev1.Pod, addresses []netip.Addr) corev1.PodStatus {
	now := metav1.NewTime(time.Now())
	status := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now, QOSClass: pod.Status.QOSClass}
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	for i, a := range addresses {
		if i == 0 {
			status.PodIP = a.String()
		}
		status.PodIPs = append(status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
	started := true
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{Name: container.Name, Image: container.Image, Ready: true, Started: &started, State: running})
	}
	for _, container := range pod.Spec.InitContainers {
		if container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			status.InitContainerStatuses = append(status.InitContainerStatuses, corev1.ContainerStatus{Name: container.Name, Image: container.Image, Ready: true, Started: &started, State: running})
			continue
		}
		ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: now}}
		status.InitContainerStatuses = append(status.InitContainerStatuses, corev1.ContainerStatus{Name: container.Name, Image: container.Image, Ready: true, State: ended})
	}
	return status
}
