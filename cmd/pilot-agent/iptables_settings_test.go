package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan/plantest"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

// effects says, for each setting, a value and where its effect shows.
var effects = map[string]struct {
	// value is not the default; with are other flags that it takes for an effect.
	value string
	with  []string
	// in is where the effect shows: in the plan (empty), in what the command prints, or in a Pod,
	// by test/capture/settings_test.go.
	in string
}{
	"--envoy-port": {value: "1501"}, "--inbound-capture-port": {value: "1506"}, "--inbound-tunnel-port": {value: "1508"},
	"--proxy-uid": {value: "7"}, "--proxy-gid": {value: "8"}, "--proxy-mark": {value: "9"}, "--proxy-cgroup": {value: "a/b"},
	"--istio-inbound-interception-mode":    {value: "TPROXY"},
	"--istio-inbound-tproxy-mark":          {value: "55", with: []string{"-m", "TPROXY"}},
	"--istio-inbound-tproxy-route-table":   {value: "66", with: []string{"-m", "TPROXY"}},
	"--istio-inbound-ports":                {value: "80"},
	"--istio-local-exclude-ports":          {value: "22"},
	"--istio-exclude-interfaces":           {value: "eth1"},
	"ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR":    {value: "127.0.0.0/8"},
	"ISTIO_OUTBOUND_OWNER_GROUPS":          {value: "5"},
	"ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE":  {value: "6"},
	"--istio-service-cidr":                 {value: "10.0.0.0/8"},
	"--istio-service-exclude-cidr":         {value: "10.9.0.0/16"},
	"--istio-outbound-ports":               {value: "443"},
	"--istio-local-outbound-ports-exclude": {value: "444"},
	"--kube-virt-interfaces":               {value: "tap0"},
	"--dual-stack":                         {value: "true"},
	"--redirect-dns":                       {value: "true"},
	"--capture-all-dns":                    {value: "true", with: []string{"--redirect-dns"}},
	"--drop-invalid":                       {value: "true"},
	"--iptables-trace-logging":             {value: "true"},
	"ENVOY_USER":                           {value: "root"},

	"--dry-run":               {value: "true", in: "output", with: []string{"--skip-rule-apply", "--native-nftables"}},
	"--cleanup-only":          {value: "true", in: "output", with: []string{"--dry-run"}},
	"--network-namespace":     {value: "/no/such/namespace", in: "output", with: []string{"--dry-run"}},
	"--native-nftables":       {value: "true", in: "output", with: []string{"--dry-run"}},
	"--force-iptables-binary": {value: "other", in: "output", with: []string{"--dry-run"}},
	"DRY_RUN_FILE_PATH":       {value: "/no/such/directory/file", in: "output", with: []string{"--dry-run"}},

	"--skip-rule-apply": {in: "pod"}, "--run-validation": {in: "pod"}, "--iptables-probe-port": {in: "pod"}, "--probe-timeout": {in: "pod"},
	"--cni-mode": {in: "pod"}, "--reconcile": {in: "pod"}, "--force-apply": {in: "pod"}, "PATH": {in: "pod"},
}

// Every flag and every variable changes the plan, or what the command prints or does; that of a flag
// is also that of its variables.
func TestEverySettingIsRead(t *testing.T) {
	pod, err := os.ReadFile("../../test/capture/settings_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range settings.AgentIptables {
		name := s.Name()
		if s.Flag != "" {
			name = "--" + name
		}
		e, ok := effects[name]
		if !ok {
			t.Errorf("%s: no effect is known", name)
			continue
		}
		if e.in == "pod" {
			for _, name := range append([]string{s.Flag}, s.Env...) {
				if !strings.Contains(string(pod), name) {
					t.Errorf("test/capture/settings_test.go does not try %s", name)
				}
			}
			continue
		}
		result := planned
		if e.in == "output" {
			result = printed
		}
		without := result(t, nil, e.with...)
		with := without
		if s.Flag != "" {
			if with = result(t, nil, append([]string{"--" + s.Flag + "=" + e.value}, e.with...)...); with == without {
				t.Errorf("--%s=%s has no effect", s.Flag, e.value)
			}
		}
		for _, variable := range s.Env {
			switch got := result(t, map[string]string{variable: e.value}, e.with...); {
			case got == without:
				t.Errorf("the variable %s=%s has no effect", variable, e.value)
			case s.Flag != "" && s.NoEffect == "" && strings.ReplaceAll(got, "environment "+variable, "flag --"+s.Flag) != with:
				t.Errorf("the variable %s=%s and the flag --%s differ:\n%s", variable, e.value, s.Flag, cmp.Diff(got, with))
			}
		}
	}
}

