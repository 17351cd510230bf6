// Package webhooks_test runs a control plane's webhooks below a real API server: what users are refused and warned about, and whether the webhook configurations stay true.
//
// Each test has a revision of its own, whose label the webhooks' selectors want, so that the webhooks of one test are
// never asked about the objects of another.
package webhooks_test

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/discovery"
	"github.com/pilothouse/pilothouse/internal/discovery/webhook"
	"github.com/pilothouse/pilothouse/internal/kube"
	kubetest "github.com/pilothouse/pilothouse/test/kube"
	"github.com/pilothouse/pilothouse/test/wait"
)

func TestMain(m *testing.M) { kubetest.Main(m, kubetest.Options{}) }

var virtualServices = schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1", Resource: "virtualservices"}

// readsAll lets the source read the cluster. What it needs is tested with the chart.
const readsAll = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: istiod}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reads-all-REVISION}
rules:
- {apiGroups: ["", apiextensions.k8s.io, discovery.k8s.io, networking.istio.io, security.istio.io, telemetry.istio.io, extensions.istio.io], resources: ["*"], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reads-all-REVISION}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reads-all-REVISION}
subjects: [{kind: ServiceAccount, name: istiod, namespace: REVISION}]
`

// account makes the ServiceAccount of a control plane, with the permissions that are documented.
func (m *mesh) account() *rest.Config {
	m.t.Helper()
	m.cluster.Apply(m.t, m.namespace, m.replaced(readsAll))
	for _, path := range []string{"../../docs/kubernetes-permissions.md", "../../docs/webhooks.md"} {
		text, err := os.ReadFile(path)
		if err != nil {
			m.t.Fatal(err)
		}
		_, rules, _ := strings.Cut(string(text), "```yaml\n")
		rules, _, found := strings.Cut(rules, "```")
		if !found {
			m.t.Fatalf("%s: want the rules in a block of YAML", path)
		}
		m.cluster.Apply(m.t, m.namespace, strings.ReplaceAll(rules, "istio-system", m.namespace))
	}
	return m.cluster.TokenConfig(m.cluster.Token(m.t, m.namespace, "istiod"))
}

const validator = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: istio-validator-REVISION, labels: {istio.io/rev: REVISION}}
webhooks:
- name: rev.validation.istio.io
  admissionReviewVersions: [v1]
  clientConfig: {url: "https://ADDRESS/validate"}
  failurePolicy: POLICY
  sideEffects: None
  objectSelector: {matchLabels: {istio.io/rev: REVISION}}
  rules: [{apiGroups: [networking.istio.io, security.istio.io], apiVersions: ["*"], operations: [CREATE, UPDATE], resources: ["*"]}]
