package main

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
)

// runIptables runs the command with an environment and returns what it printed.
func runIptables(t *testing.T, env map[string]string, args ...string) (string, error) {
	t.Helper()
	c := newIptablesCommand(env)
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetArgs(args)
	err := c.Execute()
	return out.String(), err
}

func TestIptablesTakesTheInjectorsFlags(t *testing.T) {
	out, err := runIptables(t, nil, "-p", "15001", "-z", "15006", "-u", "1337", "-m", "REDIRECT", "-i", "*", "-x", "",
		"-b", "*", "-d", "15090,15021,15020", "--dry-run")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"PROXY_PORT=15001\n", "OUTBOUND_IP_RANGES_INCLUDE=*\n", "INBOUND_PORTS_EXCLUDE=15090,15021,15020\n",
		"PROXY_GID=1337\n", "NATIVE_NFTABLES=false\n", "\n* nat\n-N ISTIO_INBOUND\n",
		"-A ISTIO_INBOUND -p tcp --dport 15021 -j RETURN\n", "-A ISTIO_INBOUND -p tcp -j ISTIO_IN_REDIRECT\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestIptablesShowsNftablesWhereAskedTo(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		args []string
	}{{args: []string{"--native-nftables"}}, {env: map[string]string{"NATIVE_NFTABLES": "true"}}} {
		out, err := runIptables(t, c.env, append(c.args, "-i", "*", "--dry-run")...)
		if err != nil || !strings.Contains(out, "NATIVE_NFTABLES=true\n") || !strings.Contains(out, "table inet istio-proxy-nat {\n") {
			t.Errorf("%v: %s", err, out)
		}
	}
}

func TestIptablesPrefersFlagsToTheEnvironmentToDefaults(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules")
	env := map[string]string{
		"ENVOY_PORT": "1", "INBOUND_CAPTURE_PORT": "2", "DRY_RUN": "true", "DRY_RUN_FILE_PATH": file,
		"ISTIO_DUAL_STACK": "true", "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE": "7", "ENVOY_USER": "root",
	}
	out, err := runIptables(t, env, "--envoy-port=3")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"PROXY_PORT=3\n", "PROXY_INBOUND_CAPTURE_PORT=2\n", "PROXY_TUNNEL_PORT=15008\n", "DUAL_STACK=true\n",
		"OUTBOUND_OWNER_GROUPS_EXCLUDE=7\n", "PROXY_UID=0\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	written, err := os.ReadFile(file)
	if err != nil || !strings.HasSuffix(out, string(written)) || !strings.HasPrefix(string(written), "* nat\n") {
		t.Errorf("the file holds %q, %v", written, err)
	}
	if out, err = runIptables(t, map[string]string{"ENVOY_USER": "nobody-of-this-name"}, "-n"); err != nil || !strings.Contains(out, "PROXY_UID=1337\n") {
		t.Errorf("without a user: %v, %s", err, out)
	}
}

func TestIptablesRefusesWithExitCode1(t *testing.T) {
	for _, c := range []struct {
		args []string
		env  map[string]string
		want string
	}{
		{args: []string{"--envoy-port=x"}, want: `flag --envoy-port: invalid port "x": want 1–65535`},
		{args: []string{"--no-such-flag"}, want: "no-such-flag"},
		{args: []string{"extra"}, want: "extra"},
		{args: []string{"-m", "DIVERT"}, want: `flag --istio-inbound-interception-mode: invalid value "DIVERT": want REDIRECT, TPROXY or NONE`},
		{env: map[string]string{"ISTIO_META_DNS_CAPTURE": "so"}, want: `environment ISTIO_META_DNS_CAPTURE: invalid value "so"`},
		{args: []string{"-k", "tap/0"}, want: `--kube-virt-interfaces="tap/0"`},
		{args: []string{"--force-iptables-binary=bpf"}, want: `flag --force-iptables-binary: invalid value "bpf": want legacy or nft`},
		{env: map[string]string{"ISTIO_DUAL_STACK": "maybe"}, want: `environment ISTIO_DUAL_STACK: invalid value "maybe": want true or false`},
		{args: []string{"--network-namespace=/no/such/ns"}, want: "open the network namespace: open /no/such/ns"},
	} {
		_, err := runIptables(t, c.env, append(c.args, "--dry-run")...)
		var code coder
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, &code) || code.ExitCode() != 1 {
			t.Errorf("%v %v: %v, want exit code 1 and %q", c.args, c.env, err, c.want)
		}
	}
}

