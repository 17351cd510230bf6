package charts_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestWrongValuesAreRefused(t *testing.T) {
	for _, tt := range []struct{ chart, values, want string }{
		{"pilothouse", "revison: canary", "revison"},
		{"pilothouse", "pilot: {resources: {}}", "pilot"},
		{"pilothouse", "global: {istioNamespace: mesh}", "istioNamespace"},
		{"pilothouse", "global: {proxy: {resource: {}}}", "resource"},
		{"pilothouse", "revision: Canary", "/revision"},
		{"pilothouse", "revision: " + strings.Repeat("a", 41), "/revision"},
		{"pilothouse", "revisionTags: [a b]", "/revisionTags/0"},
		{"pilothouse", "revisionTags: [a, a]", "/revisionTags"},
		{"pilothouse", "autoscaleEnabled: \"yes\"", "/autoscaleEnabled"},
		{"pilothouse", "autoscaleMin: 0", "/autoscaleMin"},
		{"pilothouse", "autoscaleMin: \"2\"", "/autoscaleMin"},
		{"pilothouse", "image: \"\"", "/image"},
		{"pilothouse", "keepaliveMaxServerConnectionAge: 30", "/keepaliveMaxServerConnectionAge"},
		{"pilothouse", "keepaliveMaxServerConnectionAge: 30 minutes", "/keepaliveMaxServerConnectionAge"},
		{"pilothouse", "global: {imagePullPolicy: Sometimes}", "/global/imagePullPolicy"},
		{"pilothouse", "global: {proxy: {autoInject: true}}", "/global/proxy/autoInject"},
		{"pilothouse", "global: {proxy: {statusPort: 70000}}", "/global/proxy/statusPort"},
		{"pilothouse", "resources: {requests: {cpu: much}}", "/resources/requests/cpu"},
		{"pilothouse", "extraContainerArgs: [maxStreams=1]", "/extraContainerArgs/0"},
		{"pilothouse", "env: {A: {b: c}}", "/env/A"},
		{"pilothouse", "meshConfig: text", "/meshConfig"},
		{"pilothouse", "runAsUser: 0", "/runAsUser"},
		{"pilothouse", "ipFamilies: [IPv5]", "/ipFamilies/0"},
		{"pilothouse", "sidecarInjectorWebhook: {templates: {a: {spec: {}}}}", "/sidecarInjectorWebhook/templates/a"},
		{"gateway", "replicas: 2", "replicas"},
		{"gateway", "kind: StatefulSet", "/kind"},
		{"gateway", "service: {type: Loadbalancer}", "/service/type"},
		{"gateway", "service: {ports: [{name: http, port: 0}]}", "/service/ports/0/port"},
		{"gateway", "service: {ports: [{port: 80}]}", "name"},
		{"gateway", "service: {ports: [{name: http, port: 80, targetport: 8080}]}", "targetport"},
		{"gateway", "podDisruptionBudget: {minAvailable: half}", "/podDisruptionBudget/minAvailable"},
	} {
		_, _, err := render(load(t, tt.chart), "mesh", "istio-system", parse(t, tt.values))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s with %q: error %v, want one that names %s", tt.chart, tt.values, err, tt.want)
		}
	}
}

// valueSchema is what is used of a values.schema.json.
type valueSchema struct {
	Type                 any
	Description          string
	Enum                 []any
	Pattern              string
	Properties           map[string]*valueSchema
	AdditionalProperties json.RawMessage
	Items                *valueSchema
}

func readSchema(t *testing.T, name string) *valueSchema {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "deploy/charts", name, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	s := new(valueSchema)
	if err := json.Unmarshal(text, s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSchemaAndValuesAgree fails for a value without a description, one of the schema that has no default, and an
// object of fixed keys that accepts others.
func TestSchemaAndValuesAgree(t *testing.T) {
	for _, name := range names {
		checkValues(t, name, readSchema(t, name), load(t, name).Values)
	}
}

// withoutDefault are values that are absent by default.
var withoutDefault = []string{"gateway.global", "remote.global", "gateway.podDisruptionBudget.minAvailable", "gateway.podDisruptionBudget.maxUnavailable", "pilothouse.resources.limits"}

func checkValues(t *testing.T, path string, s *valueSchema, values map[string]any) {
	t.Helper()
	if string(s.AdditionalProperties) != "false" {
		t.Errorf("%s: other values are accepted: %s", path, s.AdditionalProperties)
	}
	for _, key := range slices.Sorted(maps.Keys(s.Properties)) {
		property, at := s.Properties[key], path+"."+key
		if property.Description == "" {
			t.Errorf("%s has no description", at)
		}
		value, found := values[key]
		if !found && !slices.Contains(withoutDefault, at) {
			t.Errorf("%s has no default in values.yaml", at)
		}
		if nested, ok := value.(map[string]any); ok && property.Properties != nil {
			checkValues(t, at, property, nested)
		}
	}
	for key := range values {
		if s.Properties[key] == nil {
			t.Errorf("%s.%s is in values.yaml and not in the schema", path, key)
		}
	}
}

// TestValuesAreDocumented compares the tables in docs/install-kubernetes.md with the schemas and the defaults.
func TestValuesAreDocumented(t *testing.T) {
	file := filepath.Join(root, "docs/install-kubernetes.md")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	for _, name := range names {
		begin, end := fmt.Sprintf("<!-- values of %s -->\n", name), fmt.Sprintf("<!-- end of values of %s -->\n", name)
		before, rest, found := strings.Cut(want, begin)
		_, after, ended := strings.Cut(rest, end)
		if !found || !ended {
			t.Fatalf("%s has no part between %q and %q", file, begin, end)
		}
		rows := valueRows("", readSchema(t, name), load(t, name).Values)
		want = before + begin + "| value | default | what it does |\n|---|---|---|\n" + strings.Join(rows, "") + end + after
	}
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("%s: the tables of values are not current: run make golden-charts", file)
	}
}

// valueRows are the rows of a table of values, in the order of their names.
func valueRows(prefix string, s *valueSchema, values map[string]any) []string {
	var rows []string
	for _, key := range slices.Sorted(maps.Keys(s.Properties)) {
		property, value := s.Properties[key], values[key]
		if nested, ok := value.(map[string]any); ok && len(property.Properties) > 0 && !isResources(property) && len(nested) > 0 {
			rows = append(rows, valueRows(prefix+key+".", property, nested)...)
			continue
		}
		rows = append(rows, fmt.Sprintf("| `%s%s` | %s | %s |\n", prefix, key, defaultText(value), property.text()))
	}
	return rows
}

// isResources reports whether a value is the resources of a container, which are one row.
func isResources(s *valueSchema) bool { return s.Properties["requests"] != nil }

func defaultText(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	switch string(text) {
	case `""`, "null", "{}", "[]":
		return ""
	}
	return "`" + strings.Trim(string(text), `"`) + "`"
}

// text is the description, with the values that are allowed if they are few.
func (s *valueSchema) text() string {
	text := s.Description
	if len(s.Enum) > 0 {
		var allowed []string
		for _, v := range s.Enum {
			if v != "" {
				allowed = append(allowed, fmt.Sprint(v))
			}
		}
		text += " (" + strings.Join(allowed, ", ") + ")"
	}
	return strings.ReplaceAll(text, "|", `\|`)
}
