// Package multi_test runs one mesh in two clusters.
//
// Each has an API server, a Node and a network of its own. Between the networks there are gateways, and no other way. The
// control plane is in the first cluster.
package multi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/kube/clusterup"
	"github.com/pilothouse/pilothouse/test/require"
	"github.com/pilothouse/pilothouse/test/wait"
)

const (
	system = "istio-system"
	shop   = "shop"
	// bound is the longest time until a condition holds.
	bound = 4 * time.Minute
	// remotePort is the port at which the network of the first cluster has the API server of the second one.
	remotePort = 6444
	// gatewayName is that of the gateways between the networks, in both clusters.
	gatewayName = "istio-eastwestgateway"
)

// site is the mesh of all tests.
type site struct {
	dir      string
	programs meshup.Programs
	files    clusterup.Files
	one, two *clusterup.Cluster
	links    links
	log      wait.Output
	err      error
}

var mesh = site{}

func TestMain(m *testing.M) {
	require.Root()
	require.Envoy()
	require.Kube()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	mesh.links.open = map[io.Closer]bool{}
	var err error
	if mesh.dir, err = os.MkdirTemp("", "multi-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	mesh.err = mesh.start(context.Background())
	code := m.Run()
	if err = errors.Join(mesh.close(), os.RemoveAll(mesh.dir)); err != nil {
		fmt.Fprintln(os.Stderr, "close the clusters:", err)
		code = max(code, 1)
	}
	return code
}

// start gives a test the mesh. If the test fails, the ends of all logs are in its output.
func start(t *testing.T) *site {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			mesh.show(t)
		}
	})
	if mesh.err != nil {
		t.Fatal(mesh.err)
	}
	return &mesh
}

