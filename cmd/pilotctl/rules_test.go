package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/object"
)

// ruleFiles have one finding or more of each rule.
var ruleFiles = map[string]string{
	"broken.yaml": "a: [",
	"errors.yaml": `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: bad, namespace: shop}
spec: {hosts: [web], http: [{timeout: soon}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: bad, namespace: shop}
spec: {action: PERHAPS}
---
apiVersion: v1
kind: Service
metadata: {name: twice, namespace: shop}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: twice, namespace: shop}
spec: {ports: [{port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualServices
metadata: {name: kind, namespace: shop}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, sesionAffinity: None, ports: [{name: http, port: 80, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: lost, namespace: shop}
spec: {selector: {app: lost}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {containers: [{name: web, image: web, ports: [{name: web, containerPort: 8080}]}]}
`,
	"references.yaml": `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec:
  hosts: [web]
  gateways: [none, mesh]
  http:
  - route: [{destination: {host: wep}}]
  - route: [{destination: {host: web, port: {number: 81}}}]
  - route: [{destination: {host: web, subset: v9}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: nothing}}
  rules:
  - from: [{source: {principals: [cluster.local/ns/shop/sa/none], namespaces: [nowhere]}}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec: {workloadSelector: {labels: {app: web}}, egress: [{hosts: [gone/*]}]}
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: web, namespace: shop}
spec: {accessLogging: [{providers: [{name: none}]}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: "accessLogFile: /dev/stdout"}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: shop}
spec: {host: web, subsets: [{name: v1, labels: {version: v1}}]}
`,
}

// Each finding has a rule, which the log of SARIF describes, as code hosts want it.
func TestEachFindingHasItsRule(t *testing.T) {
	dir := t.TempDir()
	for name, text := range ruleFiles {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out, errs strings.Builder
	if code := run(t.Context(), []string{"validate", dir, filepath.Join(dir, "none.yaml"), "-o", "json"}, nil, &out, &errs); code != 1 {
		t.Fatalf("code %d: %s", code, errs.String())
	}
	var all []validated
	if err := json.Unmarshal([]byte(out.String()), &all); err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	for _, v := range all {
		has[v.Rule] = true
		object := v.Object[strings.LastIndexByte(v.Object, '/')+1:]
		has[v.Rule+" "+object+" "+v.Field] = true
	}
	for _, want := range []string{
		"unreadable-file  ", "invalid-document  ", "invalid-object bad spec.http[0].timeout", "policy-not-enforced bad spec.action", "duplicate-object twice ",
		"unknown-kind kind kind", "unknown-field web spec.sesionAffinity", "unknown-port web spec.ports[0].targetPort", "no-workload lost spec.selector",
		"unknown-gateway web spec.gateways[0]", "unknown-host web spec.http[0].route[0].destination.host", "unknown-port web spec.http[1].route[0].destination.port.number",
		"unknown-subset web spec.http[2].route[0].destination.subset", "no-workload web spec.selector.matchLabels", "unknown-account web spec.rules[0].from[0].source.principals[0]",
		"unknown-namespace web spec.rules[0].from[0].source.namespaces[0]", "unknown-namespace web spec.egress[0].hosts[0]", "unknown-provider web spec.accessLogging[0].providers[0].name",
		"no-workload web spec.subsets[0].labels",
	} {
		if !has[want] {
			t.Errorf("no finding %q in\n%s", want, out.String())
		}
	}
	out.Reset()
	run(t.Context(), []string{"validate", dir, "--annotations=sarif"}, nil, &out, &errs)
	var log sarifLog
	if err := json.Unmarshal([]byte(out.String()), &log); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/pilotctl.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		if line := "| `" + r.id + "` | " + r.level.String() + " | " + r.short + " |\n"; !strings.Contains(string(page), line) {
			t.Errorf("docs/pilotctl.md has no line %s", line)
		}
	}
	described := log.Runs[0].Tool.Driver.Rules
	for i, r := range described {
		if r.ID == "" || r.Short.Text == "" || len(r.Full.Text) <= len(r.Short.Text) || r.Help.Text == "" || r.Default.Level != "error" && r.Default.Level != "warning" {
			t.Errorf("rule %d: %+v", i, r)
		}
		if slices.IndexFunc(described, func(other sarifRule) bool { return other.ID == r.ID }) != i {
			t.Errorf("rule %s is there twice", r.ID)
		}
	}
	for _, r := range log.Runs[0].Results {
		if r.RuleIndex < 0 || r.RuleIndex >= len(described) || described[r.RuleIndex].ID != r.RuleID {
			t.Errorf("result of rule %s: index %d", r.RuleID, r.RuleIndex)
		}
	}
}

// What cannot be made with a few objects.
func TestRulesOfReferences(t *testing.T) {
	for _, tt := range []struct{ field, text, want string }{
		{"spec.http[0].mirror.host", "not applied: requests are not mirrored to x, whose ServiceEntry has resolution DYNAMIC_DNS", "no-effect"},
		{"spec.tls[0].secretName", "there is no Secret a/b: Secrets are those of the gateway's namespace", "unknown-secret"},
		{"spec.tls[0].secretName", "not applied: it is missing, and the hosts are not served with TLS", "no-effect"},
		{"spec.rules[0].http.paths[0].backend.service.port.name", `web has no port "x": requests get 503`, "unknown-port"},
		{"spec.provider.name", `provider "x": no Service or ServiceEntry has the host "y"`, "unknown-provider"},
		{"defaultProviders.tracing[0]", `no Service or ServiceEntry has the host "y" of provider "x"`, "unknown-provider"},
		{"spec.rules[0].from[0].source.principals[0]", `"x/*" is for identities of the trust domain "x" only`, "no-effect"},
		{"spec.targetRefs[0]", "there is no Gateway a/b of the Gateway API", "unknown-gateway"},
		{"spec.address", "a selects this entry and cannot use the DNS name", "no-effect"},
	} {
		if got := ruleOf(byReference, object.Problem{Severity: object.Warning, Field: tt.field, Text: tt.text}); got != tt.want {
			t.Errorf("%s: %s: rule %s, want %s", tt.field, tt.text, got, tt.want)
		}
	}
}

// Standard input is no file that a code host could show.
func TestAnnotationsOfStandardInput(t *testing.T) {
	all := []validated{{Rule: "invalid-document", Severity: "error", File: stdinName, Line: 3, Object: "", Field: "a", Text: "b"}}
	var b strings.Builder
	if err := printGitHub(&b, all); err != nil || b.String() != "::error title=pilotctl validate::standard input:3: a: b\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
	b.Reset()
	if err := printSARIF(&b, "", all); err != nil || strings.Contains(b.String(), "locations") || !strings.Contains(b.String(), `"standard input:3: a: b"`) {
		t.Errorf("%s, %v", b.String(), err)
	}
}
