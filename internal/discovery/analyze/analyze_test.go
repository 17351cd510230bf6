package analyze_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/analyze"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
)

// mesh is what there is; what it refers to exists.
const mesh = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{port: 80}, {port: 8443}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web, version: v1}}
spec: {serviceAccountName: web, containers: []}
status: {podIP: 10.0.0.1}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: outside, namespace: shop}
spec: {hosts: ["*.example.com", api.example.org], ports: [{number: 443, name: tls, protocol: TLS}], resolution: NONE}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: door, namespace: shop}
spec: {selector: {app: web}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*.shop.example"]}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: shop}
spec: {host: web, subsets: [{name: v1, labels: {version: v1}}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: good, namespace: shop}
spec:
  hosts: [www.shop.example]
  gateways: [door, mesh]
  http: [{route: [{destination: {host: web, subset: v1, port: {number: 80}}}], mirror: {host: a.example.com}}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: good, namespace: shop}
spec: {egress: [{hosts: ["./*", "shop/api.example.org", "~/*"]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: good, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/web, "*/sa/other"], namespaces: [shop]}}]}]
`

func findings(t *testing.T, text string, o analyze.Options) []string {
	t.Helper()
	got := decode.Documents("f.yaml", []byte(text))
	for _, p := range got.Problems {
		t.Fatal(p)
	}
	var objects []*object.Object
	for i := range got.Objects {
		objects = append(objects, &got.Objects[i])
	}
	o.Domain, o.RootNamespace = "cluster.local", "istio-system"
	var out []string
	for _, p := range analyze.References(objects, o) {
		out = append(out, p.Key.Name+": "+p.Field+": "+p.Text)
	}
	return out
}

func TestWhatExistsIsFound(t *testing.T) {
	if got := findings(t, mesh, analyze.Options{Workloads: true}); len(got) != 0 {
		t.Errorf("%q", got)
	}
}

// A Telemetry names providers of mesh configuration, and these services.
func TestProvidersOfTelemetry(t *testing.T) {
	m := &meshv1.MeshConfig{}
	for name, service := range map[string]string{"good": "shop/web.shop.svc.cluster.local", "lost": "lost.example", "else": "other/web.shop.svc.cluster.local"} {
		m.ExtensionProviders = append(m.ExtensionProviders, &meshv1.MeshConfig_ExtensionProvider{Name: name, Provider: &meshv1.MeshConfig_ExtensionProvider_EnvoyTcpAls{
			EnvoyTcpAls: &meshv1.MeshConfig_ExtensionProvider_EnvoyTcpGrpcV3LogProvider{Service: service, Port: 80},
		}})
	}
	m.ExtensionProviders = append(m.ExtensionProviders, &meshv1.MeshConfig_ExtensionProvider{Name: "port", Provider: &meshv1.MeshConfig_ExtensionProvider_EnvoyTcpAls{
		EnvoyTcpAls: &meshv1.MeshConfig_ExtensionProvider_EnvoyTcpGrpcV3LogProvider{Service: "web.shop.svc.cluster.local", Port: 81},
	}})
	m.ExtensionProviders = append(m.ExtensionProviders, &meshv1.MeshConfig_ExtensionProvider{Name: "zip", Provider: &meshv1.MeshConfig_ExtensionProvider_Zipkin{
		Zipkin: &meshv1.MeshConfig_ExtensionProvider_ZipkinTracingProvider{Service: "zip.example", Port: 9411},
	}})
	hosts := ""
	for _, s := range []struct{ name, meta, spec string }{
		{"private", "annotations: {networking.istio.io/exportTo: shop}", "clusterIP: 10.96.0.7"}, {"heads", "", "clusterIP: None"}, {"alias", "", "type: ExternalName, externalName: web.shop.svc.cluster.local"},
	} {
		hosts += fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: shop, %s}\nspec: {%s, ports: [{name: http, port: 80}]}\n", s.name, s.meta, s.spec)
		m.ExtensionProviders = append(m.ExtensionProviders, &meshv1.MeshConfig_ExtensionProvider{Name: s.name, Provider: &meshv1.MeshConfig_ExtensionProvider_Zipkin{
			Zipkin: &meshv1.MeshConfig_ExtensionProvider_ZipkinTracingProvider{Service: s.name + ".shop.svc.cluster.local", Port: 80},
		}})
	}
	text := mesh + hosts + "---\napiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: x, namespace: shop}\nspec: {accessLogging: [{providers: [{name: envoy}, {name: good}, {name: lost}, {name: else}, {name: port}, {name: none}, {name: prometheus}]}], metrics: [{providers: [{name: prometheus}, {name: none}, {name: good}]}], tracing: [{providers: [{name: zip}]}, {providers: [{name: good}]}, {providers: [{name: none}]}, {providers: [{name: private}]}, {providers: [{name: heads}]}, {providers: [{name: alias}]}]}\n"
	want := []string{
		`x: spec.accessLogging[0].providers[2].name: no Service or ServiceEntry has the host "lost.example" of provider "lost": it logs nothing`,
		`x: spec.accessLogging[0].providers[3].name: no Service or ServiceEntry has the host "other/web.shop.svc.cluster.local" of provider "else": it logs nothing`,
		`x: spec.accessLogging[0].providers[4].name: "web.shop.svc.cluster.local", the service of provider "port", has no port 81: it logs nothing`,
		`x: spec.accessLogging[0].providers[5].name: mesh configuration has no provider "none" in extensionProviders: it logs nothing`,
		`x: spec.accessLogging[0].providers[6].name: provider "prometheus" is not one of access logs: it logs nothing`,
		`x: spec.metrics[0].providers[1].name: mesh configuration has no provider "none" in extensionProviders: it counts nothing; want prometheus`,
		`x: spec.metrics[0].providers[2].name: provider "good" is not one of metrics that proxies have: it counts nothing; want prometheus`,
		`x: spec.tracing[0].providers[0].name: no Service or ServiceEntry has the host "zip.example" of provider "zip": nothing is traced`,
		`x: spec.tracing[1].providers[0].name: provider "good" is not one of tracing that proxies have (zipkin, skywalking, opentelemetry, lightstep or datadog): nothing is traced`,
		`x: spec.tracing[2].providers[0].name: mesh configuration has no provider "none" in extensionProviders: nothing is traced`,
		`x: spec.tracing[3].providers[0].name: "private.shop.svc.cluster.local", the service of provider "private", is not exported to all namespaces: nothing is traced`,
		`x: spec.tracing[4].providers[0].name: "heads.shop.svc.cluster.local", the service of provider "heads", is headless, so that it has no addresses of its own: nothing is traced`,
		`x: spec.tracing[5].providers[0].name: "alias.shop.svc.cluster.local", the service of provider "alias", is of type ExternalName: name the host that it stands for: nothing is traced`,
	}
	if got := findings(t, text, analyze.Options{Mesh: m}); !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	if got := findings(t, text, analyze.Options{}); len(got) > 0 {
		t.Errorf("without mesh configuration: %q", got)
	}
}

// Default providers are references, too, told at the object that has the mesh configuration.
func TestDefaultProviders(t *testing.T) {
	tracer := func(name, service, sampler string) *meshv1.MeshConfig_ExtensionProvider {
		o := &meshv1.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider{Service: service, Port: 80}
		if sampler != "" {
			o.Sampling = &meshv1.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider_DynatraceSampler_{DynatraceSampler: &meshv1.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider_DynatraceSampler{
				HttpService: &meshv1.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider_DynatraceSampler_DynatraceApi{Service: sampler, Port: 80},
			}}
		}
		return &meshv1.MeshConfig_ExtensionProvider{Name: name, Provider: &meshv1.MeshConfig_ExtensionProvider_Opentelemetry{Opentelemetry: o}}
	}
	text := mesh + "---\napiVersion: v1\nkind: Service\nmetadata: {name: heads, namespace: shop}\nspec: {clusterIP: None, ports: [{name: http, port: 80}]}\n" +
		"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: 'enableTracing: true'}\n"
	const web, heads = "web.shop.svc.cluster.local", "heads.shop.svc.cluster.local"
	for name, tt := range map[string]struct {
		tracer *meshv1.MeshConfig_ExtensionProvider
		want   []string
	}{
		"good":      {tracer("p", web, web), nil},
		"no host":   {tracer("p", "lost.example", ""), []string{`istio: defaultProviders.tracing[0]: no Service or ServiceEntry has the host "lost.example" of provider "p": nothing is traced where no Telemetry names another provider`}},
		"headless":  {tracer("p", heads, ""), []string{`istio: defaultProviders.tracing[0]: "heads.shop.svc.cluster.local", the service of provider "p", is headless, so that it has no addresses of its own: nothing is traced`}},
		"a sampler": {tracer("p", web, "lost.example"), []string{`istio: defaultProviders.tracing[0]: no Service or ServiceEntry has the host "lost.example" of provider "p": nothing is traced`}},
		"another":   {tracer("q", web, ""), nil}, // package config tells it
	} {
		m := &meshv1.MeshConfig{DefaultProviders: &meshv1.MeshConfig_DefaultProviders{Tracing: []string{"p"}}, ExtensionProviders: []*meshv1.MeshConfig_ExtensionProvider{tt.tracer}}
		o := analyze.Options{Mesh: m, MeshObject: object.Key{Kind: object.ConfigMap, Namespace: "istio-system", Name: "istio"}}
		if got := findings(t, text, o); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q\nwant %q", name, got, tt.want)
		}
		m.DefaultProviders = &meshv1.MeshConfig_DefaultProviders{AccessLogging: []string{"envoy", "als"}}
		m.ExtensionProviders = []*meshv1.MeshConfig_ExtensionProvider{{Name: "als", Provider: &meshv1.MeshConfig_ExtensionProvider_EnvoyTcpAls{EnvoyTcpAls: &meshv1.MeshConfig_ExtensionProvider_EnvoyTcpGrpcV3LogProvider{Service: web, Port: 81}}}}
		if got := findings(t, text, o); len(got) != 1 || got[0] != `istio: defaultProviders.accessLogging[1]: "web.shop.svc.cluster.local", the service of provider "als", has no port 81: it logs nothing` {
			t.Errorf("logs: %q", got)
		}
	}
}

func grpc(service string, port uint32) *meshv1.MeshConfig_ExtensionProvider_EnvoyExtAuthzGrpc {
	return &meshv1.MeshConfig_ExtensionProvider_EnvoyExtAuthzGrpc{EnvoyExtAuthzGrpc: &meshv1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationGrpcProvider{Service: service, Port: port}}
}

// part is a delegate.
const part = `---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: part, namespace: team}
spec: {http: [{match: [{uri: {prefix: /a/b}}], redirect: {uri: /}}, {match: [{uri: {prefix: /b}}], redirect: {uri: /}}]}
`

func TestReferencesToNothing(t *testing.T) {
	for _, tc := range []struct{ kind, spec, want string }{
		{"VirtualService", `{hosts: [web], http: [{route: [{destination: {host: wep}}]}]}`,
			`x: spec.http[0].route[0].destination.host: no Service or ServiceEntry has the host "wep.shop.svc.cluster.local"; did you mean "web.shop.svc.cluster.local"?`},
		{"VirtualService", `{hosts: [web], http: [{route: [{destination: {host: web.payments.svc.cluster.local}}]}]}`,
			`x: spec.http[0].route[0].destination.host: no Service or ServiceEntry has the host "web.payments.svc.cluster.local"; did you mean "web.shop.svc.cluster.local"?`},
		{"VirtualService", `{hosts: [web], http: [{route: [{destination: {host: web, subset: v2}}]}]}`,
			`x: spec.http[0].route[0].destination.subset: no DestinationRule for web has the subset "v2": want v1`},
		{"VirtualService", `{hosts: [web], http: [{route: [{destination: {host: api.example.org, subset: v2}}]}]}`,
			`x: spec.http[0].route[0].destination.subset: no DestinationRule for api.example.org has subsets: requests to "v2" get status 503`},
		{"VirtualService", `{hosts: [web], tcp: [{route: [{destination: {host: web, port: {number: 81}}}]}]}`,
			`x: spec.tcp[0].route[0].destination.port.number: web has no port 81: want 80, 8443`},
		{"VirtualService", `{hosts: [web], gateways: [dor], http: [{route: [{destination: {host: web}}]}]}`,
			`x: spec.gateways[0]: there is no Gateway shop/dor; did you mean shop/door?`},
		{"VirtualService", `{hosts: [other.example], gateways: [door], http: [{route: [{destination: {host: web}}]}]}`,
			`x: spec.hosts[0]: no server of Gateway shop/door has the host "other.example"`},
		{"VirtualService", `{hosts: [www.shop.example], gateways: [door], http: [{delegate: {name: lost}}]}`,
			`x: spec.http[0].delegate: there is no VirtualService shop/lost`},
		{"VirtualService", `{hosts: [www.shop.example], gateways: [door], http: [{match: [{uri: {prefix: /a}}], delegate: {name: part, namespace: team}}]}`,
			`x: spec.http[0].delegate: VirtualService team/part: http[1].match[0] is not within a match of the root`},
		{"DestinationRule", `{host: elsewhere.org}`, `x: spec.host: no Service or ServiceEntry has the host "elsewhere.org"`},
		{"DestinationRule", `{host: web, subsets: [{name: v3, labels: {version: v3}}]}`, `x: spec.subsets[0].labels: no endpoint of web has the labels version=v3`},
		{"Gateway", `{selector: {istio: none}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]}`, `x: spec.selector: no workload has the labels istio=none`},
		{"Sidecar", `{workloadSelector: {labels: {app: wep}}, egress: [{hosts: ["shop/web.shop.svc.cluster.local", "lost/*", "*/gone.org"]}]}`,
			"x: spec.egress[0].hosts[1]: there is nothing in a namespace \"lost\"\n" +
				"x: spec.egress[0].hosts[2]: no Service or ServiceEntry has the host \"gone.org\"\n" +
				"x: spec.workloadSelector.labels: no workload has the labels app=wep"},
		{"PeerAuthentication", `{selector: {matchLabels: {app: wep}}}`, `x: spec.selector.matchLabels: no workload has the labels app=wep`},
		{"AuthorizationPolicy", `{rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/wep], serviceAccounts: [lost], namespaces: [gone]}}]}]}`,
			"x: spec.rules[0].from[0].source.principals[0]: no workload runs as the service account shop/wep, and there is none of this name; did you mean shop/web?\n" +
				"x: spec.rules[0].from[0].source.serviceAccounts[0]: no workload runs as the service account shop/lost, and there is none of this name\n" +
				"x: spec.rules[0].from[0].source.namespaces[0]: there is nothing in a namespace \"gone\""},
		{"AuthorizationPolicy", `{targetRefs: [{kind: Service, name: web}, {group: gateway.networking.k8s.io, kind: Gateway, name: door}]}`,
			`x: spec.targetRefs: there is no Gateway shop/door of the Gateway API: what is for it only applies to Pods with the label gateway.networking.k8s.io/gateway-name: door`},
	} {
		group := "networking.istio.io/v1"
		if slices.Contains([]string{"PeerAuthentication", "AuthorizationPolicy"}, tc.kind) {
			group = "security.istio.io/v1"
		}
		text := mesh + part + "---\napiVersion: " + group + "\nkind: " + tc.kind + "\nmetadata: {name: x, namespace: shop}\nspec: " + tc.spec + "\n"
		if got := strings.Join(findings(t, text, analyze.Options{Workloads: true}), "\n"); got != tc.want {
			t.Errorf("%s\n got %s\nwant %s", tc.spec, got, tc.want)
		}
	}
	m := &meshv1.MeshConfig{ExtensionProviders: []*meshv1.MeshConfig_ExtensionProvider{
		{Name: "tracer"}, {Name: "good", Provider: grpc("shop/web.shop.svc.cluster.local", 80)}, {Name: "lost", Provider: grpc("lost.shop.svc.cluster.local", 80)}, {Name: "port", Provider: grpc("web.shop.svc.cluster.local", 81)},
	}}
	for provider, want := range map[string]string{
		"good": "", "god": `x: spec.provider.name: there is no provider "god" in extensionProviders of mesh configuration: what the rules match is denied; did you mean good?`,
		"tracer": `x: spec.provider.name: provider "tracer" is not one of external authorization: what the rules match is denied; want envoyExtAuthzHttp or envoyExtAuthzGrpc`,
		"lost":   `x: spec.provider.name: provider "lost": no Service or ServiceEntry has the host "lost.shop.svc.cluster.local": what the rules match is denied`,
		"port":   `x: spec.provider.name: provider "port": web.shop.svc.cluster.local has no port 81: what the rules match is denied`,
	} {
		text := mesh + "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: x, namespace: shop}\nspec: {action: CUSTOM, provider: {name: " + provider + "}, rules: [{}]}\n"
		if got := strings.Join(findings(t, text, analyze.Options{Workloads: true, Mesh: m}), "\n"); got != want {
			t.Errorf("%s\n got %s\nwant %s", provider, got, want)
		}
	}
	const aliases = "x: spec.rules[0].from[0].source.principals[0]: \"cluster.local/ns/shop/*\" is for identities of the trust domain \"cluster.local\" only: cluster.local and the mesh's trust domains (%s) stand for each other where a principal has all parts, DOMAIN/ns/NAMESPACE/sa/ACCOUNT; use namespaces, or name each domain"
	for _, tc := range []struct {
		mesh *meshv1.MeshConfig
		spec string
		want string
	}{
		{&meshv1.MeshConfig{}, `{rules: [{from: [{source: {principals: ["cluster.local/ns/shop/*"]}}]}]}`, ""},
		{&meshv1.MeshConfig{TrustDomain: "corp"}, `{rules: [{from: [{source: {principals: ["corp/*", "*/sa/web", "cluster.local/ns/shop/sa/*", "other/*"]}}]}]}`, ""},
		{&meshv1.MeshConfig{TrustDomain: "corp"}, `{rules: [{from: [{source: {principals: ["cluster.local/ns/shop/*"]}}]}]}`, fmt.Sprintf(aliases, "corp")},
		{&meshv1.MeshConfig{TrustDomainAliases: []string{"old"}}, `{rules: [{from: [{source: {principals: ["cluster.local/ns/shop/*"]}}]}]}`, fmt.Sprintf(aliases, "cluster.local, old")},
		{&meshv1.MeshConfig{TrustDomain: "corp"}, `{action: DENY, rules: [{when: [{key: source.principal, notValues: ["cluster.local/*"]}]}]}`,
			`x: spec.rules[0].when[0].notValues[0]: "cluster.local/*" is for identities of the trust domain "cluster.local" only: cluster.local and the mesh's trust domains (corp) stand for each other where a principal has all parts, DOMAIN/ns/NAMESPACE/sa/ACCOUNT; use namespaces, or name each domain`},
	} {
		text := mesh + "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: x, namespace: shop}\nspec: " + tc.spec + "\n"
		if got := strings.Join(findings(t, text, analyze.Options{Mesh: tc.mesh}), "\n"); got != tc.want {
			t.Errorf("%s\n got %s\nwant %s", tc.spec, got, tc.want)
		}
	}
	service := mesh + "---\napiVersion: v1\nkind: Service\nmetadata: {name: x, namespace: shop}\nspec: {selector: {app: none}, ports: [{port: 80}]}\n"
	if got := findings(t, service, analyze.Options{Workloads: true}); len(got) != 1 || got[0] != "x: spec.selector: no Pod has the labels app=none: the Service has no endpoints" {
		t.Errorf("%q", got)
	}
}

