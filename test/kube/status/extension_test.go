package status_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The status of an extension says whether it is valid, and what of it is not applied.
func TestExtensions(t *testing.T) {
	e := begin(t)
	object := func(kind, name, spec string) {
		e.c.Apply(t, e.shop, fmt.Sprintf("apiVersion: extensions.istio.io/v1alpha1\nkind: %s\nmetadata: {name: %s}\nspec: %s\n", kind, name, spec))
	}
	const sum = "1ef0c9a92b0420cf25f7fe5d481b231464bc88f486ca3b9c83ed5cc21d2f6210"
	object("WasmPlugin", "wrong", "{phase: STATS, url: 'a@sha256:"+strings.Repeat("0", 64)+"', sha256: "+sum+"}")
	object("WasmPlugin", "counts", "{phase: STATS, url: a, imagePullSecret: s}")
	object("TrafficExtension", "script", "{phase: AUTHN, lua: {inlineCode: 'function envoy_on_request(h) end'}}")
	const invalid, warned = "spec.sha256: is " + sum, "spec.imagePullSecret: not applied: modules are fetched without credentials"
	for _, tt := range []struct{ kind, resource, name, log, status string }{
		{"WasmPlugin", "wasmplugins", "wrong", invalid, "False Rejected generation 1 is rejected; no version of the object is in force | False ErrorsFound " + invalid},
		{"WasmPlugin", "wasmplugins", "counts", warned, "True NotUsed 0/0 proxies up to date to latest generation 1 | False WarningsFound " + warned},
		{"TrafficExtension", "trafficextensions", "script", "", "True NotUsed 0/0 proxies up to date to latest generation 1 | True NothingFound"},
	} {
		if tt.log != "" {
			e.plane.logs(fmt.Sprintf("%s %s/%s: %s", tt.kind, e.shop, tt.name, tt.log))
		}
		of := e.c.Dynamic.Resource(schema.GroupVersionResource{Group: "extensions.istio.io", Version: "v1alpha1", Resource: tt.resource}).Namespace(e.shop)
		e.awaitOf(of, tt.name, func(got string) bool { return strings.HasPrefix(got, tt.status) }, tt.status)
	}
}
