package main

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pilothouse/pilothouse/internal/discovery"
	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// settings is what the flags say.
type settings struct {
	opts     discovery.Options
	logLevel string
	logJSON  bool
	minTLS   string
	broken   string
	names    []string
}

func newDiscovery(args []string, env map[string]string) *cobra.Command {
	var s settings
	c := &cobra.Command{
		Use:   "discovery",
		Short: "Serve configuration and identity to proxies",
		Long: `Serve configuration and identity to proxies.

Configuration is read from a directory of YAML (--configDir): Kubernetes' Namespace,
Service, EndpointSlice, Pod, ServiceAccount, Secret and ConfigMap, and Istio's
VirtualService, DestinationRule, ServiceEntry, WorkloadEntry, PeerAuthentication and
Sidecar. The directory is watched; an edit takes effect when it is saved. The mesh's own
configuration is the key "mesh" of a ConfigMap named istio.

The state folder (--stateDir) keeps the root certificate and its key, and the key that
signs workload tokens ("pilotctl token create"). Keep it safe: who has it is the mesh.
It also keeps the last good configuration, without Secrets: after a restart, what cannot
be read has the value that it had before. Where the directory can be read and is empty,
or a security policy is broken that never was good, proxies are not served until that is
mended or confirmed (--accept-empty-config, --broken-policies).

Environment: POD_NAMESPACE, TRUST_DOMAIN, DEFAULT_WORKLOAD_CERT_TTL, MAX_WORKLOAD_CERT_TTL,
CITADEL_SELF_SIGNED_CA_CERT_TTL, ISTIOD_CUSTOM_HOST,
PILOT_ENABLE_PROTOCOL_SNIFFING_FOR_OUTBOUND, PILOT_ENABLE_PROTOCOL_SNIFFING_FOR_INBOUND,
ENABLE_DEBUG_ENDPOINT_AUTH, PILOTHOUSE_ACCEPT_EMPTY_CONFIG, PILOTHOUSE_BROKEN_POLICIES.`,
		Example: "  pilot-discovery discovery --configDir samples/bookshop --stateDir /var/lib/pilothouse",
		Args:    cobra.ArbitraryArgs,
		// Charts pass flags of other releases; they are named in a warning, not refused.
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := s.logger(c.ErrOrStderr())
			if err != nil {
				return misuse{err}
			}
			for _, name := range unknownFlags(args, c.Flags()) {
				log.Warn("flag is not known and has no effect", "flag", name)
			}
			if err := s.complete(env); err != nil {
				return misuse{err}
			}
			s.opts.Log, s.opts.Version = log, version
			srv, err := discovery.New(s.opts)
			if err != nil {
				return err
			}
			return srv.Run(c.Context())
		},
	}
	s.bind(c.Flags())
	return c
}

func (s *settings) bind(f *pflag.FlagSet) {
	o := &s.opts
	f.StringVar(&o.ConfigDir, "configDir", "", "directory of YAML files to read configuration from, and to watch (required)")
	f.StringVar(&o.MeshFile, "meshConfig", "./etc/istio/config/mesh", "file with mesh configuration, for where no ConfigMap istio is; it need not exist")
	f.StringVar(&o.StateDir, "stateDir", "./var/lib/pilothouse", "folder that keeps the root certificate, keys and the last good configuration")
	f.BoolVar(&o.Lenience.EmptyConfig, "accept-empty-config", false, "serve a configuration that is empty although objects are remembered (default $PILOTHOUSE_ACCEPT_EMPTY_CONFIG)")
	f.StringVar(&s.broken, "broken-policies", "", "what to do about a security policy that is broken and never was good: deny what it might select, or ignore it (default $PILOTHOUSE_BROKEN_POLICIES, else deny)")
	f.StringVar(&o.Names.Domain, "domain", "cluster.local", "DNS suffix of services")
	f.StringVar(&o.Names.Namespace, "namespace", "", "namespace that the control plane runs in (default $POD_NAMESPACE, else istio-system)")
	f.StringVar(&o.Ports.HTTP, "httpAddr", ":8080", "address for readiness and debugging")
	f.StringVar(&o.Ports.GRPC, "grpcAddr", ":15010", "address for xDS in plaintext; empty serves none")
	f.StringVar(&o.Ports.SecureGRPC, "secureGRPCAddr", ":15012", "address for xDS and certificates over TLS; empty serves none")
	f.StringVar(&o.Ports.Monitoring, "monitoringAddr", ":15014", "address for metrics; empty serves none")
	f.DurationVar(&o.Keepalive.Interval, "keepaliveInterval", 30*time.Second, "silence after which a gRPC connection is probed")
	f.DurationVar(&o.Keepalive.Timeout, "keepaliveTimeout", 10*time.Second, "wait for the answer of a probe")
	f.DurationVar(&o.Keepalive.MaxAge, "keepaliveMaxServerConnectionAge", 0, "age at which a gRPC connection is ended, give or take a tenth, so that load spreads; 0 is never")
	f.IntVar(&o.Limits.Streams, "maxStreams", xds.DefaultStreams, "xDS streams served at a time: one for each proxy, and some more while many restart")
	f.DurationVar(&o.HTTP.Shutdown, "shutdownDuration", 10*time.Second, "time for open requests to end")
	f.StringSliceVar(&s.names, "servingName", nil, "further host name or IP address under which proxies reach the secure port")
	f.StringVar(&s.minTLS, "tls-min-version", "1.2", "lowest TLS version of the secure port: 1.2 or 1.3")
	f.StringVar(&s.logLevel, "log_output_level", "info", "level, or scope:level,… of which the most detailed counts: debug, info, warn, error, none")
	f.BoolVar(&s.logJSON, "log_as_json", false, "write the log as JSON")
}

