package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pilothouse/pilothouse/internal/demo"
	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/kube/clusterup"
)

const (
	system   = "istio-system"
	shop     = "bookshop"
	replicas = 2 // of pilot-discovery
)

// values are those of the chart. Nothing is retried anywhere, as in the sample: the demo counts every request.
var values = fmt.Sprintf(`autoscaleEnabled: false
replicaCount: %d
meshConfig:
  defaultHttpRetryPolicy: {attempts: 0}
  defaultConfig:
    %s
`, replicas, strings.ReplaceAll(meshup.CountFailures, "\n", "\n    "))

// cluster is the mesh of the demo in a cluster.
type cluster struct {
	*clusterup.Cluster
	site demo.Site
	pods []demo.Pod
}

// start starts the cluster and the mesh in it.
func (s site) start(ctx context.Context, d demo.Site) (demo.Mesh, error) {
	c := &cluster{site: d}
	if err := c.start(ctx, s); err != nil {
		if c.Cluster != nil {
			err = errors.Join(c.explain(err), c.Close())
		}
		return nil, err
	}
	return c, nil
}

func (c *cluster) start(ctx context.Context, s site) error {
	line := c.site.Line
	line("packing the Helm charts")
	files, err := clusterup.Build(ctx, c.site.WorkDir)
	if err != nil {
		return err
	}
	line("starting Kubernetes: etcd, API server, controllers, scheduler, and a Node whose containers are processes")
	c.Cluster, err = clusterup.Start(ctx, clusterup.Options{Programs: s.programs, Files: files, Dir: c.site.WorkDir, Log: c.site.Log})
	if err != nil {
		return err
	}
	line("helm install mesh %s --namespace %s --create-namespace", filepath.Base(files.Control), system)
	if err := c.Install(ctx, "mesh", system, files.Control, values); err != nil {
		return err
	}
	if err := c.awaitReady(ctx, system, replicas); err != nil {
		return err
	}
	line("applying samples/bookshop, with its Pods as Deployments, to a namespace with the label istio-injection=enabled")
	if err := c.apply(ctx, s.deployments); err != nil {
		return err
	}
	if err := c.findPods(ctx); err != nil {
		return err
	}
	if err := c.applyGateways(ctx); err != nil {
		return err
	}
	return c.awaitEndpoints(ctx)
}

// applyGateways applies what the gateways serve. The ServiceEntry of the service outside gets the address of its Pod.
func (c *cluster) applyGateways(ctx context.Context) error {
	const egress = "61-egress.yaml"
	i := slices.IndexFunc(c.pods, func(p demo.Pod) bool { return p.Workload == "news" })
	if i < 0 {
		return errors.New("apply the bookshop: there is no Pod of news")
	}
	file := filepath.Join(c.site.ConfigDir, egress)
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, newsAddress.ReplaceAll(text, []byte("address: "+c.pods[i].IP.String())), 0o644)
	}
	if err != nil {
		return fmt.Errorf("apply the bookshop: %w", err)
	}
	for _, name := range []string{"65-certificate.yaml", "60-ingress.yaml", egress} {
		if err := c.Applied(ctx, filepath.Join(c.site.ConfigDir, name)); err != nil {
			return err
		}
	}
	return nil
}

// newsAddress is the address in the sample's ServiceEntry.
var newsAddress = regexp.MustCompile(`address: [0-9.]+`)

// apply applies the sample: its namespace, which is injected, and all of it but the Pods, which Deployments make.
func (c *cluster) apply(ctx context.Context, deployments string) error {
	namespace := fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %s, labels: {istio-injection: enabled}}\n", shop)
	if _, err := c.ApplyYAML(ctx, "", namespace); err != nil {
		return err
	}
	for _, file := range []string{"10-services.yaml", "20-accounts.yaml", "40-routing.yaml", "50-security.yaml", deployments} {
		if !filepath.IsAbs(file) {
			file = filepath.Join(c.site.ConfigDir, file)
		}
		if err := c.Applied(ctx, file); err != nil {
			return err
		}
	}
	return nil
}

// Applied implements demo.Mesh: it applies the file, as kubectl does.
func (c *cluster) Applied(ctx context.Context, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("apply the bookshop: %w", err)
	}
	_, err = c.ApplyYAML(ctx, shop, string(text))
	return err
}

// startBound is the longest time until the Pods of a namespace are ready.
const startBound = 10 * time.Minute

