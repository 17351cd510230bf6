package capture_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
	"github.com/pilothouse/pilothouse/test/agenttest"
	"github.com/pilothouse/pilothouse/test/require"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 5 && os.Args[1] == "dial" {
		if err := dialer(os.Args[2], os.Args[3], os.Args[4]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 3 && os.Args[1] == "forward" {
		fmt.Println(forward(os.Args[2]))
		os.Exit(1)
	}
	require.Root()
	code := m.Run()
	agenttest.Cleanup()
	os.Exit(code)
}

// command runs pilot-agent in a Pod and returns its exit code and output.
func command(t *testing.T, p *netmesh.Pod, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, diagnostics bytes.Buffer
	proc, err := p.Start(netmesh.Command{Path: agenttest.Binary(t), Args: args, Env: env, Stdout: &out, Stderr: &diagnostics})
	if err != nil {
		t.Fatal(err)
	}
	_ = proc.Wait()
	return proc.ExitCode(), out.String(), diagnostics.String()
}

// TestCommand applies, repeats, changes and cleans as a person would, with and without iptables programs.
func TestCommand(t *testing.T) {
	all := []string{"istio-iptables", "-u", "1337", "-i", "*", "-b", "*", "-d", "15090,15021,15020", "--dual-stack"}
	for name, env := range map[string][]string{"whatever is here": nil, "no program": {"PATH=" + t.TempDir()}, "told": {"NATIVE_NFTABLES=true"}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.listen(t, 80)
			before := state(t, w.pod)
			expect := func(want int, says string, args ...string) {
				t.Helper()
				code, out, stderr := command(t, w.pod, env, args...)
				if code != want || !strings.Contains(out+stderr, says) {
					t.Errorf("%v: exit code %d, want %d and %q, with\n%s%s", args, code, want, says, out, stderr)
				}
			}
			captured := []leg{
				{w.other, app, "", "10.99.0.2:80", "inbound for 10.99.0.2:80"}, {w.pod, app, "", "[fd99:99::b]:80", "outbound for [fd99:99::b]:80"},
			}
			expect(0, "COMMIT", append(all, "--dry-run", "--native-nftables=false")...)
			if state(t, w.pod) != before {
				t.Error("a dry run changed the kernel")
			}
			expect(0, "are in force, after", all...)
			w.check(t, captured)
			expect(0, "were in force already", all...)
			expect(0, "are in force, after", append(all, "--force-apply")...)
			expect(0, "are in force, after", append(all, "--drop-invalid", "--reconcile")...)
			w.check(t, captured)
			expect(1, "--force-iptables-binary", append(all, "--force-iptables-binary=bpf")...)
			expect(1, "--envoy-port", append(all, "--envoy-port=none")...)
			expect(0, "", "istio-clean-iptables", "-n", "-u", "1337", "-g", "1337", "--redirect-dns", "--capture-all-dns", "-m", "REDIRECT", "-t", "1337")
			w.check(t, captured)
			expect(0, "", "istio-clean-iptables", "--some-flag-of-an-old-release")
			expect(0, "", "istio-iptables", "--cleanup-only")
			if s := state(t, w.pod); s != before {
				t.Errorf("cleaned, there is still\n%s", s)
			}
			w.check(t, []leg{{w.other, app, "", "10.99.0.2:80", "pod"}})
		})
	}
}

// Other rules of capture that are in force are not replaced without --reconcile by iptables.
func TestCommandRefusesWhatDiffers(t *testing.T) {
	if len(variants()) == 0 {
		return
	}
	w := newWorld(t)
	if code, _, stderr := command(t, w.pod, nil, "istio-iptables", "-i", "*"); code != 0 {
		t.Fatal(stderr)
	}
	code, _, stderr := command(t, w.pod, nil, "istio-iptables", "-i", "10.0.0.0/8")
	if code != 1 || !strings.Contains(stderr, "--reconcile") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if code, _, stderr := command(t, w.pod, nil, "istio-iptables", "-i", "10.0.0.0/8", "--reconcile"); code != 0 {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if code, out, _ := command(t, w.pod, nil, "istio-iptables", "--cleanup-only", "-n"); code != 0 || !strings.Contains(out, "-D OUTPUT -j ISTIO_OUTPUT\n") {
		t.Errorf("exit code %d, shows %q", code, out)
	}
}

// Called from outside of a Pod, as a CNI plugin does, the command acts on that Pod alone, whose
// resolvers are those of the Pod's own file.
func TestCommandActsInAnotherNamespace(t *testing.T) {
	backends := map[string]string{"native": "--native-nftables"}
	for _, v := range variants() {
		backends[v] = "--force-iptables-binary=" + v
	}
	for name, backend := range backends {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.listen(t, 80)
			do(t, w.pod, func() error { return os.WriteFile("/etc/resolv.conf", []byte("nameserver 10.96.0.53\n"), 0) })
			all := func() (states [2]string) {
				for i, p := range []*netmesh.Pod{w.pod, w.other} {
					_, rules := kernelRules(t, p) // but legacy's
					states[i] = state(t, p) + loopbackAddrs(t, p) + fmt.Sprint(" rules: ", rules)
				}
				return states
			}
			before := all()
			sleeper, err := w.pod.Start(netmesh.Command{Path: "sleep", Args: []string{"600"}})
			if err != nil {
				t.Fatal(err)
			}
			run := func(args ...string) {
				t.Helper()
				args = append(args, backend, "--network-namespace", fmt.Sprintf("/proc/%d/ns/net", sleeper.PID()))
				if code, _, stderr := command(t, w.other, []string{"PATH=" + capture.DefaultPath}, args...); code != 0 {
					t.Fatalf("%v: exit code %d: %s", args, code, stderr)
				}
			}
			run("istio-iptables", "-i", "*", "-b", "*", "--redirect-dns", "--dual-stack", "--run-validation=false", "--cni-mode")
			if now := all(); now[0] == before[0] || now[1] != before[1] {
				t.Errorf("in the Pod\n%s\nand outside\n%s", now[0], now[1])
			}
			answer(t, w.pod, ":15053", func(*net.TCPConn) string { return "agent" })
			w.check(t, []leg{
				{w.other, app, "", "10.99.0.2:80", "inbound for 10.99.0.2:80"},
				{w.pod, app, "", "[fd99:99::b]:80", "outbound for [fd99:99::b]:80"},
				{w.pod, app, "", "10.96.0.53:53", "agent"},
				{w.pod, app, "", "10.99.0.1:53", "outbound for 10.99.0.1:53"},
			})
			run("istio-iptables", "--cleanup-only")
			if now := all(); now != before {
				t.Errorf("cleaned, there is still\n%s\nof\n%s", now, before)
			}
			w.check(t, []leg{{w.other, app, "", "10.99.0.2:80", "pod"}, {w.pod, app, "", "[fd99:99::b]:80", "other"}})
		})
	}
}