// complete checks the flags and takes in the environment.
func (s *settings) complete(env map[string]string) error {
	o := &s.opts
	if o.ConfigDir == "" {
		return fmt.Errorf("--configDir: name the directory of YAML files to read")
	}
	if o.Limits.Streams < 1 {
		return fmt.Errorf("--maxStreams %d: want 1 or more", o.Limits.Streams)
	}
	switch s.minTLS {
	case "1.2":
		o.CA.MinTLS = tls.VersionTLS12
	case "1.3":
		o.CA.MinTLS = tls.VersionTLS13
	default:
		return fmt.Errorf("--tls-min-version %q: want 1.2 or 1.3", s.minTLS)
	}
	switch s.broken = cmp.Or(s.broken, env["PILOTHOUSE_BROKEN_POLICIES"], "deny"); s.broken {
	case "deny", "ignore":
		o.Lenience.BrokenPolicies = s.broken == "ignore"
	default:
		return fmt.Errorf("--broken-policies %q: want deny or ignore", s.broken)
	}
	if v := env["PILOTHOUSE_ACCEPT_EMPTY_CONFIG"]; v != "" && !o.Lenience.EmptyConfig {
		on, err := strconv.ParseBool(v)
		if err != nil {
			return fmt.Errorf("environment PILOTHOUSE_ACCEPT_EMPTY_CONFIG=%q: want true or false", v)
		}
		o.Lenience.EmptyConfig = on
	}
	o.Names.Namespace = cmp.Or(o.Names.Namespace, env["POD_NAMESPACE"], mesh.DefaultRootNamespace)
	o.Names.TrustDomain = env["TRUST_DOMAIN"]
	o.CA.ServingNames = s.names
	if h := env["ISTIOD_CUSTOM_HOST"]; h != "" {
		o.CA.ServingNames = append(o.CA.ServingNames, strings.Split(h, ",")...)
	}
	o.CA.Limits = ca.Limits{}
	if err := durations(env, map[string]*time.Duration{
		"DEFAULT_WORKLOAD_CERT_TTL": &o.CA.Limits.DefaultTTL, "MAX_WORKLOAD_CERT_TTL": &o.CA.Limits.MaxTTL,
		"CITADEL_SELF_SIGNED_CA_CERT_TTL": &o.CA.RootTTL,
	}); err != nil {
		return err
	}
	return switches(env, map[string]*bool{
		"PILOT_ENABLE_PROTOCOL_SNIFFING_FOR_OUTBOUND": &o.Compile.NoSniffOutbound,
		"PILOT_ENABLE_PROTOCOL_SNIFFING_FOR_INBOUND":  &o.Compile.NoSniffInbound,
		"ENABLE_DEBUG_ENDPOINT_AUTH":                  &o.HTTP.OpenDebug,
	})
}

// durations reads what of the environment is set.
func durations(env map[string]string, to map[string]*time.Duration) error {
	for name, d := range to {
		if env[name] == "" {
			continue
		}
		v, err := time.ParseDuration(env[name])
		if err != nil || v <= 0 {
			return fmt.Errorf("environment %s=%q: want a positive duration such as 24h", name, env[name])
		}
		*d = v
	}
	return nil
}

// switches reads what is on by default; each option says that it is off.
func switches(env map[string]string, off map[string]*bool) error {
	for name, b := range off {
		if env[name] == "" {
			continue
		}
		on, err := strconv.ParseBool(env[name])
		if err != nil {
			return fmt.Errorf("environment %s=%q: want true or false", name, env[name])
		}
		*b = !on
	}
	return nil
}

func (s *settings) logger(w io.Writer) (*slog.Logger, error) {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError, "fatal": slog.LevelError, "none": slog.LevelError + 4}
	level := slog.LevelError + 8
	for _, part := range strings.Split(s.logLevel, ",") {
		name := part[strings.LastIndexByte(part, ':')+1:]
		l, ok := levels[name]
		if !ok {
			return nil, fmt.Errorf("--log_output_level %q: %q is no level; want debug, info, warn, error or none", s.logLevel, name)
		}
		level = min(level, l)
	}
	o := &slog.HandlerOptions{Level: level}
	if s.logJSON {
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return slog.New(slog.NewTextHandler(w, o)), nil
}

// unknownFlags lists the flags among args that are not in f.
func unknownFlags(args []string, f *pflag.FlagSet) []string {
	var out []string
	for _, a := range args {
		if a == "--" {
			break
		}
		name, ok := strings.CutPrefix(a, "--")
		if !ok {
			continue
		}
		name, _, _ = strings.Cut(name, "=")
		if f.Lookup(name) == nil && name != "help" {
			out = append(out, "--"+name)
		}
	}
	return out
}