// planned is the plan of a command line that captures all, and the notes; or the error.
func planned(t *testing.T, env map[string]string, args ...string) string {
	t.Helper()
	r := &captureCommand{env: env}
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	cli.Flags(f, settings.AgentIptables)
	for _, s := range settings.AgentIptables { // but for what the setting itself says
		if (s.Flag == "istio-inbound-ports" || s.Flag == "istio-service-cidr") && env[s.Env[0]] == "" {
			args = append([]string{"--" + s.Flag + "=*"}, args...)
		}
	}
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	if err := r.fill(f); err != nil {
		return err.Error()
	}
	rules, err := plan.Build(r.options, plan.Facts{
		Addrs:     []netip.Addr{netip.MustParseAddr("10.0.0.7")},
		Resolvers: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
	})
	return fmt.Sprint(rules, r.notes, err)
}

// printed is what the command prints, and its error.
func printed(t *testing.T, env map[string]string, args ...string) string {
	t.Helper()
	out, err := runIptables(t, env, args...)
	var lines []string
	for line := range strings.Lines(out) {
		if key, _, isKey := strings.Cut(line, "="); !isKey || strings.ToUpper(key) != key { // but for the printed configuration
			lines = append(lines, line)
		}
	}
	return fmt.Sprint(lines, err)
}

// The names in the table are those of the contract: each flag has a variable of its own name. [agent 1.15]
func TestCaptureFlagsHaveVariables(t *testing.T) {
	for _, s := range settings.AgentIptables {
		if twin := strings.ToUpper(strings.ReplaceAll(s.Flag, "-", "_")); s.Flag != "" && !slices.Contains(s.Env, twin) {
			t.Errorf("--%s has no variable %s", s.Flag, twin)
		}
	}
}

// The printed configuration has every option of the plan. [agent 1.15]
func TestDumpNamesEveryOption(t *testing.T) {
	r := defaultCapture(t)
	text := r.printed()
	for _, want := range []string{"PROXY_PORT=15001", "OUTBOUND_OWNER_GROUPS_INCLUDE=*", "DUAL_STACK=false", "INBOUND_PORTS_INCLUDE=", "NETWORK_NAMESPACE="} {
		if !strings.Contains("\n"+text, "\n"+want+"\n") {
			t.Errorf("no line %q in\n%s", want, text)
		}
	}
	if lines, options := strings.Count(text, "\n"), len(plantest.Fields(&r.options)); lines < options {
		t.Errorf("%d lines for %d options of the plan", lines, options)
	}
}

// The default of each option of the plan is what the tests of the plan take for it.
func TestDefaultsAreThoseOfTheTestsOfThePlan(t *testing.T) {
	r := defaultCapture(t)
	want := plantest.Defaults()
	want.ProxyUID, want.ProxyGID = proxyUser("istio-proxy"), proxyUser("istio-proxy")
	want.Inbound.Mark, want.Inbound.RouteTable = plan.DefaultTProxyMark, plan.DefaultRouteTable
	if diff := cmp.Diff(want, r.options); diff != "" {
		t.Error(diff)
	}
}

