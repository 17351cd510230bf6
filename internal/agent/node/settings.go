package node

import (
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// Settings are the agent's own choices: what its environment says beyond the node.
type Settings struct {
	Upstream Upstream
	Secrets  Secrets
	Envoy    Envoy
	Life     Life
	DNS      DNS
}

// Upstream says how the agent reaches discovery and the CA. [agent E4, E11–E13, E18, E21, E32]
type Upstream struct {
	// Discovery and CA are addresses, host:port.
	Discovery, CA string
	// DiscoveryRoot and CARoot are files of root certificates, SYSTEM for the machine's
	// own, or empty for the usual places.
	DiscoveryRoot, CARoot string
	// CertProvider is istiod, kubernetes, custom or none: where the root is when nobody says.
	CertProvider string
	// ServerName is what the control plane's certificate must be for; empty for the address's host.
	ServerName string
	ClusterID  string
	// DiscoveryHeaders and CAHeaders go along with every call.
	DiscoveryHeaders, CAHeaders map[string]string
	// Keepalive is how long a connection is quiet before it is probed (0: never), KeepaliveTimeout
	// how long the answer may take.
	Keepalive, KeepaliveTimeout time.Duration
}

// Secrets say how the workload's certificate is made and renewed. [agent E8, E10, E14, E15, E17]
type Secrets struct {
	TTL time.Duration
	// GraceRatio is the share of a certificate's life that is left when it is renewed, and
	// Jitter the greatest change to it at random; both 0–1.
	GraceRatio, Jitter float64
	Key                pki.KeyKind
	PKCS8              bool
	// ProvisionedDir holds a certificate to begin with, OutputDir takes copies; both may be empty.
	ProvisionedDir, OutputDir string
	// FileMounted says that the certificate only comes from files.
	FileMounted bool
	// SocketName is the base name of the SDS socket.
	SocketName string
	Signer     string
}

// Envoy says how Envoy is run. [agent E20, E22, E23, E25–E27, E36]
type Envoy struct {
	HealthPort, PrometheusPort int
	// Disabled runs the agent without an Envoy.
	Disabled                             bool
	StateOfTheWorld, DualStack, CoreDump bool
	ExitOnZero                           bool
	DeferredClusters                     bool
	// LocalMetrics refuses metrics to other machines.
	LocalMetrics bool
	// MinDrain is the least time of a drain that waits for connections.
	MinDrain time.Duration
	// OverrideFile is merged over the bootstrap; HostIP stands in for $(HOST_IP) in it.
	OverrideFile, HostIP string
}

// Life says how Envoys follow one another, and when the agent ends.
type Life struct {
	// HotRestart lets a new Envoy take over from the one that runs; otherwise it is replaced.
	HotRestart bool
	// ParentShutdown is how long an Envoy that was taken over from lives on.
	ParentShutdown time.Duration
	// MaxDrain bounds a drain that waits for connections.
	MaxDrain time.Duration
	// ExitWithApp ends the agent when the application has been gone for AppGrace.
	ExitWithApp bool
	AppGrace    time.Duration
}

// DNS says whether the agent answers the application's questions that capture sends to it, and how. [agent E5, E6]
type DNS struct {
	// Serve: somebody says that they are captured.
	Serve bool
	// Address is host:port to answer at.
	Address string
	// Timeout bounds a question; 0 leaves it to resolv.conf.
	Timeout time.Duration
	// Parallel asks all servers at once.
	Parallel bool
}

// afterDrain is how much longer than its drain an Envoy that was taken over from lives by default.
const afterDrain = 15 * time.Second

// minKeepalive is the shortest time after which gRPC probes a quiet connection.
const minKeepalive = 10 * time.Second

// reader reads variables and keeps the first error, so that a list of settings reads as one.
type reader struct {
	env map[string]string
	err error
}

func (r *reader) fail(name, want string) {
	if r.err == nil {
		r.err = fmt.Errorf("read environment %s: %q is no %s", name, r.env[name], want)
	}
}

func (r *reader) text(name, otherwise string) string { return first(r.env[name], otherwise) }

func (r *reader) truth(name string, otherwise bool) bool {
	v := r.env[name]
	if v == "" {
		return otherwise
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		r.fail(name, "true or false")
	}
	return b
}

func (r *reader) duration(name string, otherwise time.Duration) time.Duration {
	v := r.env[name]
	if v == "" {
		return otherwise
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < 0 {
		r.fail(name, "duration such as 24h")
	}
	return d
}

func (r *reader) ratio(name string, otherwise float64) float64 {
	v := r.env[name]
	if v == "" {
		return otherwise
	}
	n, err := strconv.ParseFloat(v, 64)
	if err != nil || n < 0 || n > 1 {
		r.fail(name, "number from 0 to 1")
	}
	return n
}

func (r *reader) port(name string, otherwise int) int {
	n, err := Port(r.env, name, otherwise)
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

// ReadSettings reads the settings of a node, and adds to the node's warnings. Its errors name the variable.
func ReadSettings(f *Facts) (Settings, error) {
	r := &reader{env: f.Env}
	s := Settings{Upstream: r.upstream(f), Secrets: r.secrets(), Envoy: r.envoy(), Life: r.life(f), DNS: r.dns(f)}
	if r.err != nil {
		return Settings{}, r.err
	}
	return s, nil
}

func (r *reader) upstream(f *Facts) Upstream {
	u := Upstream{
		Discovery:        f.Config.GetDiscoveryAddress(),
		CA:               r.text("CA_ADDR", f.Config.GetDiscoveryAddress()),
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
		f.Warnings = append(f.Warnings, fmt.Sprintf("GRPC_KEEPALIVE_INTERVAL %s counts as %s, the least that gRPC allows", u.Keepalive, minKeepalive))
	}
	switch u.CertProvider {
	case "istiod", "kubernetes", "custom", "none":
	default:
		r.fail("PILOT_CERT_PROVIDER", "istiod, kubernetes, custom or none")
	}
	return u
}

func (r *reader) secrets() Secrets {
	s := Secrets{
		TTL:            r.duration("SECRET_TTL", 24*time.Hour),
		GraceRatio:     r.ratio("SECRET_GRACE_PERIOD_RATIO", 0.5),
		Jitter:         r.ratio("SECRET_GRACE_PERIOD_RATIO_JITTER", 0.01),
		PKCS8:          r.truth("PKCS8_KEY", false),
		ProvisionedDir: r.text("PROV_CERT", ""),
		OutputDir:      r.text("OUTPUT_CERTS", ""),
		FileMounted:    r.truth("FILE_MOUNTED_CERTS", false),
		SocketName:     r.text("WORKLOAD_IDENTITY_SOCKET_FILE", "socket"),
		Signer:         r.text("ISTIO_META_CERT_SIGNER", ""),
	}
	bits := 0
	if v := r.env["WORKLOAD_RSA_KEY_SIZE"]; v != "" {
		var err error
		if bits, err = strconv.Atoi(v); err != nil || bits <= 0 {
			r.fail("WORKLOAD_RSA_KEY_SIZE", "key size")
		}
	}
	curve := strings.ToUpper(strings.ReplaceAll(r.env["ECC_CURVE"], "-", ""))
	var err error
	if s.Key, err = pki.ChooseKeyKind(strings.ToUpper(r.env["ECC_SIGNATURE_ALGORITHM"]), curve, bits); err != nil && r.err == nil {
		r.err = fmt.Errorf("read environment ECC_SIGNATURE_ALGORITHM, ECC_CURVE, WORKLOAD_RSA_KEY_SIZE: %w", err)
	}
	if s.SocketName != path.Base(s.SocketName) || s.SocketName == ".." || s.SocketName == "." {
		r.fail("WORKLOAD_IDENTITY_SOCKET_FILE", "bare file name")
	}
	return s
}

func (r *reader) life(f *Facts) Life {
	return Life{
		HotRestart:     r.truth("ENABLE_HOT_RESTART", true),
		ParentShutdown: r.duration("PARENT_SHUTDOWN_DURATION", f.Config.GetDrainDuration().AsDuration()+afterDrain),
		MaxDrain:       r.duration("MAXIMUM_DRAIN_DURATION", 15*time.Minute),
		ExitWithApp:    r.truth("EXIT_WITH_APP", f.ofJob()),
		AppGrace:       r.duration("EXIT_WITH_APP_GRACE", 30*time.Second),
	}
}

func (r *reader) envoy() Envoy {
	return Envoy{
		HealthPort:       r.port("ENVOY_STATUS_PORT", mesh.HealthPort),
		PrometheusPort:   r.port("ENVOY_PROMETHEUS_PORT", mesh.PrometheusPort),
		Disabled:         r.truth("DISABLE_ENVOY", false),
		StateOfTheWorld:  !r.truth("ISTIO_DELTA_XDS", true),
		DualStack:        r.truth("ISTIO_DUAL_STACK", false),
		CoreDump:         r.truth("ISTIO_ENVOY_ENABLE_CORE_DUMP", false),
		ExitOnZero:       r.truth("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", false),
		DeferredClusters: r.truth("ENABLE_DEFERRED_CLUSTER_CREATION", false),
		LocalMetrics:     r.truth("METRICS_LOCALHOST_ACCESS_ONLY", false),
		MinDrain:         r.duration("MINIMUM_DRAIN_DURATION", 5*time.Second),
		OverrideFile:     r.text("ISTIO_BOOTSTRAP_OVERRIDE", ""),
		HostIP:           r.text("HOST_IP", ""),
	}
}

// dns: a router's own traffic is never captured, so that ISTIO_META_DNS_CAPTURE, which it may share
// with the sidecars' configuration, means nothing to it.
func (r *reader) dns(f *Facts) DNS {
	captured, asked := r.truth("ISTIO_META_DNS_CAPTURE", false), r.truth("ISTIO_META_ENABLE_DNS_SERVER", false)
	return DNS{
		Serve:    captured && f.ID.Role == mesh.Sidecar || asked,
		Address:  r.text("DNS_PROXY_ADDR", "localhost:"+strconv.Itoa(mesh.DNSPort)),
		Timeout:  r.duration("DNS_FORWARD_TIMEOUT", 0),
		Parallel: r.truth("DNS_FORWARD_PARALLEL", false),
	}
}
