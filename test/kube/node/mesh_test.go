package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubetest "github.com/pilothouse/pilothouse/test/kube"
	"github.com/pilothouse/pilothouse/test/wait"
)

func testdata(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A control plane that runs as a Deployment, reads the cluster and trusts the Pods' tokens; two Pods with the
// containers that an injector adds; and mutual TLS between their Envoys, without which nothing is answered.
func TestInjectedPodsTalkByMutualTLS(t *testing.T) {
	c := start(t, nil)
	c.InstallCRDs(t, kubetest.Istio)
	t.Cleanup(func() {
		if t.Failed() {
			c.showLogs(t, "istio-system", c.namespace)
		}
	})
	c.apply(t, testdata(t, "discovery.yaml"))
	c.trustTokens(t)
	c.publishRoot(t)
	c.apply(t, `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default}
spec: {mtls: {mode: STRICT}}
`)
	injected := func(name, arg string) string {
		return strings.NewReplacer("the-app", name, "the-args", arg).Replace(testdata(t, "injected.yaml"))
	}
	c.apply(t, injected("web", "-tcp=127.0.0.1:8081"))
	c.apply(t, injected("shopper", "-calls=http://web:8080/"))
	web, shopper := c.running(t, "web"), c.running(t, "shopper")
	if st := shopper.Status.InitContainerStatuses[0]; st.State.Terminated == nil || st.State.Terminated.ExitCode != 0 {
		t.Errorf("istio-init: %+v", st.State)
	}
	want := "spiffe://cluster.local/ns/" + c.namespace + "/sa/shopper"
	wait.NoError(t, "the web answers the shopper by mutual TLS", func() error {
		// From loopback, where the application is reached past its proxy, as by itself.
		text, err := c.exec(t, "shopper", "app", "bash -c \"exec 3<>/dev/tcp/127.0.0.1/8080; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3\"")
		if err == nil && !strings.Contains(text, want) {
			err = fmt.Errorf("the answer is %q", text)
		}
		return err
	})
	if a, err := c.get(t.Context(), "http://"+web.Status.PodIP+":8080/"); err == nil {
		t.Errorf("plaintext to the web was answered: %+v", a)
	}
}

// trustTokens has the control plane trust the tokens of the API server.
func (c *cluster) trustTokens(t *testing.T) {
	t.Helper()
	keys, err := c.Client.Discovery().RESTClient().Get().AbsPath("/openid/v1/jwks").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rule, err := json.Marshal(map[string]any{"issuer": kubetest.Issuer, "audiences": []string{"istio-ca"}, "jwks": string(keys)})
	if err != nil {
		t.Fatal(err)
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "issuer", Namespace: "istio-system"}, Data: map[string]string{"rule": string(rule)}}
	if _, err := c.Client.CoreV1().ConfigMaps(m.Namespace).Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// publishRoot puts the mesh's root into the namespace, unless the control plane does so itself.
func (c *cluster) publishRoot(t *testing.T) {
	t.Helper()
	system := *c
	system.namespace = "istio-system"
	maps := c.Client.CoreV1().ConfigMaps(c.namespace)
	wait.NoError(t, "the namespace has the mesh's root", func() error {
		if _, err := maps.Get(t.Context(), "istio-ca-root-cert", metav1.GetOptions{}); err == nil {
			return nil
		}
		pods, err := c.Client.CoreV1().Pods(system.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=istiod"})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 || !is(&pods.Items[0], corev1.PodReady) {
			return errors.New("the control plane is not ready")
		}
		root, err := system.exec(t, pods.Items[0].Name, "discovery", "cat /var/lib/pilothouse/state/root-cert.pem")
		if err != nil {
			return err
		}
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "istio-ca-root-cert"}, Data: map[string]string{"root-cert.pem": root}}
		_, err = maps.Create(t.Context(), m, metav1.CreateOptions{})
		return err
	})
}

// showLogs shows the end of the log of each container in the namespaces.
func (c *cluster) showLogs(t *testing.T, namespaces ...string) {
	for _, ns := range namespaces {
		pods, err := c.Client.CoreV1().Pods(ns).List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Log(err)
			continue
		}
		for _, p := range pods.Items {
			for _, container := range append(append([]corev1.Container{}, p.Spec.InitContainers...), p.Spec.Containers...) {
				text, err := c.Client.CoreV1().Pods(ns).GetLogs(p.Name, &corev1.PodLogOptions{Container: container.Name, TailLines: new(int64(30))}).DoRaw(context.Background())
				t.Logf("--- %s/%s %s (%v)\n%s", ns, p.Name, container.Name, err, text)
			}
		}
	}
}
