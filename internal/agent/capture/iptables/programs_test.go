package iptables

import (
	"errors"
	"strings"
	"testing"
)

func TestVersions(t *testing.T) {
	for _, c := range []struct {
		says, version, variant string
		waits                  bool
	}{
		{"iptables v1.8.9 (nf_tables)", "1.8.9", "nft", false},
		{"iptables v1.8.9 (legacy)\n", "1.8.9", "legacy", true},
		{"ip6tables v1.6.2", "1.6.2", "legacy", true},
		{"iptables v1.6.1", "1.6.1", "legacy", false},
		{"iptables v1.4.21", "1.4.21", "legacy", false},
		{"iptables v2.0", "2.0", "legacy", true},
		{"what?", "of an unknown version", "legacy", false},
	} {
		version, variant := parseVersion(c.says)
		p := program{name: "iptables", version: version, variant: variant}
		if version != c.version || variant != c.variant || p.waits() != c.waits {
			t.Errorf("%q is %s, waits %t", c.says, p, p.waits())
		}
	}
}

func TestErrorsHaveRemedies(t *testing.T) {
	failed := errors.New("exit status 4")
	for said, want := range map[string]string{
		"":                       "exit status 4",
		"something new happened": "exit status 4: something new happened",
		"Another app is currently holding the xtables lock; waiting":                           "find it with fuser /run/xtables.lock)",
		"Fatal: can't open lock file /run/xtables.lock: Read-only":                             "--cni-mode",
		"can't initialize iptables table `nat': Table does not exist (do you need to insmod?)": "load iptable_nat",
		"iptables: No chain/target/match by that name.":                                        "xt_owner",
		"Fatal: can't open lock file: Permission denied":                                       "writable /run",
		"Could not fetch rule set generation id: Permission denied (you must be root)":         "CAP_NET_ADMIN",
	} {
		err := diagnose(failed, said)
		if !errors.Is(err, failed) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", said, err, want)
		}
		if lacks := strings.Contains(said, "No chain") || strings.Contains(said, "Table does"); errors.Is(err, ErrKernelLacks) != lacks {
			t.Errorf("%q: ErrKernelLacks is %t", said, !lacks)
		}
	}
}
