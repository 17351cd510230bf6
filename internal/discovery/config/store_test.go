package config_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

func change(o object.Object) object.Change { return object.Change{Key: o.Key, Object: &o} }

func TestStore(t *testing.T) {
	s := config.NewStore()
	good := parse(t, object.Service, "spec: {ports: [{port: 80}]}")
	bad := parse(t, object.Service, "spec: {ports: [{port: 99999}]}")
	better := parse(t, object.Service, "spec: {ports: [{port: 81}]}")
	moved := good
	moved.Origin.Line = 40
	stored := good
	stored.Meta.ResourceVersion = "2"
	later := bad
	later.Origin.Line = 41
	gone := object.Change{Key: good.Key}
	for _, step := range []struct {
		name     string
		change   object.Change
		accepted int
		verdicts string
		port     uint32
	}{
		{"bad from the start", change(bad), 0, "f.yaml:1", 0},
		{"gone without ever being good", gone, 0, "", 0},
		{"good", change(good), 1, "", 80},
		{"the same at another line", change(moved), 0, "", 80},
		{"the same, stored again", change(stored), 0, "", 80},
		{"bad keeps the last good value", change(bad), 0, "f.yaml:1", 80},
		{"bad at another line", change(later), 0, "f.yaml:41", 80},
		{"good again", change(good), 0, "", 80},
		{"better", change(better), 1, "", 81},
		{"bad once more", change(bad), 0, "f.yaml:1", 81},
		{"gone while bad", gone, 1, "", 0},
	} {
		if got := s.Apply([]object.Change{step.change}); len(got) != step.accepted {
			t.Errorf("%s: accepted %v, want %d", step.name, got, step.accepted)
		}
		places := ""
		for _, v := range s.Verdicts() {
			places += v.Origin.String()
		}
		port := uint32(0)
		if o, ok := s.Get(good.Key); ok {
			port = o.Spec.(*object.ServiceSpec).Ports[0].Port
		}
		if places != step.verdicts || port != step.port {
			t.Errorf("%s: verdicts at %q, port %d; want %q, %d", step.name, places, port, step.verdicts, step.port)
		}
	}
	want := map[config.Events]uint64{{Kind: object.Service, Event: config.Added}: 1, {Kind: object.Service, Event: config.Updated}: 1, {Kind: object.Service, Event: config.Deleted}: 1}
	if diff := cmp.Diff(want, s.EventCounts()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func meshMap(namespace, text string) object.Object {
	return object.Object{Key: object.Key{Kind: object.ConfigMap, Namespace: namespace, Name: "istio"}, Spec: &object.ConfigMapSpec{Data: map[string]string{"mesh": text}}}
}

func TestStoreMeshConfig(t *testing.T) {
	s := config.NewStore()
	ask := func(domain string, changed bool) {
		t.Helper()
		if m := s.CurrentMesh(); m.TrustDomain != domain { // and reading it leaves the change to be reported
			t.Errorf("current trust domain %s, want %s", m.TrustDomain, domain)
		}
		if m, moved := s.MeshConfig(); m.TrustDomain != domain || moved != changed {
			t.Errorf("trust domain %s, changed %v; want %s, %v", m.TrustDomain, moved, domain, changed)
		}
	}
	ask("cluster.local", true)
	ask("cluster.local", false)
	s.Apply([]object.Change{change(meshMap("(file)", "trustDomain: file"))})
	ask("file", true)
	s.Apply([]object.Change{change(meshMap("istio-system", "trustDomain: real"))})
	ask("real", true)
	s.Apply([]object.Change{change(meshMap("istio-system", "trustDomain: [broken"))})
	ask("real", false)
	if vs := s.Verdicts(); len(vs) != 1 || vs[0].Field != "data.mesh" || vs[0].Severity != object.Error {
		t.Errorf("verdicts %v", vs)
	}
	s.Apply([]object.Change{{Key: meshMap("istio-system", "").Key}})
	ask("file", true)
	s.Apply([]object.Change{change(parse(t, object.Service, "spec: {ports: [{port: 80}]}"))})
	ask("file", false)
}

// Each revision has mesh configuration of its own, in the ConfigMap with its name, and does not look at that of others, valid or not.
func TestMeshConfigOfARevision(t *testing.T) {
	own := config.MeshConfigKey("istio-system", "canary")
	if own.Name != "istio-canary" || config.MeshConfigKey("istio-system", "default") != config.MeshConfigKey("istio-system", "") {
		t.Errorf("keys %v, %v", own, config.MeshConfigKey("istio-system", "default"))
	}
	of := func(name, text string) object.Object {
		m := meshMap("istio-system", text)
		m.Name = name
		return m
	}
	canary, other := config.NewStore(), config.NewStore()
	canary.SetMeshConfig(own)
	for _, s := range []*config.Store{canary, other} {
		s.Apply([]object.Change{change(of("istio", "connectTimeout: 1s")), change(of("istio-canary", "connectTimeout: 2s")), change(of("istio-third", "connectTimeout: ["))})
		if vs := s.Verdicts(); len(vs) != 0 {
			t.Errorf("verdicts %v", vs)
		}
	}
	if m, _ := canary.MeshConfig(); m.ConnectTimeout.AsDuration() != 2*time.Second {
		t.Errorf("the canary's is %v", m.ConnectTimeout.AsDuration())
	}
	if m, _ := other.MeshConfig(); m.ConnectTimeout.AsDuration() != time.Second {
		t.Errorf("the default one's is %v", m.ConnectTimeout.AsDuration())
	}
}

// A ConfigMap of another namespace is not mesh configuration, and its owner is told so in one line, whatever
// it contains.
func TestMeshConfigOfOtherNamespacesIsNotUsed(t *testing.T) {
	for _, own := range []string{"istio-system", "pilot"} {
		for _, text := range []string{"trustDomain: evil.example", "trustDomain: [", "proxyListenPort: 0\nnosuch: 1\nalso: 2"} {
			s := config.NewStore()
			s.SetMeshConfig(config.MeshConfigKey(own, ""))
			s.MeshConfig()
			s.Apply([]object.Change{change(meshMap("a-team", text))})
			if m, changed := s.MeshConfig(); m.TrustDomain != "cluster.local" || changed {
				t.Errorf("%q: trust domain %s, changed %v", text, m.TrustDomain, changed)
			}
			vs := s.Verdicts()
			if len(vs) != 1 || vs[0].Severity != object.Warning || vs[0].Field != "data.mesh" || !strings.Contains(vs[0].Text, "namespace "+own+" only") {
				t.Errorf("%q: verdicts %v, want one warning that names namespace %s", text, vs, own)
			}
			s.Apply([]object.Change{change(meshMap(own, "trustDomain: own.example"))})
			if m, _ := s.MeshConfig(); m.TrustDomain != "own.example" {
				t.Errorf("%q: trust domain %s, want that of namespace %s", text, m.TrustDomain, own)
			}
		}
	}
	s := config.NewStore()
	other := meshMap("a-team", "")
	other.Spec = &object.ConfigMapSpec{Data: map[string]string{"settings": "x"}}
	if s.Apply([]object.Change{change(other)}); len(s.Verdicts()) > 0 {
		t.Errorf("a ConfigMap without mesh configuration: %v", s.Verdicts())
	}
}

func TestMeshConfig(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		change     func(*meshv1.MeshConfig) // nil: rejected
		want       []string
	}{
		{"empty", "", func(*meshv1.MeshConfig) {}, nil},
		{"usual", "accessLogFile: /dev/stdout\nenableAutoMtls: false\noutboundTrafficPolicy: {mode: REGISTRY_ONLY}\ndefaultConfig:\n  discoveryAddress: x:15012\n  proxyMetadata: {A: b}\n", func(m *meshv1.MeshConfig) {
			m.AccessLogFile, m.EnableAutoMtls.Value = "/dev/stdout", false
			m.OutboundTrafficPolicy.Mode = meshv1.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY
			m.DefaultConfig.DiscoveryAddress, m.DefaultConfig.ProxyMetadata = "x:15012", map[string]string{"A": "b"}
		}, []string{"warning defaultConfig.discoveryAddress: not applied", "warning defaultConfig.proxyMetadata: not applied"}},
		{"no Service of gateways", "ingressService: ''\n", func(m *meshv1.MeshConfig) { m.IngressService = "" }, []string{"warning ingressService: not applied to statuses: the addresses of Nodes"}},
		{"no Service of gateways, and no Ingresses", "ingressService: ''\ningressControllerMode: 'OFF'\n", func(m *meshv1.MeshConfig) { m.IngressService, m.IngressControllerMode = "", meshv1.MeshConfig_OFF }, nil},
		{"not applied and unsafe", "outboundTrafficPolicy: {mode: ALLOW_ANY, tls: {mode: SIMPLE, credentialName: a}}\nserviceEntryVisibility: {applyToSidecars: true}", nil, []string{
			"error outboundTrafficPolicy.tls: mode ALLOW_ANY makes", "error outboundTrafficPolicy.tls.credentialName: sidecars", "warning serviceEntryVisibility: not applied", "error serviceEntryVisibility.applyToSidecars: not applied"}},
		{"names of unknown hosts", "outboundTrafficPolicy: {mode: ALLOW_ANY_DYNAMIC_DNS, tls: {mode: SIMPLE}}", func(m *meshv1.MeshConfig) {
			m.OutboundTrafficPolicy = &meshv1.MeshConfig_OutboundTrafficPolicy{
				Mode: meshv1.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY_DYNAMIC_DNS, Tls: &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE},
			}
		}, nil},
		{"zero is a value, null is not", "connectTimeout: null\ndefaultServiceExportTo: []\nenableTracing: false\naccessLogFile: ''", func(m *meshv1.MeshConfig) { m.DefaultServiceExportTo, m.EnableTracing = nil, false }, nil},
		{"unknown field", "trustDomian: x\ntrustDomain: y", func(m *meshv1.MeshConfig) { m.TrustDomain = "y" }, []string{"warning trustDomian: line 1: unknown field; did you mean trustDomain?"}},
		{"invalid YAML", "a: [", nil, []string{"error : line 1: the YAML does not parse"}},
		{"a list", "- a", nil, []string{"error : line 1: want a mapping, not a list"}},
		{"two documents", "trustDomain: x\n---\ntrustDomain: y", nil, []string{"error : line 3: a second document"}},
		{"wrong type", "trustDomain: x\nproxyListenPort: many", nil, []string{"error proxyListenPort: line 2: want a whole number"}},
		{"formats of logs", "accessLogFormat: '100% done'", nil, []string{"error accessLogFormat: invalid command at \"% done\": want one such as %PROTOCOL%"}},
		{"formats of logs in JSON", "accessLogEncoding: JSON\naccessLogFormat: '{\"a\": [{\"b\": \"%NOPE%\"}]}'", nil, []string{"error accessLogFormat[a][0][b]: unknown command %NOPE%"}},
		{"default providers", "defaultProviders: {accessLogging: [Envoy, none, prometheus], metrics: [Prometheus, none, envoy]}", func(m *meshv1.MeshConfig) {
			m.DefaultProviders = &meshv1.MeshConfig_DefaultProviders{AccessLogging: []string{"Envoy", "none", "prometheus"}, Metrics: []string{"Prometheus", "none", "envoy"}}
		}, []string{"warning defaultProviders.accessLogging[1]: no provider \"none\"", "warning defaultProviders.accessLogging[2]: provider \"prometheus\" is not one of access logs",
			"warning defaultProviders.metrics[1]: no provider \"none\"", "warning defaultProviders.metrics[2]: provider \"envoy\" is not one of metrics"}},
		{"default tracers", "defaultProviders: {tracing: [envoy, z]}", func(m *meshv1.MeshConfig) {
			m.DefaultProviders = &meshv1.MeshConfig_DefaultProviders{Tracing: []string{"envoy", "z"}}
		}, []string{"warning defaultProviders.tracing[0]: provider \"envoy\" is not one to which proxies send spans", "warning defaultProviders.tracing[1]: not applied: only the first"}},
		{"providers", "extensionProviders: [{name: a}, {name: A, envoyFileAccessLog: {path: \"/a\\nb\", logFormat: {labels: {x: '%X%'}}}}, {envoyHttpAls: {service: a//b, additionalRequestHeadersToLog: [':path', 'a b']}}," +
			"{name: c, envoyTcpAls: {service: ns/c.d, port: 70000}}, {name: e, envoyOtelAls: {service: e.f, port: 80, logFormat: {text: '%REQ%'}}}, {name: z, zipkin: {service: z.z, port: 80, path: x, timeout: 0s, headers: [{name: 'a b', value: '%X%'}, {name: a, envName: B}, {name: a, value: \"x\\ny\"}]}}," +
			"{name: s, skywalking: {port: 1}}, {name: o, opencensus: {}}," +
			"{name: d, datadog: {port: 1}}, {name: h, opentelemetry: {service: e.f, port: 1, http: {path: x, timeout: -1s}, grpc: {}, dynatraceSampler: {httpService: {service: a//b, port: 1, http: {path: x}}}}}," +
			"{name: g, opentelemetry: {service: e.f, port: 1, grpc: {timeout: 0s, initialMetadata: [{name: 'a b', value: v}]}, serviceAttributeEnrichment: OTEL_SEMANTIC_CONVENTIONS, dynatraceSampler: {tenant: a}}}," +
			"{name: l, lightstep: {port: 1, accessToken: \"%X%\\n\"}}]", nil, []string{
			"error extensionProviders[0]: has no provider", "error extensionProviders[1].envoyFileAccessLog.path: invalid path", "error extensionProviders[1].envoyFileAccessLog.logFormat.labels[x]: unknown command %X%",
			"error extensionProviders[2].name: is empty", "error extensionProviders[2].envoyHttpAls.service: invalid service \"a//b\"", "error extensionProviders[2].envoyHttpAls.port: invalid port 0",
			"error extensionProviders[2].envoyHttpAls.additionalRequestHeadersToLog[1]: invalid header name \"a b\"", "error extensionProviders[3].envoyTcpAls.port: invalid port 70000",
			"error extensionProviders[4].envoyOtelAls.logFormat.text: the command %REQ% needs a parameter",
			"error extensionProviders[5].zipkin.path: invalid path \"x\"", "error extensionProviders[5].zipkin.timeout: invalid timeout 0s", "error extensionProviders[5].zipkin.headers[0].name: invalid header name",
			"error extensionProviders[5].zipkin.headers[0].value: unknown command %X%", "error extensionProviders[5].zipkin.headers[2].value: invalid value", "error extensionProviders[6].skywalking.service: invalid service",
			"error extensionProviders[8].datadog.service: invalid service", "error extensionProviders[9].opentelemetry.http.path: invalid path", "error extensionProviders[9].opentelemetry.http.timeout: invalid timeout",
			"error extensionProviders[9].opentelemetry.grpc: cannot be set together with http", "error extensionProviders[9].opentelemetry.dynatraceSampler.tenant: is empty",
			"error extensionProviders[9].opentelemetry.dynatraceSampler.httpService.service: invalid service", "error extensionProviders[9].opentelemetry.dynatraceSampler.httpService.http.path: invalid path",
			"error extensionProviders[10].opentelemetry.grpc.timeout: invalid timeout", "error extensionProviders[10].opentelemetry.grpc.initialMetadata[0].name: invalid header name",
			"error extensionProviders[10].opentelemetry.dynatraceSampler.httpService: is missing",
			"error extensionProviders[11].lightstep.service: invalid service", "error extensionProviders[11].lightstep.accessToken: invalid token", "error extensionProviders[11].lightstep.accessToken: unknown command %X%", "error extensionProviders[1].name: duplicate \"A\"",
			"warning extensionProviders[5].zipkin.headers[1].envName: not applied", "warning extensionProviders[7].opencensus: not applied", "warning extensionProviders[10].opentelemetry.serviceAttributeEnrichment: not applied"}},
		{"parameters of TLS", "tlsDefaults: {ecdhCurves: [P-256, P-512, P-256], cipherSuites: ['[AES128-SHA|x]', 'AES128-SHA|AES256-SHA']}\nmeshMTLS: {ecdhCurves: [X25519], cipherSuites: ['[AES128-SHA|AES256-SHA]']}", nil, []string{
			"error tlsDefaults.cipherSuites[0]: invalid cipher suite", "error tlsDefaults.cipherSuites[1]: invalid cipher suite", "error tlsDefaults.ecdhCurves[1]: invalid curve \"P-512\"", "error tlsDefaults.ecdhCurves[2]: duplicate \"P-256\"",
		}},
		{"bad values", "proxyListenPort: 70000\nconnectTimeout: 0s\ntrustDomain: ''\nrootNamespace: a/b\nprotocolDetectionTimeout: -1s\ndefaultHttpRetryPolicy: {attempts: -1}\ndefaultServiceExportTo: ['*', x]", nil, []string{
			"error proxyListenPort: invalid port 70000", "error connectTimeout: invalid duration 0s", "error protocolDetectionTimeout: invalid duration -1s", "error trustDomain: invalid trust domain \"\"",
			"error rootNamespace: invalid namespace \"a/b\"", "error defaultServiceExportTo[0]: \"*\" must be the only entry", "error defaultHttpRetryPolicy.attempts: invalid number -1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, verdicts := config.MeshConfig(tt.text)
			for i, v := range verdicts {
				if got := fmt.Sprintf("%s %s: %s", v.Severity, v.Field, v.Text); i >= len(tt.want) || !strings.HasPrefix(got, tt.want[i]) {
					t.Errorf("verdict %q, want %q", got, tt.want)
				}
			}
			if len(verdicts) != len(tt.want) {
				t.Errorf("%d verdicts, want %d", len(verdicts), len(tt.want))
			}
			if tt.change == nil {
				if m != nil {
					t.Errorf("not rejected: %v", m)
				}
				return
			}
			want := mesh.DefaultMeshConfig()
			tt.change(want)
			if d := cmp.Diff(want, m, protocmp.Transform()); d != "" {
				t.Error(d)
			}
		})
	}
}

func FuzzMeshConfig(f *testing.F) {
	f.Add("trustDomain: x\ndefaultConfig: {proxyMetadata: {A: b}, drainDuration: 1m}\n")
	f.Add("localityLbSetting: {distribute: [{from: a, to: {b: 1}}]}\nextensionProviders: [{name: x, zipkin: {port: 1}}]")
	f.Fuzz(func(t *testing.T, text string) {
		m, verdicts := config.MeshConfig(text)
		if (m == nil) != config.Rejected(verdicts) {
			t.Errorf("message %v with verdicts %v", m, verdicts)
		}
	})
}

func FuzzValidate(f *testing.F) {
	text, err := os.ReadFile("../source/decode/testdata/mesh.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		f.Add(doc)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, o := range decode.Documents("f.yaml", []byte(text)).Objects {
			for _, v := range config.Validate(o) {
				if v.Key != o.Key || v.Field == "" || v.Text == "" {
					t.Errorf("verdict %+v on %s", v, o.Key)
				}
			}
		}
	})
}
