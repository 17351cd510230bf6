package status_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	kubetest "github.com/pilothouse/pilothouse/test/kube"
	"github.com/pilothouse/pilothouse/test/wait"
)

const gatewayObjects = `apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge}
spec:
  gatewayClassName: istio
  listeners:
  - {name: http, port: 80, protocol: HTTP, hostname: "*.example.com"}
  - {name: https, port: 443, protocol: HTTPS, hostname: "*.example.com", tls: {certificateRefs: [{name: a, namespace: elsewhere}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web}
spec:
  parentRefs: [{name: edge, sectionName: http}, {name: edge, sectionName: none}, {name: other}]
  hostnames: [web.example.com]
  rules: [{backendRefs: [{name: web, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: foreign}
spec: {gatewayClassName: example, listeners: [{name: http, port: 80, protocol: HTTP}]}
`

// gatewayText has the conditions of a status in one line: "where Type=Status/Reason" each.
func gatewayText(status any) string {
	text, _ := json.Marshal(status)
	type condition struct {
		Type, Status, Reason string
		ObservedGeneration   int64
	}
	var s struct {
		Conditions []condition
		Listeners  []struct {
			Name           string
			AttachedRoutes int
			SupportedKinds []struct{ Kind string }
			Conditions     []condition
		}
		Parents []struct {
			ParentRef  struct{ SectionName string }
			Conditions []condition
		}
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return err.Error()
	}
	var out []string
	add := func(where string, list []condition) {
		for _, c := range list {
			out = append(out, fmt.Sprintf("%s%s=%s/%s@%d", where, c.Type, c.Status, c.Reason, c.ObservedGeneration))
		}
	}
	add("", s.Conditions)
	for _, l := range s.Listeners {
		add(fmt.Sprintf("%s(%d,%d):", l.Name, l.AttachedRoutes, len(l.SupportedKinds)), l.Conditions)
	}
	for _, p := range s.Parents {
		add(p.ParentRef.SectionName+":", p.Conditions)
	}
	return strings.Join(out, " ")
}

// The statuses of the Gateway API say which listeners and routes are accepted and served, and follow what they depend on. Objects of
// other controllers are left alone.
func TestStatusOfTheGatewayAPI(t *testing.T) {
	c := kubetest.Start(t, kubetest.Options{})
	c.InstallCRDs(t, kubetest.Istio, kubetest.GatewayAPI)
	e := beginOn(t, c, "")
	api := func(resource, namespace string) dynamic.ResourceInterface {
		of := c.Dynamic.Resource(schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: resource})
		if namespace == "" {
			return of
		}
		return of.Namespace(namespace)
	}
	await := func(of dynamic.ResourceInterface, name string, want ...string) {
		t.Helper()
		wait.NoError(t, "the status of "+name, func() error {
			o, err := of.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			got := gatewayText(o.Object["status"])
			for _, w := range want {
				if !strings.Contains(got, w) {
					return fmt.Errorf("it is %s, want %s", got, w)
				}
			}
			return nil
		})
	}
	c.Apply(t, e.shop, gatewayObjects)
	gateways, routes := api("gateways", e.shop), api("httproutes", e.shop)
	await(gateways, "edge", "Accepted=True/Accepted@1 Programmed=False/Pending@1", "http(1,2):Accepted=True/Accepted@1", "http(1,2):ResolvedRefs=True/ResolvedRefs@1",
		"https(0,2):ResolvedRefs=False/RefNotPermitted@1", "https(0,2):Programmed=False/")
	await(routes, "web", "http:Accepted=True/Accepted@1", "http:ResolvedRefs=True/ResolvedRefs@1", "none:Accepted=False/NoMatchingParent@1")

	(&proxy{gateway: "edge"}).connect(t, e.shop, "edge-1", e.grpc())
	await(gateways, "edge", "Programmed=True/Programmed@1", "http(1,2):Programmed=True/Programmed@1", "https(0,2):Programmed=False/Invalid@1")

	// What the objects depend on changes, and they do not.
	if err := c.Client.CoreV1().Services(e.shop).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(routes, "web", "http:ResolvedRefs=False/BackendNotFound@1")
	if err := routes.Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(gateways, "edge", "http(0,2):Accepted=True/Accepted@1")
	o, err := gateways.Get(t.Context(), "foreign", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if text := gatewayText(o.Object["status"]); strings.Contains(text, "@1") {
		t.Errorf("the status of another controller's Gateway is %s", text)
	}

	class := strings.ReplaceAll("apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: NAME}\nspec: {controllerName: istio.io/gateway-controller}\n", "NAME", e.shop)
	c.Apply(t, "", class)
	await(api("gatewayclasses", ""), e.shop, "Accepted=True/Accepted@1")
	o, err = api("gatewayclasses", "").Get(t.Context(), e.shop, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(o.Object["status"]); !strings.Contains(text, "name:HTTPRoute") {
		t.Errorf("the status of the class has no features: %s", text)
	}
	if n, err := strconv.Atoi(e.plane.metric("pilothouse_status_writes_total")); err != nil || n > 25 {
		t.Errorf("%d statuses were written for 4 objects (%v): are they written again and again?", n, err)
	}
	if n := e.plane.metric("pilothouse_status_failures_total"); n != "0" {
		t.Errorf("%s statuses could not be written", n)
	}
}
