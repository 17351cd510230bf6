package deploy_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/discovery/deploy"
	"github.com/pilothouse/pilothouse/internal/object"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// gateway is a Gateway from YAML.
func gateway(t *testing.T, text string) deploy.Gateway {
	t.Helper()
	var in struct {
		Metadata struct {
			Labels, Annotations map[string]string
		}
		Spec gatewayv1.GatewaySpec
	}
	if err := yaml.UnmarshalStrict([]byte(text), &in); err != nil {
		t.Fatal(err)
	}
	return deploy.Gateway{
		Key: object.Key{Kind: object.KubernetesGateway, Namespace: "shop", Name: "public"}, UID: "the-uid",
		Labels: in.Metadata.Labels, Annotations: in.Metadata.Annotations, Spec: &in.Spec,
	}
}

const simple = `
spec:
  gatewayClassName: istio
  infrastructure: {labels: {team: shop, sidecar.istio.io/inject: "false"}, annotations: {note: "1"}}
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: more.http, port: 80, protocol: HTTP, hostname: a.example.com}
  - {name: more.https, port: 443, protocol: HTTPS}
`

// What is made for a Gateway is in the golden file: labels of its infrastructure do not change who makes the Pods' proxies.
func TestPlan(t *testing.T) {
	all, err := deploy.Plan(gateway(t, simple), "canary", nil)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, o := range all {
		text, err := yaml.Marshal(o.Value)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(text))
	}
	got, file := strings.Join(out, "---\n"), filepath.Join("testdata", "plan.yaml")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got); -update writes it:\n%s", file, diff)
	}
}

func find(t *testing.T, all []deploy.Object, resource string) map[string]any {
	t.Helper()
	for _, o := range all {
		if o.Resource == resource {
			return o.Value
		}
	}
	t.Fatalf("nothing is made of %s", resource)
	return nil
}

func at(t *testing.T, v any, path ...string) any {
	t.Helper()
	for _, p := range path {
		m, ok := v.(map[string]any)
		if !ok {
			t.Fatalf("no field %s on the path %v", p, path)
		}
		v = m[p]
	}
	return v
}

// A Gateway without infrastructure gives its own labels and annotations; some annotations change names and the type of its Service.
func TestAnnotationsOfAGateway(t *testing.T) {
	all, err := deploy.Plan(gateway(t, `
metadata:
  labels: {team: shop}
  annotations: {gateway.istio.io/name-override: edge, gateway.istio.io/service-account: mine, networking.istio.io/service-type: ClusterIP}
spec: {gatewayClassName: istio, addresses: [{value: 192.0.2.1}]}
`), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	service, deployment := find(t, all, "services"), find(t, all, "deployments")
	for _, c := range []struct{ got, want any }{
		{len(all), 2}, // the ServiceAccount is its user's
		{at(t, service, "metadata", "name"), "edge"}, {at(t, service, "spec", "type"), "ClusterIP"}, {at(t, service, "spec", "loadBalancerIP"), nil},
		{at(t, deployment, "spec", "template", "spec", "serviceAccountName"), "mine"},
		{at(t, deployment, "metadata", "labels", "team"), "shop"}, {at(t, deployment, "metadata", "annotations", "gateway.istio.io/name-override"), nil},
	} {
		if c.got != c.want {
			t.Errorf("%v: want %v", c.got, c.want)
		}
	}
	all, err = deploy.Plan(gateway(t, `spec: {gatewayClassName: istio, addresses: [{type: IPAddress, value: 192.0.2.1}]}`), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := at(t, find(t, all, "services"), "spec", "loadBalancerIP"); got != "192.0.2.1" {
		t.Errorf("loadBalancerIP: %v", got)
	}
}

// Patches of the ConfigMap change what is made, but not whose it is.
func TestParametersPatch(t *testing.T) {
	g := gateway(t, simple)
	all, err := deploy.Plan(g, "", map[string]string{
		"deployment":              "metadata: {name: other, labels: {gateway.networking.k8s.io/gateway-name: other, a: b}, ownerReferences: null}\nspec: {replicas: 3, template: {spec: {containers: [{name: istio-proxy, resources: {requests: {cpu: 1}}}]}}}",
		"horizontalPodAutoscaler": "spec: {maxReplicas: 5}",
		"podDisruptionBudget":     "spec: {minAvailable: 1}",
	})
	if err != nil {
		t.Fatal(err)
	}
	d, h := find(t, all, "deployments"), find(t, all, "horizontalpodautoscalers")
	containers := at(t, d, "spec", "template", "spec", "containers").([]any)
	owners, _ := at(t, d, "metadata", "ownerReferences").([]any)
	for _, c := range []struct{ got, want any }{
		{at(t, d, "metadata", "name"), "public-istio"}, {at(t, d, "metadata", "labels", "gateway.networking.k8s.io/gateway-name"), "public"}, {at(t, d, "metadata", "labels", "a"), "b"},
		{at(t, d, "spec", "replicas"), float64(3)}, {len(owners), 1}, {len(containers), 1}, {at(t, containers[0], "image"), "auto"}, {at(t, containers[0], "resources", "requests", "cpu"), float64(1)},
		{at(t, h, "spec", "maxReplicas"), float64(5)}, {at(t, h, "spec", "scaleTargetRef", "name"), "public-istio"},
		{at(t, find(t, all, "poddisruptionbudgets"), "spec", "minAvailable"), float64(1)},
	} {
		if c.got != c.want {
			t.Errorf("%v: want %v", c.got, c.want)
		}
	}
}

func TestPlansThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		name       string
		parameters map[string]string
		want       string
	}{
		{strings.Repeat("a", 64), nil, "64 characters are too many for the label"},
		{strings.Repeat("a", 60), nil, "is too long for a Service"},
		{"a", map[string]string{"pod": ""}, `unknown key "pod": want one of deployment, horizontalPodAutoscaler, podDisruptionBudget, service, serviceAccount`},
		{"a", map[string]string{"service": "a: ["}, "key service"},
		{"a", map[string]string{"service": "metadata: null"}, "metadata: want a mapping"},
	} {
		g := gateway(t, simple)
		g.Name = c.name
		if _, err := deploy.Plan(g, "", c.parameters); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %v: error %v, want %q", c.name, c.parameters, err, c.want)
		}
	}
	g := gateway(t, `spec: {gatewayClassName: istio, infrastructure: {parametersRef: {group: example.com, kind: ConfigMap, name: a}}}`)
	if _, err := deploy.Parameters(g.Spec); err == nil || !strings.Contains(err.Error(), "want a ConfigMap") {
		t.Errorf("error %v", err)
	}
}

