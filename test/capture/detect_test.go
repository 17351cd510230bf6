package capture_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
)

// programs makes a directory with some iptables programs of this machine, each with its -save and
// -restore, and returns it. "a=b" is b under the name of a.
func programs(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		name, real, renamed := strings.Cut(name, "=")
		if !renamed {
			real = name
		}
		for _, suffix := range []string{"", "-save", "-restore"} {
			// A program's variant depends on the name that it is called by.
			script := fmt.Sprintf("#!/bin/sh\nexec %s \"$@\"\n", findProgram(real+suffix))
			if err := os.WriteFile(filepath.Join(dir, name+suffix), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// replace has a program of such a directory print a text and fail.
func replace(t *testing.T, dir, name, says string, code int) {
	t.Helper()
	script := fmt.Sprintf("#!/bin/sh\necho '%s' >&2\nexit %d\n", says, code)
	if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
}

func choose(t *testing.T, p *netmesh.Pod, o capture.BackendOptions, r plan.Ruleset) (c capture.Choice, err error) {
	t.Helper()
	_ = p.Do(func() error {
		c, err = capture.Choose(o, r)
		return err
	})
	return c, err
}

// Of the programs that exist and work, the one in use is chosen.
func TestProgramIsDetected(t *testing.T) {
	if len(variants()) < 2 {
		return // there is nothing to choose from
	}
	one := injector()
	one.DualStack = false
	all := []string{"iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"}
	for _, c := range []struct {
		what      string
		programs  []string
		force     string
		both      bool
		legacyHas bool
		broken    map[string]string
		want, why string
	}{
		{what: "all", programs: all, want: "iptables-nft 1", why: "legacy has no rules"},
		{what: "legacy in use", programs: all, legacyHas: true, want: "iptables-legacy 1", why: "legacy has rules here"},
		{what: "legacy in use, nft forced", programs: all, legacyHas: true, force: "nft", want: "iptables-nft 1", why: "--force-iptables-binary=nft"},
		{what: "legacy forced", programs: all, force: "legacy", want: "iptables-legacy 1", why: "--force-iptables-binary=legacy"},
		{what: "plain", programs: []string{"iptables=iptables-nft", "ip6tables=ip6tables-nft"}, both: true, want: "iptables 1", why: "the one that works"},
		{what: "plain is the forced one", programs: []string{"iptables=iptables-legacy"}, force: "legacy", want: "iptables 1", why: "--force"},
		{what: "plain is the other one", programs: []string{"iptables=iptables-nft"}, force: "legacy", want: "!is the other variant"},
		{what: "none", want: "nftables", why: "there is no program iptables-nft"},
		{what: "none for IPv6", programs: []string{"iptables-nft"}, both: true, want: "nftables", why: "no program ip6tables"},
		{what: "none for IPv6, which is not needed", programs: []string{"iptables-nft"}, want: "iptables-nft 1"},
		{what: "nft doesn't work", programs: all, broken: map[string]string{"iptables-nft-save": "Failed to initialize nft: Protocol not supported"}, want: "iptables-legacy 1", why: "no other works"},
		{what: "nothing works", programs: all[:2], broken: map[string]string{"iptables-nft-save": "Failed to initialize nft: Protocol not supported"}, want: "nftables", why: "load nf_tables"},
		{what: "forced and not there", force: "legacy", want: "!no program iptables-legacy"},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := newWorld(t)
			o := capture.BackendOptions{Force: c.force, Path: programs(t, c.programs...)}
			for name, says := range c.broken {
				replace(t, o.Path, name, says, 1)
			}
			if c.legacyHas {
				shell(t, w.pod, theirs, "iptables-legacy-restore", "--noflush")
			}
			options := one
			options.DualStack = c.both
			got, err := choose(t, w.pod, o, planIn(t, w.pod, options))
			if want, refused := strings.CutPrefix(c.want, "!"); refused {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %s, %v, want an error with %q", got.Name, err, want)
				}
				return
			}
			if err != nil || !strings.HasPrefix(got.Name, c.want) || !strings.Contains(got.Why, c.why) {
				t.Errorf("got %q because %q, %v; want %q because %q", got.Name, got.Why, err, c.want, c.why)
			}
		})
	}
}

// Where the kernel lacks something that iptables needs, traffic is captured by nftables.
func TestFallsBackWhereTheKernelLacksSomething(t *testing.T) {
	if len(variants()) == 0 {
		return
	}
	w := newWorld(t)
	w.listen(t, 80)
	v := variants()[0]
	dir := programs(t, "iptables-"+v, "ip6tables-"+v)
	replace(t, dir, "ip6tables-"+v+"-restore", "iptables-restore v1.8.9: RULE_APPEND failed (No such file or directory): rule in chain ISTIO_OUTPUT", 4)
	using(t, capture.BackendOptions{Path: dir})
	report := w.apply(t, injector())
	if len(report.Refused) != 1 || !strings.Contains(report.Refused[0].Error(), "nftables") || !strings.Contains(report.Refused[0].Error(), "--native-nftables") {
		t.Errorf("said %v", report.Refused)
	}
	w.check(t, []leg{
		{w.other, app, "", "10.99.0.2:80", "inbound for 10.99.0.2:80"},
		{w.pod, app, "", "[fd99:99::b]:80", "outbound for [fd99:99::b]:80"},
	})
	if s := state(t, w.pod); strings.Contains(s, "ISTIO_") {
		t.Errorf("half of iptables' rules are left:\n%s", s)
	}
	r := planIn(t, w.pod, injector())
	if d := drift(t, w.pod, under, r); d != nil {
		t.Errorf("it differs: %q", d)
	}
	// With --force-iptables-binary, it is an error, and no rules are left.
	if err := use(w.pod, on(v), r, func(c capture.Choice) error { return c.Clean() }); err != nil {
		t.Fatal(err)
	}
	if err := applyOn(w.pod, capture.BackendOptions{Force: v, Path: dir}, r); err == nil || !strings.Contains(err.Error(), "the kernel lacks") {
		t.Errorf("forced: %v", err)
	}
}

