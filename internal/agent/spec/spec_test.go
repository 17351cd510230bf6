package spec

import (
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// testInput is an Input with the contents of its files.
type testInput struct {
	Input
	MeshFile, Labels, Annotations, ConfigFile, Override []byte
}

// files returns the Input with a ReadFile that returns these contents.
func (in *testInput) files() Input {
	if in.ConfigFile != nil {
		in.Env["PROXY_CONFIG_FILE"] = "proxy.yaml"
	}
	files := map[string][]byte{
		"./etc/istio/config/mesh": in.MeshFile, labelsFile: in.Labels, annotationsFile: in.Annotations, "proxy.yaml": in.ConfigFile, "override.yaml": in.Override,
	}
	in.ReadFile = func(path string) ([]byte, error) {
		if files[path] == nil {
			return nil, fmt.Errorf("open %s: %w", path, fs.ErrNotExist)
		}
		return files[path], nil
	}
	return in.Input
}

// pod is the input of an ordinary Pod, after change.
func pod(change func(*testInput)) Input {
	in := testInput{Input: Input{
		Role: mesh.Sidecar,
		Host: Host{Hostname: "host", Interfaces: []Interface{
			{Name: "lo", Addrs: addrs("127.0.0.1", "::1")},
			{Name: "eth0", Addrs: addrs("10.99.0.2", "fe80::1", "fd00::2")},
			{Name: "eth1", Addrs: addrs("192.168.7.7")},
		}},
		Env: map[string]string{
			"POD_NAME": "reviews-1", "POD_NAMESPACE": "bookshop", "SERVICE_ACCOUNT": "reviews",
			"INSTANCE_IP": "10.99.0.2", "ISTIO_META_CLUSTER_ID": "Kubernetes",
		},
	}}
	if change != nil {
		change(&in)
	}
	return in.files()
}

func addrs(s ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range s {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func build(t *testing.T, change func(*testInput)) *Spec {
	t.Helper()
	s, err := Build(pod(change))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestIdentity(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{nil, "spiffe://cluster.local/ns/bookshop/sa/reviews"},
		{map[string]string{"TRUST_DOMAIN": "a.example"}, "spiffe://a.example/ns/bookshop/sa/reviews"},
		{map[string]string{"SERVICE_ACCOUNT": ""}, "spiffe://cluster.local/ns/bookshop/sa/default"},
	} {
		s := build(t, func(in *testInput) {
			for k, v := range c.env {
				in.Env[k] = v
			}
		})
		if got := s.Node.Identity.SPIFFE(); got != c.want {
			t.Errorf("%v: %s, want %s", c.env, got, c.want)
		}
	}
}

func TestNodeID(t *testing.T) {
	tests := []struct {
		name, want string
		change     func(*testInput)
	}{
		{"pod", "sidecar~10.99.0.2~reviews-1.bookshop~bookshop.svc.cluster.local", nil},
		{"domain flag", "sidecar~10.99.0.2~reviews-1.bookshop~x.y", func(in *testInput) { in.Flags = map[string]string{"domain": "x.y"} }},
		{"router", "router~10.99.0.2~reviews-1.bookshop~bookshop.svc.cluster.local", func(in *testInput) { in.Role = mesh.Router }},
		{"empty environment", "sidecar~10.99.0.2~host.default~default.svc.cluster.local", func(in *testInput) { in.Env = nil }},
		{"from a list", "sidecar~fd00::9~reviews-1.bookshop~bookshop.svc.cluster.local", func(in *testInput) { in.Env["INSTANCE_IP"] = "fd00::9,10.0.0.9" }},
		{"name by proxyMetadata", "sidecar~10.99.0.2~x.bookshop~bookshop.svc.cluster.local", func(in *testInput) {
			delete(in.Env, "POD_NAME")
			in.Env["PROXY_CONFIG"] = `{"proxyMetadata": {"POD_NAME": "x", "POD_NAMESPACE": "the environment wins"}}`
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := build(t, tt.change)
			if got := s.Node.ID.String(); got != tt.want {
				t.Errorf("node id %q, want %q", got, tt.want)
			}
			back, err := mesh.DecodeNodeID(s.Node.ID.String())
			if err != nil || back != s.Node.ID {
				t.Errorf("decoded %v (%v), want %v", back, err, s.Node.ID)
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	s := build(t, nil)
	if got := s.Node.Metadata["INSTANCE_IPS"]; got != "10.99.0.2,fd00::2,192.168.7.7" {
		t.Errorf("INSTANCE_IPS %q: loopback and link-local must not be in it, INSTANCE_IP first and once", got)
	}
	s = build(t, func(in *testInput) {
		in.Annotations = []byte("traffic.sidecar.istio.io/excludeInterfaces=\"eth1,eth2\"\n")
	})
	if got := s.Node.Metadata["INSTANCE_IPS"]; got != "10.99.0.2,fd00::2" {
		t.Errorf("INSTANCE_IPS %q, want none of the excluded interface's", got)
	}
}

func TestMetadata(t *testing.T) {
	s := build(t, func(in *testInput) {
		in.Labels = []byte("app=\"reviews\"\nversion=\"v\\\"1\\\"\"\n\n")
		in.Annotations = []byte(`a/b="c"` + "\n" + lastApplied + `="{}"`)
		for k, v := range map[string]string{
			"ISTIO_META_DNS_CAPTURE": "1", "ISTIO_META_FREE": "as it is", "ISTIO_META_POD_PORTS": `[{"containerPort":80}]`,
			"ISTIO_METAJSON_LABELS": `{"version":"v2","n":3}`, "ISTIO_METAJSON_STUFF": `{"DEPTH":{"a":[1]}}`,
			"ENVOY_STATUS_PORT": "16021", "ISTIO_META_MESH_ID": "m",
		} {
			in.Env[k] = v
		}
		in.Flags = map[string]string{"outlierLogPath": "/dev/stdout", "stsPort": "15463"}
	})
	config := s.Node.Metadata["PROXY_CONFIG"].(map[string]any)
	if config["drainDuration"] != "45s" || config["discoveryAddress"] != "istiod.istio-system.svc:15012" {
		t.Errorf("PROXY_CONFIG %v, want the whole effective configuration", config)
	}
	delete(s.Node.Metadata, "PROXY_CONFIG")
	want := map[string]any{
		"WORKLOAD_FACTS": "reviews-1;bookshop;reviews;v2;Kubernetes;reviews;v2",
		"NAME":           "reviews-1", "NAMESPACE": "bookshop", "SERVICE_ACCOUNT": "reviews", "CLUSTER_ID": "Kubernetes",
		"INSTANCE_IPS": "10.99.0.2,fd00::2,192.168.7.7", "PILOT_SAN": []any{"istiod.istio-system.svc"},
		"LABELS":        map[string]any{"app": "reviews", "version": "v2", "n": "3"},
		"STATIC_LABELS": map[string]any{"version": "v2", "n": 3.0},
		"ANNOTATIONS":   map[string]any{"a/b": "c"},
		"DNS_CAPTURE":   "true", "FREE": "as it is", "POD_PORTS": `[{"containerPort":80}]`, "DEPTH": map[string]any{"a": []any{1.0}},
		"ENVOY_STATUS_PORT": 16021.0, "ENVOY_PROMETHEUS_PORT": 15090.0, "MESH_ID": "m",
		"OUTLIER_LOG_PATH": "/dev/stdout", "STS_PORT": "15463", "ISTIO_VERSION": ContractVersion,
		"METADATA_DISCOVERY": "false", "ENVOY_SKIP_DEPRECATED_LOGS": "true", "WORKLOAD_IDENTITY_SOCKET_FILE": "socket",
		"VIRTUAL_HOST_DISCOVERY": "true",
	}
	if diff := cmp.Diff(want, s.Node.Metadata); diff != "" {
		t.Errorf("metadata (-want +got):\n%s", diff)
	}
	m, err := mesh.DecodeMetadata(s.Node.Metadata)
	if err != nil || !m.DNSCapture || m.Labels["version"] != "v2" || len(m.InstanceIPs) != 3 {
		t.Errorf("the control plane reads %+v (%v)", m, err)
	}
}

// Envoy takes virtual hosts as resources of their own over delta xDS only.
func TestVirtualHostDiscoveryIsForDeltaOnly(t *testing.T) {
	for _, tt := range []struct {
		env  map[string]string
		want bool
	}{
		{nil, true},
		{map[string]string{"ISTIO_DELTA_XDS": "false"}, false},
		{map[string]string{"ISTIO_META_VIRTUAL_HOST_DISCOVERY": "0"}, false},
		{map[string]string{"ISTIO_META_VIRTUAL_HOST_DISCOVERY": "true", "ISTIO_DELTA_XDS": "false"}, false},
	} {
		s := build(t, func(in *testInput) { maps.Copy(in.Env, tt.env) })
		m, err := mesh.DecodeMetadata(s.Node.Metadata)
		if err != nil || m.VirtualHosts != tt.want {
			t.Errorf("%v: the control plane reads %v (%v), want %v", tt.env, m.VirtualHosts, err, tt.want)
		}
	}
}

func TestPrecedence(t *testing.T) {
	all := func(in *testInput) {
		in.MeshFile = []byte("trustDomain: x\ndefaultConfig:\n  discoveryAddress: mesh:1\n  concurrency: 1\n  proxyMetadata: {A: mesh, B: mesh}\n  futureField: {x: 1}\n  drainDuration: 7s\n")
		in.Env["PROXY_CONFIG"] = "discoveryAddress: env:1\nproxy_metadata: {B: env, C: env}\nconcurrency: 0\nstatusPort: 0\n"
		in.Annotations = []byte(`proxy.istio.io/config="discoveryAddress: note:1\nproxyMetadata: {C: note}\n"`)
	}
	s := build(t, all)
	want := mesh.DefaultProxyConfig()
	want.DiscoveryAddress = "note:1"
	want.Concurrency = wrapperspb.Int32(0)
	want.StatusPort = 0 // replaced although it is the zero value
	want.DrainDuration.Seconds = 7
	want.ProxyMetadata = map[string]string{"A": "mesh", "B": "env", "C": "note"}
	same(t, s.Config, want)
	if got := len(s.ConfigSources); got != 4 {
		t.Errorf("sources %q, want the four that said something", s.ConfigSources)
	}

	s = build(t, func(in *testInput) {
		all(in)
		in.Annotations = append(in.Annotations, "\nsidecar.istio.io/discoveryAddress=\"single:1\"\nstatus.sidecar.istio.io/port=\"15999\""...)
		in.Flags = map[string]string{"serviceCluster": "other", "concurrency": "3"}
	})
	want.DiscoveryAddress, want.StatusPort = "single:1", 15999
	want.ClusterName = &meshv1.ProxyConfig_ServiceCluster{ServiceCluster: "other"}
	want.Concurrency = wrapperspb.Int32(3)
	same(t, s.Config, want)
	if s.Node.Cluster != "other" {
		t.Errorf("cluster %q, want the flag's", s.Node.Cluster)
	}
}

// Istio's parser takes durations in Go's notation as well, at every depth.
func TestDurationsInTheNotationOfGo(t *testing.T) {
	s := build(t, func(in *testInput) {
		in.MeshFile = []byte("defaultConfig: {drainDuration: 1m30s, terminationDrainDuration: 5m}")
		in.Env["PROXY_CONFIG"] = "{privateKeyProvider: {qat: {pollDelay: 10ms}}, file_flush_interval: 0.5s, samples: [1m], envoyMetricsService: {address: 'm:1', tcpKeepalive: {time: 1h}}}"
	})
	for got, want := range map[*durationpb.Duration]time.Duration{
		s.Config.GetDrainDuration(): 90 * time.Second, s.Config.GetTerminationDrainDuration(): 5 * time.Minute, s.Config.GetFileFlushInterval(): time.Second / 2,
		s.Config.GetPrivateKeyProvider().GetQat().GetPollDelay(): 10 * time.Millisecond, s.Config.GetEnvoyMetricsService().GetTcpKeepalive().GetTime(): time.Hour,
	} {
		if got.AsDuration() != want {
			t.Errorf("%s, want %s", got.AsDuration(), want)
		}
	}
	if got := strings.Join(s.Warnings, "; "); len(s.Warnings) != 1 || !strings.Contains(got, `unknown field "samples" has no effect`) {
		t.Errorf("warnings %s", got)
	}
}

func same(t *testing.T, got, want *meshv1.ProxyConfig) {
	t.Helper()
	text := func(c *meshv1.ProxyConfig) string {
		return strings.ReplaceAll(protojson.MarshalOptions{Multiline: true}.Format(c), ":  ", ": ")
	}
	if diff := cmp.Diff(text(want), text(got)); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
}

func TestConcurrency(t *testing.T) {
	tests := []struct {
		name, config, limit string
		flag                string
		want                string // "" means Envoy's own choice
		warns               bool
	}{
		{"nothing", "", "", "", "", false},
		{"limit", "", "2", "", "2", false},
		{"part of a core", "", "1.5", "", "2", false},
		{"configuration beats the limit", "concurrency: 4", "2", "", "4", false},
		{"flag beats both", "concurrency: 4", "2", "5", "5", false},
		{"0 is every CPU, with a warning", "concurrency: 0", "2", "", "0", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := build(t, func(in *testInput) {
				in.Env["PROXY_CONFIG"], in.Env["ISTIO_CPU_LIMIT"] = tt.config, tt.limit
				if tt.flag != "" {
					in.Flags = map[string]string{"concurrency": tt.flag}
				}
			})
			got := ""
			if c := s.Config.GetConcurrency(); c != nil {
				got = mesh.Text(float64(c.GetValue()))
			}
			if got != tt.want || (len(s.Warnings) > 0) != tt.warns {
				t.Errorf("concurrency %q, warnings %q; want %q, %v", got, s.Warnings, tt.want, tt.warns)
			}
		})
	}
}

func TestClusterAndLocality(t *testing.T) {
	tests := []struct{ name, labels, config, cluster, locality string }{
		{"nothing", "", "", "istio-proxy.bookshop", ""},
		{"app", `app="a"`, "", "a.bookshop", ""},
		{"configured", `app="a"`, "serviceCluster: custom", "custom", ""},
		{"canonical", `service.istio.io/canonical-name="c"`, "tracingServiceName: CANONICAL_NAME_ONLY", "c", ""},
		{"canonical and namespace", `app="a"`, "tracingServiceName: CANONICAL_NAME_AND_NAMESPACE", "a.bookshop", ""},
		{"locality", `topology.istio.io/locality="r.z.s"`, "", "istio-proxy.bookshop", "r/z/s"},
		{"older locality", `istio-locality="r.z"`, "", "istio-proxy.bookshop", "r/z"},
		{"by parts", `topology.kubernetes.io/region="r"`, "", "istio-proxy.bookshop", "r"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := build(t, func(in *testInput) { in.Labels, in.Env["PROXY_CONFIG"] = []byte(tt.labels), tt.config })
			if s.Node.Cluster != tt.cluster || s.Node.Locality.String() != tt.locality {
				t.Errorf("cluster %q, locality %q; want %q, %q", s.Node.Cluster, s.Node.Locality, tt.cluster, tt.locality)
			}
		})
	}
}

// TestServiceClusterByFlag checks that the flag overrides the labels even with the default's name.
func TestServiceClusterByFlag(t *testing.T) {
	s := build(t, func(in *testInput) {
		in.Labels, in.Flags = []byte(`app="a"`), map[string]string{"serviceCluster": "istio-proxy"}
	})
	if s.Node.Cluster != "istio-proxy" {
		t.Errorf("cluster %q, want the flag's", s.Node.Cluster)
	}
}

func TestWarnings(t *testing.T) {
	s := build(t, func(in *testInput) {
		in.Env["ISTIO_META_DNS_CAPTURE"] = "true" // has an effect, so no warning
		in.Env["PROXY_CONFIG"] = "controlPlaneAuthPolicy: NONE"
	})
	if len(s.Warnings) != 1 {
		t.Errorf("%q, want one warning", s.Warnings)
	}
	if s = build(t, func(in *testInput) {
		in.Env["PROXY_CONFIG"] = "{controlPlaneAuthPolicy: NONE, discoveryAddress: 'd:15010'}"
	}); len(s.Warnings) != 0 {
		t.Errorf("%q, want none", s.Warnings)
	}
	// Istio's own template is what the agent builds.
	if s = build(t, func(in *testInput) {
		in.Env["PROXY_CONFIG"] = "proxyBootstrapTemplatePath: ./var/lib/istio/envoy/envoy_bootstrap_tmpl.json"
		in.Env["ISTIO_BOOTSTRAP"] = "/var/lib/istio/envoy/envoy_bootstrap_tmpl.json"
	}); len(s.Warnings) != 0 {
		t.Errorf("%q, want none", s.Warnings)
	}
	for tracer, want := range map[string]string{
		"openCensusAgent: {address: 'o:1'}": "tracing.openCensusAgent has no effect: Envoy has no tracer for it", "stackdriver: {}": "have a Telemetry select an opentelemetry provider",
		"lightstep: {address: 'l:1'}": "", "zipkin: {address: 'z:1'}": "", "datadog: {address: 'd:1'}": "",
	} {
		s = build(t, func(in *testInput) { in.Env["PROXY_CONFIG"] = "tracing: {" + tracer + "}" })
		if got := strings.Join(s.Warnings, "; "); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s: warnings %q, want %q", tracer, got, want)
		}
	}
	for name, value := range map[string]string{
		"HTTP_STRIP_FRAGMENT_FROM_PATH_UNSAFE_IF_DISABLED": "false",
		"ISTIO_META_METADATA_DISCOVERY":                    "true", "PEER_METADATA_DISCOVERY": "true",
	} {
		if s = build(t, func(in *testInput) { in.Env[name] = value }); len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], name+" has no effect") {
			t.Errorf("%s: warnings %q, want one that names it", name, s.Warnings)
		}
	}
}

// Envoy's own gRPC client of Google has its limits from a variable.
func TestCompliancePolicy(t *testing.T) {
	const variable = "GRPC_SSL_CIPHER_SUITES="
	s := build(t, func(in *testInput) { in.Env["COMPLIANCE_POLICY"] = "fips-140-2" })
	if i := slices.IndexFunc(s.Envoy.Env, func(v string) bool { return strings.HasPrefix(v, variable) }); s.TLS != pki.FIPS1402 || i < 0 || strings.Contains(s.Envoy.Env[i], "CHACHA") {
		t.Errorf("policy %q, environment %q", s.TLS, s.Envoy.Env)
	}
	s = build(t, func(in *testInput) {
		in.Env["COMPLIANCE_POLICY"], in.Env["GRPC_SSL_CIPHER_SUITES"] = "fips-140-3", "mine"
		in.Env["PROXY_CONFIG"] = "customConfigFile: /envoy.json"
	})
	if !slices.Contains(s.Envoy.Env, variable+"mine") || len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "customConfigFile") || s.Node.Metadata["COMPLIANCE_POLICY"] != "fips-140-3" {
		t.Errorf("environment %q, warnings %q", s.Envoy.Env, s.Warnings)
	}
}

func TestMistakes(t *testing.T) {
	tests := []struct {
		name, want string
		change     func(*testInput)
	}{
		{"YAML", "read proxy configuration from environment PROXY_CONFIG: ", func(in *testInput) { in.Env["PROXY_CONFIG"] = "{a: b: c" }},
		{"a list", "want a map of fields", func(in *testInput) { in.Env["PROXY_CONFIG"] = "[a]" }},
		{"wrong type", "drainDuration", func(in *testInput) { in.Env["PROXY_CONFIG"] = "drainDuration: soon" }},
		{"mesh file", "read mesh configuration file ./etc/istio/config/mesh: ", func(in *testInput) { in.MeshFile = []byte("\t{") }},
		{"annotation", "from annotation proxy.istio.io/config", func(in *testInput) { in.Annotations = []byte(`proxy.istio.io/config="{"`) }},
		{"label line", "read pod labels ./etc/istio/pod/labels: line 2", func(in *testInput) { in.Labels = []byte("a=\"b\"\nnonsense") }},
		{"label quoting", "invalid value of a: want a quoted string", func(in *testInput) { in.Labels = []byte(`a="b`) }},
		{"status port", "status.sidecar.istio.io/port", func(in *testInput) { in.Annotations = []byte(`status.sidecar.istio.io/port="70000"`) }},
		{"instance IP", "INSTANCE_IP", func(in *testInput) { in.Env["INSTANCE_IP"] = "here" }},
		{"no address", "set INSTANCE_IP", func(in *testInput) { in.Env, in.Host.Interfaces = map[string]string{}, in.Host.Interfaces[:1] }},
		{"JSON metadata", "ISTIO_METAJSON_LABELS", func(in *testInput) { in.Env["ISTIO_METAJSON_LABELS"] = "x" }},
		{"port", "ENVOY_STATUS_PORT", func(in *testInput) { in.Env["ENVOY_STATUS_PORT"] = "0" }},
		{"CPU limit", "ISTIO_CPU_LIMIT", func(in *testInput) { in.Env["ISTIO_CPU_LIMIT"] = "many" }},
		{"template by flag", `flag --templateFile: template "/my.json": want none: the bootstrap is built; ISTIO_BOOTSTRAP_OVERRIDE merges`, func(in *testInput) { in.Flags = map[string]string{"templateFile": "/my.json"} }},
		{"template by variable", "environment ISTIO_BOOTSTRAP: template", func(in *testInput) { in.Env["ISTIO_BOOTSTRAP"] = "/my.json" }},
		{"template by configuration", `proxyBootstrapTemplatePath "/my.json": want none`, func(in *testInput) { in.Env["PROXY_CONFIG"] = "proxyBootstrapTemplatePath: /my.json" }},
		{"policy", "environment COMPLIANCE_POLICY: invalid value", func(in *testInput) { in.Env["COMPLIANCE_POLICY"] = "fips" }},
		{"token plugin", "flag --tokenManagerPlugin: invalid value", func(in *testInput) { in.Flags = map[string]string{"tokenManagerPlugin": "Other"} }},
		{"token audience", "want GKE_CLUSTER_URL, GCP_METADATA or STS_AUDIENCE", func(in *testInput) {
			in.Flags = map[string]string{"tokenManagerPlugin": "GoogleTokenExchange", "stsPort": "15463"}
		}},
		{"token endpoint", "environment STS_TOKEN_ENDPOINT: invalid URL", func(in *testInput) { in.Env["STS_TOKEN_ENDPOINT"] = "http://a/b" }},
		{"cloud metadata", "environment GCP_METADATA: invalid metadata", func(in *testInput) { in.Env["GCP_METADATA"] = "p|1" }},
		{"concurrency", "flag --concurrency", func(in *testInput) { in.Flags = map[string]string{"concurrency": "-1"} }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Build(pod(tt.change))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}
func TestMeshID(t *testing.T) {
	for _, tt := range []struct{ config, env, want string }{
		{"meshId: m1", "", "m1"},
		{"meshId: m1", "m2", "m2"},
	} {
		s := build(t, func(in *testInput) {
			in.Env["PROXY_CONFIG"] = tt.config
			if tt.env != "" {
				in.Env["ISTIO_META_MESH_ID"] = tt.env
			}
		})
		if got := s.Node.Metadata["MESH_ID"]; got != tt.want {
			t.Errorf("%s, ISTIO_META_MESH_ID=%q: MESH_ID %v, want %s", tt.config, tt.env, got, tt.want)
		}
	}
}
