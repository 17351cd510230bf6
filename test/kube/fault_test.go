package kubetest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	kubetest "github.com/pilothouse/pilothouse/test/kube"
	"github.com/pilothouse/pilothouse/test/wait"
)

// An informer has what changed after the API server was stopped, killed and paused: it comes back at the same port
// with the same objects.
func TestWatchesResumeWhenTheAPIServerIsBack(t *testing.T) {
	c := kubetest.Start(t, kubetest.Options{Controllers: []string{}})
	ctx, cancel := context.WithCancel(t.Context())
	factory := informers.NewSharedInformerFactoryWithOptions(c.Client, 0, informers.WithNamespace("default"))
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	seen := factory.Core().V1().ConfigMaps().Lister().ConfigMaps("default")
	factory.Start(ctx.Done())
	change := func(name string) {
		t.Helper()
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := c.Client.CoreV1().ConfigMaps("default").Create(ctx, object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		wait.NoError(t, "the informer has "+name, func() error { _, err := seen.Get(name); return err })
	}
	change("before")

	c.StopAPIServer(t)
	refused(t, c)
	c.StartAPIServer(t)
	change("stopped")

	c.KillAPIServer(t)
	refused(t, c)
	c.StartAPIServer(t)
	change("killed")

	resume := c.PauseAPIServer(t)
	short, end := context.WithTimeout(ctx, time.Second)
	defer end()
	if _, err := c.Client.CoreV1().ConfigMaps("default").Get(short, "before", metav1.GetOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v of the paused API server, want none within the time", err)
	}
	resume()
	change("paused")
}

// Endpoints follow Pods that change as soon as an API server is back that was away for long.
func TestEndpointsFollowWhenTheAPIServerIsBack(t *testing.T) {
	c := kubetest.Start(t, kubetest.Options{Scheduler: true})
	c.Node(t, "one", nil)
	namespace := c.Namespace(t, nil)
	c.Apply(t, namespace, `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec: {nodeName: one, containers: [{name: web, image: web}]}
`)
	address := netip.MustParseAddr("192.0.2.1")
	move := func() {
		t.Helper()
		address = address.Next()
		c.PodRunning(t, namespace, "web", address)
	}
	followed := func() {
		t.Helper()
		wait.NoError(t, "the endpoint is "+address.String(), func() error {
			all, err := c.Client.DiscoveryV1().EndpointSlices(namespace).List(t.Context(), metav1.ListOptions{})
			var have []string
			if err == nil {
				for _, s := range all.Items {
					for _, e := range s.Endpoints {
						have = append(have, e.Addresses...)
					}
				}
			}
			if !slices.Equal(have, []string{address.String()}) {
				err = errors.Join(err, fmt.Errorf("the endpoints are %q", have))
			}
			return err
		})
	}
	move()
	followed()
	c.StopAPIServer(t)
	// For so long that watches of the controllers, which run on, would try again late.
	select {
	case <-time.After(30 * time.Second):
	case <-t.Context().Done():
	}
	c.StartAPIServer(t)
	for range 50 {
		move()
	}
	followed()
	if _, err := c.Client.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "new"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "new", Image: "new"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	wait.NoError(t, "a new Pod gets a Node", func() error {
		p, err := c.Client.CoreV1().Pods(namespace).Get(t.Context(), "new", metav1.GetOptions{})
		if err == nil && p.Spec.NodeName == "" {
			err = errors.New("it has none")
		}
		return err
	})
}

func refused(t *testing.T, c *kubetest.Cluster) {
	t.Helper()
	u, err := url.Parse(c.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := net.Dial("tcp", u.Host); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connect to the API server: %v, want refused", err)
	}
}

const helperVariable = "KUBETEST_HELPER"

// helper is the program that TestProgramsEndWithTheTest kills.
func helper() int {
	if _, err := kubetest.Launch(context.Background(), kubetest.Options{Controllers: []string{}}); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("started")
	select {}
}

// The programs of a test binary that is killed end with it, and the next start removes its directory. A start that fails says
// why, leaves nothing behind, and keeps the logs where that is wanted.
func TestProgramsEndWithTheTest(t *testing.T) {
	tmp, err := os.MkdirTemp("", "kt") // short, for the sockets in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for pid := range running(t, tmp) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_ = os.RemoveAll(tmp)
	})
	helper := exec.Command(os.Args[0])
	helper.Env = append(os.Environ(), helperVariable+"=1", "TMPDIR="+tmp)
	helper.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := helper.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := helper.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "started" {
		t.Log(lines.Text())
	}
	programs := running(t, tmp)
	if len(programs) != 2 {
		t.Errorf("programs %v, want etcd and the API server", programs)
	}
	_ = helper.Process.Kill()
	_ = helper.Wait()
	wait.NoError(t, "the programs have ended", func() error {
		if left := running(t, tmp); len(left) > 0 {
			return fmt.Errorf("programs %v", left)
		}
		return nil
	})

	logs := t.TempDir()
	t.Setenv("KUBETEST_LOGS", logs)
	t.Setenv("TMPDIR", tmp)
	_, err = kubetest.Launch(t.Context(), kubetest.Options{Controllers: []string{}, APIServerFlags: []string{"--no-such-flag"}})
	if err == nil || !strings.Contains(err.Error(), "kube-apiserver ended") || !strings.Contains(err.Error(), "--no-such-flag") {
		t.Errorf("error %v, want one with the log of the API server", err)
	}
	if kept, _ := filepath.Glob(filepath.Join(logs, "*", "kube-apiserver.log")); len(kept) != 1 {
		t.Errorf("logs kept: %q, want that of the API server", kept)
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, "kubetest-*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// running lists the processes whose command lines name a directory, by their ids.
func running(t *testing.T, dir string) map[int]string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	out := map[int]string{}
	for _, f := range files {
		line, _ := os.ReadFile(f) // an ended process has none
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil && strings.Contains(string(line), dir) {
			out[pid] = strings.ReplaceAll(string(line), "\x00", " ")
		}
	}
	return out
}