func (s *site) close() error {
	s.links.close()
	var errs []error
	for _, c := range []*clusterup.Cluster{s.one, s.two} {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

func (s *site) start(ctx context.Context) (err error) {
	root, err := require.Repository()
	if err != nil {
		return err
	}
	envoy, err := require.EnvoyPath()
	if err != nil {
		return err
	}
	if s.programs, err = meshup.In(filepath.Join(root, "bin"), envoy); err != nil {
		return err
	}
	if s.files, err = clusterup.Build(ctx, s.dir); err != nil {
		return err
	}
	var both sync.WaitGroup
	var errs [2]error
	both.Go(func() { s.one, errs[0] = s.cluster(ctx, "one", "10.244.0.0/16") })
	both.Go(func() { s.two, errs[1] = s.cluster(ctx, "two", "10.245.0.0/16") })
	both.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	if err := s.connect(); err != nil {
		return err
	}
	return s.install(ctx)
}

func (s *site) cluster(ctx context.Context, name, subnet string) (*clusterup.Cluster, error) {
	dir := filepath.Join(s.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	log := slog.New(slog.NewTextHandler(&s.log, &slog.HandlerOptions{Level: slog.LevelDebug})).With("cluster", name)
	c, err := clusterup.Start(ctx, clusterup.Options{Programs: s.programs, Files: s.files, Dir: dir, Log: log, Subnet: netip.MustParsePrefix(subnet)})
	if err != nil {
		return nil, fmt.Errorf("start cluster %s: %w", name, err)
	}
	return c, nil
}

// connect makes the ways between the networks: each other's gateway, the control plane for the second cluster, and its
// API server for the control plane.
func (s *site) connect() error {
	to := func(c *clusterup.Cluster, addr string) func(context.Context) (net.Conn, error) {
		return func(ctx context.Context) (net.Conn, error) { return c.Network.Dial(ctx, "tcp", addr) }
	}
	server, err := url.Parse(s.two.Config.Host)
	if err != nil {
		return err
	}
	gateway := gatewayName + "." + system + ":15443"
	return errors.Join(
		s.links.add(s.one.Network, 15443, to(s.two, gateway)),
		s.links.add(s.two.Network, 15443, to(s.one, gateway)),
		s.links.add(s.two.Network, 15012, to(s.one, "istiod."+system+":15012")),
		s.links.add(s.two.Network, 15017, to(s.one, "istiod."+system+":443")),
		s.links.add(s.one.Network, remotePort, func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", server.Host)
		}),
	)
}

// namespaces are the control plane's and that of the workloads, in the cluster CLUSTER. The second one leaves its
// webhooks and roots to the control plane.
const namespaces = `
apiVersion: v1
kind: Namespace
metadata:
  name: istio-system
  labels: {topology.istio.io/network: network-CLUSTER}
  annotations: {topology.istio.io/controlPlaneClusters: one}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio-injection: enabled}}
`

// policy is what the mesh has of Istio's kinds, in the first cluster.
const policy = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: cross-network-gateway, namespace: istio-system}
spec:
  selector: {istio: eastwestgateway}
  servers:
  - port: {number: 15443, name: tls, protocol: TLS}
    tls: {mode: AUTO_PASSTHROUGH}
    hosts: ["*.local"]
`

// control are the values of the control plane. No request is repeated by a proxy.
const control = `autoscaleEnabled: false
replicaCount: 1
global: {network: network-one, multiCluster: {clusterName: one}}
meshConfig: {defaultHttpRetryPolicy: {attempts: 0}}
`

// service is the Service NAME, workload a Deployment of it.
const (
	service = `
apiVersion: v1
kind: Service
metadata: {name: NAME, namespace: shop}
spec: {selector: {app: NAME}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
`
	workload = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: NAME, namespace: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME, namespace: shop}
spec:
  selector: {matchLabels: {app: NAME}}
  template:
    metadata:
      labels: {app: NAME}
      annotations: {traffic.sidecar.istio.io/excludeInboundPorts: "8081"}
    spec:
      serviceAccountName: NAME
      containers:
      - name: app
        image: pilothouse/app
        args: [-service=NAME, -version=CLUSTER, "-http=:8080", "-http=:8081"]
        readinessProbe: {httpGet: {path: /stats, port: 8081}, periodSeconds: 1}
        # As usual: a Pod that ends serves until everybody knows.
        lifecycle: {preStop: {sleep: {seconds: 10}}}
---
`
)

func (s *site) install(ctx context.Context) error {
	for name, c := range map[string]*clusterup.Cluster{"one": s.one, "two": s.two} {
		if err := apply(ctx, c, strings.ReplaceAll(namespaces, "CLUSTER", name)); err != nil {
			return err
		}
	}
	if err := s.one.Install(ctx, "mesh", system, s.files.Control, control); err != nil {
		return err
	}
	remote := fmt.Sprintf("remotePilotAddress: %s\nclusterName: two\nnetwork: network-two\n", s.two.Network.Gateway())
	if err := s.two.Install(ctx, "remote", system, s.files.Remote, remote); err != nil {
		return err
	}
	if err := s.addRemote(ctx); err != nil {
		return err
	}
	if err := s.awaitWebhooks(ctx); err != nil {
		return err
	}
	for name, c := range map[string]*clusterup.Cluster{"one": s.one, "two": s.two} {
		values := "autoscaling: {enabled: false}\nnetworkGateway: network-" + name + "\n"
		if err := c.Install(ctx, gatewayName, system, s.files.Gateway, values); err != nil {
			return err
		}
		apps := strings.ReplaceAll(service, "NAME", "api") + strings.ReplaceAll(workload, "NAME", "api") + strings.ReplaceAll(service, "NAME", "far")
		if name == "one" {
			apps += strings.ReplaceAll(workload, "NAME", "client")
		} else {
			apps += strings.ReplaceAll(workload, "NAME", "far") + strings.ReplaceAll(service, "NAME", "only") + strings.ReplaceAll(workload, "NAME", "only")
		}
		if err := apply(ctx, c, strings.ReplaceAll(apps, "CLUSTER", name)); err != nil {
			return err
		}
	}
	if err := apply(ctx, s.one, policy); err != nil {
		return err
	}
	// The address of each gateway is one of the other network.
	for c, at := range map[*clusterup.Cluster]netip.Addr{s.one: s.two.Network.Gateway(), s.two: s.one.Network.Gateway()} {
		patch := fmt.Appendf(nil, `{"status":{"loadBalancer":{"ingress":[{"ip":%q}]}}}`, at)
		if _, err := c.Client.CoreV1().Services(system).Patch(ctx, gatewayName, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			return fmt.Errorf("set the address of a gateway: %w", err)
		}
	}
	return errors.Join(awaitPods(ctx, s.one, system, 2), awaitPods(ctx, s.one, shop, 2), awaitPods(ctx, s.two, system, 1), awaitPods(ctx, s.two, shop, 3))
}

// apply applies objects as soon as that is possible: an API server that shares the machine with all the rest may be late.
func apply(ctx context.Context, c *clusterup.Cluster, text string) error {
	return meshup.Await(ctx, bound, "objects are applied", func(ctx context.Context) error {
		_, err := c.ApplyYAML(ctx, "", text)
		return err
	})
}

// remoteSecret is the Secret that pilotctl prints for the second cluster.
func (s *site) remoteSecret(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(s.programs.Agent), "pilotctl"), "remote-secret", "--kubeconfig", s.two.Kubeconfig(), "--name", "two",
		"--server", fmt.Sprintf("https://%s:%d", s.one.Network.Gateway(), remotePort), "--tls-server-name", "kubernetes.default.svc")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("pilotctl remote-secret: %w\n%s", err, stderr.String())
	}
	return string(text), nil
}