// Files of a repository have no Pods: what selects them is not reported.
func TestWithoutWorkloadsSelectorsAreNotChecked(t *testing.T) {
	text := mesh + `---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: x, namespace: shop}
spec: {selector: {matchLabels: {app: wep}}}
`
	if got := findings(t, text, analyze.Options{}); len(got) != 0 {
		t.Errorf("%q", got)
	}
}

// What is valid on its own and cannot be used together: a WorkloadEntry with a DNS name for a Service, and two ServiceEntries whose
// connections cannot be told apart.
func TestEntriesThatCannotBeUsed(t *testing.T) {
	entry := func(kind, name, spec string) string {
		return "---\napiVersion: networking.istio.io/v1\nkind: " + kind + "\nmetadata: {name: " + name + ", namespace: shop}\nspec: " + spec + "\n"
	}
	const port = `resolution: NONE, ports: [{number: 5432, name: tcp, protocol: TCP}]`
	for _, tc := range []struct{ text, want string }{
		{entry("WorkloadEntry", "vm", "{address: vm.example.com, labels: {app: web}}"),
			`vm: spec.address: Service shop/web selects this entry and cannot use the DNS name "vm.example.com": want an IP address, or a ServiceEntry with resolution DNS`},
		{entry("WorkloadEntry", "vm", "{address: 10.0.0.9, labels: {app: web}}"), ""},
		{entry("WorkloadEntry", "vm", "{address: vm.example.com, labels: {app: other}}") +
			entry("ServiceEntry", "dns", "{hosts: [dns.example.net], resolution: DNS, ports: [{number: 80, name: http}], workloadSelector: {labels: {app: other}}}"), ""},
		{entry("ServiceEntry", "one", "{hosts: [one.example.net], "+port+"}") + entry("ServiceEntry", "two", "{hosts: [two.example.net], "+port+"}"),
			`two: spec.ports[0]: TCP connections to port 5432 go to one.example.net of ServiceEntry shop/one: without addresses hosts are told apart only by proxies with DNS proxying and allocated addresses; set spec.addresses, or use another port`},
		{entry("ServiceEntry", "one", "{hosts: [one.example.net], "+port+"}") + entry("ServiceEntry", "two", "{hosts: [two.example.net], addresses: [10.1.1.1], "+port+"}"), ""},
		{entry("ServiceEntry", "one", "{hosts: [one.example.net], exportTo: [x], "+port+"}") + entry("ServiceEntry", "two", "{hosts: [two.example.net], exportTo: [.], "+port+"}"), ""},
	} {
		if got := strings.Join(findings(t, mesh+tc.text, analyze.Options{}), "\n"); got != tc.want {
			t.Errorf("%s\n got %s\nwant %s", tc.text, got, tc.want)
		}
	}
}