func TestIptablesAcceptsUnusedFlags(t *testing.T) {
	if _, err := runIptables(t, nil, "--native-nftables", "--reconcile", "--force-apply=false", "--cni-mode", "--iptables-trace-logging",
		"-t", "1338", "-r", "134", "--iptables-probe-port=1", "--probe-timeout=1s", "--redirect-dns=false", "--skip-rule-apply"); err != nil {
		t.Error(err)
	}
}

// Who captures DNS without telling the agent hears what to do; who has told it does not.
func TestIptablesWarnsOfAgentSettings(t *testing.T) {
	const told = "ISTIO_META_DNS_CAPTURE=true"
	for _, tt := range []struct {
		env     map[string]string
		capture bool
		want    bool
	}{
		{nil, true, true},
		{nil, false, false},
		{map[string]string{"ISTIO_META_DNS_CAPTURE": "true"}, true, false},
		{map[string]string{"ISTIO_META_DNS_CAPTURE": "false"}, true, true},
	} {
		r := &captureCommand{env: tt.env}
		r.options.DNS.Capture = tt.capture
		if got := strings.Contains(strings.Join(r.planNotes(plan.Ruleset{}), "\n"), told); got != tt.want {
			t.Errorf("%v, capture %v: noted %v, want %v", tt.env, tt.capture, got, tt.want)
		}
	}
}

// The rules that the agent itself watches tell it, too.
func TestWatchedRulesSayThatDNSIsCaptured(t *testing.T) {
	for args, want := range map[string]bool{"-b '*' --native-nftables": false, "-b '*' --native-nftables --redirect-dns": true} {
		w, err := watchCapture(args, nil, slog.New(slog.DiscardHandler))
		if err != nil || w.options.DNS.Capture != want {
			t.Errorf("%s: %v (%v), want %v", args, w.options.DNS.Capture, err, want)
		}
	}
}

// The command that removes the rules has a help of its own, with the flags that it uses; it takes the others, and says that they
// have no effect.
func TestCleanIptables(t *testing.T) {
	_, help, _ := agentRun(t, nil, "istio-clean-iptables", "--help")
	for _, want := range []string{"Remove the capture of the Pod's connections: all rules", "--network-namespace", "--dry-run", "DRY_RUN_FILE_PATH", "pilot-agent istio-clean-iptables --dry-run"} {
		if !strings.Contains(help, want) {
			t.Errorf("the help has no %q:\n%s", want, help)
		}
	}
	for _, not := range []string{"--envoy-port", "--run-validation", "--force-iptables-binary", "--redirect-dns", "ENVOY_USER", "Capture the Pod's"} {
		if strings.Contains(help, not) {
			t.Errorf("the help has %q:\n%s", not, help)
		}
	}
	if _, list, _ := agentRun(t, nil, "--help"); !strings.Contains(list, "istio-clean-iptables Remove the capture") {
		t.Errorf("the command is not in the list:\n%s", list)
	}
	code, out, stderr := agentRun(t, nil, "istio-clean-iptables", "-n", "-u", "1337", "--redirect-dns", "-b", "", "--cleanup-only", "--of-an-old-release", "x")
	if code != 0 || strings.Contains(out, "PROXY_PORT") {
		t.Errorf("code %d, %q, %q", code, out, stderr)
	}
	for _, want := range []string{
		"Note: flag --proxy-uid has no effect: rules of capture are removed whatever they are", "flag --redirect-dns has no effect",
		"flag --istio-inbound-ports has no effect", "unknown flag --of-an-old-release has no effect",
	} {
		if !strings.Contains(stderr, want) {
			t.Errorf("no %q in %q", want, stderr)
		}
	}
	if strings.Contains(stderr, "cleanup-only") {
		t.Errorf("%q", stderr)
	}
	if code, _, stderr := agentRun(t, nil, "istio-clean-iptables", "x"); code != 1 || !strings.Contains(stderr, "istio-clean-iptables") {
		t.Errorf("with an argument: code %d, %q", code, stderr)
	}
}
