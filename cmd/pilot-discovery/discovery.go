package main

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/discovery"
	"github.com/pilothouse/pilothouse/internal/discovery/authn"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/inject"
	"github.com/pilothouse/pilothouse/internal/discovery/jwks"
	"github.com/pilothouse/pilothouse/internal/discovery/traffic"
	"github.com/pilothouse/pilothouse/internal/discovery/webhook"
	"github.com/pilothouse/pilothouse/internal/kube"
	"github.com/pilothouse/pilothouse/internal/logline"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/printable"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
	"github.com/pilothouse/pilothouse/internal/unmap"
)

func newDiscovery(args []string, env map[string]string) *cobra.Command {
	c := &cobra.Command{
		Use:   "discovery",
		Short: "Serve configuration and identity to proxies",
		Long: `Serve configuration and identity to proxies.

Configuration is read from a Kubernetes cluster (--kubeconfig, $KUBECONFIG, or the cluster
of the Pod that this runs in), or, with --configDir, from a directory of YAML: Kubernetes'
Namespace, Node, Service, EndpointSlice, Pod, ServiceAccount, Secret, ConfigMap, Ingress and
IngressClass; Istio's VirtualService, DestinationRule, ServiceEntry, WorkloadEntry,
WorkloadGroup, Sidecar, Gateway, PeerAuthentication, RequestAuthentication,
AuthorizationPolicy, Telemetry, EnvoyFilter, WasmPlugin, TrafficExtension and ProxyConfig; and
the Gateway API's GatewayClass, Gateway, ListenerSet, HTTPRoute, GRPCRoute, TLSRoute,
TCPRoute, UDPRoute, ReferenceGrant and BackendTLSPolicy. The cluster or directory is watched;
a change takes effect at once. The mesh's own configuration is the key "mesh" of the ConfigMap istio in the
control plane's own namespace (--namespace).

The state folder (--stateDir) keeps the root certificate and its key, and the key that
signs workload tokens ("pilotctl token create"); if a cluster is read, the root is in its
Secret istio-ca-secret instead. Keep them secret: with these keys, anyone can get any identity
of the mesh. The folder must be owned by the user who runs the program, or by root, and others
must not be able to write it. If $ROOT_CA_DIR has the files of a CA, as the Secret cacerts
does, that CA signs instead of the root.

The state folder also keeps the last good configuration, without Secrets: after a restart,
objects that cannot be read have their last good value. If the directory is empty although
objects were saved, or a security policy is invalid and has no last good
value, proxies are not served until that is fixed or confirmed (--accept-empty-config,
--broken-policies).`,
		Example: "  pilot-discovery discovery --kubeconfig ~/.kube/config --stateDir /var/lib/pilothouse\n" +
			"  pilot-discovery discovery --configDir samples/bookshop --stateDir /var/lib/pilothouse",
		Args: cobra.ArbitraryArgs,
		// Charts may have flags of other releases: they are warnings, not errors.
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE: func(c *cobra.Command, _ []string) error {
			v := cli.Read(c.Flags(), env, settings.Discovery, settings.DiscoveryNoEffect)
			opts := readOptions(v)
			log, err := readLogger(v, c.ErrOrStderr())
			if err := cmp.Or(v.Err(), err); err != nil {
				return misuse{err}
			}
			for _, text := range cli.UnknownFlags(args, c.Flags()) {
				log.Warn(text)
			}
			warnOfSettings(log, v)
			limitMemory(v)
			opts.Log, opts.Version = log, version
			opts.OnReady = func() {
				forget := func() {
					if err := unmap.Program(); err != nil {
						log.Debug("pages of the program stay mapped", "error", err)
					}
				}
				forget()
				var u unmapping
				afterCollections(func() {
					if u.due(time.Now(), liveHeap()) {
						forget()
					}
				})
			}
			srv, err := discovery.New(c.Context(), opts)
			if err != nil {
				if c.Context().Err() != nil {
					log.Info("a signal ended the start", "error", err)
					return nil
				}
				return err
			}
			return srv.Run(c.Context())
		},
	}
	cli.Add(c, settings.Discovery, settings.DiscoveryNoEffect)
	return c
}

// extraRoots is where Istio's charts mount roots of servers that keys are fetched from.
const extraRoots = "/cacerts/extra.pem"

