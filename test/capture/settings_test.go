package capture_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
)

// fakePrograms makes a directory with a legacy iptables that records its lock file, finds the given
// rules in force, and accepts all changes. It returns the directory and the record.
func fakePrograms(t *testing.T, saved string) (dir, locks string) {
	t.Helper()
	dir, locks = t.TempDir(), filepath.Join(t.TempDir(), "locks")
	for _, name := range []string{"iptables-legacy", "ip6tables-legacy"} {
		for suffix, script := range map[string]string{
			"":         `echo "iptables v1.8.9 (legacy)"`,
			"-save":    "echo '" + saved + "'",
			"-restore": `echo "lock=$XTABLES_LOCKFILE" >>` + locks + `; while read -r line; do :; done`,
		} {
			if err := os.WriteFile(filepath.Join(dir, name+suffix), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir, locks
}

// Each setting whose effect is not in the plan has an effect by its flag and by its variable. (For the
// others, see TestEverySettingIsRead in cmd/pilot-agent.)
func TestSettingsOfTheCommandAreRead(t *testing.T) {
	const present = "*nat\n:ISTIO_OUTPUT - [0:0]\nCOMMIT"
	native := []string{"--native-nftables", "-i", "*", "-b", "*"}
	for _, c := range []struct {
		flag, variable, value string
		// applied says that the rules are in force before; args and env are those of both calls.
		applied   bool
		args, env []string
		// without and with are the exit codes, saysWithout and saysWith parts of the output, without
		// the setting and with it.
		without, with         int
		saysWithout, saysWith string
	}{
		{flag: "skip-rule-apply", variable: "SKIP_RULE_APPLY", value: "true", args: native,
			saysWithout: "The rules are applied by nftables", saysWith: "!The rules are applied by"},
		{flag: "run-validation", variable: "RUN_VALIDATION", value: "true", args: append(native, "--skip-rule-apply"),
			with: 126, saysWith: "127.0.0.6:15002"},
		{flag: "iptables-probe-port", variable: "IPTABLES_PROBE_PORT", value: "777", args: append(native, "--skip-rule-apply", "--run-validation"),
			without: 126, saysWithout: "127.0.0.6:15002", with: 126, saysWith: "127.0.0.6:777"},
		{flag: "probe-timeout", variable: "PROBE_TIMEOUT", value: "1ns", applied: true, args: append(native, "--run-validation"),
			saysWithout: "connections arrived where they should", with: 126, saysWith: "validate the capture of traffic"},
		{flag: "force-apply", variable: "FORCE_APPLY", value: "true", applied: true, args: native,
			saysWithout: "were in force already", saysWith: "are in force, after"},
		{flag: "reconcile", variable: "RECONCILE", value: "true", args: []string{"-i", "*"}, env: []string{"PATH=" + first(fakePrograms(t, present))},
			without: 1, saysWithout: "--reconcile replaces", saysWith: "The rules are applied by iptables-legacy 1.8.9"},
	} {
		t.Run(c.flag, func(t *testing.T) {
			for how, extra := range map[string]struct{ args, env []string }{
				"flag": {args: []string{"--" + c.flag + "=" + c.value}}, "variable": {env: []string{c.variable + "=" + c.value}},
			} {
				w := newWorld(t)
				if c.applied {
					expectCommand(t, w.pod, 0, "", c.env, append([]string{"istio-iptables"}, native...)...)
				}
				args := append([]string{"istio-iptables"}, c.args...)
				if how == "flag" { // without the setting, once is enough
					expectCommand(t, w.pod, c.without, c.saysWithout, c.env, args...)
					w = newWorld(t)
					if c.applied {
						expectCommand(t, w.pod, 0, "", c.env, append([]string{"istio-iptables"}, native...)...)
					}
				}
				expectCommand(t, w.pod, c.with, c.saysWith, append(extra.env, c.env...), append(args, extra.args...)...)
			}
		})
	}
}

// The lock of legacy programs is that of the file system, or of the network namespace with --cni-mode
// or the variable CNI_MODE.
func TestTheLockIsThatOfTheSettings(t *testing.T) {
	for want, c := range map[string]struct{ args, env []string }{
		"lock=\n":                  {},
		"lock=/proc/self/ns/net\n": {args: []string{"--cni-mode"}},
		"lock=/proc/self/ns/net":   {env: []string{"CNI_MODE=true"}},
	} {
		w := newWorld(t)
		dir, locks := fakePrograms(t, "")
		expectCommand(t, w.pod, 0, "applied by iptables-legacy", append(c.env, "PATH="+dir), append([]string{"istio-iptables", "-i", "*"}, c.args...)...)
		if got, err := os.ReadFile(locks); err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%+v: the programs lock %q, %v, want %q", c, got, err, want)
		}
	}
}

// expectCommand checks the exit code and that the output has a text, or has it not if ! precedes it.
func expectCommand(t *testing.T, p *netmesh.Pod, want int, says string, env []string, args ...string) {
	t.Helper()
	code, out, stderr := command(t, p, env, args...)
	not, unwanted := strings.CutPrefix(says, "!")
	if code != want || unwanted && strings.Contains(out+stderr, not) || !unwanted && !strings.Contains(out+stderr, says) {
		t.Errorf("%v with %v: exit code %d, want %d and %q, with\n%s%s", args, env, code, want, says, out, stderr)
	}
}

func first(a, _ string) string { return a }