// What has no meaning for hosts whose names proxies resolve.
func TestHostsThatProxiesResolve(t *testing.T) {
	objects := func(resolution string) string {
		return mesh + "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: any, namespace: shop}\nspec: {hosts: ['*.example.net'], resolution: " + resolution + ", ports: [{number: 80, name: http, protocol: HTTP}]}\n" +
			"---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: copies, namespace: shop}\nspec: {hosts: [web], http: [{route: [{destination: {host: web}}], mirror: {host: a.example.net}, mirrors: [{destination: {host: web}}, {destination: {host: '*.example.net'}}]}]}\n" +
			"---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: rule, namespace: shop}\nspec: {host: '*.example.net', trafficPolicy: {loadBalancer: {simple: RANDOM}, portLevelSettings: [{port: {number: 80}, loadBalancer: {simple: RANDOM}}]}, subsets: [{name: a, trafficPolicy: {loadBalancer: {simple: RANDOM}}}, {name: b}]}\n"
	}
	const rule = ": not applied: the ServiceEntry of *.example.net has resolution DYNAMIC_DNS"
	want := []string{
		"copies: spec.http[0].mirror.host: not applied: requests are not mirrored to a.example.net, whose ServiceEntry has resolution DYNAMIC_DNS",
		"copies: spec.http[0].mirrors[1].destination.host: not applied: requests are not mirrored to *.example.net, whose ServiceEntry has resolution DYNAMIC_DNS",
		"rule: spec.subsets[0].trafficPolicy.loadBalancer" + rule,
		"rule: spec.trafficPolicy.loadBalancer" + rule,
		"rule: spec.trafficPolicy.portLevelSettings[0].loadBalancer" + rule,
	}
	got := findings(t, objects("DYNAMIC_DNS"), analyze.Options{})
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, one := range findings(t, objects("NONE"), analyze.Options{}) {
		if strings.Contains(one, "not applied") {
			t.Errorf("with resolution NONE: %s", one)
		}
	}
}

