package decode_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
)

func TestUnknownFieldsOfKubernetesKindsAreWarnings(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"service", "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  selctor: {app: a}",
			"f.yaml:5: Service default/a: spec.selctor: unknown field: it has no effect; did you mean selector?"},
		{"in a list", "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  ports:\n  - port: 80\n    targetport: 81\n    nane: http",
			"f.yaml:7: Service default/a: spec.ports[0].targetport: unknown field; did you mean targetPort? Kubernetes distinguishes capital letters\nf.yaml:8: Service default/a: spec.ports[0].nane: unknown field: it has no effect; did you mean name?"},
		{"pod", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers: [{name: c, imgae: x}]\nstatus: {newer: 1}",
			"f.yaml:5: Pod default/a: spec.containers[0].imgae: unknown field: it has no effect; did you mean image?"},
		{"slice", "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a}\naddressType: IPv4\nendpoint: []",
			"f.yaml:5: EndpointSlice default/a: endpoint: unknown field: it has no effect; did you mean endpoints?"},
		{"deployment", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec:\n  replics: 2\n  template: {spec: {containers: [{name: c, resources: {limits: {cpu: 1}}}]}}",
			"f.yaml:5: Deployment default/a: spec.replics: unknown field: it has no effect; did you mean replicas?"},
		{"metadata of Istio's kinds", "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: a, lables: {a: b}}\nspec: {}",
			"f.yaml:3: Sidecar default/a: metadata.lables: unknown field: it has no effect; did you mean labels?"},
		{"no similar name", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\nwhatever: 1",
			"f.yaml:4: ConfigMap default/a: whatever: unknown field: it has no effect; remove it"},
		{"at the top", "apiVersion: v1\nkind: Namespace\nmetdata: {}\nmetadata: {name: a, labels: {any: b}, annotations: {any: b}, managedFields: [{fieldsV1: {f:metadata: {}}}]}",
			"f.yaml:3: Namespace a: metdata: unknown field: it has no effect; did you mean metadata?"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := decode.Documents("f.yaml", []byte(tt.text))
			var got []string
			for _, p := range r.Problems {
				if p.Severity == object.Warning {
					got = append(got, p.Error())
				} else if p.Severity == object.Error {
					t.Errorf("error %v", p)
				}
			}
			if strings.Join(got, "\n") != tt.want {
				t.Errorf("warnings\n%s\nwant\n%s", strings.Join(got, "\n"), tt.want)
			}
			if len(r.Objects)+len(r.Skipped) != 1 || !r.Whole() {
				t.Errorf("objects %v, skipped %v: want the object all the same", r.Objects, r.Skipped)
			}
		})
	}
}

func TestUnknownFieldsAreBounded(t *testing.T) {
	var text strings.Builder
	text.WriteString("apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n")
	for i := range 1000 {
		fmt.Fprintf(&text, "  x%d: 1\n", i)
	}
	r := decode.Documents("f.yaml", []byte(text.String()))
	if len(r.Problems) != 21 || r.Problems[20].Text != "980 more unknown fields" {
		t.Errorf("%d problems, the last: %v", len(r.Problems), r.Problems[len(r.Problems)-1])
	}
}