// A flag that is given counts, even if it is empty; a variable that is empty does not.
func TestAnEmptyFlagOverridesTheEnvironment(t *testing.T) {
	env := map[string]string{"ISTIO_SERVICE_EXCLUDE_CIDR": "10.9.0.0/16"}
	if got := planned(t, env); !strings.Contains(got, "10.9.0.0/16") {
		t.Errorf("the variable does not count:\n%s", got)
	}
	if got := planned(t, env, "-x", ""); strings.Contains(got, "10.9.0.0/16") {
		t.Errorf("the variable counts though the flag is given:\n%s", got)
	}
	if got, want := planned(t, map[string]string{"ENVOY_PORT": ""}), planned(t, nil); got != want {
		t.Errorf("an empty variable counts:\n%s", cmp.Diff(want, got))
	}
}

// The names of Istio's own variables win over those that are made of the flags.
func TestTheFirstVariableCounts(t *testing.T) {
	env := map[string]string{"ISTIO_DUAL_STACK": "false", "DUAL_STACK": "true"}
	if got := planned(t, env); strings.Contains(got, "ip6 ") {
		t.Errorf("DUAL_STACK wins:\n%s", got)
	}
}

// Keys of the printed configuration look like variables: setting one gives a warning.
func TestDumpKeysAreNotVariables(t *testing.T) {
	for key, instead := range map[string]string{
		"OUTBOUND_IP_RANGES_EXCLUDE": "ISTIO_SERVICE_EXCLUDE_CIDR",
		"INBOUND_INTERCEPTION_MODE":  "ISTIO_INBOUND_INTERCEPTION_MODE",
		"INBOUND_TPROXY_MARK":        "ISTIO_INBOUND_TPROXY_MARK",
		"DNS_CAPTURE":                "ISTIO_META_DNS_CAPTURE or REDIRECT_DNS",
	} {
		out, err := runIptables(t, map[string]string{key: "1"}, "-n")
		if err != nil || !strings.Contains(out, "Note: environment "+key+" has no effect: it is only a name in the printed configuration; set "+instead+"\n") {
			t.Errorf("%s: %v\n%s", key, err, out)
		}
	}
	if out, err := runIptables(t, nil, "-n", "--iptables-trace-logging"); err != nil || !strings.Contains(out, "Note: flag --iptables-trace-logging has no effect: ") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestSettingsAreRefusedByName(t *testing.T) {
	for _, c := range []struct{ variable, value, want string }{
		{"REDIRECT_DNS", "so", `environment REDIRECT_DNS: invalid value "so": want true or false`},
		{"IPTABLES_PROBE_PORT", "70000", `environment IPTABLES_PROBE_PORT: invalid port "70000": want 1–65535`},
		{"IPTABLES_PROBE_PORT", "0", `environment IPTABLES_PROBE_PORT: invalid port "0": want 1–65535`},
		{"PROBE_TIMEOUT", "5", `environment PROBE_TIMEOUT: invalid duration "5": want a duration above 0`},
		{"PROBE_TIMEOUT", "-1s", `environment PROBE_TIMEOUT: invalid duration "-1s": want a duration above 0`},
	} {
		if got := planned(t, map[string]string{c.variable: c.value}); !strings.Contains(got, c.want) {
			t.Errorf("%s=%s: %s, want %s", c.variable, c.value, got, c.want)
		}
	}
}

// defaultCapture is the command without flags and variables.
func defaultCapture(t *testing.T) *captureCommand {
	t.Helper()
	r := &captureCommand{}
	if err := r.fill(pflag.NewFlagSet("", pflag.ContinueOnError)); err != nil {
		t.Fatal(err)
	}
	return r
}

// Arguments of --watchCapture that have no effect give a warning.
func TestWatchWarnsOfSettingsWithoutEffect(t *testing.T) {
	var out bytes.Buffer
	env := map[string]string{"PATH": t.TempDir()}
	_, err := watchCapture("-m NONE --dry-run --network-namespace=/x stray", env, slog.New(slog.NewTextHandler(&out, nil)))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"flag --dry-run has no effect on the watch", "flag --network-namespace has no effect on the watch", `argument \"stray\" has no effect`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}
