// Package conformance_test runs the conformance suite of the Gateway API against the charts, in a cluster with a Node that runs Pods.
//
// The suite and its backends are programs of the module suite: the suite runs in a Pod, from which it reaches the addresses
// of Gateways as clients of the cluster do. It is no part of 'make test', but 'make test-conformance' (docs/gateway-api-conformance.md).
package conformance_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	kubetest "github.com/pilothouse/pilothouse/test/kube"
	"github.com/pilothouse/pilothouse/test/kube/clusterup"
	"github.com/pilothouse/pilothouse/test/kube/node"
	"github.com/pilothouse/pilothouse/test/require"
)

var (
	only   = flag.String("suite", "", "the one test of the suite to run, by its short name, or several by a pattern such as Mesh*")
	report = flag.String("report", "", "the file to write the report to")
)

// system is the namespace of the control plane, runner that of the Pod with the suite.
const system, runner = "istio-system", "conformance-runner"

var shared = clusterup.Shared{
	Name: "conformance-test", Build: buildSuite,
	Install: func(ctx context.Context, c *clusterup.Cluster) error {
		objects, err := kubetest.GatewayAPIExperimental.Objects() // with fields such as retry
		if err != nil {
			return err
		}
		if err := c.InstallObjects(ctx, objects); err != nil {
			return err
		}
		return c.Install(ctx, "mesh", system, c.Control(), "autoscaleEnabled: false\nreplicaCount: 1\n")
	},
}

func TestMain(m *testing.M) { shared.Main(m) }

// buildSuite builds the programs of the module suite, which are images.
func buildSuite(ctx context.Context, dir string) (map[string]node.Image, error) {
	root, err := require.Repository()
	if err != nil {
		return nil, err
	}
	const local, module = "/usr/local/bin/", "test/kube/conformance/suite"
	image := func(program string) node.Image {
		return node.Image{Files: map[string]string{local + filepath.Base(program): filepath.Join(dir, program)}, Entrypoint: []string{local + program}}
	}
	for _, line := range [][]string{
		{"test", "-C", module, "-c", "-o", filepath.Join(dir, "suite"), "."},
		{"build", "-C", module, "-o", filepath.Join(dir, "echo-basic"), "sigs.k8s.io/gateway-api/conformance/echo-basic"},
		{"build", "-C", module, "-o", filepath.Join(dir, "echo-advanced"), "./echo-advanced"},
		{"build", "-C", module, "-o", filepath.Join(dir, "dns"), "./dns"},
	} {
		cmd := exec.CommandContext(ctx, "go", line...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go %s: %w\n%s", line[0], err, out)
		}
	}
	echo := image("echo-basic")
	echo.User = 65532
	advanced := image("echo-advanced") // a stand-in, since the source of the image is not in the suite
	advanced.User = 65532
	advanced.Files[local+"client"] = filepath.Join(dir, "echo-advanced")
	return map[string]node.Image{"coredns/coredns": image("dns"), "gateway-api/echo-basic": echo, "gateway-api/echo-advanced": advanced, "conformance-suite": image("suite")}, nil
}

// bound is the longest time that the suite may take.
const bound = 35 * time.Minute

// profiles are what is claimed, skipped the tests that are known to fail, with the reason. The features are those that the class claims in
// its status, but for those in unproved.
var (
	profiles = []string{"GATEWAY-HTTP", "GATEWAY-TLS", "GATEWAY-GRPC", "MESH-HTTP", "MESH-GRPC", "GATEWAY-TCP", "GATEWAY-UDP"}
	unproved = []string{}
	skipped  = map[string]string{}
)

