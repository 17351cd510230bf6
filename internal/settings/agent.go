package settings

import (
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// DefaultSecretTTL is the life that is asked for of a workload's certificate.
const DefaultSecretTTL = 24 * time.Hour

// AgentProxy is the table of pilot-agent proxy. Its variables are read from the environment and
// from proxyMetadata beneath it, but PROXY_CONFIG and PROXY_CONFIG_FILE from the environment only,
// and those of the Go runtime by the runtime. [agent 1.2, 1.4]
var AgentProxy = Table{
	{Flag: "domain", Kind: Text, Otherwise: "$POD_NAMESPACE.svc.cluster.local", Unit: "DNS suffix", Used: "internal/agent/spec",
		Help: "DNS `suffix` of the node"},
	{Flag: "meshConfig", Kind: Text, Default: "./etc/istio/config/mesh", Unit: "file", Used: "internal/agent/spec",
		Help: "`file` with the mesh's configuration; it may be missing"},
	{Flag: "stsPort", Kind: Int, Max: 65535, Unit: "port", Used: "internal/agent/spec",
		Help: "`port` of the token service (RFC 8693), at localhost; also in the node's metadata; 0 for none"},
	{Flag: "tokenManagerPlugin", Kind: Enum, Values: []string{"", "GoogleTokenExchange"}, Unit: "name", Used: "internal/agent/sts",
		Help: "`name` of what exchanges the tokens; without one the token service refuses all requests"},
	{Flag: "serviceCluster", Kind: Text, Otherwise: "from the workload's labels", Unit: "name", Used: "internal/agent/spec",
		Help: "`name` of the proxy's service"},
	{Flag: "proxyLogLevel", Kind: Text, Default: "warning", Unit: "level", Used: "internal/agent/spec",
		Help: "Envoy's log `level`, possibly followed by component:level,…"},
	{Flag: "proxyComponentLogLevel", Kind: Text, Unit: "levels", Used: "internal/agent/spec",
		Help: "log `levels` of Envoy's components, component:level,…"},
	{Flag: "concurrency", Kind: Int, Max: 32767, Unit: "workers", Used: "internal/agent/spec",
		Help: "`number` of Envoy's workers; 0 leaves it to the configuration and the CPU limit"},
	{Flag: "templateFile", Env: []string{"ISTIO_BOOTSTRAP"}, Kind: Text, Unit: "file", Used: "internal/agent/spec",
		Help: "`file` with a template of Envoy's bootstrap: refused but for Istio's own, because the bootstrap is built; ISTIO_BOOTSTRAP_OVERRIDE changes it"},
	{Flag: "outlierLogPath", Kind: Text, Unit: "file", Used: "internal/agent/bootstrap",
		Help: "`file` for the endpoints that Envoy ejects"},
	{Flag: "watchCapture", Env: []string{"CAPTURE_WATCH"}, Kind: Text, Unit: "arguments", Used: "cmd/pilot-agent/iptables_watch.go",
		Help: "`arguments` of istio-iptables whose rules to keep in force, restoring them when others flush them; needs CAP_NET_ADMIN; empty: don't watch"},
	{Flag: "compat", Kind: Enum, Values: []string{"", "istio"}, Unit: "mode", Used: "internal/agent/spec",
		Help: "`mode` without second attempts, hot restarts and Envoy's own exit codes: one Envoy, exit code 0"},
	{Flag: "profiling", Kind: Bool, Default: "true", Unit: "switch", Used: "internal/agent/status",
		Help: "serve profiles on the status port, to this machine"},

	// Who the node is. [agent E1, E3, E14]
	{Env: []string{"INSTANCE_IP"}, Kind: List, Unit: "list of IP addresses", Used: "internal/agent/spec",
		Help: "addresses of the node, before those of its interfaces"},
	{Env: []string{"POD_NAME"}, Kind: Text, Otherwise: "the host name, else unnamed", Unit: "name", Used: "internal/agent/spec",
		Help: "name of the Pod, first part of the node's id"},
	{Env: []string{"POD_NAMESPACE"}, Kind: Text, Default: "default", Unit: "namespace", Used: "internal/agent/spec",
		Help: "namespace of the workload"},
	{Env: []string{"SERVICE_ACCOUNT"}, Kind: Text, Default: "default", Unit: "name", Used: "internal/agent/spec",
		Help: "service account of the workload"},
	{Env: []string{"TRUST_DOMAIN"}, Kind: Text, Default: mesh.DefaultTrustDomain, Unit: "trust domain", Used: "internal/agent/spec",
		Help: "trust domain of the identity that is asked for; the control plane's counts"},
	{Env: []string{"ISTIO_META_*"}, Kind: Text, Unit: "text", Used: "internal/agent/spec",
		Help: "keys of the node's metadata, without the prefix"},
	{Env: []string{"ISTIO_METAJSON_*"}, Kind: Text, Unit: "JSON object", Used: "internal/agent/spec",
		Help: "objects that are merged into the node's metadata; LABELS and ANNOTATIONS add to those of the Pod"},
	{Env: []string{"ISTIO_META_ENABLE_SELF_DISCOVERY"}, Kind: Bool, Unit: "switch", Used: "internal/agent/bootstrap",
		Help: "have Envoy ask for the endpoints of its own service (local_cluster), for zone-aware routing"},
	{Env: []string{"ISTIO_META_LOAD_STATS_CONFIG_JSON"}, Kind: Text, Unit: "JSON of an ApiConfigSource", Used: "internal/agent/bootstrap",
		Help: "where Envoy reports its load, by a cluster that the bootstrap has"},
	{Env: []string{"ISTIO_META_CLUSTER_ID"}, Kind: Text, Unit: "name", Used: "internal/agent/upstream",
		Help: "the node's cluster, sent as the header ClusterID to discovery and the CA"},
	{Env: []string{"ISTIO_META_OWNER"}, Kind: Text, Unit: "URL", Used: "internal/agent/spec",
		Help: "owner of the Pod; if it is a Job, EXIT_WITH_APP is true by default"},

	{Env: []string{"CLOUD_PLATFORM"}, Kind: Enum, Default: "none", Values: []string{"none", "gcp", "aws", "azure", "auto"}, AnyCase: true, Unit: "cloud", Used: "internal/agent/cloud",
		Help: "cloud whose metadata server is asked where the machine is, beside the start; auto asks all of them, once"},

	// The configuration. [agent E2, E28]
	{Env: []string{"PROXY_CONFIG"}, Kind: Text, Unit: "YAML or JSON", Used: "internal/agent/spec",
		Help: "ProxyConfig, merged over that of the mesh"},
	{Env: []string{"PROXY_CONFIG_FILE"}, Kind: Text, Unit: "file", Used: "internal/agent/spec",
		Help: "file with a ProxyConfig, merged over PROXY_CONFIG and watched"},
	{Env: []string{"ISTIO_CPU_LIMIT"}, Kind: Float, Max: 32767, Otherwise: "the control group's limit", Unit: "cores", Used: "internal/agent/spec",
		Help: "number of Envoy's workers, rounded up, if neither --concurrency nor the configuration says it"},

	// Discovery and the CA. [agent E4, E8, E11–E13, E18, E19, E21, E32]
	{Env: []string{"CA_ADDR"}, Kind: List, Otherwise: "discoveryAddress of the configuration", Unit: "list of host:port", Used: "internal/agent/secret",
		Help: "addresses of the CA; the next one is asked if one does not answer"},
	{Env: []string{"XDS_ROOT_CA"}, Kind: Text, Otherwise: "see docs/compatibility/agent/identity.md", Unit: "file", Used: "internal/agent/identity",
		Help: "root certificates for discovery; SYSTEM: those of the machine"},
	{Env: []string{"CA_ROOT_CA"}, Kind: Text, Otherwise: "see docs/compatibility/agent/identity.md", Unit: "file", Used: "internal/agent/identity",
		Help: "root certificates for the CA; SYSTEM: those of the machine"},
	{Env: []string{"PILOT_CERT_PROVIDER"}, Kind: Enum, Default: "istiod", Values: []string{"istiod", "kubernetes", "custom", "none"}, AnyCase: true, Unit: "name", Used: "internal/agent/identity",
		Help: "where the root certificates are if no variable names them"},
	{Env: []string{"ISTIOD_SAN"}, Kind: Text, Otherwise: "the host of the address", Unit: "name", Used: "internal/agent/upstream",
		Help: "name that the certificates of discovery and the CA must have"},
	{Env: []string{"CREDENTIAL_FETCHER_TYPE"}, Kind: Enum, Default: "JWT", Values: []string{"JWT", "GoogleComputeEngine"}, AnyCase: true, Unit: "name", Used: "internal/agent/upstream",
		Help: "where the token comes from: a file, or the metadata server of a virtual machine of Google Compute Engine"},
	{Env: []string{"CREDENTIAL_TOKEN_FILE"}, Kind: Text, Default: "./var/run/secrets/tokens/istio-token", Unit: "file", Used: "internal/agent/upstream",
		Help: "file of the token, which is read for each call"},
	{Env: []string{"GCE_METADATA_HOST"}, Kind: Text, Default: "169.254.169.254", Unit: "host or host:port", Used: "internal/agent/upstream",
		Help: "metadata server, with CREDENTIAL_FETCHER_TYPE GoogleComputeEngine or CLOUD_PLATFORM gcp"},
	{Env: []string{"XDS_HEADER_*"}, Kind: Text, Unit: "text", Used: "internal/agent/upstream",
		Help: "headers of each call to discovery, named by what follows the prefix"},
	{Env: []string{"CA_HEADER_*"}, Kind: Text, Unit: "text", Used: "internal/agent/upstream",
		Help: "headers of each call to the CA, named by what follows the prefix"},
	{Env: []string{"GRPC_KEEPALIVE_INTERVAL"}, Kind: Duration, Default: "30s", Unit: "duration", Used: "internal/agent/upstream",
		Help: "how long a connection is quiet before it is probed, at least 10s; 0: never"},
	{Env: []string{"GRPC_KEEPALIVE_TIMEOUT"}, Kind: Duration, Default: "10s", Unit: "duration", Used: "internal/agent/upstream",
		Help: "how long the answer to a probe may take"},
	{Env: []string{"PROXY_CONFIG_XDS_AGENT"}, Kind: Bool, Default: "true", Unit: "switch", Used: "internal/agent/trust",
		Help: "ask discovery for the mesh's trust bundle, and trust it besides the roots of the CA's answer"},
	{Env: []string{"BOOTSTRAP_XDS_AGENT"}, Kind: Bool, Unit: "switch", Used: "internal/agent/dynamic",
		Help: "ask discovery what EnvoyFilters change in Envoy's bootstrap, and merge it into the one that the agent builds"},
	{Env: []string{"BOOTSTRAP_XDS_WAIT"}, Kind: Duration, Default: "1s", Unit: "duration", Used: "internal/agent/dynamic",
		Help: "how long Envoy's first start waits for that answer; then the last one that is kept is used, else what the agent builds"},
	{Env: []string{"ISTIO_META_CERT_SIGNER"}, Kind: Text, Unit: "name", Used: "internal/agent/secret",
		Help: "signer that requests to the CA name"},

	{Env: []string{"COMPLIANCE_POLICY"}, Kind: Enum, Values: []string{"", "fips-140-2", "fips-140-3", "pqc"}, Unit: "policy", Used: "internal/pki",
		Help: "limits TLS of the agent and of Envoy, also what discovery sends: TLS 1.2 with AES-GCM and P-256; 1.2 and 1.3 with AES-GCM, P-256 and P-384; 1.3 with X25519MLKEM768"},

	// The token service. [agent T1–T5]
	{Env: []string{"GCP_METADATA"}, Kind: Text, Unit: "ID|number|cluster|location", Used: "internal/agent/sts",
		Help: "project of Google Cloud and cluster, for GoogleTokenExchange"},
	{Env: []string{"GKE_CLUSTER_URL"}, Kind: Text, Otherwise: "from GCP_METADATA", Unit: "URL", Used: "internal/agent/sts",
		Help: "issuer of the workload's tokens, which with TRUST_DOMAIN is the audience of federated tokens"},
	{Env: []string{"STS_AUDIENCE"}, Kind: Text, Otherwise: "identitynamespace:TRUST_DOMAIN:GKE_CLUSTER_URL", Unit: "text", Used: "internal/agent/sts",
		Help: "audience of federated tokens, if a client names none"},
	{Env: []string{"STS_SERVICE_ACCOUNT"}, Kind: Text, Otherwise: "that of the mesh's proxies in the project of GCP_METADATA, if it has a number", Unit: "e-mail address", Used: "internal/agent/sts",
		Help: "account of Google Cloud whose access tokens clients get; none: they get federated tokens"},
	{Env: []string{"STS_TOKEN_ENDPOINT"}, Kind: Text, Default: "https://sts.googleapis.com/v1/token", Unit: "URL", Used: "internal/agent/sts",
		Help: "where federated tokens come from"},
	{Env: []string{"STS_IAM_ENDPOINT"}, Kind: Text, Default: "https://iamcredentials.googleapis.com", Unit: "URL", Used: "internal/agent/sts",
		Help: "where access tokens of accounts come from"},
	{Env: []string{"STS_ROOT_CA"}, Kind: Text, Default: "SYSTEM", Unit: "file", Used: "internal/agent/sts",
		Help: "root certificates for both; SYSTEM: those of the machine"},

	// The workload's certificate. [agent E10, E14, E15, E17, E39]
	{Env: []string{"SECRET_TTL"}, Kind: Duration, Number: int64(DefaultSecretTTL), Unit: "duration", Used: "internal/agent/secret",
		Help: "life that is asked for; 0 is the default too"},
	{Env: []string{"SECRET_GRACE_PERIOD_RATIO"}, Kind: Ratio, Default: "0.5", Unit: "share, 0–1", Used: "internal/agent/secret",
		Help: "share of a certificate's life that is left when it is renewed"},
	{Env: []string{"SECRET_GRACE_PERIOD_RATIO_JITTER"}, Kind: Ratio, Default: "0.01", Unit: "share, 0–1", Used: "internal/agent/secret",
		Help: "greatest random change to SECRET_GRACE_PERIOD_RATIO"},
	{Env: []string{"ECC_SIGNATURE_ALGORITHM"}, Kind: Enum, Values: []string{"", "ECDSA", "RSA"}, AnyCase: true, Otherwise: "ECDSA", Unit: "algorithm", Used: "internal/pki",
		Help: "algorithm of the key"},
	{Env: []string{"ECC_CURVE"}, Kind: Enum, Values: []string{"", "P256", "P384", "P-256", "P-384"}, AnyCase: true, Otherwise: "P256", Unit: "curve", Used: "internal/pki",
		Help: "curve of an ECDSA key"},
	{Env: []string{"WORKLOAD_RSA_KEY_SIZE"}, Kind: Int, Max: 4096, Unit: "bits", Used: "internal/pki",
		Help: "size of an RSA key, 2048, 3072 or 4096; without ECC_SIGNATURE_ALGORITHM it asks for one"},
	{Env: []string{"PKCS8_KEY"}, Kind: Bool, Unit: "switch", Used: "internal/agent/secret",
		Help: "write the key as PKCS #8"},
	{Env: []string{"IDENTITY_COPY_DIR"}, Kind: Text, Otherwise: "configPath of the configuration if that is in memory", Unit: "folder", Used: "internal/agent/secret",
		Help: "folder for a copy of key and certificate, with which a restarted agent serves while the CA is away; none: keep no copy"},
	{Env: []string{"IDENTITY_COPY_KEY_FILE"}, Kind: Text, Unit: "file", Used: "internal/agent/secret",
		Help: "file of the random key that encrypts the copy, created if missing; required, on another volume, if the folder is not in memory"},
	{Env: []string{"XDS_COPY_DIR"}, Kind: Text, Otherwise: "/var/lib/istio/data if a volume is mounted there, else configPath of the configuration", Unit: "folder", Used: "internal/agent/lastgood",
		Help: "folder for a copy of what Envoy has acknowledged, with which a restarted agent serves while discovery is away; none: keep no copy"},
	{Env: []string{"XDS_COPY_MAX_AGE"}, Kind: Duration, Default: "24h", Unit: "duration", Used: "internal/agent/lastgood",
		Help: "time since the last connection to discovery after which the copy is not served"},
	{Env: []string{"PROV_CERT"}, Kind: Text, Unit: "folder", Used: "internal/agent/upstream",
		Help: "folder with a certificate to begin with"},
	{Env: []string{"OUTPUT_CERTS"}, Kind: Text, Unit: "folder", Used: "internal/agent/secret",
		Help: "folder for copies of certificate, key and roots"},
	{Env: []string{"KUBERNETES_SERVICE_HOST"}, Kind: Text, Unit: "host", Used: "internal/agent/spec",
		Help: "if set, the files in OUTPUT_CERTS have mode 0644 instead of 0600"},
	{Env: []string{"FILE_MOUNTED_CERTS"}, Kind: Bool, Unit: "switch", Used: "internal/agent/identity",
		Help: "take the certificate from the three files that follow"},
	{Env: []string{"ISTIO_META_TLS_CLIENT_CERT_CHAIN"}, Kind: Text, Unit: "file", Used: "internal/agent/identity",
		Help: "certificate chain, with FILE_MOUNTED_CERTS"},
	{Env: []string{"ISTIO_META_TLS_CLIENT_KEY"}, Kind: Text, Unit: "file", Used: "internal/agent/identity",
		Help: "key, with FILE_MOUNTED_CERTS"},
	{Env: []string{"ISTIO_META_TLS_CLIENT_ROOT_CERT"}, Kind: Text, Unit: "file", Used: "internal/agent/identity",
		Help: "root certificates, with FILE_MOUNTED_CERTS"},
	{Env: []string{"WORKLOAD_IDENTITY_SOCKET_FILE"}, Kind: Text, Default: "socket", Unit: "file name", Used: "internal/agent/sds",
		Help: "name of the SDS socket; without WORKLOAD_IDENTITY_SOCKET_POLICY, one of another name is another server's and must exist"},
	{Env: []string{"WORKLOAD_IDENTITY_SOCKET_POLICY"}, Kind: Enum, Values: []string{"", "require", "prefer", "ignore"}, Otherwise: "prefer", Unit: "policy", Used: "internal/agent/startup",
		Help: "another server's SDS socket (SPIRE): wait for it, use it if it answers at the start, or refuse to start beside it"},
	{Env: []string{"WORKLOAD_IDENTITY_SOCKET_MODE"}, Kind: Text, Default: "0666", Unit: "octal mode", Used: "internal/agent/sds",
		Help: "mode of the SDS socket"},
	{Env: []string{"WORKLOAD_IDENTITY_SOCKET_OWNER"}, Kind: Text, Otherwise: "the agent's user and group", Unit: "UID:GID", Used: "internal/agent/sds",
		Help: "owner of the SDS socket"},
	{Env: []string{"WORKLOAD_IDENTITY_SOCKET_UIDS"}, Kind: List, Unit: "list of users", Used: "internal/agent/sds",
		Help: "users who get the workload's secrets, and who may serve them, beside root, the agent's and Envoy's; *: every user"},
	{Env: []string{"PILOT_ENABLE_CA_CRL"}, Kind: Bool, Default: "true", Unit: "switch", Used: "internal/agent/secret",
		Help: "give Envoy the revocation list ./var/run/secrets/istio/crl/ca-crl.pem, if it exists"},

	// Envoy. [agent E20, E22, E23, E25–E27, E30, E36]
	{Env: []string{"ENVOY_STATUS_PORT"}, Kind: Port, Number: mesh.HealthPort, Unit: "port", Used: "internal/agent/bootstrap",
		Help: "port of Envoy's listener for readiness"},
	{Env: []string{"ENVOY_PROMETHEUS_PORT"}, Kind: Port, Number: mesh.PrometheusPort, Unit: "port", Used: "internal/agent/bootstrap",
		Help: "port of Envoy's listener for its own metrics"},
	{Env: []string{"ENVOY_SECURE_METRICS_PORT"}, Kind: Int, Max: 65535, Unit: "port", Used: "internal/agent/bootstrap",
		Help: "port of Envoy's metrics over mutual TLS, for clients of the mesh; 0 for none"},
	{Env: []string{"ENVOY_SECURE_MERGED_METRICS_PORT"}, Kind: Int, Max: 65535, Unit: "port", Used: "internal/agent/bootstrap",
		Help: "port of the metrics of agent, Envoy and application over mutual TLS, for clients of the mesh; 0 for none"},
	{Env: []string{"ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL"}, Kind: Bool, Unit: "switch", Used: "internal/agent/bootstrap",
		Help: "take the PROXY protocol on ENVOY_STATUS_PORT, from clients that send it"},
	{Env: []string{"DISABLE_ENVOY"}, Kind: Bool, Unit: "switch", Used: "internal/agent/spec",
		Help: "run without an Envoy, for applications whose gRPC library is a proxy of its own"},
	{Env: []string{"GRPC_XDS_BOOTSTRAP"}, Kind: Text, Unit: "file", Used: "internal/agent/bootstrap",
		Help: "file for the bootstrap of gRPC libraries; empty for none; by default grpc-bootstrap.json in the folder of the configuration"},
	{Env: []string{"ISTIO_DELTA_XDS"}, Kind: Bool, Default: "true", Unit: "switch", Used: "internal/agent/bootstrap",
		Help: "ask for changes only; false: for the state of the world"},
	{Env: []string{"ISTIO_DUAL_STACK"}, Kind: Bool, Unit: "switch", Used: "internal/agent/bootstrap",
		Help: "listen on both families of addresses"},
	{Env: []string{"ISTIO_ENVOY_ENABLE_CORE_DUMP"}, Kind: Bool, Unit: "switch", Used: "internal/agent/spec",
		Help: "let Envoy write core dumps"},
	{Env: []string{"ENVOY_SKIP_DEPRECATED_LOGS"}, Kind: Bool, Default: "true", Unit: "switch", Used: "internal/agent/spec",
		Help: "have Envoy not log the use of deprecated fields; also in the node's metadata"},
	{Env: []string{"ENVOY_USER"}, Kind: Text, Default: "istio-proxy", Unit: "user", Used: "internal/agent/spec",
		Help: "user that Envoy runs as if the agent is root to serve DNS on port 53; 1337 if there is no such user"},
	{Env: []string{"INBOUND_INTERCEPTION_MODE"}, Kind: Text, Unit: "mode", Used: "internal/agent/spec",
		Help: "how inbound connections are captured; under TPROXY Envoy keeps the agent's user"},
	{Env: []string{"ENABLE_DEFERRED_CLUSTER_CREATION"}, Kind: Bool, Unit: "switch", Used: "internal/agent/bootstrap",
		Help: "let Envoy make a cluster when it is first used"},
	{Env: []string{"XDS_DEBUG_PORT"}, Kind: Int, Max: 65535, Unit: "port", Used: "internal/agent/tap.go",
		Help: "serve pages of discovery's /debug at this port of localhost, as 15004 of early versions of Istio; 0: only below /debug/xds/ of the status port"},
	{Env: []string{"METRICS_LOCALHOST_ACCESS_ONLY"}, Kind: Bool, Unit: "switch", Used: "internal/agent/status",
		Help: "refuse metrics to other machines"},
	{Env: []string{"ISTIO_PROMETHEUS_ANNOTATIONS"}, Kind: Text, Unit: "JSON", Used: "internal/agent/status",
		Help: "where the application's metrics are, which are added to the agent's and Envoy's"},
	{Env: []string{"ISTIO_KUBE_APP_PROBERS"}, Kind: Text, Unit: "JSON", Used: "internal/agent/probe",
		Help: "the application's probes and hooks, which the agent runs for the kubelet"},
	{Env: []string{"ISTIO_ENABLE_HTTP2_PROBING"}, Kind: Bool, Default: "true", Unit: "switch", Used: "internal/agent/probe",
		Help: "allow HTTP/2 for the application's probes over HTTPS"},
	{Env: []string{"REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION"}, Kind: Bool, Unit: "switch", Used: "internal/agent/probe",
		Help: "probe the application at localhost; false: at the Pod's address"},
	{Env: []string{"ENABLE_PROBE_KEEPALIVE_CONNECTIONS"}, Kind: Bool, Unit: "switch", Used: "internal/agent/probe",
		Help: "keep the connections of the application's HTTP probes open"},
	{Env: []string{"ISTIO_BOOTSTRAP_OVERRIDE"}, Kind: Text, Unit: "file", Used: "internal/agent/spec",
		Help: "file that is merged over Envoy's bootstrap"},
	{Env: []string{"HOST_IP"}, Kind: Text, Unit: "IP address", Used: "internal/agent/spec",
		Help: "replaces $(HOST_IP) in the file of ISTIO_BOOTSTRAP_OVERRIDE"},

	// Start, restart and end.
	{Env: []string{"ENABLE_HOT_RESTART"}, Kind: Bool, Default: "true", Unit: "switch", Used: "internal/agent/supervise",
		Help: "let a new Envoy take over from the running one; false: replace it"},
	{Env: []string{"PARENT_SHUTDOWN_DURATION"}, Kind: Duration, Otherwise: "drainDuration of the configuration and 15s", Unit: "duration", Used: "internal/agent/supervise",
		Help: "how long an Envoy lives on after another took over"},
	{Env: []string{"MINIMUM_DRAIN_DURATION"}, Kind: Duration, Default: "5s", Unit: "duration", Used: "internal/agent/supervise",
		Help: "least time of a drain, with EXIT_ON_ZERO_ACTIVE_CONNECTIONS"},
	{Env: []string{"MAXIMUM_DRAIN_DURATION"}, Kind: Duration, Default: "15m", Unit: "duration", Used: "internal/agent/supervise",
		Help: "greatest time of a drain, with EXIT_ON_ZERO_ACTIVE_CONNECTIONS"},
	{Env: []string{"EXIT_ON_ZERO_ACTIVE_CONNECTIONS"}, Kind: Bool, Unit: "switch", Used: "internal/agent/supervise",
		Help: "drain until no connection is left"},
	{Env: []string{"EXIT_WITH_APP"}, Kind: Bool, Otherwise: "true if the Pod's owner is a Job", Unit: "switch", Used: "internal/agent/app",
		Help: "end when the application has ended"},
	{Env: []string{"EXIT_WITH_APP_GRACE"}, Kind: Duration, Default: "30s", Unit: "duration", Used: "internal/agent/app",
		Help: "how long the application must have been gone"},

	// DNS. [agent E5, E6]
	{Env: []string{"ISTIO_META_DNS_CAPTURE"}, Kind: Bool, Unit: "switch", Used: "internal/agent/dns",
		Help: "answer DNS questions, which capture sends here; not for a router"},
	{Env: []string{"ISTIO_META_ENABLE_DNS_SERVER"}, Kind: Bool, Unit: "switch", Used: "internal/agent/dns",
		Help: "answer DNS questions"},
	{Env: []string{"DNS_PROXY_ADDR"}, Kind: Text, Default: "localhost:15053", Unit: "host:port", Used: "internal/agent/dns",
		Help: "where DNS questions are answered"},
	{Env: []string{"DNS_FORWARD_TIMEOUT"}, Kind: Duration, Otherwise: "that of resolv.conf", Unit: "duration", Used: "internal/agent/dns",
		Help: "how long a question may take"},
	{Env: []string{"DNS_FORWARD_PARALLEL"}, Kind: Bool, Unit: "switch", Used: "internal/agent/dns",
		Help: "ask all servers at once"},

	// The Go runtime. [agent E38]
	{Env: []string{"GOMAXPROCS"}, Kind: Text, Otherwise: "1", Unit: "threads", Used: "cmd/pilot-agent/memory.go",
		Help: "how many threads of the agent run at a time"},
	{Env: []string{"GOGC"}, Kind: Text, Otherwise: "none during the start, then 25", Unit: "percent", Used: "cmd/pilot-agent/memory.go",
		Help: "growth of the agent's heap between two collections"},
	{Env: []string{"GOMEMLIMIT"}, Kind: Text, Otherwise: "nine tenths of the control group's limit", Unit: "bytes", Used: "cmd/pilot-agent/memory.go",
		Help: "memory that the agent tries to stay below"},

	// What Istio reads and this agent does not.
	{Env: []string{"JWT_POLICY"}, Kind: Text, Default: "third-party-jwt", Unit: "name", NoEffect: "the token is that of CREDENTIAL_TOKEN_FILE",
		Help: "which kind of token is used"},
	{Env: []string{"CA_PROVIDER"}, Kind: Text, Default: "Citadel", Unit: "name", NoEffect: "there is one kind of CA",
		Help: "kind of the CA"},
	{Env: []string{"XDS_AUTH_PROVIDER"}, Kind: Text, Unit: "name", NoEffect: "no token is exchanged for another",
		Help: "who exchanges tokens for discovery"},
	{Env: []string{"CREDENTIAL_IDENTITY_PROVIDER"}, Kind: Text, Default: "GoogleComputeEngine", Unit: "name", NoEffect: "no token is exchanged for another",
		Help: "who issued the token"},
	{Env: []string{"FILE_DEBOUNCE_DURATION"}, Kind: Text, Default: "100ms", Unit: "duration", NoEffect: "files are taken when they are whole",
		Help: "how long a file must be quiet"},
	{Env: []string{"PEER_METADATA_DISCOVERY"}, Kind: Bool, Unit: "switch", NoEffect: "stock Envoy has no extension for it",
		Help: "ask discovery for the metadata of peers"},
	{Env: []string{"ISTIO_META_METADATA_DISCOVERY"}, Kind: Bool, Unit: "switch", NoEffect: "stock Envoy has no extension for it",
		Help: "ask discovery for the metadata of peers"},
	{Env: []string{"ISTIO_AGENT_ENABLE_WASM_REMOTE_LOAD_CONVERSION"}, Kind: Bool, Default: "true", Unit: "switch", Used: "internal/agent/wasm",
		Help: "fetch Wasm modules for Envoy"},
	{Env: []string{"ISTIO_WASM_MAX_BINARY_SIZE_BYTES"}, Kind: Int, Max: 1 << 32, Number: 256 << 20, Unit: "bytes", Used: "internal/agent/wasm",
		Help: "greatest size of a Wasm module"},
	{Env: []string{"BLOCKED_CIDRS_IN_WASM_FETCH"}, Kind: List, Unit: "list of CIDRs", Used: "internal/agent/wasm",
		Help: "addresses from which no Wasm module is fetched"},
	{Env: []string{"WASM_MODULE_EXPIRY"}, Kind: Duration, Default: "24h", Unit: "duration", Used: "internal/agent/wasm",
		Help: "how long an unused Wasm module is kept"},
	{Env: []string{"WASM_MODULES_DIR"}, Kind: Text, Default: "/var/lib/istio/data", Unit: "folder", Used: "internal/agent/wasm",
		Help: "folder for Wasm modules, which Envoy reads"},
	{Env: []string{"WASM_PURGE_INTERVAL"}, Kind: Duration, Default: "1h", Unit: "duration", Used: "internal/agent/wasm",
		Help: "how often unused Wasm modules are removed"},
	{Env: []string{"WASM_INSECURE_REGISTRIES"}, Kind: List, Unit: "list of hosts", Used: "internal/agent/wasm",
		Help: "hosts whose certificates are not verified, and registries that are also asked in plaintext; *: all"},
	{Env: []string{"WASM_HTTP_REQUEST_TIMEOUT"}, Kind: Duration, Default: "15s", Unit: "duration", Used: "internal/agent/wasm",
		Help: "how long the fetch of a Wasm module may take"},
	{Env: []string{"WASM_HTTP_REQUEST_MAX_RETRIES"}, Kind: Int, Max: 100, Number: 5, Unit: "number", Used: "internal/agent/wasm",
		Help: "how often the fetch of a Wasm module is tried again"},
	{Env: []string{"HTTP_STRIP_FRAGMENT_FROM_PATH_UNSAFE_IF_DISABLED"}, Kind: Bool, Default: "true", Unit: "switch", NoEffect: "Envoy has no such runtime key any more",
		Help: "strip fragments from paths; Envoy always does, or rejects the path if runtimeValues says so"},
	{Env: []string{"ENABLE_DELIMITED_STATS_TAG_REGEX"}, Kind: Bool, Default: "true", Unit: "switch", Used: "internal/agent/bootstrap",
		Help: "extract tags by rules that need a delimiter in the names of statistics; false: also from names without one, as control planes before Istio 1.23 send them"},
}

// AgentRequest is the table of pilot-agent request. [agent C3]
var AgentRequest = Table{
	{Flag: "debug-port", Kind: Port, Number: mesh.AdminPort, Unit: "port", Used: "cmd/pilot-agent/request.go",
		Help: "`port` to ask: Envoy's admin, the agent's status or the health listener"},
}

// AgentWait is the table of pilot-agent wait. [agent C4]
var AgentWait = Table{
	{Flag: "timeoutSeconds", Kind: Int, Default: "60", Min: 1, Unit: "seconds", Used: "cmd/pilot-agent/request.go",
		Help: "`seconds` to wait in all"},
	{Flag: "requestTimeoutMillis", Kind: Int, Default: "500", Min: 1, Unit: "milliseconds", Used: "cmd/pilot-agent/request.go",
		Help: "`milliseconds` to wait for one answer"},
	{Flag: "periodMillis", Kind: Int, Default: "500", Min: 1, Unit: "milliseconds", Used: "cmd/pilot-agent/request.go",
		Help: "`milliseconds` between two requests"},
	{Flag: "url", Kind: Text, Default: "http://localhost:15021/healthz/ready", Unit: "URL", Used: "cmd/pilot-agent/request.go",
		Help: "`URL` that answers 200 when the proxy is ready"},
}

// AgentRestart is the table of pilot-agent restart.
var AgentRestart = Table{
	{Flag: "statusPort", Kind: Port, Number: mesh.StatusPort, Unit: "port", Used: "cmd/pilot-agent/request.go",
		Help: "the agent's status `port`"},
}

// AgentIdentity is the table of pilot-agent identity.
var AgentIdentity = Table{
	{Flag: "statusPort", Kind: Port, Number: mesh.StatusPort, Unit: "port", Used: "cmd/pilot-agent/identity.go",
		Help: "the agent's status `port`"},
	{Flag: "output", Short: "o", Kind: Enum, Values: []string{"", "json"}, Unit: "form", Used: "cmd/pilot-agent/identity.go",
		Help: "`form` of the output"},
}

// AgentStatus is the table of pilot-agent status.
var AgentStatus = Table{
	{Flag: "statusPort", Kind: Port, Number: mesh.StatusPort, Unit: "port", Used: "cmd/pilot-agent/status.go",
		Help: "the agent's status `port`"},
	{Flag: "output", Short: "o", Kind: Enum, Values: []string{"", "json"}, Unit: "form", Used: "cmd/pilot-agent/status.go",
		Help: "`form` of the output"},
}

// AgentDoctor is the table of pilot-agent doctor.
var AgentDoctor = Table{
	{Flag: "statusPort", Kind: Port, Number: mesh.StatusPort, Unit: "port", Used: "cmd/pilot-agent/doctor.go",
		Help: "the status `port` of the agent that runs, if one does"},
	{Flag: "output", Short: "o", Kind: Enum, Values: []string{"", "json"}, Unit: "form", Used: "cmd/pilot-agent/doctor.go",
		Help: "`form` of the output"},
	{Flag: "capture", Kind: Text, Unit: "arguments", Used: "cmd/pilot-agent/doctor.go",
		Help: "`arguments` of istio-iptables whose rules should be in force; empty: those of --watchCapture of the agent that runs"},
	{Flag: "timeout", Kind: Duration, Default: "5s", Unit: "duration", Used: "cmd/pilot-agent/doctor.go",
		Help: "how long each server and name may take to answer"},
}

// AgentRoot is the setting of the commands for virtual machines.
var AgentRoot = Table{
	{Flag: "root", Kind: Text, Default: "/", Required: true, Unit: "folder", Used: "internal/agent/machine",
		Help: "`folder` that stands for / of the machine, for images and tests"},
}

// AgentStart is the table of pilot-agent start: what istio-start.sh reads beside the variables of istio-iptables and of the proxy. The
// variables are read from sidecar.env and cluster.env, too. [agent V3, V4]
var AgentStart = Table{
	{Env: []string{"EXEC_USER"}, Kind: Text, Otherwise: "$ENVOY_USER, else istio-proxy", Unit: "user", Used: "internal/agent/vm",
		Help: "user that the proxy runs as"},
	{Env: []string{"ISTIO_CUSTOM_IP_TABLES"}, Kind: Bool, Unit: "switch", Used: "internal/agent/vm",
		Help: "leave the rules of capture alone"},
	{Env: []string{"ISTIO_INBOUND_INTERCEPTION_MODE"}, Kind: Enum, Values: []string{"", "REDIRECT", "TPROXY", "NONE"}, AnyCase: true, Unit: "mode", Used: "internal/agent/vm",
		Help: "how inbound connections are captured; with TPROXY the proxy stays root"},
	{Env: []string{"ISTIO_AGENT_FLAGS"}, Kind: Text, Unit: "flags", Used: "internal/agent/vm",
		Help: "further flags of pilot-agent proxy, with spaces in between"},
	{Env: []string{"ISTIO_SVC_IP"}, Kind: Text, Unit: "IP address", Used: "internal/agent/vm",
		Help: "address of the machine, if INSTANCE_IP does not say it"},
	{Env: []string{"ISTIO_SERVICE"}, Kind: Text, Unit: "name.namespace", Used: "internal/agent/vm",
		Help: "name of the proxy's service: --serviceCluster"},
	{Env: []string{"ISTIO_NAMESPACE"}, Kind: Text, Unit: "namespace", Used: "internal/agent/vm",
		Help: "namespace of the workload, if POD_NAMESPACE does not say it"},
	{Env: []string{"CANONICAL_SERVICE"}, Kind: Text, Unit: "name", Used: "internal/agent/vm",
		Help: "label service.istio.io/canonical-name, if ISTIO_METAJSON_LABELS does not have it"},
	{Env: []string{"CANONICAL_REVISION"}, Kind: Text, Unit: "name", Used: "internal/agent/vm",
		Help: "label service.istio.io/canonical-revision, if ISTIO_METAJSON_LABELS does not have it"},
	{Env: []string{"PILOT_ADDRESS"}, Kind: Text, Unit: "host:port", Used: "internal/agent/vm",
		Help: "address of discovery, if PROXY_CONFIG does not say it, and of the CA, if CA_ADDR does not"},
	{Env: []string{"ISTIO_PILOT_PORT"}, Kind: Text, Unit: "port", Used: "internal/agent/vm",
		Help: "port of discovery, without PILOT_ADDRESS"},
	{Env: []string{"ISTIO_SYSTEM_NAMESPACE"}, Kind: Text, Unit: "namespace", Used: "internal/agent/vm",
		Help: "namespace of the control plane, without PILOT_ADDRESS"},
	{Env: []string{"ISTIO_BIN_BASE"}, Kind: Text, Unit: "folder", NoEffect: "the programs are those of the unit and of the ProxyConfig",
		Help: "folder of the programs"},
	{Env: []string{"ISTIO_CFG"}, Kind: Text, Unit: "folder", NoEffect: "the environment files are in /var/lib/istio/envoy",
		Help: "folder of sidecar.env"},
	{Env: []string{"ISTIO_LOG_DIR"}, Kind: Text, Unit: "folder", NoEffect: "logs go to standard error",
		Help: "folder of logs"},
}

// AgentJoin is the table of pilot-agent join.
var AgentJoin = Table{
	{Flag: "envoy", Kind: Text, Otherwise: "that of the ProxyConfig, else /usr/local/bin/envoy", Unit: "file", Used: "internal/agent/vm",
		Help: "`path` of Envoy"},
	{Flag: "no-start", Kind: Bool, Unit: "switch", Used: "cmd/pilot-agent/join.go",
		Help: "get the certificate and write the files, but start nothing now"},
	{Flag: "dry-run", Kind: Bool, Unit: "switch", Used: "cmd/pilot-agent/join.go",
		Help: "print what would be done, and do nothing; the token is not used"},
	{Flag: "timeout", Kind: Duration, Default: "2m", Positive: true, Unit: "duration", Used: "cmd/pilot-agent/join.go",
		Help: "how long to wait for the CA, and then until the proxy is ready"},
}

// AgentLeave is the table of pilot-agent leave.
var AgentLeave = Table{
	{Flag: "dry-run", Kind: Bool, Unit: "switch", Used: "cmd/pilot-agent/leave.go",
		Help: "print what would be done, and do nothing"},
}

// AgentLogLevel is the table of pilot-agent log-level.
var AgentLogLevel = Table{
	{Flag: "statusPort", Kind: Port, Number: mesh.StatusPort, Unit: "port", Used: "cmd/pilot-agent/log.go",
		Help: "the agent's status `port`"},
}

// AgentVersion is the table of pilot-agent version. [agent C5]
var AgentVersion = Table{
	{Flag: "short", Short: "s", Kind: Bool, Unit: "switch", Used: "cmd/pilot-agent/version.go",
		Help: "print the bare version"},
	{Flag: "output", Short: "o", Kind: Enum, Values: []string{"", "yaml", "json"}, Unit: "form", Used: "cmd/pilot-agent/version.go",
		Help: "`form` of the output"},
}

// Collateral is the table of the command collateral, which all three programs have. [agent C8, C9]
var Collateral = Table{
	{Flag: "output_dir", Short: "o", Kind: Text, Default: ".", Unit: "folder", Used: "internal/settings/cli",
		Help: "`directory` to write to"},
	{Flag: "all", Kind: Bool, Unit: "switch", Used: "internal/settings/cli",
		Help: "write everything"},
	{Flag: "markdown", Kind: Bool, Unit: "switch", Used: "internal/settings/cli",
		Help: "write Markdown pages"},
	{Flag: "man", Kind: Bool, Unit: "switch", Used: "internal/settings/cli",
		Help: "write manual pages"},
	{Flag: "bash", Kind: Bool, Unit: "switch", Used: "internal/settings/cli",
		Help: "write completion for bash"},
	{Flag: "zsh", Kind: Bool, Unit: "switch", Used: "internal/settings/cli",
		Help: "write completion for zsh"},
	{Flag: "fish", Kind: Bool, Unit: "switch", Used: "internal/settings/cli",
		Help: "write completion for fish"},
}
