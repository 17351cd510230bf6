package mixed_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	securityv1 "istio.io/api/security/v1alpha1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/kube/clusterup"
	"github.com/pilothouse/pilothouse/test/load"
)

// underLoad sends requests to a service from Pods while it calls do, and checks that each was answered.
func underLoad(t *testing.T, c *clusterup.Cluster, addr string, pods []*corev1.Pod, do func()) {
	t.Helper()
	var loads []*load.Load
	for _, p := range pods {
		l := load.New(t.Context(), from{c, p}.Dial)
		l.KeepAlive(addr, 3, 100*time.Millisecond)
		l.Churn(addr, 2, 100*time.Millisecond)
		loads = append(loads, l)
	}
	do()
	for i, l := range loads {
		r := l.Stop()
		if len(r.Failures) > 0 || r.Sent < 100 {
			t.Errorf("from %s, of %d requests failed: %v", pods[i].Name, r.Sent, r.Failures)
		}
		t.Logf("from %s: %d requests in %v, failed: %d", pods[i].Name, r.Sent, r.Took.Round(time.Millisecond), len(r.Failures))
	}
}

// sideOf says whose manifest a Pod has: the template of Istio's asks for less than ours.
func sideOf(t *testing.T, p *corev1.Pod) string {
	t.Helper()
	requests := proxy(t, p).Resources.Requests
	if requests.Cpu().String() == "10m" {
		return "istio"
	}
	return "ours"
}

// change patches the template of a Deployment's Pods, which are replaced.
func change(t *testing.T, c *clusterup.Cluster, namespace, name, annotations string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":%s}}}}`, annotations)
	if _, err := c.Client.AppsV1().Deployments(namespace).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// Half of the Pods have what Istio's injector writes, the other half ours: each talks to each by mutual TLS, with certificates of
// one plugged-in CA, and a Pod moves from one side to the other and back without a request that fails.
func TestPodsWithIstiosManifestsBesideOurs(t *testing.T) {
	t.Parallel()
	c := shared.Start(t)
	namespace := c.Namespace(t, map[string]string{"istio-injection": "enabled"})
	c.Apply(t, namespace, strict)
	sides := map[string]string{"web-ours": "ours", "web-istio": "istio", "shopper-ours": "ours", "shopper-istio": "istio"}
	for name, side := range sides {
		deploy(t, c, namespace, name, side)
	}
	pods := map[string]*corev1.Pod{}
	for name, side := range sides {
		pods[name] = settled(t, c, namespace, name)
		if of := sideOf(t, pods[name]); of != side {
			t.Errorf("Pod %s is %s, want %s", name, of, side)
		}
	}
	for _, shopper := range []string{"shopper-ours", "shopper-istio"} {
		for _, web := range []string{"web-ours", "web-istio"} {
			mutual(t, c, pods[shopper], "http://"+web+":8080/")
		}
	}
	underLoad(t, c, "web-istio:8080", []*corev1.Pod{pods["shopper-ours"], pods["shopper-istio"]}, func() {
		for _, templates := range []string{`null`, `"istio"`} {
			before := settled(t, c, namespace, "web-istio")
			change(t, c, namespace, "web-istio", `{"inject.istio.io/templates":`+templates+`}`)
			if after := settled(t, c, namespace, "web-istio"); sideOf(t, after) == sideOf(t, before) {
				t.Errorf("Pod %s has not moved", after.Name)
			}
		}
	})
	for _, shopper := range []string{"shopper-ours", "shopper-istio"} {
		mutual(t, c, pods[shopper], "http://web-istio:8080/")
	}
}

// An agent asks for a certificate by the calls of Istio's: its token and the id of its cluster are in the metadata, the names
// in the request do not matter. What it gets is of the plugged-in CA, and our Pods accept it.
func TestCertificateCallsOfIstiosAgent(t *testing.T) {
	t.Parallel()
	c := shared.Start(t)
	namespace := c.Namespace(t, map[string]string{"istio-injection": "enabled"})
	c.Apply(t, namespace, strict)
	deploy(t, c, namespace, "web", "ours")
	c.Apply(t, namespace, "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: theirs}\n")
	roots := x509.NewCertPool()
	roots.AddCert(root)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///istiod."+system+".svc:15012",
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return c.Network.Dial(ctx, "tcp", addr) }),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: "istiod." + system + ".svc"})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	certificate := tls.Certificate{PrivateKey: key}
	until(t, "the CA signs", func() error {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+c.Token(t, namespace, "theirs", "istio-ca"), "clusterid", "Kubernetes")
		r, err := securityv1.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx, &securityv1.IstioCertificateRequest{
			Csr: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request})), ValidityDuration: 86400,
		})
		if err != nil {
			return err
		}
		certificate.Certificate = nil
		for _, text := range r.GetCertChain() {
			for block, rest := pem.Decode([]byte(text)); block != nil; block, rest = pem.Decode(rest) {
				certificate.Certificate = append(certificate.Certificate, block.Bytes)
			}
		}
		return nil
	})
	if n := len(certificate.Certificate); n < 2 {
		t.Fatalf("the chain has %d certificates: want the leaf and those of the CA", n)
	}
	web := settled(t, c, namespace, "web")
	verify := func(state tls.ConnectionState) error {
		between := x509.NewCertPool()
		for _, one := range state.PeerCertificates[1:] {
			between.AddCert(one)
		}
		leaf := state.PeerCertificates[0]
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
			return err
		}
		if want := "spiffe://" + meshup.Domain + "/ns/" + namespace + "/sa/web"; len(leaf.URIs) != 1 || leaf.URIs[0].String() != want {
			return fmt.Errorf("the identity is %v, want %s", leaf.URIs, want)
		}
		return nil
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		plain, err := c.Network.Dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		// The chain is verified below: there is no name in it.
		secure := tls.Client(plain, &tls.Config{InsecureSkipVerify: true, VerifyConnection: verify, Certificates: []tls.Certificate{certificate}, NextProtos: []string{"istio-http/1.1", "istio"}})
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(err, plain.Close())
		}
		return secure, nil
	}}}
	want := "spiffe://" + meshup.Domain + "/ns/" + namespace + "/sa/theirs"
	until(t, "our Pod answers who has that certificate", func() error {
		a, err := meshup.Post(t.Context(), client, "https://"+web.Status.PodIP+":8080/", nil)
		if err == nil && a.Peer != want {
			err = fmt.Errorf("status %d, identity %q, want %s", a.Status, a.Peer, want)
		}
		return err
	})
}

