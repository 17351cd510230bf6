package kubetest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Load says how many objects [Cluster.Fill] makes. Services and Pods are spread evenly over the namespaces.
type Load struct {
	// Namespaces, named load-0 and so on; each has at least one Service.
	Namespaces int
	// Services, named svc-0 and so on, with an HTTP and a TCP port each; svc-N is in namespace N mod Namespaces.
	Services int
	// Pods, named pod-0 and so on; pod-N is of svc-(N mod Services), in its namespace, at [PodAddress](N). At most 65,000.
	Pods int
}

// podsPerNode is how many Pods of Fill are on one of its Nodes.
const podsPerNode = 100

// concurrency is how many requests parallel has in flight.
const concurrency = 32

// PodAddress is the address of a Pod of [Cluster.Fill].
func PodAddress(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 244, byte(n >> 8), byte(n)})
}

// Fill makes namespaces, Nodes in three zones, Services, Pods that run and are ready, and EndpointSlices, as controllers and
// kubelets would: 10,000 Pods and 1,000 Services take one to three minutes on 2 cores. The cluster must have no controllers of its own. Nothing
// is deleted: end the cluster.
func (c *Cluster) Fill(ctx context.Context, l Load) error {
	if c.program(controllersName) != nil {
		return errors.New("fill the cluster: it has a controller manager, which would change the objects: want Options.Controllers empty and not nil")
	}
	if l.Namespaces < 1 || l.Services < l.Namespaces || l.Pods < 0 || l.Pods > 65_000 {
		return fmt.Errorf("fill the cluster: %d namespaces, %d Services, %d Pods: want at least 1 namespace, a Service for each namespace, 0–65,000 Pods", l.Namespaces, l.Services, l.Pods)
	}
	config := rest.CopyConfig(c.Config)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("fill the cluster: %w", err)
	}
	f := filler{client: client, load: l}
	for _, step := range []struct {
		count int
		make  func(context.Context, int) error
	}{
		{l.Namespaces, f.namespace},
		{(l.Pods + podsPerNode - 1) / podsPerNode, func(ctx context.Context, n int) error {
			return c.MakeNode(ctx, nodeName(n), map[string]string{
				corev1.LabelTopologyRegion: "region", corev1.LabelTopologyZone: "zone-" + strconv.Itoa(n%3), corev1.LabelHostname: nodeName(n),
			})
		}},
		{l.Services, f.service},
		{l.Pods, f.pod},
		{l.Services, f.endpointSlice},
	} {
		if err := parallel(ctx, step.count, step.make); err != nil {
			return fmt.Errorf("fill the cluster: %w", err)
		}
	}
	return nil
}

// parallel calls each for 0 … count-1, as many at a time as concurrency says, and returns the first error.
func parallel(ctx context.Context, count int, each func(context.Context, int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	numbers := make(chan int)
	var group sync.WaitGroup
	for range concurrency {
		group.Go(func() {
			for n := range numbers {
				if err := each(ctx, n); err != nil {
					cancel(err)
				}
			}
		})
	}
	for n := range count {
		if ctx.Err() != nil {
			break
		}
		numbers <- n
	}
	close(numbers)
	group.Wait()
	return context.Cause(ctx)
}

// filler makes the objects of one load.
type filler struct {
	client kubernetes.Interface
	load   Load
}

func nodeName(n int) string           { return "node-" + strconv.Itoa(n) }
func serviceName(n int) string        { return "svc-" + strconv.Itoa(n) }
func podName(n int) string            { return "pod-" + strconv.Itoa(n) }
func (f filler) podService(n int) int { return n % f.load.Services }
func (f filler) namespaceOf(service int) string {
	return "load-" + strconv.Itoa(service%f.load.Namespaces)
}

// namespace makes a namespace with the ServiceAccount that Pods need.
func (f filler) namespace(ctx context.Context, n int) error {
	name := f.namespaceOf(n)
	_, err := f.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = f.client.CoreV1().ServiceAccounts(name).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	return err
}

func (f filler) service(ctx context.Context, n int) error {
	http := "http"
	_, err := f.client.CoreV1().Services(f.namespaceOf(n)).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: serviceName(n), Labels: map[string]string{"app": serviceName(n)}},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": serviceName(n)},
			Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080), AppProtocol: &http},
				{Name: "tcp-data", Port: 9000, TargetPort: intstr.FromInt32(9000)},
			},
		},
	}, metav1.CreateOptions{})
	return err
}

// pod makes a Pod as a Deployment would, of the size that Pods usually have, and writes its status.
func (f filler) pod(ctx context.Context, n int) error {
	app := serviceName(f.podService(n))
	var env []corev1.EnvVar
	for i := range 10 {
		env = append(env, corev1.EnvVar{Name: "SETTING_" + strconv.Itoa(i), Value: "a value of the usual length"})
	}
	pods := f.client.CoreV1().Pods(f.namespaceOf(f.podService(n)))
	pod, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: podName(n),
			Labels: map[string]string{
				"app": app, "version": "v1", "pod-template-hash": "5d8f6c9b7d", "app.kubernetes.io/name": app, "app.kubernetes.io/part-of": "load",
			},
			Annotations: map[string]string{"prometheus.io/scrape": "true", "prometheus.io/port": "9090", "checksum/config": "0123456789abcdef0123456789abcdef0123456789abcdef"},
		},
		Spec: corev1.PodSpec{
			NodeName: nodeName(n / podsPerNode),
			Containers: []corev1.Container{{
				Name: "app", Image: "registry.example/" + app + ":v1", Env: env,
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}, {Name: "tcp-data", ContainerPort: 9000}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	pod.Status = runningStatus(pod, []netip.Addr{PodAddress(n)})
	_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

// endpointSlice makes the EndpointSlice of a Service, with all its Pods.
func (f filler) endpointSlice(ctx context.Context, n int) error {
	yes, no, tcp := true, false, corev1.ProtocolTCP
	http, data, httpPort, dataPort := "http", "tcp-data", int32(8080), int32(9000)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:   serviceName(n) + "-0",
			Labels: map[string]string{discoveryv1.LabelServiceName: serviceName(n), discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io", "app": serviceName(n)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &http, Port: &httpPort, Protocol: &tcp, AppProtocol: &http}, {Name: &data, Port: &dataPort, Protocol: &tcp}},
	}
	for pod := n; pod < f.load.Pods; pod += f.load.Services {
		node, zone := nodeName(pod/podsPerNode), "zone-"+strconv.Itoa(pod/podsPerNode%3)
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{PodAddress(pod).String()}, NodeName: &node, Zone: &zone,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: f.namespaceOf(n), Name: podName(pod)},
		})
	}
	_, err := f.client.DiscoveryV1().EndpointSlices(f.namespaceOf(n)).Create(ctx, slice, metav1.CreateOptions{})
	return err
}
