// Package install_test installs the charts in a cluster with a Node that runs their Pods, and uses what they install.
package install_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/kube/clusterup"
	"github.com/pilothouse/pilothouse/test/require"
	"github.com/pilothouse/pilothouse/test/wait"
)

// system is the namespace of the control plane.
const system = "istio-system"

// shared is the cluster of all tests, with the chart pilothouse installed by its default values.
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
	if shared.dir, err = os.MkdirTemp("", "install-test-"); err != nil {
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

// start gives a test the cluster. If the test fails, the ends of the Pods' logs are in its output.
func start(t *testing.T) *clusterup.Cluster {
	t.Helper()
	shared.once.Do(func() { shared.err = launch() })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			showLogs(t, shared.cluster)
		}
	})
	return shared.cluster
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
	o := clusterup.Options{Dir: shared.dir, Log: slog.New(slog.NewTextHandler(&shared.log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	if o.Programs, err = meshup.In(filepath.Join(root, "bin"), envoy); err != nil {
		return err
	}
	if o.Files, err = clusterup.Build(ctx, shared.dir); err != nil {
		return err
	}
	if shared.cluster, err = clusterup.Start(ctx, o); err != nil {
		return err
	}
	return shared.cluster.Install(ctx, "mesh", system, o.Files.Control, values)
}

// values are those of the chart: nothing scales Deployments here.
const values = "autoscaleEnabled: false\n"

// bound is the longest time until a condition holds. Pods start by way of the API server, which shares the machine's processors
// with all of them.
const bound = 5 * time.Minute

// until waits until look returns nil.
func until(t *testing.T, what string, look func() error) {
	t.Helper()
	if err := meshup.Await(t.Context(), bound, what, func(context.Context) error { return look() }); err != nil {
		t.Fatal(err)
	}
}

// showLogs shows the end of the log of each container, and of the Node's.
func showLogs(t *testing.T, c *clusterup.Cluster) {
	pods, err := c.Client.CoreV1().Pods("").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Log(err)
		return
	}
	for _, p := range pods.Items {
		t.Logf("--- %s/%s: %s, %+v", p.Namespace, p.Name, p.Status.Phase, p.Status.Conditions)
		for _, container := range append(append([]corev1.Container{}, p.Spec.InitContainers...), p.Spec.Containers...) {
			text, err := c.Client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{Container: container.Name, TailLines: new(int64(30))}).DoRaw(context.Background())
			t.Logf("--- %s/%s %s (%v)\n%s", p.Namespace, p.Name, container.Name, err, text)
		}
	}
	text := shared.log.String()
	t.Logf("log of the Node:\n%s", text[max(0, len(text)-20_000):])
}
