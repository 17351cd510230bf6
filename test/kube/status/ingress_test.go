package status_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubetest "github.com/pilothouse/pilothouse/test/kube"
	"github.com/pilothouse/pilothouse/test/wait"
)

const ingressObjects = `apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: THE-CLASS}
spec: {controller: istio.io/ingress-controller}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, labels: {istio.io/rev: other}}
spec: {ingressClassName: THE-CLASS, defaultBackend: {service: {name: web, port: {number: 80}}}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: foreign}
spec: {ingressClassName: nginx, defaultBackend: {service: {name: web, port: {number: 80}}}}
`

const ingressService = `apiVersion: v1
kind: Service
metadata: {name: istio-ingressgateway}
spec: {type: LoadBalancer, externalIPs: [203.0.113.9], selector: {istio: ingressgateway}, ports: [{name: http, port: 80}]}
`

// addressesOf waits until an Ingress has the addresses in its status.
func (e *environment) addressesOf(name, want string) {
	e.t.Helper()
	wait.NoError(e.t, "the addresses of "+name+" are "+want, func() error {
		i, err := e.c.Client.NetworkingV1().Ingresses(e.shop).Get(e.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var got []string
		for _, a := range i.Status.LoadBalancer.Ingress {
			got = append(got, a.IP+a.Hostname)
		}
		if text := strings.Join(got, " "); text != want {
			return fmt.Errorf("they are %q", text)
		}
		return nil
	})
}

// setAddresses writes the addresses of an Ingress, as another controller does.
func (e *environment) setAddresses(name string, list ...networkingv1.IngressLoadBalancerIngress) {
	e.t.Helper()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"loadBalancer": map[string]any{"ingress": list}}})
	if err != nil {
		e.t.Fatal(err)
	}
	if _, err := e.c.Client.NetworkingV1().Ingresses(e.shop).Patch(e.t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "another"}, "status"); err != nil {
		e.t.Fatal(err)
	}
}

func (e *environment) setClass(name, class string) {
	e.t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"ingressClassName":%q}}`, class)
	if _, err := e.c.Client.NetworkingV1().Ingresses(e.shop).Patch(e.t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		e.t.Fatal(err)
	}
}

// Ingresses that are served have the addresses of the gateways' Service, whatever their labels, until they are served no more. What other
// controllers have written to others stays.
func TestStatusOfIngresses(t *testing.T) {
	e := begin(t)
	class := e.shop // the cluster's other tests have classes of their own
	e.c.Apply(t, e.shop, strings.ReplaceAll(ingressObjects, "THE-CLASS", class))
	e.setAddresses("foreign", networkingv1.IngressLoadBalancerIngress{IP: "192.0.2.1"})
	e.c.Apply(t, e.system, ingressService)
	e.addressesOf("web", "203.0.113.9")

	services := e.c.Client.CoreV1().Services(e.system)
	wait.NoError(t, "the load balancer gets its addresses", func() error {
		s, err := services.Get(t.Context(), "istio-ingressgateway", metav1.GetOptions{})
		if err != nil {
			return err
		}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "lb.example.com"}, {IP: "203.0.113.10"}}
		_, err = services.UpdateStatus(t.Context(), s, metav1.UpdateOptions{})
		return err
	})
	e.addressesOf("web", "203.0.113.10 203.0.113.9 lb.example.com")

	// Another controller takes it over before it writes its own addresses, and gives it back.
	e.setClass("web", "nginx")
	e.addressesOf("web", "")
	e.setAddresses("web", networkingv1.IngressLoadBalancerIngress{IP: "192.0.2.2"})
	e.setClass("web", class)
	e.addressesOf("web", "203.0.113.10 203.0.113.9 lb.example.com")

	// The addresses go with the Service.
	if err := services.Delete(t.Context(), "istio-ingressgateway", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	e.addressesOf("web", "")

	// The next process clears what an earlier one has written.
	e.c.Apply(t, e.system, ingressService)
	e.addressesOf("web", "203.0.113.9")
	e.plane.stop()
	e.setClass("web", "nginx")
	e.plane = e.start("istiod-2")
	e.addressesOf("web", "")
	e.addressesOf("foreign", "192.0.2.1")
}

// A control plane with the role of a version that did not read Ingresses serves everything else, and says in one line what it must not read.
func TestIngressesThatMustNotBeRead(t *testing.T) {
	c := kubetest.Shared(t)
	c.InstallCRDs(t, kubetest.Istio)
	e := beginWith(t, c, func(rules string) string {
		var out []string
		for line := range strings.Lines(rules) {
			if !strings.Contains(line, "networking.k8s.io]") || strings.Contains(line, "gateway.networking.k8s.io]") {
				out = append(out, line)
			}
		}
		return strings.Join(out, "")
	})
	e.c.Apply(t, e.shop, "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{name: http, port: 80}]}\n---\n"+
		"apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: web}\nspec: {hosts: [web], http: [{route: [{destination: {host: web}}]}]}\n")
	e.untilHas("web", "True NotUsed")
	e.plane.logs("IngressClass and Ingress objects cannot be read: ingressclasses.networking.k8s.io is forbidden")
	wait.Until(t, "one problem is left", func() bool {
		left := 0
		for line := range strings.Lines(e.plane.log.String()) {
			switch {
			case !strings.Contains(line, "objects cannot be read"):
			case strings.Contains(line, "problem is gone"):
				left--
			default:
				left++
			}
		}
		return left == 1
	})
}