// If another program holds the lock for too long, the error names it; the lock of one Pod is free.
func TestLocks(t *testing.T) {
	if findProgram("iptables-legacy-restore") == "" {
		return
	}
	w := newWorld(t)
	r := planIn(t, w.pod, injector())
	lock, err := os.OpenFile("/run/xtables.lock", os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	podLock := func(o *capture.BackendOptions) { o.PodLock = true }
	if err := applyOn(w.pod, on("legacy", podLock), r); err != nil || time.Since(begin) > 10*time.Second {
		t.Errorf("with the Pod's own lock: %v after %s", err, time.Since(begin))
	}
	lock.Close()
	dir := programs(t, "iptables-legacy", "ip6tables-legacy")
	replace(t, dir, "iptables-legacy-restore", "Another app is currently holding the xtables lock; waited 30s", 4)
	err = applyOn(w.pod, capture.BackendOptions{Path: dir, Reconcile: true, Reapply: true}, r)
	if err == nil || !strings.Contains(err.Error(), "fuser /run/xtables.lock") {
		t.Errorf("with the lock held: %v", err)
	}
	if d := drift(t, w.pod, on("legacy"), r); d != nil {
		t.Errorf("the rules that were in force are not: %q", d)
	}
}

// On a read-only file system, as in containers, there is no common lock.
func TestLockOfAReadOnlyFileSystem(t *testing.T) {
	if findProgram("iptables-legacy-restore") == "" {
		return
	}
	w := newWorld(t)
	if err := w.pod.Do(func() error { return unix.Mount("none", "/run", "tmpfs", unix.MS_RDONLY, "") }); err != nil {
		t.Fatal(err)
	}
	if err := applyOn(w.pod, on("legacy"), planIn(t, w.pod, injector())); err != nil {
		t.Error(err)
	}
}

// There is a warning about a firewall that drops by default, and none about one that doesn't.
func TestForeignFirewallsAreNamed(t *testing.T) {
	for _, v := range variants() {
		w := newWorld(t)
		foreign := func() (warnings []string) {
			_ = w.pod.Do(func() error { warnings = capture.Warnings(on(v)); return nil })
			return warnings
		}
		shell(t, w.pod, theirs, "iptables-"+v+"-restore", "--noflush")
		if err := applyOn(w.pod, on(v), planIn(t, w.pod, injector())); err != nil {
			t.Fatal(err)
		}
		if got := foreign(); got != nil {
			t.Errorf("%s: named %q", v, got)
		}
		shell(t, w.pod, "* filter\n:INPUT DROP [0:0]\n:ufw-user-input - [0:0]\nCOMMIT\n", "iptables-"+v+"-restore", "--noflush")
		if got := fmt.Sprint(foreign()); !strings.Contains(got, "chain INPUT") || !strings.Contains(got, "is meant for this host") || !strings.Contains(got, "ufw allow") {
			t.Errorf("%s: named %q", v, got)
		}
	}
}

// Rules of the nft variant can be removed where there is no iptables; about those of legacy there is a
// warning.
func TestCleanWithoutThePrograms(t *testing.T) {
	for _, v := range variants() {
		w := newWorld(t)
		shell(t, w.pod, theirs, "iptables-"+v+"-restore", "--noflush")
		before := state(t, w.pod)
		r := planIn(t, w.pod, injector())
		if err := applyOn(w.pod, on(v), r); err != nil {
			t.Fatal(err)
		}
		none := capture.BackendOptions{Path: t.TempDir()}
		if err := w.pod.Do(capture.Nftables{Options: none}.Clean); err != nil {
			t.Error(err)
		}
		var warnings []string
		_ = w.pod.Do(func() error { warnings = capture.Warnings(none); return nil })
		named := strings.Contains(fmt.Sprint(warnings), "there is no iptables-legacy to read them")
		if gone := state(t, w.pod) == before; gone != (v == "nft") || named != (v == "legacy") {
			t.Errorf("%s: gone %t, named in %q:\n%s", v, gone, warnings, state(t, w.pod))
		}
	}
}

// Each backend removes the rules of the others when it applies its own; each cleans all.
func TestBackendsTakeOver(t *testing.T) {
	w := newWorld(t)
	w.listen(t, 80)
	backends := map[string]capture.BackendOptions{"native": {Native: true, Path: capture.DefaultPath}}
	for _, v := range variants() {
		backends[v] = on(v)
	}
	r := planIn(t, w.pod, injector())
	before := state(t, w.pod)
	for from, first := range backends {
		for to, second := range backends {
			for _, o := range []capture.BackendOptions{first, second} {
				if err := applyOn(w.pod, o, r); err != nil {
					t.Fatalf("%s then %s: %v", from, to, err)
				}
			}
			w.check(t, []leg{{w.other, app, "", "10.99.0.2:80", "inbound for 10.99.0.2:80"}})
			for name, o := range backends {
				if d := drift(t, w.pod, o, r); (len(d) == 0) != (name == to) {
					t.Errorf("%s then %s: %s differs by %q", from, to, name, d)
				}
			}
			// The first removes what the second applied.
			if err := use(w.pod, first, r, func(c capture.Choice) error { return c.Clean() }); err != nil {
				t.Fatal(err)
			}
			if s := state(t, w.pod); s != before {
				t.Errorf("%s cleans after %s: left\n%s", from, to, s)
			}
			w.check(t, []leg{{w.other, app, "", "10.99.0.2:80", "pod"}})
		}
	}
}
