package spec

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

func TestDefaults(t *testing.T) {
	got := build(t, nil)
	config := got.Config.String()
	got.Node.Metadata, got.Config, got.Envoy.Env = nil, nil, nil // see TestMetadata, TestPrecedence
	want := &Spec{
		Node: Node{
			ID:      mesh.NodeID{Role: mesh.Sidecar, IP: addrs("10.99.0.2")[0], ID: "reviews-1.bookshop", Domain: "bookshop.svc.cluster.local"},
			Cluster: "istio-proxy.bookshop", IPs: addrs("10.99.0.2", "fd00::2", "192.168.7.7"),
			Identity: mesh.Identity{TrustDomain: "cluster.local", Namespace: "bookshop", ServiceAccount: "reviews"},
			Labels:   map[string]string{}, Annotations: map[string]string{},
		},
		ConfigSources: []string{"defaults"},
		Paths: Paths{
			ConfigDir: "./etc/istio/proxy", Bootstrap: "./etc/istio/proxy/envoy-rev.json", XDSSocket: "./etc/istio/proxy/XDS",
			SDSDir: "./var/run/secrets/workload-spiffe-uds", SDSSocket: "./var/run/secrets/workload-spiffe-uds/socket",
			FilesSocket: "./var/run/secrets/credential-uds/files-socket", ProxylessBootstrap: "./etc/istio/proxy/grpc-bootstrap.json",
		},
		Upstream: Upstream{
			Discovery: "istiod.istio-system.svc:15012", CA: []string{"istiod.istio-system.svc:15012"}, CertProvider: "istiod", ClusterID: "Kubernetes",
			TokenFile:        "./var/run/secrets/tokens/istio-token",
			DiscoveryHeaders: map[string]string{}, CAHeaders: map[string]string{}, Keepalive: 30 * time.Second, KeepaliveTimeout: 10 * time.Second, TrustBundle: true,
			Copy: &ConfigCopy{ConfigDir: "./etc/istio/proxy", MaxAge: 24 * time.Hour},
		},
		Certificates: Certificates{TTL: 24 * time.Hour, RenewalRatio: 0.5, Jitter: 0.01, Key: pki.ECDSAP256, OutputMode: 0o600, Own: true, CopyDir: "./etc/istio/proxy", CopyOptional: true},
		SDS:          SDS{Policy: PreferExternal, Mode: 0o666, UID: -1, GID: -1, Users: []uint32{0}, CRL: "./var/run/secrets/istio/crl/ca-crl.pem"},
		Envoy: Envoy{
			Binary: "/usr/local/bin/envoy", AdminPort: 15000, HealthPort: 15021, PrometheusPort: 15090,
			Arguments: Arguments{Drain: 45 * time.Second, LogLevel: "warning", HotRestart: true},
		},
		Lifecycle: Lifecycle{
			HotRestart: true, ParentShutdown: time.Minute, Drain: 5 * time.Second, MinDrain: 5 * time.Second, MaxDrain: 15 * time.Minute, AppGrace: 30 * time.Second,
		},
		DNS:    DNS{Address: "localhost:15053"},
		Status: Status{Port: 15020, Profiling: true},
		Probes: Probes{HTTP2: true},
		Wasm:   Wasm{Fetch: true, Dir: "/var/lib/istio/data", Expiry: 24 * time.Hour, PurgeInterval: time.Hour, Timeout: 15 * time.Second, Retries: 5, MaxSize: 256 << 20},
		Files:  []string{labelsFile, annotationsFile, "./etc/istio/config/mesh"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Spec{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if config != mesh.DefaultProxyConfig().String() {
		t.Errorf("configuration %s, want the defaults", config)
	}
}

func TestSettings(t *testing.T) {
	got := build(t, func(in *testInput) {
		in.Env["PROXY_CONFIG"] = "proxyMetadata: {ISTIO_DELTA_XDS: 'false', SECRET_TTL: 1h}\ndiscoveryAddress: d:1\n"
		for k, v := range map[string]string{
			"CA_ADDR": "ca:2, ca:3", "XDS_ROOT_CA": "SYSTEM", "CA_ROOT_CA": "/ca.pem", "PROV_CERT": "/prov", "OUTPUT_CERTS": "/out",
			"XDS_HEADER_A": "1", "CA_HEADER_B": "2", "ECC_SIGNATURE_ALGORITHM": "ECDSA", "ECC_CURVE": "P-384", "PKCS8_KEY": "true",
			"SECRET_GRACE_PERIOD_RATIO": "0.25", "MINIMUM_DRAIN_DURATION": "1s", "EXIT_ON_ZERO_ACTIVE_CONNECTIONS": "true",
			"HOST_IP": "10.0.0.1", "SECRET_TTL": "2h",
		} {
			in.Env[k] = v
		}
		in.Override, in.Env["ISTIO_BOOTSTRAP_OVERRIDE"] = []byte("a: $(HOST_IP)"), "override.yaml"
	})
	u, s, e := got.Upstream, got.Certificates, got.Envoy
	if u.Discovery != "d:1" || !slices.Equal(u.CA, []string{"ca:2", "ca:3"}) || u.DiscoveryRoot != "SYSTEM" || u.CARoot != "/ca.pem" ||
		u.DiscoveryHeaders["a"] != "1" || u.CAHeaders["b"] != "2" {
		t.Errorf("upstream %+v", u)
	}
	if s.TTL != 2*time.Hour || s.RenewalRatio != 0.25 || s.Key != pki.ECDSAP384 || !s.PKCS8 || s.ProvisionedDir != "/prov" || s.OutputDir != "/out" {
		t.Errorf("secrets %+v: the environment must win over proxyMetadata", s)
	}
	if !e.StateOfTheWorld || !got.Lifecycle.ExitOnZero || got.Lifecycle.MinDrain != time.Second || e.Arguments.BootstrapYAML != `{"a":"10.0.0.1"}` {
		t.Errorf("envoy %+v", e)
	}
}

// In a Pod other containers, which run as other users, read the files.
func TestModeOfCertificateFiles(t *testing.T) {
	got := build(t, func(in *testInput) {
		in.Env["OUTPUT_CERTS"], in.Env["KUBERNETES_SERVICE_HOST"] = "/out", "10.0.0.1"
	})
	if m := got.Certificates.OutputMode; m != 0o644 {
		t.Errorf("mode %o", m)
	}
}

func TestWhereTheCopyOfTheCertificateIs(t *testing.T) {
	for _, tt := range []struct {
		dir, key, wantDir string
		optional          bool
	}{
		{"", "", "./etc/istio/proxy", true}, {"", "/k", "./etc/istio/proxy", false},
		{"none", "", "", false}, {"/run/identity", "", "/run/identity", false}, {"/var/lib/identity", "/k", "/var/lib/identity", false},
	} {
		c := build(t, func(in *testInput) { in.Env["IDENTITY_COPY_DIR"], in.Env["IDENTITY_COPY_KEY_FILE"] = tt.dir, tt.key }).Certificates
		if c.CopyDir != tt.wantDir || c.CopyKeyFile != tt.key || c.CopyOptional != tt.optional {
			t.Errorf("folder %q, key %q: %+v", tt.dir, tt.key, c)
		}
	}
	if _, err := Build(pod(func(in *testInput) { in.Env["IDENTITY_COPY_DIR"], in.Env["IDENTITY_COPY_KEY_FILE"] = "none", "/k" })); err == nil || !strings.Contains(err.Error(), "IDENTITY_COPY_KEY_FILE") {
		t.Errorf("a key without a copy: %v", err)
	}
}

func TestConfigCopy(t *testing.T) {
	for _, tt := range []struct {
		dir, age string
		want     *ConfigCopy
	}{
		{"", "", &ConfigCopy{ConfigDir: "./etc/istio/proxy", MaxAge: 24 * time.Hour}},
		{"none", "", nil},
		{"/x", "1h", &ConfigCopy{Dir: "/x", ConfigDir: "./etc/istio/proxy", MaxAge: time.Hour}},
	} {
		got := build(t, func(in *testInput) { in.Env["XDS_COPY_DIR"], in.Env["XDS_COPY_MAX_AGE"] = tt.dir, tt.age }).Upstream.Copy
		if (got == nil) != (tt.want == nil) || got != nil && *got != *tt.want {
			t.Errorf("folder %q, age %q: %+v, want %+v", tt.dir, tt.age, got, tt.want)
		}
	}
	if _, err := Build(pod(func(in *testInput) { in.Env["XDS_COPY_MAX_AGE"] = "0s" })); err == nil || !strings.Contains(err.Error(), "want more than 0") {
		t.Errorf("a maximum age of 0: %v", err)
	}
}

func TestBootstrapFromDiscovery(t *testing.T) {
	for _, tt := range []struct {
		env   map[string]string
		ask   bool
		wait  time.Duration
		warns string
	}{
		{nil, false, 0, ""},
		{map[string]string{"BOOTSTRAP_XDS_AGENT": "true"}, true, time.Second, ""},
		{map[string]string{"BOOTSTRAP_XDS_AGENT": "true", "BOOTSTRAP_XDS_WAIT": "2s"}, true, 2 * time.Second, ""},
		{map[string]string{"PROXY_CONFIG": "proxyMetadata: {BOOTSTRAP_XDS_AGENT: 'true'}"}, true, time.Second, ""},
		{map[string]string{"BOOTSTRAP_XDS_AGENT": "true", "DISABLE_ENVOY": "true"}, false, 0, "BOOTSTRAP_XDS_AGENT has no effect with DISABLE_ENVOY"},
		{map[string]string{"BOOTSTRAP_XDS_AGENT": "true", "PROXY_CONFIG": "customConfigFile: x"}, false, 0, "BOOTSTRAP_XDS_AGENT has no effect with customConfigFile"},
	} {
		s := build(t, func(in *testInput) { maps.Copy(in.Env, tt.env) })
		if s.Upstream.Bootstrap != tt.ask || s.Upstream.BootstrapWait != tt.wait || (s.Node.Metadata[mesh.BootstrapKey] == "true") != tt.ask {
			t.Errorf("%v: asks %v, waits %s, metadata %v", tt.env, s.Upstream.Bootstrap, s.Upstream.BootstrapWait, s.Node.Metadata[mesh.BootstrapKey])
		}
		if warned := slices.ContainsFunc(s.Warnings, func(w string) bool { return strings.Contains(w, "BOOTSTRAP_XDS") }); warned != (tt.warns != "") || warned && !strings.Contains(strings.Join(s.Warnings, "\n"), tt.warns) {
			t.Errorf("%v: warnings %q", tt.env, s.Warnings)
		}
	}
	for _, wrong := range []string{"0s", "61s"} {
		if _, err := Build(pod(func(in *testInput) { in.Env["BOOTSTRAP_XDS_AGENT"], in.Env["BOOTSTRAP_XDS_WAIT"] = "true", wrong })); err == nil || !strings.Contains(err.Error(), "BOOTSTRAP_XDS_WAIT") {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}

func TestWhereTheTokenComesFrom(t *testing.T) {
	for _, tt := range []struct{ kind, server, want string }{
		{"", "", ""}, {"jwt", "x:1", ""}, {"GoogleComputeEngine", "", "169.254.169.254"}, {"googlecomputeengine", "x:1", "x:1"},
	} {
		u := build(t, func(in *testInput) {
			in.Env["CREDENTIAL_FETCHER_TYPE"], in.Env["GCE_METADATA_HOST"], in.Env["CREDENTIAL_TOKEN_FILE"] = tt.kind, tt.server, "/token"
		}).Upstream
		if u.MetadataServer != tt.want || u.TokenFile != "/token" {
			t.Errorf("%q, %q: metadata server %q, file %q", tt.kind, tt.server, u.MetadataServer, u.TokenFile)
		}
	}
}

func TestShortKeepaliveIsWarnedAbout(t *testing.T) {
	for v, want := range map[string]bool{"5s": true, "10s": false, "0": false, "": false} {
		s := build(t, func(in *testInput) { in.Env["GRPC_KEEPALIVE_INTERVAL"] = v })
		if warned := strings.Contains(strings.Join(s.Warnings, "\n"), "GRPC_KEEPALIVE_INTERVAL"); warned != want {
			t.Errorf("%q: warnings %v", v, s.Warnings)
		}
	}
}

func TestSettingsMistakes(t *testing.T) {
	for name, value := range map[string]string{
		"SECRET_TTL": "a day", "SECRET_GRACE_PERIOD_RATIO": "2", "PKCS8_KEY": "maybe", "DISABLE_ENVOY": "x",
		"PILOT_CERT_PROVIDER": "unknown", "WORKLOAD_RSA_KEY_SIZE": "12", "ECC_SIGNATURE_ALGORITHM": "DSA",
		"WORKLOAD_IDENTITY_SOCKET_FILE": "a/b", "ISTIO_DELTA_XDS": "2", "ISTIO_META_DNS_CAPTURE": "maybe", "DNS_FORWARD_TIMEOUT": "-1s", "CREDENTIAL_FETCHER_TYPE": "mock",
	} {
		_, err := Build(pod(func(in *testInput) { in.Env[name] = value }))
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=%s: error %v, want one that names the variable", name, value, err)
		}
	}
}

// TestServesDNS checks that DNS capture is read as strconv.ParseBool does, from the environment or
// proxyMetadata, for sidecars.
func TestServesDNS(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   func(*testInput)
		want bool
	}{
		{"default", func(*testInput) {}, false},
		{"captured", func(in *testInput) { in.Env["ISTIO_META_DNS_CAPTURE"] = "True" }, true},
		{"a number", func(in *testInput) { in.Env["ISTIO_META_DNS_CAPTURE"] = "1" }, true},
		{"not captured", func(in *testInput) { in.Env["ISTIO_META_DNS_CAPTURE"] = "0" }, false},
		{"proxyMetadata", func(in *testInput) { in.Env["PROXY_CONFIG"] = "proxyMetadata: {ISTIO_META_DNS_CAPTURE: 'true'}" }, true},
		{"the environment wins", func(in *testInput) {
			in.Env["PROXY_CONFIG"], in.Env["ISTIO_META_DNS_CAPTURE"] = "proxyMetadata: {ISTIO_META_DNS_CAPTURE: 'true'}", "false"
		}, false},
		{"the rules that the agent keeps", func(in *testInput) { in.Capture.DNS = true }, true},
		{"a router", func(in *testInput) { in.Role, in.Env["ISTIO_META_DNS_CAPTURE"] = mesh.Router, "true" }, false},
		{"a router with ENABLE_DNS_SERVER", func(in *testInput) { in.Role, in.Env["ISTIO_META_ENABLE_DNS_SERVER"] = mesh.Router, "true" }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := build(t, tt.in); got.DNS.Serve != tt.want {
				t.Errorf("serves %v, want %v", got.DNS.Serve, tt.want)
			}
		})
	}
}

func TestOverride(t *testing.T) {
	for host, want := range map[string]string{"10.0.0.9": `{"a":"10.0.0.9:1"}`, "fd00::9": `{"a":"[fd00::9]:1"}`} {
		s := build(t, func(in *testInput) {
			in.Override = []byte("a: \"$(HOST_IP):1\"")
			in.Env["ISTIO_BOOTSTRAP_OVERRIDE"], in.Env["HOST_IP"] = "override.yaml", host
		})
		if got := s.Envoy.Arguments.BootstrapYAML; got != want {
			t.Errorf("%s: %s, want %s", host, got, want)
		}
	}
}

func TestJWTPolicy(t *testing.T) {
	for v, want := range map[string]int{"": 0, "third-party-jwt": 0, "first-party-jwt": 1, "none": 1} {
		s := build(t, func(in *testInput) { in.Env["JWT_POLICY"] = v })
		if len(s.Warnings) != want {
			t.Errorf("%q: warnings %q, want %d", v, s.Warnings, want)
		}
	}
}

// Every setting of the agent is read, except those that the command itself reads.
func TestEverySettingIsRead(t *testing.T) {
	byCommand := []string{"watchCapture", "GOMAXPROCS", "GOGC", "GOMEMLIMIT", "log_output_level", "log_target", "log_repeat_period"}
	_, set, err := decide(pod(func(in *testInput) {
		// These are read only in combination with another setting.
		in.Override, in.Env["ISTIO_BOOTSTRAP_OVERRIDE"], in.Env["ISTIO_CPU_LIMIT"] = []byte("{}"), "override.yaml", "1"
		in.Env["EXIT_ON_ZERO_ACTIVE_CONNECTIONS"] = "true"
	}))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range set.Unread() {
		if !slices.Contains(byCommand, name) {
			t.Errorf("%s is declared and never read", name)
		}
	}
}
