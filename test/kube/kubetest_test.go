package kubetest_test

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/kube"
	kubetest "github.com/pilothouse/pilothouse/test/kube"
	"github.com/pilothouse/pilothouse/test/wait"
)

func TestMain(m *testing.M) {
	if os.Getenv(helperVariable) != "" {
		os.Exit(helper())
	}
	kubetest.Main(m, kubetest.Options{Scheduler: true})
}

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {kubetest/node: %q}
      containers: [{name: web, image: web}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`

// The controllers make a Pod of a Deployment, the scheduler binds it to a Node that exists in the API alone, and
// the address of its status is an endpoint of its Service.
func TestPodIsMadeBoundAndAnEndpoint(t *testing.T) {
	c := kubetest.Shared(t)
	ns := c.Namespace(t, map[string]string{"istio-injection": "enabled"})
	c.Node(t, ns, map[string]string{"kubetest/node": ns})
	c.Apply(t, ns, fmt.Sprintf(deployment, ns))

	var pod corev1.Pod
	wait.NoError(t, "a Pod bound to the Node", func() error {
		pods, err := c.Client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil || len(pods.Items) != 1 || pods.Items[0].Spec.NodeName != ns {
			return fmt.Errorf("Pods %v (error %w)", pods, err)
		}
		pod = pods.Items[0]
		return nil
	})
	address := netip.MustParseAddr("10.244.0.7")
	c.PodRunning(t, ns, pod.Name, address)
	wait.NoError(t, "an endpoint with the Pod's address", func() error {
		slices, err := c.Client.DiscoveryV1().EndpointSlices(ns).List(t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=web"})
		if err != nil || len(slices.Items) != 1 || len(slices.Items[0].Endpoints) != 1 || slices.Items[0].Endpoints[0].Addresses[0] != address.String() {
			return fmt.Errorf("EndpointSlices %v (error %w)", slices, err)
		}
		return nil
	})
}

const istioAndGatewayObjects = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews}
spec: {hosts: [reviews], http: [{route: [{destination: {host: reviews}}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: reviews}
spec: {rules: [{backendRefs: [{name: reviews, port: 80}]}]}
`

func TestKindsOfCRDsAreServed(t *testing.T) {
	c := kubetest.Shared(t)
	ns := c.Namespace(t, nil)
	c.InstallCRDs(t, kubetest.Istio, kubetest.GatewayAPI)
	c.Apply(t, ns, istioAndGatewayObjects)
	c.InstallCRDs(t, kubetest.Istio) // again: nothing to do

	crd, err := c.Dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).Get(t.Context(), "httproutes.gateway.networking.k8s.io", metav1.GetOptions{})
	if err != nil || crd.GetAnnotations()["gateway.networking.k8s.io/bundle-version"] != kubetest.GatewayAPIVersion {
		t.Errorf("the CRD of HTTPRoute: annotations %v, error %v; want version %s", crd.GetAnnotations(), err, kubetest.GatewayAPIVersion)
	}
}

const crdAndObject = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: books.kubetest.test}
spec:
  group: kubetest.test
  scope: Namespaced
  names: {kind: Book, plural: books}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---
