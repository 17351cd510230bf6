package config_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
)

func TestExtensionsThatWouldDenyAreErrors(t *testing.T) {
	const denies = "error: spec.phase: not applied: objects of this kind are not supported; it is NOT enforced"
	const other = "warning: : not applied: objects of this kind are not supported; remove"
	for spec, want := range map[string]string{
		"{phase: AUTHN, %s}": denies,
		"{phase: AUTHZ, %s}": denies,
		"{phase: STATS, %s}": other,
		"{%s}":               other,
		"{selector: {matchLabels: {a: b}}, priority: 7, %s}": other,
	} {
		for kind, does := range map[string]string{"WasmPlugin": "url: file:///a.wasm, failStrategy: FAIL_CLOSE", "TrafficExtension": "wasm: {url: file:///a.wasm}"} {
			r := decode.Documents("f.yaml", fmt.Appendf(nil, "apiVersion: extensions.istio.io/v1alpha1\nkind: %s\nmetadata: {name: a, namespace: n}\nspec: "+spec+"\n", kind, does))
			if len(r.Problems) != 0 || len(r.Objects) != 1 {
				t.Fatalf("%s: %+v", spec, r)
			}
			got := config.Validate(r.Objects[0])
			if len(got) != 1 || !strings.HasPrefix(fmt.Sprintf("%s: %s: %s", got[0].Severity, got[0].Field, got[0].Text), want) {
				t.Errorf("%s %s: got %v, want %s", kind, spec, got, want)
			}
		}
	}
}
