package install_test

import (
	"errors"
	"fmt"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
