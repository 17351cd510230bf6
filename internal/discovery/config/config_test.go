package config_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
)

const gatewayAPI = "gateway.networking.k8s.io/v1"

// groups has the API versions of kinds that are not in networking.istio.io/v1.
var groups = map[object.Kind]string{
	object.Service: "v1", object.Pod: "v1", object.ConfigMap: "v1", object.EndpointSlice: "discovery.k8s.io/v1",
	object.PeerAuthentication: "security.istio.io/v1", object.AuthorizationPolicy: "security.istio.io/v1", object.RequestAuthentication: "security.istio.io/v1", object.ProxyConfig: "networking.istio.io/v1beta1", object.Telemetry: "telemetry.istio.io/v1", object.EnvoyFilter: "networking.istio.io/v1alpha3",
	object.GatewayClass: gatewayAPI, object.KubernetesGateway: gatewayAPI, object.HTTPRoute: gatewayAPI, object.GRPCRoute: gatewayAPI, object.TLSRoute: gatewayAPI,
	object.TCPRoute: gatewayAPI, object.UDPRoute: gatewayAPI, object.ListenerSet: gatewayAPI, object.ReferenceGrant: gatewayAPI, object.BackendTLSPolicy: gatewayAPI, object.Ingress: "networking.k8s.io/v1",
}

// parse returns the object with the given YAML after its metadata.
func parse(t *testing.T, kind object.Kind, body string) object.Object {
	t.Helper()
	group := groups[kind]
	if group == "" {
		group = "networking.istio.io/v1"
	}
	r := decode.Documents("f.yaml", fmt.Appendf(nil, "apiVersion: %s\nkind: %s\nmetadata: {name: a, namespace: n}\n%s", group, decode.APIKind(kind), body))
	if len(r.Objects) != 1 {
		t.Fatalf("%s: %v", body, r.Problems)
	}
	return r.Objects[0]
}

// rule is an object and the verdicts on it: "E field: text" or "W field: text", with the beginning
// of the text.
type rule struct {
	kind object.Kind
	body string
	want []string
}

func runRules(t *testing.T, rules []rule) {
	t.Helper()
	for _, r := range rules {
		body := r.body
		if !strings.Contains(body, "\n") && strings.HasPrefix(body, "{") {
			body = "spec: " + body
		}
		var got []string
		for _, v := range config.Validate(parse(t, r.kind, body)) {
			if v.Key.Name != "a" || v.Origin.File != "f.yaml" || v.Origin.Line != 1 {
				t.Errorf("%s: verdict without its object: %+v", r.body, v)
			}
			got = append(got, strings.ToUpper(v.Severity.String()[:1])+" "+v.Field+": "+v.Text)
		}
		ok := len(got) == len(r.want)
		for i := 0; ok && i < len(got); i++ {
			ok = strings.HasPrefix(got[i], r.want[i])
		}
		if !ok {
			t.Errorf("%s %s\ngot  %s\nwant %s", r.kind, r.body, strings.Join(got, "\n     "), strings.Join(r.want, "\n     "))
		}
	}
}

func TestSampleIsGood(t *testing.T) {
	const sample = "../source/decode/testdata/mesh.yaml"
	text, err := os.ReadFile(sample)
	if err != nil {
		t.Fatal(err)
	}
	warnings := 0
	for _, o := range decode.Documents(sample, text).Objects {
		for _, v := range config.Validate(o) {
			if v.Severity == object.Error {
				t.Errorf("%v", v)
			}
			warnings++
		}
	}
	if warnings != 1 {
		t.Errorf("%d warnings, want that on failover without outlierDetection", warnings)
	}
}

func TestCore(t *testing.T) {
	runRules(t, []rule{
		{object.Service, "{ports: [{port: 80}]}", nil},
		{object.Service, "{ports: [{port: 0}, {port: 80, name: A_b, protocol: HTTP, targetPort: 70000}]}", []string{
			"E spec.ports[0].port: invalid port 0", "E spec.ports[0].name: is missing; each port of a Service with several",
			"E spec.ports[1].targetPort: invalid port 70000", "E spec.ports[1].name: invalid port name \"A_b\"", "E spec.ports[1].protocol: invalid protocol \"HTTP\""}},
		{object.Service, "{ports: [{port: 80, name: x}, {port: 80, name: x}]}", []string{"E spec.ports: duplicate port name \"x\"", "E spec.ports[1].port: duplicate port 80"}},
		{object.Service, "{ports: [{port: 53, name: x}, {port: 53, name: y, protocol: UDP}]}", nil},
		{object.Service, "{type: ExternalName}", []string{"E spec.externalName: invalid DNS name \"\""}},
		{object.Service, "{type: Odd}", []string{"E spec.type: invalid type \"Odd\""}},
		{object.EndpointSlice, "ports: [{port: 0}]", []string{"W metadata.labels: label kubernetes.io/service-name is missing", "E ports[0].port: invalid port 0"}},
		{object.Pod, "{containers: [{name: c, ports: [{name: x, containerPort: 70000}]}]}", []string{"E spec.containers: invalid port 70000 (\"x\", port 1 of the Pod"}},
		{object.ConfigMap, "data: {mesh: 'a: ['}", nil},
	})
	o := parse(t, object.Service, "spec: {ports: [{port: 80}]}")
	o.Meta.Annotations = map[string]string{"networking.istio.io/exportTo": "., b c"}
	if got := config.Validate(o); len(got) != 1 || got[0].Field != "metadata.annotations[networking.istio.io/exportTo][1]" {
		t.Errorf("exportTo annotation: %v", got)
	}
	for _, c := range []struct {
		labels map[string]string
		want   string
	}{
		{map[string]string{"istio.io/persistent-session": "cart:/shop"}, "[]"},
		{map[string]string{"istio.io/persistent-session-header": "x-cart"}, "[]"},
		{map[string]string{"istio.io/persistent-session": ":/"}, `invalid name of a cookie ""`},
		{map[string]string{"istio.io/persistent-session": "cart:shop"}, `invalid path of a cookie "shop"`},
		{map[string]string{"istio.io/persistent-session-header": "a b"}, `invalid name of a header "a b"`},
		{map[string]string{"istio.io/persistent-session-header": "a", "istio.io/persistent-session": "b"}, "not applied: istio.io/persistent-session keeps sessions by a cookie"},
	} {
		o := parse(t, object.Service, "spec: {ports: [{port: 80}]}")
		o.Meta.Labels = c.labels
		if got := fmt.Sprint(config.Validate(o)); !strings.Contains(got, c.want) {
			t.Errorf("labels %v: %s, want %s", c.labels, got, c.want)
		}
	}
}

