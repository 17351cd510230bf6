package spec

import (
	"cmp"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

const (
	// sdsDir is where the socket for secrets is. [agent P13]
	sdsDir = "./var/run/secrets/workload-spiffe-uds"
	// ownSocket is the name of the socket for secrets where the agent serves it.
	ownSocket = "socket"
	// afterDrain is how much longer than its drain an Envoy that was taken over from lives by default.
	afterDrain = 15 * time.Second
	// defaultTerminationDrain is for a configuration that clears terminationDrainDuration.
	defaultTerminationDrain = 5 * time.Second
	// minKeepalive is the shortest time after which gRPC probes a quiet connection.
	minKeepalive = 10 * time.Second

	annotationLogLevel          = "sidecar.istio.io/logLevel"
	annotationComponentLogLevel = "sidecar.istio.io/componentLogLevel"
)

// reader reads variables and keeps the first error.
type reader struct {
	env map[string]string
	err error
}

func (r *reader) fail(name, want string) {
	if r.err == nil {
		r.err = fmt.Errorf("environment %s: invalid value %q: want %s", name, r.env[name], want)
	}
}

func (r *reader) text(name, byDefault string) string { return first(r.env[name], byDefault) }

func (r *reader) bool(name string, byDefault bool) bool {
	v := r.env[name]
	if v == "" {
		return byDefault
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		r.fail(name, "true or false")
	}
	return b
}

func (r *reader) duration(name string, byDefault time.Duration) time.Duration {
	v := r.env[name]
	if v == "" {
		return byDefault
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < 0 {
		r.fail(name, "a duration such as 24h")
	}
	return d
}

func (r *reader) ratio(name string, byDefault float64) float64 {
	v := r.env[name]
	if v == "" {
		return byDefault
	}
	n, err := strconv.ParseFloat(v, 64)
	if err != nil || n < 0 || n > 1 {
		r.fail(name, "a number from 0 to 1")
	}
	return n
}

func (r *reader) port(name string, byDefault int) int {
	n, err := port(r.env, name, byDefault)
	if err != nil && r.err == nil {
		r.err = err
	}
	return n
}

// headers collects the variables of a prefix: PREFIX_NAME=value is the header name: value.
func (r *reader) headers(prefix string) map[string]string {
	out := map[string]string{}
	for k, v := range r.env {
		if name, ok := strings.CutPrefix(k, prefix); ok && name != "" {
			out[strings.ToLower(name)] = v
		}
	}
	return out
}

// settings fills in the sections of the Spec that come from the environment, the flags and the configuration.
func (b *builder) settings() error {
	r := &reader{env: b.env}
	s := b.s
	s.Upstream = b.upstream(r)
	s.Certificates = b.certificates(r)
	s.Paths = b.paths(r)
	s.Lifecycle = b.lifecycle(r)
	s.DNS = b.dns(r)
	s.Status = b.status(r)
	s.Envoy = b.envoy(r)
	if v := r.text("JWT_POLICY", "third-party-jwt"); v != "third-party-jwt" {
		b.warn("JWT_POLICY %s has no effect: the token is always that of ./var/run/secrets/tokens/istio-token", v)
	}
	if r.err != nil {
		return r.err
	}
	return b.override(r.text("ISTIO_BOOTSTRAP_OVERRIDE", ""), r.text("HOST_IP", ""))
}

func (b *builder) upstream(r *reader) Upstream {
	discovery := b.s.Config.GetDiscoveryAddress()
	u := Upstream{
		Discovery:        discovery,
		CA:               r.text("CA_ADDR", discovery),
		DiscoveryRoot:    r.text("XDS_ROOT_CA", ""),
		CARoot:           r.text("CA_ROOT_CA", ""),
		CertProvider:     strings.ToLower(r.text("PILOT_CERT_PROVIDER", "istiod")),
		ServerName:       r.text("ISTIOD_SAN", ""),
		ClusterID:        r.text("ISTIO_META_CLUSTER_ID", ""),
		DiscoveryHeaders: r.headers("XDS_HEADER_"),
		CAHeaders:        r.headers("CA_HEADER_"),
		Keepalive:        r.duration("GRPC_KEEPALIVE_INTERVAL", 30*time.Second),
		KeepaliveTimeout: r.duration("GRPC_KEEPALIVE_TIMEOUT", 10*time.Second),
	}
	if u.Keepalive > 0 && u.Keepalive < minKeepalive {
		b.warn("GRPC_KEEPALIVE_INTERVAL %s counts as %s, the least that gRPC allows", u.Keepalive, minKeepalive)
	}
	if !slices.Contains([]string{"istiod", "kubernetes", "custom", "none"}, u.CertProvider) {
		r.fail("PILOT_CERT_PROVIDER", "istiod, kubernetes, custom or none")
	}
	return u
}

func (b *builder) certificates(r *reader) Certificates {
	c := Certificates{
		TTL:            r.duration("SECRET_TTL", 24*time.Hour),
		RenewalRatio:   r.ratio("SECRET_GRACE_PERIOD_RATIO", 0.5),
		Jitter:         r.ratio("SECRET_GRACE_PERIOD_RATIO_JITTER", 0.01),
		PKCS8:          r.bool("PKCS8_KEY", false),
		ProvisionedDir: r.text("PROV_CERT", ""),
		OutputDir:      r.text("OUTPUT_CERTS", ""),
		OutputMode:     0o600,
		FileMounted:    r.bool("FILE_MOUNTED_CERTS", false),
		Mounted: CertificateFiles{
			Chain: r.text("ISTIO_META_TLS_CLIENT_CERT_CHAIN", ""), Key: r.text("ISTIO_META_TLS_CLIENT_KEY", ""), Roots: r.text("ISTIO_META_TLS_CLIENT_ROOT_CERT", ""),
		},
		Own:    r.text("WORKLOAD_IDENTITY_SOCKET_FILE", ownSocket) == ownSocket,
		Signer: r.text("ISTIO_META_CERT_SIGNER", ""),
	}
	if r.text("KUBERNETES_SERVICE_HOST", "") != "" {
		c.OutputMode = 0o644 // other containers of the Pod run as other users [agent E39]
	}
	bits := 0
	if v := r.env["WORKLOAD_RSA_KEY_SIZE"]; v != "" {
		var err error
		if bits, err = strconv.Atoi(v); err != nil || bits <= 0 {
			r.fail("WORKLOAD_RSA_KEY_SIZE", "a key size in bits, such as 2048")
		}
	}
	curve := strings.ToUpper(strings.ReplaceAll(r.env["ECC_CURVE"], "-", ""))
	var err error
	if c.Key, err = pki.ChooseKeyKind(strings.ToUpper(r.env["ECC_SIGNATURE_ALGORITHM"]), curve, bits); err != nil && r.err == nil {
		r.err = fmt.Errorf("environment ECC_SIGNATURE_ALGORITHM, ECC_CURVE, WORKLOAD_RSA_KEY_SIZE: %w", err)
	}
	return c
}

func (b *builder) paths(r *reader) Paths {
	socket := r.text("WORKLOAD_IDENTITY_SOCKET_FILE", ownSocket)
	if socket != path.Base(socket) || socket == ".." || socket == "." {
		r.fail("WORKLOAD_IDENTITY_SOCKET_FILE", "a file name without a directory")
	}
	dir := relative(b.s.Config.GetConfigPath())
	return Paths{
		ConfigDir: dir, Bootstrap: relative(path.Join(dir, "envoy-rev.json")), XDSSocket: relative(path.Join(dir, "XDS")),
		SDSDir: sdsDir, SDSSocket: relative(path.Join(sdsDir, socket)),
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

func (b *builder) lifecycle(r *reader) Lifecycle {
	c, asIstio := b.s.Config, b.in.Flags.AsIstio
	l := Lifecycle{
		AsIstio:        asIstio,
		HotRestart:     r.bool("ENABLE_HOT_RESTART", true) && !asIstio,
		ParentShutdown: r.duration("PARENT_SHUTDOWN_DURATION", c.GetDrainDuration().AsDuration()+afterDrain),
		Drain:          defaultTerminationDrain,
		ExitOnZero:     r.bool("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", false),
		MinDrain:       r.duration("MINIMUM_DRAIN_DURATION", 5*time.Second),
		ExitWithApp:    r.bool("EXIT_WITH_APP", ofJob(r.text("ISTIO_META_OWNER", ""))) && !asIstio,
		AppGrace:       r.duration("EXIT_WITH_APP_GRACE", 30*time.Second),
	}
	if d := c.GetTerminationDrainDuration(); d != nil {
		l.Drain = d.AsDuration()
	}
	if l.MaxDrain = r.duration("MAXIMUM_DRAIN_DURATION", 15*time.Minute); l.MaxDrain < l.MinDrain {
		l.MaxDrain = l.MinDrain
	}
	return l
}

// dns ignores ISTIO_META_DNS_CAPTURE for a router, which may share it with the sidecars' configuration: a
// router's own traffic is never captured.
func (b *builder) dns(r *reader) DNS {
	captured, wanted := r.bool("ISTIO_META_DNS_CAPTURE", false), r.bool("ISTIO_META_ENABLE_DNS_SERVER", false)
	return DNS{
		Serve:    captured && b.in.Role == mesh.Sidecar || wanted || b.in.CaptureDNS,
		Address:  r.text("DNS_PROXY_ADDR", "localhost:"+strconv.Itoa(mesh.DNSPort)),
		Timeout:  r.duration("DNS_FORWARD_TIMEOUT", 0),
		Parallel: r.bool("DNS_FORWARD_PARALLEL", false),
	}
}

func (b *builder) status(r *reader) Status {
	return Status{
		Port:         cmp.Or(int(b.s.Config.GetStatusPort()), mesh.StatusPort),
		Profiling:    b.in.Flags.Profiling,
		LocalMetrics: r.bool("METRICS_LOCALHOST_ACCESS_ONLY", false),
	}
}

func (b *builder) envoy(r *reader) Envoy {
	c, flags, notes := b.s.Config, b.in.Flags, b.s.Node.Annotations
	level, components := SplitLogLevel(first(notes[annotationLogLevel], flags.LogLevel), first(notes[annotationComponentLogLevel], flags.ComponentLogLevel))
	e := Envoy{
		Disabled:        r.bool("DISABLE_ENVOY", false),
		Binary:          c.GetBinaryPath(),
		CustomBootstrap: c.GetCustomConfigFile(),
		Arguments: Arguments{
			Drain:              c.GetDrainDuration().AsDuration(),
			IPv6:               b.s.IPv6Only(),
			LogLevel:           level,
			ComponentLogLevel:  components,
			FlushInterval:      c.GetFileFlushInterval().AsDuration(),
			FlushKB:            int(c.GetFileFlushMinSizeKb()),
			CoreDump:           r.bool("ISTIO_ENVOY_ENABLE_CORE_DUMP", false),
			ShowDeprecatedLogs: !mesh.Truth(strings.ToLower(r.text("ENVOY_SKIP_DEPRECATED_LOGS", "true"))),
			Concurrency:        int(c.GetConcurrency().GetValue()),
			HotRestart:         b.s.Lifecycle.HotRestart,
		},
		AdminPort:        cmp.Or(int(c.GetProxyAdminPort()), mesh.AdminPort),
		HealthPort:       r.port("ENVOY_STATUS_PORT", mesh.HealthPort),
		PrometheusPort:   r.port("ENVOY_PROMETHEUS_PORT", mesh.PrometheusPort),
		StateOfTheWorld:  !r.bool("ISTIO_DELTA_XDS", true),
		DualStack:        r.bool("ISTIO_DUAL_STACK", false),
		DeferredClusters: r.bool("ENABLE_DEFERRED_CLUSTER_CREATION", false),
		LogJSON:          flags.LogJSON,
		OutlierLog:       flags.OutlierLogPath,
	}
	for name, value := range b.env {
		e.Env = append(e.Env, name+"="+value)
	}
	slices.Sort(e.Env)
	return e
}

// override reads the file that Envoy merges over the bootstrap, with the host's address in
// place of $(HOST_IP). [agent B3]
func (b *builder) override(file, hostIP string) error {
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
