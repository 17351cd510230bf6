package settings

import (
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Defaults that packages of the control plane use, too.
const (
	// DefaultStreams is how many xDS streams are served at a time.
	DefaultStreams = 10_000
	// DefaultWatchdog is how long one change may take to apply until the control plane is not ready. The
	// largest meshes take seconds.
	DefaultWatchdog = 30 * time.Second
	// DefaultRemoteTimeout is how long the start waits for a remote cluster.
	DefaultRemoteTimeout = 30 * time.Second
	// DefaultKeyInterval is how often the keys of RequestAuthentications are fetched.
	DefaultKeyInterval = 20 * time.Minute
	// DefaultRegistrationGrace is how long a registered WorkloadEntry stays when its proxy has gone.
	DefaultRegistrationGrace = 10 * time.Second
	// DefaultWorkloadTTL is the life of a workload's certificate.
	DefaultWorkloadTTL = 24 * time.Hour
	// DefaultMaxTTL is the greatest life of a workload's certificate.
	DefaultMaxTTL = 2160 * time.Hour
	// DefaultRootTTL is the life of a root certificate that is made.
	DefaultRootTTL = 87600 * time.Hour
	// DefaultTokenTTL is the life of a token.
	DefaultTokenTTL = 12 * time.Hour
	// DefaultJoinTTL is the life of a join token.
	DefaultJoinTTL = time.Hour
	// DefaultCertificateRate is how many certificates one node may ask for in a second. An agent asks for
	// one at most.
	DefaultCertificateRate = "2"
)

// Discovery is the table of pilot-discovery discovery. [control-plane 1.1, 1.2]
var Discovery = Table{
	{Flag: "configDir", Kind: Text, Unit: "folder", Used: "internal/discovery/source/dir",
		Help: "`directory` of YAML files to read configuration from, and to watch, instead of a Kubernetes cluster"},
	{Flag: "kubeconfig", Kind: Text, Unit: "file", Used: "internal/discovery/source/kube",
		Help: "kubeconfig `file` of the cluster to read configuration from, without --configDir; by default $KUBECONFIG, or else the cluster of this Pod"},
	{Flag: "registries", Kind: List, Default: "Kubernetes", Unit: "list of names", Used: "cmd/pilot-discovery",
		Help: "`name` of where services are from: Kubernetes, or Mock for none but those in --configDir"},
	{Flag: "clusterID", Env: []string{"CLUSTER_ID"}, Kind: Text, Default: "Kubernetes", Required: true, Unit: "name", Used: "internal/discovery/source/kube",
		Help: "`name` of the cluster: the origin of what is read from it, and what agents call it (header clusterid)"},
	{Flag: "kubernetesApiQPS", Kind: Float, Default: "80", Unit: "requests per second", Used: "internal/kube",
		Help: "greatest lasting `rate` of requests to the API server; 0: no limit"},
	{Flag: "kubernetesApiBurst", Kind: Int, Default: "160", Min: 1, Unit: "requests", Used: "internal/kube",
		Help: "greatest `number` of requests to the API server at once"},
	{Flag: "meshConfig", Kind: Text, Default: "./etc/istio/config/mesh", Unit: "file", Used: "internal/discovery",
		Help: "`file` with mesh configuration, used if there is no ConfigMap istio; it need not exist"},
	{Flag: "stateDir", Kind: Text, Default: "./var/lib/pilothouse", Required: true, Unit: "folder", Used: "internal/discovery",
		Help: "`directory` that keeps the root certificate, keys and the last good configuration"},
	{Flag: "accept-empty-config", Env: []string{"PILOTHOUSE_ACCEPT_EMPTY_CONFIG"}, Kind: Bool, Unit: "switch", Used: "internal/discovery",
		Help: "serve an empty configuration although objects were saved"},
	{Flag: "broken-policies", Env: []string{"PILOTHOUSE_BROKEN_POLICIES"}, Kind: Enum, Default: "deny", Values: []string{"deny", "ignore"}, Unit: "mode", Used: "internal/discovery",
		Help: "`treatment` of an invalid security policy without a last good value: deny what it might select, or ignore it"},
	{Flag: "vhds", Env: []string{"PILOTHOUSE_ENABLE_VHDS"}, Kind: Bool, Default: "true", Unit: "switch", Used: "internal/discovery/compile",
		Help: "send the virtual hosts of shared ports one by one to proxies that accept it; false: whole route configurations"},
	{Flag: "domain", Kind: Text, Default: "cluster.local", Required: true, Unit: "DNS suffix", Used: "internal/discovery/model",
		Help: "DNS `suffix` of services"},
	{Flag: "namespace", Env: []string{"POD_NAMESPACE"}, Kind: Text, Default: mesh.DefaultRootNamespace, Required: true, Unit: "namespace", Used: "internal/discovery",
		Help: "`namespace` that the control plane runs in"},
	{Flag: "httpAddr", Kind: Text, Default: ":8080", Unit: "host:port", Used: "internal/discovery",
		Help: "`address` for readiness and debugging"},
	{Flag: "grpcAddr", Kind: Text, Default: "127.0.0.1:15010", Unit: "host:port", Used: "internal/discovery",
		Help: "`address` for xDS in plaintext, without authentication; empty serves none"},
	{Flag: "secureGRPCAddr", Kind: Text, Default: ":15012", Unit: "host:port", Used: "internal/discovery",
		Help: "`address` for xDS and certificates over TLS; empty serves none"},
	{Flag: "plaintext-certificates", Env: []string{"PILOTHOUSE_PLAINTEXT_CERTIFICATES"}, Kind: Bool, Unit: "switch", Used: "internal/discovery",
		Help: "serve certificates at --grpcAddr too, where tokens are sent in plaintext"},
	{Flag: "monitoringAddr", Kind: Text, Default: ":15014", Unit: "host:port", Used: "internal/discovery",
		Help: "`address` for metrics; empty serves none"},
	{Flag: "prometheusURL", Env: []string{"PILOT_UI_PROMETHEUS"}, Kind: Text, Unit: "URL", Used: "internal/discovery/traffic",
		Help: "`URL` of the Prometheus server that has the metrics of the mesh, which is asked for the rates and errors that the page at /ui shows, while one is open; by default none (docs/ui.md)"},
	{Flag: "httpsAddr", Kind: Text, Default: ":15017", Unit: "host:port", Used: "internal/discovery/webhook",
		Help: "`address` for the admission webhooks over TLS; empty serves none (docs/webhooks.md)"},
	{Flag: "tlsCertFile", Kind: Text, Unit: "file", Used: "internal/discovery/webhook",
		Help: "`file` with the certificate of --httpsAddr and its chain, in PEM, followed; without it, the mesh's CA signs one"},
	{Flag: "tlsKeyFile", Kind: Text, Unit: "file", Used: "internal/discovery/webhook",
		Help: "`file` with the key of --tlsCertFile"},
	{Flag: "caCertFile", Kind: Text, Unit: "file", Used: "internal/discovery/webhook",
		Help: "`file` with the roots that verify --tlsCertFile, for caBundle of the webhook configurations; without it, caBundle is left as it is"},
	{Flag: "validation-failure-policy", Env: []string{"PILOTHOUSE_VALIDATION_FAILURE_POLICY"}, Kind: Enum, Default: "closed", Values: []string{"closed", "open"}, Unit: "mode", Used: "internal/discovery/webhook",
		Help: "`mode` of the validation while the control plane cannot be asked: closed refuses objects once it is known to work, open admits them"},
	{Flag: "keepaliveInterval", Kind: Duration, Default: "30s", Unit: "duration", Used: "internal/discovery",
		Help: "`silence` after which a gRPC connection is probed"},
	{Flag: "keepaliveTimeout", Kind: Duration, Default: "10s", Unit: "duration", Used: "internal/discovery",
		Help: "how long the answer to a probe may take"},
	{Flag: "keepaliveMaxServerConnectionAge", Kind: Duration, Unit: "duration", Used: "internal/discovery",
		Help: "maximum `age` of a gRPC connection, with a jitter of 10 %, so that load is spread; 0: no limit"},
	{Flag: "maxStreams", Kind: Int, Number: DefaultStreams, Min: 1, Unit: "streams", Used: "internal/discovery/xds",
		Help: "`number` of xDS streams served at a time: one for each proxy, and some more while many restart"},
	{Flag: "shutdownDuration", Kind: Duration, Default: "10s", Unit: "duration", Used: "internal/discovery",
		Help: "`time` for open requests to end, those for certificates too"},
	{Flag: "streamDrainDuration", Kind: Duration, Default: "1s", Unit: "duration", Used: "internal/discovery/xds",
		Help: "`time` within which xDS streams end when the program stops, spread over it so that other instances do not get all proxies at once"},
	{Flag: "watchdogTimeout", Kind: Duration, Number: int64(DefaultWatchdog), Positive: true, Unit: "duration", Used: "internal/discovery",
		Help: "`time` that one change may take to apply; when it takes longer, /ready fails until it is applied"},
	{Flag: "servingName", Kind: List, Unit: "list of names", Used: "internal/discovery/ca",
		Help: "further host `name` or IP address under which proxies reach the secure port"},
	{Flag: "tls-min-version", Kind: Enum, Default: "1.2", Values: []string{"1.2", "1.3"}, Unit: "version", Used: "internal/discovery",
		Help: "lowest TLS `version` of the secure port"},
	{Flag: "log_output_level", Kind: Text, Default: "info", Unit: "levels", Used: "cmd/pilot-discovery",
		Help: "`level`, or scope:level,… of which the most detailed is used: debug, info, warn, error, none"},
	{Flag: "log_as_json", Kind: Bool, Unit: "switch", Used: "cmd/pilot-discovery",
		Help: "write the log as JSON"},

	{Env: []string{"POD_NAME"}, Kind: Text, Otherwise: "the host's name", Unit: "name", Used: "internal/discovery",
		Help: "name of this instance among the replicas, which istioctl shows"},
	{Env: []string{"KUBECONFIG"}, Kind: Text, Unit: "file", Used: "internal/discovery/source/kube",
		Help: "kubeconfig file, if there are neither --kubeconfig nor --configDir"},
	{Env: []string{"KUBERNETES_SERVICE_HOST"}, Kind: Text, Unit: "host", Used: "internal/kube",
		Help: "set in each Pod by Kubernetes: the API server that is read if there is neither a kubeconfig file nor --configDir"},
	{Env: []string{"ISTIO_WATCH_NAMESPACE"}, Kind: Text, Unit: "namespace", Used: "internal/discovery/source/kube",
		Help: "the one namespace of the cluster whose objects are read; Nodes and the mesh configuration are read in any case"},
	{Env: []string{"PILOT_IGNORE_RESOURCES"}, Kind: List, Unit: "list of resources", Used: "internal/discovery/source/kube",
		Help: "resources of the cluster that are not read, such as sidecars.networking.istio.io or *.istio.io; a * stands for Istio's resources only"},
	{Env: []string{"PILOT_INCLUDE_RESOURCES"}, Kind: List, Unit: "list of resources", Used: "internal/discovery/source/kube",
		Help: "resources that are read although PILOT_IGNORE_RESOURCES has them"},
	{Env: []string{"PILOT_REMOTE_CLUSTER_TIMEOUT"}, Kind: Duration, Number: int64(DefaultRemoteTimeout), Positive: true, Unit: "duration", Used: "internal/discovery/source/multi",
		Help: "how long the start waits for each remote cluster, and each directory of configSources (docs/multicluster.md)"},
	{Env: []string{"PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS"}, Kind: List, Unit: "list of options", Used: "internal/kube",
		Help: "what the kubeconfigs of remote clusters may have: exec, authProvider, tokenFile, clientCertificate, clientKey, certificateAuthority, insecureSkipTLSVerify"},
	{Env: []string{"REVISION"}, Kind: Text, Default: "default", Unit: "name", Used: "internal/discovery/webhook",
		Help: "revision of the control plane: the label istio.io/rev of its webhook configurations, and a name of its certificate; Istio's objects with this label of another one are not used"},
	{Env: []string{"ENABLE_NATIVE_SIDECARS"}, Kind: Enum, Default: "auto", Values: []string{"auto", "true", "false"}, Unit: "mode", Used: "internal/discovery/inject",
		Help: "when an injected proxy is a native sidecar; auto: if all nodes that may run the Pod have Kubernetes 1.33 or later"},
	{Env: []string{"INJECTION_WEBHOOK_CONFIG_NAME"}, Kind: Text, Default: "istio-sidecar-injector", Unit: "name", Used: "internal/discovery/webhook",
		Help: "MutatingWebhookConfiguration of the injector, with or without the revision and the namespace at its end; others are found by the label istio.io/rev"},
	{Env: []string{"VALIDATION_WEBHOOK_CONFIG_NAME"}, Kind: Text, Default: "istio-istio-system", Unit: "name", Used: "internal/discovery/webhook",
		Help: "ValidatingWebhookConfiguration, as INJECTION_WEBHOOK_CONFIG_NAME; istio-validator, as in Istio's charts, is always meant too"},
	{Env: []string{"TRUST_DOMAIN"}, Kind: Text, Otherwise: "that of the mesh configuration, else cluster.local", Unit: "trust domain", Used: "internal/discovery",
		Help: "trust domain of identities (docs/trust-domain.md)"},
	{Env: []string{"ISTIOD_CUSTOM_HOST"}, Kind: List, Unit: "list of names", Used: "internal/discovery/ca",
		Help: "further names of the secure port, as --servingName"},
	{Env: []string{"DEFAULT_WORKLOAD_CERT_TTL"}, Kind: Duration, Number: int64(DefaultWorkloadTTL), Positive: true, Unit: "duration", Used: "internal/discovery/ca",
		Help: "life of a workload's certificate if its request names none"},
	{Env: []string{"MAX_WORKLOAD_CERT_TTL"}, Kind: Duration, Number: int64(DefaultMaxTTL), Positive: true, Unit: "duration", Used: "internal/discovery/ca",
		Help: "greatest life of a workload's certificate"},
	{Env: []string{"JWT_RULE"}, Kind: Text, Unit: "JSON", Used: "internal/discovery/authn",
		Help: "OIDC issuer whose tokens authenticate workloads, as Istio's JWTRule: issuer, audiences, jwks_uri or jwks, timeout; or a list of these (docs/authentication.md)"},
	{Env: []string{"TOKEN_AUDIENCES"}, Kind: List, Default: mesh.TokenAudience, Unit: "list of audiences", Used: "internal/discovery/authn",
		Help: "audiences of which a workload's token must have one, where JWT_RULE names none"},
	{Env: []string{"PILOT_JWT_PUB_KEY_REFRESH_INTERVAL"}, Kind: Duration, Number: int64(DefaultKeyInterval), Positive: true, Unit: "duration", Used: "internal/discovery/jwks",
		Help: "how often the keys that RequestAuthentications name with jwksUri are fetched (docs/tokens.md)"},
	{Env: []string{"PILOT_JWT_ENABLE_REMOTE_JWKS"}, Kind: Enum, Default: "false", Values: []string{"false", "istiod", "true", "hybrid", "envoy"}, AnyCase: true, Unit: "mode", Used: "internal/discovery/jwks",
		Help: "who fetches the keys that RequestAuthentications name with jwksUri: pilot-discovery (false, istiod), proxies from services of the mesh and pilot-discovery from others (true, hybrid), or proxies only (envoy)"},
	{Env: []string{"BLOCKED_CIDRS_IN_JWKS_URIS"}, Kind: List, Unit: "list of CIDRs", Used: "internal/discovery/jwks",
		Help: "addresses that are not asked for keys, besides those of this host, link-local ones and metadata services, which never are"},
	{Env: []string{"JWKS_RESOLVER_INSECURE_SKIP_VERIFY"}, Kind: Bool, Unit: "switch", Used: "internal/discovery/jwks",
		Help: "do not verify the certificates of servers that keys are fetched from"},
	{Env: []string{"TRUSTED_GATEWAY_CIDR"}, Kind: List, Unit: "list of CIDRs", Used: "internal/discovery/authn",
		Help: "addresses of gateways that authenticate clients and pass their identity in the header x-forwarded-client-cert (docs/authentication.md)"},
	{Env: []string{"PILOTHOUSE_CERTIFICATES_PER_SECOND"}, Kind: Float, Default: DefaultCertificateRate, Unit: "requests per second", Used: "internal/discovery/authn",
		Help: "how many certificates one node, and one connection, may ask for in a second; after a pause, as many at once as in 10 s; 0: no limit"},
	{Env: []string{"CITADEL_SELF_SIGNED_CA_CERT_TTL"}, Kind: Duration, Number: int64(DefaultRootTTL), Positive: true, Unit: "duration", Used: "internal/discovery/ca",
		Help: "life of a root certificate that is made"},
	{Env: []string{"CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE"}, Kind: Enum, Values: []string{"", "2048", "3072", "4096"}, Unit: "bits", Used: "internal/discovery/ca",
		Help: "size of the RSA key of a root certificate that is made; without it the key is ECDSA, P-256"},
	{Env: []string{"ROOT_CA_DIR"}, Kind: Text, Default: "./etc/cacerts", Unit: "folder", Used: "internal/discovery/ca",
		Help: "directory with the files of a CA, as in the Secret cacerts, watched; without a CA in it, the root is in the Secret istio-ca-secret, or in --stateDir with --configDir (docs/certificates.md)"},
	{Env: []string{"PILOT_CA_CERT_CONFIGMAP"}, Kind: Text, Default: "istio-ca-root-cert", Unit: "name", Used: "internal/discovery/rootconfigmap",
		Help: "ConfigMap with the trusted roots in each namespace (docs/ca.md)"},
	{Env: []string{"ENABLE_LEADER_ELECTION"}, Kind: Bool, Default: "true", Unit: "switch", Used: "internal/kube/leader",
		Help: "elect the replica that writes objects; false: this one does, which must be the only one"},
	{Env: []string{"PILOT_ENABLE_WORKLOAD_ENTRY_AUTOREGISTRATION"}, Kind: Bool, Default: "true", Unit: "switch", Used: "internal/discovery/registrar",
		Help: "write a WorkloadEntry when a proxy with ISTIO_META_AUTO_REGISTER_GROUP connects (docs/vms.md)"},
	{Env: []string{"PILOT_ENABLE_WORKLOAD_ENTRY_HEALTHCHECKS"}, Kind: Bool, Default: "true", Unit: "switch", Used: "internal/discovery/registrar",
		Help: "write the health that a registered proxy reports to its WorkloadEntry, which is an endpoint only while it is healthy"},
	{Env: []string{"PILOT_WORKLOAD_ENTRY_GRACE_PERIOD"}, Kind: Duration, Number: int64(DefaultRegistrationGrace), Positive: true, Unit: "duration", Used: "internal/discovery/registrar",
		Help: "how long a registered WorkloadEntry stays when its proxy has gone"},
	{Env: []string{"GOGC"}, Kind: Text, Otherwise: "20 to 50", Unit: "percent", Used: "cmd/pilot-discovery/memory.go",
		Help: "growth of the heap between two collections; by default less while more and more is in use"},
	{Env: []string{"GOMEMLIMIT"}, Kind: Text, Otherwise: "nine tenths of the control group's limit", Unit: "bytes", Used: "cmd/pilot-discovery/memory.go",
		Help: "memory that the process tries to stay below"},
	{Env: []string{"PILOT_ENABLE_STATUS"}, Kind: Bool, Default: "true", Unit: "switch", Used: "internal/discovery/statuswriter",
		Help: "write to the status of Istio's objects how many proxies have applied them, and what is wrong with them (docs/status.md)"},
	{Env: []string{"PILOT_STATUS_QPS"}, Kind: Float, Default: "10", Positive: true, Unit: "writes per second", Used: "internal/discovery/statuswriter",
		Help: "how many statuses are written in a second"},
	{Env: []string{"PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER"}, Kind: Bool, Default: "true", Unit: "switch", Used: "internal/discovery/deployer",
		Help: "make a Deployment, a Service and a ServiceAccount for each Gateway of the Gateway API (docs/gateway-api.md)"},
	{Env: []string{"ENABLE_CA_SERVER"}, Kind: Bool, Default: "true", Unit: "switch", Used: "internal/discovery",
		Help: "serve certificates to workloads"},
	{Env: []string{"CITADEL_SELF_SIGNED_ROOT_CERT_CHECK_INTERVAL"}, Kind: Duration, Default: "1h", Positive: true, Unit: "duration", Used: "internal/discovery/ca",
		Help: "how often to warn of the end of the CA's certificate, and the longest delay of a rotation by jitter"},
	{Env: []string{"CITADEL_SELF_SIGNED_ROOT_CERT_GRACE_PERIOD_PERCENTILE"}, Kind: Int, Default: "20", Min: 1, Max: 50, Unit: "percent", Used: "internal/discovery/ca",
		Help: "share of the self-signed root's life that is left when its rotation begins by itself (docs/ca.md)"},
	{Env: []string{"CITADEL_ENABLE_JITTER_FOR_ROOT_CERT_ROTATOR"}, Kind: Bool, Default: "true", Unit: "switch", Used: "internal/discovery/ca",
		Help: "vary the time of the root's rotation, so that meshes that began together do not rotate together"},
	{Env: []string{"PILOT_ENABLE_MONGO_FILTER"}, Kind: Bool, Default: "true", Unit: "switch", Used: "internal/discovery/compile",
		Help: "at ports declared as mongo Envoy counts operations (filter mongo_proxy)"},
	{Env: []string{"PILOT_ENABLE_REDIS_FILTER"}, Kind: Bool, Unit: "switch", Used: "internal/discovery/compile",
		Help: "at ports declared as redis Envoy forwards commands, not connections (filter redis_proxy): no limits, logs and metrics of TCP"},
	{Env: []string{"PILOT_ENABLE_PERSISTENT_SESSION_FILTER"}, Kind: Bool, Unit: "switch", Used: "internal/discovery/compile",
		Help: "keep the requests of a session at one endpoint of services with the label istio.io/persistent-session (a cookie) or istio.io/persistent-session-header"},
	{Env: []string{"PILOT_SEND_UNHEALTHY_ENDPOINTS"}, Kind: Bool, Unit: "switch", Used: "internal/discovery/compile",
		Help: "send endpoints that are not ready, as unhealthy ones; where outlierDetection has a minHealthPercent, Envoy may use them"},
	{Env: []string{"PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS"}, Kind: Bool, Unit: "switch", Used: "internal/discovery/compile",
		Help: "send endpoints that are not ready, as unhealthy ones, except where outlierDetection has a minHealthPercent"},
	{Env: []string{"PILOT_TRACE_SAMPLING"}, Kind: Float, Default: "1", Max: 100, Unit: "percent", Used: "internal/discovery/compile",
		Help: "share of requests that are traced where neither a Telemetry nor the proxy says it"},
	{Env: []string{"PILOT_ENABLE_PROTOCOL_SNIFFING_FOR_OUTBOUND"}, Kind: Bool, Default: "true", Unit: "switch", Used: "internal/discovery/compile",
		Help: "detect the protocol of outbound ports that declare none; false: TCP"},
	{Env: []string{"PILOT_ENABLE_PROTOCOL_SNIFFING_FOR_INBOUND"}, Kind: Bool, Default: "true", Unit: "switch", Used: "internal/discovery/compile",
		Help: "detect the protocol of inbound ports that declare none; false: TCP"},
	{Env: []string{"PILOT_ENABLE_QUIC_LISTENERS"}, Kind: Bool, Unit: "switch", Used: "internal/discovery/compile",
		Help: "serve HTTP/3 beside HTTPS at gateways whose Service has a port of UDP with the same number"},
	{Env: []string{"PILOT_ENABLE_IP_AUTOALLOCATE"}, Kind: Bool, Default: "true", Unit: "switch", Used: "internal/discovery/compile",
		Help: "allocate addresses for ServiceEntries without addresses; false: only for proxies with ISTIO_META_DNS_AUTO_ALLOCATE, and they are not written to the ServiceEntries"},
	{Env: []string{"PILOT_MAX_REQUESTS_PER_SECOND"}, Kind: Float, Unit: "streams per second", Used: "internal/discovery/xds",
		Help: "how many xDS streams may begin in a second; more wait for 1 s and are then refused; 0: no limit"},
	{Env: []string{"ENABLE_DEBUG_ENDPOINT_AUTH"}, Kind: Bool, Default: "true", Unit: "switch", Used: "internal/discovery",
		Help: "answer debug requests only of this host and of the control plane's namespace"},
}

// DiscoveryRequest is the table of pilot-discovery request.
var DiscoveryRequest = Table{
	{Flag: "debug-port", Kind: Port, Default: "8080", Unit: "port", Used: "cmd/pilot-discovery/request.go",
		Help: "the `port` of --httpAddr"},
}
