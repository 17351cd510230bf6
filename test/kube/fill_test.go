package kubetest_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubetest "github.com/pilothouse/pilothouse/test/kube"
)

func TestFill(t *testing.T) {
	c := kubetest.Start(t, kubetest.Options{Controllers: []string{}})
	if err := c.Fill(t.Context(), kubetest.Load{Namespaces: 3, Services: 7, Pods: 250}); err != nil {
		t.Fatal(err)
	}
	pods, err := c.Client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "status.phase=Running"})
	if err != nil || len(pods.Items) != 250 {
		t.Errorf("%d Pods run, error %v; want 250", len(pods.Items), err)
	}
	addresses := map[string]bool{}
	for _, p := range pods.Items {
		addresses[p.Namespace+"/"+p.Labels["app"]+" "+p.Status.PodIP] = true
	}
	slices, err := c.Client.DiscoveryV1().EndpointSlices("").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(slices.Items) != 7 {
		t.Errorf("%d EndpointSlices, error %v; want 7", len(slices.Items), err)
	}
	for _, s := range slices.Items {
		for _, e := range s.Endpoints {
			key := s.Namespace + "/" + s.Labels["app"] + " " + e.Addresses[0]
			if !addresses[key] {
				t.Errorf("endpoint %s is not one of a Pod", key)
			}
			delete(addresses, key)
		}
	}
	if len(addresses) > 0 {
		t.Errorf("Pods without an endpoint: %v", addresses)
	}
	nodes, err := c.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 3 {
		t.Errorf("%d Nodes, error %v; want 3", len(nodes.Items), err)
	}
}

func TestFillRefuses(t *testing.T) {
	c := kubetest.Shared(t)
	if err := c.Fill(t.Context(), kubetest.Load{Namespaces: 1, Services: 1}); err == nil || !strings.Contains(err.Error(), "controller manager") {
		t.Errorf("error %v, want one about the controller manager", err)
	}
}
