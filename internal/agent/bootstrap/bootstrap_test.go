package bootstrap

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/envoytest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// sidecar is the Spec of an ordinary sidecar, after change.
func sidecar(change func(*spec.Spec)) *spec.Spec {
	ip := netip.MustParseAddr("10.99.0.2")
	s := &spec.Spec{
		Node: spec.Node{
			ID:       mesh.NodeID{Role: mesh.Sidecar, IP: ip, ID: "reviews-1.bookshop", Domain: "bookshop.svc.cluster.local"},
			Cluster:  "reviews.bookshop",
			Metadata: map[string]any{"NAME": "reviews-1", "NAMESPACE": "bookshop", "INSTANCE_IPS": "10.99.0.2"},
			IPs:      []netip.Addr{ip},
		},
		Config:       mesh.DefaultProxyConfig(),
		Paths:        spec.Paths{XDSSocket: "./etc/istio/proxy/XDS", SDSSocket: "./var/run/secrets/workload-spiffe-uds/socket", FilesSocket: "./var/run/secrets/credential-uds/files-socket"},
		Certificates: spec.Certificates{Own: true},
		Envoy:        spec.Envoy{AdminPort: mesh.AdminPort, HealthPort: mesh.HealthPort, PrometheusPort: mesh.PrometheusPort},
		Status:       spec.Status{Port: mesh.StatusPort},
	}
	if change != nil {
		change(s)
	}
	return s
}

