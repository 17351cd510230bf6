// Package spec makes one value that describes an agent completely, from its flags, its environment and its files.
//
// Build is a pure function from an Input to a Spec: who the node is, how Envoy is started,
// where the control plane is, how certificates are renewed, which ports and paths are used.
// The rest of the agent reads the Spec only; the same Input gives an equal
// Spec. No cloud metadata is requested and no name is resolved, so nothing outside
// the machine can delay a start. When an input changes, the next Spec is built from the
// running one: fields that only a new agent can apply keep their value and are listed in Cold.
// Names, defaults and precedence are Istio's [agent 1.3, 1.4, 1.5, B5–B7].
package spec

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"time"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/settings"
)

// ContractVersion is the ISTIO_VERSION of a node that sets no other: the
// Istio release whose node contract this agent implements. Control planes gate features on it.
const ContractVersion = "1.31.1"

// Input is everything that a Spec is made from. The zero value of a field means "absent".
type Input struct {
	Role mesh.Role
	// Flags are the flags that were given, by name, and Env is the process environment. Their settings are declared in
	// settings.AgentProxy and settings.AgentLog.
	Flags, Env map[string]string
	Host       Host
	// ReadFile reads a whole file. The error for a missing file is fs.ErrNotExist, also wrapped. It is called
	// only by Build, for the paths that Spec.Files then lists. Nil means that there are no files.
	ReadFile func(path string) ([]byte, error)
	// LookupUser finds a user by name. The error for one that does not exist is fs.ErrNotExist, also wrapped. Nil means that there are no users.
	LookupUser func(name string) (uid, gid uint32, err error)
	// Capture describes the capture rules that this agent keeps applied.
	Capture Capture
	// Running is the Spec in use, nil at the start.
	Running *Spec
}

// Host is the input from the operating system.
type Host struct {
	Hostname string
	// Interfaces are the network interfaces in their order.
	Interfaces []Interface
	// CPULimit is the number of CPUs that this process may use, rounded up; 0 for no limit.
	CPULimit int
	// UID is the user that the agent runs as.
	UID int
	// Capabilities are those that the agent may use (permitted), a bit for each as in capabilities(7).
	Capabilities uint64
}

// Capture describes capture rules.
type Capture struct {
	// DNS says that the rules redirect DNS requests to the agent.
	DNS bool
	// TPROXY says that inbound connections are intercepted by TPROXY.
	TPROXY bool
}

// Interface is a network interface and its addresses.
type Interface struct {
	Name  string
	Addrs []netip.Addr
}

// Spec describes one agent completely. It is immutable after Build, so any goroutine may read it.
type Spec struct {
	Node Node
	// Config is the effective proxy configuration.
	Config *meshv1.ProxyConfig
	// ConfigSources are the inputs that Config came from, least specific first.
	ConfigSources []string
	Paths         Paths
	Upstream      Upstream
	Certificates  Certificates
	SDS           SDS
	Envoy         Envoy
	Lifecycle     Lifecycle
	DNS           DNS
	Status        Status
	Probes        Probes
	Wasm          Wasm
	STS           STS
	Cloud         Cloud
	// TLS limits all TLS of the agent and of the bootstrap.
	TLS pki.TLSPolicy
	// Readiness is the probe of the application's health; nil if there is none.
	Readiness *Readiness
	// Files are the paths that Build has read or tried to read. A change of one can change the next Spec.
	Files []string
	// Cold are the fields of ProxyConfig whose new values take effect with the next agent, by their JSON names, sorted.
	Cold []string
	// Warnings name settings without effect, one line each, for the log.
	Warnings []string

	// cpuLimit is Host.CPULimit of the first Spec.
	cpuLimit int
}

// Node identifies the proxy. [agent B5]
type Node struct {
	ID       mesh.NodeID
	Cluster  string
	Locality mesh.Locality
	// Metadata is ready for the bootstrap: string, float64, bool, []any and map[string]any.
	Metadata map[string]any
	// IPs are the node's addresses, the primary one first; at least one.
	IPs []netip.Addr
	// Identity is the identity that the node claims; the CA issues the one of the token.
	Identity            mesh.Identity
	Labels, Annotations map[string]string
}

// Paths are the agent's own files, relative to its working directory unless absolute. [agent P12, P13, P16]
type Paths struct {
	// ConfigDir holds the bootstrap and the XDS socket.
	ConfigDir string
	// Bootstrap is the bootstrap that the agent writes at its start.
	Bootstrap string
	XDSSocket string
	// SDSDir holds SDSSocket.
	SDSDir, SDSSocket string
	// FilesSocket is where the secrets of files are served if another server serves SDSSocket. [agent P14]
	FilesSocket string
	// ProxylessBootstrap is the bootstrap of gRPC libraries; empty for none. [agent G1]
	ProxylessBootstrap string
}