// readOptions reads the options of the control plane from settings.Discovery.
func readOptions(v *settings.Values) discovery.Options {
	o := discovery.Options{
		ConfigDir: v.Text("configDir"), MeshFile: v.Text("meshConfig"), StateDir: v.Text("stateDir"),
		Names: discovery.Names{Domain: v.Text("domain"), Namespace: v.Text("namespace"), TrustDomain: v.TextOr("TRUST_DOMAIN", ""), Instance: instanceName(v), Revision: v.Text("REVISION")},
		Ports: discovery.Ports{
			HTTP: v.Text("httpAddr"), GRPC: v.Text("grpcAddr"), SecureGRPC: v.Text("secureGRPCAddr"), Monitoring: v.Text("monitoringAddr"), HTTPS: v.Text("httpsAddr"),
		},
		Keepalive: discovery.Keepalive{
			Interval: v.Duration("keepaliveInterval"), Timeout: v.Duration("keepaliveTimeout"), MaxAge: v.Duration("keepaliveMaxServerConnectionAge"),
			Drain: v.Duration("streamDrainDuration"),
		},
		CA: discovery.CAOptions{
			Limits:       policy.Limits{DefaultTTL: v.Duration("DEFAULT_WORKLOAD_CERT_TTL"), MaxTTL: v.Duration("MAX_WORKLOAD_CERT_TTL")},
			Directory:    v.Text("ROOT_CA_DIR"),
			RootTTL:      v.Duration("CITADEL_SELF_SIGNED_CA_CERT_TTL"),
			RootKey:      rootKey(v),
			Off:          !v.Bool("ENABLE_CA_SERVER"),
			Plaintext:    v.Bool("plaintext-certificates"),
			ServingNames: append(v.List("servingName"), v.List("ISTIOD_CUSTOM_HOST")...),
		},
		Lenience: discovery.Lenience{EmptyConfig: v.Bool("accept-empty-config"), BrokenPolicies: v.Enum("broken-policies") == "ignore"},
		HTTP:     discovery.HTTPOptions{OpenDebug: !v.Bool("ENABLE_DEBUG_ENDPOINT_AUTH"), Shutdown: v.Duration("shutdownDuration")},
	}
	if at := v.Text("prometheusURL"); at != "" {
		var err error
		if o.HTTP.Prometheus, err = traffic.ParseURL(at); err != nil {
			v.Fail("prometheusURL", "%w", err)
		}
	}
	readSource(v, &o)
	o.Auth = readAuth(v)
	o.Keys = discovery.KeyOptions{Interval: v.Duration("PILOT_JWT_PUB_KEY_REFRESH_INTERVAL"), Insecure: v.Bool("JWKS_RESOLVER_INSECURE_SKIP_VERIFY"), Roots: extraRoots}
	var err error
	if o.Keys.Blocked, err = jwks.ParseBlocked(v.List("BLOCKED_CIDRS_IN_JWKS_URIS")); err != nil {
		v.Fail("BLOCKED_CIDRS_IN_JWKS_URIS", "%w", err)
	}
	o.Webhooks = discovery.WebhookOptions{
		CertFile: v.Text("tlsCertFile"), KeyFile: v.Text("tlsKeyFile"), CAFile: v.Text("caCertFile"), Revision: v.Text("REVISION"),
		Injection: v.Text("INJECTION_WEBHOOK_CONFIG_NAME"), Validation: v.Text("VALIDATION_WEBHOOK_CONFIG_NAME"),
		Native: inject.Native(v.Enum("ENABLE_NATIVE_SIDECARS")),
	}
	if v.Enum("validation-failure-policy") == "open" {
		o.Webhooks.Policy = webhook.Open
	}
	o.CA.Rotation = discovery.Rotation{
		Share: float64(v.Int("CITADEL_SELF_SIGNED_ROOT_CERT_GRACE_PERIOD_PERCENTILE")) / 100, Interval: v.Duration("CITADEL_SELF_SIGNED_ROOT_CERT_CHECK_INTERVAL"),
	}
	if v.Bool("CITADEL_ENABLE_JITTER_FOR_ROOT_CERT_ROTATOR") {
		o.CA.Rotation.Jitter = time.Duration(rand.Float64() * float64(o.CA.Rotation.Interval)) // #nosec G404 -- only spreads load
	}
	o.Watchdog = v.Duration("watchdogTimeout")
	o.Limits.Streams, o.Limits.StreamsPerSecond = v.Int("maxStreams"), v.Float("PILOT_MAX_REQUESTS_PER_SECOND")
	for name, bit := range map[string]mesh.Capability{
		"PILOT_ENABLE_MONGO_FILTER": mesh.MongoFilter, "PILOT_ENABLE_REDIS_FILTER": mesh.RedisFilter,
	} {
		if v.Bool(name) {
			o.Compile.ProtocolFilters |= bit
		}
	}
	o.Compile.TraceSampling = v.Float("PILOT_TRACE_SAMPLING")
	o.Compile.NoSniffOutbound = !v.Bool("PILOT_ENABLE_PROTOCOL_SNIFFING_FOR_OUTBOUND")
	o.Compile.NoSniffInbound = !v.Bool("PILOT_ENABLE_PROTOCOL_SNIFFING_FOR_INBOUND")
	o.Compile.WholeRoutes = !v.Bool("vhds")
	o.Compile.HTTP3 = v.Bool("PILOT_ENABLE_QUIC_LISTENERS")
	o.Compile.Sessions = v.Bool("PILOT_ENABLE_PERSISTENT_SESSION_FILTER")
	switch {
	case v.Bool("PILOT_SEND_UNHEALTHY_ENDPOINTS"):
		o.Compile.Unready = compile.UnreadyAlways
	case v.Bool("PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS"):
		o.Compile.Unready = compile.UnreadyUnused
	}
	o.Compile.RemoteKeys = jwks.ParseMode(v.Enum("PILOT_JWT_ENABLE_REMOTE_JWKS"))
	o.Compile.AllocateAsked = !v.Bool("PILOT_ENABLE_IP_AUTOALLOCATE")
	switch version := v.Enum("tls-min-version"); version {
	case "1.2":
		o.CA.MinTLS = tls.VersionTLS12
	case "1.3":
		o.CA.MinTLS = tls.VersionTLS13
	default:
		panic("tls-min-version: unknown value " + version)
	}
	return o
}

