package spec

import (
	"cmp"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

const (
	// sdsDir is where the socket for secrets is. [agent P13]
	sdsDir = "./var/run/secrets/workload-spiffe-uds"
	// filesSocket is where the secrets of files are served beside another server. [agent P14]
	filesSocket = "./var/run/secrets/credential-uds/files-socket"
	// ownSocket is the default name of the socket for secrets. Without a policy, any other name means that another server serves it.
	ownSocket = "socket"
	// afterDrain is how much longer than its drain a replaced Envoy keeps running by default.
	afterDrain = 15 * time.Second
	// defaultTerminationDrain is used if the configuration clears terminationDrainDuration.
	defaultTerminationDrain = 5 * time.Second
	// minKeepalive is the shortest keepalive interval that gRPC accepts.
	minKeepalive = 10 * time.Second

	annotationLogLevel          = "sidecar.istio.io/logLevel"
	annotationComponentLogLevel = "sidecar.istio.io/componentLogLevel"
)

// settings fills in the sections of the Spec that come from the environment, the flags and the configuration.
func (b *builder) settings() error {
	s := b.s
	s.Upstream = b.upstream()
	s.Certificates = b.certificates()
	s.Paths = b.paths()
	s.Lifecycle = b.lifecycle()
	s.DNS = b.dns()
	s.Status = b.status()
	s.Probes = b.probes(s.Status.Port)
	s.Envoy = b.envoy()
	s.Wasm = b.wasm()
	s.STS = b.sts()
	s.TLS = b.compliance()
	if s.Cloud.Platform = b.set.Enum("CLOUD_PLATFORM"); s.Cloud.Platform == "none" {
		s.Cloud.Platform = ""
	}
	if _, given := b.set.Given("GCE_METADATA_HOST"); given {
		s.Cloud.GCPHost = b.set.Text("GCE_METADATA_HOST")
	}
	var err error
	if s.Readiness, err = readiness(s.Config.GetReadinessProbe(), s.Node.IPs[0], s.Status.Port); err != nil {
		return fmt.Errorf("proxy configuration: readinessProbe: %w", err)
	}
	if s.Envoy.RunAs, err = b.runAs(); err != nil {
		return err
	}
	if s.SDS, err = b.sds(); err != nil {
		return err
	}
	s.Certificates.Own = s.SDS.Policy != RequireExternal
	if r := b.in.Running; r != nil {
		s.Certificates.Own = r.Certificates.Own
	}
	if !s.Certificates.Own {
		s.Node.Metadata[mesh.FileSecretsKey] = "true"
	}
	if s.Upstream.Bootstrap, s.Upstream.BootstrapWait = b.bootstrap(); s.Upstream.Bootstrap {
		s.Node.Metadata[mesh.BootstrapKey] = "true"
	}
	if s.DNS.Serve {
		s.Node.Metadata["DNS_CAPTURE"] = "true" // also if that is known from the rules that the agent keeps
	}
	s.Warnings = append(s.Warnings, b.set.WithoutEffect()...)
	if err := b.refuseTemplates(); err != nil {
		return err
	}
	return b.override()
}

// compliance is the policy for TLS. Envoy's own gRPC client of Google, which has its own TLS, is limited by a variable. [agent E34]
func (b *builder) compliance() pki.TLSPolicy {
	p := pki.TLSPolicy(b.set.Enum("COMPLIANCE_POLICY"))
	l, limited := p.Limits()
	if !limited {
		return p
	}
	const variable = "GRPC_SSL_CIPHER_SUITES"
	if _, given := b.env[variable]; !given && len(l.EnvoyCiphers) > 0 {
		b.s.Envoy.Env = append(b.s.Envoy.Env, variable+"="+strings.Join(l.EnvoyCiphers, ":"))
		slices.Sort(b.s.Envoy.Env)
	}
	b.s.Node.Metadata[mesh.CompliancePolicyKey] = string(p) // pilot-discovery limits what it configures for this proxy, too
	if b.s.Envoy.CustomBootstrap != "" {
		b.warn("COMPLIANCE_POLICY %s does not limit TLS in the bootstrap of customConfigFile", p)
	}
	return p
}

// istioTemplate is where Istio's images have their template of the bootstrap. What it contains is what the agent builds.
const istioTemplate = "/var/lib/istio/envoy/envoy_bootstrap_tmpl.json"

// refuseTemplates returns an error for a template of the bootstrap of the user's own: Envoy would run without what it says. [agent F9, E26]
func (b *builder) refuseTemplates() error {
	const want = "want none: the bootstrap is built; ISTIO_BOOTSTRAP_OVERRIDE merges a file over it, customConfigFile replaces it"
	if file := b.set.Text("templateFile"); !ofIstio(file) {
		b.set.Fail("templateFile", "template %q: %s", file, want)
		return b.set.Err()
	}
	if file := b.s.Config.GetProxyBootstrapTemplatePath(); !ofIstio(file) {
		return fmt.Errorf("proxy configuration: proxyBootstrapTemplatePath %q: %s", file, want)
	}
	return nil
}

// ofIstio reports whether a template is none, or Istio's own by an absolute path or one below the working directory.
func ofIstio(template string) bool {
	return template == "" || path.Clean("/"+template) == istioTemplate
}

func (b *builder) upstream() Upstream {
	discovery := b.s.Config.GetDiscoveryAddress()
	u := Upstream{
		Discovery:        discovery,
		CA:               b.set.List("CA_ADDR"),
		DiscoveryRoot:    b.set.TextOr("XDS_ROOT_CA", ""),
		CARoot:           b.set.TextOr("CA_ROOT_CA", ""),
		CertProvider:     b.set.Enum("PILOT_CERT_PROVIDER"),
		ServerName:       b.set.TextOr("ISTIOD_SAN", ""),
		ClusterID:        b.set.Text("ISTIO_META_CLUSTER_ID"),
		TokenFile:        b.set.Text("CREDENTIAL_TOKEN_FILE"),
		DiscoveryHeaders: headers(b.set.Prefixed("XDS_HEADER_*")),
		CAHeaders:        headers(b.set.Prefixed("CA_HEADER_*")),
		Keepalive:        b.set.Duration("GRPC_KEEPALIVE_INTERVAL"),
		KeepaliveTimeout: b.set.Duration("GRPC_KEEPALIVE_TIMEOUT"),
		TrustBundle:      b.set.Bool("PROXY_CONFIG_XDS_AGENT"),
		Copy:             b.configCopy(),
	}
	if len(u.CA) == 0 {
		u.CA = []string{discovery}
	}
	if server := b.set.Text("GCE_METADATA_HOST"); b.set.Enum("CREDENTIAL_FETCHER_TYPE") != "JWT" {
		u.MetadataServer = server
	}
	if u.Keepalive > 0 && u.Keepalive < minKeepalive {
		b.warn("GRPC_KEEPALIVE_INTERVAL: %s is used instead of %s: gRPC allows no shorter interval", minKeepalive, u.Keepalive)
	}
	return u
}

// bootstrap says whether discovery is asked what it changes in the bootstrap, and how long Envoy's first start waits for the answer.
func (b *builder) bootstrap() (ask bool, wait time.Duration) {
	wait = b.set.Duration("BOOTSTRAP_XDS_WAIT")
	if !b.set.Bool("BOOTSTRAP_XDS_AGENT") {
		return false, 0
	}
	switch {
	case b.s.Envoy.Disabled:
		b.warn("BOOTSTRAP_XDS_AGENT has no effect with DISABLE_ENVOY")
		return false, 0
	case b.s.Envoy.CustomBootstrap != "":
		b.warn("BOOTSTRAP_XDS_AGENT has no effect with customConfigFile, which is the whole bootstrap")
		return false, 0
	}
	if wait <= 0 || wait > maxBootstrapWait {
		b.set.Fail("BOOTSTRAP_XDS_WAIT", "invalid duration %s: want more than 0 and at most %s", wait, maxBootstrapWait)
	}
	return true, wait
}

// maxBootstrapWait is the maximum of BOOTSTRAP_XDS_WAIT.
const maxBootstrapWait = time.Minute

// headers converts the names to lower case, as HTTP/2 requires.
func headers(given map[string]string) map[string]string {
	out := make(map[string]string, len(given))
	for name, value := range given {
		out[strings.ToLower(name)] = value
	}
	return out
}

// configCopy says how Envoy's configuration is kept.
func (b *builder) configCopy() *ConfigCopy {
	c := &ConfigCopy{Dir: b.set.Text("XDS_COPY_DIR"), ConfigDir: relative(b.s.Config.GetConfigPath()), MaxAge: b.set.Duration("XDS_COPY_MAX_AGE")}
	if c.MaxAge <= 0 {
		b.set.Fail("XDS_COPY_MAX_AGE", "invalid duration %s: want more than 0, or XDS_COPY_DIR=none", c.MaxAge)
	}
	if c.Dir == "none" {
		return nil
	}
	return c
}

func (b *builder) certificates() Certificates {
	c := Certificates{
		TTL:            b.set.Duration("SECRET_TTL"),
		RenewalRatio:   b.set.Float("SECRET_GRACE_PERIOD_RATIO"),
		Jitter:         b.set.Float("SECRET_GRACE_PERIOD_RATIO_JITTER"),
		PKCS8:          b.set.Bool("PKCS8_KEY"),
		ProvisionedDir: b.set.Text("PROV_CERT"),
		OutputDir:      b.set.Text("OUTPUT_CERTS"),
		OutputMode:     0o600,
		FileMounted:    b.set.Bool("FILE_MOUNTED_CERTS"),
		Mounted: CertificateFiles{
			Chain: b.set.Text("ISTIO_META_TLS_CLIENT_CERT_CHAIN"), Key: b.set.Text("ISTIO_META_TLS_CLIENT_KEY"), Roots: b.set.Text("ISTIO_META_TLS_CLIENT_ROOT_CERT"),
		},
		Signer: b.set.Text("ISTIO_META_CERT_SIGNER"),
	}
	c.CopyKeyFile = b.set.Text("IDENTITY_COPY_KEY_FILE")
	switch dir := b.set.TextOr("IDENTITY_COPY_DIR", ""); dir {
	case "none":
		if c.CopyKeyFile != "" {
			b.set.Fail("IDENTITY_COPY_KEY_FILE", "IDENTITY_COPY_DIR is none: there is no copy to encrypt")
		}
	case "":
		c.CopyDir, c.CopyOptional = relative(b.s.Config.GetConfigPath()), c.CopyKeyFile == ""
	default:
		c.CopyDir = dir
	}
	if b.set.Text("KUBERNETES_SERVICE_HOST") != "" {
		c.OutputMode = 0o644 // other containers of the Pod run as other users [agent E39]
	}
	curve := strings.ReplaceAll(b.set.Enum("ECC_CURVE"), "-", "")
	var err error
	if c.Key, err = pki.ChooseKeyKind(b.set.Enum("ECC_SIGNATURE_ALGORITHM"), curve, b.set.Int("WORKLOAD_RSA_KEY_SIZE")); err != nil {
		b.set.Fail("ECC_SIGNATURE_ALGORITHM", "with ECC_CURVE and WORKLOAD_RSA_KEY_SIZE: %w", err)
	}
	return c
}

func (b *builder) paths() Paths {
	socket := b.set.Text("WORKLOAD_IDENTITY_SOCKET_FILE")
	if socket != path.Base(socket) || socket == ".." || socket == "." {
		b.set.Fail("WORKLOAD_IDENTITY_SOCKET_FILE", "invalid name %q: want a file name without a directory", socket)
	}
	dir := relative(b.s.Config.GetConfigPath())
	proxyless := b.set.Text("GRPC_XDS_BOOTSTRAP")
	if _, given := b.set.Given("GRPC_XDS_BOOTSTRAP"); !given {
		proxyless = relative(path.Join(dir, "grpc-bootstrap.json"))
	}
	return Paths{
		ProxylessBootstrap: proxyless,
		ConfigDir:          dir, Bootstrap: relative(path.Join(dir, "envoy-rev.json")), XDSSocket: relative(path.Join(dir, "XDS")),
		SDSDir: sdsDir, SDSSocket: relative(path.Join(sdsDir, socket)), FilesSocket: filesSocket,
	}
}

// relative cleans a path and keeps the ./ that Clean removes: users know the paths in this form.
func relative(p string) string {
	p = path.Clean(p)
	if path.IsAbs(p) {
		return p
	}
	return "./" + p
}

func (b *builder) lifecycle() Lifecycle {
	c, asIstio := b.s.Config, b.set.Enum("compat") == "istio"
	l := Lifecycle{
		AsIstio:        asIstio,
		HotRestart:     b.set.Bool("ENABLE_HOT_RESTART") && !asIstio,
		ParentShutdown: b.set.DurationOr("PARENT_SHUTDOWN_DURATION", c.GetDrainDuration().AsDuration()+afterDrain),
		Drain:          defaultTerminationDrain,
		ExitOnZero:     b.set.Bool("EXIT_ON_ZERO_ACTIVE_CONNECTIONS"),
		MinDrain:       b.set.Duration("MINIMUM_DRAIN_DURATION"),
		ExitWithApp:    b.set.BoolOr("EXIT_WITH_APP", ofJob(b.set.Text("ISTIO_META_OWNER"))) && !asIstio,
		AppGrace:       b.set.Duration("EXIT_WITH_APP_GRACE"),
	}
	if d := c.GetTerminationDrainDuration(); d != nil {
		l.Drain = d.AsDuration()
	}
	if l.MaxDrain = b.set.Duration("MAXIMUM_DRAIN_DURATION"); l.MaxDrain < l.MinDrain {
		l.MaxDrain = l.MinDrain
	}
	return l
}

// dns ignores ISTIO_META_DNS_CAPTURE for a router, which may share it with the sidecars' configuration: a
// router's own traffic is never captured.
func (b *builder) dns() DNS {
	captured, wanted := b.set.Bool("ISTIO_META_DNS_CAPTURE"), b.set.Bool("ISTIO_META_ENABLE_DNS_SERVER")
	return DNS{
		Serve:    captured && b.in.Role == mesh.Sidecar || wanted || b.in.Capture.DNS,
		Address:  b.set.Text("DNS_PROXY_ADDR"),
		Timeout:  b.set.DurationOr("DNS_FORWARD_TIMEOUT", 0),
		Parallel: b.set.Bool("DNS_FORWARD_PARALLEL"),
	}
}

func (b *builder) status() Status {
	port := cmp.Or(int(b.s.Config.GetStatusPort()), mesh.StatusPort)
	return Status{
		Port:         port,
		Targets:      b.targets(port),
		Profiling:    b.set.Bool("profiling"),
		LocalMetrics: b.set.Bool("METRICS_LOCALHOST_ACCESS_ONLY"),
		XDSPort:      b.set.Int("XDS_DEBUG_PORT"),
	}
}

func (b *builder) envoy() Envoy {
	c, notes := b.s.Config, b.s.Node.Annotations
	level, components := SplitLogLevel(first(notes[annotationLogLevel], b.set.Text("proxyLogLevel")), first(notes[annotationComponentLogLevel], b.set.Text("proxyComponentLogLevel")))
	e := Envoy{
		Disabled:        b.set.Bool("DISABLE_ENVOY"),
		Binary:          c.GetBinaryPath(),
		CustomBootstrap: c.GetCustomConfigFile(),
		Arguments: Arguments{
			Drain:              c.GetDrainDuration().AsDuration(),
			IPv6:               b.s.IPv6Only(),
			LogLevel:           level,
			ComponentLogLevel:  components,
			FlushInterval:      c.GetFileFlushInterval().AsDuration(),
			FlushKB:            int(c.GetFileFlushMinSizeKb()),
			CoreDump:           b.set.Bool("ISTIO_ENVOY_ENABLE_CORE_DUMP"),
			ShowDeprecatedLogs: !b.set.Bool("ENVOY_SKIP_DEPRECATED_LOGS"),
			Concurrency:        int(c.GetConcurrency().GetValue()),
			HotRestart:         b.s.Lifecycle.HotRestart,
		},
		AdminPort:         cmp.Or(int(c.GetProxyAdminPort()), mesh.AdminPort),
		HealthPort:        b.set.Int("ENVOY_STATUS_PORT"),
		PrometheusPort:    b.set.Int("ENVOY_PROMETHEUS_PORT"),
		SecureMetricsPort: b.set.Int("ENVOY_SECURE_METRICS_PORT"), SecureMergedMetricsPort: b.set.Int("ENVOY_SECURE_MERGED_METRICS_PORT"),
		HealthProxyProtocol: b.set.Bool("ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL"),
		StateOfTheWorld:     !b.set.Bool("ISTIO_DELTA_XDS"),
		DualStack:           b.set.Bool("ISTIO_DUAL_STACK"),
		DeferredClusters:    b.set.Bool("ENABLE_DEFERRED_CLUSTER_CREATION"),
		LogJSON:             b.set.Bool("log_as_json"),
		OutlierLog:          b.set.Text("outlierLogPath"),
		UndelimitedTags:     !b.set.Bool("ENABLE_DELIMITED_STATS_TAG_REGEX"),
		SelfDiscovery:       b.set.Bool("ISTIO_META_ENABLE_SELF_DISCOVERY"),
		LoadStats:           b.set.Text("ISTIO_META_LOAD_STATS_CONFIG_JSON"),
	}
	for name, value := range b.env {
		e.Env = append(e.Env, name+"="+value)
	}
	slices.Sort(e.Env)
	return e
}

// override reads the file that Envoy merges over the bootstrap, with the host's address in
// place of $(HOST_IP). [agent B3]
func (b *builder) override() error {
	file, hostIP := b.set.Text("ISTIO_BOOTSTRAP_OVERRIDE"), b.set.Text("HOST_IP")
	if file == "" {
		return nil
	}
	text, err := b.mustFile(file)
	if err != nil {
		return fmt.Errorf("read the bootstrap override (ISTIO_BOOTSTRAP_OVERRIDE): %w", err)
	}
	if ip, err := netip.ParseAddr(hostIP); err == nil && ip.Is6() {
		hostIP = "[" + hostIP + "]"
	}
	asJSON, err := yaml.YAMLToJSON([]byte(strings.ReplaceAll(string(text), "$(HOST_IP)", hostIP)))
	if err != nil {
		return fmt.Errorf("read the bootstrap override %s: %w", file, err)
	}
	b.s.Envoy.Arguments.BootstrapYAML = string(asJSON)
	return nil
}
