// Package identity_test runs control planes against a real API server: tokens, the root, the leader and the root ConfigMaps.
//
// They run as a ServiceAccount with the permissions in docs/kubernetes-permissions.md, and no others.
package identity_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	securityv1 "istio.io/api/security/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/discovery"
	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/kube"
	"github.com/pilothouse/pilothouse/internal/pki"
	kubetest "github.com/pilothouse/pilothouse/test/kube"
	"github.com/pilothouse/pilothouse/test/wait"
)

func TestMain(m *testing.M) { kubetest.Main(m, kubetest.Options{}) }

// reading has what the source needs, which is not what these tests are about.
const reading = `apiVersion: v1
kind: ServiceAccount
metadata: {name: istiod}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: source-istio-system}
rules:
- {apiGroups: [""], resources: [nodes, pods, services], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
- {apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: source, namespace: istio-system}
rules:
- {apiGroups: [""], resources: [configmaps], resourceNames: [istio], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: source-istio-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: source-istio-system}
subjects: [{kind: ServiceAccount, name: istiod, namespace: istio-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: source, namespace: istio-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: source}
subjects: [{kind: ServiceAccount, name: istiod, namespace: istio-system}]
---
`

// account makes a ServiceAccount istiod in the namespace of a control plane, with the documented permissions.
func account(t *testing.T, c *kubetest.Cluster, namespace string) *rest.Config {
	t.Helper()
	text, err := os.ReadFile("../../../docs/kubernetes-permissions.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rules, _ := strings.Cut(string(text), "```yaml\n")
	rules, _, found := strings.Cut(rules, "```")
	if !found {
		t.Fatal("docs/kubernetes-permissions.md: want the rules in a block of YAML")
	}
	c.Apply(t, namespace, strings.ReplaceAll(reading+rules, "istio-system", namespace))
	return c.TokenConfig(c.Token(t, namespace, "istiod"))
}

// plane is a control plane that runs.
type plane struct {
	t         *testing.T
	namespace string
	server    *discovery.Server
	state     string
	log       *wait.Output
	stop      func()
}

// start starts a replica of the control plane of a namespace.
func start(t *testing.T, config *rest.Config, namespace, name string, change ...func(*discovery.Options)) *plane {
	t.Helper()
	p := &plane{t: t, namespace: namespace, state: t.TempDir(), log: &wait.Output{}}
	any := "127.0.0.1:0"
	o := discovery.Options{
		StateDir: p.state, Version: "test",
		Names:      discovery.Names{Domain: "cluster.local", Namespace: namespace, Instance: name},
		Ports:      discovery.Ports{HTTP: any, GRPC: any, SecureGRPC: any, Monitoring: any},
		HTTP:       discovery.HTTPOptions{Shutdown: time.Second},
		Kubernetes: discovery.KubernetesOptions{API: kube.Options{Kubeconfig: kubetest.Kubeconfig(t, config), QPS: -1}, Cluster: "Kubernetes"},
		Log:        slog.New(slog.NewTextHandler(io.MultiWriter(p.log, t.Output()), nil)),
	}
	for _, f := range change {
		f(&o)
	}
	var err error
	if p.server, err = discovery.New(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.server.Run(ctx) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(p.stop)
	return p
}

// metric reads a metric without labels, NaN text "" if it is absent.
func (p *plane) metric(name string) string {
	resp, err := http.Get("http://" + p.server.Addresses().Monitoring + "/metrics")
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func (p *plane) leads() bool { return p.metric("pilothouse_leader") == "1" }

// roots is the trust bundle that the replica has written.
func (p *plane) roots() string {
	text, err := os.ReadFile(p.state + "/root-cert.pem")
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// status is the state of the rotation.
func (p *plane) status() ca.RotationStatus {
	var out ca.RotationStatus
	resp, err := http.Get("http://" + p.server.Addresses().HTTP + "/debug/ca")
	if err != nil {
		p.t.Error(err)
		return out
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		p.t.Error(err)
	}
	return out
}

// certificate asks for a certificate with a token, for a cluster unless it is empty, and returns its identity.
func (p *plane) certificate(token, cluster string) (string, error) {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(p.roots()))
	conn, err := grpc.NewClient(p.server.Addresses().SecureGRPC, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "istiod." + p.namespace + ".svc", MinVersion: tls.VersionTLS12})))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	key, err := pki.GenerateKey("")
	if err != nil {
		return "", err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key) // the identity is that of the token
	if err != nil {
		return "", err
	}
	csr := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	ctx, cancel := context.WithTimeout(context.Background(), wait.Bound)
	defer cancel()
	md := metadata.Pairs("authorization", "Bearer "+token)
	if cluster != "" {
		md.Set("clusterid", cluster)
	}
	resp, err := securityv1.NewIstioCertificateServiceClient(conn).CreateCertificate(metadata.NewOutgoingContext(ctx, md), &securityv1.IstioCertificateRequest{Csr: csr})
	if err != nil {
		return "", err
	}
	leaf, err := pki.ParseBundle([]byte(resp.CertChain[0]))
	if err != nil {
		return "", err
	}
	id, err := pki.IdentityOf(leaf[0])
	return id.SPIFFE(), err
}

// rootMap is the data of the ConfigMap with the roots in a namespace; nil if there is none.
func rootMap(t *testing.T, c *kubetest.Cluster, namespace string) map[string]string {
	m, err := c.Client.CoreV1().ConfigMaps(namespace).Get(t.Context(), "istio-ca-root-cert", metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return m.Data
}

// secret is the Secret with the root.
func secret(t *testing.T, c *kubetest.Cluster, namespace string) *corev1.Secret {
	t.Helper()
	s, err := c.Client.CoreV1().Secrets(namespace).Get(t.Context(), "istio-ca-secret", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// within is wait.Until with another bound.
func within(t *testing.T, bound time.Duration, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(bound); !holds(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal(what + fmt.Sprintf(": not within %s", bound))
		}
	}
}

// write writes a file, and returns its path.
func write(t *testing.T, text string) string {
	t.Helper()
	path := t.TempDir() + "/mesh"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