// readSource reads where the configuration is.
func readSource(v *settings.Values, o *discovery.Options) {
	named, usual, inPod := v.Text("kubeconfig"), v.Text("KUBECONFIG"), v.Text("KUBERNETES_SERVICE_HOST") != ""
	cluster := false
	for _, name := range v.List("registries") {
		switch name {
		case "Kubernetes":
			cluster = true
		case "Mock":
		default:
			v.Fail("registries", "invalid name %q: want Kubernetes or Mock", name)
		}
	}
	o.Kubernetes = discovery.KubernetesOptions{
		API: kube.Options{
			Kubeconfig: cmp.Or(named, usual), QPS: float32(v.Float("kubernetesApiQPS")), Burst: v.Int("kubernetesApiBurst"), UserAgent: "pilot-discovery/" + version,
		},
		Cluster: v.Text("clusterID"), WatchNamespace: v.Text("ISTIO_WATCH_NAMESPACE"),
		Ignore: v.List("PILOT_IGNORE_RESOURCES"), Include: v.List("PILOT_INCLUDE_RESOURCES"),
		RootConfigMap: v.Text("PILOT_CA_CERT_CONFIGMAP"), NoElection: !v.Bool("ENABLE_LEADER_ELECTION"),
		Status:        discovery.StatusOptions{Off: !v.Bool("PILOT_ENABLE_STATUS"), PerSecond: float32(v.Float("PILOT_STATUS_QPS"))},
		NoDeployments: !v.Bool("PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER"),
		RemoteTimeout: v.Duration("PILOT_REMOTE_CLUSTER_TIMEOUT"), Insecure: v.List("PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS"),
	}
	o.Registration = discovery.RegistrationOptions{
		Off: !v.Bool("PILOT_ENABLE_WORKLOAD_ENTRY_AUTOREGISTRATION"), NoHealth: !v.Bool("PILOT_ENABLE_WORKLOAD_ENTRY_HEALTHCHECKS"), Grace: v.Duration("PILOT_WORKLOAD_ENTRY_GRACE_PERIOD"),
	}
	for _, name := range o.Kubernetes.Insecure {
		if !slices.Contains(kube.InsecureOptions, name) {
			v.Fail("PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS", "invalid option %q: want one of %s", name, strings.Join(kube.InsecureOptions, ", "))
		}
	}
	if o.Kubernetes.API.QPS == 0 {
		o.Kubernetes.API.QPS = -1 // no limit
	}
	for name, patterns := range map[string][]string{"PILOT_IGNORE_RESOURCES": o.Kubernetes.Ignore, "PILOT_INCLUDE_RESOURCES": o.Kubernetes.Include} {
		for _, p := range patterns {
			if _, err := path.Match(p, ""); err != nil {
				v.Fail(name, "invalid pattern %q: want one such as *.istio.io", p)
			}
		}
	}
	switch {
	case o.ConfigDir != "" && named != "":
		v.Fail("kubeconfig", "want either --configDir or --kubeconfig: configuration is read from one of them")
	case o.ConfigDir != "":
	case !cluster:
		v.Fail("registries", "want Kubernetes among them, or a directory with --configDir: nothing else has configuration")
	case named == "" && usual == "" && !inPod:
		v.Require("configDir", "a directory, or a cluster with --kubeconfig; this is not a Pod, whose cluster would be read")
	}
}