// A Service has priority over a ServiceEntry of its namespace with its host, as in Istio; clients of another namespace use their own entry.
func TestEntriesBehindAService(t *testing.T) {
	entry := func(name, namespace string) string {
		return "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: " + name + ", namespace: " + namespace + "}\nspec: {hosts: [other.example, web.shop.svc.cluster.local], addresses: [10.9.9.9], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.1.1.1}]}\n"
	}
	const want = `mine: spec.hosts[1]: "web.shop.svc.cluster.local" is the host of a Service, which has priority: clients that see the Service do not use this entry for it; use another host, or remove the Service`
	if got := findings(t, mesh+entry("mine", "shop"), analyze.Options{}); len(got) != 1 || got[0] != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := findings(t, entry("mine", "team")+"---"+mesh, analyze.Options{}); len(got) > 0 {
		t.Errorf("of another namespace: %q", got)
	}
	hidden := "---\napiVersion: v1\nkind: Service\nmetadata: {name: none, namespace: shop, annotations: {networking.istio.io/exportTo: '~'}}\nspec: {clusterIP: 10.96.0.8, ports: [{name: http, port: 80}]}\n" +
		"---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: mine, namespace: shop}\nspec: {hosts: [none.shop.svc.cluster.local], addresses: [10.9.9.9], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}]}\n"
	if got := findings(t, mesh+hidden, analyze.Options{}); len(got) > 0 {
		t.Errorf("of a Service that nobody sees: %q", got)
	}
}

