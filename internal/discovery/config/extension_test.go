package config_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
)

func extensionVerdicts(t *testing.T, kind, spec string) (out []string, policy object.Policy) {
	t.Helper()
	r := decode.Documents("f.yaml", fmt.Appendf(nil, "apiVersion: extensions.istio.io/v1alpha1\nkind: %s\nmetadata: {name: a, namespace: n}\nspec: %s\n", kind, spec))
	if len(r.Problems) != 0 || len(r.Objects) != 1 {
		t.Fatalf("%s: %+v", spec, r)
	}
	for _, v := range config.Validate(r.Objects[0]) {
		out, policy = append(out, fmt.Sprintf("%s: %s: %s", v.Severity, v.Field, v.Text)), v.Policy
	}
	return out, policy
}

func TestExtensions(t *testing.T) {
	const sum = "1ef0c9a92b0420cf25f7fe5d481b231464bc88f486ca3b9c83ed5cc21d2f6210"
	for _, tt := range []struct {
		spec string // of a WasmPlugin
		want []string
	}{
		{"{url: 'file:///a.wasm', phase: AUTHN, priority: 7, match: [{mode: SERVER, ports: [{number: 80}]}]}", nil},
		{"{url: registry.example:5000/a, failStrategy: FAIL_RELOAD, type: NETWORK, imagePullPolicy: Always}", nil},
		{"{url: 'HTTPS://a.example/a.wasm', sha256: " + sum + ", pluginConfig: {a: [1]}, pluginName: root, vmConfig: {env: [{name: A, valueFrom: HOST}, {name: B, value: c}]}}", nil},
		{"{url: 'oci://a.example/a@sha256:" + sum + "', sha256: " + sum + "}", nil},
		{"{phase: STATS}", []string{"error: spec.url: is empty; set the URL"}},
		{"{url: 'ftp://a.example/a.wasm'}", []string{`error: spec.url: invalid URL "ftp://a.example/a.wasm": want a URL with oci, http, https or file`}},
		{"{url: 'file://a.wasm'}", []string{`error: spec.url: invalid URL "file://a.wasm": want file:// and the absolute path`}},
		{"{url: 'https:///a.wasm'}", []string{`error: spec.url: invalid URL "https:///a.wasm": want a host after https://`}},
		{"{url: 'https://a.example/a b'}", []string{`error: spec.url: invalid URL "https://a.example/a b": want no space`}},
		{"{url: a, sha256: abc}", []string{`error: spec.sha256: invalid checksum "abc": want 64 hexadecimal digits`}},
		{"{url: 'a@sha256:" + strings.Repeat("0", 64) + "', sha256: " + sum + "}", []string{"error: spec.sha256: is " + sum + ", and the URL has 000"}},
		{"{url: 'file:///a', sha256: " + sum + "}", []string{"warning: spec.sha256: not applied: a file of the proxy's"}},
		{"{url: a, verificationKey: k}", []string{"warning: spec.verificationKey: not applied: signatures of modules are not verified; set sha256"}},
		{"{url: a, imagePullSecret: s}", []string{"warning: spec.imagePullSecret: not applied: modules are fetched without credentials"}},
		{"{url: a, match: [{}, {ports: [{number: 70000}]}]}", []string{"error: spec.match[1].ports[0].number: invalid port 70000: want 1–65535"}},
		{"{url: a, vmConfig: {env: [{name: A}, {name: A}, {name: B, valueFrom: HOST, value: c}, {value: d}, {name: ISTIO_META_WASM_IMAGE_PULL_SECRET}]}}", []string{
			`error: spec.vmConfig.env[1].name: the variable "A" is there twice`, "error: spec.vmConfig.env[2].value: cannot be set together with valueFrom HOST",
			"error: spec.vmConfig.env[3].name: is empty", `error: spec.vmConfig.env[4].name: the variable "ISTIO_META_WASM_IMAGE_PULL_SECRET" is the control plane's`,
		}},
		{"{url: a, selector: {matchLabels: {a: b}}, targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: g}]}", []string{"error: spec.selector: cannot be set together with targetRefs"}},
		{"{url: a, targetRefs: [{group: gateway.networking.k8s.io, kind: GatewayClass, name: g}]}", []string{"warning: spec.targetRefs[0].kind: a GatewayClass is a target for waypoints"}},
	} {
		got, _ := extensionVerdicts(t, "WasmPlugin", tt.spec)
		if !slices.EqualFunc(got, tt.want, strings.HasPrefix) {
			t.Errorf("%s:\ngot %q\nwant %q", tt.spec, got, tt.want)
		}
	}
	for spec, want := range map[string][]string{
		"{lua: {inlineCode: 'x'}, phase: AUTHZ}": nil,
		"{lua: {}}":                              {"error: spec.lua.inlineCode: is empty"},
		"{phase: AUTHN}":                         {"error: spec: has neither wasm nor lua"},
		"{wasm: {url: 'x://y', vmConfig: {env: [{valueFrom: HOST}]}}}": {"error: spec.wasm.vmConfig.env[0].name: is empty", "error: spec.wasm.url: invalid URL"},
	} {
		if got, _ := extensionVerdicts(t, "TrafficExtension", spec); !slices.EqualFunc(got, want, strings.HasPrefix) {
			t.Errorf("%s: got %q, want %q", spec, got, want)
		}
	}
}

// What an invalid extension would have decided about is denied, as with an invalid policy, unless it lets requests pass when it fails.
func TestInvalidExtensionsThatDecideDeny(t *testing.T) {
	for _, tt := range []struct {
		kind, spec string
		want       object.Policy
	}{
		{"WasmPlugin", "{phase: AUTHZ, selector: {matchLabels: {app: b}}}", object.Policy{Broken: true, Labels: "app=b"}},
		{"WasmPlugin", "{phase: AUTHN, targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: g}}", object.Policy{Broken: true, Gateways: "g"}},
		{"TrafficExtension", "{phase: AUTHZ, lua: {}}", object.Policy{Broken: true}},
		{"WasmPlugin", "{phase: AUTHZ, failStrategy: FAIL_OPEN}", object.Policy{}},
		{"WasmPlugin", "{phase: STATS}", object.Policy{}},
	} {
		got, policy := extensionVerdicts(t, tt.kind, tt.spec)
		if tt.want.Broken {
			tt.want.Key = object.Key{Kind: object.Kind(tt.kind), Namespace: "n", Name: "a"}
		}
		if len(got) == 0 || policy != tt.want {
			t.Errorf("%s %s: %q, %+v, want %+v", tt.kind, tt.spec, got, policy, tt.want)
		}
	}
}