func TestEntries(t *testing.T) {
	const port = "ports: [{number: 80, name: http, protocol: HTTP}]"
	runRules(t, []rule{
		{object.ServiceEntry, "{hosts: [a.com, '*.b.com'], " + port + "}", nil},
		{object.ServiceEntry, "{hosts: ['*', a b, a.com, a.com]}", []string{
			"E spec.hosts[0]: invalid host \"*\"", "E spec.hosts[1]: invalid host \"a b\"", "E spec.hosts[3]: duplicate \"a.com\"", "W spec.ports: is empty"}},
		{object.ServiceEntry, "{}", []string{"E spec.hosts: is empty", "W spec.ports: is empty"}},
		{object.ServiceEntry, "{hosts: [a.com], addresses: [10.0.0.1, 10.0.0.0/8, 10.0.0], " + port + "}", []string{"E spec.addresses[2]: invalid address \"10.0.0\""}},
		{object.ServiceEntry, "{hosts: [a.com], ports: [{number: 80, name: x}, {number: 80, name: x, protocol: SPDY, targetPort: 99999}, {number: 0}]}", []string{
			"E spec.ports[1].targetPort: invalid port 99999", "E spec.ports[1].protocol: invalid protocol \"SPDY\"", "E spec.ports[2].number: invalid port 0", "E spec.ports[2].name: invalid port name \"\"",
			"E spec.ports[1].name: duplicate \"x\"", "E spec.ports[1].number: duplicate 80"}},
		{object.ServiceEntry, "{hosts: [a.com], resolution: NONE, endpoints: [{address: 1.2.3.4}], " + port + "}", []string{"E spec.endpoints: resolution NONE uses the destination address"}},
		{object.ServiceEntry, "{hosts: [a.com], resolution: STATIC, " + port + "}", []string{"E spec.endpoints: resolution STATIC needs"}},
		{object.ServiceEntry, "{hosts: [a.com], resolution: STATIC, endpoints: [{address: b.com}, {address: 1.2.3.4, ports: {http: 8080}}, {address: unix:///x}, {address: 'unix://@x'}], " + port + "}", []string{"E spec.endpoints[0].address: invalid address \"b.com\""}},
		{object.ServiceEntry, "{hosts: [a.com], resolution: STATIC, workloadSelector: {labels: {app: x}}, " + port + "}", nil},
		{object.ServiceEntry, "{hosts: [a.com], resolution: STATIC, workloadSelector: {labels: {app: -x}}, endpoints: [{address: 1.2.3.4, ports: {grpc: 1}}], " + port + "}", []string{
			"E spec.workloadSelector: endpoints are set too", "E spec.workloadSelector.labels[app]: invalid label value \"-x\"", "E spec.endpoints[0].ports[grpc]: unknown port: want one of http"}},
		{object.ServiceEntry, "{hosts: ['*.a.com'], resolution: DYNAMIC_DNS, " + port + "}", nil},
		{object.ServiceEntry, "{hosts: ['*.a.com'], resolution: DYNAMIC_DNS, workloadSelector: {labels: {a: b}}, ports: [{number: 90, name: tcp}, {number: 443, name: tls, protocol: TLS, targetPort: 15000}, {number: 15020, name: http}]}", []string{
			"E spec.workloadSelector: resolution DYNAMIC_DNS", "W spec.ports[0].protocol: not applied", "E spec.ports[1]: port 15000", "E spec.ports[2]: port 15020"}},
		{object.ServiceEntry, "{hosts: ['*.a.com'], resolution: DNS, " + port + "}", []string{"E spec.hosts[0]: wildcard \"*.a.com\" cannot be resolved"}},
		{object.ServiceEntry, "{hosts: ['*.a.com'], resolution: DNS, endpoints: [{address: b.com}], " + port + "}", nil},
		{object.ServiceEntry, "{hosts: [a.com], resolution: DNS_ROUND_ROBIN, endpoints: [{address: b.com}, {address: c.com}], " + port + "}", []string{"E spec.endpoints: resolution DNS_ROUND_ROBIN allows one"}},
		{object.ServiceEntry, "{hosts: [a.com], exportTo: ['*', x, x, 'A'], subjectAltNames: [''], " + port + "}", []string{
			"E spec.exportTo[0]: \"*\" must be the only entry", "E spec.exportTo[2]: duplicate \"x\"", "E spec.exportTo[3]: invalid namespace \"A\"", "E spec.subjectAltNames[0]: is empty"}},
		{object.ServiceEntry, "{hosts: [a.com], exportTo: ['~'], " + port + "}", nil},
		{object.WorkloadEntry, "{address: 10.0.0.1, ports: {http: 80}, labels: {app.io/x: y}}", nil},
		{object.WorkloadEntry, "{address: vm.example.com}", nil},
		{object.WorkloadEntry, "{network: west}", []string{"E spec.address: is empty"}},
		{object.WorkloadEntry, "{address: 10.0.0.1, network: west}", nil},
		{object.WorkloadEntry, "{}", []string{"E spec.address: is empty"}},
		{object.WorkloadEntry, "{address: a/b, ports: {x_: 0}, labels: {'/x': y}}", []string{
			"E spec.address: invalid address \"a/b\"", "E spec.ports[x_]: invalid port name", "E spec.ports[x_]: invalid port 0", "E spec.labels[/x]: invalid label name"}},
		{object.WorkloadEntry, "{address: unix://x}", []string{"E spec.address: invalid Unix socket \"unix://x\""}},
		{object.WorkloadEntry, "{address: unix:///x, ports: {a: 1}}", []string{"E spec.ports: a Unix socket has no ports"}},
	})
}