func TestConformance(t *testing.T) {
	c := shared.Start(t)
	c.Apply(t, "", strings.NewReplacer("RUNNER", runner).Replace(`
apiVersion: v1
kind: Namespace
metadata: {name: RUNNER}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: suite, namespace: RUNNER}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: RUNNER}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: suite, namespace: RUNNER}]
`))
	var features []string
	err := meshup.Await(t.Context(), bound, "the class is accepted", func(ctx context.Context) (err error) {
		features, err = claimed(ctx, c)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	balance(t, c)
	var skip []string
	for name := range skipped {
		skip = append(skip, name)
	}
	env := map[string]string{"NAMESPACE": runner, "PROFILES": strings.Join(profiles, " "), "FEATURES": strings.Join(features, " "), "SKIP": strings.Join(skip, " "), "RUN": *only, "VERSION": "main", "USABLE": usable, "UNUSABLE": unusable}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "suite"},
		Spec: corev1.PodSpec{
			ServiceAccountName: "suite", RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "suite", Image: "conformance-suite", Args: []string{"-test.v", "-test.timeout=" + bound.String()}}},
		},
	}
	for name, value := range env {
		pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: name, Value: value})
	}
	pods := c.Client.CoreV1().Pods(runner)
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	err = meshup.Await(t.Context(), bound+time.Minute, "the suite ends", func(ctx context.Context) error {
		p, err := pods.Get(ctx, "suite", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			return fmt.Errorf("it is %s", p.Status.Phase)
		}
		pod = p
		return nil
	})
	text, logErr := logs(t.Context(), c)
	if path := os.Getenv("CONFORMANCE_LOG"); path != "" {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(err, logErr); err != nil {
		t.Fatalf("%v\n%s", err, tail(text))
	}
	passed := 0
	for line := range strings.Lines(text) {
		switch line = strings.TrimRight(line, "\n"); {
		case strings.HasPrefix(line, "    --- PASS: "):
			passed++
		case strings.HasPrefix(line, "    --- FAIL: "):
			t.Error(line)
		}
	}
	t.Logf("%d tests of the suite pass", passed)
	if pod.Status.Phase == corev1.PodFailed && !t.Failed() {
		t.Errorf("the suite fails:\n%s", tail(text))
	}
	m, err := c.Client.CoreV1().ConfigMaps(runner).Get(t.Context(), "report", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(m.Data["report.yaml"])
	if *report != "" {
		if err := os.WriteFile(*report, []byte(m.Data["report.yaml"]), 0o600); err != nil {
			t.Error(err)
		}
	}
}

// claimed are the features in the status of the GatewayClass; an error while the control plane has not made it and written that.
func claimed(ctx context.Context, c *clusterup.Cluster) ([]string, error) {
	classes := c.Dynamic.Resource(schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "gatewayclasses"})
	class, err := classes.Get(ctx, "istio", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	list, _, err := unstructured.NestedSlice(class.Object, "status", "supportedFeatures")
	if err == nil && len(list) == 0 {
		err = errors.New("its status has no supportedFeatures")
	}
	var out []string
	for _, f := range list {
		one, _ := f.(map[string]any)
		if name, _ := one["name"].(string); !slices.Contains(unproved, name) {
			out = append(out, name)
		}
	}
	return out, err
}

// logs are what the suite has printed.
func logs(ctx context.Context, c *clusterup.Cluster) (string, error) {
	r, err := c.Client.CoreV1().Pods(runner).GetLogs("suite", &corev1.PodLogOptions{}).Stream(ctx)
	if err != nil {
		return "", err
	}
	defer r.Close()
	text, err := io.ReadAll(r)
	return string(text), err
}

// tail is the end of a text.
func tail(text string) string { return text[max(0, len(text)-8000):] }

// The address that balance assigns to a Service that asks for it, and one that it has not, for the test of static addresses. Nothing is sent
// to them.
const usable, unusable = "203.0.113.10", "198.51.100.10"

// balance gives Services of type LoadBalancer an address, as a cloud does: the one that they ask for, if it is usable, or else their own
// ClusterIP, which clients in the cluster reach.
func balance(t *testing.T, c *clusterup.Cluster) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			all, err := c.Client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
			for i := range all.Items {
				s := &all.Items[i]
				if s.Spec.Type != corev1.ServiceTypeLoadBalancer || s.Spec.ClusterIP == "" || len(s.Status.LoadBalancer.Ingress) > 0 {
					continue
				}
				ip := cmp.Or(s.Spec.LoadBalancerIP, s.Spec.ClusterIP)
				if ip != usable && ip != s.Spec.ClusterIP {
					continue
				}
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: ip}}
				_, failed := c.Client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, s, metav1.UpdateOptions{})
				if !apierrors.IsConflict(failed) && !apierrors.IsNotFound(failed) {
					err = errors.Join(err, failed)
				}
			}
			if err != nil && ctx.Err() == nil {
				t.Logf("give load balancers their addresses: %v", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(300 * time.Millisecond):
			}
		}
	}()
}