// A Service names ports that containers have.
func TestNamesOfTargetPorts(t *testing.T) {
	const pod = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: n, labels: {app: a}}\nspec: {containers: [{name: c, ports: [{name: http-a, containerPort: 1}]}]}\nstatus: {podIP: 10.0.0.1}\n"
	service := func(ports string) string {
		return pod + "---\napiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: n}\nspec: {selector: {app: a}, ports: [" + ports + "]}\n"
	}
	for ports, want := range map[string]string{
		"{port: 80, targetPort: http-a}":                 "",
		"{port: 80, targetPort: 8080}":                   "",
		"{port: 80}":                                     "",
		"{name: x, port: 70}, {port: 80, targetPort: b}": `s: spec.ports[1].targetPort: no container of its Pods has a port with the name "b": the port has no endpoints; want one of http-a, or a number`,
	} {
		got := strings.Join(findings(t, service(ports), analyze.Options{Workloads: true}), "\n")
		if got != want {
			t.Errorf("%s: %q, want %q", ports, got, want)
		}
	}
	entry := "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: w, namespace: n}\nspec: {address: 10.0.0.9, labels: {app: a}}\n"
	if got := findings(t, service("{port: 80, targetPort: b}")+entry, analyze.Options{Workloads: true}); len(got) != 0 {
		t.Errorf("with a WorkloadEntry: %q", got)
	}
}

