package node_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	kubetest "github.com/pilothouse/pilothouse/test/kube"
	"github.com/pilothouse/pilothouse/test/kube/node"
	"github.com/pilothouse/pilothouse/test/require"
	"github.com/pilothouse/pilothouse/test/wait"
)

// egress is the socket through which the API server reaches Pods.
var egress string

func TestMain(m *testing.M) {
	if os.Getenv(probedVariable) != "" {
		if err := serveProbed(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	require.Root()
	require.Envoy()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "node-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	egress = filepath.Join(dir, "egress.sock")
	config := filepath.Join(dir, "egress.yaml")
	if err := os.WriteFile(config, []byte(node.EgressConfig(egress)), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return kubetest.Run(m, kubetest.Options{Scheduler: true, APIServerFlags: []string{"--egress-selector-config-file=" + config}})
}

// cluster is the control plane with a Node that runs Pods.
type cluster struct {
	*kubetest.Cluster
	network *node.Network
	node    *node.Node
	// namespace is the test's own.
	namespace string
	log       *wait.Output
}

// start gives the test a Node and a namespace. Its Pods end with it.
func start(t *testing.T, change func(*node.Options)) *cluster {
	t.Helper()
	c := &cluster{Cluster: kubetest.Shared(t), log: &wait.Output{}}
	log := slog.New(slog.NewTextHandler(c.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	if c.network, err = node.NewNetwork(t.Context(), node.NetworkOptions{Config: c.Config, EgressSocket: egress, Log: log}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.network.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("log of the node:\n%s", c.log)
		}
	})
	o := node.Options{Name: "node-1", Images: images(t), Dir: t.TempDir(), Log: log}
	if change != nil {
		change(&o)
	}
	if c.node, err = node.Start(t.Context(), c.network, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.node.Close(); err != nil {
			t.Error(err)
		}
	})
	c.namespace = c.Namespace(t, nil)
	return c
}

// images are the programs of the tests: those of this repository, and the machine's shell.
func images(t *testing.T) map[string]node.Image {
	t.Helper()
	bin, err := filepath.Abs("../../../bin")
	if err != nil {
		t.Fatal(err)
	}
	envoy, err := require.EnvoyPath()
	if err != nil {
		t.Fatal(err)
	}
	program := func(name string) string {
		path := filepath.Join(bin, name)
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("run 'make build' first: %v", err)
		}
		return path
	}
	const local = "/usr/local/bin/"
	return map[string]node.Image{
		"pilothouse/app":       {Files: map[string]string{local + "app": program("app")}, Entrypoint: []string{local + "app"}},
		"pilothouse/agent":     {Files: map[string]string{local + "pilot-agent": program("pilot-agent"), local + "envoy": envoy}, Entrypoint: []string{local + "pilot-agent"}},
		"pilothouse/discovery": {Files: map[string]string{local + "pilot-discovery": program("pilot-discovery")}, Entrypoint: []string{local + "pilot-discovery"}},
		"shell":                {Entrypoint: []string{"/bin/sh", "-c"}},
	}
}

// apply creates the objects of a YAML text in the test's namespace, whose name replaces the-namespace in it.
func (c *cluster) apply(t *testing.T, text string) {
	t.Helper()
	c.Apply(t, c.namespace, strings.ReplaceAll(text, "the-namespace", c.namespace))
}

// pod waits until a Pod is as holds says, and returns it.
func (c *cluster) pod(t *testing.T, name, what string, holds func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var last *corev1.Pod
	wait.NoError(t, "Pod "+name+" "+what, func() error {
		p, err := c.Client.CoreV1().Pods(c.namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if last = p; !holds(p) {
			text, _ := yaml.Marshal(p.Status)
			return fmt.Errorf("its status is\n%s", text)
		}
		return nil
	})
	return last
}

// running waits until a Pod is ready.
func (c *cluster) running(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	return c.pod(t, name, "is ready", func(p *corev1.Pod) bool { return is(p, corev1.PodReady) })
}

// is says whether a condition of a Pod is True.
func is(p *corev1.Pod, typ corev1.PodConditionType) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == typ {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// answer is what the sample app says of itself.
type answer struct {
	Service, Version, Pod, Error string
	Status                       int
	Calls                        []answer
}

// get requests a page from the network's gateway.
func (c *cluster) get(ctx context.Context, url string) (answer, error) {
	var a answer
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return a, err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: c.network.Dial, DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return a, err
	}
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(&a); err != nil {
		return a, fmt.Errorf("%s: %s: %q", url, res.Status, text)
	}
	return a, nil
}