// Upstream says how the agent reaches discovery and the CA. [agent E4, E11–E13, E18, E21, E32]
type Upstream struct {
	// Discovery and CA are addresses, host:port; CA has at least one.
	Discovery string
	CA        []string
	// DiscoveryRoot and CARoot are files of root certificates, SYSTEM for the operating
	// system's, or empty for the default places.
	DiscoveryRoot, CARoot string
	// CertProvider is istiod, kubernetes, custom or none: where the root is by default.
	CertProvider string
	// ServerName is the name in the control plane's certificate; empty for the address's host.
	ServerName string
	ClusterID  string
	// TokenFile is the file of the bearer token. It is not used if MetadataServer is set: the host of the metadata server of Google
	// Compute Engine, which gives tokens.
	TokenFile, MetadataServer string
	// DiscoveryHeaders and CAHeaders are sent with every call.
	DiscoveryHeaders, CAHeaders map[string]string
	// Keepalive is how long a connection is idle before it is probed (0: never), KeepaliveTimeout
	// how long the response may take.
	Keepalive, KeepaliveTimeout time.Duration
	// TrustBundle says that the mesh's trust bundle is requested of Discovery. [agent E19]
	TrustBundle bool
	// Bootstrap says that Discovery is asked what it changes in Envoy's bootstrap, and BootstrapWait for how long before Envoy's first start.
	// [agent B26]
	Bootstrap     bool
	BootstrapWait time.Duration
	// Copy is where Envoy's configuration is kept for times without discovery; nil if it is not. [agent X12]
	Copy *ConfigCopy
}

// ConfigCopy says how Envoy's configuration is kept.
type ConfigCopy struct {
	// Dir is the folder. If it is empty, that is DataDir if a volume is mounted there, else ConfigDir.
	Dir, ConfigDir string
	// MaxAge is the age at which the copy is not served any more, above 0.
	MaxAge time.Duration
}

// DataDir is where the injection of proxies mounts a volume for the agent's data.
const DataDir = "/var/lib/istio/data"

// Certificates say how the workload's certificate is made and renewed. [agent E8, E10, E14, E15, E17]
type Certificates struct {
	// TTL is the lifetime that is requested.
	TTL time.Duration
	// RenewalRatio is the share of a certificate's lifetime that is left when it is renewed, and
	// Jitter the greatest random change to it; both 0–1.
	RenewalRatio, Jitter float64
	Key                  pki.KeyKind
	PKCS8                bool
	// ProvisionedDir holds a certificate for the first connections, OutputDir gets copies of each certificate; both may be empty.
	ProvisionedDir, OutputDir string
	// OutputMode is the mode of the files in OutputDir.
	OutputMode fs.FileMode
	// FileMounted says that the certificate only comes from the three files of Mounted.
	FileMounted bool
	Mounted     CertificateFiles
	// Own says that this agent obtains the certificate and serves it to Envoy, and not another server. With the policy
	// PreferExternal the start decides it, if another server answers.
	Own bool
	// CopyDir is the folder for a copy of the certificate, empty for none; CopyKeyFile is the file of the key that encrypts
	// it, empty for none. CopyOptional says that no setting asks for a copy, so that a folder that would expose it is not used.
	CopyDir, CopyKeyFile string
	CopyOptional         bool
	// Signer is the name of the signer that the CA is asked to use; empty for its default.
	Signer string
}

// CertificateFiles are the paths of a certificate's files.
type CertificateFiles struct{ Chain, Key, Roots string }

// Envoy says how Envoy is started. [agent E20, E22, E23, E25–E27, E36]
type Envoy struct {
	// Disabled runs the agent without an Envoy.
	Disabled bool
	// Binary is the program, a path or a name to look up in PATH.
	Binary string
	// CustomBootstrap is the path of a bootstrap that the user wrote; empty if the agent writes one.
	CustomBootstrap string
	Arguments       Arguments
	// Env is Envoy's environment, NAME=value, sorted.
	Env []string
	// AdminPort, HealthPort and PrometheusPort are 1–65535.
	AdminPort, HealthPort, PrometheusPort int
	// SecureMetricsPort and SecureMergedMetricsPort are those of Envoy's metrics, and of all, over mutual TLS; 0 for none.
	SecureMetricsPort, SecureMergedMetricsPort int
	// HealthProxyProtocol has the listener of readiness take the PROXY protocol, too.
	HealthProxyProtocol bool
	// StateOfTheWorld selects the state-of-the-world variant of xDS instead of the delta one.
	StateOfTheWorld bool
	// DualStack has the static listeners accept both IP families.
	DualStack bool
	// DeferredClusters has Envoy initialize a cluster on its first request.
	DeferredClusters bool
	LogJSON          bool
	// RunAs is the user that Envoy runs as; nil is the agent's own.
	RunAs *EnvoyUser
	// OutlierLog is the file for ejected endpoints; empty for none.
	OutlierLog string
	// UndelimitedTags has Envoy extract the names of clusters and HTTP connection managers from statistics of which they do not end with
	// a delimiter, too. [agent B15]
	UndelimitedTags bool
	// SelfDiscovery has Envoy ask for the endpoints of its own service.
	SelfDiscovery bool
	// LoadStats is an ApiConfigSource as JSON, where Envoy reports its load; empty for nowhere.
	LoadStats string
	// Differences is an encoded bootstrap that is merged into the one that the agent builds: what discovery changes in it; empty for
	// nothing. Build leaves it empty. [agent B26]
	Differences []byte
}

