package capture

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEveryOptionHasAGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	o := DefaultOptions()
	for _, f := range o.Flags() {
		name := f.Name
		if name == "" {
			name = f.Env
		}
		if !strings.Contains(all.String(), "\n"+name+"=") {
			t.Errorf("no golden plan has the option %s", name)
		}
	}
}

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

func TestComplaintsAreExplained(t *testing.T) {
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
		err := program{}.explain(failed, said)
		if !errors.Is(err, failed) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", said, err, want)
		}
		if lacks := strings.Contains(said, "No chain") || strings.Contains(said, "Table does"); errors.Is(err, errKernelLacks) != lacks {
			t.Errorf("%q: a lack of the kernel: %t", said, !lacks)
		}
	}
}

// Programs are looked for where the options say, and those that are not whole are passed over.
func TestIncompleteProgramsAreNotTaken(t *testing.T) {
	dir := t.TempDir()
	for file, mode := range map[string]os.FileMode{"iptables-nft": 0o755, "iptables-nft-save": 0o755, "iptables-nft-restore": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Choose(BackendOptions{Path: dir + "::/no/such/directory"}, Ruleset{})
	if err != nil || c.Name != "nftables" || !strings.Contains(c.Why, "no program iptables-nft with its -save and -restore") {
		t.Errorf("took %s because %s, %v", c.Name, c.Why, err)
	}
	if _, err := Choose(BackendOptions{Path: dir, Force: "nft"}, Ruleset{}); err == nil {
		t.Error("a forced program that is not there is no error")
	}
	if _, err := Choose(BackendOptions{Force: "bpf"}, Ruleset{}); err == nil {
		t.Error("an unknown variant is no error")
	}
}
