package faults_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// many is the number of Pods that are made at once.
const many = 200

// 200 Pods are made at once: all get proxies, and none is refused. They have no Node, so that only the API server and
// pilot-discovery work for them.
func TestManyPodsAtOnce(t *testing.T) {
	s := start(t)
	l := s.load(t)
	namespace := s.Namespace(t, map[string]string{"istio-injection": "enabled"})
	took := make([]time.Duration, many)
	errs := make([]error, many)
	began := make(chan struct{})
	var group sync.WaitGroup
	for i := range many {
		group.Go(func() {
			p := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i), Labels: map[string]string{"app": "many"}},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{"such-a-node": "none"},
					Containers:   []corev1.Container{{Name: "app", Image: "pilothouse/app", Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}},
				},
			}
			<-began
			at := time.Now()
			made, err := s.Client.CoreV1().Pods(namespace).Create(t.Context(), p, metav1.CreateOptions{})
			took[i] = time.Since(at)
			if err == nil && !hasProxy(made) {
				err = fmt.Errorf("Pod %s has no proxy", p.Name)
			}
			errs[i] = err
		})
	}
	close(began)
	group.Wait()
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	slices.Sort(took)
	t.Logf("the median took %v, the 99th percentile %v, the slowest %v", took[many/2].Round(time.Millisecond), took[many*99/100].Round(time.Millisecond), took[many-1].Round(time.Millisecond))
	// They are part of the configuration now.
	s.arrives(t)
	l.stop(t)
}

func hasProxy(p *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(p.Spec.InitContainers, p.Spec.Containers), func(c corev1.Container) bool { return c.Name == "istio-proxy" })
}

// injectedBy is the image of the proxy that a Pod would get.
func (s site) injectedBy(ctx context.Context) (string, error) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "asks"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "pilothouse/app"}}}}
	made, err := s.Client.CoreV1().Pods(shop).Create(ctx, p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return "", err
	}
	for _, c := range slices.Concat(made.Spec.InitContainers, made.Spec.Containers) {
		if c.Name == "istio-proxy" {
			return c.Image, nil
		}
	}
	return "", nil
}
