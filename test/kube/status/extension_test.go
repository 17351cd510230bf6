package status_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// An extension of which no proxy gets anything is named in the log, in its status and on the object, as one in a file is: what the module of
// one in phase AUTHN or AUTHZ forbids would be allowed without a word.
func TestExtensionsAreNamed(t *testing.T) {
	e := begin(t)
	object := func(kind, name, spec string) {
		e.c.Apply(t, e.shop, fmt.Sprintf("apiVersion: extensions.istio.io/v1alpha1\nkind: %s\nmetadata: {name: %s}\nspec: %s\n", kind, name, spec))
	}
	object("WasmPlugin", "guard", "{phase: AUTHZ, url: 'file:///a.wasm'}")
	object("WasmPlugin", "counts", "{phase: STATS, url: 'file:///a.wasm'}")
	object("TrafficExtension", "script", "{phase: AUTHN, lua: {inlineCode: 'function envoy_on_request(h) end'}}")
	const denies, other = "spec.phase: not applied: objects of this kind are not supported; it is NOT enforced", "not applied: objects of this kind are not supported; remove"
	for _, tt := range []struct{ kind, resource, name, log, status string }{
		{"WasmPlugin", "wasmplugins", "guard", denies, "False Rejected generation 1 is rejected; no version of the object is in force | False ErrorsFound " + denies},
		{"WasmPlugin", "wasmplugins", "counts", other, "True NotUsed 0/0 proxies up to date to latest generation 1 | False WarningsFound " + other},
		{"TrafficExtension", "trafficextensions", "script", denies, "False Rejected generation 1 is rejected; no version of the object is in force | False ErrorsFound " + denies},
	} {
		e.plane.logs(fmt.Sprintf("%s %s/%s: %s", tt.kind, e.shop, tt.name, tt.log))
		of := e.c.Dynamic.Resource(schema.GroupVersionResource{Group: "extensions.istio.io", Version: "v1alpha1", Resource: tt.resource}).Namespace(e.shop)
		e.awaitOf(of, tt.name, func(got string) bool { return strings.HasPrefix(got, tt.status) }, tt.status)
	}
}