apiVersion: kubetest.test/v1
kind: Book
metadata: {name: a}
`

func TestObjectOfACRDIsAppliedAfterIt(t *testing.T) {
	c := kubetest.Shared(t)
	c.Apply(t, c.Namespace(t, nil), crdAndObject)
}

// What was applied is removed at the end of the test that applied it; what was there before stays.
func TestAppliedObjectsEndWithTheTest(t *testing.T) {
	c := kubetest.Shared(t)
	const role = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: %s}\n"
	prefix := c.Namespace(t, nil)
	c.Apply(t, "", fmt.Sprintf(role, prefix+"-kept"))
	var ns string
	t.Run("inner", func(t *testing.T) {
		ns = c.Namespace(t, nil)
		c.Apply(t, ns, fmt.Sprintf(role, prefix+"-ended")+"---\n"+fmt.Sprintf(role, prefix+"-kept"))
	})
	for name, want := range map[string]bool{"-kept": true, "-ended": false} {
		_, err := c.Client.RbacV1().ClusterRoles().Get(t.Context(), prefix+name, metav1.GetOptions{})
		if exists := err == nil; exists != want {
			t.Errorf("ClusterRole %s exists: %v (%v), want %v", name, exists, err, want)
		}
	}
	wait.Until(t, "the namespace of the inner test is gone", func() bool {
		_, err := c.Client.CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func TestTokenForTheCAIsReviewed(t *testing.T) {
	c := kubetest.Shared(t)
	ns := c.Namespace(t, nil)
	token := c.Token(t, ns, "default", "istio-ca")
	for _, tt := range []struct {
		audience string
		want     bool
	}{{"istio-ca", true}, {"vault", false}, {"", false}} {
		review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
		if tt.audience != "" {
			review.Spec.Audiences = []string{tt.audience}
		}
		r, err := c.Client.AuthenticationV1().TokenReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s := r.Status
		if s.Authenticated != tt.want || tt.want && (s.User.Username != "system:serviceaccount:"+ns+":default" || !slices.Equal(s.Audiences, []string{tt.audience})) {
			t.Errorf("audience %q: %+v, want authenticated %v", tt.audience, s, tt.want)
		}
	}
}

// RBAC is on: a ServiceAccount, and a user, may do what a Role says and no more.
func TestRolesDecide(t *testing.T) {
	c := kubetest.Shared(t)
	ns := c.Namespace(t, nil)
	c.Apply(t, ns, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects:
- {kind: ServiceAccount, name: default, namespace: %[1]s}
- {kind: Group, apiGroup: rbac.authorization.k8s.io, name: %[1]s}
`, ns))
	user, err := c.UserConfig("jane", ns)
	if err != nil {
		t.Fatal(err)
	}
	for name, config := range map[string]*rest.Config{"ServiceAccount": c.TokenConfig(c.Token(t, ns, "default")), "user": user} {
		// As our programs do: from a file.
		loaded, err := kube.Load(kube.Options{Kubeconfig: kubetest.Kubeconfig(t, config)})
		if err != nil {
			t.Fatal(err)
		}
		client, err := kubernetes.NewForConfig(loaded)
		if err != nil {
			t.Fatal(err)
		}
		// The API server learns of a new role a little later.
		wait.NoError(t, name+" may read ConfigMaps", func() error {
			_, err := client.CoreV1().ConfigMaps(ns).Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
			return err
		})
		if _, err := client.CoreV1().Secrets(ns).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("%s lists Secrets: error %v, want Forbidden", name, err)
		}
	}
}

// A Lease is what leaders are elected by: of two updates of the same version the second fails.
func TestLeaseIsUpdatedByOne(t *testing.T) {
	c := kubetest.Shared(t)
	ns := c.Namespace(t, nil)
	leases := c.Client.CoordinationV1().Leases(ns)
	lease, err := leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "leader"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for holder, conflict := range []bool{false, true} {
		l, name := lease.DeepCopy(), fmt.Sprint("replica-", holder)
		l.Spec.HolderIdentity = &name
		if _, err := leases.Update(t.Context(), l, metav1.UpdateOptions{}); apierrors.IsConflict(err) != conflict || err != nil && !conflict {
			t.Errorf("%s: error %v, want a conflict: %v", name, err, conflict)
		}
	}
}

// The API server calls a mutating webhook of the test at a loopback URL.
func TestMutatingWebhook(t *testing.T) {
	c := kubetest.Shared(t)
	ns := c.Namespace(t, map[string]string{"kubetest/webhook": "mutates"})
	certificate, err := c.ServerCertificate("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(addLabel))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	c.Apply(t, ns, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: %s}
webhooks:
- name: label.kubetest.test
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Fail
  clientConfig: {url: "%s/inject", caBundle: %s}
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
`, ns, server.URL, base64.StdEncoding.EncodeToString(c.CA())))

	// The API server learns of a new webhook a little later.
	n := 0
	wait.NoError(t, "a Pod that the webhook changed", func() error {
		n++
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pod-", n)}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}}}
		got, err := c.Client.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{})
		if err == nil && got.Labels["mutated"] != "yes" {
			err = fmt.Errorf("labels %v", got.Labels)
		}
		return err
	})
}

// addLabel is a webhook that adds the label mutated=yes.
func addLabel(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	patchType := admissionv1.PatchTypeJSONPatch
	review.Response = &admissionv1.AdmissionResponse{
		UID: review.Request.UID, Allowed: true, PatchType: &patchType, Patch: []byte(`[{"op":"add","path":"/metadata/labels","value":{"mutated":"yes"}}]`),
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(&review)
}
