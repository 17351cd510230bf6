// Package faults_test breaks a control plane that the chart has installed, under load, and counts every request.
//
// All tests share a cluster with two replicas of pilot-discovery, a web of two Pods and two shoppers that call it: real Envoys,
// injected by the chart's webhook. Nothing is retried anywhere. A test leaves both replicas ready, with every proxy connected.
package faults_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/kube/clusterup"
	"github.com/pilothouse/pilothouse/test/kube/node/podstate"
	"github.com/pilothouse/pilothouse/test/require"
	"github.com/pilothouse/pilothouse/test/wait"
)

const (
	system = "istio-system" // the namespace of the control plane
	shop   = "shop"         // that of the workloads
)

// maxAge is that of the connections of proxies, so that they spread during a test; by default it is half an hour.
const maxAge = 20 * time.Second

// values are those of the chart. Nothing is retried. A connection to the API server that does not answer is given up after
// 10 s; by default it takes 45.
var values = fmt.Sprintf(`autoscaleEnabled: false
replicaCount: 2
keepaliveMaxServerConnectionAge: %v
meshConfig:
  defaultHttpRetryPolicy: {attempts: 0}
env:
  HTTP2_READ_IDLE_TIMEOUT_SECONDS: "5"
  HTTP2_PING_TIMEOUT_SECONDS: "5"
`, maxAge)

// workloads are the web, and shoppers that call it for each request that they get.
const workloads = `
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio-injection: enabled}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 8080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: app
        image: pilothouse/app
        args: [-service=web, "-http=:8080"]
        readinessProbe: {httpGet: {path: /stats, port: 8080}, periodSeconds: 1}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: shopper, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: shopper}}
  template:
    metadata: {labels: {app: shopper}}
    spec:
      containers:
      - name: app
        image: pilothouse/app
        args: [-service=shopper, "-http=:8080", "-calls=http://web:8080/"]
        readinessProbe: {httpGet: {path: /stats, port: 8080}, periodSeconds: 1}
`

// shared is the cluster of all tests.
var shared struct {
	once    sync.Once
	dir     string
	cluster *clusterup.Cluster
	log     wait.Output
	err     error
}

func TestMain(m *testing.M) {
	require.Root()
	require.Envoy()
	require.Kube()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if shared.dir, err = os.MkdirTemp("", "faults-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if shared.cluster != nil {
		err = shared.cluster.Close()
	}
	if err = errors.Join(err, os.RemoveAll(shared.dir)); err != nil {
		fmt.Fprintln(os.Stderr, "close the cluster:", err)
		code = max(code, 1)
	}
	return code
}

func launch() error {
	ctx := context.Background()
	root, err := require.Repository()
	if err != nil {
		return err
	}
	envoy, err := require.EnvoyPath()
	if err != nil {
		return err
	}
	o := clusterup.Options{
		Dir: shared.dir, Log: slog.New(slog.NewTextHandler(&shared.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		// Tests restart containers often.
		Backoff: podstate.Backoff{Initial: 100 * time.Millisecond, Max: 100 * time.Millisecond},
	}
	if o.Programs, err = meshup.In(filepath.Join(root, "bin"), envoy); err != nil {
		return err
	}
	if o.Files, err = clusterup.Build(ctx, shared.dir); err != nil {
		return err
	}
	if shared.cluster, err = clusterup.Start(ctx, o); err != nil {
		return err
	}
	if err := shared.cluster.Install(ctx, "mesh", system, o.Files.Control, values); err != nil {
		return err
	}
	s := site{shared.cluster}
	if err := s.await(ctx, "both replicas are ready", s.bothReady); err != nil {
		return err
	}
	if _, err := s.ApplyYAML(ctx, "", workloads); err != nil {
		return err
	}
	return nil
}

// bound is the longest time until a condition holds, on a machine with two processors that all Pods share.
const bound = 3 * time.Minute

// start gives a test the cluster, with both replicas and all workloads ready and every proxy connected. If the test fails,
// the ends of the Pods' logs are in its output.
func start(t *testing.T) site {
	t.Helper()
	shared.once.Do(func() { shared.err = launch() })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	s := site{shared.cluster}
	t.Cleanup(func() {
		if t.Failed() {
			s.showLogs(t)
		}
	})
	s.settled(t)
	return s
}

// showLogs shows the end of the log of each container, and of the Node's.
func (s site) showLogs(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pods, err := s.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Log(err)
		return
	}
	for _, p := range pods.Items {
		if p.Spec.NodeName == "" {
			continue
		}
		t.Logf("--- %s/%s: %s, %+v", p.Namespace, p.Name, p.Status.Phase, p.Status.Conditions)
		for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
			for _, c := range list {
				for _, previous := range []bool{true, false} {
					if previous && (c.RestartCount == 0 || p.Namespace != system) {
						continue
					}
					o := &corev1.PodLogOptions{Container: c.Name, TailLines: new(int64(40)), Previous: previous}
					text, err := s.Client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, o).DoRaw(ctx)
					t.Logf("--- %s/%s %s, restarts %d, the one before: %v (%v)\n%s", p.Namespace, p.Name, c.Name, c.RestartCount, previous, err, text)
				}
			}
		}
	}
	lines := strings.Split(shared.log.String(), "\n")
	t.Logf("log of the Node:\n%s", strings.Join(lines[max(0, len(lines)-60):], "\n"))
}