// A host of a VirtualService that nothing has is most likely misspelled if a Service has nearly the same.
func TestHostsOfVirtualServices(t *testing.T) {
	route := func(hosts, more string) string {
		return mesh + "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: v, namespace: shop}\nspec: {hosts: [" + hosts + "], " + more + "http: [{route: [{destination: {host: web}}]}]}\n"
	}
	for text, want := range map[string]string{
		route("web", ""):                          "",
		route("wbe", ""):                          `v: spec.hosts[0]: no Service or ServiceEntry has the host "wbe.shop.svc.cluster.local"; did you mean "web.shop.svc.cluster.local"?`,
		route("web, wbe", "gateways: [mesh], "):   `v: spec.hosts[1]: no Service or ServiceEntry has the host "wbe.shop.svc.cluster.local"; did you mean "web.shop.svc.cluster.local"?`,
		route("something-else", ""):               "",
		route("apj.example.org", ""):              "",
		route("\"*.shop.svc.cluster.local\"", ""): "",
	} {
		if got := strings.Join(findings(t, text, analyze.Options{Workloads: true}), "\n"); got != want {
			t.Errorf("%s\n got %q\nwant %q", text[len(mesh):], got, want)
		}
	}
}

// Labels of sessions have an effect only with the filter for them, which is off by default.
func TestSessionsWithoutAFilter(t *testing.T) {
	object := func(kind, labels string) string {
		spec := "v1\nkind: Service\nspec: {ports: [{port: 80}]}\n"
		if kind == "ServiceEntry" {
			spec = "networking.istio.io/v1\nkind: ServiceEntry\nspec: {hosts: [one.example.net], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}]}\n"
		}
		return mesh + "---\napiVersion: " + spec + "metadata: {name: cart, namespace: shop, labels: " + labels + "}\n"
	}
	const cookie, header = "{istio.io/persistent-session: cart}", "{istio.io/persistent-session-header: x-cart}"
	for _, tc := range []struct{ text, label string }{
		{object("Service", cookie), "istio.io/persistent-session"},
		{object("Service", header), "istio.io/persistent-session-header"},
		{object("ServiceEntry", cookie), "istio.io/persistent-session"},
		{object("ServiceEntry", "{}"), ""},
		{object("Service", `{istio.io/persistent-session: ""}`), ""},
	} {
		want := ""
		if tc.label != "" {
			want = "cart: metadata.labels[" + tc.label + "]: not applied: no request names the endpoint of a session unless an EnvoyFilter adds the filter for it; set PILOT_ENABLE_PERSISTENT_SESSION_FILTER=true in the environment of pilot-discovery"
		}
		if got := strings.Join(findings(t, tc.text, analyze.Options{NoSessions: true}), "\n"); got != want {
			t.Errorf("%s\n got %s\nwant %s", tc.text, got, want)
		}
		if got := findings(t, tc.text, analyze.Options{}); len(got) > 0 {
			t.Errorf("with the filter: %s", got)
		}
	}
}
