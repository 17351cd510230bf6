package install_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// An Ingress is served by the gateway of the chart, named as Istio's: requests reach the workload by mutual TLS, the status has the address of
// the load balancer, and both end when the Ingress is another controller's.
func TestAnIngressIsServed(t *testing.T) {
	const gateway, address = "istio-ingressgateway", "203.0.113.9"
	c := shared.Start(t)
	install := c.Install
	if _, err := c.Client.AppsV1().Deployments(system).Get(t.Context(), gateway, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		install = c.Upgrade // the test is repeated
	}
	if err := install(t.Context(), gateway, system, c.Gateway(), "autoscaling: {enabled: false}\n"); err != nil {
		t.Fatal(err)
	}
	edge := readyPod(t, c, system, "istio=ingressgateway")
	services := c.Client.CoreV1().Services(system)
	until(t, "the Service gets the address of a load balancer", func() error {
		s, err := services.Get(t.Context(), gateway, metav1.GetOptions{})
		if err != nil {
			return err
		}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
		_, err = services.UpdateStatus(t.Context(), s, metav1.UpdateOptions{})
		return err
	})

	namespace := c.Namespace(t, injected)
	host := namespace + ".example.com"
	c.Apply(t, namespace, "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default}\nspec: {mtls: {mode: STRICT}}\n")
	deploy(t, c, namespace, "web", "-tcp=127.0.0.1:8082")
	c.Apply(t, namespace, strings.NewReplacer("THE-HOST", host, "THE-CLASS", namespace).Replace(`
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: THE-CLASS}
spec: {controller: istio.io/ingress-controller}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec:
  ingressClassName: THE-CLASS
  rules:
  - host: THE-HOST
    http: {paths: [{path: /shop, pathType: Prefix, backend: {service: {name: web, port: {name: http}}}}]}
`))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return c.Network.Dial(ctx, network, gateway+"."+system+":80")
	}}}
	want := "spiffe://" + meshup.Domain + "/ns/" + system + "/sa/" + edge.Spec.ServiceAccountName
	until(t, "the web answers by way of the gateway", func() error {
		a, err := meshup.Post(t.Context(), client, "http://"+host+"/shop/x", nil)
		if err == nil && (a.Status != http.StatusOK || a.Peer != want) {
			err = fmt.Errorf("status %d, identity %q, want %s", a.Status, a.Peer, want)
		}
		return err
	})
	status := func(path string) (int, error) {
		res, err := client.Get("http://" + host + path)
		if err != nil {
			return 0, err
		}
		return res.StatusCode, res.Body.Close()
	}
	until(t, "another path has no route", func() error {
		code, err := status("/other")
		if err == nil && code != http.StatusNotFound {
			err = fmt.Errorf("status %d", code)
		}
		return err
	})
	ingresses := c.Client.NetworkingV1().Ingresses(namespace)
	addresses := func(want int) func() error {
		return func() error {
			i, err := ingresses.Get(t.Context(), "web", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if got := i.Status.LoadBalancer.Ingress; len(got) != want || want > 0 && got[0].IP != address {
				return fmt.Errorf("it has %v", got)
			}
			return nil
		}
	}
	until(t, "the status has the address", addresses(1))

	if _, err := ingresses.Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"ingressClassName":"nginx"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the status has no address", addresses(0))
	until(t, "the host is served no more", func() error { // without any Ingress there is no listener
		if code, err := status("/shop/x"); err == nil && code != http.StatusNotFound {
			return fmt.Errorf("status %d", code)
		}
		return nil
	})
}
