package install_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	kubetest "github.com/pilothouse/pilothouse/test/kube"
)

// The chart's own objects are enough: pilot-discovery runs as the chart says, makes the root, and puts it and the webhooks'
// bundles where they belong.
func TestChartRunsOnANode(t *testing.T) {
	c := shared.Start(t)
	until(t, "two replicas are ready", func() error {
		d, err := c.Client.AppsV1().Deployments(system).Get(t.Context(), "istiod", metav1.GetOptions{})
		if err == nil && d.Status.ReadyReplicas != 2 {
			err = fmt.Errorf("%+v", d.Status)
		}
		return err
	})
	secret, err := c.Client.CoreV1().Secrets(system).Get(t.Context(), "istio-ca-secret", metav1.GetOptions{})
	if err != nil || len(secret.Data["ca-key.pem"]) == 0 {
		t.Errorf("Secret istio-ca-secret: error %v", err)
	}
	namespace := c.Namespace(t, nil)
	until(t, "a new namespace has the root", func() error {
		m, err := c.Client.CoreV1().ConfigMaps(namespace).Get(t.Context(), "istio-ca-root-cert", metav1.GetOptions{})
		if err == nil && m.Data["root-cert.pem"] != string(secret.Data["ca-cert.pem"]) {
			err = errors.New("it is another one")
		}
		return err
	})
	until(t, "the webhooks have their bundle, and the validation rejects what it cannot ask about", func() error {
		m, err := c.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "istio-sidecar-injector", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, h := range m.Webhooks {
			if len(h.ClientConfig.CABundle) == 0 {
				return fmt.Errorf("%s has none", h.Name)
			}
		}
		v, err := c.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), "istio-validator-"+system, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, h := range v.Webhooks {
			if len(h.ClientConfig.CABundle) == 0 || *h.FailurePolicy != admissionv1.Fail {
				return fmt.Errorf("%s: %d bytes, %s", h.Name, len(h.ClientConfig.CABundle), *h.FailurePolicy)
			}
		}
		return nil
	})
}

// A Gateway of the Gateway API gets Pods and a Service that serve it, also where the definitions of ListenerSets and UDPRoutes do not exist,
// which the chart's roles name; what somebody changes is restored, what belongs to others is not touched, ListenerSets are read once they
// are defined, and all goes with the Gateway.
func TestGatewayOfTheGatewayAPIIsDeployed(t *testing.T) {
	c := shared.Start(t)
	c.InstallCRDs(t, kubetest.GatewayAPIEarlier)
	namespace := c.Namespace(t, nil)
	apps, core := c.Client.AppsV1().Deployments(namespace), c.Client.CoreV1()
	c.Apply(t, namespace, `
apiVersion: v1
kind: Service
metadata: {name: taken-istio}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: taken}
spec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: edge}
data: {deployment: "spec: {template: {metadata: {labels: {patched: by-user}}}}"}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, annotations: {networking.istio.io/service-type: ClusterIP}}
spec:
  gatewayClassName: istio
  allowedListeners: {namespaces: {from: Same}}
  infrastructure: {labels: {team: shop}, annotations: {networking.istio.io/service-type: ClusterIP}, parametersRef: {group: "", kind: ConfigMap, name: edge}}
  listeners: [{name: http, port: 80, protocol: HTTP}]
`)
	pod := readyPod(t, c, namespace, "gateway.networking.k8s.io/gateway-name=edge")
	if pod.Labels["team"] != "shop" || pod.Labels["patched"] != "by-user" || pod.Spec.ServiceAccountName != "edge-istio" {
		t.Errorf("the Pod has labels %v and the ServiceAccount %s", pod.Labels, pod.Spec.ServiceAccountName)
	}
	gateways := c.Dynamic.Resource(schema.GroupVersionResource{Group: gatewayv1.GroupName, Version: "v1", Resource: "gateways"}).Namespace(namespace)
	until(t, "the status has the Service's name, and says that the Gateway is programmed", func() error {
		g, err := gateways.Get(t.Context(), "edge", metav1.GetOptions{})
		if err != nil {
			return err
		}
		text := fmt.Sprint(g.Object["status"])
		for _, want := range []string{"edge-istio." + namespace + ".svc.cluster.local", "type:Programmed", "reason:Programmed"} {
			if !strings.Contains(text, want) {
				return fmt.Errorf("want %s in %s", want, text)
			}
		}
		return nil
	})
	if err := core.Services(namespace).Delete(t.Context(), "edge-istio", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	patch := []byte(`{"spec":{"template":{"spec":{"serviceAccountName":"default"}}}}`)
	if _, err := apps.Patch(t.Context(), "edge-istio", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "what was changed and deleted is restored", func() error {
		d, err := apps.Get(t.Context(), "edge-istio", metav1.GetOptions{})
		if err == nil && d.Spec.Template.Spec.ServiceAccountName != "edge-istio" {
			err = fmt.Errorf("the Deployment has the ServiceAccount %s", d.Spec.Template.Spec.ServiceAccountName)
		}
		if err == nil {
			_, err = core.Services(namespace).Get(t.Context(), "edge-istio", metav1.GetOptions{})
		}
		return err
	})
	c.InstallCRDs(t, kubetest.GatewayAPI)
	c.Apply(t, namespace, `
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: more}
spec: {parentRef: {name: edge}, listeners: [{name: more, port: 8080, protocol: HTTP}]}
`)
	sets := c.Dynamic.Resource(schema.GroupVersionResource{Group: gatewayv1.GroupName, Version: "v1", Resource: "listenersets"}).Namespace(namespace)
	until(t, "a ListenerSet is accepted after its kind is defined", func() error {
		s, err := sets.Get(t.Context(), "more", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if text := fmt.Sprint(s.Object["status"]); !strings.Contains(text, "reason:Accepted") {
			return fmt.Errorf("its status is %s", text)
		}
		return nil
	})
	taken, err := core.Services(namespace).Get(t.Context(), "taken-istio", metav1.GetOptions{})
	if err != nil || len(taken.OwnerReferences) > 0 || len(taken.Labels) > 0 {
		t.Errorf("the Service of another owner: %+v (%v)", taken, err)
	}
	if err := gateways.Delete(t.Context(), "edge", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "all goes with the Gateway", func() error {
		for _, get := range []func() error{
			func() error { _, err := apps.Get(t.Context(), "edge-istio", metav1.GetOptions{}); return err },
			func() error {
				_, err := core.Services(namespace).Get(t.Context(), "edge-istio", metav1.GetOptions{})
				return err
			},
			func() error {
				_, err := core.ServiceAccounts(namespace).Get(t.Context(), "edge-istio", metav1.GetOptions{})
				return err
			},
		} {
			if err := get(); !apierrors.IsNotFound(err) {
				return fmt.Errorf("one is left (%w)", err)
			}
		}
		return nil
	})
}