func TestWorkloadGroups(t *testing.T) {
	runRules(t, []rule{
		{object.WorkloadGroup, "{metadata: {labels: {app: x}, annotations: {a: b}}, template: {ports: {http: 80}, labels: {a: b}, serviceAccount: x}, probe: {httpGet: {port: 80, scheme: https, host: '[::1]'}}}", nil},
		{object.WorkloadGroup, "{template: {}, probe: {tcpSocket: {port: 80, host: localhost}}}", nil},
		{object.WorkloadGroup, "{template: {}, probe: {grpc: {port: 80}}}", nil},
		{object.WorkloadGroup, "{template: {}, probe: {exec: {command: [x]}}}", nil},
		{object.WorkloadGroup, "{}", []string{"E spec.template: is missing"}},
		{object.WorkloadGroup, "{metadata: {labels: {a: -}, annotations: {istio.io/connectedAt: x}}, template: {address: 10.0.0.1, ports: {x_: 0}, labels: {'/x': y}}, probe: {}}", []string{
			"W spec.template.address: not applied", "E spec.template.ports[x_]: invalid port name", "E spec.template.ports[x_]: invalid port 0", "E spec.template.labels[/x]: invalid label name",
			"E spec.metadata.labels[a]: invalid label value", "W spec.metadata.annotations[istio.io/connectedAt]: not applied", "E spec.probe: no probe"}},
		{object.WorkloadGroup, "{template: {}, probe: {periodSeconds: -1, httpGet: {scheme: ftp, host: a.b}}}", []string{
			"E spec.probe.periodSeconds: invalid", "E spec.probe.httpGet.port: invalid port 0", "E spec.probe.httpGet.scheme: invalid scheme", "E spec.probe.httpGet.host: invalid host"}},
		{object.WorkloadGroup, "{template: {}, probe: {exec: {}}}", []string{"E spec.probe.exec.command: is empty"}},
	})
}

func TestEnvoyFilters(t *testing.T) {
	runRules(t, []rule{
		{object.EnvoyFilter, "{workloadSelector: {labels: {app: x}}, configPatches: [{applyTo: CLUSTER, patch: {operation: MERGE, value: {connect_timeout: 1s}}}]}", nil},
		{object.EnvoyFilter, "{}", []string{"W spec.configPatches: is empty: nothing is patched"}},
		{object.EnvoyFilter, "{targetRefs: [{kind: Gateway, name: a}], workloadSelector: {labels: {a: b}}, configPatches: [{applyTo: EXTENSION_CONFIG, patch: {operation: MERGE}}]}", []string{
			"E spec.targetRefs[0].kind: unknown kind", "E spec.workloadSelector: cannot be set together with targetRefs", "E spec.configPatches[0].patch.operation: invalid value MERGE for EXTENSION_CONFIG"}},
		{object.EnvoyFilter, "{configPatches: [{applyTo: BOOTSTRAP, patch: {operation: MERGE, value: {stats_flush_interval: 9s}}}, {applyTo: BOOTSTRAP, patch: {operation: MERGE, value: {node: {id: x}}}}]}", []string{
			"I spec.configPatches[0].applyTo: takes effect at proxies whose agents have BOOTSTRAP_XDS_AGENT=true", "E spec.configPatches[1].patch.value.node: must not be changed: the agent says who the proxy is"}},
		{object.EnvoyFilter, "{workloadSelector: {labels: {a b: x}}, configPatches: [{applyTo: CLUSTER, patch: {operation: REMOVE}}, {applyTo: CLUSTER, patch: {operation: MERGE, value: {none: 1}}}]}", []string{
			"E spec.workloadSelector.labels[a b]", `E spec.configPatches[1].patch.value: unknown field "none"`}},
		{object.EnvoyFilter, "{configPatches: [" + strings.Repeat("{applyTo: CLUSTER, patch: {operation: REMOVE}},", 513) + "]}", []string{"E spec.configPatches: has 513 patches: want at most 512"}},
	})
}