// Lifecycle says how Envoys follow one another, and when the agent ends.
type Lifecycle struct {
	// AsIstio turns off what Istio's agent does not do: second attempts, SIGTERM before SIGKILL,
	// truthful exit codes.
	AsIstio bool
	// HotRestart lets a new Envoy take over from the one that runs; otherwise it is replaced.
	HotRestart bool
	// ParentShutdown is how long a replaced Envoy keeps running.
	ParentShutdown time.Duration
	// Drain is the time from SIGTERM until Envoy is ended.
	Drain time.Duration
	// ExitOnZero ends a drain with the last connection, not before MinDrain and not after MaxDrain.
	ExitOnZero         bool
	MinDrain, MaxDrain time.Duration
	// ExitWithApp ends the agent when the application has been gone for AppGrace.
	ExitWithApp bool
	AppGrace    time.Duration
}

// DNS says whether and how the agent answers captured DNS requests. [agent E5, E6]
type DNS struct {
	Serve bool
	// Address is the host:port to serve.
	Address string
	// Timeout bounds a request; 0 leaves it to resolv.conf.
	Timeout time.Duration
	// Parallel asks all name servers at once.
	Parallel bool
}

// Wasm says how the agent fetches Wasm modules for Envoy. [agent E31]
type Wasm struct {
	// Fetch is false if Envoy is to fetch them itself.
	Fetch bool
	// Dir is the folder of the modules.
	Dir string
	// Expiry is how long an unused module is kept; unused ones are removed each PurgeInterval.
	Expiry, PurgeInterval time.Duration
	// Timeout bounds a fetch, Retries is how often a failed one is repeated, MaxSize bounds a module in bytes.
	Timeout time.Duration
	Retries int
	MaxSize int64
	// InsecureRegistries are hosts that need not prove who they are, Blocked addresses that are not connected to.
	InsecureRegistries []string
	Blocked            []netip.Prefix
}

// Cloud says which cloud is asked where the machine is. [agent B6, B8, E33]
type Cloud struct {
	// Platform is gcp, aws, azure or auto; empty if none is asked.
	Platform string
	// GCPHost replaces the address of GCP's metadata server; empty for its own.
	GCPHost string
}

// Status says how the status port is served. [agent L12]
type Status struct {
	// Port is 1–65535.
	Port      int
	Profiling bool
	// LocalMetrics refuses metrics to other machines.
	LocalMetrics bool
	// XDSPort is the port at which pages of the control plane are served to this machine; 0 for none.
	XDSPort int
	// Targets are where the application's metrics are, which are added to the agent's and Envoy's.
	Targets []Target
}

// Build makes a Spec. Its errors are configuration mistakes, and name the input and the expected value.
func Build(in Input) (*Spec, error) {
	s, _, err := decide(in)
	return s, err
}

// decide is Build, and also returns the settings, which record what was read.
func decide(in Input) (*Spec, *settings.Values, error) {
	b := &builder{
		in: in, s: &Spec{cpuLimit: in.Host.CPULimit},
		set: settings.Read(in.Flags, in.Env, settings.AgentProxy, settings.AgentLog),
	}
	if in.Running != nil {
		b.s.cpuLimit = in.Running.cpuLimit
	}
	for _, step := range []func() error{
		b.pod, b.configure, b.merge, b.address, b.metadata, b.settings,
	} {
		err := step()
		if err == nil {
			err = b.set.Err()
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return b.s, b.set, nil
}

// builder makes one Spec.
type builder struct {
	in Input
	s  *Spec
	// set are the settings; from merge on also those of the configuration's proxyMetadata.
	set *settings.Values
	// env is the environment over the configuration's proxyMetadata.
	env map[string]string
}

// file reads a file that may be missing.
func (b *builder) file(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	text, err := b.mustFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// mustFile reads a file that must exist.
func (b *builder) mustFile(path string) ([]byte, error) {
	if !slices.Contains(b.s.Files, path) {
		b.s.Files = append(b.s.Files, path)
	}
	if b.in.ReadFile == nil {
		return nil, fmt.Errorf("read %s: %w", path, fs.ErrNotExist)
	}
	return b.in.ReadFile(path)
}

func (b *builder) warn(format string, args ...any) {
	b.s.Warnings = append(b.s.Warnings, fmt.Sprintf(format, args...))
}

// IPv6Only reports whether all addresses of the node are IPv6. [agent B24]
func (s *Spec) IPv6Only() bool { return !slices.ContainsFunc(s.Node.IPs, netip.Addr.Is4) }

// Loopback returns the IP address at which Envoy and the agent reach each other.
func (s *Spec) Loopback() string {
	if s.IPv6Only() {
		return "::1"
	}
	return "127.0.0.1"
}

// AdminAddress returns the host:port of Envoy's admin interface.
func (s *Spec) AdminAddress() string {
	port := strconv.Itoa(s.Envoy.AdminPort)
	if s.IPv6Only() {
		return "[::1]:" + port
	}
	return "127.0.0.1:" + port
}
