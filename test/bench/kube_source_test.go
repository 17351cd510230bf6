package bench

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/discovery/source/kube"
	"github.com/pilothouse/pilothouse/internal/object"
)

// BenchmarkKubernetesSync reads a cluster of 10,000 Pods, of about 5 KB each, and 1,000 Services from an API server that
// answers at once. It reports what the source and its objects keep in memory, for each Pod, and the size of a response.
func BenchmarkKubernetesSync(b *testing.B) {
	const pods, services = 10_000, 1_000
	s := httptest.NewServer(cluster(b, pods, services))
	defer s.Close()
	for b.Loop() {
		b.StopTimer()
		before := heap()
		b.StartTimer()
		ctx, cancel := context.WithCancel(b.Context())
		source, err := kube.New(kube.Options{Config: &rest.Config{Host: s.URL, QPS: -1}, Cluster: "Kubernetes"})
		if err != nil {
			b.Fatal(err)
		}
		var mu sync.Mutex
		var kept []object.Change
		synced, done := make(chan struct{}), make(chan error, 1)
		go func() {
			done <- source.Run(ctx, func(batch object.Batch) {
				mu.Lock()
				defer mu.Unlock()
				if kept = append(kept, batch.Changes...); batch.Synced {
					close(synced)
				}
			})
		}()
		<-synced
		b.StopTimer()
		mu.Lock()
		if n := len(kept); n != pods+2*services {
			b.Errorf("%d objects", n)
		}
		kept = nil
		mu.Unlock()
		used := heap() - before
		b.ReportMetric(float64(used)/(1<<20), "MB-kept")
		b.ReportMetric(float64(used)/(pods+2*services), "B/object")
		cancel()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		runtime.KeepAlive(source)
		b.StartTimer()
	}
}

// cluster answers lists with pages that are encoded beforehand, and keeps watches open.
func cluster(b *testing.B, pods, services int) http.Handler {
	b.Helper()
	pages := map[string][][]byte{
		"/api/v1/pods":     encode(b, pods, func(i int, l *corev1.PodList) { l.Items = append(l.Items, pod(i)) }),
		"/api/v1/services": encode(b, services, func(i int, l *corev1.ServiceList) { l.Items = append(l.Items, service(i)) }),
		"/apis/discovery.k8s.io/v1/endpointslices": encode(b, services, func(i int, l *discoveryv1.EndpointSliceList) {
			l.Items = append(l.Items, slice(i, pods/services))
		}),
		"/api/v1/nodes":      encode(b, 0, func(int, *corev1.NodeList) {}),
		"/api/v1/namespaces": encode(b, 0, func(int, *corev1.NamespaceList) {}),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		switch {
		case q.Get("sendInitialEvents") != "":
			w.WriteHeader(http.StatusUnprocessableEntity)
		case q.Get("watch") != "":
			w.Header().Set("Content-Type", "application/json")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		case strings.HasSuffix(r.URL.Path, "/customresourcedefinitions"):
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"},"items":[]}`)
		default:
			page, _ := strconv.Atoi(q.Get("continue"))
			w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
			_, _ = w.Write(pages[r.URL.Path][page])
		}
	})
}

// encode makes pages of 500 objects.
func encode[L any, P interface {
	*L
	k8sruntime.Object
	metav1.ListInterface
}](b *testing.B, n int, add func(int, *L)) [][]byte {
	b.Helper()
	var out [][]byte
	for i := 0; i < n || len(out) == 0; {
		l := new(L)
		for range min(500, n-i) {
			add(i, l)
			i++
		}
		P(l).SetResourceVersion("1")
		if i < n {
			P(l).SetContinue(strconv.Itoa(len(out) + 1))
		}
		kinds, _, err := scheme.Scheme.ObjectKinds(P(l))
		if err != nil {
			b.Fatal(err)
		}
		codec := scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), kinds[0].GroupVersion())
		text, err := k8sruntime.Encode(codec, P(l))
		if err != nil {
			b.Fatal(err)
		}
		out = append(out, text)
	}
	return out
}

func name(i int) string { return fmt.Sprintf("app-%d-7d9c6b5f48-x%04d", i/10, i) }

func address(i int) string { return fmt.Sprintf("10.%d.%d.%d", 244+i>>16, i>>8&255, i&255) }

// pod is a Pod as a Deployment makes one, with a sidecar.
func pod(i int) corev1.Pod {
	labels := map[string]string{
		"app": fmt.Sprintf("app-%d", i/10), "version": "v1", "pod-template-hash": "7d9c6b5f48", "security.istio.io/tlsMode": "istio",
		"service.istio.io/canonical-name": fmt.Sprintf("app-%d", i/10), "service.istio.io/canonical-revision": "v1",
	}
	var env []corev1.EnvVar
	for j := range 20 {
		env = append(env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", j), Value: strings.Repeat("v", 40)})
	}
	container := corev1.Container{Name: "app", Image: "registry.example.com/team/app:1.2.3", Env: env, Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: "TCP"}}}
	sidecar := container
	sidecar.Name = "istio-proxy"
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name(i), Namespace: fmt.Sprintf("team-%d", i%20), UID: "f3a1b2c4-0000-0000-0000-000000000000", ResourceVersion: strconv.Itoa(i + 1), Labels: labels,
			CreationTimestamp: metav1.NewTime(time.Unix(1_700_000_000, 0)), Annotations: map[string]string{"sidecar.istio.io/status": strings.Repeat("s", 600), "prometheus.io/scrape": "true"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet", Operation: "Update", FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:conditions":{` + strings.Repeat(" ", 1200) + `}}}`)}},
		},
		Spec:   corev1.PodSpec{ServiceAccountName: "app", NodeName: fmt.Sprintf("node-%d", i%100), Containers: []corev1.Container{container, sidecar}},
		Status: corev1.PodStatus{Phase: "Running", PodIP: address(i), PodIPs: []corev1.PodIP{{IP: address(i)}}, Conditions: []corev1.PodCondition{{Type: "Ready", Status: "True"}}},
	}
}

func service(i int) corev1.Service {
	return corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("app-%d", i), Namespace: fmt.Sprintf("team-%d", i%20), ResourceVersion: strconv.Itoa(i + 1)},
		Spec:       corev1.ServiceSpec{ClusterIP: fmt.Sprintf("10.96.%d.%d", i>>8, i&255), Selector: map[string]string{"app": fmt.Sprintf("app-%d", i)}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
}

func slice(i, endpoints int) discoveryv1.EndpointSlice {
	port, ready := int32(8080), true
	s := discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: fmt.Sprintf("app-%d-abcde", i), Namespace: fmt.Sprintf("team-%d", i%20), ResourceVersion: strconv.Itoa(i + 1), Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("app-%d", i)}},
		AddressType: "IPv4", Ports: []discoveryv1.EndpointPort{{Port: &port}},
	}
	for j := range endpoints {
		n := i*endpoints + j
		node := fmt.Sprintf("node-%d", n%100)
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{address(n)}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}, NodeName: &node, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: name(n)}})
	}
	return s
}