func TestPolicies(t *testing.T) {
	runRules(t, []rule{
		{object.PeerAuthentication, "{mtls: {mode: STRICT}}", nil},
		{object.PeerAuthentication, "{portLevelMtls: {80: {mode: STRICT}}}", []string{"E spec.portLevelMtls: needs a selector"}},
		{object.PeerAuthentication, "{selector: {matchLabels: {app: x}}, portLevelMtls: {80: {mode: STRICT}, 70000: {}}}", []string{"E spec.portLevelMtls[70000]: invalid port 70000"}},
		{object.Sidecar, "{}", []string{"W spec: is empty: all services are visible"}},
		{object.Sidecar, "{egress: [{hosts: ['./*', '*/a.com', '~/*', 'istio-system/*.b.com']}]}", nil},
		{object.Sidecar, "{egress: [{hosts: [a.com, 'A b/*', 'n/a b']}]}", []string{
			"E spec.egress[0].hosts[0]: invalid host \"a.com\": want namespace/host, such as \"./a.com\"", "E spec.egress[0].hosts[1]: invalid namespace \"A b\"", "E spec.egress[0].hosts[2]: invalid host \"a b\""}},
		{object.Sidecar, "{egress: [{}, {port: {number: 0, protocol: X}, bind: 127.0.0.1, hosts: ['./*']}]}", []string{
			"E spec.egress[0].port: is missing, but only the last entry", "E spec.egress[0].hosts: is empty", "E spec.egress[1].port.number: invalid port 0",
			"E spec.egress[1].port.protocol: invalid protocol \"X\""}},
		{object.Sidecar, "{egress: [{port: {number: 80, protocol: HTTP}, hosts: ['./*']}, {port: {number: 90, protocol: TCP}, bind: 127.0.0.1, captureMode: NONE, hosts: ['./*']}, {port: {number: 0, protocol: HTTP}, bind: 'unix:///a', hosts: ['./*']}, {port: {number: 0, protocol: HTTP}, bind: 'unix://@b', hosts: ['./*']}, {bind: 127.0.0.2, hosts: ['./*']}]}", nil},
		{object.Sidecar, "{egress: [{port: {number: 80, protocol: UDP}, hosts: ['./*']}, {port: {number: 80}, bind: x, hosts: ['./*']}, {port: {number: 1}, bind: 'unix:///b', hosts: ['./*']}, {port: {number: 0}, bind: 'unix://b', hosts: ['./*']}, {port: {number: 0}, bind: 'unix:///c', captureMode: IPTABLES, hosts: ['./*']}, {port: {number: 0}, bind: 'unix:///c', hosts: ['./*']}, {bind: 'unix:///d', hosts: ['./*']}]}", []string{
			"E spec.egress[0].port.protocol: invalid protocol UDP", "E spec.egress[1].bind: invalid address \"x\"", "E spec.egress[1].port.number: port 80 is that of spec.egress[0], too", "E spec.egress[2].port.number: invalid port 1: want 0 with a Unix socket",
			"E spec.egress[3].bind: invalid Unix socket \"unix://b\"", "E spec.egress[4].captureMode: IPTABLES is not for Unix sockets", "E spec.egress[5].bind: socket \"unix:///c\" is that of spec.egress[4], too", "E spec.egress[6].port: is missing; a Unix socket needs"}},
		{object.Sidecar, "{ingress: [{port: {number: 80}}], outboundTrafficPolicy: {egressProxy: {host: x}}}", []string{"W spec.outboundTrafficPolicy.egressProxy: not applied"}},
		{object.Sidecar, "{outboundTrafficPolicy: {mode: ALLOW_ANY, egressProxy: {host: x, port: {number: 80}}}}", nil},
		{object.Sidecar, "{ingress: [{port: {number: 80}, defaultEndpoint: '127.0.0.1:8080'}, {port: {number: 81}, defaultEndpoint: 'unix:///a/b'}, {port: {number: 84}, defaultEndpoint: 'unix://@a'}, {port: {number: 82}, defaultEndpoint: '[::]:82'}, {port: {number: 83}, captureMode: NONE}]}", nil},
		{object.Sidecar, "{ingress: [{port: {number: 0, protocol: UDP}}, {port: {number: 80, targetPort: 1}}, {port: {number: 80}}]}", []string{
			"E spec.ingress[0].port.number: invalid port 0", "E spec.ingress[0].port.protocol: invalid protocol UDP", "E spec.ingress[2].port.number: port 80 is that of spec.ingress[1], too", "W spec.ingress[1].port.targetPort: not applied"}},
		{object.Sidecar, "{ingress: [{port: {number: 80}, defaultEndpoint: '10.0.0.1:80'}, {port: {number: 81}, defaultEndpoint: '127.0.0.1'}, {port: {number: 82}, defaultEndpoint: '127.0.0.1:0'}, {port: {number: 83}, defaultEndpoint: 'unix://a'}, {port: {number: 84}, defaultEndpoint: 'unix:///" + strings.Repeat("a", 107) + "'}]}", []string{
			"E spec.ingress[0].defaultEndpoint: invalid address \"10.0.0.1\": want 127.0.0.1 or [::1]", "E spec.ingress[1].defaultEndpoint: invalid endpoint", "E spec.ingress[2].defaultEndpoint: invalid endpoint \"127.0.0.1:0\"",
			"E spec.ingress[3].defaultEndpoint: invalid Unix socket \"unix://a\"", "E spec.ingress[4].defaultEndpoint: invalid Unix socket"}},
		{object.Sidecar, "{ingress: [{port: {number: 80}, bind: x}, {port: {number: 81}, bind: 127.0.0.1}, {port: {number: 82}, bind: 127.0.0.1, captureMode: NONE}, {port: {number: 83}, bind: 127.0.0.1, captureMode: NONE, defaultEndpoint: '127.0.0.1:83'}]}", []string{
			"E spec.ingress[0].bind: invalid address \"x\": want an IP address", "W spec.ingress[1].bind: not applied: captured connections", "E spec.ingress[2].defaultEndpoint: is missing; the listener would forward connections to itself",
			"E spec.ingress[3].defaultEndpoint: is the address of the listener itself"}},
		{object.Sidecar, "{ingress: [{port: {number: 80, protocol: HTTP}, tls: {mode: MUTUAL}}, {port: {number: 81, protocol: TLS}, tls: {mode: ISTIO_MUTUAL}}, {port: {number: 82, protocol: TLS}, tls: {mode: SIMPLE, credentialName: c}}, {port: {number: 83, protocol: HTTPS}, tls: {mode: MUTUAL, serverCertificate: /c, privateKey: /k}}, {port: {number: 84, protocol: HTTPS}, tls: {httpsRedirect: true, mode: SIMPLE}}]}", []string{
			"E spec.ingress[0].tls: needs port.protocol HTTPS or TLS", "E spec.ingress[1].tls.mode: invalid mode ISTIO_MUTUAL: want SIMPLE or MUTUAL", "E spec.ingress[2].tls.credentialName: Secrets are for gateways",
			"E spec.ingress[3].tls.caCertificates: is missing", "E spec.ingress[4].tls.httpsRedirect: is for gateways"}},
		{object.Gateway, "{servers: [{port: {number: 80, protocol: HTTP}, hosts: ['*', n/x.com]}]}", nil},
		{object.Gateway, "{servers: [{port: {number: 443, protocol: HTTPS}, hosts: ['*'], tls: {mode: SIMPLE, credentialName: c}}]}", nil},
		{object.Gateway, "{servers: [{port: {number: 443, protocol: HTTPS}, hosts: ['*'], tls: {mode: MUTUAL, credentialNames: [c, kubernetes://n/d], caCertCredentialName: e}}]}", nil},
		{object.Gateway, "{servers: [{port: {number: 443, protocol: HTTPS}, hosts: ['*'], tls: {mode: SIMPLE, credentialName: 'sds://x', caCertCredentialName: 'a/b'}}]}", []string{
			"E spec.servers[0].tls.credentialName: secrets of other SDS servers are not used", "E spec.servers[0].tls.caCertCredentialName: invalid name \"a/b\": want that of a Secret", "W spec.servers[0].tls.caCertCredentialName: not applied: it has no effect with mode SIMPLE"}},
		{object.Gateway, "{servers: [{port: {number: 443, protocol: HTTPS}, hosts: ['*'], tls: {mode: MUTUAL, credentialName: c, credentialNames: [d]}}, {port: {number: 444, protocol: HTTPS}, hosts: ['*'], tls: {mode: MUTUAL, credentialName: c, caCertificates: /ca}}, {port: {number: 445, protocol: HTTPS}, hosts: ['*'], tls: {mode: SIMPLE, credentialName: c, serverCertificate: /c, privateKey: /k}}]}", []string{
			"E spec.servers[0].tls.credentialNames: credentialName is set too", "E spec.servers[1].tls.caCertificates: not used with a Secret", "E spec.servers[2].tls.credentialName: files of certificates are set too"}},
		{object.Gateway, "{servers: [{port: {number: 443, protocol: HTTPS}, hosts: ['*'], tls: {mode: ISTIO_MUTUAL, credentialName: c}}]}", []string{"W spec.servers[0].tls.credentialName: not applied: it has no effect with mode ISTIO_MUTUAL"}},
		{object.Gateway, "{servers: [{port: {number: 443, protocol: HTTPS}, hosts: ['*']}]}", []string{"E spec.servers[0].tls: is missing"}},
		{object.Gateway, server("mode: ISTIO_MUTUAL, cipherSuites: [TLS_AES_128_GCM_SHA256, '[AES128-SHA|AES256-SHA]'], minProtocolVersion: TLSV1_1, subjectAltNames: [a, ' ']"), []string{
			"W spec.servers[0].tls.cipherSuites[0]: not applied: Envoy knows no suite \"TLS_AES_128_GCM_SHA256\"", "E spec.servers[0].tls.subjectAltNames[1]: is empty",
		}},
		{object.Gateway, server("mode: ISTIO_MUTUAL, cipherSuites: [AES128-GCM-SHA256, '[AES128-SHA|x]'], maxProtocolVersion: TLSV1_1"), []string{
			"W spec.servers[0].tls.cipherSuites[1]: not applied: Envoy knows no suite", "W spec.servers[0].tls.maxProtocolVersion: versions below TLS 1.2 need one of their cipher suites",
		}},
		{object.Gateway, server("mode: ISTIO_MUTUAL, cipherSuites: [x, '[AES128-SHA']"), []string{"E spec.servers[0].tls.cipherSuites: has no suite that Envoy knows"}},
		{object.Gateway, server("mode: ISTIO_MUTUAL, cipherSuites: [AES128-SHA], minProtocolVersion: TLSV1_3"), []string{"W spec.servers[0].tls.cipherSuites: has no effect with minProtocolVersion TLSV1_3"}},
		{object.Gateway, server("mode: ISTIO_MUTUAL, verifyCertificateSpki: [NvqYIYSbgK2vCJpQhObf77vv+bQWtc5ek5RIOwPiC9A=, abc], insecureSkipVerify: true"), []string{
			"E spec.servers[0].tls.verifyCertificateSpki[1]: invalid hash \"abc\": want the SHA-256 hash of a public key", "W spec.servers[0].tls.insecureSkipVerify: not applied: certificates of clients are always verified",
		}},
		{object.Gateway, server("mode: ISTIO_MUTUAL, verifyCertificateHash: [" + strings.Repeat("aB", 32) + ", '" + strings.Repeat("aB:", 31) + "aB', '" + strings.Repeat("a:B", 32) + "', " + strings.Repeat("az", 32) + "]"), []string{
			"E spec.servers[0].tls.verifyCertificateHash[2]: invalid hash", "E spec.servers[0].tls.verifyCertificateHash[3]: invalid hash",
		}},
		{object.Gateway, server("mode: OPTIONAL_MUTUAL, credentialName: c, subjectAltNames: [a]"), []string{"W spec.servers[0].tls.subjectAltNames: with it Envoy requires a certificate of every client"}},
		{object.Gateway, server("mode: SIMPLE, credentialName: c, insecureSkipVerify: true"), []string{"W spec.servers[0].tls.insecureSkipVerify: not applied: it has no effect with mode SIMPLE"}},
		{object.Gateway, "{servers: [{port: {number: 443, protocol: HTTPS}, hosts: ['*'], tls: {mode: MUTUAL, serverCertificate: /c}}]}", []string{"E spec.servers[0].tls.caCertificates: is missing", "E spec.servers[0].tls: wants either serverCertificate and privateKey"}},
		{object.Gateway, "{servers: [{port: {number: 443, protocol: TLS}, hosts: ['*'], tls: {mode: PASSTHROUGH, caCertificates: /c}}, {port: {number: 444, protocol: HTTPS}, hosts: ['*'], tls: {mode: ISTIO_MUTUAL, minProtocolVersion: TLSV1_3, maxProtocolVersion: TLSV1_2}}]}", []string{"W spec.servers[0].tls.caCertificates: not applied: it has no effect with mode PASSTHROUGH", "E spec.servers[1].tls.minProtocolVersion: is above"}},
		{object.Gateway, "{servers: [{port: {number: 9000, protocol: TCP}, hosts: ['*']}, {port: {number: 53, protocol: UDP}, hosts: ['*']}]}", []string{"W spec.servers[1]: not applied: protocol \"UDP\" is not served"}},
		{object.Gateway, "{servers: [{port: {number: 80, protocol: HTTP, targetPort: 8080}, hosts: ['*'], name: a, defaultEndpoint: '127.0.0.1:80', tls: {httpsRedirect: true, credentialName: c}}]}", []string{
			"W spec.servers[0].tls.credentialName: not applied: protocol HTTP is served without TLS", "W spec.servers[0].defaultEndpoint: not applied", "W spec.servers[0].name: not applied", "W spec.servers[0].port.targetPort: not applied"}},
		{object.Gateway, "{servers: [{port: {number: 0, protocol: HTTP}, hosts: ['*'], bind: 'unix:///x'}, {port: {number: 0, protocol: TCP}, hosts: ['*'], bind: 'unix://@y'}]}", nil},
		{object.Gateway, "{servers: [{port: {number: 80, protocol: HTTP}, hosts: ['*'], bind: 'unix:///x'}, {port: {number: 0, protocol: HTTP}, hosts: ['*'], bind: 'unix://x'}, {port: {number: 80, protocol: HTTP}, hosts: ['*'], bind: x}, {port: {number: 0, protocol: HTTP}, hosts: ['*']}]}", []string{
			"E spec.servers[0].port.number: invalid port 80: want 0 with a Unix socket", "E spec.servers[1].bind: invalid Unix socket \"unix://x\": want \"unix://\" and an absolute path", "W spec.servers[2].bind: not applied: \"x\" is not an IP address",
			"E spec.servers[3].port.number: invalid port 0"}},
		{object.Gateway, "{}", []string{"E spec.servers: is empty"}},
		{object.Gateway, "{servers: [{name: a, port: {number: 15443, name: tls, protocol: TLS}, hosts: ['*.local'], tls: {mode: AUTO_PASSTHROUGH}}]}", nil},
		{object.Gateway, "{servers: [{bind: 1.2.3.4, port: {number: 15443, protocol: HTTPS}, hosts: ['*.local'], tls: {mode: AUTO_PASSTHROUGH, credentialName: x}}]}", []string{
			"E spec.servers[0].port.protocol: invalid protocol \"HTTPS\" with tls.mode AUTO_PASSTHROUGH: want TLS", "W spec.servers[0].bind: not applied", "W spec.servers[0].tls.credentialName: not applied"}},
	})
}

