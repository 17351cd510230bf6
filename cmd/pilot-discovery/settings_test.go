package main

import (
	"io"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/discovery"
	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/jwks"
	"github.com/pilothouse/pilothouse/internal/discovery/webhook"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/printable"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
	"github.com/pilothouse/pilothouse/test/clitest"
	"github.com/pilothouse/pilothouse/test/wait"
)

func TestCommandsHaveTheFlagsOfTheirTables(t *testing.T) {
	clitest.Commands(t, newRoot(nil, nil))
}

func TestEverySettingIsRead(t *testing.T) {
	clitest.AllRead(t, "discovery", settings.Discovery, func(v *settings.Values) {
		readOptions(v)
		limitMemory(v)
		if _, err := readLogger(v, io.Discard); err != nil {
			t.Error(err)
		}
	})
	clitest.AllRead(t, "request", settings.DiscoveryRequest, func(v *settings.Values) { readRequest(v) })
}

func TestHelpNamesTheKindsThatAreRead(t *testing.T) {
	words := strings.FieldsFunc(newDiscovery(nil, nil).Long, func(r rune) bool { return !unicode.IsLetter(r) })
	for _, kind := range object.Kinds() {
		// The Gateway API's Gateway has the name of Istio's.
		if kind != object.KubernetesGateway && !slices.Contains(words, string(kind)) {
			t.Errorf("the help of discovery does not name %s", kind)
		}
	}
}

// The handler for JSON leaves some characters alone that a terminal executes.
func TestLogsArePrintable(t *testing.T) {
	for _, asJSON := range []string{"true", "false"} {
		var out strings.Builder
		log, err := readLogger(settings.Read(map[string]string{"log_as_json": asJSON}, nil, settings.Discovery), &out)
		if err != nil {
			t.Fatal(err)
		}
		log.Info("line", "text", "a\u009b31m\x1b[2J")
		// Tabs are between attributes; those in values are quoted.
		if line := strings.ReplaceAll(strings.TrimSuffix(out.String(), "\n"), "\t", " "); !printable.Is(line) {
			t.Errorf("log_as_json=%s: %q", asJSON, line)
		}
	}
}

// In plaintext nobody is authenticated: that is for this host, unless told otherwise.
func TestPlaintextIsServedToThisHostByDefault(t *testing.T) {
	for arg, want := range map[string]string{"": "127.0.0.1:15010", ":15010": ":15010"} {
		flags := map[string]string{}
		if arg != "" {
			flags["grpcAddr"] = arg
		}
		if got := readOptions(settings.Read(flags, nil, settings.Discovery)).Ports.GRPC; got != want {
			t.Errorf("--grpcAddr=%s: served at %q, want %q", arg, got, want)
		}
	}
}

