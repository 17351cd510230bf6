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
		Help: "`port` of a token service, passed on in the node's metadata; 0 for none"},
	{Flag: "tokenManagerPlugin", Kind: Text, Unit: "name", NoEffect: "the agent has no token service",
		Help: "`name` of a plugin of Istio's former token service"},
	{Flag: "serviceCluster", Kind: Text, Otherwise: "from the workload's labels", Unit: "name", Used: "internal/agent/spec",
		Help: "`name` of the proxy's service"},
	{Flag: "proxyLogLevel", Kind: Text, Default: "warning", Unit: "level", Used: "internal/agent/spec",
		Help: "Envoy's log `level`, possibly followed by component:level,…"},
	{Flag: "proxyComponentLogLevel", Kind: Text, Unit: "levels", Used: "internal/agent/spec",
		Help: "log `levels` of Envoy's components, component:level,…"},
	{Flag: "concurrency", Kind: Int, Max: 32767, Unit: "workers", Used: "internal/agent/spec",
		Help: "`number` of Envoy's workers; 0 leaves it to the configuration and the CPU limit"},
	{Flag: "templateFile", Kind: Text, Unit: "file", NoEffect: "the bootstrap is built, not filled in",
		Help: "`file` with a template of Envoy's bootstrap"},
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
	{Env: []string{"ISTIO_META_CLUSTER_ID"}, Kind: Text, Unit: "name", Used: "internal/agent/upstream",
		Help: "the node's cluster, sent as the header ClusterID to discovery and the CA"},
	{Env: []string{"ISTIO_META_OWNER"}, Kind: Text, Unit: "URL", Used: "internal/agent/spec",
		Help: "owner of the Pod; if it is a Job, EXIT_WITH_APP is true by default"},

	// The configuration. [agent E2, E28]
	{Env: []string{"PROXY_CONFIG"}, Kind: Text, Unit: "YAML or JSON", Used: "internal/agent/spec",
		Help: "ProxyConfig, merged over that of the mesh"},
	{Env: []string{"PROXY_CONFIG_FILE"}, Kind: Text, Unit: "file", Used: "internal/agent/spec",
		Help: "file with a ProxyConfig, merged over PROXY_CONFIG and watched"},
	{Env: []string{"ISTIO_CPU_LIMIT"}, Kind: Float, Max: 32767, Otherwise: "the control group's limit", Unit: "cores", Used: "internal/agent/spec",
		Help: "number of Envoy's workers, rounded up, if neither --concurrency nor the configuration says it"},

	// Discovery and the CA. [agent E4, E8, E11–E13, E18, E21, E32]
	{Env: []string{"CA_ADDR"}, Kind: Text, Otherwise: "discoveryAddress of the configuration", Unit: "host:port", Used: "internal/agent/upstream",
		Help: "address of the CA"},
	{Env: []string{"XDS_ROOT_CA"}, Kind: Text, Otherwise: "see docs/compatibility/agent/identity.md", Unit: "file", Used: "internal/agent/identity",
		Help: "root certificates for discovery; SYSTEM: those of the machine"},
	{Env: []string{"CA_ROOT_CA"}, Kind: Text, Otherwise: "see docs/compatibility/agent/identity.md", Unit: "file", Used: "internal/agent/identity",
		Help: "root certificates for the CA; SYSTEM: those of the machine"},
	{Env: []string{"PILOT_CERT_PROVIDER"}, Kind: Enum, Default: "istiod", Values: []string{"istiod", "kubernetes", "custom", "none"}, AnyCase: true, Unit: "name", Used: "internal/agent/identity",
		Help: "where the root certificates are if no variable names them"},
	{Env: []string{"ISTIOD_SAN"}, Kind: Text, Otherwise: "the host of the address", Unit: "name", Used: "internal/agent/upstream",
		Help: "name that the certificates of discovery and the CA must have"},
	{Env: []string{"XDS_HEADER_*"}, Kind: Text, Unit: "text", Used: "internal/agent/upstream",
		Help: "headers of each call to discovery, named by what follows the prefix"},
	{Env: []string{"CA_HEADER_*"}, Kind: Text, Unit: "text", Used: "internal/agent/upstream",
		Help: "headers of each call to the CA, named by what follows the prefix"},
	{Env: []string{"GRPC_KEEPALIVE_INTERVAL"}, Kind: Duration, Default: "30s", Unit: "duration", Used: "internal/agent/upstream",
		Help: "how long a connection is quiet before it is probed, at least 10s; 0: never"},
	{Env: []string{"GRPC_KEEPALIVE_TIMEOUT"}, Kind: Duration, Default: "10s", Unit: "duration", Used: "internal/agent/upstream",
		Help: "how long the answer to a probe may take"},
	{Env: []string{"ISTIO_META_CERT_SIGNER"}, Kind: Text, Unit: "name", Used: "internal/agent/secret",
		Help: "signer that requests to the CA name"},

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
		Help: "name of the SDS socket; the agent does not serve one of another name, which must exist"},

	// Envoy. [agent E20, E22, E23, E25–E27, E30, E36]
	{Env: []string{"ENVOY_STATUS_PORT"}, Kind: Port, Number: mesh.HealthPort, Unit: "port", Used: "internal/agent/bootstrap",
		Help: "port of Envoy's listener for readiness"},
	{Env: []string{"ENVOY_PROMETHEUS_PORT"}, Kind: Port, Number: mesh.PrometheusPort, Unit: "port", Used: "internal/agent/bootstrap",
		Help: "port of Envoy's listener for its own metrics"},
	{Env: []string{"DISABLE_ENVOY"}, Kind: Bool, Unit: "switch", Used: "internal/agent/spec",
		Help: "run without an Envoy: refused, there is no such mode"},
	{Env: []string{"ISTIO_DELTA_XDS"}, Kind: Bool, Default: "true", Unit: "switch", Used: "internal/agent/bootstrap",
		Help: "ask for changes only; false: for the state of the world"},
	{Env: []string{"ISTIO_DUAL_STACK"}, Kind: Bool, Unit: "switch", Used: "internal/agent/bootstrap",
		Help: "listen on both families of addresses"},
	{Env: []string{"ISTIO_ENVOY_ENABLE_CORE_DUMP"}, Kind: Bool, Unit: "switch", Used: "internal/agent/spec",
		Help: "let Envoy write core dumps"},
	{Env: []string{"ENVOY_SKIP_DEPRECATED_LOGS"}, Kind: Bool, Default: "true", Unit: "switch", Used: "internal/agent/spec",
		Help: "have Envoy not log the use of deprecated fields; also in the node's metadata"},
	{Env: []string{"ENABLE_DEFERRED_CLUSTER_CREATION"}, Kind: Bool, Unit: "switch", Used: "internal/agent/bootstrap",
		Help: "let Envoy make a cluster when it is first used"},
	{Env: []string{"METRICS_LOCALHOST_ACCESS_ONLY"}, Kind: Bool, Unit: "switch", Used: "internal/agent/status",
		Help: "refuse metrics to other machines"},
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
	{Env: []string{"GOMEMLIMIT"}, Kind: Text, Otherwise: "none", Unit: "bytes", Used: "cmd/pilot-agent/memory.go",
		Help: "memory that the agent tries to stay below"},

	// What Istio reads and this agent does not.
	{Env: []string{"JWT_POLICY"}, Kind: Text, Default: "third-party-jwt", Unit: "name", NoEffect: "the token is always that of ./var/run/secrets/tokens/istio-token",
		Help: "which kind of token is used"},
	{Env: []string{"CA_PROVIDER"}, Kind: Text, Default: "Citadel", Unit: "name", NoEffect: "there is one kind of CA",
		Help: "kind of the CA"},
	{Env: []string{"XDS_AUTH_PROVIDER"}, Kind: Text, Unit: "name", NoEffect: "the token comes from its file",
		Help: "who exchanges tokens for discovery"},
	{Env: []string{"CREDENTIAL_FETCHER_TYPE"}, Kind: Text, Default: "JWT", Unit: "name", NoEffect: "the token comes from its file",
		Help: "where the token comes from"},
	{Env: []string{"CREDENTIAL_IDENTITY_PROVIDER"}, Kind: Text, Default: "GoogleComputeEngine", Unit: "name", NoEffect: "the token comes from its file",
		Help: "who issued the token"},
	{Env: []string{"FILE_DEBOUNCE_DURATION"}, Kind: Text, Default: "100ms", Unit: "duration", NoEffect: "files are taken when they are whole",
		Help: "how long a file must be quiet"},
	{Env: []string{"PROXY_CONFIG_XDS_AGENT"}, Kind: Text, Default: "false", Unit: "switch", NoEffect: "trust bundles come with the certificate",
		Help: "ask discovery for trust bundles"},
	{Env: []string{"ENVOY_SECURE_METRICS_PORT"}, Kind: Text, Default: "0", Unit: "port", NoEffect: "there is no such listener",
		Help: "port of metrics over mutual TLS"},
	{Env: []string{"ENVOY_SECURE_MERGED_METRICS_PORT"}, Kind: Text, Default: "0", Unit: "port", NoEffect: "there is no such listener",
		Help: "port of merged metrics over mutual TLS"},
	{Env: []string{"ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL"}, Kind: Text, Default: "false", Unit: "switch", NoEffect: "readiness is not asked for by PROXY protocol",
		Help: "take the PROXY protocol on ENVOY_STATUS_PORT"},
	{Env: []string{"GRPC_XDS_BOOTSTRAP"}, Kind: Text, Unit: "file", NoEffect: "no bootstrap for gRPC is written",
		Help: "file for a bootstrap of gRPC"},
	{Env: []string{"ISTIO_BOOTSTRAP"}, Kind: Text, Unit: "file", NoEffect: "the bootstrap is built, not filled in",
		Help: "template of Envoy's bootstrap"},
	{Env: []string{"ISTIO_KUBE_APP_PROBERS"}, Kind: Text, Unit: "JSON", NoEffect: "the agent does not probe the application for the kubelet",
		Help: "the application's probes"},
	{Env: []string{"ISTIO_PROMETHEUS_ANNOTATIONS"}, Kind: Text, Unit: "JSON", NoEffect: "the agent does not scrape the application",
		Help: "where the application's metrics are"},
	{Env: []string{"CLOUD_PLATFORM"}, Kind: Text, Unit: "name", NoEffect: "no cloud is asked",
		Help: "cloud whose metadata is read"},
	{Env: []string{"COMPLIANCE_POLICY"}, Kind: Text, Unit: "name", NoEffect: "TLS is not limited by a policy",
		Help: "policy that limits TLS"},
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