func TestTelemetry(t *testing.T) {
	runRules(t, []rule{
		{object.Telemetry, "{accessLogging: [{providers: [{name: envoy}], match: {mode: CLIENT}, filter: {expression: 'response.code >= 400'}, disabled: true}]}", nil},
		{object.Telemetry, "{accessLogging: [{providers: [{}], filter: {expression: 'nosuch(1)'}}, {filter: {}}]}", []string{
			"E spec.accessLogging[0].providers[0].name: is empty", "E spec.accessLogging[0].filter.expression: calls \"nosuch\", which Envoy does not have", "E spec.accessLogging[1].filter.expression: is empty"}},
		{object.Telemetry, "{selector: {matchLabels: {'a b': c}}}", []string{"E spec.selector.matchLabels[a b]: invalid label name"}},
		{object.Telemetry, "{metrics: [{providers: [{name: prometheus}], overrides: [{match: {metric: REQUEST_COUNT, mode: CLIENT}, disabled: false, tagOverrides: {request_host: {value: request.host}, destination_port: {value: string(destination.port)}, response_flags: {operation: REMOVE}}}, {match: {customMetric: requests_total}}]}]}", nil},
		{object.Telemetry, "{metrics: [{providers: [{}], reportingInterval: 9s, overrides: [{match: {customMetric: mine}}, {match: {metric: GRPC_REQUEST_MESSAGES}}]}, {overrides: [{match: {customMetric: ''}, tagOverrides: {le: {value: a}, a-b: {value: a}, __x: {value: a}, a: {}, b: {value: 'a +'}, c: {operation: REMOVE, value: request.host}, d: {value: node.id}, e: {value: request.path.lowerAscii()}}}]}]}", []string{
			"E spec.metrics[0].providers[0].name: is empty",
			"W spec.metrics[0].overrides[0].match.customMetric: not applied: proxies have no metric \"mine\"", "E spec.metrics[1].overrides[0].match.customMetric: is empty",
			"E spec.metrics[1].overrides[0].tagOverrides[__x]: invalid label", "E spec.metrics[1].overrides[0].tagOverrides[a].value: is empty", "E spec.metrics[1].overrides[0].tagOverrides[a-b]: invalid label",
			"E spec.metrics[1].overrides[0].tagOverrides[b].value: invalid expression", "E spec.metrics[1].overrides[0].tagOverrides[c].value: cannot be set", "W spec.metrics[1].overrides[0].tagOverrides[d].value: not applied: names \"node\"",
			"W spec.metrics[1].overrides[0].tagOverrides[e].value: not applied: calls", "E spec.metrics[1].overrides[0].tagOverrides[le]: invalid label",
			"W spec.metrics[0].reportingInterval: not applied",
		}},
		{object.Telemetry, "{tracing: [{match: {mode: CLIENT}, providers: [{name: zip}], randomSamplingPercentage: 12.5, disableSpanReporting: true, customTags: {a: {literal: {value: x}}, b: {environment: {name: A}}, c: {header: {name: x-a}}, d: {formatter: {value: 'a%PROTOCOL%'}}}}]}", nil},
		{object.Telemetry, "{tracing: [{providers: [{}, {name: a}], randomSamplingPercentage: 101, customTags: {'': {}, a: {literal: {}}, b: {environment: {}}, c: {header: {name: 'a b'}}, d: {formatter: {}}, e: {formatter: {value: '%NOSUCH%'}}}}, {randomSamplingPercentage: NaN}]}", []string{
			"E spec.tracing[0].providers[0].name: is empty", "W spec.tracing[0].providers[1]: not applied", "E spec.tracing[0].randomSamplingPercentage: invalid percentage 101: want 0–100",
			"E spec.tracing[0].customTags[]: a tag has no name", "E spec.tracing[0].customTags[]: has no value: want one of literal, environment, header and formatter", "E spec.tracing[0].customTags[a].literal.value: is empty",
			"E spec.tracing[0].customTags[b].environment.name: is empty", "E spec.tracing[0].customTags[c].header.name: invalid header name", "E spec.tracing[0].customTags[d].formatter.value: is empty",
			"E spec.tracing[0].customTags[e].formatter.value: unknown command %NOSUCH%", "E spec.tracing[1].randomSamplingPercentage: invalid percentage NaN"}},
		{object.Telemetry, "{selector: {matchLabels: {a: b}}, targetRefs: [{kind: Pod, name: a}]}", []string{"E spec.selector: cannot be set together with targetRefs", "E spec.targetRefs[0].kind: unknown kind"}},
	})
}