func TestOptionsFollowTheSettings(t *testing.T) {
	env := map[string]string{
		"POD_NAMESPACE": "mesh", "POD_NAME": "pilot-0", "PILOT_MAX_REQUESTS_PER_SECOND": "2.5", "PILOTHOUSE_ACCEPT_EMPTY_CONFIG": "true", "PILOTHOUSE_BROKEN_POLICIES": "ignore", "ISTIOD_CUSTOM_HOST": "a.example, b.example",
		"DEFAULT_WORKLOAD_CERT_TTL": "2h", "PILOT_ENABLE_PROTOCOL_SNIFFING_FOR_INBOUND": "false", "ENABLE_DEBUG_ENDPOINT_AUTH": "false",
		"PILOTHOUSE_ENABLE_VHDS": "false", "ROOT_CA_DIR": "/run/cacerts", "CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE": "3072", "ENABLE_CA_SERVER": "false", "PILOTHOUSE_PLAINTEXT_CERTIFICATES": "true",
		"JWT_RULE": `{"issuer": "https://issuer.example"}`, "TOKEN_AUDIENCES": "mesh, istio-ca", "TRUSTED_GATEWAY_CIDR": "10.0.0.0/8, fd00::/8",
		"PILOTHOUSE_CERTIFICATES_PER_SECOND": "0.5", "REVISION": "canary",
	}
	o := readOptions(settings.Read(map[string]string{"servingName": "c.example"}, env, settings.Discovery))
	if o.Names.Namespace != "mesh" || o.Names.Instance != "pilot-0" || o.Names.Revision != "canary" || o.Limits.StreamsPerSecond != 2.5 || !o.Lenience.EmptyConfig || !o.Lenience.BrokenPolicies || !o.HTTP.OpenDebug ||
		o.CA.Limits.DefaultTTL != 2*time.Hour || o.CA.Limits.MaxTTL != 2160*time.Hour || !o.Compile.NoSniffInbound || o.Compile.NoSniffOutbound || !o.Compile.WholeRoutes {
		t.Errorf("%+v", o)
	}
	if o.CA.Directory != "/run/cacerts" || o.CA.RootKey != pki.RSA3072 || !o.CA.Off || !o.CA.Plaintext {
		t.Errorf("%+v", o.CA)
	}
	if c := readOptions(settings.Read(nil, nil, settings.Discovery)).CA; c.Directory != "./etc/cacerts" || c.RootKey != pki.ECDSAP256 || c.Off || c.Plaintext {
		t.Errorf("by default: %+v", c)
	}
	w := readOptions(settings.Read(map[string]string{"tlsCertFile": "c", "tlsKeyFile": "k", "caCertFile": "r"}, map[string]string{
		"KUBECONFIG": "f", "REVISION": "canary", "INJECTION_WEBHOOK_CONFIG_NAME": "i", "VALIDATION_WEBHOOK_CONFIG_NAME": "v", "PILOTHOUSE_VALIDATION_FAILURE_POLICY": "open", "ENABLE_NATIVE_SIDECARS": "true",
	}, settings.Discovery))
	if want := (discovery.WebhookOptions{CertFile: "c", KeyFile: "k", CAFile: "r", Injection: "i", Validation: "v", Revision: "canary", Native: "true", Policy: webhook.Open}); w.Webhooks != want || w.Ports.HTTPS != ":15017" {
		t.Errorf("%+v, %+v; want %+v", w.Webhooks, w.Ports, want)
	}
	if k := readOptions(settings.Read(nil, map[string]string{"KUBECONFIG": "f", "PILOT_CA_CERT_CONFIGMAP": "roots", "ENABLE_LEADER_ELECTION": "false", "PILOT_ENABLE_STATUS": "false", "PILOT_STATUS_QPS": "2.5", "PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER": "false"}, settings.Discovery)).Kubernetes; k.RootConfigMap != "roots" || !k.NoElection || !k.NoDeployments || k.Status != (discovery.StatusOptions{Off: true, PerSecond: 2.5}) {
		t.Errorf("%+v", k)
	}
	if k := readOptions(settings.Read(nil, map[string]string{"KUBECONFIG": "f"}, settings.Discovery)).Kubernetes; k.RootConfigMap != "istio-ca-root-cert" || k.NoElection || k.NoDeployments || k.Status != (discovery.StatusOptions{PerSecond: 10}) {
		t.Errorf("by default: %+v", k)
	}
	if r := readOptions(settings.Read(nil, map[string]string{"KUBECONFIG": "f"}, settings.Discovery)).Registration; r != (discovery.RegistrationOptions{Grace: 10 * time.Second}) {
		t.Errorf("by default: %+v", r)
	}
	off := map[string]string{"KUBECONFIG": "f", "PILOT_ENABLE_WORKLOAD_ENTRY_AUTOREGISTRATION": "false", "PILOT_ENABLE_WORKLOAD_ENTRY_HEALTHCHECKS": "false", "PILOT_WORKLOAD_ENTRY_GRACE_PERIOD": "1m"}
	if r := readOptions(settings.Read(nil, off, settings.Discovery)).Registration; r != (discovery.RegistrationOptions{Off: true, NoHealth: true, Grace: time.Minute}) {
		t.Errorf("%+v", r)
	}
	for unready, env := range map[compile.Unready]map[string]string{
		compile.UnreadyNever:  {},
		compile.UnreadyUnused: {"PILOT_ENABLE_PERSISTENT_SESSION_FILTER": "true", "PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS": "true"},
		compile.UnreadyAlways: {"PILOT_ENABLE_PERSISTENT_SESSION_FILTER": "true", "PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS": "true", "PILOT_SEND_UNHEALTHY_ENDPOINTS": "true"},
	} {
		if c := readOptions(settings.Read(nil, env, settings.Discovery)).Compile; c.Unready != unready || c.Sessions != (len(env) > 0) {
			t.Errorf("%v: %+v", env, c)
		}
	}
	if want := []string{"c.example", "a.example", "b.example"}; !slices.Equal(o.CA.ServingNames, want) {
		t.Errorf("serving names %q, want %q", o.CA.ServingNames, want)
	}
	if a := o.Auth; len(a.Issuers) != 1 || !slices.Equal(a.Audiences, []string{"mesh", "istio-ca"}) || len(a.Gateways) != 2 || a.CertificatesPerSecond != 0.5 {
		t.Errorf("%+v", a)
	}
	if a := readOptions(settings.Read(nil, nil, settings.Discovery)).Auth; a.Issuers != nil || !slices.Equal(a.Audiences, []string{"istio-ca"}) || a.Gateways != nil || a.CertificatesPerSecond != 2 {
		t.Errorf("defaults: %+v", a)
	}
	keys := map[string]string{"PILOT_JWT_PUB_KEY_REFRESH_INTERVAL": "5m", "BLOCKED_CIDRS_IN_JWKS_URIS": "10.0.0.0/8, fd00::/8", "JWKS_RESOLVER_INSECURE_SKIP_VERIFY": "true"}
	if k := readOptions(settings.Read(nil, keys, settings.Discovery)).Keys; k.Interval != 5*time.Minute || len(k.Blocked) != 2 || !k.Insecure || k.Roots != "/cacerts/extra.pem" {
		t.Errorf("%+v", k)
	}
	if k := readOptions(settings.Read(nil, nil, settings.Discovery)).Keys; k.Interval != jwks.DefaultInterval || k.Blocked != nil || k.Insecure {
		t.Errorf("defaults: %+v", k)
	}
	for text, want := range map[string]jwks.Mode{"": jwks.Discovery, "false": jwks.Discovery, "istiod": jwks.Discovery, "true": jwks.Hybrid, "Hybrid": jwks.Hybrid, "envoy": jwks.Proxies} {
		if m := readOptions(settings.Read(nil, map[string]string{"PILOT_JWT_ENABLE_REMOTE_JWKS": text}, settings.Discovery)).Compile.RemoteKeys; m != want {
			t.Errorf("PILOT_JWT_ENABLE_REMOTE_JWKS=%s is mode %d, want %d", text, m, want)
		}
	}
	// Flags override variables, even with the value false.
	o = readOptions(settings.Read(map[string]string{"accept-empty-config": "false", "broken-policies": "deny", "namespace": "own"}, env, settings.Discovery))
	if o.Lenience.EmptyConfig || o.Lenience.BrokenPolicies || o.Names.Namespace != "own" {
		t.Errorf("the environment overrides flags: %+v %+v", o.Lenience, o.Names)
	}
}

