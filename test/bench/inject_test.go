package bench

import (
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/pilothouse/pilothouse/internal/discovery/inject"
	"github.com/pilothouse/pilothouse/internal/discovery/webhook"
)

// BenchmarkInject injects one Pod as the webhook does: the decision, the Pod and its patch. It also reports the
// processor time, and how long the slowest hundredth takes, whose budget is 20 ms.
func BenchmarkInject(b *testing.B) {
	c, err := inject.New(inject.Options{Values: `{"sidecarInjectorWebhook": {"rewriteAppHTTPProbe": true}}`, Memo: &webhook.Memo{}})
	if err != nil {
		b.Fatal(err)
	}
	pod := benchPod()
	r := inject.Request{Pod: pod, NamespaceLabels: map[string]string{"istio-injection": "enabled"}, Kubelets: []string{"v1.34.1"}}
	var took []time.Duration
	var before, after syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		start := time.Now()
		if d := c.Decide(r); !d.Inject {
			b.Fatal(d.Message)
		}
		if _, err := c.Inject(r); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
		b.Fatal(err)
	}
	used := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	b.ReportMetric(float64(used.Microseconds())/1000/float64(len(took)), "cpu-ms/op")
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}

// benchPod is a Pod of a Deployment with two containers.
func benchPod() *corev1.Pod {
	yes := true
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(8080)}}}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "shop-6d4cf56db6-", Namespace: "bookshop", Labels: map[string]string{"app": "shop", "pod-template-hash": "6d4cf56db6"},
			Annotations:     map[string]string{"prometheus.io/port": "9102", "proxy.istio.io/config": "concurrency: 2\nproxyMetadata: {A: b}"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "shop-6d4cf56db6", Controller: &yes}},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "shop", Image: "shop:1", Ports: []corev1.ContainerPort{{ContainerPort: 8080}}, ReadinessProbe: probe, LivenessProbe: probe},
			{Name: "cache", Image: "cache:1"},
		}},
	}
}