func TestAuthorizationPolicies(t *testing.T) {
	one := func(what string) string { return "{rules: [" + what + "]}" }
	source := func(s string) string { return one("{from: [{source: {" + s + "}}]}") }
	operation := func(s string) string { return one("{to: [{operation: {" + s + "}}]}") }
	when := func(key, values string) string {
		return one("{when: [{key: '" + key + "', values: [" + values + "]}]}")
	}
	runRules(t, []rule{
		{object.AuthorizationPolicy, "{}", nil},
		{object.AuthorizationPolicy, "{action: DENY}", []string{"W spec.rules: is empty: the policy matches nothing"}},
		{object.AuthorizationPolicy, "{action: CUSTOM, rules: [{}]}", []string{"E spec.provider.name: is empty"}},
		{object.AuthorizationPolicy, "{action: CUSTOM, provider: {name: a}, rules: [{}]}", []string{"I spec.provider: TCP connections are judged only if"}},
		{object.AuthorizationPolicy, "{provider: {name: a}}", []string{"E spec.provider: is for action CUSTOM only"}},
		{object.AuthorizationPolicy, "{action: DENY, rules: [{to: [{operation: {paths: [/a]}}]}]}", []string{"W spec.rules[0]: TCP connections have no paths: of these, the rule matches all"}},
		{object.AuthorizationPolicy, operation("methods: [GET], hosts: [a]"), []string{"I spec.rules[0]: matches no TCP connection, since these have no hosts, methods"}},
		{object.AuthorizationPolicy, operation(""), []string{"E spec.rules[0].to[0].operation: is empty"}},
		{object.AuthorizationPolicy, source(""), []string{"E spec.rules[0].from[0].source: is empty"}},
		{object.AuthorizationPolicy, source("principals: ['']"), []string{"E spec.rules[0].from[0].source.principals[0]: is empty"}},
		{object.AuthorizationPolicy, source("principals: ['a*b', '*a*', '*', 'a*', '*a']"), []string{"W spec.rules[0].from[0].source.principals[0]: of \"a*b\" only one", "W spec.rules[0].from[0].source.principals[1]"}},
		{object.AuthorizationPolicy, source("ipBlocks: [10.0.0.0/8, '::1', 10.0.0, 10.0.0.0/33, '::ffff:10.0.0.1', '::ffff:10.0.0.0/120'], notIpBlocks: [x]"), []string{
			"E spec.rules[0].from[0].source.ipBlocks[2]: invalid block \"10.0.0\"", "E spec.rules[0].from[0].source.ipBlocks[3]", "E spec.rules[0].from[0].source.ipBlocks[4]: invalid address \"::ffff:10.0.0.1\": proxies see such a client as 10.0.0.1", "E spec.rules[0].from[0].source.ipBlocks[5]", "E spec.rules[0].from[0].source.notIpBlocks[0]"}},
		{object.AuthorizationPolicy, source("serviceAccounts: [a, n/a, 'a*', n/a/b]"), []string{
			"E spec.rules[0].from[0].source.serviceAccounts[2]: invalid service account", "E spec.rules[0].from[0].source.serviceAccounts[3]"}},
		{object.AuthorizationPolicy, source("namespaces: [a/b]"), []string{"E spec.rules[0].from[0].source.namespaces[0]: invalid value \"a/b\""}},
		{object.AuthorizationPolicy, operation("ports: ['80', '0', '70000', http]"), []string{
			"E spec.rules[0].to[0].operation.ports[1]: invalid port \"0\"", "E spec.rules[0].to[0].operation.ports[2]", "E spec.rules[0].to[0].operation.ports[3]"}},
		{object.AuthorizationPolicy, operation("paths: ['/a/{*}/b', '/{**}', 'a', '/a{*}', '/{**}/{*}', '/{*}/', '{*}']"), []string{
			"W spec.rules[0].to[0].operation.paths[2]: \"a\" matches no path", "E spec.rules[0].to[0].operation.paths[3]: invalid template", "E spec.rules[0].to[0].operation.paths[4]: invalid template",
			"E spec.rules[0].to[0].operation.paths[5]", "E spec.rules[0].to[0].operation.paths[6]", "I spec.rules[0]"}},
		{object.AuthorizationPolicy, when("request.headers[x-a]", "a"), []string{"I spec.rules[0]: matches no TCP connection, since these have no request.headers[x-a]"}},
		{object.AuthorizationPolicy, when("request.headers[x a]", "a"), []string{"E spec.rules[0].when[0].key: unknown key"}},
		{object.AuthorizationPolicy, when("request.auth.claims[a][b]", "a"), []string{"I spec.rules[0]"}},
		{object.AuthorizationPolicy, "{action: CUSTOM, provider: {name: a}, rules: [{when: [{key: request.auth.principal, values: [a/b]}]}]}", []string{
			"I spec.provider", "E spec.rules[0].when[0].values[0]: action CUSTOM is decided before tokens are validated", "W spec.rules[0]"}},
		{object.AuthorizationPolicy, when("request.auth.claims[a", "a"), []string{"E spec.rules[0].when[0].key: unknown key"}},
		{object.AuthorizationPolicy, when("source.ip", ""), []string{"E spec.rules[0].when[0]: has no values"}},
		{object.AuthorizationPolicy, when("destination.port", "'80'"), nil},
		{object.AuthorizationPolicy, when("experimental.envoy.filters.a[b]", "'[x]', '[x'"), []string{"E spec.rules[0].when[0].values[1]: invalid value \"[x\""}},
		{object.AuthorizationPolicy, when("source.port", "'80'"), []string{"E spec.rules[0].when[0].key: unknown key \"source.port\""}},
	})
}

