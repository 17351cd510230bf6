package check

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"text/template"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// The rules are those of the chart's roles.
func TestAccountRulesAreThoseOfTheChart(t *testing.T) {
	text, err := os.ReadFile("../../deploy/charts/pilothouse/templates/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const namespace, revision = "mesh", "canary"
	names := map[string]string{
		"pilothouse.suffix": "-" + revision, "pilothouse.revision": revision, "pilothouse.injector": "istio-sidecar-injector-" + revision + "-" + namespace,
		"pilothouse.validator": "istio-validator-" + revision + "-" + namespace, "pilothouse.labels": "part-of: pilothouse",
	}
	funcs := template.FuncMap{
		"include": func(name string, _ any) string {
			if names[name] == "" {
				return "name"
			}
			return names[name]
		},
		"toString": func(v any) string { return fmt.Sprint(v) },
		"concat":   func(...any) []any { return nil }, // there are no tags
		"nindent":  func(n int, s string) string { return "\n" + strings.Repeat(" ", n) + s },
	}
	parsed, err := template.New("rbac").Funcs(funcs).Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	values := map[string]any{"Values": map[string]any{"global": map[string]any{"configValidation": true}, "env": map[string]any{}}, "Release": map[string]any{"Namespace": namespace}}
	if err := parsed.Execute(&out, values); err != nil {
		t.Fatal(err)
	}
	var want []Rule
	for _, document := range strings.Split(out.String(), "\n---\n") {
		var role rbacv1.Role // a ClusterRole is read as one
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		for _, r := range role.Rules {
			want = append(want, flatten([]grant{{role.Kind == "Role", r.APIGroups[0], r.Resources, r.ResourceNames, r.Verbs}}, namespace)...)
		}
	}
	have := AccountRules(namespace, revision)
	for _, r := range want {
		if !slices.Contains(have, r) {
			t.Errorf("the chart grants %s, which is not checked", r)
		}
	}
	for _, r := range have {
		if !slices.Contains(want, r) {
			t.Errorf("%s is checked, which the chart does not grant", r)
		}
	}
	if len(want) < 40 {
		t.Errorf("only %d rules found in the chart", len(want))
	}
}
