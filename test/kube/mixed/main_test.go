// Package mixed_test runs Pods of two kinds in one cluster and moves them from one to the other under load.
//
// Some have the manifests of Istio's injector, others ours, with one plugged-in CA; and the chart is installed for two revisions of
// the control plane.
package mixed_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/kube/clusterup"
)

// system is the namespace of the control planes.
const system = "istio-system"

// shared is the cluster of all tests, with the chart installed twice: the default revision, and canary.
var shared = clusterup.Shared{Name: "mixed-test", Install: install}

// root is the certificate of the plugged-in CA.
var root *x509.Certificate

func TestMain(m *testing.M) { shared.Main(m) }

func install(ctx context.Context, c *clusterup.Cluster) error {
	if err := plugIn(ctx, c); err != nil {
		return err
	}
	template, err := os.ReadFile("testdata/istio.yaml")
	if err != nil {
		return err
	}
	values := map[string]any{
		"autoscaleEnabled": false, "replicaCount": 1,
		"meshConfig":             map[string]any{"defaultHttpRetryPolicy": map[string]any{"attempts": 0}, "defaultConfig": map[string]any{"terminationDrainDuration": "20s"}},
		"sidecarInjectorWebhook": map[string]any{"templates": map[string]any{"istio": string(template)}},
	}
	text, err := yaml.Marshal(values)
	if err != nil {
		return err
	}
	if err := c.Install(ctx, "mesh", system, c.Control(), string(text)); err != nil {
		return err
	}
	values["revision"], values["revisionTags"], values["externalRevisionTags"] = "canary", []string{"prod"}, []string{"by-istioctl"}
	if text, err = yaml.Marshal(values); err != nil {
		return err
	}
	return c.Install(ctx, "mesh-canary", system, c.Control(), string(text))
}

// plugIn makes the Secret cacerts with an intermediate CA.
func plugIn(ctx context.Context, c *clusterup.Cluster) error {
	ca := func(name string, serial int64) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{Organization: []string{"shop"}, CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(240 * time.Hour),
			IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		}
	}
	rootKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	top := ca("root of the shop", 1)
	rootText, err := x509.CreateCertificate(rand.Reader, top, top, &rootKey.PublicKey, rootKey)
	if err != nil {
		return err
	}
	if root, err = x509.ParseCertificate(rootText); err != nil {
		return err
	}
	text, err := x509.CreateCertificate(rand.Reader, ca("CA of the mesh", 2), root, &key.PublicKey, rootKey)
	if err != nil {
		return err
	}
	keyText, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	block := func(kind string, b []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}) }
	own, roots := block("CERTIFICATE", text), block("CERTIFICATE", rootText)
	if _, err := c.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err = c.Client.CoreV1().Secrets(system).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cacerts"}, Data: map[string][]byte{
		"ca-cert.pem": own, "ca-key.pem": block("PRIVATE KEY", keyText), "root-cert.pem": roots, "cert-chain.pem": bytes.Join([][]byte{own, roots}, nil),
	}}, metav1.CreateOptions{})
	return err
}

// bound is the longest time until a condition holds: Pods start by way of the API server, which shares the machine's processors
// with all of them.
const bound = 5 * time.Minute

// until waits until look returns nil.
func until(t *testing.T, what string, look func() error) {
	t.Helper()
	if err := meshup.Await(t.Context(), bound, what, func(context.Context) error { return look() }); err != nil {
		t.Fatal(err)
	}
}

// from makes connections from a Pod.
type from struct {
	cluster *clusterup.Cluster
	pod     *corev1.Pod
}

// Dial implements meshup.Dialer.
func (f from) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return f.cluster.Node.DialFrom(ctx, f.pod.Namespace, f.pod.Name, network, addr)
}

// workload is a Deployment of the sample app with a Service. Its Pod ends when clients no longer use it.
const workload = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: the-app}
---
apiVersion: v1
kind: Service
metadata: {name: the-app}
spec: {selector: {app: the-app}, ports: [{name: http, port: 8080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: the-app}
spec:
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  selector: {matchLabels: {app: the-app}}
  template:
    metadata:
      labels: {app: the-app}
      annotations: {traffic.sidecar.istio.io/excludeInboundPorts: "8081"the-templates}
    spec:
      serviceAccountName: the-app
      terminationGracePeriodSeconds: 40
      containers:
      - name: app
        image: pilothouse/app
        args: [-service=the-app, "-http=:8080", "-http=:8081"]
        readinessProbe: {httpGet: {path: /stats, port: 8081}, periodSeconds: 1}
        lifecycle: {preStop: {sleep: {seconds: 15}}}
`

// deploy applies a workload with the sidecar of one side, istio or ours, and does not wait for its Pod.
func deploy(t *testing.T, c *clusterup.Cluster, namespace, name, side string) {
	t.Helper()
	templates := ""
	if side == "istio" {
		templates = ", inject.istio.io/templates: istio"
	}
	c.Apply(t, namespace, strings.NewReplacer("the-app", name, "the-templates", templates).Replace(workload))
}

// settled waits until the Deployment has one Pod, which is of its newest template and ready, and no other exists.
func settled(t *testing.T, c *clusterup.Cluster, namespace, name string) *corev1.Pod {
	t.Helper()
	var found *corev1.Pod
	until(t, "the only Pod of "+namespace+"/"+name+" is new and ready", func() error {
		d, err := c.Client.AppsV1().Deployments(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s := d.Status; s.ObservedGeneration != d.Generation || s.UpdatedReplicas != 1 || s.Replicas != 1 {
			return fmt.Errorf("its status is %+v", s)
		}
		pods, err := c.Client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + name})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 || !ready(&pods.Items[0]) {
			return fmt.Errorf("%d Pods, not all ready", len(pods.Items))
		}
		found = &pods.Items[0]
		return nil
	})
	return found
}

func ready(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// proxy is the container with the agent.
func proxy(t *testing.T, p *corev1.Pod) corev1.Container {
	t.Helper()
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if c.Name == "istio-proxy" {
			return c
		}
	}
	t.Fatalf("Pod %s has no proxy", p.Name)
	return corev1.Container{}
}

// variable is the value of a variable of a container.
func variable(c corev1.Container, name string) string {
	for _, v := range c.Env {
		if v.Name == name {
			return v.Value
		}
	}
	return ""
}

// mutual waits until a service answers a Pod by mutual TLS.
func mutual(t *testing.T, c *clusterup.Cluster, pod *corev1.Pod, url string) {
	t.Helper()
	want := "spiffe://" + meshup.Domain + "/ns/" + pod.Namespace + "/sa/" + pod.Spec.ServiceAccountName
	until(t, url+" answers "+pod.Name+" by mutual TLS", func() error {
		a, err := meshup.Post(t.Context(), meshup.Client(from{c, pod}, 0), url, nil)
		if err == nil && a.Peer != want {
			err = fmt.Errorf("status %d, identity %q, want %s", a.Status, a.Peer, want)
		}
		return err
	})
}

// strict has the Pods of a namespace refuse plaintext.
const strict = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default}\nspec: {mtls: {mode: STRICT}}\n"