func TestTargets(t *testing.T) {
	const group = "group: gateway.networking.k8s.io, "
	for kind, rest := range map[object.Kind]string{
		object.AuthorizationPolicy: "", object.RequestAuthentication: `, jwtRules: [{issuer: a, jwks: '{"keys": [{"kty": "RSA", "n": "AQ", "e": "AQAB"}]}'}]`,
		object.EnvoyFilter: ", configPatches: [{applyTo: CLUSTER, patch: {operation: REMOVE}}]",
	} {
		refs := func(list string) string { return "{targetRefs: [" + list + "]" + rest + "}" }
		rules := []rule{
			{kind, refs("{" + group + "kind: Gateway, name: a}"), nil},
			{kind, refs("{" + group + "kind: Gateway, name: a, namespace: n}"), nil},
			{kind, refs("{" + group + "kind: Gateway, name: a, namespace: other}, {" + group + "kind: Gateway}"), []string{
				"E spec.targetRefs[0].namespace: invalid namespace \"other\"", "E spec.targetRefs[1].name: is empty"}},
			{kind, refs("{kind: Service, name: a}, {group: networking.istio.io, kind: ServiceEntry, name: b}, {" + group + "kind: GatewayClass, name: c}"), []string{
				"W spec.targetRefs[0].kind: a Service is a target for waypoints, which are not served", "W spec.targetRefs[1].kind: a ServiceEntry is", "W spec.targetRefs[2].kind: a GatewayClass is"}},
			{kind, refs("{group: networking.istio.io, kind: Gateway, name: a}, {kind: ServiceEntry, name: b}"), []string{
				"E spec.targetRefs[0].kind: unknown kind \"Gateway\" of group \"networking.istio.io\"", "E spec.targetRefs[1].kind: unknown kind"}},
			{kind, refs(strings.Repeat("{"+group+"kind: Gateway, name: a}, ", 17)), []string{"E spec.targetRefs: has 17 targets: want at most 16"}},
		}
		if kind != object.EnvoyFilter {
			rules = append(rules,
				rule{kind, "{targetRef: {" + group + "kind: Gateway, name: a}" + rest + "}", nil},
				rule{kind, "{targetRef: {kind: Service, name: a}, targetRefs: [{kind: Service, name: b}]" + rest + "}", []string{"E spec.targetRef: cannot be set together with targetRefs", "W spec.targetRefs[0].kind"}},
				rule{kind, "{selector: {matchLabels: {a: b}}, targetRef: {kind: Service, name: a}" + rest + "}", []string{"E spec.selector: cannot be set together with targetRefs", "W spec.targetRef.kind"}})
		}
		runRules(t, rules)
	}
}