var cases = []struct {
	name   string
	change func(*spec.Spec)
}{
	{"sidecar", nil},
	{"ipv6", func(s *spec.Spec) { s.Node.IPs = []netip.Addr{netip.MustParseAddr("fd00::2")} }},
	{"dual-stack", func(s *spec.Spec) {
		s.Node.IPs = append(s.Node.IPs, netip.MustParseAddr("fd00::2"))
		s.Envoy.DualStack = true
	}},
	{"switches", func(s *spec.Spec) {
		s.Envoy.StateOfTheWorld, s.Envoy.LogJSON, s.Envoy.DeferredClusters, s.Envoy.OutlierLog = true, true, true, "/dev/stdout"
		s.Lifecycle.ExitOnZero = true
		s.Config.StatsCompression = wrapperspb.Bool(false)
		s.Node.Locality = mesh.Locality{Region: "r", Zone: "z", Subzone: "s"}
		s.Envoy.HealthPort, s.Envoy.PrometheusPort = 16021, 16090
		s.Envoy.AdminPort, s.Status.Port = 16000, 16020
	}},
	{"stats", func(s *spec.Spec) {
		s.Config.ExtraStatTags = []string{"request.id", "tag"}
		s.Config.ProxyStatsMatcher = &meshv1.ProxyConfig_ProxyStatsMatcher{
			InclusionPrefixes: []string{"server", "cluster.outbound"}, InclusionSuffixes: []string{"cx_total"}, InclusionRegexps: []string{`http\..*{pod_ip}.*`},
		}
		s.Node.Annotations = map[string]string{
			noteTags: "mine", notePrefixes: "listener.{pod_ip}, tcp", noteSuffixes: "upstream_rq", noteRegexps: "a.*b",
			noteBuckets: `{"istio": [1, 5.5], "cluster.x": [10]}`, noteFlush: "10s", noteEviction: "30s",
		}
		s.Node.IPs = append(s.Node.IPs, netip.MustParseAddr("10.99.0.3"))
	}},
	{"collectors", func(s *spec.Spec) {
		s.Config.Tracing = &meshv1.Tracing{
			Tracer:      &meshv1.Tracing_Zipkin_{Zipkin: &meshv1.Tracing_Zipkin{Address: "zipkin.example:9411"}},
			TlsSettings: &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_ISTIO_MUTUAL, Sni: "zipkin.example", SubjectAltNames: []string{"spiffe://cluster.local/ns/tracing/sa/zipkin"}},
		}
		s.Config.StatsdUdpAddress = "10.0.0.9:8125"
		s.Config.EnvoyMetricsService = &meshv1.RemoteService{Address: "[fd00::9]:15000", TcpKeepalive: &networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive{
			Probes: 3, Time: durationpb.New(10 * time.Second), Interval: durationpb.New(10 * time.Second),
		}}
		s.Config.EnvoyAccessLogService = &meshv1.RemoteService{Address: "als.example:443", TlsSettings: &networking.ClientTLSSettings{
			Mode: networking.ClientTLSSettings_SIMPLE, CaCertificates: "/etc/ssl/certs/ca-certificates.crt", Sni: "als.example", SubjectAltNames: []string{"als.example"},
		}}
	}},
	{"datadog", func(s *spec.Spec) {
		s.Config.Tracing = &meshv1.Tracing{Tracer: &meshv1.Tracing_Datadog_{Datadog: &meshv1.Tracing_Datadog{Address: "10.0.0.8:8126"}}}
		s.Config.EnvoyAccessLogService = &meshv1.RemoteService{Address: "10.0.0.7:1", TlsSettings: &networking.ClientTLSSettings{
			Mode: networking.ClientTLSSettings_SIMPLE, InsecureSkipVerify: wrapperspb.Bool(true),
		}}
	}},
	{"lightstep", func(s *spec.Spec) {
		s.Config.Tracing = &meshv1.Tracing{
			Tracer:      &meshv1.Tracing_Lightstep_{Lightstep: &meshv1.Tracing_Lightstep{Address: "collector.example:443", AccessToken: "t"}},
			TlsSettings: &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE, CaCertificates: "/etc/ssl/certs/ca-certificates.crt", Sni: "collector.example", SubjectAltNames: []string{"collector.example"}},
		}
	}},
	{"legacy-tags", func(s *spec.Spec) { s.Envoy.UndelimitedTags = true }},
	{"secure-metrics", func(s *spec.Spec) {
		s.Envoy.SecureMetricsPort, s.Envoy.SecureMergedMetricsPort, s.Envoy.HealthProxyProtocol = 15091, 15092, true
	}},
	{"self-discovery", func(s *spec.Spec) {
		s.Envoy.SelfDiscovery = true
		s.Envoy.LoadStats = `{"apiType": "GRPC", "transportApiVersion": "V3", "grpcServices": [{"envoyGrpc": {"clusterName": "xds-grpc"}}]}`
	}},
	{"fips-140-2", func(s *spec.Spec) { limited(s, pki.FIPS1402) }},
	{"fips-140-3", func(s *spec.Spec) { limited(s, pki.FIPS1403) }},
	{"pqc", func(s *spec.Spec) { limited(s, pki.PQC) }},
	{"external", func(s *spec.Spec) { s.Certificates.Own = false }},
	{"runtime", func(s *spec.Spec) {
		s.Config.RuntimeValues = map[string]string{
			"re2.max_program_size.error_level": "", "envoy.reloadable_features.fixed_heap_use_allocated": "false", "a.b": "text",
			connectionsKey: "9000",
		}
	}},
}

// limited has a listener and a client with TLS, with a policy.
func limited(s *spec.Spec, p pki.TLSPolicy) {
	s.TLS, s.Envoy.SecureMetricsPort = p, 15091
	s.Config.EnvoyAccessLogService = &meshv1.RemoteService{Address: "10.0.0.7:1", TlsSettings: &networking.ClientTLSSettings{
		Mode: networking.ClientTLSSettings_SIMPLE, CaCertificates: "/etc/ssl/certs/ca-certificates.crt",
	}}
}

func built(t *testing.T, change func(*spec.Spec)) []byte {
	t.Helper()
	b, err := Build(sidecar(change))
	if err != nil {
		t.Fatal(err)
	}
	out, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestEncodeIsProtobufs compares Encode with protojson.
func TestEncodeIsProtobufs(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b, err := Build(sidecar(c.change))
			if err != nil {
				t.Fatal(err)
			}
			ours, err := b.Encode()
			if err != nil {
				t.Fatal(err)
			}
			whole, err := b.Complete()
			if err != nil {
				t.Fatal(err)
			}
			theirs, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(whole)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tree(t, theirs), tree(t, ours)); diff != "" {
				t.Errorf("-library +ours:\n%s", diff)
			}
		})
	}
}