`

// mesh is a control plane of one revision.
type mesh struct {
	t         *testing.T
	cluster   *kubetest.Cluster
	namespace string
	config    *rest.Config // of the control plane's account
	addresses discovery.Ports
	log       *wait.Output
	stop      func()

	mu       sync.Mutex
	warnings []string // of the API server, to the client of virtualServices
}

// HandleWarningHeader implements rest.WarningHandler.
func (m *mesh) HandleWarningHeader(_ int, _, text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.warnings = append(m.warnings, text)
}

// warned returns the warnings since its last call.
func (m *mesh) warned() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := strings.Join(m.warnings, "\n")
	m.warnings = nil
	return out
}

// replaced fills in what a manifest leaves open. The revision is the namespace's name.
func (m *mesh) replaced(text string, more ...string) string {
	return strings.NewReplacer(append([]string{"REVISION", m.namespace, "ADDRESS", m.addresses.HTTPS}, more...)...).Replace(text)
}

// start starts a control plane with the account that docs/webhooks.md describes.
func start(t *testing.T, change func(*discovery.Options)) *mesh {
	t.Helper()
	c := kubetest.Shared(t)
	c.InstallCRDs(t, kubetest.Istio)
	m := &mesh{t: t, cluster: c, namespace: c.Namespace(t, nil), log: &wait.Output{}}
	m.config = m.account()
	m.addresses, m.stop = m.replica("istiod-1", change)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of the control plane:\n%s", m.log)
		}
	})
	return m
}

// replica starts a replica of the control plane, which a function stops, the end of the test too.
func (m *mesh) replica(instance string, change func(*discovery.Options)) (discovery.Ports, func()) {
	t := m.t
	t.Helper()
	any := "127.0.0.1:0"
	o := discovery.Options{
		StateDir: t.TempDir(), Names: discovery.Names{Domain: "cluster.local", Namespace: m.namespace, Instance: instance}, Version: "test",
		Ports: discovery.Ports{HTTP: any, HTTPS: any}, HTTP: discovery.HTTPOptions{OpenDebug: true, Shutdown: time.Second},
		Kubernetes: discovery.KubernetesOptions{API: kube.Options{Kubeconfig: kubetest.Kubeconfig(t, m.config), QPS: -1}, Cluster: "Kubernetes"},
		Webhooks:   discovery.WebhookOptions{Revision: m.namespace, Injection: "istio-sidecar-injector", Validation: "istio-istio-system"},
		Log:        slog.New(slog.NewTextHandler(m.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if change != nil {
		change(&o)
	}
	s, err := discovery.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(stop)
	return s.Addresses(), stop
}

// objects is a client for VirtualServices, whose warnings m has.
func (m *mesh) objects() dynamic.ResourceInterface {
	m.t.Helper()
	config := rest.CopyConfig(m.cluster.Config)
	config.WarningHandler = m
	c, err := dynamic.NewForConfig(config)
	if err != nil {
		m.t.Fatal(err)
	}
	return c.Resource(virtualServices).Namespace(m.namespace)
}

// virtualService is one with a host.
func (m *mesh) virtualService(name, host string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
		"metadata": map[string]any{"name": name, "namespace": m.namespace, "labels": map[string]any{"istio.io/rev": m.namespace}},
		"spec": map[string]any{
			"hosts": []any{host},
			"http":  []any{map[string]any{"route": []any{map[string]any{"destination": map[string]any{"host": "reviews"}}}}},
		},
	}}
}

func (m *mesh) create(name, host string) error {
	_, err := m.objects().Create(m.t.Context(), m.virtualService(name, host), metav1.CreateOptions{})
	return err
}

// configuration is the webhook configuration that validates.
func (m *mesh) configuration() *admissionregistrationv1.ValidatingWebhookConfiguration {
	m.t.Helper()
	c, err := m.cluster.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(m.t.Context(), "istio-validator-"+m.namespace, metav1.GetOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	return c
}

// becomes waits until the webhook that validates has a failure policy and a bundle of a number of roots.
func (m *mesh) becomes(policy admissionregistrationv1.FailurePolicyType, roots int) {
	m.t.Helper()
	wait.NoError(m.t, "the webhook configuration is true", func() error {
		h := m.configuration().Webhooks[0]
		n := 0
		for block, rest := pem.Decode(h.ClientConfig.CABundle); block != nil; block, rest = pem.Decode(rest) {
			n++
		}
		if *h.FailurePolicy != policy || n != roots {
			return fmt.Errorf("failurePolicy %s and %d roots, want %s and %d", *h.FailurePolicy, n, policy, roots)
		}
		return nil
	})
}

const badHost = "re views"

func TestValidationBelowARealAPIServer(t *testing.T) {
	m := start(t, nil)
	for _, name := range []string{"stored", "mended"} { // before anybody validates
		if err := m.create(name, badHost); err != nil {
			t.Fatal(err)
		}
	}
	m.cluster.Apply(t, "", m.replaced(validator, "POLICY", "Ignore"))
	m.becomes(admissionregistrationv1.Fail, 1)
	m.warned()

	err := m.create("broken", badHost)
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `denied the request: configuration is invalid: spec.hosts[0]: invalid host "re views"`) {
		t.Errorf("a broken VirtualService: %v; want it refused", err)
	}
	if err := m.create("valid", "reviews"); err != nil || m.warned() != "" {
		t.Errorf("a valid one: %v", err)
	}
	objects := m.objects()
	if _, err := objects.Patch(t.Context(), "stored", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("label a stored one that is broken: %v", err)
	}
	if w := m.warned(); !strings.Contains(w, "spec.hosts[0]: invalid host") {
		t.Errorf("warnings %q; want one about the host", w)
	}
	if _, err := objects.Patch(t.Context(), "stored", types.MergePatchType, []byte(`{"spec":{"http":[{"route":[{"destination":{"host":"a b"}}]}]}}`), metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("break it in another way: %v; want it refused", err)
	}
	if _, err := objects.Patch(t.Context(), "mended", types.MergePatchType, []byte(`{"spec":{"hosts":["reviews"]}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("mend one: %v", err)
	}
	if err := objects.Delete(t.Context(), "stored", metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete a broken one: %v", err)
	}
	if log := m.log.String(); strings.Contains(strings.ToLower(log), "forbidden") {
		t.Error("the account lacks a permission that docs/webhooks.md does not name")
	}

	m.stop()
	if err := m.create("unchecked", "reviews"); err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
		t.Errorf("without a control plane: %v; want it refused, by default", err)
	}
}