func TestRequestAuthentications(t *testing.T) {
	const keys = `'{"keys": [{"kty": "RSA", "n": "AQ", "e": "AQAB"}]}'`
	one := func(rule string) string { return "{jwtRules: [{" + rule + "}]}" }
	with := func(more string) string { return one("issuer: a, jwks: " + keys + ", " + more) }
	at := func(text string) string { return strings.Replace(text, " .", " spec.jwtRules[0].", 1) }
	runRules(t, []rule{
		{object.RequestAuthentication, with("audiences: [a], fromHeaders: [{name: x-a, prefix: 'Tok '}], fromParams: [a], fromCookies: [b], forwardOriginalToken: true, outputPayloadToHeader: x-b, outputClaimToHeaders: [{header: x-c, claim: a.b}], spaceDelimitedClaims: [c]"), nil},
		{object.RequestAuthentication, "{}", []string{"W spec.jwtRules: is empty: no token is validated"}},
		{object.RequestAuthentication, "{selector: {matchLabels: {app: -x}}, jwtRules: [{issuer: a, jwks: " + keys + "}]}", []string{"E spec.selector.matchLabels[app]: invalid label value"}},
		{object.RequestAuthentication, one("jwks: " + keys), []string{at("E .issuer: is empty")}},
		{object.RequestAuthentication, one("issuer: a, jwks: '{}'"), []string{at("E .jwks: invalid key set")}},
		{object.RequestAuthentication, one(`issuer: a, jwks: '{"keys": [{"kty": "RSA", "n": "AQ", "e": "AQAB", "d": "AQ"}]}'`), []string{at("W .jwks: has private keys")}},
		{object.RequestAuthentication, with("jwksUri: 'https://a.example/keys'"), []string{at("E .jwksUri: jwks is set too")}},
		{object.RequestAuthentication, one("issuer: a"), []string{at("W .jwksUri: is empty, and the issuer is no URL")}},
		{object.RequestAuthentication, one("issuer: 'https://a.example'"), nil},
		{object.RequestAuthentication, one("issuer: a, jwksUri: 'http://keys.shop.svc/jwks', timeout: 60s"), nil},
		{object.RequestAuthentication, one("issuer: a, jwksUri: 'file:///etc/passwd'"), []string{at("E .jwksUri: invalid URL: want http:// or https://")}},
		{object.RequestAuthentication, one("issuer: a, jwksUri: 'https://u:p@a.example'"), []string{at("E .jwksUri: invalid URL: want one without a user")}},
		{object.RequestAuthentication, one("issuer: a, jwksUri: 'https://a.example:0'"), []string{at(`E .jwksUri: invalid port "0"`)}},
		{object.RequestAuthentication, one("issuer: a, jwksUri: 'https://a.example', timeout: 61s"), []string{at("W .timeout: is more than 1m0s")}},
		{object.RequestAuthentication, with("audiences: [''], fromHeaders: [{name: 'a b'}, {}], fromParams: [''], fromCookies: [a, '']"), []string{
			at("E .audiences[0]: is empty"), at("E .fromHeaders[0].name: invalid header name \"a b\""), at("E .fromHeaders[1].name: invalid"), at("E .fromParams[0]: is empty"), at("E .fromCookies[1]: is empty")}},
		{object.RequestAuthentication, with("outputPayloadToHeader: ':path', outputClaimToHeaders: [{header: x-a}, {header: X-A, claim: b}, {claim: c}], spaceDelimitedClaims: ['']"), []string{
			at("E .outputPayloadToHeader: invalid header name"), at("E .outputClaimToHeaders[0].claim: is empty"), at("E .outputClaimToHeaders[1].header: header \"X-A\" is written twice"),
			at("E .outputClaimToHeaders[2].header: invalid header name"), at("E .spaceDelimitedClaims[0]: is empty")}},
		{object.RequestAuthentication, with("spaceDelimitedClaims: [" + strings.Repeat("a, ", 64) + "a]"), []string{at("E .spaceDelimitedClaims: has 65 claims")}},
	})
}

func TestProxyConfigs(t *testing.T) {
	runRules(t, []rule{
		{object.ProxyConfig, "{selector: {matchLabels: {app: x}}, concurrency: 0, environmentVariables: {A_b.c-1: 'x=y', B: ''}, image: {imageType: distroless}}", nil},
		{object.ProxyConfig, "{image: {imageType: centos-9_a.b}}", nil},
		{object.ProxyConfig, "{}", []string{"W spec: is empty: it has no effect"}},
		{object.ProxyConfig, "{selector: {}, concurrency: 1}", []string{"W spec.selector: is empty: the object is for all Pods"}},
		{object.ProxyConfig, "{selector: {matchLabels: {app: -x}}, concurrency: -1, image: {imageType: 'a b'}}", []string{
			"E spec.selector.matchLabels[app]: invalid label value", "E spec.concurrency: invalid number -1: want 0", "E spec.image.imageType: invalid image type \"a b\""}},
		{object.ProxyConfig, "{environmentVariables: {'': a, 'a=b': c, \"\u00e4\": x, Z: \"a\\0b\", LONG: '" + strings.Repeat("x", 2049) + "'}}", []string{
			"E spec.environmentVariables[]: invalid name of a variable", "E spec.environmentVariables[LONG]: 2049 bytes: want at most 2048",
			"E spec.environmentVariables[Z]: invalid value: a variable cannot have a zero byte", "E spec.environmentVariables[a=b]: invalid name", "E spec.environmentVariables[\u00e4]: invalid name"}},
	})
}

// The number of verdicts is limited, but an error beyond the limit still rejects the object.
func TestManyVerdicts(t *testing.T) {
	body := "{hosts: [a], gateways: [mesh], http: [{route: [{destination: {host: a}}], match: ["
	for range 60 {
		body += "{headers: {'@request.auth.claims.x': {}}},"
	}
	got := config.Validate(parse(t, object.VirtualService, "spec: "+body+"{port: 99999}]}]}"))
	if len(got) != 50 || !config.Rejected(got) {
		t.Errorf("%d verdicts, rejected %v", len(got), config.Rejected(got))
	}
}

// server is a Gateway with one server of TLS.
func server(tls string) string {
	return "{servers: [{port: {number: 443, protocol: HTTPS}, hosts: ['*'], tls: {" + tls + "}}]}"
}
