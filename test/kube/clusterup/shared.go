package clusterup

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
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/kube/node"
	"github.com/pilothouse/pilothouse/test/kube/node/podstate"
	"github.com/pilothouse/pilothouse/test/require"
	"github.com/pilothouse/pilothouse/test/wait"
)

// Shared is the cluster of all tests of a package. TestMain calls [Shared.Main], and tests call [Shared.Start], the first of which
// starts the cluster. The programs are those of bin, which make builds.
type Shared struct {
	// Name begins that of the directory of its files.
	Name string
	// Backoff is that of Options.
	Backoff podstate.Backoff
	// Before has the images of the version before, too, which make before builds.
	Before bool
	// Build makes further images, whose files it may write to a directory; nil for none.
	Build func(ctx context.Context, dir string) (map[string]node.Image, error)
	// Install is called once, when the Node is ready.
	Install func(context.Context, *Cluster) error

	once    sync.Once
	dir     string
	cluster *Cluster
	log     wait.Output
	err     error
}

// Main runs the tests, ends the cluster if one was started, and ends the program. It does not run them if the machine lacks
// something.
func (s *Shared) Main(m *testing.M) {
	require.Root()
	require.Envoy()
	require.Kube()
	if s.Before {
		require.Before()
	}
	os.Exit(s.run(m))
}

func (s *Shared) run(m *testing.M) int {
	var err error
	if s.dir, err = os.MkdirTemp("", s.Name+"-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if s.cluster != nil {
		err = s.cluster.Close()
	}
	if err = errors.Join(err, os.RemoveAll(s.dir)); err != nil {
		fmt.Fprintln(os.Stderr, "close the cluster:", err)
		code = max(code, 1)
	}
	return code
}

// Start gives a test the cluster. If the test fails, its output has the ends of the logs of the Pods, of the Node and of the control
// plane, and what the API server and the Network have of Services.
func (s *Shared) Start(t *testing.T) *Cluster {
	t.Helper()
	s.once.Do(func() { s.err = s.launch() })
	if s.err != nil {
		t.Fatal(s.err)
	}
	s.cluster.ReportTo(t)
	t.Cleanup(func() {
		if t.Failed() {
			s.showLogs(t)
			s.showServices(t)
		}
	})
	return s.cluster
}

func (s *Shared) launch() error {
	ctx := context.Background()
	root, err := require.Repository()
	if err != nil {
		return err
	}
	envoy, err := require.EnvoyPath()
	if err != nil {
		return err
	}
	o := Options{Dir: s.dir, Backoff: s.Backoff, Log: slog.New(slog.NewTextHandler(&s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	if s.Before {
		if o.Before, err = require.BeforePath(); err != nil {
			return err
		}
	}
	if o.Programs, err = meshup.In(filepath.Join(root, "bin"), envoy); err != nil {
		return err
	}
	if o.Files, err = Build(ctx, s.dir); err != nil {
		return err
	}
	if s.Build != nil {
		if o.Images, err = s.Build(ctx, s.dir); err != nil {
			return err
		}
	}
	if s.cluster, err = Start(ctx, o); err != nil {
		return err
	}
	return s.Install(ctx, s.cluster)
}

// showLogs shows the end of the log of each container, of the one before if it was restarted, and of the Node.
func (s *Shared) showLogs(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client := s.cluster.Client.CoreV1()
	pods, err := client.Pods("").List(ctx, metav1.ListOptions{})
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
					if previous && c.RestartCount == 0 {
						continue
					}
					o := &corev1.PodLogOptions{Container: c.Name, TailLines: new(int64(40)), Previous: previous}
					text, err := client.Pods(p.Namespace).GetLogs(p.Name, o).DoRaw(ctx)
					t.Logf("--- %s/%s %s, restarts %d, the one before: %v (%v)\n%s", p.Namespace, p.Name, c.Name, c.RestartCount, previous, err, text)
				}
			}
		}
	}
	lines := strings.Split(s.log.String(), "\n")
	t.Logf("log of the Node:\n%s", strings.Join(lines[max(0, len(lines)-80):], "\n"))
}

// showServices shows whether everybody has the same EndpointSlices: what is stored, what the API server's cache has, from which all
// watches are served, and what the Network has; and what the control plane's logs say about them.
func (s *Shared) showServices(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, from := range []struct{ what, version string }{{"stored", ""}, {"in the API server's cache", "0"}} {
		// Without a version a list is not older than etcd; with version 0 it is whatever the cache has.
		o := metav1.ListOptions{ResourceVersion: from.version}
		services, err := s.cluster.Client.CoreV1().Services("").List(ctx, o)
		if err != nil {
			t.Log(err)
			continue
		}
		endpoints, err := s.cluster.Client.DiscoveryV1().EndpointSlices("").List(ctx, o)
		if err != nil {
			t.Log(err)
			continue
		}
		var b strings.Builder
		for _, v := range services.Items {
			fmt.Fprintf(&b, "  %s/%s, version %s: %v\n", v.Namespace, v.Name, v.ResourceVersion, v.Spec.ClusterIPs)
		}
		all := make([]*discoveryv1.EndpointSlice, 0, len(endpoints.Items))
		for i := range endpoints.Items {
			all = append(all, &endpoints.Items[i])
		}
		t.Logf("%s: Services at version %s, EndpointSlices at version %s\n%s%s", from.what, services.ResourceVersion, endpoints.ResourceVersion, &b, node.Describe(all))
	}
	t.Logf("the Network has: %s", s.cluster.Network.State())
	t.Logf("what the control plane's logs say of EndpointSlices and watches:\n%s", s.cluster.Mentions("endpointslice", "endpoint slice", "endpoint_slice", "watch", "reflector"))
}
