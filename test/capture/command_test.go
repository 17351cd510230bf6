package capture_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/pilothouse/pilothouse/test/netmesh"
)

// agentDir holds the program that agentProgram builds; empty until then.
var agentDir string

// agentProgram builds pilot-agent once for all tests.
var agentProgram = sync.OnceValues(func() (string, error) {
	var err error
	if agentDir, err = os.MkdirTemp("", "pilot-agent-*"); err != nil {
		return "", err
	}
	path := filepath.Join(agentDir, "pilot-agent")
	out, err := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags", "grpcnotrace", "-o", path, "../../cmd/pilot-agent").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("build pilot-agent: %w: %s", err, out)
	}
	return path, err
})

func TestMain(m *testing.M) {
	if len(os.Args) == 5 && os.Args[1] == "dial" {
		if err := dialer(os.Args[2], os.Args[3], os.Args[4]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if agentDir != "" {
		os.RemoveAll(agentDir)
	}
	os.Exit(code)
}

// command runs pilot-agent in a Pod and returns its exit code and what it said.
func command(t *testing.T, p *netmesh.Pod, env []string, args ...string) (code int, out, complaints string) {
	t.Helper()
	path, err := agentProgram()
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	proc, err := p.Start(netmesh.Command{Path: path, Args: args, Env: env, Stdout: &stdout, Stderr: &stderr})
	if err != nil {
		t.Fatal(err)
	}
	_ = proc.Wait()
	return proc.ExitCode(), stdout.String(), stderr.String()
}

// TestCommand lives through what a person does, with and without an iptables program.
func TestCommand(t *testing.T) {
	all := []string{"istio-iptables", "-u", "1337", "-i", "*", "-b", "*", "-d", "15090,15021,15020", "--dual-stack"}
	for name, env := range map[string][]string{"whatever is here": nil, "no program": {"PATH=" + t.TempDir()}, "told": {"NATIVE_NFTABLES=true"}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.listen(t, 80)
			before := state(t, w.pod)
			expect := func(want int, says string, args ...string) {
				t.Helper()
				code, out, complaints := command(t, w.pod, env, args...)
				if code != want || !strings.Contains(out+complaints, says) {
					t.Errorf("%v: exit code %d, want %d and %q, with\n%s%s", args, code, want, says, out, complaints)
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

// Other rules of ours that are in force are not replaced unasked by iptables, whose exit code says so.
func TestCommandRefusesWhatDiffers(t *testing.T) {
	if len(variants()) == 0 {
		return
	}
	w := newWorld(t)
	if code, _, complaints := command(t, w.pod, nil, "istio-iptables", "-i", "*"); code != 0 {
		t.Fatal(complaints)
	}
	code, _, complaints := command(t, w.pod, nil, "istio-iptables", "-i", "10.0.0.0/8")
	if code != 1 || !strings.Contains(complaints, "--reconcile") {
		t.Errorf("exit code %d: %s", code, complaints)
	}
	if code, _, complaints := command(t, w.pod, nil, "istio-iptables", "-i", "10.0.0.0/8", "--reconcile"); code != 0 {
		t.Errorf("exit code %d: %s", code, complaints)
	}
	if code, out, _ := command(t, w.pod, nil, "istio-iptables", "--cleanup-only", "-n"); code != 0 || !strings.Contains(out, "-D OUTPUT -j ISTIO_OUTPUT\n") {
		t.Errorf("exit code %d, shows %q", code, out)
	}
}