// Which Gateways get Pods, and whose ServiceAccount only they have.
// The Service of a Gateway has the ports of the ListenerSets that it lets in, with names of their own: older ones first.
func TestPortsOfListenerSets(t *testing.T) {
	set := func(namespace, name, created, spec string) *object.Object {
		s := &gatewayv1.ListenerSetSpec{}
		if err := yaml.UnmarshalStrict([]byte(spec), s); err != nil {
			t.Fatal(err)
		}
		at, err := time.Parse(time.RFC3339, created)
		if err != nil {
			t.Fatal(err)
		}
		return &object.Object{Key: object.Key{Kind: object.ListenerSet, Namespace: namespace, Name: name}, Meta: object.Meta{Created: at}, Spec: s}
	}
	const parent = "parentRef: {name: public, namespace: shop}\nlisteners: "
	sets := []*object.Object{
		set("team", "late", "2026-01-02T00:00:00Z", parent+"[{name: http, port: 8081, protocol: HTTP}, {name: tcp, port: 9000, protocol: TCP}]"),
		set("team", "early", "2026-01-01T00:00:00Z", parent+"[{name: http, port: 8080, protocol: HTTP}, {name: more, port: 80, protocol: HTTP, hostname: b.example.com}, {name: tls, port: 9000, protocol: TLS}]"),
		set("team", "other", "2026-01-01T00:00:00Z", "parentRef: {name: private, namespace: shop}\nlisteners: [{name: a, port: 1, protocol: HTTP}]"),
		set("team", "kind", "2026-01-01T00:00:00Z", "parentRef: {kind: Service, name: public, namespace: shop}\nlisteners: [{name: a, port: 2, protocol: HTTP}]"),
		set("others", "outside", "2026-01-01T00:00:00Z", parent+"[{name: a, port: 3, protocol: HTTP}]"),
		set("shop", "same", "2026-01-03T00:00:00Z", "parentRef: {name: public}\nlisteners: [{name: same, port: 4, protocol: HTTP}]"),
	}
	for from, want := range map[string]string{
		"": "80=http 443=more-https", "allowedListeners: {}": "80=http 443=more-https", "allowedListeners: {namespaces: {from: None}}": "80=http 443=more-https",
		"allowedListeners: {namespaces: {from: Same}}":                                          "80=http 443=more-https 4=same",
		"allowedListeners: {namespaces: {from: All}}":                                           "80=http 443=more-https 3=a 8080=listener-4 9000=tls 8081=listener-7 4=same",
		"allowedListeners: {namespaces: {from: Selector, selector: {matchLabels: {of: team}}}}": "80=http 443=more-https 8080=listener-3 9000=tls 8081=listener-6",
	} {
		g := gateway(t, simple+"  "+from+"\n")
		g.Sets = deploy.ListenersOf(g, sets, func(namespace string) map[string]string { return map[string]string{"of": namespace} })
		all, err := deploy.Plan(g, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, o := range all {
			spec, _ := o.Value["spec"].(map[string]any)
			ports, _ := spec["ports"].([]any)
			for _, p := range ports {
				if p := p.(map[string]any); p["name"] != "status-port" {
					got = append(got, fmt.Sprintf("%v=%v", p["port"], p["name"]))
				}
			}
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s: ports %s, want %s", from, text, want)
		}
	}
}

func TestManaged(t *testing.T) {
	for spec, want := range map[string]bool{
		"{}": true, "{addresses: [{value: 192.0.2.1}]}": true, "{addresses: [{type: IPAddress}]}": true,
		"{addresses: [{type: Hostname, value: a}]}": false, "{addresses: [{value: 192.0.2.1}, {value: 192.0.2.2}]}": true,
		"{addresses: [{value: 192.0.2.1}, {type: Hostname, value: a}]}": false, "{addresses: [{type: example.com/x, value: a}, {value: 192.0.2.2}]}": false,
	} {
		if got := deploy.Managed(gateway(t, "spec: "+spec).Spec); got != want {
			t.Errorf("%s: %t", spec, got)
		}
	}
	for text, want := range map[string]string{
		"spec: {gatewayClassName: c}": "public-c",
		"{metadata: {annotations: {gateway.istio.io/name-override: a}}, spec: {gatewayClassName: c}}":   "",
		"{metadata: {annotations: {gateway.istio.io/service-account: a}}, spec: {gatewayClassName: c}}": "",
	} {
		if got := deploy.OwnAccount(gateway(t, text)); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