// awaitReady waits until a number of Pods of a namespace are ready, and says which are missing.
func (c *cluster) awaitReady(ctx context.Context, namespace string, want int) error {
	said := ""
	return meshup.Await(ctx, startBound, fmt.Sprintf("%d Pods in %s are ready", want, namespace), func(ctx context.Context) error {
		pods, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var missing []string
		for _, p := range pods.Items {
			if !ready(&p) {
				missing = append(missing, p.Name)
			}
		}
		have := len(pods.Items) - len(missing)
		if text := fmt.Sprintf("  %d of %d Pods in %s are ready", have, want, namespace); text != said {
			said = text
			c.site.Line("%s", text)
		}
		if have < want || len(missing) > 0 {
			return fmt.Errorf("%d are; these are not: %s", have, strings.Join(missing, ", "))
		}
		return nil
	})
}

func ready(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// findPods waits for the Pods of the Deployments.
func (c *cluster) findPods(ctx context.Context) error {
	deployments, err := c.Client.AppsV1().Deployments(shop).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if err := c.awaitReady(ctx, shop, len(deployments.Items)); err != nil {
		return err
	}
	for _, d := range deployments.Items {
		selector := metav1.FormatLabelSelector(d.Spec.Selector)
		pods, err := c.Client.CoreV1().Pods(shop).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 {
			return fmt.Errorf("the Deployment %s has %d Pods: want one", d.Name, len(pods.Items))
		}
		c.pods = append(c.pods, c.pod(d.Name, &pods.Items[0]))
	}
	return nil
}

// proxy is the container with the agent.
const proxy = "istio-proxy"

func (c *cluster) pod(workload string, p *corev1.Pod) demo.Pod {
	out := demo.Pod{Workload: workload}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		out.Proxied = out.Proxied || slices.ContainsFunc(list, func(c corev1.Container) bool { return c.Name == proxy })
	}
	out.IP, _ = netip.ParseAddr(p.Status.PodIP) // of a Pod that is ready
	out.Inspector = meshup.Inspector{
		Name: p.Name + "." + p.Namespace, From: dialer{c, p.Namespace, p.Name}, AppPort: "9080",
		AgentPID: func() (int, error) { return c.Node.PID(p.Namespace, p.Name, proxy) },
	}
	return out
}

// dialer makes connections from a Pod.
type dialer struct {
	cluster         *cluster
	namespace, name string
}

// Dial implements meshup.Dialer.
func (d dialer) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return d.cluster.Node.DialFrom(ctx, d.namespace, d.name, network, addr)
}

// Pods implements demo.Mesh.
func (c *cluster) Pods() []demo.Pod { return c.pods }

// discovery lists the Pods of pilot-discovery.
func (c *cluster) discovery(ctx context.Context) ([]corev1.Pod, error) {
	pods, err := c.Client.CoreV1().Pods(system).List(ctx, metav1.ListOptions{LabelSelector: "app=istiod"})
	if err != nil {
		return nil, err
	}
	return pods.Items, nil
}

// Discovery implements demo.Mesh.
func (c *cluster) Discovery(ctx context.Context) ([]meshup.Dialer, error) {
	pods, err := c.discovery(ctx)
	var out []meshup.Dialer
	for _, p := range pods {
		if ready(&p) {
			out = append(out, dialer{c, system, p.Name})
		}
	}
	return out, err
}

// scale sets the number of replicas of pilot-discovery.
func (c *cluster) scale(ctx context.Context, to int) error {
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, to)
	_, err := c.Client.AppsV1().Deployments(system).Patch(ctx, "istiod", types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// KillDiscovery implements demo.Mesh. All replicas are killed; the Deployment has none until they are to start again.
func (c *cluster) KillDiscovery(ctx context.Context) error {
	pods, err := c.discovery(ctx)
	if err != nil {
		return err
	}
	for _, p := range pods {
		pid, err := c.Node.PID(system, p.Name, "discovery")
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err != nil {
			return fmt.Errorf("kill pilot-discovery: %w", err)
		}
	}
	if err := c.scale(ctx, 0); err != nil {
		return err
	}
	return meshup.Await(ctx, time.Minute, "pilot-discovery does not run", func(ctx context.Context) error {
		pods, err := c.discovery(ctx)
		if err == nil && len(pods) > 0 {
			err = fmt.Errorf("there are %d Pods", len(pods))
		}
		return err
	})
}

// StartDiscovery implements demo.Mesh.
func (c *cluster) StartDiscovery(ctx context.Context) error {
	if err := c.scale(ctx, replicas); err != nil {
		return err
	}
	return c.awaitReady(ctx, system, replicas)
}

// Hints implements demo.Mesh.
func (c *cluster) Hints() []string {
	return []string{"export KUBECONFIG=" + c.Kubeconfig() + "        kubectl, helm and pilotctl use it"}
}

// Close implements demo.Mesh; the containers' logs go to the working directory first.
func (c *cluster) Close() error { return errors.Join(c.writeLogs(), c.Cluster.Close()) }