func TestWebhookConfigurationsAreKeptTrue(t *testing.T) {
	m := start(t, nil)
	others := m.replaced(strings.ReplaceAll(strings.Replace(validator, "istio-validator-", "others-", 1), "/validate", "/elsewhere"), "POLICY", "Ignore")
	m.cluster.Apply(t, "", others)
	m.cluster.Apply(t, "", m.replaced(validator, "POLICY", "Ignore"))
	m.becomes(admissionregistrationv1.Fail, 1)

	client := m.cluster.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	for _, change := range []string{
		`[{"op":"replace","path":"/webhooks/0/clientConfig/caBundle","value":""}]`,
		`[{"op":"replace","path":"/webhooks/0/failurePolicy","value":"Ignore"}]`,
	} {
		if _, err := client.Patch(t.Context(), "istio-validator-"+m.namespace, types.JSONPatchType, []byte(change), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		m.becomes(admissionregistrationv1.Fail, 1)
	}

	// A rotation. It is over at once, since the old root has signed nothing for a workload.
	before := m.configuration().Webhooks[0].ClientConfig.CABundle
	r, err := http.Post("http://"+m.addresses.HTTP+"/debug/ca/rotate", "application/json", nil)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("rotate the root: %v, %v", r, err)
	}
	_ = r.Body.Close()
	wait.Until(t, "the configuration has the new root", func() bool {
		h := m.configuration().Webhooks[0]
		return !bytes.Equal(h.ClientConfig.CABundle, before)
	})
	m.becomes(admissionregistrationv1.Fail, 1)
	wait.NoError(t, "objects are validated after the rotation", func() error {
		if err := m.create("broken", badHost); !apierrors.IsInvalid(err) {
			return errors.New(fmt.Sprint("want it refused, not: ", err))
		}
		return nil
	})

	// Watches that end are begun again.
	m.cluster.KillAPIServer(t)
	m.cluster.StartAPIServer(t)
	wait.NoError(t, "the API server answers", func() error {
		_, err := client.Patch(t.Context(), "istio-validator-"+m.namespace, types.JSONPatchType, []byte(`[{"op":"replace","path":"/webhooks/0/clientConfig/caBundle","value":""}]`), metav1.PatchOptions{})
		return err
	})
	m.becomes(admissionregistrationv1.Fail, 1)

	c, err := client.Get(t.Context(), "others-"+m.namespace, metav1.GetOptions{})
	if err != nil || len(c.Webhooks[0].ClientConfig.CABundle) > 0 || *c.Webhooks[0].FailurePolicy != admissionregistrationv1.Ignore {
		t.Errorf("a configuration whose requests go elsewhere: %+v, %v; want it as it was", c.Webhooks, err)
	}
}

func TestValidationFailsOpenByOption(t *testing.T) {
	m := start(t, func(o *discovery.Options) { o.Webhooks.Policy = webhook.Open })
	m.cluster.Apply(t, "", m.replaced(validator, "POLICY", "Fail"))
	m.becomes(admissionregistrationv1.Ignore, 1)
	wait.NoError(t, "objects are validated", func() error {
		if err := m.create("broken", badHost); !apierrors.IsInvalid(err) {
			_ = m.objects().Delete(t.Context(), "broken", metav1.DeleteOptions{})
			return errors.New(fmt.Sprint("want it refused, not: ", err))
		}
		return nil
	})
	m.stop()
	if err := m.create("unchecked", badHost); err != nil {
		t.Errorf("without a control plane: %v; want it admitted", err)
	}
}