func tree(t *testing.T, text []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestGoldens(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join("testdata", c.name+".json")
			got := built(t, c.change)
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s (-want +got), -update rewrites it:\n%s", file, diff)
			}
		})
	}
}

// TestEnvoyAccepts checks that stock Envoy accepts every golden file without a deprecation warning.
func TestEnvoyAccepts(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			golden, err := os.ReadFile(filepath.Join("testdata", c.name+".json"))
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "envoy-rev.json")
			if err := os.WriteFile(file, golden, 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), envoytest.Binary(t), "--mode", "validate", "-c", file, "-l", "warning").CombinedOutput()
			if err != nil {
				t.Fatalf("envoy refused it: %v\n%s", err, out)
			}
			for _, line := range strings.Split(string(out), "\n") {
				// A control plane that traces without naming a provider relies on the tracer of the bootstrap.
				if strings.Contains(line, "deprecated") && !strings.Contains(line, "Bootstrap.tracing") {
					t.Errorf("envoy warns: %s", line)
				}
			}
		})
	}
}

func TestSameBytes(t *testing.T) {
	first := built(t, cases[4].change)
	for range 5 {
		if !bytes.Equal(first, built(t, cases[4].change)) {
			t.Fatal("equal input, different bytes")
		}
	}
}

func TestConnectionLimit(t *testing.T) {
	settings := func(c *meshv1.ProxyConfig) {
		c.ConnectionSettings = &meshv1.ProxyConfig_ConnectionSettings{GlobalDownstreamConnectionLimit: wrapperspb.Int32(1)}
	}
	runtime := func(c *meshv1.ProxyConfig) { c.RuntimeValues = map[string]string{connectionsKey: "3"} }
	meta := func(s *spec.Spec) { s.Node.Metadata["GLOBAL_DOWNSTREAM_MAX_CONNECTIONS"] = "2" }
	tests := []struct {
		name, want string
		change     func(*spec.Spec)
	}{
		{"none", "2147483647", nil},
		{"runtime", "3", func(s *spec.Spec) { runtime(s.Config) }},
		{"metadata beats it", "2", func(s *spec.Spec) { runtime(s.Config); meta(s) }},
		{"settings beat both", "1", func(s *spec.Spec) { runtime(s.Config); meta(s); settings(s.Config) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := string(built(t, tt.change)); !strings.Contains(got, `"max_active_downstream_connections": "`+tt.want+`"`) {
				t.Errorf("limit is not %s", tt.want)
			}
		})
	}
}

func TestMistakesAndIgnored(t *testing.T) {
	for note, value := range map[string]string{
		noteBuckets: `{"a": [0]}`, noteFlush: "soon", noteEviction: "-1s",
	} {
		_, err := Build(sidecar(func(s *spec.Spec) { s.Node.Annotations = map[string]string{note: value} }))
		if err == nil || !strings.Contains(err.Error(), note) {
			t.Errorf("%s %q: error %v, want one that names the annotation", note, value, err)
		}
	}
	if _, err := Build(sidecar(func(s *spec.Spec) { s.Envoy.LoadStats = `{"apiTipe": 1}` })); err == nil || !strings.Contains(err.Error(), "ISTIO_META_LOAD_STATS_CONFIG_JSON") {
		t.Errorf("load statistics: error %v, want one that names the variable", err)
	}
	b, err := Build(sidecar(func(s *spec.Spec) { s.Node.Annotations = map[string]string{noteEviction: "7s"} }))
	if err != nil || len(b.Warnings) != 1 || !strings.Contains(b.Warnings[0], noteEviction) {
		t.Errorf("warnings %q (%v), want one about the eviction interval", b.Warnings, err)
	}
}
