package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/inject"
	kubetest "github.com/pilothouse/pilothouse/test/kube"
	"github.com/pilothouse/pilothouse/test/kube/node"
	"github.com/pilothouse/pilothouse/test/wait"
)

const (
	// probedVariable makes this program the application of TestProbesOfAnInjectedPod.
	probedVariable = "TEST_PROBED_APPLICATION"
	// aliveFile is there for as long as the application is alive.
	aliveFile = "/tmp/alive"
)

// serveProbed serves an application with probes until SIGTERM: HTTP at 8080, TCP at 8081, gRPC at 8082, metrics at 8083.
func serveProbed() error {
	if err := os.WriteFile(aliveFile, nil, 0o600); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	failed := make(chan error, 4)
	pages := http.NewServeMux()
	pages.HandleFunc("/live", func(w http.ResponseWriter, _ *http.Request) {
		if _, err := os.Stat(aliveFile); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	metrics := http.NewServeMux()
	metrics.HandleFunc("/m", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "shop_orders 7") })
	go func() { failed <- http.ListenAndServe(":8080", pages) }()
	go func() { failed <- http.ListenAndServe(":8083", metrics) }()
	for address, serve := range map[string]func(net.Listener) error{
		":8081": func(l net.Listener) error {
			for {
				c, err := l.Accept()
				if err != nil {
					return err
				}
				_ = c.Close()
			}
		},
		":8082": func(l net.Listener) error {
			s := grpc.NewServer()
			grpc_health_v1.RegisterHealthServer(s, health.NewServer())
			return s.Serve(l)
		},
	} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		go func() { failed <- serve(l) }()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// The kubelet's probes reach an application that takes mutual TLS only, by its agent, and what they find has its effect: a Pod
// whose probes succeed is ready, a container that is not alive is restarted. The Pod's metrics are those of its three parts.
func TestProbesOfAnInjectedPod(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := start(t, func(o *node.Options) {
		o.Images["probed"] = node.Image{Files: map[string]string{"/usr/local/bin/probed": self}, Entrypoint: []string{"/usr/local/bin/probed"}}
	})
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
	injector, err := inject.New(inject.Options{})
	if err != nil {
		t.Fatal(err)
	}
	text, notes, err := injector.Documents([]byte(`
apiVersion: v1
kind: Pod
metadata:
  name: shop
  namespace: `+c.namespace+`
  labels: {app: shop, sidecar.istio.io/inject: "true"}
  annotations: {prometheus.io/port: "8083", prometheus.io/path: /m}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: probed
    env: [{name: `+probedVariable+`, value: "yes"}]
    ports: [{name: web, containerPort: 8080}]
    startupProbe: {tcpSocket: {port: 8081}, periodSeconds: 1, failureThreshold: 120, timeoutSeconds: 10}
    readinessProbe: {grpc: {port: 8082}, periodSeconds: 1, timeoutSeconds: 10}
    livenessProbe: {httpGet: {path: /live, port: web}, periodSeconds: 1, failureThreshold: 3, timeoutSeconds: 10}
`), inject.Request{})
	if err != nil || strings.Count(string(text), "/app-health/app/") < 6 {
		t.Fatalf("injected: %v, %v\n%s", err, notes, text)
	}
	c.apply(t, string(text))
	pod := c.running(t, "shop")
	wait.NoError(t, "plaintext is refused", func() error {
		if _, err := c.page(t.Context(), "http://"+pod.Status.PodIP+":8080/live"); err == nil {
			return errors.New("the application answers past mutual TLS")
		}
		return nil
	})
	wait.NoError(t, "the metrics are those of the agent, of Envoy, and of the application", func() error {
		page, err := c.page(t.Context(), "http://"+pod.Status.PodIP+":15020/stats/prometheus")
		for _, want := range []string{"\nistio_agent_scrapes_total ", "\nenvoy_server_live", "\nshop_orders 7\n"} {
			if err == nil && !strings.Contains(page, want) {
				err = fmt.Errorf("no %q in %d bytes", want, len(page))
			}
		}
		return err
	})
	if _, err := c.exec(t, "shop", "app", "rm "+aliveFile); err != nil {
		t.Fatal(err)
	}
	c.pod(t, "shop", "is restarted, and ready again", func(p *corev1.Pod) bool {
		for _, s := range p.Status.ContainerStatuses {
			if s.Name == "app" {
				return s.RestartCount > 0 && is(p, corev1.PodReady)
			}
		}
		return false
	})
	for _, s := range c.running(t, "shop").Status.ContainerStatuses {
		if s.Name == "istio-proxy" && s.RestartCount > 0 {
			t.Errorf("the proxy was restarted, too: %+v", s)
		}
	}
}

// page requests a page from the network's gateway, where the kubelet and Prometheus are.
func (c *cluster) page(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: c.network.Dial, DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = errors.New(res.Status)
	}
	return string(text), err
}