func TestInvalidFlagsExitWith2(t *testing.T) {
	var out, errs wait.Output
	if code := run(t.Context(), []string{"discovery", "--maxStreams", "many"}, nil, &out, &errs); code != 2 || !strings.Contains(errs.String(), `flag --maxStreams: invalid number "many"`) {
		t.Errorf("code %d, said %q", code, errs.String())
	}
}

// Every variable of Istio that has no effect is named, and what it asks for is not mistaken for a default.
func TestVariablesWithoutEffectAreNamed(t *testing.T) {
	env := map[string]string{
		"PILOT_DEBOUNCE_AFTER": "1s", "PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER": "false", "PILOT_HTTP10": "false", "ISTIO_DELTA_XDS": "1", "REVISION": "canary", "CLUSTER_ID": "east",
		"PILOT_ENABLE_PROTOCOL_SNIFFING_FOR_INBOUND": "false", "PILOT_NEW": "x", "PILOT_ELDER": "x", "PILOTHOUSE_ACCEPT_EMPTY": "true", "PILOT_WEB_SERVICE_HOST": "10.0.0.1",
	}
	var out, errs wait.Output
	missing := t.TempDir() + "/none"
	if code := run(t.Context(), []string{"discovery", "--configDir", missing, "--stateDir", t.TempDir()}, env, &out, &errs); code != 1 {
		t.Fatalf("code %d, want 1: %s", code, errs.String())
	}
	var warnings []string
	for line := range strings.Lines(errs.String()) {
		if _, text, ok := strings.Cut(line, "\twarn\t"); ok {
			warnings = append(warnings, strings.TrimSpace(text))
		}
	}
	want := []string{
		`environment PILOT_DEBOUNCE_AFTER has no effect: a change is compiled at once`,
		`environment CLUSTER_ID has no effect: configuration is read from --configDir`,
		`environment PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER has no effect: configuration is read from --configDir`,
		"variables are not known and have no effect\tvariables=" + `PILOT_ELDER,PILOT_NEW,PILOTHOUSE_ACCEPT_EMPTY`,
	}
	if !slices.Equal(warnings, want) {
		t.Errorf("warnings\n%s\nwant\n%s", strings.Join(warnings, "\n"), strings.Join(want, "\n"))
	}
	var none wait.Output
	if run(t.Context(), []string{"discovery", "--configDir", missing, "--stateDir", t.TempDir()}, nil, &out, &none); strings.Contains(none.String(), "\twarn\t") {
		t.Errorf("warnings without any variable: %s", none.String())
	}
}

func TestExamples(t *testing.T) {
	clitest.Examples(t, func() *cobra.Command { return newRoot(nil, nil) }, cli.UnknownFlags)
}