// addRemote adds the second cluster to the mesh.
func (s *site) addRemote(ctx context.Context) error {
	text, err := s.remoteSecret(ctx)
	if err != nil {
		return err
	}
	return apply(ctx, s.one, text)
}

// awaitWebhooks waits until both clusters inject Pods: their webhooks have the roots, and so have their namespaces.
func (s *site) awaitWebhooks(ctx context.Context) error {
	for name, c := range map[string]*clusterup.Cluster{"one": s.one, "two": s.two} {
		err := meshup.Await(ctx, bound, "cluster "+name+" can inject Pods", func(ctx context.Context) error {
			webhook, err := c.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, "istio-sidecar-injector", metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, w := range webhook.Webhooks {
				if len(w.ClientConfig.CABundle) == 0 {
					return fmt.Errorf("the webhook %s has no roots", w.Name)
				}
			}
			_, err = c.Client.CoreV1().ConfigMaps(shop).Get(ctx, "istio-ca-root-cert", metav1.GetOptions{})
			return err
		})
		if err != nil {
			return err
		}
	}
	return awaitPods(ctx, s.one, system, 1)
}

// awaitPods waits until a number of Pods of a namespace are ready, and no others are left.
func awaitPods(ctx context.Context, c *clusterup.Cluster, namespace string, want int) error {
	return meshup.Await(ctx, bound, fmt.Sprintf("%d Pods in %s are ready", want, namespace), func(ctx context.Context) error {
		pods, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		have := 0
		for _, p := range pods.Items {
			for _, condition := range p.Status.Conditions {
				if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil {
					have++
				}
			}
		}
		if have != want || len(pods.Items) != want {
			return fmt.Errorf("%d of %d are", have, len(pods.Items))
		}
		return nil
	})
}

// show shows the end of the log of each container, and of the Nodes'.
func (s *site) show(t *testing.T) {
	for _, c := range []*clusterup.Cluster{s.one, s.two} {
		if c == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		pods, err := c.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Log(err)
			continue
		}
		for _, p := range pods.Items {
			t.Logf("--- %s/%s: %s, %+v", p.Namespace, p.Name, p.Status.Phase, p.Status.Conditions)
			for _, container := range append(append([]corev1.Container{}, p.Spec.InitContainers...), p.Spec.Containers...) {
				text, err := c.Client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{Container: container.Name, TailLines: new(int64(25))}).DoRaw(ctx)
				t.Logf("--- %s/%s %s (%v)\n%s", p.Namespace, p.Name, container.Name, err, text)
			}
		}
	}
	text := s.log.String()
	t.Logf("log of the Nodes:\n%s", text[max(0, len(text)-10_000):])
}