// relabel sets labels of a namespace; null removes one.
func relabel(t *testing.T, c *clusterup.Cluster, name, labels string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"labels":%s}}`, labels)
	if _, err := c.Client.CoreV1().Namespaces().Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A namespace moves from one revision of the control plane to the other under load from Pods of both: no request fails, and its
// Pods then have proxies of the other revision.
func TestANamespaceMovesToAnotherRevision(t *testing.T) {
	t.Parallel()
	c := shared.Start(t)
	shop, old, next := c.Namespace(t, map[string]string{"istio.io/rev": "default"}), c.Namespace(t, map[string]string{"istio.io/rev": "default"}), c.Namespace(t, map[string]string{"istio.io/rev": "prod"})
	c.Apply(t, shop, strict)
	deploy(t, c, shop, "web", "ours")
	deploy(t, c, old, "shopper", "ours")
	deploy(t, c, next, "shopper", "ours")
	a, b := settled(t, c, old, "shopper"), settled(t, c, next, "shopper")
	revision := func(p *corev1.Pod, want, address string) {
		t.Helper()
		if got, ca := p.Annotations["istio.io/rev"], variable(proxy(t, p), "CA_ADDR"); got != want || ca != address {
			t.Errorf("Pod %s/%s is of revision %q, with the CA %s: want %s, %s", p.Namespace, p.Name, got, ca, want, address)
		}
	}
	const ofDefault, ofCanary = "istiod." + system + ".svc:15012", "istiod-canary." + system + ".svc:15012"
	revision(settled(t, c, shop, "web"), "default", ofDefault)
	revision(a, "default", ofDefault)
	revision(b, "canary", ofCanary) // by the tag prod
	url := "http://web." + shop + ":8080/"
	mutual(t, c, a, url)
	mutual(t, c, b, url)
	underLoad(t, c, "web."+shop+":8080", []*corev1.Pod{a, b}, func() {
		relabel(t, c, shop, `{"istio.io/rev":"canary"}`)
		change(t, c, shop, "web", `{"kubectl.kubernetes.io/restartedAt":"now"}`)
		revision(settled(t, c, shop, "web"), "canary", ofCanary)
	})
	mutual(t, c, a, url)
	mutual(t, c, b, url)
}

// A tag that istioctl has made chooses its revision, and pilot-discovery keeps the roots in it true.
func TestTagsOfIstioctlChooseARevision(t *testing.T) {
	t.Parallel()
	c := shared.Start(t)
	webhooks := c.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	var bundle []byte
	until(t, "the canary injects", func() error {
		canary, err := webhooks.Get(t.Context(), "istio-sidecar-injector-canary", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if bundle = canary.Webhooks[0].ClientConfig.CABundle; len(bundle) == 0 {
			return errors.New("its webhook has no roots")
		}
		return nil
	})
	fail, none, path, port := admissionv1.Fail, admissionv1.SideEffectClassNone, "/inject", int32(443)
	hook := func(name string, namespaces, objects []metav1.LabelSelectorRequirement) admissionv1.MutatingWebhook {
		return admissionv1.MutatingWebhook{
			Name: name, AdmissionReviewVersions: []string{"v1"}, FailurePolicy: &fail, SideEffects: &none,
			ClientConfig:      admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: system, Name: "istiod-canary", Path: &path, Port: &port}, CABundle: bundle},
			Rules:             []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{admissionv1.Create}, Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}},
			NamespaceSelector: &metav1.LabelSelector{MatchExpressions: namespaces}, ObjectSelector: &metav1.LabelSelector{MatchExpressions: objects},
		}
	}
	absent := func(key string) metav1.LabelSelectorRequirement {
		return metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpDoesNotExist}
	}
	in := func(key, value string) metav1.LabelSelectorRequirement {
		return metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{value}}
	}
	wanted := metav1.LabelSelectorRequirement{Key: "sidecar.istio.io/inject", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"false"}}
	const tag = "by-istioctl"
	_, err := webhooks.Create(t.Context(), &admissionv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "istio-revision-tag-" + tag, Labels: map[string]string{
			"istio.io/tag": tag, "istio.io/rev": "canary", "app": "sidecar-injector", "operator.istio.io/component": "Pilot", "install.operator.istio.io/owning-resource": "unknown",
		}},
		Webhooks: []admissionv1.MutatingWebhook{
			hook("rev.namespace.sidecar-injector.istio.io", []metav1.LabelSelectorRequirement{in("istio.io/rev", tag), absent("istio-injection")}, []metav1.LabelSelectorRequirement{wanted}),
			hook("rev.object.sidecar-injector.istio.io", []metav1.LabelSelectorRequirement{absent("istio.io/rev"), absent("istio-injection")}, []metav1.LabelSelectorRequirement{wanted, in("istio.io/rev", tag)}),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := webhooks.Delete(context.Background(), "istio-revision-tag-"+tag, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	byNamespace, byPod := c.Namespace(t, map[string]string{"istio.io/rev": tag}), c.Namespace(t, nil)
	for _, pod := range []*corev1.Pod{
		{ObjectMeta: metav1.ObjectMeta{Name: "tagged", Namespace: byNamespace}},
		{ObjectMeta: metav1.ObjectMeta{Name: "tagged", Namespace: byPod, Labels: map[string]string{"istio.io/rev": tag}}},
	} {
		pod.Spec.Containers = []corev1.Container{{Name: "app", Image: "pilothouse/app"}}
		until(t, "a Pod of "+pod.Namespace+" gets a proxy of the canary", func() error {
			p, err := c.Client.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err == nil && p.Annotations["istio.io/rev"] != "canary" {
				err = fmt.Errorf("its annotations are %v", p.Annotations)
			}
			return err
		})
	}
	patch := []byte(`[{"op":"replace","path":"/webhooks/0/clientConfig/caBundle","value":"` + "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCi0tLS0tRU5EIENFUlRJRklDQVRFLS0tLS0K" + `"}]`)
	if _, err := webhooks.Patch(t.Context(), "istio-revision-tag-"+tag, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		// The API server may refuse what is no certificate: then it is removed instead.
		patch = []byte(`[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"}]`)
		if _, err := webhooks.Patch(t.Context(), "istio-revision-tag-"+tag, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the roots are put right", func() error {
		m, err := webhooks.Get(t.Context(), "istio-revision-tag-"+tag, metav1.GetOptions{})
		if err == nil && string(m.Webhooks[0].ClientConfig.CABundle) != string(bundle) {
			err = errors.New("the webhook has other roots than that of the revision")
		}
		return err
	})
}
