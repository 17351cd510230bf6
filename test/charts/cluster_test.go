package charts_test

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/action"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	helmkube "helm.sh/helm/v4/pkg/kube"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// namespace is that of the releases.
const namespace = "istio-system"

// cluster is a Kubernetes control plane that all tests share; each leaves it as it was, but for namespaces and
// CustomResourceDefinitions.
type cluster struct {
	kubeconfig string
	audit      string // the file of the API server's audit log
	config     *rest.Config
	client     kubernetes.Interface
	dynamic    dynamic.Interface
}

// control is what starts and ends the cluster.
var control struct {
	once    sync.Once
	cluster *cluster
	err     error
	stop    func() error
}

// scratch is a directory for all tests, removed at the end.
var scratch string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) (code int) {
	var err error
	if scratch, err = os.MkdirTemp("", "charts-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(scratch)
	code = m.Run()
	if control.stop != nil {
		if err := control.stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the cluster:", err)
			code = max(code, 1)
		}
	}
	return code
}

// startCluster returns the cluster, which the first caller starts.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	control.once.Do(func() { control.cluster, control.err = launch() })
	if control.err != nil {
		t.Fatal(control.err)
	}
	return control.cluster
}

// launch runs test/cluster of the repository's main module.
func launch() (*cluster, error) {
	binary, kubeconfig := filepath.Join(scratch, "cluster"), filepath.Join(scratch, "kubeconfig")
	build := exec.Command("go", "build", "-o", binary, "./test/cluster")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build test/cluster: %w\n%s", err, out)
	}
	policy, audit := filepath.Join(scratch, "policy.yaml"), filepath.Join(scratch, "audit.log")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return nil, err
	}
	c := exec.Command(binary, kubeconfig, "--audit-policy-file="+policy, "--audit-log-path="+audit)
	c.Dir, c.Stderr = root, os.Stderr
	input, err := c.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	control.stop = func() error {
		if err := input.Close(); err != nil {
			return err
		}
		return c.Wait()
	}
	if line, err := bufio.NewReader(output).ReadString('\n'); line != "ready\n" {
		return nil, fmt.Errorf("the cluster has not started: %q, %w", line, err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	all := &cluster{kubeconfig: kubeconfig, audit: audit, config: config}
	if all.client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	all.dynamic, err = dynamic.NewForConfig(config)
	return all, err
}

// helm is Helm's library as the command line uses it, in a namespace.
func (c *cluster) helm(t *testing.T, namespace string) *action.Configuration {
	t.Helper()
	flags := genericclioptions.NewConfigFlags(false).WithWrapConfigFn(func(config *rest.Config) *rest.Config {
		config.QPS = -1
		return config
	})
	flags.KubeConfig, flags.Namespace = &c.kubeconfig, &namespace
	config := action.NewConfiguration()
	if err := config.Init(flags, namespace, "secret"); err != nil {
		t.Fatal(err)
	}
	return config
}

// install installs a chart and, at the end of the test, uninstalls it if that has not been done. The namespace
// stays.
func (c *cluster) install(t *testing.T, release, namespace string, from *chart.Chart, values string, options ...func(*action.Install)) error {
	t.Helper()
	i := action.NewInstall(c.helm(t, namespace))
	i.ReleaseName, i.Namespace, i.CreateNamespace = release, namespace, true
	i.WaitStrategy, i.Timeout = helmkube.HookOnlyStrategy, time.Minute // there is no kubelet to wait for
	for _, option := range options {
		option(i)
	}
	_, err := i.RunWithContext(t.Context(), from, parse(t, values))
	t.Cleanup(func() {
		u := action.NewUninstall(c.helm(t, namespace))
		u.IgnoreNotFound, u.WaitStrategy = true, helmkube.HookOnlyStrategy
		if _, err := u.Run(release); err != nil {
			t.Errorf("uninstall %s: %v", release, err)
		}
	})
	return err
}

// upgrade changes the values of a release to exactly those.
func (c *cluster) upgrade(t *testing.T, release, namespace string, to *chart.Chart, values string) error {
	t.Helper()
	u := action.NewUpgrade(c.helm(t, namespace))
	u.Namespace, u.WaitStrategy, u.Timeout = namespace, helmkube.HookOnlyStrategy, time.Minute
	_, err := u.RunWithContext(t.Context(), release, to, parse(t, values))
	return err
}

// uninstall removes a release and waits until its objects are gone.
func (c *cluster) uninstall(t *testing.T, release, namespace string) {
	t.Helper()
	u := action.NewUninstall(c.helm(t, namespace))
	u.WaitStrategy, u.Timeout = helmkube.StatusWatcherStrategy, 2*time.Minute
	if _, err := u.Run(release); err != nil {
		t.Fatalf("uninstall %s: %v", release, err)
	}
}

// removeNamespace deletes a namespace and waits until it is gone.
func (c *cluster) removeNamespace(t *testing.T, namespace string) {
	t.Helper()
	ctx := t.Context()
	if err := c.client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
		return
	}
	until(t, "namespace "+namespace+" to be gone", func() error {
		_, err := c.client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it exists, error %w", err)
	})
}

// objects lists all objects of the cluster, those that come and go by themselves excepted.
func (c *cluster) objects(t *testing.T) []string {
	t.Helper()
	lists, err := discovery.ServerPreferredResources(c.client.Discovery())
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") || slices.Contains([]string{"Event", "Lease", "ComponentStatus", "PodMetrics", "NodeMetrics"}, r.Kind) {
				continue
			}
			found, err := c.dynamic.Resource(version.WithResource(r.Name)).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatalf("list %s: %v", r.Name, err)
			}
			for _, o := range found.Items {
				if o.GetName() == "kube-root-ca.crt" || r.Kind == "ServiceAccount" && o.GetName() == "default" {
					continue // controllers make them in every namespace
				}
				all = append(all, strings.TrimPrefix(fmt.Sprintf("%s %s/%s", r.Kind, o.GetNamespace(), o.GetName()), "/"))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// bound is the longest time until a condition holds.
const bound = 2 * time.Minute

// until waits until look returns nil.
func until(t *testing.T, what string, look func() error) {
	t.Helper()
	deadline := time.NewTimer(bound)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := look()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// missing lists what is in a and not in b.
func missing(a, b []string) []string {
	set := map[string]bool{}
	for _, x := range b {
		set[x] = true
	}
	out := map[string]bool{}
	for _, x := range a {
		if !set[x] {
			out[x] = true
		}
	}
	return slices.Sorted(maps.Keys(out))
}