// ofCluster are the settings that only a cluster has.
var ofCluster = []string{"ISTIO_WATCH_NAMESPACE", "PILOT_IGNORE_RESOURCES", "PILOT_INCLUDE_RESOURCES", "clusterID", "kubernetesApiQPS", "kubernetesApiBurst", "PILOT_CA_CERT_CONFIGMAP", "ENABLE_LEADER_ELECTION", "PILOT_ENABLE_STATUS", "PILOT_STATUS_QPS", "PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER"}

// rootKey is the kind of key of a root that is created.
func rootKey(v *settings.Values) pki.KeyKind {
	switch size := v.Enum("CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE"); size {
	case "":
		return pki.ECDSAP256
	case "2048":
		return pki.RSA2048
	case "3072":
		return pki.RSA3072
	case "4096":
		return pki.RSA4096
	default:
		panic("CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE: unknown value " + size)
	}
}

// readAuth reads how proxies are authenticated.
func readAuth(v *settings.Values) discovery.AuthOptions {
	o := discovery.AuthOptions{Audiences: v.List("TOKEN_AUDIENCES"), CertificatesPerSecond: v.Float("PILOTHOUSE_CERTIFICATES_PER_SECOND")}
	var err error
	if o.Issuers, err = authn.ParseRules(v.Text("JWT_RULE"), o.Audiences); err != nil {
		v.Fail("JWT_RULE", "%w", err)
	}
	if o.Gateways, err = authn.ParsePrefixes(v.List("TRUSTED_GATEWAY_CIDR")); err != nil {
		v.Fail("TRUSTED_GATEWAY_CIDR", "%w", err)
	}
	return o
}

// instanceName is the name of this instance; a host without a name leaves it empty.
func instanceName(v *settings.Values) string {
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	return v.TextOr("POD_NAME", host)
}

// readLogger returns the logger of the settings.
func readLogger(v *settings.Values, w io.Writer) (*slog.Logger, error) {
	levelText, asJSON := v.Text("log_output_level"), v.Bool("log_as_json")
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError, "fatal": slog.LevelError, "none": slog.LevelError + 4}
	level := slog.LevelError + 8
	for _, part := range strings.Split(levelText, ",") {
		name := part[strings.LastIndexByte(part, ':')+1:]
		l, ok := levels[name]
		if !ok {
			return nil, fmt.Errorf("flag --log_output_level: invalid level %q: want debug, info, warn, error or none", name)
		}
		level = min(level, l)
	}
	o := logline.Options{Level: level, Replace: printable.Attr}
	if asJSON {
		return slog.New(logline.JSON(w, o)), nil
	}
	return slog.New(logline.Text(w, o)), nil
}

// warnOfSettings logs which variables are set and have no effect.
func warnOfSettings(log *slog.Logger, v *settings.Values) {
	for _, text := range v.WithoutEffect() {
		log.Warn(text)
	}
	for _, name := range ofCluster {
		if source, given := v.Given(name); given && v.Text("configDir") != "" {
			log.Warn(source + " has no effect: configuration is read from --configDir")
		}
	}
	if names := slices.Concat(v.Unknown("PILOT_"), v.Unknown("PILOTHOUSE_")); len(names) > 0 {
		log.Warn("variables are not known and have no effect", "variables", strings.Join(names, ","))
	}
}
