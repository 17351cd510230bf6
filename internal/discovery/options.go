package discovery

import (
	"log/slog"
	"net/netip"
	"net/url"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/authn"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/objectstatus"
	"github.com/pilothouse/pilothouse/internal/discovery/registrar"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/kube"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// Options are the settings of pilot-discovery.
type Options struct {
	// ConfigDir is the directory with the YAML files of the configuration. If it is empty, Kubernetes is
	// the cluster that is read instead.
	ConfigDir  string
	Kubernetes KubernetesOptions
	// MeshFile is a file with mesh configuration, watched; empty for none.
	MeshFile string
	// StateDir keeps the root, its key, the token issuer's key and the last good configuration.
	StateDir  string
	Names     Names
	Ports     Ports
	Keepalive Keepalive
	CA        CAOptions
	Auth      AuthOptions
	Compile   compile.Options
	HTTP      HTTPOptions
	Webhooks  WebhookOptions
	// Keys says how the keys of RequestAuthentications are fetched.
	Keys     KeyOptions
	Lenience Lenience
	// Registration is of proxies that ask for a WorkloadEntry.
	Registration RegistrationOptions
	// Watchdog is how long the loop may handle one event until the control plane is not ready; 0 is
	// the default.
	Watchdog time.Duration
	// Limits bound what the server keeps for all xDS clients together.
	Limits  xds.Limits
	Version string
	Log     *slog.Logger
	// OnReady, unless nil, is called once, in a goroutine of its own, when proxies begin to be served.
	OnReady func()

	cluster   *cluster             // that is read; nil for none
	registrar *registrar.Registrar // nil if proxies are not registered
}

// RegistrationOptions say how proxies with AUTO_REGISTER_GROUP are registered.
type RegistrationOptions struct {
	// Off registers none, and NoHealth does not use the health that they report.
	Off, NoHealth bool
	// Grace is how long a WorkloadEntry stays when its proxy has gone.
	Grace time.Duration
}

// KubernetesOptions say which cluster is read, and what of it. It also keeps the self-signed root, reviews tokens, and
// elects which replica writes objects.
type KubernetesOptions struct {
	API kube.Options
	// Cluster is the cluster's name.
	Cluster string
	// RootConfigMap is the name of the ConfigMap with the trusted roots in each namespace; empty for istio-ca-root-cert.
	RootConfigMap string
	// NoElection has this replica lead without a Lease.
	NoElection bool
	Status     StatusOptions
	// NoDeployments makes nothing that runs the Gateways of the Gateway API.
	NoDeployments bool
	// WatchNamespace is the one namespace whose objects are read; empty for all. Ignore and Include are
	// patterns of resources: what Ignore matches and Include does not is not read.
	WatchNamespace  string
	Ignore, Include []string
	// RemoteTimeout is how long the start waits for each remote cluster; 0 means 30 s. Insecure are the elements of
	// kube.InsecureOptions that the kubeconfigs of remote clusters may have. NoRemotes leaves remote clusters out.
	RemoteTimeout time.Duration
	Insecure      []string
	NoRemotes     bool
}

// StatusOptions say whether, and how often, the statuses of objects are written.
type StatusOptions struct {
	// Off writes none.
	Off bool
	// PerSecond is how many are written in a second; 0 for statuswriter.DefaultPerSecond.
	PerSecond float32
	// Pace is how often that of one object is; zero for objectstatus.DefaultPace.
	Pace objectstatus.Pace
}

// Names are the names of this mesh and its control plane. All but TrustDomain are required.
type Names struct {
	// Domain is the cluster's DNS suffix.
	Domain string
	// TrustDomain is that of identities. If it is empty, it is that of the mesh configuration, or else
	// the default.
	TrustDomain string
	// Namespace is that of the control plane; its serving names contain it.
	Namespace string
	// Instance is that of this process among the replicas, such as its Pod; it may be empty.
	Instance string
	// Revision is that of the control plane: Istio's objects that are labelled for another one are not used, and its mesh
	// configuration is in a ConfigMap of its own. Empty is "default".
	Revision string
}

// meshConfig is the key of the ConfigMap with the mesh configuration.
func (n Names) meshConfig() object.Key { return config.MeshConfigKey(n.Namespace, n.Revision) }

// Ports are listen addresses; an empty one is not served.
type Ports struct {
	HTTP, GRPC, SecureGRPC, Monitoring, HTTPS string
}

// KeyOptions say how the keys that RequestAuthentications name are fetched.
type KeyOptions struct {
	// Interval is how often; 0 means jwks.DefaultInterval.
	Interval time.Duration
	// Blocked are addresses that are not asked, besides those that never are.
	Blocked []netip.Prefix
	// Roots is a file with roots that servers' certificates may have besides the system's, read at the start; it need not exist.
	Roots string
	// Insecure does not verify the certificates of servers.
	Insecure bool

	// check replaces jwks.CheckAddress in tests.
	check func(netip.Addr) error
}

// HTTPOptions are the options of the HTTP ports.
type HTTPOptions struct {
	// OpenDebug allows debug requests of all clients. Otherwise only this host and identities of the
	// control plane's namespace are allowed.
	OpenDebug bool
	// Prometheus is asked for the rates of requests that the page at /ui shows; nil: they are not shown.
	Prometheus *url.URL
	// Shutdown is how long open requests may take to end, those for certificates too.
	Shutdown time.Duration
}

// Keepalive has the settings of gRPC connections.
type Keepalive struct {
	// Interval is how long a connection may be silent before it is probed, Timeout how long the
	// response to the probe may take.
	Interval, Timeout time.Duration
	// Drain is within which time streams end when the control plane stops; 0 ends them at once.
	Drain time.Duration
	// MaxAge is the maximum age of a connection, with a jitter of 10 %, so that load is spread over
	// replicas; 0 means no limit.
	MaxAge time.Duration
}

// CAOptions are the options of the certificate authority and of the secure port.
type CAOptions struct {
	Limits policy.Limits
	// Directory is a directory with the files of a CA, followed; empty for none. Without a CA in it, the
	// root is self-signed.
	Directory string
	// RootTTL is the validity of a root that is created, RootKey its kind of key.
	RootTTL time.Duration
	RootKey pki.KeyKind
	// Off serves no certificates to workloads; Plaintext serves them on the plaintext port too.
	Off, Plaintext bool
	Rotation       Rotation
	// ServingNames are further names or addresses in the certificate of the secure port.
	ServingNames []string
	// MinTLS is the minimum version of TLS, a constant of crypto/tls; 0 means 1.2.
	MinTLS uint16
}

// AuthOptions are the options of the authentication of proxies.
type AuthOptions struct {
	// Audiences are what tokens must be for, one of them; empty means istio-ca.
	Audiences []string
	// Issuers are the OIDC issuers whose tokens are accepted.
	Issuers []authn.Rule
	// Gateways are the addresses whose header x-forwarded-client-cert is trusted.
	Gateways []netip.Prefix
	// CertificatesPerSecond is how many certificates one node, and one connection, may ask for in a
	// second; 0 means no limit.
	CertificatesPerSecond float64
}
